"""The units that credit is given to, at each granularity (Table 4 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from boostapr.patches import Patch


class Granularity(StrEnum):
    """token_uniform: one unit, the whole response. hunk: the edits of a hunk. statement: the edits of a statement.
    edit_line: one unit per span (the paper's choice)."""

    TOKEN_UNIFORM = "token_uniform"
    HUNK = "hunk"
    STATEMENT = "statement"
    EDIT_LINE = "edit_line"


@dataclass(frozen=True, slots=True)
class Unit:
    """`ranges`: disjoint, ordered byte ranges of the response. `spans`: the numbers of the spans that it touches."""

    ranges: tuple[tuple[int, int], ...]
    spans: tuple[int, ...]


def units(patch: Patch, granularity: str) -> list[Unit]:
    """Units of a patch in order of their first byte; none if it has no spans (not parsed, or no edited lines).

    Raises ValueError for an unknown granularity.
    """
    kind = Granularity(granularity)
    count = patch.num_spans
    if not count:
        return []
    if kind is Granularity.TOKEN_UNIFORM:
        return [Unit(((0, len(patch.response)),), tuple(range(count)))]
    if kind is Granularity.STATEMENT:
        from boostapr.credit.statements import statement_units  # it needs Unit

        return statement_units(patch)[0]
    spans = [Unit(patch.ranges(i), (i,)) for i in range(count)]
    if kind is Granularity.EDIT_LINE:
        return spans
    hunks = patch.span_table()[:, 1]
    merged: list[Unit] = []
    for i, unit in enumerate(spans):
        if i and hunks[i] == hunks[i - 1]:
            last = merged[-1]
            merged[-1] = Unit(last.ranges + unit.ranges, (*last.spans, i))
        else:
            merged.append(unit)
    return merged
