"""git as the oracle: real diffs of real trees, and what plain `git apply` says and does."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

# A file: (is it executable, content). A tree: path -> file.
Tree = Mapping[bytes, tuple[bool, bytes]]

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@example.org",
    "GIT_COMMITTER_NAME": "t",
    "GIT_COMMITTER_EMAIL": "t@example.org",
}


def git(folder: Path, *arguments: str, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder` without anybody's configuration."""
    return subprocess.run(
        ["git", *arguments], cwd=folder, input=stdin, capture_output=True, env=ENVIRONMENT, check=check
    )


def write_tree(root: Path, tree: Tree) -> None:
    for path, (executable, content) in tree.items():
        full = root / os.fsdecode(path)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content)
        full.chmod(0o755 if executable else 0o644)


def read_tree(root: Path) -> dict[bytes, tuple[bool, bytes]]:
    """Every file under `root` outside `.git`."""
    tree = {}
    for full in root.rglob("*"):
        inside = full.relative_to(root)
        if full.is_file() and inside.parts[0] != ".git":
            tree[os.fsencode(inside)] = (bool(full.stat().st_mode & 0o100), full.read_bytes())
    return tree


class Scratch:
    """A throw-away repository to make diffs in, and folders to apply them in."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="patches-test-"))
        self.repo = self.root / "repo"
        self.repo.mkdir()
        git(self.repo, "init", "-q")
        git(self.repo, "config", "core.autocrlf", "false")
        self._count = 0

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def tree_id(self, tree: Tree) -> str:
        for entry in self.repo.iterdir():
            if entry.name != ".git":
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        write_tree(self.repo, tree)
        git(self.repo, "add", "-A", "-f")
        return git(self.repo, "write-tree").stdout.decode().strip()

    def diff(self, before: Tree, after: Tree, *options: str) -> bytes:
        """`git diff` between two trees."""
        ids = self.tree_id(before), self.tree_id(after)
        return git(self.repo, "diff", *options, *ids).stdout

    def folder(self, tree: Tree) -> Path:
        """A fresh folder that holds `tree` (no repository)."""
        self._count += 1
        root = self.root / f"tree{self._count}"
        root.mkdir()
        write_tree(root, tree)
        return root

    def numstat(self, diff: bytes) -> list[tuple[int, int, bytes]] | None:
        """(added, removed, path) per file section as git counts them, -1 for binary ones; None if git does not parse it."""
        done = git(self.root, "apply", "--numstat", "-z", "-", stdin=diff, check=False)
        if done.returncode:
            return None
        rows = []
        for row in done.stdout.split(b"\0")[:-1]:
            added, removed, path = row.split(b"\t", 2)
            rows.append((-1 if added == b"-" else int(added), -1 if removed == b"-" else int(removed), path))
        return rows

    def apply(self, tree: Tree, diff: bytes, *options: str) -> dict[bytes, tuple[bool, bytes]] | str:
        """What plain `git apply` makes of `tree`, or its error."""
        root = self.folder(tree)
        done = git(root, "apply", *options, "-", stdin=diff, check=False)
        return done.stderr.decode("utf-8", "replace") if done.returncode else read_tree(root)
