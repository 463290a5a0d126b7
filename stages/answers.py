"""What the evaluate stage does with responses: pick, score, make the rows of results.jsonl, and count."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from boostapr.credit import allocate, format_penalty, units
from boostapr.outcomes import Outcome
from boostapr.patches import Patch, PatchFormat, parse_patch
from envs.policies import Response
from envs.tasks import BugInstance
from stages.common import RowKey
from stages.settings import CreditViewSettings

FIRST, SAMPLED = "greedy", "sampled"  # the answer that pass@1 counts; those that pass@k counts


class Scorer(Protocol):
    """`reward_models.scorer.RewardScorer`: R_seq of each response and R_line of each of its units."""

    def score(self, responses: Sequence[bytes], granularity: str) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Answer:
    """A response that is to be graded. `extra` are further fields of its row (credit, what R_seq said)."""

    instance_id: str
    mode: str
    sample: int
    response: Response
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> RowKey:
        return self.instance_id, self.mode, self.sample


class Judge:
    """The reward models as readers of answers. They are loaded by `load` when the first answer is to be scored."""

    def __init__(self, load: Callable[[], Scorer], settings: CreditViewSettings) -> None:
        self._load, self._settings = load, settings
        self._scorer: Scorer | None = None

    def score(self, responses: Sequence[bytes]) -> Sequence[Any]:
        """One score with `.seq` and `.units` per response."""
        if not responses:
            return []
        self._scorer = self._scorer or self._load()
        return self._scorer.score(responses, self._settings.shaping.granularity)

    def with_credit(self, answers: Sequence[Answer]) -> list[Answer]:
        """The answers, the first ones with `credit`: R_seq's score, the format penalty (Eq. 7), and score and weight
        (Eq. 5) of every unit.

        A unit of several byte ranges gives a span each, its weight divided by their lengths; the weights of an answer sum to 1.
        """
        first = [i for i, answer in enumerate(answers) if answer.mode == FIRST]
        scores = self.score([answers[i].response.data for i in first])
        marked = list(answers)
        for i, score in zip(first, scores, strict=True):
            patch = parse_patch(answers[i].response.data)
            penalty = format_penalty(patch.format, self._settings.shaping.format_penalty)
            spans = self._spans(patch, score.units)
            credit = {"seq": float(score.seq), "format_penalty": penalty, "spans": spans}
            marked[i] = replace(answers[i], extra={**answers[i].extra, "credit": credit})
        return marked

    def _spans(self, patch: Patch, scores: Sequence[float]) -> list[dict[str, float]]:
        if not scores:
            return []
        own = units(patch, self._settings.shaping.granularity)
        spans: list[dict[str, float]] = []
        for unit, score, weight in zip(own, scores, allocate(scores, self._settings.shaping.tau), strict=True):
            length = sum(end - start for start, end in unit.ranges)
            spans += [
                {"start": start, "end": end, "score": float(score), "weight": float(weight) * (end - start) / length}
                for start, end in unit.ranges
            ]
        return spans


def collect(stored: Mapping[RowKey, Response], instance_ids: Sequence[str]) -> list[Answer]:
    """The stored responses as answers, in the order of the instances; the first answer before the samples."""
    order = {instance_id: i for i, instance_id in enumerate(instance_ids)}
    keys = sorted((key for key in stored if key[0] in order), key=lambda key: (order[key[0]], key[1] != FIRST, key[2]))
    return [Answer(*key, stored[key]) for key in keys]


def rerank(
    stored: Mapping[RowKey, Response], instance_ids: Sequence[str], num_samples: int, judge: Judge
) -> list[Answer]:
    """R_seq's choice among the sampled responses of each instance: its best as first answer, its best few as samples.

    Equal responses are one candidate, as nobody would hand in the same patch twice; if there are fewer different ones
    than samples, the best ones come again. Ties go to the one that was drawn first.
    """
    pool = collect(stored, instance_ids)
    scores = dict(
        zip((a.key for a in pool), (float(s.seq) for s in judge.score([a.response.data for a in pool])), strict=True)
    )
    different: dict[str, dict[bytes, Answer]] = {instance_id: {} for instance_id in instance_ids}
    for answer in pool:
        different[answer.instance_id].setdefault(answer.response.data, answer)
    chosen: list[Answer] = []
    for instance_id in instance_ids:
        ranked = sorted(different[instance_id].values(), key=lambda answer: (-scores[answer.key], answer.sample))
        for mode, count in ((FIRST, 1), (SAMPLED, num_samples)):
            for rank in range(count):
                pick = ranked[rank % len(ranked)]
                extra = {"rank": rank % len(ranked), "score": scores[pick.key], "pool_sample": pick.sample}
                chosen.append(Answer(instance_id, mode, rank, pick.response, extra))
    return chosen


def result_row(answer: Answer, instance: BugInstance, outcome: Outcome) -> dict[str, Any]:
    """One line of results.jsonl."""
    return {
        "instance_id": answer.instance_id,
        "sample": answer.sample,
        "mode": answer.mode,
        **answer.response.to_row(),
        "outcome": outcome.to_dict(),
        "format": parse_patch(answer.response.data).format.value if instance.output_mode == "diff" else "code",
        "resolved": outcome.resolved,
        **answer.extra,
    }


def summarize(rows: Sequence[Mapping[str, Any]], instance_ids: Sequence[str], num_samples: int) -> dict[str, Any]:
    """Counts of one system on one split. The denominator is the split: an instance without an answer is not resolved."""
    first = [row for row in rows if row["mode"] == FIRST]
    solved: dict[str, int] = Counter(row["instance_id"] for row in rows if row["mode"] == SAMPLED and row["resolved"])
    sampled = Counter(row["instance_id"] for row in rows if row["mode"] == SAMPLED)
    n = len(instance_ids)
    summary: dict[str, Any] = {
        "n": n,
        "resolved": sum(row["resolved"] for row in first),
        "pass@1": sum(row["resolved"] for row in first) / n,
        "valid_diff_rate": sum(row["format"] == PatchFormat.VALID for row in first) / n,
        "statuses": dict(Counter(row["outcome"]["status"] for row in first).most_common()),
        "formats": dict(Counter(row["format"] for row in first).most_common()),
        "truncated": sum(row["finish"] != "stop" for row in first),
    }
    if num_samples and all(sampled[i] >= num_samples for i in instance_ids):
        summary[f"pass@{num_samples}"] = sum(solved[i] > 0 for i in instance_ids) / n
        summary["statuses_sampled"] = dict(
            Counter(r["outcome"]["status"] for r in rows if r["mode"] == SAMPLED).most_common()
        )
    return summary
