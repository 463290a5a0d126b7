"""Units -> tokens, by bytes: a token belongs to the unit with which it shares most bytes, ties to the earlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boostapr.credit.units import Granularity, Unit, units
from boostapr.patches import Patch

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Alignment:
    """`unit_of_token`: int32[T], -1 where a token shares no byte with a unit. `fallback`: the tokens do not spell the
    response (a tokenizer that normalises), so nothing is aligned."""

    unit_of_token: NDArray[np.int32]
    fallback: bool


def align(patch_or_units: Patch | Sequence[Unit], tokens: Sequence[bytes]) -> Alignment:
    """Lay units over tokens (bytes each, in order). Given a Patch, its units are its spans and the tokens are checked
    against its response; given units, the tokens are taken to spell the response from its first byte on."""
    owners = np.full(len(tokens), -1, dtype=np.int32)
    if isinstance(patch_or_units, Patch):
        fitting = fit(tokens, patch_or_units.response)
        if fitting is None:
            return Alignment(owners, True)
        tokens = fitting
        patch_or_units = units(patch_or_units, Granularity.EDIT_LINE)
    flat = [(start, end, unit) for unit, own in enumerate(patch_or_units) for start, end in own.ranges]
    if flat and len(tokens):
        ends = np.cumsum(np.fromiter(map(len, tokens), dtype=np.int64, count=len(tokens)))
        ranges = np.array(sorted(flat), dtype=np.int64)
        place, unit = overlay(ends, ranges[:, 0], ranges[:, 1], ranges[:, 2])
        owners[place] = unit
    return Alignment(owners, False)


def fit(tokens: Sequence[bytes], response: bytes) -> Sequence[bytes] | None:
    """The tokens if they spell the response, else None. A space before the first word, which SentencePiece makes up, is
    taken from the first token that has bytes."""
    spelt = b"".join(tokens)
    if spelt == response:
        return tokens
    if len(spelt) != len(response) + 1 or not spelt.startswith(b" ") or not spelt.endswith(response):
        return None
    first = next(i for i, token in enumerate(tokens) if token)
    return [*tokens[:first], tokens[first][1:], *tokens[first + 1 :]]


def overlay(ends: IntArray, starts: IntArray, stops: IntArray, owners: IntArray) -> tuple[IntArray, IntArray]:
    """Tokens that lie in ranges.

    Args:
        ends: int64[T], offset after each token; the tokens tile the bytes from 0 on (an empty one has no bytes).
        starts, stops, owners: int64[R], ordered disjoint byte ranges and the unit of each.

    Returns:
        (tokens int64[E], unit of each int64[E]), every token once, in order.
    """
    begins = np.empty_like(ends)
    begins[:1] = 0
    begins[1:] = ends[:-1]
    first = np.searchsorted(ends, starts, side="right")
    last = np.searchsorted(begins, stops, side="left")
    shared = np.flatnonzero(first[1:] < last[:-1])  # a token that lies in two ranges
    if len(shared):
        last = last.copy()
        fixes = _settle(begins, ends, starts, stops, owners, first, last)
    width = np.maximum(last - first, 0)
    base = np.cumsum(width) - width
    tokens = np.arange(int(width.sum())) + np.repeat(first - base, width)
    unit = np.repeat(owners, width)
    if len(shared):
        for token, owner in fixes.items():
            unit[np.searchsorted(tokens, token)] = owner
    full = ends[tokens] > begins[tokens]
    return (tokens, unit) if full.all() else (tokens[full], unit[full])


def _settle(
    begins: IntArray,
    ends: IntArray,
    starts: IntArray,
    stops: IntArray,
    owners: IntArray,
    first: IntArray,
    last: IntArray,
) -> dict[int, int]:
    """Decide each token that lies in several ranges; moves `first` so that it is counted once, with its first range."""
    decided: dict[int, int] = {}
    for token in {int(last[r]) - 1 for r in np.flatnonzero(first[1:] < last[:-1])}:
        begin, end = int(begins[token]), int(ends[token])
        low = int(np.searchsorted(stops, begin, side="right"))
        high = int(np.searchsorted(starts, end, side="left"))
        shares: dict[int, int] = {}
        for r in range(low, high):
            share = min(end, int(stops[r])) - max(begin, int(starts[r]))
            shares[int(owners[r])] = shares.get(int(owners[r]), 0) + share
            if r > low:
                first[r] = token + 1
        decided[token] = max(shares, key=lambda unit: (shares[unit], -unit))
    return decided
