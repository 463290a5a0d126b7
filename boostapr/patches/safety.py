"""What a patch may touch in a checkout, and putting a tree back as it was."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from boostapr.patches.model import FileChange
from boostapr.patches.parse import Patch

_SYMLINK, _GITLINK, _TYPE = 0o120000, 0o160000, 0o170000


def refusal(root: Path, patch: Patch, changes: Sequence[FileChange]) -> str:
    """Why the patch must not be applied to the checkout at `root`, or an empty string.

    Unsafe names (absolute, `..`, `.git`) never get here: a patch with such a name is malformed.
    """
    submodules = _submodules(root)
    checked: set[str] = set()
    for change in changes:
        if _GITLINK in (change.old_mode & _TYPE, change.new_mode & _TYPE):
            return f"{change.path}: changes a submodule"
        for path in {change.old_path, change.new_path} - {None}:
            reason = _place(root, str(path), submodules, checked)
            if reason:
                return f"{path}: {reason}"
        reason = _link(root, patch, change)
        if reason:
            return f"{change.path}: {reason}"
    return ""


def _place(root: Path, path: str, submodules: set[str], checked: set[str]) -> str:
    """Why nothing may be written at `path`: a symbolic link or a repository lies on the way. `checked`: good folders."""
    if path in submodules:
        return "is a submodule"
    end = path.find("/")
    while end >= 0:
        folder = path[:end]
        end = path.find("/", end + 1)
        if folder in checked:
            continue
        if folder in submodules:
            return "lies in a submodule"
        try:
            mode = os.lstat(f"{root}/{folder}").st_mode
        except OSError:
            return ""
        if stat.S_ISLNK(mode):
            return "lies behind a symbolic link"
        try:
            os.lstat(f"{root}/{folder}/.git")
        except OSError:
            checked.add(folder)
        else:
            return "lies in a submodule"
    return ""


def _submodules(root: Path) -> set[str]:
    """Paths of the submodules that `.gitmodules` names (an uninitialised one is an empty folder without `.git`)."""
    try:
        lines = (root / ".gitmodules").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return set()
    pairs = (line.partition("=") for line in lines)
    return {value.strip().strip('"').rstrip("/") for key, _, value in pairs if key.strip() == "path"}


def _link(root: Path, patch: Patch, change: FileChange) -> str:
    """Why a symbolic link may not be made or changed: its target is out of the checkout."""
    if change.new_path is None:
        return ""
    mode = change.new_mode or change.old_mode
    if change.old_path is not None and mode & _TYPE != _SYMLINK:
        try:
            mode = os.lstat(f"{root}/{change.old_path}").st_mode
        except OSError:
            return ""
    if mode & _TYPE != _SYMLINK:
        return ""
    if change.is_binary:
        return "a binary patch may not write a symbolic link"
    targets = [
        os.fsdecode(line[1:])
        for hunk in (patch.hunks[i] for i in change.hunks)
        for line in patch.response[hunk.body : hunk.end].split(b"\n")
        if line.startswith((b"+", b" "))
    ]
    if not change.hunks and change.old_path is not None and (root / change.old_path).is_symlink():
        targets = [os.fspath((root / change.old_path).readlink())]
    for target in targets:
        if target.startswith("/") or _leaves(change.new_path.split("/")[:-1] + target.split("/")):
            return "a symbolic link to a place outside the checkout or in .git"
    return ""


def _leaves(parts: Sequence[str]) -> bool:
    """Whether a path, followed part by part from the root of the checkout, leads out of it or into `.git`."""
    here: list[str] = []
    for part in parts:
        if part == "..":
            if not here:
                return True
            here.pop()
        elif part not in ("", "."):
            here.append(part)
    return here[:1] == [".git"]


class Snapshot:
    """Bytes, modes and links at some paths of a tree, to put them back if applying fails half way."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self._root = root
        self._kept = {path: _read(root / path) for path in paths}
        self._missing: set[Path] = set()
        for path in self._kept:
            folder = (root / path).parent
            while folder != root and folder not in self._missing and not folder.is_dir():
                self._missing.add(folder)
                folder = folder.parent

    def restore(self) -> None:
        """Make the tree at these paths what it was."""
        for path, kept in self._kept.items():
            full = self._root / path
            if _read(full) == kept:
                continue
            if full.is_symlink() or full.is_file():
                full.unlink()
            if kept is not None:
                mode, content = kept
                full.parent.mkdir(parents=True, exist_ok=True)
                if stat.S_ISLNK(mode):
                    full.symlink_to(os.fsdecode(content))
                else:
                    full.write_bytes(content)
                    full.chmod(stat.S_IMODE(mode))
        for folder in sorted(self._missing, key=lambda missing: len(missing.parts), reverse=True):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()


def _read(path: Path) -> tuple[int, bytes] | None:
    """(mode, content or link target), or None if there is no file or link."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return mode, os.fsencode(path.readlink())
        return (mode, path.read_bytes()) if stat.S_ISREG(mode) else None
    except OSError:
        return None
