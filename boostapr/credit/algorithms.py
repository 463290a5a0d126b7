"""Credit functions by name: one rollout and the settings -> token streams. Adding an algorithm is one function here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from boostapr.credit.align import align, fit
from boostapr.credit.shaping import allocate, format_penalty, shape
from boostapr.credit.streams import CreditSettings, Rollout, TokenStreams
from boostapr.credit.units import units
from boostapr.outcomes import FailureCause, Status
from boostapr.patches import Patch, PatchFormat, parse_patch

CreditFunction = Callable[[Rollout, CreditSettings], TokenStreams]


def boostapr(rollout: Rollout, settings: CreditSettings) -> TokenStreams:
    """R_seq spread over the edits by R_line (Eq. 5, 7, 8); on the last token if there is nothing to spread it by.

    Raises ValueError if scores are missing or do not fit.
    """
    patch = parse_patch(rollout.response)
    own = units(patch, settings.granularity)
    score = _seq_score(rollout)
    tokens = fit(rollout.tokens, rollout.response)
    scores = rollout.unit_scores
    if not own or tokens is None or scores == []:
        return _on_last_token(rollout, settings, patch, score)
    if scores is None or len(scores) != len(own):
        found = "no" if scores is None else f"{len(scores)}"
        raise ValueError(f"{found} unit scores for a patch of {len(own)} units ({settings.granularity})")
    owners = align(own, tokens).unit_of_token
    mask = np.asarray(rollout.response_mask, dtype=bool)
    penalty = format_penalty(patch.format, settings.format_penalty)
    rewards = shape(score, allocate(scores, settings.tau), owners, mask, penalty)
    return _streams(rollout, rewards, patch, fallback=not bool((mask & (owners >= 0)).any()))


def r_seq(rollout: Rollout, settings: CreditSettings) -> TokenStreams:
    """R_seq alone: the whole score, and the format penalty, on the last token."""
    return _on_last_token(rollout, settings, parse_patch(rollout.response), _seq_score(rollout), fallback=False)


CREDIT: Mapping[str, CreditFunction] = {"boostapr": boostapr, "r_seq": r_seq}


def _seq_score(rollout: Rollout) -> float:
    if rollout.seq_score is None or not np.isfinite(rollout.seq_score):
        raise ValueError(f"a rollout needs a finite sequence score, not {rollout.seq_score}")
    return float(rollout.seq_score)


def _on_last_token(
    rollout: Rollout, settings: CreditSettings, patch: Patch, score: float, fallback: bool = True
) -> TokenStreams:
    mask = np.asarray(rollout.response_mask, dtype=bool)
    owners = np.full(len(mask), -1, dtype=np.int32)
    penalty = format_penalty(patch.format, settings.format_penalty)
    return _streams(rollout, shape(score, np.empty(0), owners, mask, penalty), patch, fallback)


def _streams(rollout: Rollout, rewards: np.ndarray, patch: Patch, fallback: bool) -> TokenStreams:
    """The streams of a plain policy-gradient rollout; one that the machine spoilt (infra) teaches nothing."""
    mask = np.array(rollout.response_mask, dtype=bool)
    outcome = rollout.outcome
    if outcome is not None and outcome.status is Status.INFRA:
        none = np.zeros(len(mask))
        return TokenStreams(
            none, none.copy(), np.zeros(len(mask), dtype=bool), float("nan"), FailureCause.INFRA, fallback
        )
    if outcome is not None:
        cause = outcome.status.cause
    else:
        cause = FailureCause.FORMAT if patch.format is PatchFormat.NOT_A_DIFF else FailureCause.NONE
    return TokenStreams(rewards, np.ones(len(mask)), mask, float(rewards.sum()), cause, fallback)
