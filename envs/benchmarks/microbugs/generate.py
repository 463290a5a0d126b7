"""Making microbugs from a seed: a module of one to four functions, its unit tests, and one to three bugs.

Every instance is checked while it is made: the reference passes all tests, each bug alone fails a test, and each bug sits
on a line of its own. What runs here are our own templates and their mutants, under a time limit.
"""

from __future__ import annotations

import copy
import difflib
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from envs.benchmarks.microbugs.families import Template
from envs.benchmarks.microbugs.mutations import OOD_KINDS, ORDINARY_KINDS, Choice, Mutation, mutations
from envs.benchmarks.microbugs.templates import MODULES, Function, fill, sample_arguments, templates_of
from envs.tasks import BugInstance

SPLITS = ("train", "dev", "test", "test_ood")
# Chance of 1, 2, 3, 4 functions and of 1, 2, 3 bugs in a module.
FUNCTION_WEIGHTS = (64, 26, 8, 2)
BUG_WEIGHTS = (68, 25, 7)
TESTS_PER_FUNCTION = 3
CALLS_PER_TEST = 3
CONTEXT_LINES = 1
RUN_LIMIT_S = 0.2
TIMEOUT_S = 10.0
MEMORY_MB = 512

_ISSUES_ONE = ["{f} gives a wrong result.", "Wrong result from {f}.", "{f} is broken.", "The tests of {f} fail."]
_ISSUES_MANY = ["{f} give wrong results.", "Wrong results from {f}.", "{f} are broken.", "The tests of {f} fail."]


@dataclass(frozen=True)
class Module:
    """A reference module with the calls that its tests make: per function, tests of (arguments, expected value)."""

    name: str
    functions: tuple[Function, ...]
    source: str
    tests: dict[str, list[list[tuple[list[object], object]]]]


def generate(split: str, seed: int, count: int) -> Iterator[BugInstance]:
    """`count` different instances of one split. The same arguments give the same bytes.

    Raises ValueError for a split that does not exist.
    """
    if split not in SPLITS:
        raise ValueError(f"microbugs has no split {split!r}; choose one of {', '.join(SPLITS)}")
    rng = random.Random(f"microbugs-{split}-{seed}")
    kinds = OOD_KINDS if split == "test_ood" else ORDINARY_KINDS
    seen: set[str] = set()
    while len(seen) < count:
        instance = make_instance(rng, split, kinds, f"microbugs-{split}-{seed}-{len(seen):05d}")
        source = next(iter(instance.files.values()))
        if source not in seen:
            seen.add(source)
            yield instance


def make_instance(rng: random.Random, split: str, kinds: frozenset[str], instance_id: str) -> BugInstance:
    while True:
        module = make_module(rng, split)
        bugs = choose_bugs(rng, module, kinds)
        buggy = apply_all(module.source, bugs)
        failing = failing_tests(module, buggy)
        if failing:  # none if there are no bugs, or if they cancel each other
            break
    where = [f.name for f in module.functions if any(function == f.name for function, _ in failing)]
    return replace(
        instance_without_tests(rng, instance_id, module.name, buggy, where),
        patch=unified_diff(f"{module.name}.py", buggy, module.source),
        FAIL_TO_PASS=tuple(test_id(module, t) for t in _test_keys(module) if t in failing),
        PASS_TO_PASS=tuple(test_id(module, t) for t in _test_keys(module) if t not in failing),
        test_files={f"test_{module.name}.py": test_source(module)},
        extra={
            "split": split,
            "templates": [f.template.id for f in module.functions],
            "bug_kinds": [b.kind for b in bugs],
            "num_bugs": len(bugs),
        },
    )


def instance_without_tests(
    rng: random.Random, instance_id: str, name: str, buggy: str, where: list[str]
) -> BugInstance:
    """The part of an instance that a model sees: the buggy module `name` and an issue about the functions `where`."""
    return BugInstance(
        instance_id=instance_id,
        repo="microbugs",
        problem_statement=issue_text(rng, where) if where else "",
        FAIL_TO_PASS=(),
        PASS_TO_PASS=(),
        files={f"{name}.py": buggy},
        test_command=("python", "-m", "xmlrunner", "--output-file", "{report}", f"test_{name}"),
        timeout_s=TIMEOUT_S,
        memory_mb=MEMORY_MB,
    )


def draw_number(rng: random.Random, weights: tuple[int, ...]) -> int:
    """1, 2, ... with these weights."""
    return rng.choices(range(1, len(weights) + 1), weights)[0]


def make_functions(rng: random.Random, split: str) -> tuple[str, list[Function]]:
    """A module's name and its functions, of different families; a family is as likely as any other."""
    number = draw_number(rng, FUNCTION_WEIGHTS)
    families: dict[str, list[Template]] = {}
    for template in templates_of(split):
        families.setdefault(template.family, []).append(template)
    functions: list[Function] = []
    for family in rng.sample(sorted(families), min(number, len(families))):
        functions.append(fill(rng.choice(families[family]), rng, {f.name for f in functions}))
    return rng.choice(MODULES), functions


def make_module(rng: random.Random, split: str) -> Module:
    name, functions = make_functions(rng, split)
    source = "\n\n".join(f.source for f in functions)
    tests: dict[str, list[list[tuple[list[object], object]]]] = {}
    for function in functions:
        cases: list[tuple[list[object], object]] = []
        while len(cases) < TESTS_PER_FUNCTION * CALLS_PER_TEST:
            arguments = sample_arguments(function.template, rng)
            cases.append((arguments, call(source, function.name, arguments)))
        tests[function.name] = [cases[i::TESTS_PER_FUNCTION] for i in range(TESTS_PER_FUNCTION)]
    return Module(name, tuple(functions), source, tests)


def choose_bugs(rng: random.Random, module: Module, kinds: frozenset[str]) -> list[Mutation]:
    """One to three mutations on different lines, each of which alone fails a test; [] if the module has not enough."""
    number = draw_number(rng, BUG_WEIGHTS)
    choice = Choice(mutations(module.source, kinds))
    chosen: list[Mutation] = []
    for _ in range(8 * number):
        if len(chosen) == number or not choice:
            break
        mutation = choice.draw(rng)
        if mutation.line not in {c.line for c in chosen} and failing_tests(module, mutation.apply(module.source)):
            chosen.append(mutation)
    return chosen if len(chosen) == number else []


def apply_all(source: str, bugs: list[Mutation]) -> str:
    for bug in sorted(bugs, key=lambda b: -b.start):
        source = bug.apply(source)
    return source


class _TimeLimit(Exception):
    pass


def _on_alarm(signum: int, frame: FrameType | None) -> None:
    raise _TimeLimit


def call(source: str, function: str, arguments: list[object]) -> object:
    """The value that a function of `source` returns. Main thread only (the time limit is a signal)."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<microbugs>", "exec"), namespace)
    previous = signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, RUN_LIMIT_S)
    try:
        return namespace[function](*copy.deepcopy(arguments))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def failing_tests(module: Module, source: str) -> set[tuple[str, int]]:
    """(function, test number) of the tests that `source` fails."""
    failing = set()
    for function, number in _test_keys(module):
        for arguments, expected in module.tests[function][number]:
            try:
                same = call(source, function, arguments) == expected  # as assertEqual compares
            except Exception:
                same = False
            if not same:
                failing.add((function, number))
                break
    return failing


def _test_keys(module: Module) -> list[tuple[str, int]]:
    return [(f.name, i) for f in module.functions for i in range(TESTS_PER_FUNCTION)]


def test_id(module: Module, key: tuple[str, int]) -> str:
    """As the junit report names it."""
    function, number = key
    return f"test_{module.name}.{test_class(function)}::test_{number + 1}"


def test_class(function: str) -> str:
    return "Test" + function.title().replace("_", "")


def test_source(module: Module) -> str:
    lines = ["import unittest", "", f"import {module.name}", ""]
    for function in module.functions:
        lines += ["", f"class {test_class(function.name)}(unittest.TestCase):"]
        for i, cases in enumerate(module.tests[function.name]):
            lines.append(f"    def test_{i + 1}(self):")
            for arguments, expected in cases:
                shown = ", ".join(map(repr, arguments))
                lines.append(f"        self.assertEqual({module.name}.{function.name}({shown}), {expected!r})")
            lines.append("")
    return "\n".join(lines)


def issue_text(rng: random.Random, functions: list[str]) -> str:
    *head, last = functions
    if not head:
        return rng.choice(_ISSUES_ONE).format(f=last)
    return rng.choice(_ISSUES_MANY).format(f=", ".join(head) + " and " + last)


def unified_diff(path: str, old: str, new: str) -> str:
    """A plain unified diff with `CONTEXT_LINES` lines of context."""
    return "".join(
        difflib.unified_diff(
            old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{path}", f"b/{path}", n=CONTEXT_LINES
        )
    )
