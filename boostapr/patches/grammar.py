"""The strict grammar: a diff that `git apply` parses whole, with nothing in it that git would skip.

`scan` walks the bytes once. Inside a hunk it moves by runs of lines (context, edits), found by one regular expression
search and counted by `bytes.count`, so the cost per line is that of a memory scan; odd hunks are read line by line.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from typing import TypeAlias, cast

from boostapr.patches.binary import binary_end
from boostapr.patches.headers import SIMPLE, Header, HeaderError, Strip, read_git, read_traditional
from boostapr.patches.model import FILE_WIDTH, Columns, Tables

WHITE = b" \t\n\r\x0b\x0c"
HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*\n")
# Context, removed lines, added lines, context; the second form goes on where the first one ended.
# They match anything, if only the empty string.
_Matcher: TypeAlias = "Callable[[bytes, int], re.Match[bytes]]"
FIRST_BLOCK = cast(_Matcher, re.compile(rb"((?: .*\n|\n)*+)((?:-.*\n)*+)((?:\+.*\n)*+)(?: .*\n|\n)*+").match)
NEXT_BLOCK = cast(_Matcher, re.compile(rb"((?:-.*\n)*+)((?:\+.*\n)*+)(?: .*\n|\n)*+").match)
_MAX_NUMBER = 2**30
MAX_BYTES = 2**30  # so offsets and line numbers fit in 32 bits
_SMALL = {b"%d" % n: n for n in range(2000)}  # a look-up takes half the time of int()
# From this length on it is cheaper to jump from newline to newline than to let a regular expression walk there.
_LONG_LINE = 256
_FLUSH = 1 << 12
_BINARY_STUB = re.compile(rb"(?:Binary f|F)iles [^\n]* differ\n")
_FULL_OID = re.compile(rb"[0-9a-f]{40}")
NAMES_TOOL = re.compile(rb"(?:diff (?!--git )-[^\n]*\n|Index: [^\n]*\n(?:=+\n)?)")


class Refused(Exception):
    """Why the bytes are not a valid diff, and where. `at` is a byte offset."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


def counts(match: re.Match[bytes]) -> tuple[int, int, int, int]:
    """(old start, old count, new start, new count) of a hunk header; a missing count is 1. Absurd numbers are cut to
    2**30, which no file reaches."""
    old, old_count, new, new_count = match.groups(b"1")
    try:
        return _SMALL[old], _SMALL[old_count], _SMALL[new], _SMALL[new_count]
    except KeyError:
        cut = [
            min(int(digits), _MAX_NUMBER) if len(digits) < 19 else _MAX_NUMBER
            for digits in (old, old_count, new, new_count)
        ]
        return cut[0], cut[1], cut[2], cut[3]


def scan(data: bytes) -> Tables:
    """Parse a whole diff. Raises Refused unless it is valid in the sense of PatchFormat.VALID."""
    if len(data) >= MAX_BYTES:
        raise Refused("more than git reads (1 GiB)", 0)
    rows = Rows()
    tail = len(data.rstrip(WHITE))
    strip = Strip()
    position = count = hunk_index = 0
    names: list[bytes | Header] = []
    while position < tail:
        start = position
        simple = SIMPLE.match(data, position) if strip.value else None
        if simple is not None:
            position = simple.end()
            header = None
            names.append(simple[simple.lastindex or 1])
        else:
            header = read_header(data, position, strip)
            if data.find(b"\r\n", start, header.end) >= 0:
                raise Refused("CRLF line ends in a file header", start)
            if header.lacks_prefix:
                raise Refused("a path lacks its a/ or b/ prefix", position)
            names.append(header)
            position = header.end
        body, first_hunk, old_total, new_total = position, hunk_index, 0, 0
        while (match := HUNK.match(data, position)) is not None:
            numbers = counts(match)
            begin = match.end()
            end = scan_hunk(data, begin, numbers, count, hunk_index, rows)
            rows.hunks += (count, position, begin, end, *numbers)
            if len(rows.hunks) > _FLUSH:
                rows.move()
            hunk_index += 1
            old_total += numbers[1]
            new_total += numbers[3]
            position = end
        if data.startswith(b"@@ -", position):
            raise Refused("unreadable hunk header", position)
        if header is not None:
            if header.is_new and old_total:
                raise Refused("a new file cannot have old lines", start)
            if header.is_delete and new_total:
                raise Refused("a deleted file cannot have new lines", start)
            if hunk_index == first_hunk:
                position = _without_hunks(data, header)
        rows.files += (start, body, position, strip.value, first_hunk)
        count += 1
    if not count:
        raise Refused("no file header", 0)
    tables = rows.finish()
    if count > 1:
        _check_files(names, tables)
    return tables


class Rows:
    """Rows of the tables as they are found: in lists, which are quick, moved to arrays, which are small, as they grow."""

    __slots__ = ("files", "hunks", "moved", "spans")

    def __init__(self) -> None:
        self.files: list[int] = []
        self.hunks: list[int] = []
        self.spans: list[int] = []
        self.moved: Tables | None = None

    def move(self) -> array[int]:
        """Move all rows to arrays; returns that of the spans."""
        if self.moved is None:
            self.moved = Tables(array("i"), array("i"), array("i"))
        self.moved.files.extend(self.files)
        self.moved.hunks.extend(self.hunks)
        self.moved.spans.extend(self.spans)
        self.files.clear()
        self.hunks.clear()
        self.spans.clear()
        assert isinstance(self.moved.spans, array)
        return self.moved.spans

    def finish(self) -> Tables:
        if self.moved is None:
            return Tables(self.files, self.hunks, self.spans)
        self.move()
        return self.moved


def read_header(data: bytes, start: int, strip: Strip) -> Header:
    """The file header at `start`, or Refused if there is none that git reads."""
    while (tool := NAMES_TOOL.match(data, start)) is not None:
        start = tool.end()
    try:
        if data.startswith(b"diff --git ", start):
            return read_git(data, start, strip)
        if data.startswith(b"--- ", start):
            second = data.find(b"\n", start) + 1
            third = data.find(b"\n", second) + 1
            if second and data.startswith(b"+++ ", second) and third and data.startswith(b"@@ -", third):
                return read_traditional(data, start, strip)
    except HeaderError as error:
        raise Refused(str(error), start) from None
    if data[start : start + 1] in (b"+", b"-"):
        raise Refused("edits outside the line counts of a hunk", start)
    raise Refused("text that is not part of a diff", start)


def scan_hunk(data: bytes, start: int, numbers: tuple[int, int, int, int], file: int, hunk: int, rows: Rows) -> int:
    """Read the lines of one hunk from `start`, append its spans, return the offset after it. Raises Refused.

    numbers: old start, old count, new start, new count of its header.
    """
    old, old_count, new, new_count = numbers
    if data.find(b"\n", start) - start < _LONG_LINE:
        if not old_count:
            old += 1
        if not new_count:
            new += 1
        old_end, new_end = old + old_count, new + new_count
        spans = rows.spans
        before = len(spans)
        block = FIRST_BLOCK(data, start)
        position, minus, plus, end = block.end(1), block.end(2), block.end(3), block.end()
        if position > start:
            lines = data.count(b"\n", start, position)
            old += lines
            new += lines
        # Each turn: an edit run at `position` (removed lines up to `minus`, added ones up to `plus`), context up to `end`.
        while plus > position:
            first_old, first_new = old, new
            first = position
            while True:
                if minus > position:
                    old += data.count(b"\n", position, minus)
                if plus > minus:
                    new += data.count(b"\n", minus, plus)
                if end > plus or (old >= old_end and new >= new_end):
                    break
                position = plus
                block = NEXT_BLOCK(data, position)
                minus, plus, end = block.end(1), block.end(2), block.end()
                if plus == position:
                    break
            spans += (file, hunk, first, plus, first_old, old - first_old, first_new, new - first_new)
            if end > plus:
                lines = data.count(b"\n", plus, end)
                old += lines
                new += lines
            position = end
            if (old >= old_end and new >= new_end) or len(spans) > _FLUSH:
                break
            block = NEXT_BLOCK(data, position)
            minus, plus, end = block.end(1), block.end(2), block.end()
        if old == old_end and new == new_end and len(spans) > before:
            return _after_marker(data, position) if data.startswith(b"\\", position) else position
        del spans[before:]
    return _hunk_by_line(data, start, numbers, file, hunk, rows.move())


def _after_marker(data: bytes, start: int) -> int:
    """The offset after a "\\ No newline" line that follows a complete hunk (git overlooks one that is all that is left)."""
    return (
        data.find(b"\n", start) + 1 or len(data) if len(data) - start > 12 and data.startswith(b"\\ ", start) else start
    )


def _hunk_by_line(
    data: bytes, begin: int, numbers: tuple[int, int, int, int], file: int, hunk: int, spans: array[int]
) -> int:
    """`scan_hunk` for hunks with "\\ No newline" lines, very long lines, or lines that go on beyond the counts."""
    old, old_left, new, new_left = numbers
    old, new, start, before = old + (not old_left), new + (not new_left), begin, len(spans)
    span_start = span_end = old_first = new_first = -1

    def close() -> None:
        if span_start >= 0:
            spans.extend((file, hunk, span_start, span_end, old_first, old - old_first, new_first, new - new_first))

    while old_left or new_left:
        end = data.find(b"\n", start) + 1
        if not end:
            raise Refused("the last line of a hunk has no newline" if start < len(data) else "a hunk ends early", start)
        sign = data[start]
        if sign == 0x2B or sign == 0x2D:  # + or -
            if span_start < 0:
                span_start, old_first, new_first = start, old, new
            if sign == 0x2B:
                new_left -= 1
                new += 1
            else:
                old_left -= 1
                old += 1
            span_end = end
        elif sign == 0x20 or sign == 0x0A:
            close()
            span_start = -1
            old_left -= 1
            new_left -= 1
            old += 1
            new += 1
        elif sign != 0x5C or end - start < 12 or data[start + 1] != 0x20:
            raise Refused("a line in a hunk that is neither context nor an edit", start)
        if old_left < 0 or new_left < 0:
            raise Refused("a hunk has other lines than its header counts", start)
        start = end
    close()
    if len(spans) == before:
        raise Refused("a hunk without edits", begin)
    return _after_marker(data, start) if data.startswith(b"\\", start) else start


def _without_hunks(data: bytes, header: Header) -> int:
    """The end of a file section that has no hunks: binary data or a pure change of name or mode."""
    position = header.end
    if data.startswith(b"GIT binary patch\n", position):
        if header.oid is None or not all(_FULL_OID.fullmatch(oid) for oid in header.oid):
            raise Refused("a binary patch without a full index line", position)
        end = binary_end(data, position)
        if end is None:
            raise Refused("corrupt binary patch", position)
        return end
    if _BINARY_STUB.match(data, position):
        raise Refused("a binary file changes, but the diff does not hold its bytes", position)
    if not header.changes_metadata:
        raise Refused("a file header without hunks", position)
    return position


def file_header(data: bytes, row: Columns, start: int) -> Header:
    """Read again the header of a file section that `scan` accepted; `start` is its row's first element in `row`."""
    return read_header(data, row[start], Strip(row[start + 3], known=True))


def path_of(data: bytes, row: Columns, start: int) -> str:
    """The path of a file section: the new name, else the old one. Arguments as for `file_header`."""
    simple = SIMPLE.match(data, row[start]) if row[start + 3] else None
    if simple is not None:
        return simple[simple.lastindex or 1].decode()
    header = file_header(data, row, start)
    name = header.new if header.new is not None else header.old
    return "" if name is None else name.decode("utf-8", "surrogateescape")


def _check_files(names: list[bytes | Header], tables: Tables) -> None:
    """Refuse sections that contradict each other. git would keep the last of two new files without a word, and stop half
    way where a path is a file in one section and a folder in another."""
    written: set[bytes] = set()
    gone: set[bytes] = set()
    for index, name in enumerate(names):
        reason = ""
        if isinstance(name, bytes):
            reason = "a file is edited after it was deleted" if name in gone else ""
            written.add(name)
        else:
            fresh = name.is_new or name.is_rename or name.is_copy
            if fresh and name.new in written:
                reason = "a file is created twice"
            elif not fresh and name.old in gone:
                reason = "a file is edited after it was deleted"
            if name.old is not None and (name.is_delete or name.is_rename):
                written.discard(name.old)
                gone.add(name.old)
            if name.new is not None:
                written.add(name.new)
                gone.discard(name.new)
        if reason:
            raise Refused(reason, tables.files[index * FILE_WIDTH])
    for path in written:
        slash = path.find(b"/")
        while slash >= 0:
            if path[:slash] in written:
                raise Refused("a path is a file in one section and a folder in another", 0)
            slash = path.find(b"/", slash + 1)
