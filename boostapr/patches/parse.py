"""`parse_patch`: bytes of a response -> Patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from boostapr.patches.grammar import Refused, file_header, path_of, scan
from boostapr.patches.model import (
    FILE_END,
    FILE_HUNK,
    FILE_START,
    FILE_WIDTH,
    HUNK_WIDTH,
    SPAN_ADDED,
    SPAN_END,
    SPAN_FILE,
    SPAN_REMOVED,
    SPAN_START,
    SPAN_WIDTH,
    FileChange,
    Hunk,
    PatchFormat,
    Repair,
    Rows,
    Span,
    Tables,
    edit_ranges,
)
from boostapr.patches.repair import OffsetMap, repair

_MARKERS = (b"diff --git ", b"@@ ", b"--- ", b"+++ ")
_NO_TABLES = Tables([], [], [])


@dataclass(slots=True, eq=False)
class Patch:
    """A parsed response.

    `problem` says why the response as it stands is not valid (empty if it is) and `problem_line` where (1-based, 0 if
    valid). `diff` is the diff itself: the response if valid, the repaired bytes if recoverable, else empty. Byte offsets
    of files, hunks and spans always refer to `response`, also after a repair; a malformed response has none of them.
    `tables` holds hunks and spans in such offsets, and the file rows in offsets of `diff`.
    """

    response: bytes
    format: PatchFormat
    repairs: tuple[Repair, ...]
    problem: str
    problem_line: int
    diff: bytes
    tables: Tables
    places: OffsetMap | None = None

    @property
    def spans(self) -> Sequence[Span]:
        """Edit-line spans in order of the response; disjoint."""
        return Rows(len(self.tables.spans) // SPAN_WIDTH, partial(_span, self.tables, _Paths(self)))

    @property
    def hunks(self) -> Sequence[Hunk]:
        return Rows(len(self.tables.hunks) // HUNK_WIDTH, partial(_hunk, self.tables, _Paths(self)))

    @property
    def files(self) -> Sequence[FileChange]:
        return Rows(len(self.tables.files) // FILE_WIDTH, partial(_file, self))

    @property
    def num_spans(self) -> int:
        return len(self.tables.spans) // SPAN_WIDTH

    def ranges(self, span: int) -> tuple[tuple[int, int], ...]:
        """Byte ranges of the `+`/`-` lines of one span: one range, unless "\\ No newline" lines lie between them."""
        row = span * SPAN_WIDTH
        return edit_ranges(self.response, self.tables.spans[row + SPAN_START], self.tables.spans[row + SPAN_END])

    def span_table(self) -> NDArray[np.int64]:
        """int64[num_spans, 8]: the columns file, hunk, start, end, old_start, removed, new_start, added ."""
        return np.asarray(self.tables.spans, dtype=np.int64).reshape(-1, SPAN_WIDTH)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Patch) and self.response == other.response

    def __hash__(self) -> int:
        return hash(self.response)


def parse_patch(response: bytes | str) -> Patch:
    """Parse a model's response as a unified diff (section 3.4.1, step 2; format classes of Eq. 7). Never raises.

    Text is encoded as UTF-8; code points that UTF-8 cannot hold (lone surrogates) become the bytes that they stand for.
    """
    data = to_bytes(response)
    try:
        return Patch(data, PatchFormat.VALID, (), "", 0, data, scan(data))
    except Refused as error:
        problem, at = error.reason, error.at
    line = data.count(b"\n", 0, at) + 1
    if not data.startswith(_MARKERS) and not any(b"\n" + marker in data for marker in _MARKERS):
        return Patch(data, PatchFormat.NOT_A_DIFF, (), "no diff in the response", line, b"", _NO_TABLES)
    try:
        fixed = repair(data)
    except Refused as error:
        return Patch(data, PatchFormat.MALFORMED, (), error.reason, data.count(b"\n", 0, error.at) + 1, b"", _NO_TABLES)
    return Patch(data, PatchFormat.RECOVERABLE, fixed.repairs, problem, line, fixed.diff, fixed.tables, fixed.map)


def to_bytes(response: bytes | str) -> bytes:
    """UTF-8 bytes of a response, without loss for any str."""
    if not isinstance(response, str):
        return bytes(response)
    for errors in ("strict", "surrogateescape", "surrogatepass"):
        try:
            return response.encode("utf-8", errors)
        except UnicodeEncodeError:
            continue
    raise AssertionError("surrogatepass encodes every str")


def _text(path: bytes | None) -> str | None:
    return None if path is None else path.decode("utf-8", "surrogateescape")


class _Paths:
    """Path of a file section by its number; remembers the last one, as spans are read in order."""

    __slots__ = ("_file", "_patch", "_path")

    def __init__(self, patch: Patch) -> None:
        self._patch, self._file, self._path = patch, -1, ""

    def __call__(self, file: int) -> str:
        if file != self._file:
            self._path = path_of(self._patch.diff, self._patch.tables.files, file * FILE_WIDTH)
            self._file = file
        return self._path


def _span(tables: Tables, paths: _Paths, index: int) -> Span:
    row = index * SPAN_WIDTH
    file, hunk, start, end, old, removed, new, added = tables.spans[row : row + SPAN_WIDTH]
    return Span(paths(file), hunk, start, end, old, removed, new, added, added, removed)


def _hunk(tables: Tables, paths: _Paths, index: int) -> Hunk:
    row = index * HUNK_WIDTH
    columns = tables.hunks[row : row + HUNK_WIDTH]
    return Hunk(paths(columns[0]), *columns)


def _file(patch: Patch, index: int) -> FileChange:
    tables = patch.tables
    row = index * FILE_WIDTH
    start, end, first_hunk = (tables.files[row + column] for column in (FILE_START, FILE_END, FILE_HUNK))
    last = row + FILE_WIDTH == len(tables.files)
    hunks = range(first_hunk, len(patch.hunks) if last else tables.files[row + FILE_WIDTH + FILE_HUNK])
    header = file_header(patch.diff, tables.files, row)
    table = patch.span_table()
    inside = slice(*np.searchsorted(table[:, SPAN_FILE], [index, index + 1]))
    if patch.places is not None:
        start, end = int(patch.places.starts(np.array(start))), int(patch.places.ends(np.array(end)))
    return FileChange(
        old_path=_text(header.old),
        new_path=_text(header.new),
        old_mode=header.old_mode,
        new_mode=header.new_mode,
        is_new=header.is_new,
        is_delete=header.is_delete,
        is_rename=header.is_rename,
        is_copy=header.is_copy,
        is_binary=patch.diff.startswith(b"GIT binary patch\n", header.end),
        start=start,
        end=end,
        hunks=hunks,
        added=int(table[inside, SPAN_ADDED].sum()),
        removed=int(table[inside, SPAN_REMOVED].sum()),
    )
