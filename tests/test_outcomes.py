"""The taxonomy and the Outcome record."""

import json

import pytest

from boostapr.outcomes import Failure, FailureCause, Frame, Outcome, Status


def test_every_status_but_resolved_is_a_cause_of_failure():
    """One taxonomy: a new status without a cause would break the trainer's masks."""
    assert {s.cause.value for s in Status} == {c.value for c in FailureCause}
    assert Status.RESOLVED.cause is FailureCause.NONE
    assert all(s.cause.value == s.value for s in Status if s is not Status.RESOLVED)


def test_outcome_survives_json():
    """Result files and the cache hold outcomes as JSON."""
    frame = Frame("stats.py", 3, "mean", is_assertion=True)
    outcome = Outcome(Status.TESTS_FAILED, {"T::a": "failed"}, (Failure("T::a", "E", "x", (frame,)),), 1, "out", 0.5)
    assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome
    with pytest.raises(ValueError, match="colour"):
        Outcome.from_dict({"status": "resolved", "colour": 1})


def test_pass_rate_counts_missing_tests_and_believes_no_spoof():
    """Required tests that did not run count as not passed; spoofed results earn nothing."""
    tests = {"a": "passed", "b": "failed", "other": "passed"}
    assert Outcome(Status.TESTS_FAILED, tests).pass_rate(["a", "b", "gone", "a"]) == pytest.approx(1 / 3)
    assert Outcome(Status.SPOOFED, tests).pass_rate(["a"]) == 0.0


def test_infra_is_never_a_silent_zero():
    """Scoring a machine failure as 0 would teach the model noise."""
    with pytest.raises(ValueError, match="mask it"):
        Outcome(Status.INFRA, detail="engine gone").pass_rate(["a"])


def test_applied_follows_the_status():
    """The w_apply term of Eq. 3: a timeout happened after the patch applied, a refused patch did not apply."""
    assert Outcome(Status.TIMEOUT).applied and Outcome(Status.COMPILE_FAILED).applied
    assert not Outcome(Status.APPLY_FAILED).applied and not Outcome(Status.FORMAT).applied
