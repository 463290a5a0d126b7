"""Prompts say what the stage needs; Eq. 3 against hand-computed numbers."""

import pytest
from pydantic import ValidationError

from boostapr.outcomes import Outcome, Status
from boostapr.patches import parse_patch
from boostapr.prompts import TRACE_SECTIONS, repair_messages, trace_text
from boostapr.rewards import ExecutionRewardSettings, execution_reward
from envs.benchmarks.microbugs import load_split

SETTINGS = ExecutionRewardSettings(w_apply=0.2, w_test=0.8, gamma_diff=1.0, eta=0.002, r_max=0.2)
DIFF = "--- a/f.py\n+++ b/f.py\n@@ -1,2 +1,3 @@\n x = 1\n-y = 2\n+y = 3\n+z = 4\n"


@pytest.mark.parametrize("template", ["compact", "full"])
def test_every_prompt_holds_the_issue_and_the_files_byte_for_byte(template: str) -> None:
    """A model can only copy what it was shown."""
    for instance in load_split("dev")[:20]:
        for style in ("patch", "trace"):
            text = "".join(m["content"] for m in repair_messages(instance, style, template))
            assert instance.problem_statement in text
            assert all(path in text and source in text for path, source in instance.files.items())


@pytest.mark.parametrize("template", ["compact", "full"])
def test_the_two_styles_can_be_told_apart(template: str) -> None:
    """Stage I trains both; PPO and evaluation ask for the patch alone."""
    instance = load_split("dev")[0]
    assert repair_messages(instance, "patch", template) != repair_messages(instance, "trace", template)
    with pytest.raises(ValueError, match="unknown prompt style"):
        repair_messages(instance, "essay", template)
    with pytest.raises(ValueError, match="unknown prompt template"):
        repair_messages(instance, "patch", "nope")


def test_a_trace_has_the_four_parts_in_order() -> None:
    text = trace_text("a", "b", "c", "d")
    places = [text.index(f"{name}: ") for name in TRACE_SECTIONS]
    assert places == sorted(places)
    assert parse_patch(text + DIFF).spans, "the patch behind a trace must be found"


def test_eq3_by_hand() -> None:
    patch, required = parse_patch(DIFF), ["a", "b", "c", "d"]
    tests = {"a": "passed", "b": "passed", "c": "failed", "d": "passed"}
    reward = execution_reward(Outcome(Status.TESTS_FAILED, tests), patch, required, SETTINGS)
    assert reward.r_env == pytest.approx(0.2 + 0.8 * 0.75)
    assert reward.r_diff == pytest.approx(-0.002 * 3)
    assert reward.total == pytest.approx(0.8 - 0.006)
    assert execution_reward(Outcome(Status.APPLY_FAILED), patch, required, SETTINGS).total == pytest.approx(-0.006)


def test_eq3_caps_the_size_penalty_and_refuses_infra() -> None:
    """A huge patch costs r_max at most; an outcome that is the machine's fault must never become a number."""
    big = "--- a/f\n+++ b/f\n@@ -0,0 +1,500 @@\n" + "+x\n" * 500
    assert execution_reward(Outcome(Status.APPLY_FAILED), parse_patch(big), ["a"], SETTINGS).r_diff == -0.2
    with pytest.raises(ValueError, match="infra"):
        execution_reward(Outcome(Status.INFRA), parse_patch(DIFF), ["a"], SETTINGS)
    with pytest.raises(ValidationError):
        ExecutionRewardSettings(w_apply=-1, w_test=0.8, gamma_diff=1.0, eta=0.002, r_max=0.2)
