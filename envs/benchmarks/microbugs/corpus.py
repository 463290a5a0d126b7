"""The base model's corpus: edits of training modules, most of which fix nothing.

A base trained on correct fixes alone leaves reinforcement learning nothing to find. This one learns what an edit looks
like and how to write it as a diff; which edit is right, it learns only a little.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from envs.benchmarks.microbugs.generate import (
    BUG_WEIGHTS,
    apply_all,
    instance_without_tests,
    make_functions,
    unified_diff,
)
from envs.benchmarks.microbugs.mutations import KINDS, OOD_KINDS, Mutation, mutations
from envs.tasks import BugInstance


def edits(seed: int, fix_share: float, bug_share: float = 0.0) -> Iterator[BugInstance]:
    """Endless instances of training templates whose `patch` holds edits; each edit fixes a bug with chance `fix_share`.

    bug_share: 0 gives modules with one to three bugs, as the splits have. Above 0, each statement that can carry a bug does
    so with this chance: a model that sees such modules cannot guess a line from its comment, it has to learn to copy it.
    Nothing is executed, so an instance may have bugs that no test would find. The instances have no tests.
    """
    rng = random.Random(f"corpus-{seed}")
    kinds = frozenset(KINDS) - OOD_KINDS
    while True:
        name, functions = make_functions(rng, "train")
        source = "\n\n".join(f.source for f in functions)
        number = rng.choices(range(1, len(BUG_WEIGHTS) + 1), BUG_WEIGHTS)[0]
        found = mutations(source, kinds)
        bugs = _choose_lines(rng, found, bug_share) if bug_share else _choose(rng, found, number)
        buggy = apply_all(source, bugs)
        fixed = _edited(rng, source, buggy, rng.sample(bugs, min(number, len(bugs))), kinds, fix_share)
        where = [f.name for f in functions if any(b.function == f.name for b in bugs)]
        instance = instance_without_tests(rng, f"corpus-{seed}", name, buggy, where)
        patch = unified_diff(f"{name}.py", buggy, fixed)
        if bugs and patch:
            yield replace(instance, patch=patch)


def _choose_lines(rng: random.Random, found: list[Mutation], share: float) -> list[Mutation]:
    """One mutation on each line that has any, with chance `share`."""
    by_line: dict[int, list[Mutation]] = {}
    for mutation in found:
        by_line.setdefault(mutation.line, []).append(mutation)
    return [m for line in sorted(by_line) if rng.random() < share for m in _choose(rng, by_line[line], 1)]


def _choose(rng: random.Random, found: list[Mutation], number: int) -> list[Mutation]:
    """Up to `number` mutations on different lines; a kind is as likely as any other."""
    by_kind: dict[str, list[Mutation]] = {}
    for mutation in found:
        by_kind.setdefault(mutation.kind, []).append(mutation)
    chosen: list[Mutation] = []
    for _ in range(number if by_kind else 0):
        mutation = rng.choice(by_kind[rng.choice(sorted(by_kind))])
        if mutation.line not in {c.line for c in chosen}:
            chosen.append(mutation)
    return chosen


def _edited(
    rng: random.Random, source: str, buggy: str, bugs: list[Mutation], kinds: frozenset[str], fix_share: float
) -> str:
    """`buggy` after as many edits as it has bugs, each of which is the fix with chance `fix_share`."""
    reference, lines = source.split("\n"), buggy.split("\n")
    others = _choose(rng, mutations(buggy, kinds), len(bugs))
    for bug, other in zip(bugs, [*others, *bugs], strict=False):
        if rng.random() < fix_share:
            lines[bug.line] = reference[bug.line]
        elif other not in bugs:
            lines[other.line] = other.apply(buggy).split("\n")[other.line]
    return "\n".join(lines)
