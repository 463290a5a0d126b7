"""Statement units: the edits of one statement, by Python's ast or Java's tree-sitter grammar."""

from __future__ import annotations

from boostapr.credit.units import Unit
from boostapr.patches import Patch


def statement_units(patch: Patch) -> tuple[list[Unit], int]:
    """(units, number of spans for which no statement was found and the span itself is the unit)."""
    return [Unit(patch.ranges(i), (i,)) for i in range(patch.num_spans)], patch.num_spans
