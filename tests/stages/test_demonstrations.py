"""Stage I data: only attempts that pass every test are kept, and nothing is executed twice."""

import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from boostapr.runs import StageRun
from envs.sandboxes import SandboxSettings
from envs.tasks import BugInstance
from envs.teachers import Demonstration
from stages import demonstrations
from stages.settings import DemonstrationSettings

OpenStage = Callable[[str], StageRun]
NO_FIX = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+n\n"


class HalfRight:
    """Right on the first attempt at a bug, wrong on the second."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def demonstrate(self, instance: BugInstance, seed: int) -> Demonstration:
        self.seeds.append(seed)
        first = seed == demonstrations.attempt_seed(0, instance.instance_id, 0)
        return Demonstration("Bug Analysis: x\n\n", instance.patch if first else NO_FIX)


def rows(stage: StageRun, name: str) -> list[dict]:
    return [json.loads(line) for line in (stage.folder / name).read_text().splitlines()]


def test_keeps_what_resolves(
    bugs: list[BugInstance],
    demonstration_settings: DemonstrationSettings,
    sandbox: SandboxSettings,
    open_stage: OpenStage,
) -> None:
    """The execution filter of section 3.2 in the real sandbox: the wrong half is executed, recorded and left out."""
    stage = open_stage("demonstrations")
    demonstrations.run(demonstration_settings, bugs[:3], HalfRight(), sandbox, 0, stage)
    kept, attempts = rows(stage, "demonstrations.jsonl"), rows(stage, "attempts.jsonl")
    assert [row["instance_id"] for row in kept] == [bug.instance_id for bug in bugs[:3]]
    assert all(row["outcome"]["status"] == "resolved" and row["attempt"] == 0 and row["trace"] for row in kept)
    assert len(attempts) == 6 and sum(row["kept"] for row in attempts) == 3
    assert rows(stage, "metrics.jsonl")[0]["keep_rate"] == 0.5
    assert json.loads((stage.folder / "done.json").read_text())["attempts"] == 6


def fake_run_many(log: list[str], die_after: int | None = None, status: Status = Status.RESOLVED) -> Callable:
    """A sandbox that answers at once; it "is killed" after so many runs."""

    def run(
        settings: object, items: Sequence[tuple[BugInstance, bytes]], progress: str | None
    ) -> Iterator[tuple[int, Outcome]]:
        for index, (instance, _) in enumerate(items):
            if index == die_after:
                raise KeyboardInterrupt
            log.append(instance.instance_id)
            yield index, Outcome(status)

    return run


def test_resumes_between_rows(
    bugs: list[BugInstance],
    demonstration_settings: DemonstrationSettings,
    sandbox: SandboxSettings,
    open_stage: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a kill, also in the middle of a line, executed attempts are not executed again, and none is missing."""
    first: list[str] = []
    monkeypatch.setattr(demonstrations, "run_many", fake_run_many(first, die_after=4))
    stage = open_stage("demonstrations")
    with pytest.raises(KeyboardInterrupt):
        demonstrations.run(demonstration_settings, bugs, HalfRight(), sandbox, 0, stage)
    with (stage.folder / "attempts.jsonl").open("a") as file:
        file.write('{"instance_id": "cut')
    second: list[str] = []
    monkeypatch.setattr(demonstrations, "run_many", fake_run_many(second))
    demonstrations.run(demonstration_settings, bugs, HalfRight(), sandbox, 0, open_stage("demonstrations"))
    assert len(first) == 4 and len(second) == 2 * len(bugs) - 4
    assert len(rows(stage, "demonstrations.jsonl")) == 2 * len(bugs)


def test_infra_is_executed_again(
    bugs: list[BugInstance],
    demonstration_settings: DemonstrationSettings,
    sandbox: SandboxSettings,
    open_stage: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the machine failed to grade is no verdict: with nothing kept the stage fails, and a restart grades it."""
    monkeypatch.setattr(demonstrations, "run_many", fake_run_many([], status=Status.INFRA))
    with pytest.raises(UserError, match=r"None of the 12 attempts.*attempts\.jsonl"):
        demonstrations.run(demonstration_settings, bugs, HalfRight(), sandbox, 0, open_stage("demonstrations"))
    log: list[str] = []
    monkeypatch.setattr(demonstrations, "run_many", fake_run_many(log))
    stage = open_stage("demonstrations")
    demonstrations.run(demonstration_settings, bugs, HalfRight(), sandbox, 0, stage)
    assert len(log) == 12 and len(rows(stage, "demonstrations.jsonl")) == 12


def test_attempts_have_seeds_of_their_own(bugs: list[BugInstance]) -> None:
    """Another number of attempts or order of bugs must not change what a teacher writes for one of them."""
    seeds = {demonstrations.attempt_seed(s, b.instance_id, k) for s in (0, 1) for b in bugs for k in range(3)}
    assert len(seeds) == 2 * len(bugs) * 3


@pytest.mark.parametrize("kind", ["id", "snapshot", "patch"])
def test_contamination_is_refused(bugs: list[BugInstance], kind: str) -> None:
    """Section 3.1: an evaluation bug in the training data is found by id, by its code and by its fix."""
    from dataclasses import replace

    train, held_out = bugs[:3], bugs[3:]
    demonstrations.check_apart(train, held_out, "test")
    twin = {
        "id": replace(held_out[0], instance_id=train[1].instance_id),
        "snapshot": replace(held_out[0], files=dict(train[1].files)),
        "patch": replace(held_out[0], patch=train[1].patch),
    }[kind]
    with pytest.raises(UserError, match=f"`test` and {train[1].instance_id} .*same {kind}"):
        demonstrations.check_apart(train, [twin], "test")
