"""Teachers: who writes the demonstrations of Stage I (section 3.2).

`RuleTeacher` plays a strong but fallible model for bug sets of our own making: it is shown the reference patch, explains
it in the four parts of B.1, and spoils it in most of its attempts in the ways in which models fail. The execution filter
has to find that out; nothing tells it which attempts were spoiled.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from boostapr.patches import parse_patch
from boostapr.prompts import trace_text
from envs.benchmarks.microbugs.generate import unified_diff
from envs.benchmarks.microbugs.mutations import mutations
from envs.tasks import BugInstance


@dataclass(frozen=True)
class Demonstration:
    """A teacher's answer: the reasoning trace and the patch that follows it."""

    trace: str
    patch: str


class Teacher(Protocol):
    """Writes one attempt at an instance; the same (instance, seed) gives the same attempt."""

    def demonstrate(self, instance: BugInstance, seed: int) -> Demonstration: ...


@dataclass(frozen=True)
class LineEdit:
    """Line `line` (0-based) of the file becomes `text` (no newline)."""

    line: int
    text: str


class RuleTeacher:
    """Right with probability `accuracy`, otherwise spoiled: wrong line, wrong operator, partial fix, over-edit, malformed.

    For instances with one Python file and a reference patch that replaces single lines (microbugs). Raises ValueError
    for any other instance.
    """

    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def demonstrate(self, instance: BugInstance, seed: int) -> Demonstration:
        rng = random.Random(f"{instance.instance_id}-{seed}")
        path, source, edits = reference_edits(instance)
        way = "right" if rng.random() < self.accuracy else rng.choice(["malformed", *SPOILERS])
        if way in SPOILERS:
            edits = SPOILERS[way](rng, source, edits)
        patch = unified_diff(path, source, apply_edits(source, edits))
        return Demonstration(explain(source, edits), malformed(rng, patch) if way == "malformed" else patch)


def reference_edits(instance: BugInstance) -> tuple[str, str, list[LineEdit]]:
    """(path, buggy source, the reference patch as line edits)."""
    if len(instance.files) != 1:
        raise ValueError(f"{instance.instance_id}: the rule-based teacher knows instances of one file only")
    [(path, source)] = instance.files.items()
    edits = []
    for span in parse_patch(instance.patch).spans:
        text = instance.patch.encode()[span.start : span.end].decode()
        added = [line[1:] for line in text.splitlines() if line.startswith("+")]
        if not len(added) == span.old_count == span.new_count:
            raise ValueError(f"{instance.instance_id}: the rule-based teacher knows patches that replace lines only")
        edits += [LineEdit(span.old_start - 1 + i, line) for i, line in enumerate(added)]
    return path, source, edits


def apply_edits(source: str, edits: Sequence[LineEdit]) -> str:
    lines = source.split("\n")
    for edit in edits:
        lines[edit.line] = edit.text
    return "\n".join(lines)


def _other_edit(rng: random.Random, source: str, wanted: Callable[[LineEdit], bool]) -> list[LineEdit]:
    """A random plausible edit that is `wanted`, or none."""
    lines = source.split("\n")
    found = []
    for mutation in mutations(source):
        edit = LineEdit(mutation.line, mutation.apply(source).split("\n")[mutation.line])
        if edit.text != lines[edit.line] and wanted(edit):
            found.append(edit)
    return [rng.choice(found)] if found else []


def wrong_line(rng: random.Random, source: str, edits: list[LineEdit]) -> list[LineEdit]:
    """One of the fixes is made somewhere else."""
    spared = rng.choice(edits)
    fixed = {e.line for e in edits}
    return [e for e in edits if e is not spared] + _other_edit(rng, source, lambda e: e.line not in fixed)


def wrong_operator(rng: random.Random, source: str, edits: list[LineEdit]) -> list[LineEdit]:
    """The right line, another change."""
    spoiled = rng.choice(edits)
    other = _other_edit(rng, source, lambda e: e.line == spoiled.line and e.text != spoiled.text)
    return [e for e in edits if e is not spoiled] + other


def partial_fix(rng: random.Random, source: str, edits: list[LineEdit]) -> list[LineEdit]:
    """One fix is forgotten; where there is only one, it goes to the wrong line."""
    return rng.sample(edits, len(edits) - 1) if len(edits) > 1 else wrong_line(rng, source, edits)


def over_edit(rng: random.Random, source: str, edits: list[LineEdit]) -> list[LineEdit]:
    """All fixes, and a change that was not asked for."""
    fixed = {e.line for e in edits}
    extra = _other_edit(rng, source, lambda e: e.line not in fixed)
    return [*edits, *extra] if extra else wrong_operator(rng, source, edits)  # no other line can carry a bug


def malformed(rng: random.Random, patch: str) -> str:
    """A diff that git refuses: cut inside a hunk, a wrong context line, or wrong counts."""
    lines = patch.splitlines()
    way = rng.randrange(3)
    if way == 0:
        lines = lines[: rng.randrange(3, max(4, len(lines) - 1))]
    elif way == 1:
        at = rng.choice([i for i, line in enumerate(lines) if line.startswith(("-", " ")) and i >= 2])
        lines[at] = lines[at][:1] + lines[at][1:].replace(" ", "", 1).rstrip(":") + " "
    else:
        at = rng.choice([i for i, line in enumerate(lines) if line.startswith("@@")])
        lines[at] = re.sub(r"(?<=,)\d+", lambda count: str(int(count[0]) + rng.choice((1, 2))), lines[at], count=1)
    return "\n".join(lines) + "\n"


SPOILERS: dict[str, Callable[[random.Random, str, list[LineEdit]], list[LineEdit]]] = {
    "wrong_line": wrong_line,
    "wrong_operator": wrong_operator,
    "partial_fix": partial_fix,
    "over_edit": over_edit,
}


def explain(source: str, edits: Sequence[LineEdit]) -> str:
    """The four-part trace for these edits."""
    lines = source.split("\n")
    edits = sorted(edits, key=lambda e: e.line)
    functions = {
        line: node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        for line in range(node.lineno - 1, node.end_lineno or node.lineno)
    }
    where = list(dict.fromkeys(functions.get(e.line, "the module") for e in edits)) or ["the module"]
    said = [lines[e.line].split("  # ") for e in edits]
    return trace_text(
        analysis=f"{' and '.join(where)} must do what the comments say.",
        cause="; ".join(f"{code.strip()} is not {comment}" for code, comment in said) or "unknown",
        strategy=f"change {len(edits)} line{'s' * (len(edits) != 1)}.",
        implementation="; ".join(e.text.split("  # ")[0].strip() for e in edits) or "none",
    )
