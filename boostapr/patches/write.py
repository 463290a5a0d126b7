"""Writing unified diffs, byte for byte: git's header, hunks with three lines of context, "\\ No newline" where due."""

from __future__ import annotations

import difflib
import os

from boostapr.patches.names import quote

_CONTEXT = 3
_NO_NEWLINE = b"\\ No newline at end of file\n"


def split_lines(text: bytes) -> list[bytes]:
    """Lines with their newline; they end at LF only (CR, form feed and U+2028 are content)."""
    lines = text.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def file_diff(path: str, old: bytes | None, new: bytes | None) -> bytes:
    """The change of one file as a diff that git applies; None means that there is no file. Empty if nothing changes."""
    if old == new:
        return b""
    name = os.fsencode(path)
    quoted = [quote(prefix + name) for prefix in (b"a/", b"b/")]
    header = b"diff --git " + b" ".join(quoted) + b"\n"
    if old is None:
        header += b"new file mode 100644\n"
    if new is None:
        header += b"deleted file mode 100644\n"
    hunks = _hunks(split_lines(old or b""), split_lines(new or b""))
    if not hunks:
        return header
    # As git does: a tab ends a name with a space in it.
    names = [text if text.startswith(b'"') or b" " not in text else text + b"\t" for text in quoted]
    first = b"/dev/null" if old is None else names[0]
    second = b"/dev/null" if new is None else names[1]
    return header + b"--- " + first + b"\n+++ " + second + b"\n" + hunks


def _hunks(old: list[bytes], new: list[bytes]) -> bytes:
    parts = []
    for group in _groups(old, new):
        old_from, old_to = group[0][1], group[-1][2]
        new_from, new_to = group[0][3], group[-1][4]
        parts.append(b"@@ -%s +%s @@\n" % (_range(old_from, old_to), _range(new_from, new_to)))
        for tag, i, j, k, m in group:
            if tag == "equal":
                parts += [_line(b" ", line) for line in old[i:j]]
            else:
                parts += [_line(b"-", line) for line in old[i:j]]
                parts += [_line(b"+", line) for line in new[k:m]]
    return b"".join(parts)


def _groups(old: list[bytes], new: list[bytes]) -> list[list[tuple[str, int, int, int, int]]]:
    """Opcodes grouped into hunks. What both ends share is cut off first: matching is quadratic at worst."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    stop = 0
    while stop < min(len(old), len(new)) - start and old[-1 - stop] == new[-1 - stop]:
        stop += 1
    matcher = difflib.SequenceMatcher(None, old[start : len(old) - stop], new[start : len(new) - stop])
    codes = [(tag, i + start, j + start, k + start, m + start) for tag, i, j, k, m in matcher.get_opcodes()]
    codes = [("equal", 0, start, 0, start), *codes, ("equal", len(old) - stop, len(old), len(new) - stop, len(new))]
    groups: list[list[tuple[str, int, int, int, int]]] = [[]]
    for index, (tag, i, j, k, m) in enumerate(codes):
        if tag != "equal":
            groups[-1].append((tag, i, j, k, m))
            continue
        lead, trail = index > 0, index < len(codes) - 1
        if lead and trail and j - i <= 2 * _CONTEXT:
            if j > i:
                groups[-1].append((tag, i, j, k, m))
            continue
        if lead and j > i:
            groups[-1].append((tag, i, min(i + _CONTEXT, j), k, min(k + _CONTEXT, m)))
        if trail:
            if groups[-1]:
                groups.append([])
            if j > i:
                groups[-1].append((tag, max(j - _CONTEXT, i), j, max(m - _CONTEXT, k), m))
    return [group for group in groups if any(code[0] != "equal" for code in group)]


def _range(start: int, stop: int) -> bytes:
    """A range of a hunk header: an empty one names the line before it."""
    count = stop - start
    return b"%d,%d" % (start + 1 if count else start, count)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n" + _NO_NEWLINE
