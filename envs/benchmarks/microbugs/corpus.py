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
        name, functions = make_functions(rng, "train")
        source = "\n\n".join(f.source for f in functions)
        number = draw_number(rng, BUG_WEIGHTS)
        bugs = _choose(rng, mutations(source, ORDINARY_KINDS), number)
        buggy = apply_all(source, bugs)
        fixed = _edited(rng, source, buggy, bugs, fix_share)
        where = [f.name for f in functions if any(b.function == f.name for b in bugs)]
        instance = instance_without_tests(rng, f"corpus-{seed}", name, buggy, where)
        patch = unified_diff(f"{name}.py", buggy, fixed)
        if bugs and patch:
            yield replace(instance, patch=patch)


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
