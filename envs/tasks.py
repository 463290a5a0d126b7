"""The bug instance: one JSON object per line, SWE-bench's names where it has one.

Benchmarks (envs/benchmarks) read whatever their source looks like into `BugInstance`; nothing after them knows the
difference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import Any

from boostapr.errors import UserError

LANGUAGES = ("python", "java")
OUTPUT_MODES = ("diff", "code")
REPORT_PLACEHOLDER = "{report}"


@dataclass(frozen=True)
class BugInstance:
    """A bug, the tests that show it, and how to run them.

    files: an inline snapshot {path: text} of the tree (instead of repo at base_commit in an image).
    test_files: laid over the tree after the response was applied, whatever it did there.
    test_command: argv; `{report}` is replaced by the path where the junit XML goes.
    output_mode: the response is a "diff", or the whole new "code" of `target`.
    timeout_s (seconds, wall clock) and memory_mb (MiB): None means the sandbox settings decide.
    Test ids are junit's "classname::name". extra: fields of the source that nobody here knows, kept as they were.
    """

    instance_id: str
    problem_statement: str
    FAIL_TO_PASS: tuple[str, ...]
    PASS_TO_PASS: tuple[str, ...]
    test_command: tuple[str, ...]
    repo: str = ""
    base_commit: str = ""
    patch: str = ""
    test_patch: str = ""
    language: str = "python"
    files: dict[str, str] = field(default_factory=dict)
    test_files: dict[str, str] = field(default_factory=dict)
    output_mode: str = "diff"
    target: str | None = None
    image: str | None = None
    workdir: str | None = None
    timeout_s: float | None = None
    memory_mb: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def required_tests(self) -> tuple[str, ...]:
        """FAIL_TO_PASS then PASS_TO_PASS: all must pass for `resolved`."""
        return self.FAIL_TO_PASS + self.PASS_TO_PASS

    @property
    def digest(self) -> str:
        """sha256 over everything that an execution depends on (not the issue text, the reference or `extra`)."""
        skip = {"instance_id", "problem_statement", "patch", "extra"}
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class InstanceError(UserError, ValueError):
    """A benchmark file holds something that is not a bug instance. The message names file, line and field."""


_STRING = (str, "a string")
_STRINGS = (list, "a list of strings")
_TREE = (dict, "an object {path: text}")
_EXPECTED: dict[str, tuple[type | tuple[type, ...], str]] = {
    "instance_id": _STRING,
    "problem_statement": _STRING,
    "FAIL_TO_PASS": _STRINGS,
    "PASS_TO_PASS": _STRINGS,
    "test_command": _STRINGS,
    "repo": _STRING,
    "base_commit": _STRING,
    "patch": _STRING,
    "test_patch": _STRING,
    "language": _STRING,
    "files": _TREE,
    "test_files": _TREE,
    "output_mode": _STRING,
    "target": _STRING,
    "image": _STRING,
    "workdir": _STRING,
    "timeout_s": ((int, float), "a number of seconds above 0"),
    "memory_mb": (int, "a whole number of MiB above 0"),
}
_REQUIRED = ("instance_id", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS", "test_command")
_NULLABLE = ("target", "image", "workdir", "timeout_s", "memory_mb")


def _check_field(name: str, value: Any) -> str | None:
    """What is wrong with one known field, or None."""
    if value is None and name in _NULLABLE:
        return None
    kind, words = _EXPECTED[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        return f"must be {words}, is {type(value).__name__}"
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        return f"must be {words}, an item is {next(type(i).__name__ for i in value if not isinstance(i, str))}"
    if isinstance(value, dict):
        for path, text in value.items():
            if not isinstance(text, str):
                return f"must be {words}, the text of {path!r} is {type(text).__name__}"
            if not is_safe_path(path):
                return f"the path {path!r} leaves the tree"
    if isinstance(value, (int, float)) and value <= 0:
        return f"must be {words}, is {value}"
    return None


def is_safe_path(path: str) -> bool:
    """True for a relative path without "..", empty parts, NUL, or anything inside .git."""
    parts = PurePosixPath(path).parts
    return bool(parts) and "\0" not in path and not path.startswith("/") and ".." not in parts and parts[0] != ".git"


def from_json(data: Mapping[str, Any], where: str = "instance") -> BugInstance:
    """One parsed JSON object -> BugInstance; unknown fields land in `extra`.

    Raises InstanceError naming `where` and the field if one is missing, mistyped or contradicts another.
    """
    if not isinstance(data, Mapping):
        raise InstanceError(f"{where}: a bug instance is a JSON object, this is {type(data).__name__}")
    for name in _REQUIRED:
        if name not in data:
            raise InstanceError(f"{where}: field {name!r} is missing")
    for name in _EXPECTED:
        problem = _check_field(name, data[name]) if name in data else None
        if problem:
            raise InstanceError(f"{where}: field {name!r} {problem}")
    known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in _EXPECTED}
    extra = {k: v for k, v in data.items() if k not in _EXPECTED and k != "extra"} | dict(data.get("extra") or {})
    instance = BugInstance(**known, extra=extra)
    problem = _check_whole(instance)
    if problem:
        raise InstanceError(f"{where}: {problem}")
    return instance


def _check_whole(instance: BugInstance) -> str | None:
    """What is wrong between the fields, or None."""
    if not instance.instance_id:
        return "field 'instance_id' is empty"
    if not instance.required_tests:
        return "fields 'FAIL_TO_PASS' and 'PASS_TO_PASS' are both empty: nothing could be graded"
    if not instance.test_command:
        return "field 'test_command' is empty"
    if instance.language not in LANGUAGES:
        return f"field 'language' must be one of {', '.join(LANGUAGES)}, is {instance.language!r}"
    if instance.output_mode not in OUTPUT_MODES:
        return f"field 'output_mode' must be one of {', '.join(OUTPUT_MODES)}, is {instance.output_mode!r}"
    if instance.output_mode == "code" and (not instance.target or not is_safe_path(instance.target)):
        return "field 'target' must name the file that the code replaces when 'output_mode' is 'code'"
    if not instance.files and not instance.repo and not instance.image:
        return "one of the fields 'files', 'repo' and 'image' must say where the tree comes from"
    return None


def load_instances(path: str | Path) -> list[BugInstance]:
    """Read a JSON Lines benchmark; blank lines are skipped, order is kept.

    Raises FileNotFoundError, or InstanceError with file, line and field for the first bad line or repeated instance_id.
    """
    file = Path(path)
    seen: dict[str, int] = {}
    instances = []
    # Split at "\n" only: text may hold U+2028 and form feeds.
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            data = json.loads(line)
        except ValueError as error:
            raise InstanceError(f"{where}: not JSON ({error})") from None
        instance = from_json(data, where)
        if instance.instance_id in seen:
            raise InstanceError(
                f"{where}: field 'instance_id' repeats {instance.instance_id!r} of line {seen[instance.instance_id]}"
            )
        seen[instance.instance_id] = number
        instances.append(instance)
    return instances


def to_json(instance: BugInstance) -> dict[str, Any]:
    """The JSON object of one line; unknown fields stand at the top level again. `from_json` is its inverse."""
    known = {f.name: getattr(instance, f.name) for f in fields(instance) if f.name != "extra"}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in known.items() if v is not None} | instance.extra
