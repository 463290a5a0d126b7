"""What a parsed response is: format class, files, hunks and edit-line spans, all as byte ranges of the response.

Storage is columnar (eight 32-bit integers per hunk and per span): a response of many megabytes costs a few times its own
size, and the credit code reads the columns as numpy arrays without building objects. The objects below are made on access.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias, TypeVar, overload

T = TypeVar("T")

# Columns of one row in Tables.files / .hunks / .spans.
FILE_START, FILE_BODY, FILE_END, FILE_STRIP, FILE_HUNK, FILE_WIDTH = range(6)
HUNK_FILE, HUNK_START, HUNK_BODY, HUNK_END, HUNK_OLD, HUNK_OLD_COUNT, HUNK_NEW, HUNK_NEW_COUNT, HUNK_WIDTH = range(9)
SPAN_FILE, SPAN_HUNK, SPAN_START, SPAN_END, SPAN_OLD, SPAN_REMOVED, SPAN_NEW, SPAN_ADDED, SPAN_WIDTH = range(9)


class PatchFormat(StrEnum):
    """Format class of a response (Eq. 7); the penalties themselves live in conf/."""

    VALID = "valid"
    RECOVERABLE = "recoverable"
    MALFORMED = "malformed"
    NOT_A_DIFF = "not_a_diff"


class Repair(StrEnum):
    """The deterministic repairs that turn a recoverable response into a valid diff."""

    CRLF = "crlf"
    CODE_FENCE = "code_fence"
    PROSE = "prose"
    HUNK_COUNTS = "hunk_counts"
    FINAL_NEWLINE = "final_newline"
    PATH_PREFIX = "path_prefix"


REPAIR_TEXT = {
    Repair.CRLF: "carriage returns at line ends removed",
    Repair.CODE_FENCE: "code fence removed",
    Repair.PROSE: "text around the diff removed",
    Repair.HUNK_COUNTS: "line counts in a hunk header corrected",
    Repair.FINAL_NEWLINE: "missing newline at the end of the diff added",
    Repair.PATH_PREFIX: "missing a/ and b/ path prefixes added",
}


class Span(NamedTuple):
    """A maximal run of `+`/`-` lines in one hunk.

    `start:end` is its byte range in the response (whole lines, sign and newline included; a "\\ No newline" line between its
    lines lies in that range but is not part of it: see `Patch.ranges`). `old_start` is the 1-based number of the first old
    line that it touches, or, if it removes nothing, of the old line before which it inserts; `new_start` likewise.
    """

    path: str
    hunk: int
    start: int
    end: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int
    added: int
    removed: int


class Hunk(NamedTuple):
    """One hunk. `start` is the offset of its `@@` line, `body:end` its lines; the numbers are those of its header."""

    path: str
    file: int
    start: int
    body: int
    end: int
    old_start: int
    old_count: int
    new_start: int
    new_count: int


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file section of a diff, with the names as git reads them (`None` for /dev/null)."""

    old_path: str | None
    new_path: str | None
    old_mode: int
    new_mode: int
    is_new: bool
    is_delete: bool
    is_rename: bool
    is_copy: bool
    is_binary: bool
    start: int
    end: int
    hunks: range
    added: int
    removed: int

    @property
    def path(self) -> str:
        """The name that `git apply --numstat` prints: the new one, else the old one."""
        return self.new_path if self.new_path is not None else self.old_path or ""


class Rows(Sequence[T]):
    """A read-only sequence that builds its items from integer columns when they are asked for."""

    __slots__ = ("_make", "_size")

    def __init__(self, size: int, make: Callable[[int], T]) -> None:
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self._make(i) for i in range(*index.indices(self._size)))
        if not -self._size <= index < self._size:
            raise IndexError(f"index {index} out of range for {self._size} items")
        return self._make(index % self._size)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, range(self._size))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # sequences that compare by content do not hash

    def __repr__(self) -> str:
        return repr(tuple(self))


# Lists while small, arrays once there is much.
Columns: TypeAlias = "list[int] | array[int]"


@dataclass(slots=True)
class Tables:
    """Integer columns of a parsed diff, row after row; offsets refer to the bytes that were parsed."""

    files: Columns
    hunks: Columns
    spans: Columns


def edit_ranges(response: bytes, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The parts of the span `start:end` that are `+`/`-` lines: all of it, less "\\ No newline" lines in its middle."""
    cut = response.find(b"\n\\", start, end)
    if cut < 0:
        return ((start, end),)
    parts = []
    while cut >= 0:
        parts.append((start, cut + 1))
        start = cut + 1
        while response.startswith(b"\\", start):
            start = response.index(b"\n", start, end) + 1
        cut = response.find(b"\n\\", start, end)
    parts.append((start, end))
    return tuple(parts)
