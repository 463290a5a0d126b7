"""What a patch may touch, and putting a tree back as it was."""

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
    for change in changes:
        if _GITLINK in (change.old_mode & _TYPE, change.new_mode & _TYPE):
            return f"{change.path}: changes a submodule"
        for path in (change.old_path, change.new_path):
            if path is None:
                continue
            reason = _place(root, path, submodules)
            if reason:
                return f"{path}: {reason}"
        reason = _link(root, patch, change)
        if reason:
            return f"{change.path}: {reason}"
    return ""


def _place(root: Path, path: str, submodules: set[str]) -> str:
    """Why nothing may be written at `path`: a symbolic link or a repository lies on the way."""
    parts = path.split("/")
    here = os.fspath(root)
    for depth, part in enumerate(parts[:-1], start=1):
        here = f"{here}/{part}"
        try:
            mode = os.lstat(here).st_mode
        except OSError:
            return "lies in a submodule" if "/".join(parts[:depth]) in submodules else ""
        if stat.S_ISLNK(mode):
            return "lies behind a symbolic link"
        if os.path.lexists(f"{here}/.git") or "/".join(parts[:depth]) in submodules:
            return "lies in a submodule"
    return "is a submodule" if path in submodules else ""


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
    target: str | None = None
    mode = change.new_mode or change.old_mode
    if change.old_path is not None and not mode & _TYPE == _SYMLINK:
        try:
            mode = os.lstat(root / change.old_path).st_mode
        except OSError:
            return ""
    if mode & _TYPE != _SYMLINK or change.new_path is None:
        return ""
    if change.is_binary:
        return "a binary patch may not write a symbolic link"
    if change.hunks:
        for hunk in (patch.hunks[i] for i in change.hunks):
            for line in patch.response[hunk.body : hunk.end].split(b"\n"):
                if line.startswith((b"+", b" ")):
                    target = os.fsdecode(line[1:])
    elif change.old_path is not None:
        target = os.readlink(root / change.old_path) if os.path.islink(root / change.old_path) else None
    if target is None:
        return ""
    inside = os.path.normpath(os.path.join("/", os.path.dirname(change.new_path), target))
    depth = os.path.normpath(os.path.join(os.path.dirname(change.new_path), target))
    if target.startswith("/") or depth == ".." or depth.startswith("../") or inside.split("/")[1:2] == [".git"]:
        return "a symbolic link to a place outside the checkout"
    return ""


class Snapshot:
    """Bytes, modes and links at some paths of a tree, to put them back if applying fails half way."""

    def __init__(self, root: Path, paths: Iterable[str]) -> None:
        self._root = root
        self._kept: dict[str, tuple[int, bytes] | None] = {}
        self._folders: set[str] = set()
        for path in paths:
            self._kept[path] = self._read(path)
            folder = os.path.dirname(path)
            while folder and folder not in self._folders and (root / folder).is_dir():
                self._folders.add(folder)
                folder = os.path.dirname(folder)

    def _read(self, path: str) -> tuple[int, bytes] | None:
        full = self._root / path
        try:
            mode = os.lstat(full).st_mode
            if stat.S_ISLNK(mode):
                return mode, os.fsencode(os.readlink(full))
            return (mode, full.read_bytes()) if stat.S_ISREG(mode) else None
        except OSError:
            return None

    def restore(self) -> None:
        """Make the tree at these paths what it was."""
        for path, kept in self._kept.items():
            full = self._root / path
            if self._read(path) == kept:
                continue
            if full.is_symlink() or full.is_file():
                full.unlink()
            if kept is not None:
                mode, content = kept
                full.parent.mkdir(parents=True, exist_ok=True)
                if stat.S_ISLNK(mode):
                    os.symlink(os.fsdecode(content), full)
                else:
                    full.write_bytes(content)
                    full.chmod(stat.S_IMODE(mode))
        self._remove_new_folders()

    def _remove_new_folders(self) -> None:
        for path in self._kept:
            folder = os.path.dirname(path)
            while folder and folder not in self._folders:
                try:
                    (self._root / folder).rmdir()
                except OSError:
                    break
                folder = os.path.dirname(folder)
