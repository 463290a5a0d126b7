"""From what a backend saw to an `Outcome`: which results count, and the one status."""

from __future__ import annotations

import hashlib
import re
import signal
from dataclasses import dataclass

from boostapr.outcomes import Failure, Frame, Outcome, Status
from envs.sandboxes.junit import Case, Report, ReportError, parse_report
from envs.sandboxes.tree import Tree
from envs.tasks import BugInstance

_PYTHON_FRAME = re.compile(r'^  File "([^"\n]+)", line (\d+), in ([^\n]+)$', re.MULTILINE)
_PYTEST_FRAME = re.compile(r"^(\S+\.py):(\d+): ?(?:in (\w+)|\w*)$", re.MULTILINE)
_SYNTAX_ERROR = re.compile(
    r'File "([^"\n]+)", line (\d+)\n(?:(?!  File ).*\n){0,6}?(?:E +)?((?:Syntax|Indentation|Tab)Error: .*)'
)
_EXCEPTION_LINE = re.compile(r"^(?:E +)?([\w.]*(?:Error|Exception|Exit|Interrupt|Skipped|SkipTest)\b.*)$", re.MULTILINE)
_MEMORY = re.compile(r"\bMemoryError\b")


@dataclass(frozen=True)
class RunResult:
    """What a backend saw; grading turns it into an `Outcome`.

    exit_code: negative for a signal, None if the run was stopped. stopped: "" | timeout | memory | disk.
    report: junit XML as the runner left it. attested: the exit code, the report's hash and the list of tampered names
    as the wrapper around the test runner reported them; None where nothing arrived. is_attestable: False for commands
    that the wrapper cannot run (anything but `python -m`). changed: test files that the run altered.
    root: the tree's path inside the sandbox.
    """

    exit_code: int | None
    stopped: str
    output: str
    report: bytes | None
    is_attestable: bool
    attested: tuple[int, str, tuple[str, ...]] | None
    changed: tuple[str, ...]
    root: str
    wall_s: float
    cpu_s: float
    peak_memory_mb: float


def grade(instance: BugInstance, tree: Tree, result: RunResult) -> Outcome:
    """The verdict of design.md section 6.

    A test counts only if the runner's exit code and its report agree, and, where the wrapper could watch, only if the
    runner came to its end untouched. `resolved` needs every required test to have passed; whatever claims success
    without that is `spoofed`.
    """
    report, problem = _read_report(result)
    status, detail = _status(instance, tree, result, report, problem)
    cases = report.collection + report.cases if report else ()
    return Outcome(
        status=status,
        tests=dict(report.tests) if report else {},
        failures=tuple(_failure(case, tree, result.root) for case in cases),
        exit_code=result.exit_code,
        output=result.output,
        wall_s=result.wall_s,
        cpu_s=result.cpu_s,
        peak_memory_mb=result.peak_memory_mb,
        detail=detail,
    )


def _read_report(result: RunResult) -> tuple[Report | None, str]:
    if not result.report:
        return None, "the runner wrote no report"
    try:
        return parse_report(result.report), ""
    except ReportError as error:
        return None, str(error)


def _status(
    instance: BugInstance, tree: Tree, result: RunResult, report: Report | None, problem: str
) -> tuple[Status, str]:
    if result.stopped == "timeout":
        return Status.TIMEOUT, f"stopped after {result.wall_s:.1f} s"
    if result.stopped == "memory":
        return Status.OUT_OF_MEMORY, f"stopped at {result.peak_memory_mb:.0f} MiB"
    if result.stopped == "disk":
        return Status.TESTS_FAILED, "stopped: it filled its disk quota"
    forged = _forgery(result, report, problem)
    if forged:
        return Status.SPOOFED, forged
    required = instance.required_tests
    if report is not None:
        if result.exit_code == 0 or report.cases or report.collection:
            missing = [t for t in required if report.tests.get(t) != "passed"]
            if not missing and not (report.collection and result.exit_code == 0):
                return Status.RESOLVED, ""
        if report.collection:
            return _collect_status(tree, result.root, report.collection[0].text or report.collection[0].message)
        if any(_MEMORY.search(case.exception) for case in report.cases):
            return Status.OUT_OF_MEMORY, "a test ended in MemoryError"
        bad = [t for t in required if report.tests.get(t) != "passed"]
        if bad:
            return Status.TESTS_FAILED, f"{len(bad)} of {len(required)} required tests did not pass"
        return Status.TESTS_FAILED, f"all required tests passed, but {_exit_words(result.exit_code)}"
    if _MEMORY.search(result.output[-400:]):
        return Status.OUT_OF_MEMORY, f"{_exit_words(result.exit_code)} after a MemoryError"
    # The runner came back with an error before it had a report: something raised while the tests were imported.
    if result.attested is not None or _SYNTAX_ERROR.search(result.output):
        return _collect_status(tree, result.root, result.output)
    return Status.TESTS_FAILED, f"{_exit_words(result.exit_code)}, and {problem}"


def _forgery(result: RunResult, report: Report | None, problem: str) -> str:
    """Why the results are not to be believed, or ""."""
    if result.changed:
        return f"the run rewrote {', '.join(result.changed)}"
    if result.attested is not None:
        code, digest, tampered = result.attested
        if tampered:
            return f"the run changed the test runner: {', '.join(tampered[:3])}"
        if result.report is not None and digest != hashlib.sha256(result.report).hexdigest():
            return "the report is not the one that the runner wrote"
        if code & 0xFF != (result.exit_code or 0) & 0xFF and result.exit_code == 0:
            return f"the runner ended with exit code {code}, the process with 0"
    elif result.is_attestable and result.exit_code == 0:
        return "the program ended with exit code 0 before the runner did"
    if result.exit_code == 0:
        if report is None:
            return f"exit code 0, but {problem}"
        failing = [case.test for case in report.cases + report.collection]
        if failing:
            return f"exit code 0, but the report has failures ({failing[0]})"
    return ""


def _collect_status(tree: Tree, root: str, text: str) -> tuple[Status, str]:
    """compile_failed if the reason is a SyntaxError in a file that the response changed."""
    found = _SYNTAX_ERROR.search(text)
    if found:
        path = _relative(found.group(1), root)
        if path in tree.changed:
            return Status.COMPILE_FAILED, f"{path}, line {found.group(2)}: {found.group(3)}"
    errors = _EXCEPTION_LINE.findall(text)
    return Status.COLLECT_FAILED, f"the tests could not be imported: {errors[-1][:200] if errors else 'see the output'}"


def _exit_words(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the runner was killed by {signal.Signals(-code).name}"
    return f"the runner ended with exit code {code}"


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/") if path.startswith(root) else path


def _failure(case: Case, tree: Tree, root: str) -> Failure:
    """Frames are those inside the tree; the last one is an assertion's if the test failed by one."""
    raw = _PYTHON_FRAME.findall(case.text) or _PYTEST_FRAME.findall(case.text)
    inside = [(_relative(path, root), int(line), name) for path, line, name in raw]
    inside = [frame for frame in inside if frame[0] in tree.files]
    is_assertion = case.exception.rpartition(".")[2] == "AssertionError" or case.kind == "failed"
    frames = tuple(
        Frame(path, line, function, is_assertion and number == len(inside))
        for number, (path, line, function) in enumerate(inside, start=1)
    )
    source = ""
    for frame in reversed(frames):
        file = tree.files[frame.path]
        if file.is_protected:
            lines = file.content.decode("utf-8", "replace").split("\n")
            source = lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""
            break
    message = case.message.strip() or case.text.strip().rpartition("\n")[2]
    return Failure(case.test, f"{case.exception}: {message}" if case.exception else message, source, frames)
