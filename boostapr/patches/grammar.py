"""The strict grammar: a diff that `git apply` parses whole, with nothing in it that git would skip.

`scan` walks the bytes once. Inside a hunk it moves by runs of lines (context, edits), found by one regular expression
search and counted by `bytes.count`, so the cost per line is that of a memory scan; odd hunks are read line by line.
"""

from __future__ import annotations

import re
from array import array

from boostapr.patches.binary import binary_end
from boostapr.patches.headers import SIMPLE, Header, HeaderError, Strip, is_safe_path, read_git, read_traditional
from boostapr.patches.model import FILE_WIDTH, Tables

WHITE = b" \t\n\r\x0b\x0c"
HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@[^\n]*\n")
_MAX_NUMBER = 2**62
_not_context = re.compile(rb"\n(?![ \n])").search
_not_edit = re.compile(rb"\n(?![-+])").search
_BINARY_STUB = re.compile(rb"(?:Binary f|F)iles [^\n]* differ\n")
_FULL_OID = re.compile(rb"[0-9a-f]{40}")
NAMES_TOOL = re.compile(rb"(?:diff (?!--git )-[^\n]*\n|Index: [^\n]*\n(?:=+\n)?)")


class Refused(Exception):
    """Why the bytes are not a valid diff, and where. `at` is a byte offset."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


def number(digits: bytes) -> int:
    """A line number; absurd ones are cut to 2**62, which no file reaches."""
    return int(digits) if len(digits) < 19 else _MAX_NUMBER


def counts(match: re.Match[bytes]) -> tuple[int, int, int, int]:
    """(old start, old count, new start, new count) of a hunk header; a missing count is 1."""
    old, old_count, new, new_count = match.groups()
    return (
        number(old),
        1 if old_count is None else number(old_count),
        number(new),
        1 if new_count is None else number(new_count),
    )


def scan(data: bytes) -> Tables:
    """Parse a whole diff. Raises Refused unless it is valid in the sense of PatchFormat.VALID."""
    tables = Tables()
    files, hunks, spans = tables.files, tables.hunks, tables.spans
    tail = len(data) if data[-1:] not in (b"\n", b" ", b"\t", b"\r") else len(data.rstrip(WHITE))
    strip = Strip()
    position = count = hunk_index = created = 0
    while position < tail:
        start = position
        simple = SIMPLE.match(data, position) if strip.value == 1 else None
        if simple is not None and is_safe_path(simple[simple.lastindex or 1]):
            position = simple.end()
            header = None
        else:
            header = read_header(data, position, strip)
            if data.find(b"\r\n", start, header.end) >= 0:
                raise Refused("CRLF line ends in a file header", start)
            if header.lacks_prefix:
                raise Refused("a path lacks its a/ or b/ prefix", position)
            position = header.end
            created += header.is_new or header.is_rename or header.is_copy
        body, first_hunk, old_total, new_total = position, hunk_index, 0, 0
        while data.startswith(b"@@ -", position):
            match = HUNK.match(data, position)
            if match is None:
                raise Refused("unreadable hunk header", position)
            old, old_count, new, new_count = counts(match)
            begin = match.end()
            end = scan_hunk(data, begin, old, old_count, new, new_count, count, hunk_index, spans)
            hunks.extend((count, position, begin, end, old, old_count, new, new_count))
            hunk_index += 1
            old_total += old_count
            new_total += new_count
            position = end
        if header is not None:
            if header.is_new and old_total:
                raise Refused("a new file cannot have old lines", start)
            if header.is_delete and new_total:
                raise Refused("a deleted file cannot have new lines", start)
            if hunk_index == first_hunk:
                position = _without_hunks(data, header)
        files.extend((start, body, position, strip.value, first_hunk))
        count += 1
    if not count:
        raise Refused("no file header", 0)
    if created and count > 1:
        _check_created(data, tables)
    return tables


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


def scan_hunk(
    data: bytes,
    start: int,
    old: int,
    old_left: int,
    new: int,
    new_left: int,
    file: int,
    hunk: int,
    spans: array[int],
) -> int:
    """Read the lines of one hunk from `start`, append its spans, return the offset after it. Raises Refused."""
    begin, rows = start, len(spans)
    old_line, new_line = old + (not old_left), new + (not new_left)
    first_old, first_new, lefts = old_line, new_line, (old_left, new_left)
    while old_left or new_left:
        stop = _not_context(data, start - 1)
        end = stop.start() + 1 if stop else -1
        if end > start:
            lines = data.count(b"\n", start, end)
            if lines > old_left or lines > new_left:
                if old_left != new_left:
                    break
                for _ in range(old_left):
                    start = data.index(b"\n", start) + 1
                old_left = new_left = 0
                break
            old_left -= lines
            new_left -= lines
            old_line += lines
            new_line += lines
            start = end
            if not (old_left or new_left):
                break
        stop = _not_edit(data, start - 1)
        end = stop.start() + 1 if stop else -1
        if end <= start:
            break
        removed = data.count(b"\n-", start - 1, end - 1)
        added = data.count(b"\n+", start - 1, end - 1)
        if removed > old_left or added > new_left:
            break
        spans.extend((file, hunk, start, end, old_line, removed, new_line, added))
        old_left -= removed
        new_left -= added
        old_line += removed
        new_line += added
        start = end
        if data.startswith(b"\\", end):
            break
    if old_left or new_left:
        del spans[rows:]
        start = _hunk_by_line(data, begin, first_old, first_new, *lefts, file, hunk, spans)
    if len(spans) == rows:
        raise Refused("a hunk without edits", begin)
    if data.startswith(b"\\ ", start) and len(data) - start > 12:
        start = data.find(b"\n", start) + 1 or len(data)
    return start


def _hunk_by_line(
    data: bytes,
    start: int,
    old: int,
    new: int,
    old_left: int,
    new_left: int,
    file: int,
    hunk: int,
    spans: array[int],
) -> int:
    """`scan_hunk` for hunks with "\\ No newline" lines, or whose last run goes on beyond the counts."""
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
    return start


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


def file_header(data: bytes, row: array[int], start: int) -> Header:
    """Read again the header of a file section that `scan` accepted; `start` is its row's first element in `row`."""
    return read_header(data, row[start], Strip(row[start + 3], known=True))


def _check_created(data: bytes, tables: Tables) -> None:
    """Refuse a second section that writes a path anew: git would silently keep only the last."""
    written: set[bytes] = set()
    for row in range(0, len(tables.files), FILE_WIDTH):
        header = file_header(data, tables.files, row)
        if header.new is not None and header.new in written and (header.is_new or header.is_rename or header.is_copy):
            raise Refused("a file is created twice", tables.files[row])
        if header.old is not None and (header.new is None or header.is_rename):
            written.discard(header.old)
        if header.new is not None:
            written.add(header.new)
