"""Stage II data: K candidates a bug, executed and scored by Eq. 3; nothing is drawn or executed twice."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from stage_tools import MemoryPolicy

from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from boostapr.runs import StageRun
from envs.policies import Response
from envs.sandboxes import SandboxSettings
from envs.tasks import BugInstance
from reward_models.data import load_candidates
from stages import candidates
from stages.settings import CandidateSettings

OpenStage = Callable[[str], StageRun]
NO_FIX = "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+n\n"


def answer(instance: BugInstance, k: int) -> Response:
    """The reference, a patch that fixes nothing, no diff, and bytes that are not UTF-8."""
    data = [instance.patch.encode(), NO_FIX.encode(), b"sorry", b"\xff\xfe"][k]
    return Response(data, num_tokens=10 + k)


def rows(stage: StageRun, name: str = "candidates.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (stage.folder / name).read_text().splitlines()]


def test_rows_hold_outcome_and_reward(
    bugs: list[BugInstance], candidate_settings: CandidateSettings, sandbox: SandboxSettings, open_stage: OpenStage
) -> None:
    """Eq. 3 in the real sandbox; rows stand in the order of the split, and the reward stage can read them."""
    stage = open_stage("candidates")
    candidates.run(candidate_settings, bugs[:2], MemoryPolicy(answer).open, sandbox, 0, stage)
    found = rows(stage)
    assert [(row["instance_id"], row["k"]) for row in found] == [(b.instance_id, k) for b in bugs[:2] for k in range(4)]
    reference, no_fix, prose, noise = found[:4]
    changed = sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in bugs[0].patch.splitlines())
    assert reference["outcome"]["status"] == "resolved"
    assert reference["reward"]["total"] == pytest.approx(0.2 + 0.8 - min(0.002 * changed, 0.2))
    passing = len(bugs[0].PASS_TO_PASS) / len(bugs[0].required_tests)
    assert no_fix["outcome"]["status"] == "tests_failed"
    assert no_fix["reward"]["total"] == pytest.approx(0.2 + 0.8 * passing - 0.002)
    assert prose["reward"]["total"] == noise["reward"]["total"] == 0.0
    assert [row["num_tokens"] for row in found[:4]] == [10, 11, 12, 13]
    assert len(load_candidates(stage.folder / "candidates.jsonl")) == 8
    assert json.loads((stage.folder / "done.json").read_text())["mixed"] == 1.0


def fake_run_many(
    log: list[bytes], die_after: int | None = None, status: Status = Status.TESTS_FAILED
) -> Callable[..., Any]:
    def run(
        settings: object, items: Sequence[tuple[BugInstance, bytes]], progress: str | None
    ) -> Iterator[tuple[int, Outcome]]:
        for index in reversed(range(len(items))):  # as they complete, in no order
            if len(log) == die_after:
                raise KeyboardInterrupt
            log.append(items[index][1])
            yield index, Outcome(status)

    return run


def test_killed_while_sampling(
    bugs: list[BugInstance],
    candidate_settings: CandidateSettings,
    sandbox: SandboxSettings,
    open_stage: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only what is missing is drawn again, down to the single sample, by an engine with another seed."""
    monkeypatch.setattr(candidates, "run_many", fake_run_many([]))
    dying = MemoryPolicy(answer, die_after=3)
    with pytest.raises(KeyboardInterrupt):
        candidates.run(candidate_settings, bugs, dying.open, sandbox, 0, open_stage("candidates"))
    stage = open_stage("candidates")
    log = stage.folder / "responses.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    assert len(lines) == 12
    log.write_text("".join(lines[:-2]) + lines[-1][:20])
    policy = MemoryPolicy(answer)
    candidates.run(candidate_settings, bugs, policy.open, sandbox, 0, stage)
    assert policy.asked == [(bugs[2].instance_id, 2)] + [(bug.instance_id, 4) for bug in bugs[3:]]
    assert policy.seeds != dying.seeds
    assert len(rows(stage)) == 4 * len(bugs)


def test_killed_while_executing(
    bugs: list[BugInstance],
    candidate_settings: CandidateSettings,
    sandbox: SandboxSettings,
    open_stage: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answers before the kill are graded, not new ones: redrawing would favour what is quick to grade."""
    before: list[bytes] = []
    monkeypatch.setattr(candidates, "run_many", fake_run_many(before, die_after=9))
    with pytest.raises(KeyboardInterrupt):
        candidates.run(candidate_settings, bugs, MemoryPolicy(answer).open, sandbox, 0, open_stage("candidates"))
    after: list[bytes] = []
    monkeypatch.setattr(candidates, "run_many", fake_run_many(after))
    policy, stage = MemoryPolicy(answer), open_stage("candidates")
    candidates.run(candidate_settings, bugs, policy.open, sandbox, 0, stage)
    assert policy.seeds == []  # the engine was not even started
    assert len(before) == 9 and len(after) == 4 * len(bugs) - 9
    assert len(rows(stage)) == 4 * len(bugs)


def test_infra_has_no_reward(
    bugs: list[BugInstance],
    candidate_settings: CandidateSettings,
    sandbox: SandboxSettings,
    open_stage: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failure of the machine is not a bad patch: no r*, a clear stop if nothing could be graded, graded when resumed."""
    monkeypatch.setattr(candidates, "run_many", fake_run_many([], status=Status.INFRA))
    stage = open_stage("candidates")
    with pytest.raises(UserError, match="could not grade a single candidate"):
        candidates.run(candidate_settings, bugs, MemoryPolicy(answer).open, sandbox, 0, stage)
    assert {row["reward"]["total"] for row in rows(stage)} == {None}
    log: list[bytes] = []
    monkeypatch.setattr(candidates, "run_many", fake_run_many(log))
    candidates.run(candidate_settings, bugs, MemoryPolicy(answer).open, sandbox, 0, open_stage("candidates"))
    assert len(log) == 4 * len(bugs) and all(row["reward"]["total"] is not None for row in rows(stage))


def test_long_prompts_are_dropped_and_counted(
    bugs: list[BugInstance],
    candidate_settings: CandidateSettings,
    sandbox: SandboxSettings,
    open_stage: OpenStage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug whose prompt fills the context gives no candidates; if all do, the message names the key."""
    monkeypatch.setattr(candidates, "run_many", fake_run_many([]))

    def short(instance: BugInstance, k: int) -> Response:
        return answer(instance, k) if instance is not bugs[0] else Response(b"", finish="prompt_too_long")

    stage = open_stage("candidates")
    candidates.run(candidate_settings, bugs, MemoryPolicy(short).open, sandbox, 0, stage)
    assert len(rows(stage)) == 4 * (len(bugs) - 1)
    assert json.loads((stage.folder / "done.json").read_text())["dropped_prompt_too_long"] == 4
    with pytest.raises(UserError, match=r"vllm\.max_model_len"):
        every = MemoryPolicy(lambda instance, k: Response(b"", finish="prompt_too_long"))
        candidates.run(candidate_settings, bugs, every.open, sandbox, 0, open_stage("again"))
