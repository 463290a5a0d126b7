"""Repairs of a response that is not a valid diff: a closed list, applied in one fixed way, never a guess.

What is repaired: text and code fences around the diff or between its parts, line counts in hunk headers, a missing last
newline, CRLF line ends of the diff itself, and paths without a/ and b/. Anything else is malformed. The result is checked
by the strict grammar, and its spans are mapped back to the bytes of the response.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boostapr.patches.binary import binary_end
from boostapr.patches.grammar import HUNK, MAX_BYTES, WHITE, Refused, Rows, counts, scan, scan_hunk
from boostapr.patches.headers import HeaderError, Strip, read_git, read_traditional
from boostapr.patches.model import (
    HUNK_BODY,
    HUNK_END,
    HUNK_START,
    HUNK_WIDTH,
    SPAN_END,
    SPAN_START,
    SPAN_WIDTH,
    Columns,
    Repair,
    Tables,
)
from boostapr.patches.names import header_names, is_dev_null, quote, written_name

_STARTS = (b"diff --git ", b"--- ", b"@@ -")
_next_start = re.compile(rb"\n(?:diff --git |--- |@@ -)").search
_FENCE_LINE = re.compile(rb"(?m)^[ \t]*(?:```|~~~)")
# A line that is neither blank, nor a fence, nor what diff tools write before a header.
_PROSE_LINE = re.compile(rb"(?m)^(?![ \t\r\x0b\x0c]*$|[ \t]*(?:```|~~~)|diff -|Index: |=+$)[^\n]")
_run_end = re.compile(rb"\n(?![-+ \\\n])").search
_has_edit = re.compile(rb"\n[-+]").search
_CRLF_HEADER = re.compile(rb"(?:\A|\n)(?:diff --git |--- |\+\+\+ |@@ -\d)[^\n]*\r\n")


class OffsetMap:
    """Offsets of repaired bytes -> offsets of the response. Segment i copies bytes, or (length 0) is inserted text."""

    def __init__(
        self, target: array[int], source: array[int], length: array[int], removed: np.ndarray, size: int
    ) -> None:
        self._target = np.frombuffer(target, dtype=np.int32)
        self._source = np.frombuffer(source, dtype=np.int32)
        self._length = np.frombuffer(length, dtype=np.int32)
        self._removed = removed
        self._size = size

    def starts(self, offsets: np.ndarray) -> np.ndarray:
        """Where the bytes at `offsets` (int64[n]) stand in the response; an inserted byte, where it was inserted."""
        segment = np.searchsorted(self._target, offsets, side="right") - 1
        within = np.minimum(offsets - self._target[segment], self._length[segment])
        place = self._source[segment] + within
        if len(self._removed):
            place = place + np.searchsorted(self._removed, place, side="right")
        return np.minimum(place, self._size)

    def ends(self, offsets: np.ndarray) -> np.ndarray:
        """The offset after the byte before each of `offsets`."""
        return np.minimum(self.starts(offsets - 1) + 1, self._size)


@dataclass(slots=True)
class RepairedDiff:
    """`diff` is valid; `tables` holds its hunks and spans in offsets of the response, its files in offsets of `diff`."""

    diff: bytes
    repairs: tuple[Repair, ...]
    tables: Tables
    map: OffsetMap


def repair(data: bytes) -> RepairedDiff:
    """Make a response with diff markers a valid diff. Raises Refused (offsets of the response) if no listed repair does."""
    if len(data) >= MAX_BYTES:
        raise Refused("more than git reads (1 GiB)", 0)
    repairs: set[Repair] = set()
    removed: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    text = data
    if b"\r\n" in data and _CRLF_HEADER.search(data):
        repairs.add(Repair.CRLF)
        removed = _carriage_returns(data)
        text = data.replace(b"\r\n", b"\n")
    builder = _Builder(text, repairs)
    try:
        builder.run()
    except Refused as error:
        raise Refused(
            error.reason, int(builder.map(removed, len(data), True).starts(np.array([error.at]))[0])
        ) from None
    places = builder.map(removed, len(data))
    diff = bytes(builder.diff)
    try:
        tables = scan(diff)
    except Refused as error:
        raise Refused(error.reason, int(places.starts(np.array([error.at]))[0])) from None
    tables.spans = _move(tables.spans, SPAN_WIDTH, (SPAN_START,), (SPAN_END,), places)
    tables.hunks = _move(tables.hunks, HUNK_WIDTH, (HUNK_START, HUNK_BODY), (HUNK_END,), places)
    return RepairedDiff(diff, tuple(r for r in Repair if r in repairs), tables, places)


def _carriage_returns(data: bytes) -> NDArray[np.int64]:
    """For each CR that stands before an LF, the offset that this LF has once all such CRs are gone."""
    codes = np.frombuffer(data, dtype=np.uint8)
    found = np.flatnonzero((codes[:-1] == 13) & (codes[1:] == 10))
    found -= np.arange(len(found))
    return found


def _move(columns: Columns, width: int, starts: tuple[int, ...], ends: tuple[int, ...], places: OffsetMap) -> Columns:
    """The same rows with the offsets in the given columns moved from the diff to the response."""
    moved = array("i", columns)
    if moved:
        table = np.frombuffer(moved, dtype=np.int32).reshape(-1, width)
        for column in starts:
            table[:, column] = places.starts(table[:, column])
        for column in ends:
            table[:, column] = places.ends(table[:, column])
    return moved


class _Builder:
    """Walks a response and collects the parts of it that make up a diff."""

    def __init__(self, text: bytes, repairs: set[Repair]) -> None:
        self.size = len(text)
        self.text = text if text.endswith(b"\n") else text + b"\n"
        self.repairs = repairs
        self.diff = bytearray()
        self._target, self._source, self._length = array("i"), array("i"), array("i")
        self._total = 0

    def map(self, removed: NDArray[np.int64], size: int, identity: bool = False) -> OffsetMap:
        """How offsets of the diff (or, identity, of `text`) lie in the response of `size` bytes."""
        if identity:
            return OffsetMap(array("i", [0]), array("i", [0]), array("i", [self.size]), removed, size)
        return OffsetMap(self._target, self._source, self._length, removed, size)

    def copy(self, start: int, end: int) -> None:
        """Take bytes of the response; the newline that its last line lacks is added if that line is taken."""
        if start < min(end, self.size):
            self._add(self.text[start : min(end, self.size)], start, min(end, self.size) - start)
        if end > self.size:
            self.repairs.add(Repair.FINAL_NEWLINE)
            self._add(b"\n", self.size, 0)

    def insert(self, part: bytes, at: int) -> None:
        """Add bytes that are not in the response, in place of something at offset `at`."""
        self._add(part, at, 0)

    def _add(self, part: bytes, source: int, length: int) -> None:
        self.diff += part
        self._target.append(self._total)
        self._source.append(source)
        self._length.append(length)
        self._total += len(part)

    def run(self) -> None:
        text, position, seen, in_file = self.text, 0, 0, False
        strip = Strip()
        while True:
            if not text.startswith(_STARTS, position):
                found = _next_start(text, max(position - 1, 0))
                position = found.start() + 1 if found else len(text)
            if position < len(text) and text.startswith(b"--- ", position):
                second = text.index(b"\n", position) + 1
                if not text.startswith(b"+++ ", second):
                    position = second  # a line of prose
                    continue
            self._skip(seen, position)
            if position >= len(text):
                break
            if not text.startswith(b"@@ -", position):
                position = self._header(position, strip)
                in_file = True
            elif in_file:
                position = self._hunk(position)
            else:
                raise Refused("a hunk without a file header", position)
            seen = position
        if not in_file:
            raise Refused("no file header", 0)

    def _skip(self, start: int, end: int) -> None:
        """Leave out what stands between two parts of the diff, and say what it was."""
        gap = self.text[start:end]
        fenced = _FENCE_LINE.search(gap) is not None
        if fenced:
            self.repairs.add(Repair.CODE_FENCE)
        only_blank = not fenced and bool(gap) and not gap.strip(WHITE)
        if _PROSE_LINE.search(gap) is not None or (only_blank and end < len(self.text)):
            self.repairs.add(Repair.PROSE)

    def _header(self, start: int, strip: Strip) -> int:
        """Copy one file header (and the binary patch after it), with prefixes if they are missing; return its end."""
        text = self.text
        end = header_extent(text, start)
        git = text.startswith(b"diff --git ", start)
        if not git and not text.startswith(b"@@ -", end):
            raise Refused("a file header without hunks", start)
        try:
            lacks = (read_git if git else read_traditional)(text, start, strip).lacks_prefix
        except HeaderError as error:
            prefixed = with_prefixes(text[start:end])
            try:
                (read_git if git else read_traditional)(prefixed, 0, strip)
            except HeaderError:
                raise Refused(str(error), start) from None
            lacks = True
        if lacks:
            self.repairs.add(Repair.PATH_PREFIX)
            self.insert(with_prefixes(text[start:end]), start)
        else:
            self.copy(start, end)
        return self._binary(end) if text.startswith(b"GIT binary patch\n", end) else end

    def _binary(self, start: int) -> int:
        end = binary_end(self.text, start)
        if end is not None:
            self.copy(start, end)
            return end
        # The blank line that ends a binary patch is easily lost at the end of a response.
        body = self.text[start:].rstrip(b"\n") + b"\n\n"
        if binary_end(body, 0) != len(body):
            raise Refused("corrupt binary patch", start)
        self.copy(start, start + len(body) - 2)
        self.insert(b"\n\n", self.size)
        self.repairs.add(Repair.FINAL_NEWLINE)
        return len(self.text)

    def _hunk(self, start: int) -> int:
        """Copy one hunk, with the line counts that its lines have; return its end."""
        text = self.text
        match = HUNK.match(text, start)
        if match is None:
            raise Refused("unreadable hunk header", start)
        body = match.end()
        stop = _run_end(text, body - 1)
        end = stop.start() + 1 if stop else len(text)
        pair = self._file_header_before(body, end)
        numbers = counts(match)
        try:
            counted = scan_hunk(text, body, numbers, 0, 0, Rows())
        except Refused:
            counted = -1
        limit = pair if counted <= pair else end
        if counted >= 0 and (text.startswith(b"-- \n", counted) or not _has_edit(text, counted - 1, limit)):
            self.copy(start, counted)
            return counted
        limit = end if pair < 0 else pair
        last = body + len(text[body:limit].rstrip(b"\n")) + 1
        removed = text.count(b"\n-", body - 1, last - 1)
        added = text.count(b"\n+", body - 1, last - 1)
        if last > limit or not (removed or added):
            raise Refused("a hunk without edits", start)
        context = text.count(b"\n", body, last) - removed - added - text.count(b"\n\\", body - 1, last - 1)
        self.repairs.add(Repair.HUNK_COUNTS)
        self.insert(b"@@ -%d,%d +%d,%d @@" % (numbers[0], context + removed, numbers[2], context + added), start)
        self.copy(text.index(b" @@", start) + 3, last)
        return last

    def _file_header_before(self, body: int, end: int) -> int:
        """The start of a `---`/`+++` pair that closes the lines `body:end` if a hunk header follows them, else -1."""
        text = self.text
        if not text.startswith(b"@@ -", end):
            return -1
        second = text.rfind(b"\n", body - 1, end - 1) + 1
        first = text.rfind(b"\n", body - 1, second - 1) + 1 if second > body else 0
        return first if first >= body and text.startswith(b"+++ ", second) and text.startswith(b"--- ", first) else -1


_EXTENDED = (
    *(
        b"--- ",
        b"+++ ",
        b"old mode ",
        b"new mode ",
        b"deleted file mode ",
        b"new file mode ",
        b"copy from ",
        b"copy to ",
    ),
    *(b"rename old ", b"rename new ", b"rename from ", b"rename to ", b"similarity index ", b"dissimilarity index "),
    b"index ",
)


def header_extent(data: bytes, start: int) -> int:
    """Where the file header at `start` ends, to judge by the words that its lines begin with."""
    end = data.find(b"\n", start) + 1 or len(data)
    if not data.startswith(b"diff --git ", start):
        return data.find(b"\n", end) + 1 or len(data)
    while data.startswith(_EXTENDED, end):
        end = data.find(b"\n", end) + 1 or len(data)
    return end


def with_prefixes(header: bytes) -> bytes:
    """A file header with a/ and b/ before the names that lack them."""
    lines = header.split(b"\n")
    for i, line in enumerate(lines):
        if line.startswith(b"diff --git "):
            names = header_names(line)
            if names is not None:
                old, new = _prefixed(*names)
                lines[i] = b"diff --git " + quote(old) + b" " + quote(new)
    pair = [i for i, line in enumerate(lines) if line.startswith((b"--- ", b"+++ "))]
    texts = [lines[i][4:] for i in pair]
    if len(pair) == 2:
        nulls = [is_dev_null(text) for text in texts]
        names = _prefixed(*(b"" if null else written_name(text, True) for null, text in zip(nulls, texts, strict=True)))
        for i, null, name in zip(pair, nulls, names, strict=True):
            if not null:
                lines[i] = lines[i][:4] + quote(name)
    return b"\n".join(lines)


def _prefixed(old: bytes, new: bytes) -> tuple[bytes, bytes]:
    has_old = old.startswith(b"a/") and (not new or old[2:] in (new, new[2:]))
    has_new = new.startswith(b"b/") and (not old or new[2:] in (old, old[2:]))
    return old if has_old else b"a/" + old, new if has_new else b"b/" + new
