"""Preflight: which instances are unfit, and why."""

import json

import pytest
from sandbox_cases import BUGGY, GOOD, TESTS, make_instance, make_settings

from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from envs import preflight
from envs.preflight import Reason, fit, judge, load_quarantine
from envs.tasks import to_json

OK, BAD = Outcome(Status.RESOLVED, wall_s=0.1), Outcome(Status.TESTS_FAILED)


@pytest.mark.parametrize(
    ("gold", "bare", "reason"),
    [
        ([OK, OK], [BAD, BAD], None),
        ([BAD, BAD], [BAD, BAD], Reason.GOLD_FAILS),
        ([OK, BAD], [BAD, BAD], Reason.GOLD_FLAKY),
        ([OK, OK], [BAD, OK], Reason.PASSES_WITHOUT_PATCH),
        ([OK, Outcome(Status.INFRA)], [BAD], Reason.SETUP_FAILS),
        ([OK, Outcome(Status.RESOLVED, wall_s=6)], [BAD], Reason.TOO_SLOW),
    ],
)
def test_judge(gold, bare, reason):
    """Each reason is found from the outcomes alone."""
    verdict = judge(make_instance(), gold, bare, timeout_s=10)
    assert (verdict and verdict.reason) == reason


def test_a_benchmark_is_sorted_for_real(tmp_path, monkeypatch, capsys):
    """Good, wrong reference, already fixed, and missing runner: run, listed, left out, counted."""
    rows = [
        make_instance(instance_id="good", patch=GOOD.decode()),
        make_instance(instance_id="wrong", patch=GOOD.replace(b"a + b", b"b - a").decode()),
        make_instance(instance_id="fixed", patch=GOOD.decode(), files={"stats.py": BUGGY.replace("a - b", "a + b")}),
        make_instance(instance_id="no-runner", patch=GOOD.decode(), test_command=["no-such-runner"]),
        make_instance(instance_id="code", patch=BUGGY.replace("-", "+"), output_mode="code", target="stats.py"),
    ]
    file = tmp_path / "bugs.jsonl"
    file.write_text("".join(json.dumps(to_json(row)) + "\n" for row in rows))
    monkeypatch.setattr(preflight, "load_section", lambda *_: make_settings())
    assert preflight.main([str(file), "--repeat", "1"]) == 1
    assert "2 of 5 instances are fit" in capsys.readouterr().out
    listed = load_quarantine(tmp_path / "bugs.quarantine.jsonl")
    assert listed == {
        "wrong": Reason.GOLD_FAILS, "fixed": Reason.PASSES_WITHOUT_PATCH, "no-runner": Reason.SETUP_FAILS,
    }  # fmt: skip
    assert [i.instance_id for i in fit(rows, listed)] == ["good", "code"]


def test_a_broken_list_names_its_line(tmp_path):
    """A list that cannot be read must not count as an empty one."""
    file = tmp_path / "q.jsonl"
    file.write_text('{"instance_id": "a", "reason": "gold_fails"}\n{"instance_id": "b", "reason": "mood"}\n')
    with pytest.raises(UserError, match=r"q\.jsonl, line 2"):
        load_quarantine(file)
    assert load_quarantine(tmp_path / "none.jsonl") == {}


def test_the_reference_runs_under_the_instances_own_tests():
    """The reference run must be graded by the same tests as any response."""
    instance, response = preflight.with_reference(make_instance(patch=GOOD.decode()))
    assert response == GOOD and instance.test_files == {"test_stats.py": TESTS}
