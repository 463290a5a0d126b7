"""Hypothesis strategies: trees of nasty files, edits of them, and damage to diffs."""

from __future__ import annotations

import itertools
import re

from hypothesis import strategies as st

NASTY_LINES = [
    b"",
    b" ",
    b"x",
    b"x = 1",
    b"    return x",
    b"\treturn y",
    b"-- a/x",
    b"++ b/x",
    b"- item",
    b"+ item",
    b"@@ -1,2 +1,2 @@",
    b"@@ -1 +1 @@ def f():",
    b"-- ",
    b"diff --git a/x b/x",
    b"\\ No newline at end of file",
    b"one\x0ctwo",
    "line\u2028separator".encode(),
    b"carriage\rreturn",
    b"windows\r",
    b"\xff\xfe not utf-8",
    b"\x85\x1c\x1d\x1e",
    "\U0001f600 e\u0301 \u4e2d\u6587".encode(),
    b"```",
    b"x" * 300,
]

lines = st.one_of(
    st.sampled_from(NASTY_LINES), st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"").replace(b"\0", b""))
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A text file of 0 to 25 lines, with or without a newline at its end."""
    body = b"".join(line + b"\n" for line in draw(st.lists(lines, max_size=25)))
    return body[:-1] if body and draw(st.integers(0, 3)) == 0 else body


@st.composite
def edits(draw: st.DrawFn, text: bytes) -> bytes:
    """`text` with a few lines added, removed, replaced or moved, perhaps with its last newline changed."""
    body = text.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        kind = draw(st.sampled_from(["add", "remove", "replace", "move"]))
        new = draw(st.lists(lines, min_size=1, max_size=3))
        if kind == "add":
            body[at:at] = new
        elif kind == "remove":
            del body[at : at + draw(st.integers(1, 4))]
        elif kind == "replace":
            body[at : at + draw(st.integers(1, 3))] = new
        elif body:
            body.append(body.pop(min(at, len(body) - 1)))
    changed = b"\n".join(body)
    if draw(st.integers(0, 4)) == 0:
        changed = changed[:-1] if changed.endswith(b"\n") else changed + b"\n"
    return changed


NAMES = [
    b"x.py",
    b"with space.py",
    b'quo"te.txt',
    b"tab\there",
    b"back\\slash",
    "caf\u00e9.md".encode(),
    b"a",
    b"b",
    b"\xff.bin",
]
paths = st.one_of(
    st.sampled_from([b"a.py", b"src/b.py", b"a/x", b"b/x"]),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join),
)


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[bytes, tuple[bool, bytes]], dict[bytes, tuple[bool, bytes]]]:
    """(tree before, tree after): edits, new, empty, deleted and renamed files, mode changes, binary files."""
    before: dict[bytes, tuple[bool, bytes]] = {}
    after: dict[bytes, tuple[bool, bytes]] = {}
    taken: set[bytes] = set()

    def free(path: bytes) -> bool:
        parts = path.split(b"/")
        prefixes = {b"/".join(parts[:i]) for i in range(1, len(parts) + 1)}
        return not (prefixes & taken) and not any(t.startswith(path + b"/") for t in taken)

    for path in draw(st.lists(paths, min_size=1, max_size=8, unique=True)):
        if not free(path):
            continue
        taken.add(path)
        mode = draw(st.booleans())
        old = draw(texts())
        kind = draw(st.sampled_from(["edit", "edit", "edit", "new", "delete", "rename", "mode", "binary", "empty"]))
        if kind == "binary":
            old = b"\0" + draw(st.binary(max_size=80))
        if kind not in ("new", "empty"):
            before[path] = (mode, old)
        if kind == "edit":
            after[path] = (mode if draw(st.integers(0, 4)) else not mode, draw(edits(old)))
        elif kind == "new":
            after[path] = (mode, old)
        elif kind == "empty":
            after[path] = (mode, b"")
        elif kind == "mode":
            after[path] = (not mode, old)
        elif kind == "binary":
            after[path] = (mode, b"\0" + draw(st.binary(max_size=80)))
        elif kind == "rename":
            other = path + draw(st.sampled_from([b".new", b" moved", b'"']))
            if not free(other):
                del before[path]
                continue
            taken.add(other)
            before[path] = (mode, old + b"a line\n" * 6)
            after[other] = (mode, draw(st.sampled_from([old, old + b"one more\n"])) + b"a line\n" * 6)
    return before, after


diff_options = st.sampled_from(
    [("--binary", "-M"), ("--binary", "-M", "-U0"), ("--binary", "-U1"), ("--binary", "-U5", "-C")]
)

PROSE = [
    b"Here is the fix:\n\n",
    b"Sure!\n",
    b"```diff\n",
    b"```\n",
    b"\n",
    b"- first\n- second\n",
    b"   \n",
    b"--- \n",
    b"-- \n2.39.5\n",
]


def recounted(diff: bytes, which: int, number: bytes) -> bytes:
    """The diff with one of the numbers in its hunk headers changed."""
    seen = itertools.count()
    return re.sub(rb"(?m)(?<=[-+,])\d+(?=[, ].*@@)", lambda m: number if next(seen) == which else m[0], diff)


@st.composite
def damaged(draw: st.DrawFn, diff: bytes) -> bytes:
    """A diff that something happened to: what models and copy-paste do."""
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(
            st.sampled_from(
                ["cut", "drop", "double", "counts", "around", "between", "crlf", "newline", "byte", "twice", "prefix"]
            )
        )
        rows = diff.split(b"\n")
        at = draw(st.integers(0, max(len(rows) - 1, 0)))
        if kind == "cut":
            diff = diff[: draw(st.integers(0, len(diff)))]
        elif kind == "drop":
            diff = b"\n".join(rows[:at] + rows[at + 1 :])
        elif kind == "double":
            diff = b"\n".join([*rows[: at + 1], *rows[at:]])
        elif kind == "counts":
            number = draw(st.sampled_from([b"0", b"1", b"2", b"3", b"9", b"12345678901234567890123"]))
            which = draw(st.integers(0, 3))
            diff = recounted(diff, which, number)
        elif kind == "around":
            diff = draw(st.sampled_from([b"", *PROSE])) + diff + draw(st.sampled_from(PROSE))
        elif kind == "between":
            diff = b"\n".join([*rows[:at], draw(st.sampled_from(PROSE)).rstrip(b"\n"), *rows[at:]])
        elif kind == "crlf":
            diff = diff.replace(b"\n", b"\r\n")
        elif kind == "newline":
            diff = diff.rstrip(b"\n")
        elif kind == "byte" and diff:
            place = draw(st.integers(0, len(diff) - 1))
            diff = (
                diff[:place]
                + draw(st.sampled_from([b"", b" ", b"-", b"+", b"\n", b"\\", b"@", b"a"]))
                + diff[place + 1 :]
            )
        elif kind == "twice":
            diff = diff + draw(st.sampled_from([b"", b"\n"])) + diff
        elif kind == "prefix":
            diff = re.sub(rb"(?m)^(---|\+\+\+) [ab]/", rb"\1 ", diff)
    return diff
