"""What running a response led to: the one failure taxonomy and the `Outcome` record.

Every backend grades into an `Outcome`; rewards, masks, metrics and reports read nothing else, so "the patch is wrong"
and "the machine hiccuped" can never be confused later on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How an execution (or an episode) ended. The values are stable: they stand in result files."""

    RESOLVED = "resolved"  # every required test passed, and exit code and report agree
    TESTS_FAILED = "tests_failed"
    APPLY_FAILED = "apply_failed"  # `git apply` refused the response
    COMPILE_FAILED = "compile_failed"  # a changed file does not compile (Python: a SyntaxError in it)
    COLLECT_FAILED = "collect_failed"  # the tests could not be imported or found
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    FORMAT = "format"  # no usable answer: empty, or no diff (no code) in it
    POLICY_DEGRADED = "policy_degraded"  # repetition, too many tool calls, context overflow by the policy
    INFRA = "infra"  # the machine's fault: retried, then flagged
    SPOOFED = "spoofed"  # the program printed or wrote results that it did not earn

    @property
    def cause(self) -> FailureCause:
        """The cause written into `TokenStreams`: `none` where tests gave a verdict in favour, else the same name."""
        return FailureCause.NONE if self is Status.RESOLVED else FailureCause(self.value)

    @property
    def is_flaky(self) -> bool:
        """True where the same response may end differently on another day; such outcomes are never cached."""
        return self in (Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.INFRA)


class FailureCause(StrEnum):
    """`Status` seen from the trainer: why an episode did not end in success (design: token streams)."""

    NONE = "none"
    TESTS_FAILED = "tests_failed"
    APPLY_FAILED = "apply_failed"
    COMPILE_FAILED = "compile_failed"
    COLLECT_FAILED = "collect_failed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    FORMAT = "format"
    POLICY_DEGRADED = "policy_degraded"
    INFRA = "infra"
    SPOOFED = "spoofed"


# Statuses in which the response never became files in the tree.
_NOT_APPLIED = frozenset({Status.FORMAT, Status.APPLY_FAILED, Status.POLICY_DEGRADED, Status.INFRA})

TEST_RESULTS = frozenset({"passed", "failed", "error", "skipped"})


@dataclass(frozen=True)
class Frame:
    """One line of a traceback inside the instance's tree.

    path: relative to the tree's root; line: 1-based; is_assertion: the line on which an assertion failed.
    """

    path: str
    line: int
    function: str
    is_assertion: bool = False


@dataclass(frozen=True)
class Failure:
    """Why one test did not pass.

    message: exception type and text; source_line: the source of the innermost frame inside the test file (the failing
    assertion), empty if unknown; frames: outermost first.
    """

    test: str
    message: str
    source_line: str = ""
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The graded result of running one response.

    tests: test id ("classname::name") -> passed | failed | error | skipped, as the runner's report had it.
    exit_code: the runner's (negative: killed by that signal; None: it never ran). output: capped, undecodable bytes
    replaced. wall_s and cpu_s in seconds, peak_memory_mb in MiB of the test process. detail: one line for people.
    """

    status: Status
    tests: dict[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    exit_code: int | None = None
    output: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_memory_mb: float = 0.0
    detail: str = ""

    @property
    def resolved(self) -> bool:
        """True if every required test passed and nothing contradicts it."""
        return self.status is Status.RESOLVED

    @property
    def applied(self) -> bool:
        """True if the response became files in the tree (the w_apply term of Eq. 3)."""
        return self.status not in _NOT_APPLIED

    def pass_rate(self, required: Iterable[str]) -> float:
        """Share of the required tests that passed, in [0, 1]; 0 where results are not to be believed (spoofed).

        Raises ValueError for an infra outcome (it says nothing about the response and must be masked, not scored) and
        for an empty set of tests.
        """
        wanted = set(required)
        if not wanted:
            raise ValueError("pass_rate needs at least one required test")
        if self.status is Status.INFRA:
            raise ValueError(f"an infra outcome has no pass rate, mask it instead ({self.detail})")
        if self.status is Status.SPOOFED:
            return 0.0
        return sum(self.tests.get(test) == "passed" for test in wanted) / len(wanted)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `from_dict` is its inverse."""
        return asdict(self) | {"status": self.status.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Inverse of `to_dict`. Raises ValueError on an unknown or missing key, or an unknown status."""
        known = {f.name for f in fields(cls)}
        if "status" not in data or not set(data) <= known:
            wrong = sorted(set(data) - known) or ["status (missing)"]
            raise ValueError(f"not an outcome record: {', '.join(wrong)}")
        values = dict(data)
        values["status"] = Status(values["status"])
        values["failures"] = tuple(
            Failure(**{**f, "frames": tuple(Frame(**frame) for frame in f.get("frames", ()))})
            for f in values.get("failures", ())
        )
        return cls(**values)
