"""File headers of a diff, read exactly as git's apply.c (2.39) reads them.

Where git would accept a header that cannot apply to any tree, `HeaderError` is raised. One rule to know: a plain diff whose
names have no slash switches off prefix stripping for the rest of the input (`Strip`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from boostapr.patches.names import (
    default_name,
    find_name,
    header_names,
    is_dev_null,
    is_epoch,
    is_safe_path,
    lacks_prefix,
    written_name,
)

_TYPE_MASK = 0o170000
_MODE = re.compile(rb"[ \t]*([0-7]+)[ \t\n\r]")
_INDEX = re.compile(rb"[^.\n]{0,40}\.\.[^ \n]{0,40}( )?")
# The headers that nearly every diff has: one plain name, a/ and b/ prefixes. The look-ahead is a hunk.
_PLAIN = rb"(\w[\w.+-]{0,200}+(?:/\w[\w.+-]{0,200}+){0,15}+)"
SIMPLE = re.compile(
    rb"(?:diff --git a/" + _PLAIN + rb" b/\1\n(?:index [0-9a-f]{4,64}\.\.[0-9a-f]{4,64}(?: 100(?:644|755))?\n)?"
    rb"--- a/\1\n\+\+\+ b/\1\n|--- a/" + _PLAIN + rb"\n\+\+\+ b/\2\n)(?=@@ -)"
)


class HeaderError(ValueError):
    """A file header that git refuses, or that no tree could ever satisfy."""


@dataclass(slots=True)
class Header:
    """A file header: names as git reads them (None is /dev/null), modes (0: unstated), and where its hunks begin."""

    end: int
    old: bytes | None = None
    new: bytes | None = None
    old_mode: int = 0
    new_mode: int = 0
    is_new: bool = False
    is_delete: bool = False
    is_rename: bool = False
    is_copy: bool = False
    is_git: bool = False
    oid: tuple[bytes, bytes] | None = None
    lacks_prefix: bool = False

    @property
    def changes_metadata(self) -> bool:
        modes = self.old_mode and self.new_mode and self.old_mode != self.new_mode
        return bool(self.is_new or self.is_delete or self.is_rename or self.is_copy or modes)


class Strip:
    """git's -p value. It starts at 1; the first plain diff whose names have no slash sets it to 0 for good."""

    __slots__ = ("known", "value")

    def __init__(self, value: int = 1, known: bool = False) -> None:
        self.value = value
        self.known = known

    def guess(self, first: bytes, second: bytes) -> None:
        if self.known:
            return
        values = []
        for text in (first, second):
            name = None if is_dev_null(text) else find_name(text, 0, traditional=True)
            values.append(-1 if name is None or b"/" in name else 0)
        if values[0] < 0:
            values[0] = values[1]
        if values[0] == values[1] == 0:
            self.value, self.known = 0, True


def read_traditional(data: bytes, start: int, strip: Strip) -> Header:
    """Read a `---`/`+++` pair at `start` that no `diff --git` line announces; updates `strip` as git does."""
    middle = data.index(b"\n", start) + 1
    end = data.index(b"\n", middle) + 1
    first, second = data[start + 4 : middle - 1], data[middle + 4 : end - 1]
    strip.guess(first, second)
    header = Header(end)
    nulls = is_dev_null(first), is_dev_null(second)
    if nulls[0]:
        header.is_new = True
        header.new = name = find_name(second, strip.value, traditional=True)
    elif nulls[1]:
        header.is_delete = True
        header.old = name = find_name(first, strip.value, traditional=True)
    else:
        default = find_name(first, strip.value, traditional=True)
        name = find_name(second, strip.value, default, traditional=True)
        header.is_new = is_epoch(first)
        header.is_delete = not header.is_new and is_epoch(second)
        header.old = None if header.is_new else name
        header.new = None if header.is_delete else name
    if name is None:
        raise HeaderError("no file name after --- and +++")
    if strip.value == 1:
        old, new = (
            None if null else written_name(text, True) for null, text in zip(nulls, (first, second), strict=True)
        )
        header.lacks_prefix = lacks_prefix(old, new)
    _check(header)
    return header


def read_git(data: bytes, start: int, strip: Strip) -> Header:
    """Read a `diff --git` header at `start` with its extended lines; raises HeaderError where git does."""
    end = data.find(b"\n", start) + 1 or len(data)
    first_line = data[start : end - 1]
    default = default_name(first_line, strip.value)
    header = Header(end, is_git=True)
    names: list[bytes | None] = []
    while True:
        stop = data.find(b"\n", header.end)
        if stop < 0:
            break
        line = data[header.end : stop]
        if not _extended_line(line, header, default, strip.value, names):
            break
        if header.is_new + header.is_delete + header.is_rename + header.is_copy > 1:
            raise HeaderError("a file cannot be new, deleted, renamed and copied at once")
        header.end = stop + 1
    if header.end == end:
        raise HeaderError("a diff --git line with nothing after it")
    if header.old is None and header.new is None:
        if default is None:
            raise HeaderError("the names on the diff --git line cannot be told apart or lack a/ and b/")
        header.old = header.new = default
    if (header.new is None and not header.is_delete) or (header.old is None and not header.is_new):
        raise HeaderError("the header names only one side of the change")
    if header.is_delete:
        header.new = None
    if header.is_new:
        header.old = None
    if strip.value == 1:
        pair = header_names(first_line)
        moved = header.is_rename or header.is_copy
        pairs = [pair, (names[0], names[1]) if len(names) == 2 else None]
        header.lacks_prefix = any(lacks_prefix(*p, moved) for p in pairs if p is not None)
    _check(header)
    return header


def _extended_line(line: bytes, header: Header, default: bytes | None, strip: int, names: list[bytes | None]) -> bool:
    """Take one header line into `header`; False if it does not belong to a header."""
    if line.startswith(b"@@ -"):
        return False
    if line.startswith(b"--- "):
        header.old = _verify(line[4:], header.is_new, header.old, strip)
        names.append(None if is_dev_null(line[4:]) else written_name(line[4:], False))
    elif line.startswith(b"+++ "):
        header.new = _verify(line[4:], header.is_delete, header.new, strip)
        names.append(None if is_dev_null(line[4:]) else written_name(line[4:], False))
    elif line.startswith(b"old mode "):
        header.old_mode = _mode(line[9:])
    elif line.startswith(b"new mode "):
        header.new_mode = _mode(line[9:])
    elif line.startswith(b"deleted file mode "):
        header.is_delete, header.old, header.old_mode = True, default, _mode(line[18:])
    elif line.startswith(b"new file mode "):
        header.is_new, header.new, header.new_mode = True, default, _mode(line[14:])
    elif line.startswith((b"copy from ", b"copy to ", b"rename old ", b"rename new ", b"rename from ", b"rename to ")):
        words = line.split(b" ", 2)
        name = find_name(words[2], max(strip - 1, 0), ends_at_tab=False)
        header.is_copy |= words[0] == b"copy"
        header.is_rename |= words[0] == b"rename"
        if words[1] in (b"from", b"old"):
            header.old = name
        else:
            header.new = name
    elif line.startswith(b"index "):
        found = _INDEX.match(line, 6)
        if found is not None:
            old, _, new = found[0].rstrip(b" ").partition(b"..")
            header.oid = (old, new)
            if found[1]:
                header.old_mode = _mode(line[found.end() :])
    else:
        return line.startswith((b"similarity index ", b"dissimilarity index "))
    return True


def _verify(text: bytes, is_null: bool, name: bytes | None, strip: int) -> bytes | None:
    if name is None and not is_null:
        return find_name(text, strip)
    if name is not None:
        if is_null:
            raise HeaderError("a name where /dev/null is expected")
        if find_name(text, strip) != name:
            raise HeaderError("the names in the file header disagree")
        return name
    if not is_dev_null(text):
        raise HeaderError("expected /dev/null")
    return None


def _mode(text: bytes) -> int:
    found = _MODE.match(text + b"\n")
    if found is None:
        raise HeaderError("unreadable file mode")
    return int(found[1], 8) & 0xFFFFFFFF


def _check(header: Header) -> None:
    """Refuse what git parses but no tree can satisfy."""
    for path in (header.old, header.new):
        if path is not None and not is_safe_path(path):
            raise HeaderError(f"unsafe path {path.decode('utf-8', 'backslashreplace')!r}")
    if header.old_mode and header.new_mode and (header.old_mode ^ header.new_mode) & _TYPE_MASK:
        raise HeaderError("a file cannot become a link or the reverse in one section")
