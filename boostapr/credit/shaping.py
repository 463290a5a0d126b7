"""Allocation (Eq. 5), format penalty (Eq. 7) and token rewards (Eq. 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from boostapr.patches import PatchFormat

FloatArray = NDArray[np.float64]


def allocate(scores: Sequence[float] | ArrayLike, tau: float) -> FloatArray:
    """Weights of n units, float64[n], >= 0 with sum 1: softmax(scores / tau), Eq. 5. tau = inf: all alike.

    Raises ValueError for tau <= 0 and scores that are not finite numbers.
    """
    values = np.asarray(scores, dtype=np.float64)
    if not tau > 0:
        raise ValueError(f"tau must be positive, not {tau}")
    if not np.isfinite(values).all():
        raise ValueError(f"unit scores must be finite numbers: {values.tolist()}")
    if not values.size:
        return values
    # The largest becomes exp(0) = 1, so nothing overflows; a weight that underflows is 0, as it should be.
    weights = np.exp((values - values.max()) / tau)
    return weights / weights.sum()


def format_penalty(fmt: PatchFormat, table: Mapping[PatchFormat, float]) -> float:
    """r_fmt of Eq. 7; the numbers are in conf/."""
    return float(table[fmt])


def shape(
    score: float,
    weights: FloatArray,
    unit_of_token: NDArray[np.int32],
    response_mask: NDArray[np.bool_],
    penalty: float,
) -> FloatArray:
    """Token rewards of one rollout, float64[T] (Eq. 8): r_t = s * a_t + [t = T] * r_fmt.

    Args:
        score: s, the sequence score. weights: w, float64[n], of the units (Eq. 5).
        unit_of_token: int[T], -1 outside every unit. response_mask: bool[T]; T is its last True.

    A unit's weight is shared evenly by its tokens with mask True; units without any give theirs to the others in
    proportion (sum of a_t = 1). If no unit has a token, the last token gets all of s. The rewards add up to s + r_fmt;
    if the mask is False everywhere, all rewards are zero.
    """
    rewards = np.zeros(len(response_mask))
    own = np.flatnonzero(response_mask)
    if not len(own):
        return rewards
    paid = own[unit_of_token[own] >= 0] if len(weights) else own[:0]
    unit = unit_of_token[paid]
    sizes = np.bincount(unit, minlength=len(weights))
    alive = np.where(sizes > 0, weights, 0.0)
    total = alive.sum()
    if total > 0:
        rewards[paid] = score * (alive / total / np.maximum(sizes, 1))[unit]
    elif len(paid):  # all weight lay on units without tokens: the rest share evenly
        rewards[paid] = score / np.count_nonzero(sizes) / sizes[unit]
    else:
        rewards[own[-1]] = score
    rewards[own[-1]] += penalty
    return rewards
