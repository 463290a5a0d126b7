"""apply_patch: the bytes that git gives, all or nothing, and nothing outside the checkout (issue 3, points 1 and 5)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from diff_strategies import changes, damaged, diff_options
from git_oracle import Scratch, git, read_tree, write_tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boostapr.patches import PatchFormat, apply_patch, parse_patch

EDIT = b"--- a/f.py\n+++ b/f.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
FILE = b"one\ntwo\nthree\n"


@pytest.fixture(scope="module")
def scratch() -> Iterator[Scratch]:
    made = Scratch()
    yield made
    made.close()


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file, link and folder below `root`, with mode and content."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(root))] = (mode, content)
    return found


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(change=changes(), options=diff_options, data=st.data())
def test_it_gives_the_bytes_that_git_gives(change, options, data: st.DataObject, scratch: Scratch) -> None:
    """Same tree, same response: plain git and apply_patch agree on success and on every byte; a failure changes nothing."""
    before, after = change
    diff = scratch.diff(before, after, *options)
    for response in (diff, data.draw(damaged(diff))):
        expected = scratch.apply(before, response)
        root = scratch.folder(before)
        untouched = everything(root)
        result = apply_patch(root, response)
        if parse_patch(response).format is PatchFormat.VALID:
            assert result.applied == (not isinstance(expected, str)), (result.error, expected)
        if result.applied:
            assert read_tree(root) == expected
        else:
            assert result.error and everything(root) == untouched


def test_a_recoverable_response_applies_only_when_asked(tmp_path: Path) -> None:
    """Evaluation is strict; training may make the listed repairs."""
    (tmp_path / "f.py").write_bytes(FILE)
    fenced = b"Here:\n```diff\n" + EDIT + b"```\n"
    strict = apply_patch(tmp_path, fenced)
    assert not strict.applied and "line 1" in strict.error and (tmp_path / "f.py").read_bytes() == FILE
    assert apply_patch(tmp_path, fenced, strict=False).files == ("f.py",)
    assert (tmp_path / "f.py").read_bytes() == FILE.replace(b"two", b"2")


def new_file(path: bytes) -> bytes:
    return b"--- /dev/null\n+++ b/" + path + b"\n@@ -0,0 +1 @@\n+owned\n"


OUTSIDE = {
    "parent": new_file(b"../owned"),
    "parent inside": new_file(b"sub/../../owned"),
    "git config": new_file(b".git/config"),
    "git hook": new_file(b".git/hooks/post-checkout"),
    "git in capitals": new_file(b".GIT/hooks/x"),
    "git of windows": new_file(b"git~1/x"),
    "git with dots": new_file(b".git. ./x"),
    "nested git": new_file(b"sub/.git/config"),
    "quoted parent": b'--- /dev/null\n+++ "b/..\\057owned"\n@@ -0,0 +1 @@\n+owned\n',
    "behind a link": new_file(b"link/owned"),
    "in a submodule": new_file(b"module/owned"),
    "in an empty submodule": new_file(b"empty/owned"),
    "new escaping link": b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+../outside\n\\ No newline at end of file\n",
    "new absolute link": b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n",
    "link, then through it": b"diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+sub\n\\ No newline at end of file\n" + new_file(b"l/owned"),
    "submodule pointer": b"diff --git a/module b/module\nnew file mode 160000\n--- /dev/null\n+++ b/module\n@@ -0,0 +1 @@\n+Subproject commit 1111111111111111111111111111111111111111\n",
    "rename out": b"diff --git a/f.py b/../f.py\nsimilarity index 100%\nrename from f.py\nrename to ../f.py\n",
    "rename into git": b"diff --git a/f.py b/.git/f.py\nsimilarity index 100%\nrename from f.py\nrename to .git/f.py\n",
    "file and folder": new_file(b"both") + new_file(b"both/inner"),
}  # fmt: skip


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("response", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_nothing_is_written_outside_the_checkout(response: bytes, strict: bool, tmp_path: Path) -> None:
    """Not above it, not in .git, not through a link, not in a submodule; the whole surroundings stay as they were."""
    root = tmp_path / "checkout"
    write_tree(
        root, {b"f.py": (False, FILE), b"sub/x": (False, b"x\n"), b"module/.git": (False, b"gitdir: elsewhere\n")}
    )
    (root / "empty").mkdir()
    (root / ".gitmodules").write_text('[submodule "e"]\n\tpath = empty\n\turl = x\n')
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to("../outside")
    git(root, "init", "-q")
    before = everything(tmp_path)
    result = apply_patch(root, response, strict=strict)
    assert not result.applied and result.error and everything(tmp_path) == before


def test_a_failure_after_writing_leaves_the_tree_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git wrote everything and then failed (a full disk, say): edits, new folders, deletions and modes are put back."""
    tools, root = tmp_path / "bin", tmp_path / "checkout"
    tools.mkdir()
    (tools / "git").write_text(f'#!/bin/sh\n{shutil.which("git")} "$@"\necho "error: disk full" >&2\nexit 1\n')
    (tools / "git").chmod(0o755)
    write_tree(root, {b"f.py": (True, FILE), b"old/gone": (False, b"x\n")})
    before = everything(root)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    deleted = b"diff --git a/old/gone b/old/gone\ndeleted file mode 100644\n--- a/old/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    result = apply_patch(root, EDIT + new_file(b"new/deep/x") + deleted)
    assert not result.applied and result.error == "disk full" and everything(root) == before


def test_time_limit_puts_the_tree_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A git that hangs is stopped, the error says so, the tree stays."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "git").write_text("#!/bin/sh\necho broken > f.py\nexec sleep 60\n")
    (tools / "git").chmod(0o755)
    root = tmp_path / "checkout"
    write_tree(root, {b"f.py": (False, FILE)})
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    result = apply_patch(root, EDIT, timeout_s=1.0)
    assert not result.applied and "1.0 s" in result.error and (root / "f.py").read_bytes() == FILE


def test_configuration_attributes_and_hooks_have_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout whose attributes convert line ends and run filters, and a user whose configuration does: bytes stay."""
    root = tmp_path / "checkout"
    write_tree(root, {b"f.py": (False, FILE), b"dos.py": (False, b"one\r\ntwo\r\nthree\r\n")})
    (root / ".gitattributes").write_text("* text=auto eol=crlf filter=evil working-tree-encoding=UTF-16 ident\n")
    git(root, "init", "-q")
    touched = tmp_path / "filter-ran"
    for key, value in {
        "core.autocrlf": "true",
        "filter.evil.clean": f"touch {touched}; cat",
        "apply.whitespace": "fix",
    }.items():
        git(root, "config", key, value)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[core]\n\tautocrlf = true\n[apply]\n\twhitespace = fix\n[include]\n\tpath = evil\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    dos = EDIT.replace(b"f.py", b"dos.py").replace(b" one\n-two\n+2\n three\n", b" one\r\n-two\r\n+2 \t\r\n three\r\n")
    assert apply_patch(root, EDIT + dos).applied
    assert (root / "f.py").read_bytes() == FILE.replace(b"two", b"2")
    assert (root / "dos.py").read_bytes() == b"one\r\n2 \t\r\nthree\r\n" and not touched.exists()


def test_a_checkout_below_another_repository_is_its_own_root(tmp_path: Path) -> None:
    """In a subfolder of a repository plain git would skip the file and report success."""
    git(tmp_path, "init", "-q")
    root = tmp_path / "deep" / "checkout"
    write_tree(root, {b"f.py": (False, FILE)})
    assert apply_patch(root, EDIT).applied and b"2\n" in (root / "f.py").read_bytes()


def test_a_hundred_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Copies of one repository, each with its own patch, from many threads."""
    for i in range(100):
        write_tree(tmp_path / str(i), {b"f.py": (False, FILE)})
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda i: apply_patch(tmp_path / str(i), EDIT.replace(b"+2", b"+%d" % i)), range(100)))
    assert all(result.applied for result in results)
    assert [(tmp_path / str(i) / "f.py").read_bytes() for i in range(100)] == [
        FILE.replace(b"two", b"%d" % i) for i in range(100)
    ]


def test_hard_linked_copies_are_not_changed_with_it(tmp_path: Path) -> None:
    """Checkouts made with hard links share inodes; git replaces a file instead of writing into it."""
    write_tree(tmp_path / "a", {b"f.py": (False, FILE)})
    (tmp_path / "b").mkdir()
    os.link(tmp_path / "a" / "f.py", tmp_path / "b" / "f.py")
    assert apply_patch(tmp_path / "a", EDIT).applied and (tmp_path / "b" / "f.py").read_bytes() == FILE


def test_a_missing_checkout_is_named(tmp_path: Path) -> None:
    """A wrong path is the caller's mistake, not the patch's."""
    with pytest.raises(NotADirectoryError, match="nowhere"):
        apply_patch(tmp_path / "nowhere", EDIT)
