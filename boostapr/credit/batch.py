"""Token rewards of a whole batch at once: the same numbers as the credit function "boostapr", at a fraction of the cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from boostapr.credit.align import fit, overlay
from boostapr.credit.shaping import format_penalty
from boostapr.credit.streams import CreditSettings, Rollout
from boostapr.credit.units import Granularity, units
from boostapr.patches import Patch, parse_patch
from boostapr.patches.model import SPAN_END, SPAN_START, SPAN_WIDTH

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def batch_token_rewards(rollouts: Sequence[Rollout], settings: CreditSettings) -> list[FloatArray]:
    """Token rewards of each rollout, float64[T] (Eq. 5, 7, 8): parse, align, allocate and shape, vectorised.

    Raises ValueError as the credit function does.
    """
    if not rollouts:
        return []
    scores = np.array([np.nan if r.seq_score is None else r.seq_score for r in rollouts], dtype=np.float64)
    if not np.isfinite(scores).all():
        raise ValueError("each rollout needs a finite sequence score")
    patches = [parse_patch(rollout.response) for rollout in rollouts]
    penalty = np.array([format_penalty(patch.format, settings.format_penalty) for patch in patches])
    lengths, usable = _lengths(rollouts)
    counts = np.array([len(rollout.tokens) for rollout in rollouts])
    stops = np.cumsum(counts)
    ends = np.cumsum(lengths)
    offsets = np.concatenate(([0], ends))[stops - counts]
    mask = np.concatenate([np.asarray(rollout.response_mask, dtype=bool) for rollout in rollouts])
    if len(mask) != len(lengths):
        raise ValueError("response_mask and tokens of a rollout differ in length")
    usable = [use and rollout.unit_scores != [] for use, rollout in zip(usable, rollouts, strict=True)]
    ranges, num_units = _ranges(patches, usable, settings.granularity)
    scored = _unit_scores(rollouts, num_units)
    row = np.repeat(np.arange(len(rollouts)), num_units)
    shift = offsets[row[ranges[2]]]
    where, unit = overlay(ends, ranges[0] + shift, ranges[1] + shift, ranges[2])
    if not mask.all():
        where, unit = where[mask[where]], unit[mask[where]]
    rewards = np.zeros(len(mask))
    share, paid = _shares(scored, row, np.bincount(unit, minlength=len(row)), len(rollouts), settings.tau)
    rewards[where] = (share * scores[row])[unit]
    last = _last_true(mask, counts, stops)
    has = last >= 0
    rewards[last[has]] += np.where(paid, 0.0, scores)[has] + penalty[has]
    return [rewards[stop - count : stop] for stop, count in zip(stops.tolist(), counts.tolist(), strict=True)]


def _lengths(rollouts: Sequence[Rollout]) -> tuple[IntArray, list[bool]]:
    """(bytes of every token of the batch, for each rollout whether its tokens spell the response)."""
    parts: list[IntArray] = []
    usable = []
    for rollout in rollouts:
        tokens: Sequence[bytes] = rollout.tokens
        if b"".join(tokens) != rollout.response:
            fitted = fit(tokens, rollout.response)
            usable.append(fitted is not None)
            tokens = tokens if fitted is None else fitted
        else:
            usable.append(True)
        try:
            # By far the quickest way from many small numbers to an array.
            parts.append(np.frombuffer(bytes(map(len, tokens)), dtype=np.uint8))
        except ValueError:  # a token of 256 bytes or more
            parts.append(np.array([len(token) for token in tokens]))
    return np.concatenate(parts).astype(np.int64), usable


def _ranges(
    patches: Sequence[Patch], usable: Sequence[bool], granularity: Granularity
) -> tuple[tuple[IntArray, IntArray, IntArray], IntArray]:
    """((starts, ends, units of the batch), each int64[R], in offsets of each response; units of each patch int64[B])."""
    starts: list[int] = []
    ends: list[int] = []
    owners: list[int] = []
    num_units = []
    total = 0
    for patch, use in zip(patches, usable, strict=True):
        columns = patch.tables.spans
        count = len(columns) // SPAN_WIDTH if use else 0
        if not count:
            num_units.append(0)
            continue
        plain = b"\\" not in patch.response or b"\n\\" not in patch.response
        if plain and granularity is Granularity.EDIT_LINE:
            starts += columns[SPAN_START::SPAN_WIDTH]
            ends += columns[SPAN_END::SPAN_WIDTH]
            owners += range(total, total + count)
        else:
            own = units(patch, granularity)
            count = len(own)
            for start, end, unit in sorted((*piece, total + i) for i, each in enumerate(own) for piece in each.ranges):
                starts.append(start)
                ends.append(end)
                owners.append(unit)
        num_units.append(count)
        total += count
    columns_of_batch = np.array(starts, np.int64), np.array(ends, np.int64), np.array(owners, np.int64)
    return columns_of_batch, np.array(num_units, dtype=np.int64)


def _unit_scores(rollouts: Sequence[Rollout], num_units: IntArray) -> FloatArray:
    for rollout, count in zip(rollouts, num_units.tolist(), strict=True):
        if count and (rollout.unit_scores is None or len(rollout.unit_scores) != count):
            raise ValueError(f"unit scores do not fit a patch of {count} units")
    flat = chain.from_iterable(
        r.unit_scores or () if n else () for r, n in zip(rollouts, num_units.tolist(), strict=True)
    )
    scores = np.fromiter(flat, dtype=np.float64, count=int(num_units.sum()))
    if not np.isfinite(scores).all():
        raise ValueError("unit scores must be finite numbers")
    return scores


def _shares(
    scores: FloatArray, row: IntArray, sizes: IntArray, num_rows: int, tau: float
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """(a_t of the tokens of each unit, whether a row has a token to pay). Softmax within rows, over units with tokens."""
    top = np.full(num_rows, -np.inf)
    np.maximum.at(top, row, scores)
    weights = np.where(sizes > 0, np.exp((scores - top[row]) / tau), 0.0)
    total = np.bincount(row, weights=weights, minlength=num_rows)
    count = np.bincount(row, weights=sizes > 0, minlength=num_rows)
    # Where all the weight lay on units without tokens, the others share evenly.
    even = (total == 0) & (count > 0)
    weights = np.where(even[row] & (sizes > 0), 1.0, weights)
    total = np.where(even, count, total)
    return weights / np.maximum(sizes, 1) / np.where(total > 0, total, 1.0)[row], total > 0


def _last_true(mask: NDArray[np.bool_], counts: IntArray, stops: IntArray) -> IntArray:
    """Index of the last True of each row in the flat mask, -1 where there is none."""
    places = np.flatnonzero(mask)
    at = np.searchsorted(places, stops) - 1
    last = np.where(at >= 0, places[np.maximum(at, 0)] if len(places) else -1, -1)
    return np.where(last >= stops - counts, last, -1)
