"""`boostapr compare RUN_A RUN_B`: is B better than A? On the same bugs, with an interval and an exact test.

    boostapr compare runs/demo:sft runs/demo:boostapr        # two systems of one run
    boostapr compare runs/grpo runs/boostapr                 # every system that both have
    boostapr compare runs/a-1,runs/a-2 runs/b-1,runs/b-2     # several seeds a side: averaged bug by bug

A side is a run folder, eval/<system>/<split> of one, or any folder with a results.jsonl; `:system` picks one system.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from boostapr import stats
from boostapr.errors import UserError
from boostapr.files import write_json
from boostapr.report import terms
from boostapr.report.data import RESULTS, SPLIT_ORDER, SplitResults, load_results, load_run, ordered
from boostapr.report.summary import resolved_vector

ANY = ""  # system and split of a folder that is not part of a run


@dataclass(frozen=True)
class Answers:
    """First answers of one system on one split: resolved[n] (0 or 1) in the order of ids."""

    ids: tuple[str, ...]
    resolved: NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """B minus A on one split. scores_*: pass@1 per seed. tests: McNemar per pair of seeds, empty if their numbers differ."""

    system_a: str
    system_b: str
    label_a: str
    label_b: str
    split: str
    n: int
    scores_a: tuple[float, ...]
    scores_b: tuple[float, ...]
    difference: stats.Interval
    tests: tuple[stats.McNemar, ...]
    newly_resolved: tuple[str, ...]
    degraded: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        (mean_a, sd_a), (mean_b, sd_b) = stats.mean_sd(self.scores_a), stats.mean_sd(self.scores_b)
        return {
            "a": {"system": self.system_a, "pass@1": mean_a, "sd": sd_a, "per_seed": list(self.scores_a)},
            "b": {"system": self.system_b, "pass@1": mean_b, "sd": sd_b, "per_seed": list(self.scores_b)},
            "split": self.split,
            "n": self.n,
            "difference": self.difference.estimate,
            "ci95": [self.difference.low, self.difference.high],
            "mcnemar": [
                {"newly_resolved": t.newly_resolved, "degraded": t.degraded, "unchanged": t.unchanged, "p": t.p}
                for t in self.tests
            ],
            "newly_resolved": list(self.newly_resolved),
            "degraded": list(self.degraded),
        }


def compare_runs(side_a: str, side_b: str, split: str | None = None, seed: int = 0) -> list[Comparison]:
    """All comparisons that two sides (as on the command line) allow; `split` keeps one split only.

    Raises UserError if a folder is not there, the sides have no system and split in common, an answer is missing, or the
    bugs are not the same.
    """
    loaded_a, loaded_b = _load(side_a), _load(side_b)
    found = []
    for system_a, system_b in _system_pairs(loaded_a, loaded_b):
        own_a = {key[1]: key for key in loaded_a if key[0] == system_a}
        own_b = {key[1]: key for key in loaded_b if key[0] == system_b}
        shared = [(s, s) for s in ordered(set(own_a) & set(own_b), SPLIT_ORDER)]
        if not shared and ANY in {*own_a, *own_b} and len(own_a) == len(own_b) == 1:  # a bare folder says no split
            shared = [(next(iter(own_a)), next(iter(own_b)))]
        for a, b in shared:
            if split in (None, a or b):
                answers_a, answers_b = loaded_a[own_a[a]], loaded_b[own_b[b]]
                systems = (system_a or side_a, system_b or side_b)
                labels = [terms.system_name(name) for name in systems]
                if labels[0] == labels[1]:  # the same system of two runs
                    labels = [f"{label} of {side}" for label, side in zip(labels, (side_a, side_b), strict=True)]
                found.append(_compare(answers_a, answers_b, (*systems, labels[0], labels[1], a or b or "all"), seed))
    if not found:
        have = [", ".join(f"{s} on {p}" for s, p in loaded) for loaded in (loaded_a, loaded_b)]
        wanted = f" on split `{split}`" if split else ""
        raise UserError(
            f"Nothing to compare{wanted}: {side_a} has {have[0]}; {side_b} has {have[1]}. "
            "Name a system on each side, as in `runs/demo:sft runs/demo:boostapr`."
        )
    return found


def describe(c: Comparison) -> list[str]:
    """A comparison in words and numbers, for a terminal of 80 columns."""
    d = c.difference
    lines = [
        f"{c.split}, {c.n} bugs: {c.label_b} {_score(c.scores_b)} against {c.label_a} {_score(c.scores_a)}",
        f"  {terms.points(d.estimate)} points, 95% interval {terms.points(d.low)} to {terms.points(d.high)}"
        + ("" if d.excludes_zero else " (includes zero: cannot be told apart)"),
    ]
    for number, test in enumerate(c.tests, start=1):
        which = f"  pair {number}: " if len(c.tests) > 1 else "  "
        lines.append(
            f"{which}{test.newly_resolved} newly resolved, {test.degraded} degraded, {test.unchanged} unchanged; "
            f"exact McNemar p {'' if test.p < 0.001 else '= '}{terms.p_value(test.p)}"
        )
    return lines


def main(argv: Sequence[str]) -> int:
    """Compare two runs, or two systems, on the bugs that both answered."""
    parser = argparse.ArgumentParser(
        prog="boostapr compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", metavar="RUN_A", help="the baseline: RUN[:SYSTEM], several seeds joined by commas")
    parser.add_argument("b", metavar="RUN_B", help="what is compared with it, written the same way")
    parser.add_argument("--split", help="only this split, such as test")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    parser.add_argument("--list", action="store_true", help="name the bugs that only one side solved")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparisons to FILE, too")
    arguments = parser.parse_args(argv)
    comparisons = compare_runs(arguments.a, arguments.b, arguments.split, arguments.seed)
    console = Console(highlight=False)
    for c in comparisons:
        for line in describe(c):
            console.print(line, markup=False, soft_wrap=True)
        if arguments.list:
            console.print(f"  only {c.label_b}: {', '.join(c.newly_resolved) or 'none'}", markup=False, soft_wrap=True)
            console.print(f"  only {c.label_a}: {', '.join(c.degraded) or 'none'}", markup=False, soft_wrap=True)
    if arguments.json:
        write_json(arguments.json, [c.to_dict() for c in comparisons])
    return 0


# -- parts --------------------------------------------------------------------------------------------------------------


def _load(side: str) -> dict[tuple[str, str], list[Answers]]:
    """(system, split) -> one entry a seed."""
    loaded: dict[tuple[str, str], list[Answers]] = {}
    parts = side.split(",")
    for part in parts:
        for key, answers in _load_one(part).items():
            loaded.setdefault(key, []).append(answers)
    short = [f"{system} on {split}" for (system, split), seeds in loaded.items() if len(seeds) < len(parts)]
    if short:
        raise UserError(
            f"{side}: not every seed has {', '.join(short)}; evaluate them all, or name a system that all have"
        )
    return loaded


def _load_one(part: str) -> dict[tuple[str, str], Answers]:
    path, system = (Path(part), None) if Path(part).exists() or ":" not in part else _with_system(part)
    folder = path.parent if path.name == RESULTS else path
    keep_split = None
    problems: list[str] = []
    if (folder / RESULTS).is_file():
        if folder.parent.parent.name != "eval":
            results = load_results(folder / RESULTS, problems)
            return {(system or ANY, ANY): _answers(results, sorted(results.first), part)}
        system, keep_split, folder = folder.parent.name, folder.name, folder.parents[2]
    run = load_run(folder)
    if system is not None and system not in run.systems:
        raise UserError(f"{folder} has no system `{system}`; it has: {', '.join(run.systems) or 'none'}")
    return {
        (name, split): _answers(results, run.ids(split), f"{folder}, {name} on {split}")
        for name, splits in run.systems.items()
        for split, results in splits.items()
        if system in (None, name) and keep_split in (None, split)
    }


def _with_system(part: str) -> tuple[Path, str]:
    path, _, system = part.rpartition(":")
    return Path(path), system


def _answers(results: SplitResults, ids: Sequence[str], where: str) -> Answers:
    vector = resolved_vector(results, ids)
    if vector is None:
        missing = [i for i in ids if i not in results.first]
        raise UserError(
            f"{where}: {len(missing)} of {len(ids)} bugs have no first answer (first: {', '.join(missing[:3]) or 'none'}). "
            "Finish its evaluation; comparing what happens to be there would move the denominator."
        )
    return Answers(tuple(ids), vector)


def _system_pairs(
    a: dict[tuple[str, str], list[Answers]], b: dict[tuple[str, str], list[Answers]]
) -> list[tuple[str, str]]:
    """One system on each side: that pair, whatever they are called. Otherwise the systems that both have."""
    systems_a, systems_b = [list(dict.fromkeys(system for system, _ in side)) for side in (a, b)]
    if len(systems_a) == 1 and len(systems_b) == 1:
        return [(systems_a[0], systems_b[0])]
    return [(system, system) for system in systems_a if system in systems_b]


def _compare(a: list[Answers], b: list[Answers], names: tuple[str, str, str, str, str], seed: int) -> Comparison:
    ids = a[0].ids
    for side in (*a, *b):
        if side.ids != ids:
            only_a, only_b = sorted(set(ids) - set(side.ids)), sorted(set(side.ids) - set(ids))
            raise UserError(
                f"{names[2]} and {names[3]} on {names[4]} did not answer the same bugs: {len(only_a)} only on one side "
                f"({', '.join(only_a[:3]) or 'none'}), {len(only_b)} only on the other ({', '.join(only_b[:3]) or 'none'})."
            )
    all_a, all_b = np.array([x.resolved for x in a]), np.array([x.resolved for x in b])
    mean_a, mean_b = all_a.mean(axis=0), all_b.mean(axis=0)
    tests = tuple(stats.mcnemar(x, y) for x, y in zip(all_a, all_b, strict=True)) if len(a) == len(b) else ()
    return Comparison(
        *names, len(ids), tuple(all_a.mean(axis=1).tolist()), tuple(all_b.mean(axis=1).tolist()), stats.paired_bootstrap(mean_a, mean_b, seed),
        tests, tuple(i for i, x, y in zip(ids, mean_a, mean_b, strict=True) if y > x),
        tuple(i for i, x, y in zip(ids, mean_a, mean_b, strict=True) if y < x),
    )  # fmt: skip


def _score(per_seed: Sequence[float]) -> str:
    mean, sd = stats.mean_sd(per_seed)
    return terms.percent(mean) + ("" if sd is None else f" ± {100 * sd:.1f}")
