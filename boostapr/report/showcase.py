"""Which patches the report shows: newly solved and newly broken ones, those first in which credit had something to decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from boostapr.report import terms
from boostapr.report.credit_map import CreditMap, credit_map, required_tests
from boostapr.report.data import Row, RunData

NUM_SOLVED, NUM_BROKEN = 5, 3


@dataclass(frozen=True)
class Case:
    """One bug with the answer of the system and of the baseline."""

    instance_id: str
    split: str
    issue: str
    outcome: str
    failures: tuple[str, ...]
    patch: CreditMap
    baseline: CreditMap
    baseline_outcome: str


@dataclass(frozen=True)
class Showcase:
    """Cases of `system` against `baseline`, and how many there were to choose from."""

    system: str
    baseline: str
    split: str
    solved: tuple[Case, ...]
    broken: tuple[Case, ...]
    num_solved: int
    num_broken: int


def showcase(run: RunData, system: str = "boostapr", baseline: str = "sft") -> Showcase | None:
    """The most telling bugs that only one of the two solved, on the first split where there are any.

    None if no split was answered by both; without any such bug, a Showcase without cases.
    """
    found = None
    for split in run.splits():
        if split not in run.systems.get(system, {}) or split not in run.systems.get(baseline, {}):
            continue
        ours, theirs = run.systems[system][split].first, run.systems[baseline][split].first
        both = [i for i in run.ids(split) if i in ours and i in theirs]
        solved = [i for i in both if ours[i].resolved and not theirs[i].resolved]
        broken = [i for i in both if theirs[i].resolved and not ours[i].resolved]
        instances = run.instances.get(split, {})
        cases = [
            tuple(_case(split, ours[i], theirs[i], instances.get(i, {})) for i in _best(ids, ours, count))
            for ids, count in ((solved, NUM_SOLVED), (broken, NUM_BROKEN))
        ]
        found = Showcase(system, baseline, split, cases[0], cases[1], len(solved), len(broken))
        if solved or broken:
            break
    return found


def outcome_text(row: Row, instance: Mapping[str, Any]) -> str:
    """How a response fared, in words: the status and the number of required tests that passed."""
    meaning = terms.STATUSES.get(row.status, row.status)
    tests, required = row.outcome.get("tests") or {}, required_tests(instance)
    wanted = required or sorted(tests)
    if not tests or not wanted:
        return f"{row.status.replace('_', ' ')}: {meaning}"
    passed = sum(tests.get(name) == "passed" for name in wanted)
    return f"{row.status.replace('_', ' ')}: {passed} of {len(wanted)} {'required ' if required else ''}tests passed"


def _case(split: str, row: Row, baseline: Row, instance: Mapping[str, Any]) -> Case:
    failures = [
        f"{f.get('test', '?')}: {f.get('message', '')}".strip().split("\n")[0][:160]
        for f in row.outcome.get("failures") or ()
    ]
    return Case(
        row.instance_id, split, str(instance.get("problem_statement", "")).strip(), outcome_text(row, instance),
        tuple(failures[:3]), credit_map(row), credit_map(baseline), outcome_text(baseline, instance),
    )  # fmt: skip


def _best(ids: list[str], rows: Mapping[str, Row], count: int) -> list[str]:
    """Those with credit first, then those with several unequal spans, then the short ones; equal ones by id."""

    def rank(instance_id: str) -> tuple[bool, bool, float, int, str]:
        row = rows[instance_id]
        weights = [float(s["weight"]) for s in (row.credit or {}).get("spans", ())]
        return (not weights, len(weights) < 2, -max(weights, default=0), len(row.response), instance_id)

    return sorted(ids, key=rank)[:count]
