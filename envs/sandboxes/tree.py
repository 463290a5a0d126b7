"""From an instance and a response to the files that the tests see."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from boostapr.outcomes import Status
from boostapr.patches import PatchFormat, apply_patch, parse_patch
from envs.tasks import BugInstance

# Files that steer a test runner or shadow one: they come from the instance, whatever the response did to them.
_CONTROL_NAMES = {"conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"}
_CONTROL_NAMES |= {"sitecustomize.py", "usercustomize.py"}
_SHADOWED_MODULES = {"unittest", "xmlrunner", "pytest", "_pytest", "pluggy"}
_FENCE = re.compile(rb"^```[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class Unusable(Exception):
    """The response never became a tree: status and a line for people."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True)
class TreeFile:
    """content in bytes; mode: permission bits; is_protected: a test or a file that steers the runner."""

    content: bytes
    mode: int
    is_protected: bool


@dataclass(frozen=True)
class Tree:
    """files: path -> file; changed: paths that the response touched, as far as its changes are still there."""

    files: Mapping[str, TreeFile]
    changed: frozenset[str]


def is_runner_control(path: str) -> bool:
    """True for a file with which a response could steer or replace the test runner."""
    parts = PurePosixPath(path).parts
    return parts[-1] in _CONTROL_NAMES or parts[0].removesuffix(".py") in _SHADOWED_MODULES


def extract_code(response: bytes) -> bytes:
    """The code of an answer in "code" mode: the first fenced block, or all of it where there is no fence."""
    fenced = _FENCE.search(response)
    code = fenced.group(1) if fenced else response
    return code if code.endswith(b"\n") or not code else code + b"\n"


def build_tree(instance: BugInstance, response: bytes, scratch: Path) -> Tree:
    """Apply the response strictly (plain `git apply`) and lay the instance's tests over the result.

    scratch: an existing folder of this process's own; it is empty again afterwards.
    Raises Unusable with format or apply_failed.
    """
    original = {path: text.encode("utf-8", "surrogateescape") for path, text in instance.files.items()}
    if instance.output_mode == "code":
        code = extract_code(response)
        if not code.strip():
            raise Unusable(Status.FORMAT, "the response holds no code")
        after: dict[str, tuple[bytes, int] | None] = {str(instance.target): (code, 0o644)}
    else:
        after = _apply_diff(original, response, scratch)
    files = {path: TreeFile(content, 0o644, is_runner_control(path)) for path, content in original.items()}
    for path, new in after.items():
        if is_runner_control(path):
            continue
        if new is None:
            files.pop(path, None)
        else:
            files[path] = TreeFile(new[0], new[1], is_protected=False)
    for path, text in instance.test_files.items():
        # A response may have put a file where a folder of the tests must be, or the other way round.
        for other in [p for p in files if p.startswith(f"{path}/") or path.startswith(f"{p}/")]:
            del files[other]
        files[path] = TreeFile(text.encode("utf-8", "surrogateescape"), 0o644, is_protected=True)
    return Tree(files, frozenset(p for p in after if p in files and not files[p].is_protected))


def _apply_diff(original: Mapping[str, bytes], response: bytes, scratch: Path) -> dict[str, tuple[bytes, int] | None]:
    """Path -> (content, mode) of each file that the diff changed, None for a deleted one."""
    patch = parse_patch(response)
    if patch.format is PatchFormat.NOT_A_DIFF:
        raise Unusable(Status.FORMAT, "the response holds no diff")
    folder = scratch / "tree"
    try:
        for path, content in original.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        folder.mkdir(exist_ok=True)
        result = apply_patch(folder, patch)
        if not result.applied:
            raise Unusable(Status.APPLY_FAILED, result.error)
        return {path: _read_changed(folder / path, path) for path in result.files}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_changed(file: Path, path: str) -> tuple[bytes, int] | None:
    if file.is_symlink():
        raise Unusable(Status.APPLY_FAILED, f"the diff makes {path} a symbolic link, which a repair may not")
    if not file.exists():
        return None
    return file.read_bytes(), 0o755 if file.stat().st_mode & 0o100 else 0o644
