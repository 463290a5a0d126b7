"""The base model's corpus: edits of training modules, most of which fix nothing.

A base trained on correct fixes alone leaves reinforcement learning nothing to find. This one learns what an edit looks
like and how to write it as a diff; which edit is right, it learns only a little.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

from envs.benchmarks.microbugs.generate import (
    BUG_WEIGHTS,
    apply_all,
    draw_number,
    instance_without_tests,
    make_functions,
    unified_diff,
)
from envs.benchmarks.microbugs.mutations import ORDINARY_KINDS, Choice, Mutation, mutations
from envs.benchmarks.microbugs.templates import fill, templates_of
from envs.tasks import BugInstance


def scrambled(seed: int) -> Iterator[BugInstance]:
    """Endless modules in which every word, number and operator is drawn at random, with a patch that changes one line.

    Nothing in such a module can be guessed, so a model has to learn to copy lines from the prompt into the patch. Without this
    it learns for very long to write what a line should be instead of what it is.
    """
    rng = random.Random(f"scrambled-{seed}")
    words = _words()
    while True:
        name, functions = make_functions(rng, "train")
        source = _scramble(rng, words, "\n\n".join(f.source for f in functions[:1]))
        lines = source.split("\n")
        at = rng.choice([i for i, line in enumerate(lines) if line.strip()])
        lines[at] = _scramble(rng, words, lines[at], share=0.2)
        instance = instance_without_tests(rng, f"scrambled-{seed}", name, source, [rng.choice(words)])
        patch = unified_diff(f"{name}.py", source, "\n".join(lines))
        if patch:
            yield replace(instance, patch=patch)


_OPERATORS = ["<", "<=", ">", ">=", "==", "!=", "+", "-", "*", "=", "+=", "-="]


def _words() -> list[str]:
    """Every word of the training templates, once."""
    rng = random.Random("words")
    text = " ".join(fill(t, rng, set()).source for t in templates_of("train") for _ in range(4))
    return sorted(set(re.findall(r"[A-Za-z]+", text)))


def _scramble(rng: random.Random, words: list[str], text: str, share: float = 1.0) -> str:
    """`text` with each word, number and operator replaced by a random one with chance `share`."""

    def other(match: re.Match[str]) -> str:
        if rng.random() >= share:
            return match[0]
        if match[0].isalpha():
            return rng.choice(words)
        return str(rng.randint(0, 9)) if match[0].isdigit() else rng.choice(_OPERATORS)

    return re.sub(r"[A-Za-z]+|[0-9]|(?<= )[-+*<>=!]=?(?= )", other, text)


def edits(seed: int, fix_share: float) -> Iterator[BugInstance]:
    """Endless instances of training templates whose `patch` holds edits; each edit fixes a bug with chance `fix_share`.

    Nothing is executed, so an instance may have bugs that no test would find. The instances have no tests.
    """
    rng = random.Random(f"corpus-{seed}")
    while True:
        name, source, buggy, bugs = _buggy_module(rng, "train")
        fixed = _edited(rng, source, buggy, bugs, fix_share)
        where = list(dict.fromkeys(b.function for b in sorted(bugs, key=lambda b: b.line)))
        instance = instance_without_tests(rng, f"corpus-{seed}", name, buggy, where)
        patch = unified_diff(f"{name}.py", buggy, fixed)
        if bugs and patch:
            yield replace(instance, patch=patch)


def _buggy_module(rng: random.Random, split: str) -> tuple[str, str, str, list[Mutation]]:
    """Name, source without bugs, source with bugs, and the bugs, of a new module."""
    name, functions = make_functions(rng, split)
    source = "\n\n".join(f.source for f in functions)
    number = draw_number(rng, BUG_WEIGHTS)
    bugs = _choose(rng, mutations(source, ORDINARY_KINDS), number)
    return name, source, apply_all(source, bugs), bugs


def reviews(seed: int, split: str = "train") -> Iterator[tuple[str, list[bool]]]:
    """Endless patches, alone, each with the verdicts of a reviewer: is edit 1, 2, ... a fix?

    Half of the edits make their line do what its comment says. The others break a line, replace a bug by another, or change
    nothing. Who reads the patch alone can tell them apart by the comments.
    """
    rng = random.Random(f"reviews-{split}-{seed}")
    while True:
        name, source, buggy, bugs = _buggy_module(rng, split)
        reference, before = source.split("\n"), buggy.split("\n")
        after = {}
        for bug in bugs:
            fix = bug.line, reference[bug.line]
            at, line = fix if rng.random() < 0.5 else _wrong_edit(rng, source, buggy, bug)
            after[at] = line  # on a line that has an edit already, the later one stands
        if after:
            # A mark keeps difflib from dropping an edit that changes nothing.
            marked = [after[at] + _MARK if at in after else line for at, line in enumerate(before)]
            patch = unified_diff(f"{name}.py", buggy, "\n".join(marked)).replace(_MARK, "")
            yield patch, [after[at] == reference[at] != before[at] for at in sorted(after)]


_MARK = "\0"


def _wrong_edit(rng: random.Random, source: str, buggy: str, bug: Mutation) -> tuple[int, str]:
    """A line of `buggy` and what a wrong edit makes of it: the line itself, a second bug, another bug, or a bug in a good line."""
    lines = buggy.split("\n")
    kind = rng.choices(["nothing", "second_bug", "other_bug", "elsewhere"], [3, 2, 3, 3])[0]
    before = source if kind == "other_bug" else buggy
    found = [m for m in mutations(before, ORDINARY_KINDS) if (m.line == bug.line) == (kind != "elsewhere")]
    if kind == "nothing" or not found:
        at = rng.choice([bug.line, *(i for i, line in enumerate(lines) if "#" in line)])
        return at, lines[at]
    mutation = Choice(found).draw(rng)  # may draw the very bug that is there: an edit that changes nothing
    return mutation.line, mutation.apply(before).split("\n")[mutation.line]


def _choose(rng: random.Random, found: list[Mutation], number: int) -> list[Mutation]:
    """Up to `number` mutations on different lines."""
    choice = Choice(found)
    chosen: list[Mutation] = []
    for _ in range(number if choice else 0):
        mutation = choice.draw(rng)
        if mutation.line not in {c.line for c in chosen}:
            chosen.append(mutation)
    return chosen


def _edited(rng: random.Random, source: str, buggy: str, bugs: list[Mutation], fix_share: float) -> str:
    """`buggy` after as many edits as it has bugs, each of which is the fix with chance `fix_share`."""
    reference, lines = source.split("\n"), buggy.split("\n")
    others = _choose(rng, mutations(buggy, ORDINARY_KINDS), len(bugs))
    for bug, other in zip(bugs, [*others, *bugs], strict=False):
        if rng.random() < fix_share:
            lines[bug.line] = reference[bug.line]
        elif other not in bugs:
            lines[other.line] = other.apply(buggy).split("\n")[other.line]
    return "\n".join(lines)
