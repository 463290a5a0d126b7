"""Quality of the reward models on held-out instances (Table 8 of the paper, appendix C.2).

Every function takes plain arrays and returns plain floats; None stands for "undefined here" (one class only, no pair).
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import TypeVar

import numpy as np
from scipy.stats import rankdata, spearmanr

Key = TypeVar("Key", str, int)


def pairwise_accuracy(
    scores: Sequence[float], targets: Sequence[float], groups: Sequence[str]
) -> tuple[float | None, int]:
    """Share of within-instance pairs with different r* that R_seq orders correctly, ties counting half; and their number."""
    wins = [
        _win(scores[i], scores[j])
        for group in _members(groups).values()
        for i in group
        for j in group
        if targets[i] > targets[j]
    ]
    return (fmean(wins), len(wins)) if wins else (None, 0)


def roc_auc(scores: Sequence[float], successes: Sequence[bool]) -> float | None:
    """Area under the ROC curve of `scores` for success against failure, ties counting half (Mann-Whitney)."""
    success = np.asarray(successes, dtype=bool)
    num_success, num_failure = int(success.sum()), int((~success).sum())
    if num_success == 0 or num_failure == 0:
        return None
    rank_sum = float(rankdata(np.asarray(scores, dtype=np.float64))[success].sum())
    return (rank_sum - num_success * (num_success + 1) / 2) / (num_success * num_failure)


def spearman(scores: Sequence[float], targets: Sequence[float]) -> float | None:
    """Spearman's rank correlation of scores and targets; None if either is constant."""
    if len(set(scores)) < 2 or len(set(targets)) < 2:
        return None
    return float(spearmanr(scores, targets).statistic)


def sequence_metrics(
    scores: Sequence[float],
    targets: Sequence[float],
    successes: Sequence[bool],
    applied: Sequence[bool],
    groups: Sequence[str],
) -> dict[str, float | int | None]:
    """R_seq's column of Table 8, with the numbers of candidates, pairs and successes behind it.

    `roc_auc_applied` is the area among the patches that apply: whether a patch applies is easier to see than whether it is
    right, and hides in the area over all.
    """
    accuracy, num_pairs = pairwise_accuracy(scores, targets, groups)
    kept = [i for i, value in enumerate(applied) if value]
    return {
        "pairwise_accuracy": accuracy,
        "roc_auc": roc_auc(scores, successes),
        "roc_auc_applied": roc_auc([scores[i] for i in kept], [successes[i] for i in kept]),
        "spearman": spearman(scores, targets),
        "mean_squared_error": float(np.mean((np.asarray(scores) - np.asarray(targets)) ** 2)),
        "target_variance": float(np.var(np.asarray(targets))),
        "num_candidates": len(scores),
        "num_pairs": num_pairs,
        "num_successes": int(np.sum(successes)),
    }


def span_metrics(
    scores: Sequence[float], labels: Sequence[int], groups: Sequence[str], patches: Sequence[int]
) -> dict[str, float | int | None]:
    """R_line's column of Table 8, on the spans of held-out candidates.

    Args:
        scores, labels: one per span; labels +1 passing, -1 failing, 0 neutral.
        groups: the instance of each span. patches: a number per candidate patch.

    Returns:
        pairwise_accuracy: (l+, l-) pairs ordered correctly, each l- counting once, paired as in training
            (`reward_models.losses.contrastive_loss`).
        top1_hit_rate, top3_hit_rate: the paper does not define them; here: over the instances with both passing and
            failing spans, the share where a passing span is among the 1 or 3 spans with the highest score. `*_chance` is what
            a random order would reach.
        within_patch_accuracy: over failing patches with both failing and neutral spans, pairs where the failing span has the
            lower score: what redistribution inside one patch lives on.
    """
    score = np.asarray(scores, dtype=np.float64)
    per_negative = [fmean(_win(score[p], score[n]) for p in partners) for n, partners in _partners(labels, groups)]
    top: dict[int, list[float]] = {1: [], 3: []}
    chance: dict[int, list[float]] = {1: [], 3: []}
    for members in _members(groups).values():
        labelled = [i for i in members if labels[i] != 0]
        num_failing = sum(labels[i] < 0 for i in labelled)
        if not 0 < num_failing < len(labelled):
            continue
        order = sorted(labelled, key=lambda i: (-score[i], labels[i]))  # a tie counts against the model
        for k in top:
            top[k].append(float(any(labels[i] > 0 for i in order[:k])))
            chance[k].append(1.0 - _all_failing_probability(len(labelled), num_failing, k))
    within = [
        _win(score[neutral], score[failing])
        for members in _members(patches).values()
        for failing in members
        if labels[failing] < 0
        for neutral in members
        if labels[neutral] == 0
    ]
    return {
        "pairwise_accuracy": fmean(per_negative) if per_negative else None,
        "top1_hit_rate": fmean(top[1]) if top[1] else None,
        "top3_hit_rate": fmean(top[3]) if top[3] else None,
        "top1_chance": fmean(chance[1]) if chance[1] else None,
        "top3_chance": fmean(chance[3]) if chance[3] else None,
        "within_patch_accuracy": fmean(within) if within else None,
        "num_spans": len(scores),
        "num_failing_spans_paired": len(per_negative),
        "num_ranked_instances": len(top[1]),
        "num_within_patch_pairs": len(within),
    }


def _members(keys: Sequence[Key]) -> dict[Key, list[int]]:
    members: dict[Key, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        members[key].append(index)
    return members


def _win(better: float, worse: float) -> float:
    return 1.0 if better > worse else 0.5 if better == worse else 0.0


def _partners(labels: Sequence[int], groups: Sequence[str]) -> list[tuple[int, list[int]]]:
    """Each failing span with the passing spans of its instance, or with all passing ones if it has none (Eq. 6)."""
    everyone = [i for i, label in enumerate(labels) if label > 0]
    nearby = {group: [i for i in members if labels[i] > 0] for group, members in _members(groups).items()}
    pairs = [(n, nearby[groups[n]] or everyone) for n, label in enumerate(labels) if label < 0]
    return [(n, partners) for n, partners in pairs if partners]


def _all_failing_probability(total: int, failing: int, draws: int) -> float:
    """Probability that `draws` spans drawn without replacement (all, if there are fewer) are failing ones."""
    probability = 1.0
    for i in range(min(draws, total)):
        probability *= max(failing - i, 0) / (total - i)
    return probability
