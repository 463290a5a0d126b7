"""Is a benchmark fit to train and score on? Runs each instance with its reference patch and with none.

    boostapr preflight BENCHMARK.jsonl [--repeat N] [--output FILE] [sandbox.workers=4 ...]

Writes a quarantine list, one JSON object a line: instance_id, reason, detail. Stages leave these instances out and
reports say how many.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from boostapr.config import load_section
from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from envs.sandboxes import SandboxSettings, run_many
from envs.sandboxes.tree import is_runner_control
from envs.tasks import BugInstance, load_instances

# A reference that needs more than this share of the time limit will time out on a busy day.
_SLOW_SHARE = 0.5


class Reason(StrEnum):
    """Why an instance is not fit, in the order in which they are looked for."""

    SETUP_FAILS = "setup_fails"
    PASSES_WITHOUT_PATCH = "passes_without_patch"
    GOLD_FAILS = "gold_fails"
    GOLD_FLAKY = "gold_flaky"
    TOO_SLOW = "too_slow"


@dataclass(frozen=True)
class Quarantined:
    """One line of the quarantine list."""

    instance_id: str
    reason: Reason
    detail: str


def with_reference(instance: BugInstance) -> tuple[BugInstance, bytes]:
    """The run that must resolve: the reference is a diff, or, in "code" mode, may be the code itself."""
    is_diff = instance.patch.startswith(("diff ", "--- "))
    return replace(instance, output_mode="diff" if is_diff else instance.output_mode), instance.patch.encode()


def without_patch(instance: BugInstance) -> tuple[BugInstance, bytes] | None:
    """The run that must not resolve: a file replaced by itself; None if no file can stand for "no change"."""
    for path, text in instance.files.items():
        if text.strip() and text.endswith("\n") and "```" not in text and not is_runner_control(path):
            return replace(instance, output_mode="code", target=path), text.encode()
    return None


def judge(
    instance: BugInstance, gold: Sequence[Outcome], bare: Sequence[Outcome], timeout_s: float
) -> Quarantined | None:
    """The first reason that applies to the repeated outcomes with and without the reference patch, or None."""

    def because(reason: Reason, detail: str) -> Quarantined:
        return Quarantined(instance.instance_id, reason, detail)

    for outcome in [*gold, *bare]:
        if outcome.status is Status.INFRA:
            return because(Reason.SETUP_FAILS, outcome.detail)
    if any(outcome.resolved for outcome in bare):
        return because(Reason.PASSES_WITHOUT_PATCH, "every required test passes without any change")
    failed = [outcome for outcome in gold if not outcome.resolved]
    if failed:
        reason = Reason.GOLD_FAILS if len(failed) == len(gold) else Reason.GOLD_FLAKY
        return because(reason, f"{len(failed)} of {len(gold)} times {failed[0].status}: {failed[0].detail}")
    slowest = max(outcome.wall_s for outcome in gold)
    if slowest > _SLOW_SHARE * (instance.timeout_s or timeout_s):
        return because(Reason.TOO_SLOW, f"the reference takes {slowest:.1f} s")
    return None


def preflight(settings: SandboxSettings, instances: Sequence[BugInstance], repeat: int) -> list[Quarantined]:
    """Run everything `repeat` times without the cache; returns the unfit instances in the benchmark's order."""
    fresh = settings.model_copy(update={"cache": None})
    plan = [(number, True, with_reference(instance)) for number, instance in enumerate(instances)]
    for number, instance in enumerate(instances):
        unchanged = without_patch(instance)
        if unchanged is not None:
            plan.append((number, False, unchanged))
    seen: dict[tuple[int, bool], list[Outcome]] = {}
    for turn in range(repeat):  # one batch a turn: within a batch, equal pairs run only once
        items = [item for _, _, item in plan]
        for index, outcome in run_many(fresh, items, progress=f"preflight {turn + 1}/{repeat}"):
            seen.setdefault(plan[index][:2], []).append(outcome)
    verdicts = (
        judge(instance, seen[number, True], seen.get((number, False), []), settings.timeout_s)
        for number, instance in enumerate(instances)
    )
    return [verdict for verdict in verdicts if verdict is not None]


def quarantine_file(benchmark: Path) -> Path:
    """Where the list of a benchmark file lies unless told otherwise."""
    return benchmark.with_suffix(".quarantine.jsonl")


def load_quarantine(file: Path) -> dict[str, str]:
    """instance_id -> reason; empty if there is no list. Raises UserError naming a bad line."""
    found: dict[str, str] = {}
    if not file.exists():
        return found
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        try:
            row = json.loads(line)
            found[row["instance_id"]] = Reason(row["reason"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file}, line {number}: not a quarantine entry ({error}). Run preflight again") from None
    return found


def fit(instances: Iterable[BugInstance], quarantine: dict[str, str]) -> list[BugInstance]:
    """The instances that are not quarantined, in order."""
    return [instance for instance in instances if instance.instance_id not in quarantine]


def main(argv: Sequence[str]) -> int:
    """The command; 0 if every instance is fit, 1 if some are quarantined."""
    parser = argparse.ArgumentParser(prog="boostapr preflight", description=__doc__.partition("\n")[0])
    parser.add_argument("benchmark", type=Path, help="a JSON Lines file of bug instances")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind (default: 3)")
    parser.add_argument("--output", type=Path, help="the list (default: beside the benchmark, .quarantine.jsonl)")
    parser.add_argument("overrides", nargs="*", help="settings of conf/sandbox, such as sandbox.workers=4")
    options = parser.parse_args(argv)
    if options.repeat < 1:
        raise UserError(f"--repeat must be 1 or more, is {options.repeat}")
    if not options.benchmark.is_file():
        raise UserError(f"there is no benchmark file {options.benchmark}")
    settings = load_section(SandboxSettings, "sandbox", ["name=preflight", *options.overrides])
    instances = load_instances(options.benchmark)
    unfit = preflight(settings, instances, options.repeat)
    output = options.output or quarantine_file(options.benchmark)
    lines = [json.dumps({"instance_id": q.instance_id, "reason": q.reason, "detail": q.detail}) for q in unfit]
    output.write_text("".join(f"{line}\n" for line in lines))
    print(f"{len(instances) - len(unfit)} of {len(instances)} instances are fit; {output} lists the others")
    for reason, count in Counter(q.reason for q in unfit).items():
        print(f"  {count:5}  {reason}")
    return 1 if unfit else 0
