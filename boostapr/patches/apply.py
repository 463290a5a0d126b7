"""Applying a response to a checkout: one `git apply`, all or nothing, with nothing of the user or the checkout in play.

git runs with an empty repository of our own as GIT_DIR and the checkout as work tree. So no configuration, hook, filter or
attribute of the user or of the checkout has a say (they could convert line ends or run programs), no lock is shared, and
paths always count from the root of the checkout.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from boostapr.patches.model import PatchFormat
from boostapr.patches.parse import Patch, parse_patch
from boostapr.patches.safety import Snapshot, refusal

_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tbare = false
\tautocrlf = false
\tfilemode = true
\tsymlinks = true
\tprotectNTFS = true
\tprotectHFS = true
[apply]
\twhitespace = nowarn
"""
# info/attributes wins over every .gitattributes file in the checkout.
_ATTRIBUTES = "* -text -eol -crlf -ident -filter -working-tree-encoding -whitespace\n"


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """`files` are the changed paths (old and new names, in order of the patch); empty if nothing was applied.

    `error` is one line for people; it names the line of the response or the file that stopped the patch.
    """

    applied: bool
    error: str
    files: tuple[str, ...]


def apply_patch(
    repo: Path | str, response: bytes | str | Patch, strict: bool = True, timeout_s: float | None = None
) -> ApplyResult:
    """Apply a response to the checkout at `repo` with plain `git apply` (no fuzz, no recount), all or nothing.

    strict: only a valid response is applied, byte for byte (evaluation). Otherwise a recoverable one is applied with its
    repairs made (training). A failed apply leaves the tree as it was. Nothing is ever written outside the checkout, into
    `.git`, through a symbolic link or into a submodule. Nothing is staged or committed.

    Raises:
        NotADirectoryError: `repo` is no directory.
        FileNotFoundError: git is not installed.
    """
    root = Path(repo)
    if not root.is_dir():
        raise NotADirectoryError(f"cannot apply a patch: {root} is not a directory")
    patch = response if isinstance(response, Patch) else parse_patch(response)
    if patch.format is not PatchFormat.VALID and (strict or patch.format is not PatchFormat.RECOVERABLE):
        where = f"line {patch.problem_line}: " if patch.problem_line else ""
        return ApplyResult(False, f"not a valid diff: {where}{patch.problem}", ())
    changes = patch.files
    reason = refusal(root, patch, changes)
    if reason:
        return ApplyResult(False, reason, ())
    paths = tuple(dict.fromkeys(p for change in changes for p in (change.old_path, change.new_path) if p is not None))
    snapshot = Snapshot(root, paths)
    done = False
    try:
        error = _git_apply(root, patch.diff, timeout_s)
        done = not error
    finally:
        if not done:
            snapshot.restore()
    return ApplyResult(done, error, paths if done else ())


def _git_apply(root: Path, diff: bytes, timeout_s: float | None) -> str:
    """The error of `git apply`, or an empty string."""
    git_dir = _git_dir(os.getpid())
    try:
        done = subprocess.run(
            ["git", f"--git-dir={git_dir}", f"--work-tree={root.absolute()}", "apply", "--whitespace=nowarn", "-"],
            input=diff,
            capture_output=True,
            cwd=root,
            env=_environment(os.environ.get("PATH", os.defpath)),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"git apply took more than {timeout_s} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "; ".join(line.removeprefix("error: ") for line in lines[:4]) or f"git apply ended with {done.returncode}"


@cache
def _environment(path: str) -> dict[str, str]:
    return {
        "PATH": path,
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }


@cache
def _git_dir(pid: int) -> str:
    """An empty repository of this process (`pid`: a forked child makes its own), removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="boostapr-git-")
    _KEPT.append(folder)
    root = Path(folder.name)
    for name in ("objects", "refs", "info"):
        (root / name).mkdir()
    (root / "HEAD").write_text("ref: refs/heads/none\n")
    (root / "config").write_text(_CONFIG)
    (root / "info" / "attributes").write_text(_ATTRIBUTES)
    return folder.name


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
