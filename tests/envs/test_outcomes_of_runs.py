"""What ordinary responses lead to: every status, and what an Outcome holds."""

import pytest
from sandbox_cases import BUGGY, GOOD, TESTS, diff_to, make_instance

from boostapr.outcomes import Frame, Status


def test_reference_patch_resolves(sandbox):
    """The basic promise; both tests are reported under junit's names."""
    outcome = sandbox.run(make_instance(), GOOD)
    assert outcome.status is Status.RESOLVED, outcome
    assert outcome.tests == {"test_stats.T::test_add": "passed", "test_stats.T::test_zero": "passed"}
    assert outcome.exit_code == 0 and 0 < outcome.cpu_s <= outcome.wall_s * 2 and outcome.peak_memory_mb > 1


def test_failed_assertion_carries_its_frame_and_source(sandbox):
    """The label cascade reads the failing assertion from here."""
    outcome = sandbox.run(make_instance(), diff_to("return a * b"))
    assert outcome.status is Status.TESTS_FAILED
    assert outcome.pass_rate(make_instance().required_tests) == 0.5
    (failure,) = outcome.failures
    assert failure.test == "test_stats.T::test_add" and failure.message == "AssertionError: 2 != 3"
    assert failure.source_line == "self.assertEqual(add(1, 2), 3)"
    assert failure.frames == (Frame("test_stats.py", 6, "test_add", is_assertion=True),)


def test_exception_in_the_repaired_code_has_frames_of_test_and_code(sandbox):
    """An error deep in the code points at the line that raised, and is no assertion."""
    (failure, _) = sandbox.run(make_instance(), diff_to("return a / b + []")).failures
    assert [(f.path, f.function, f.is_assertion) for f in failure.frames] == [
        ("test_stats.py", "test_add", False),
        ("stats.py", "add", False),
    ]


@pytest.mark.parametrize(
    ("response", "status", "words"),
    [
        (b"", Status.FORMAT, "no diff"),
        (b"I cannot help with that.", Status.FORMAT, "no diff"),
        (GOOD.replace(b"a - b", b"a // b"), Status.APPLY_FAILED, "stats.py"),
        (diff_to("return a +"), Status.COMPILE_FAILED, "stats.py, line 3: SyntaxError"),
        (b"--- a/stats.py\n+++ b/stats.py\n@@ -1,1 +1,2 @@\n+import nowhere\n # the sum of a and b\n",
         Status.COLLECT_FAILED, "No module named 'nowhere'"),
        (diff_to("raise SystemExit(3)"), Status.TESTS_FAILED, "2 of 2 required"),
    ],
)  # fmt: skip
def test_status(sandbox, response, status, words):
    """One taxonomy: the status names whose fault it was."""
    outcome = sandbox.run(make_instance(), response)
    assert outcome.status is status and words in outcome.detail, outcome


def test_code_mode_replaces_the_target(sandbox):
    """Function-level benchmarks answer with code, fenced or not."""
    instance = make_instance(output_mode="code", target="stats.py")
    code = b"def add(a, b):\n    return a + b\n"
    assert sandbox.run(instance, code).status is Status.RESOLVED
    assert sandbox.run(instance, b"Sure:\n```python\n" + code + b"```\nDone.").status is Status.RESOLVED
    assert sandbox.run(instance, b"  \n").status is Status.FORMAT


def test_local_modules_win_over_preloaded_ones(sandbox):
    """A repository may name a module like one of the library's that the warm server already holds."""
    files = {"statistics.py": "def add(a, b):\n    return a - b\n", "stats.py": BUGGY}
    instance = make_instance(
        files=files, test_files={"test_stats.py": TESTS.replace("stats import", "statistics import")}
    )
    response = GOOD.replace(b"stats.py", b"statistics.py").replace(b"-2,2 +2,2", b"-1,2 +1,2")
    assert sandbox.run(instance, response).status is Status.RESOLVED


def test_pytest_is_a_runner_too(sandbox):
    """Any `python -m` runner that writes junit works; parameters stay in the id."""
    tests = "import pytest\nfrom stats import add\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_add(n):\n    assert add(n, 1) == n + 1\n"
    instance = make_instance(
        test_files={"test_stats.py": tests},
        FAIL_TO_PASS=["test_stats::test_add[1]", "test_stats::test_add[2]"],
        PASS_TO_PASS=[],
        test_command=["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml={report}"],
    )
    assert sandbox.run(instance, GOOD).status is Status.RESOLVED
    failed = sandbox.run(instance, diff_to("return a * b + 0"))
    assert failed.status is Status.TESTS_FAILED and failed.tests["test_stats::test_add[1]"] == "failed"
    assert failed.failures[0].frames[-1] == Frame("test_stats.py", 6, "", is_assertion=True), failed.failures
    broken = sandbox.run(instance, diff_to("return a +"))
    assert broken.status is Status.COMPILE_FAILED, broken


def test_other_commands_run_by_exec(sandbox):
    """Runners in other languages: any argv that writes junit."""
    script = (
        "import sys, stats\nok = stats.add(1, 2) == 3\n"
        "body = '' if ok else '<failure message=\"wrong\"/>'\n"
        "open(sys.argv[1], 'w').write(f'<testsuite><testcase classname=\"c\" name=\"t\">{body}</testcase></testsuite>')\n"
        "sys.exit(not ok)\n"
    )
    instance = make_instance(
        test_files={"check.py": script}, FAIL_TO_PASS=["c::t"], PASS_TO_PASS=[],
        test_command=["python", "check.py", "{report}"],
    )  # fmt: skip
    assert sandbox.run(instance, GOOD).status is Status.RESOLVED
    assert sandbox.run(instance, diff_to("return 0")).status is Status.TESTS_FAILED


def test_a_missing_command_is_the_machines_fault(sandbox):
    """Never a silent zero: without the runner every response would look wrong."""
    missing = sandbox.run(make_instance(test_command=["no-such-runner"]), GOOD)
    assert missing.status is Status.INFRA and "no-such-runner" in missing.detail


def test_without_git_nothing_is_the_responses_fault(sandbox, monkeypatch):
    """A machine that cannot apply patches must not fail them."""
    monkeypatch.setenv("PATH", "/nonexistent")
    outcome = sandbox.run(make_instance(), GOOD)
    assert outcome.status is Status.INFRA and "git" in outcome.detail


def test_failing_subtests_fail_their_test(sandbox):
    """unittest reports "test_x (i=1)" for a failing subtest: the required id is test_x."""
    tests = TESTS.replace("        self.assertEqual(add(1", "        with self.subTest(i=1): self.assertEqual(add(1")
    outcome = sandbox.run(make_instance(test_files={"test_stats.py": tests}), diff_to("return 0"))
    assert outcome.tests["test_stats.T::test_add"] == "failed"
