"""Applying SEARCH/REPLACE blocks to texts, and writing the result as a unified diff.

A search text is looked for exactly first, then with the tolerances below, one after the other in this fixed order. At every
step it has to fit in one place only: two places are an error, as is none after the last step.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from boostapr.patches.blocks import Block, SearchReplaceError, parse_blocks
from boostapr.patches.write import file_diff, split_lines

_COMMON = 40  # a line that a file has more often than this says nothing about the place


class Tolerance(StrEnum):
    """How a search text was found. exact: byte for byte. line_ends: CR before LF and the file's missing last newline do not
    count. trailing_space: nor does white space at line ends. blank_edges: nor do empty first and last lines of the search
    text. indentation: all its lines are indented by the same amount too much or too little (the new text is moved, too).
    elision: `...` lines stand for lines that stay."""

    EXACT = "exact"
    LINE_ENDS = "line_ends"
    TRAILING_SPACE = "trailing_space"
    BLANK_EDGES = "blank_edges"
    INDENTATION = "indentation"
    ELISION = "elision"


class NoMatch(SearchReplaceError):
    """The search text is not in the file. `near`: 1-based number of the file's line where it nearly fits, or 0."""

    def __init__(self, reason: str, line: int, near: int) -> None:
        super().__init__(reason, line)
        self.near = near


class AmbiguousMatch(SearchReplaceError):
    """The search text fits in several places. `places`: 1-based numbers of the lines where they begin."""

    def __init__(self, reason: str, line: int, places: tuple[int, ...]) -> None:
        super().__init__(reason, line)
        self.places = places


@dataclass(frozen=True, slots=True)
class Edited:
    """`files`: new content of each path that a block named. `how`: the tolerance that each block needed."""

    files: dict[str, bytes]
    how: tuple[Tolerance, ...]


def apply_blocks(response: bytes | str, files: Mapping[str, bytes]) -> Edited:
    """Apply the blocks of a response, in order, to `files` ({path: content}); a path that is missing there is made anew.

    Raises:
        BlockSyntaxError: see `parse_blocks`; also for a response without blocks.
        NoMatch, AmbiguousMatch: a search text has no place or several.
        SearchReplaceError: an empty search text for a file that has lines.
    """
    blocks = parse_blocks(response, files.keys())
    if not blocks:
        raise SearchReplaceError("there is no SEARCH/REPLACE block", 1)
    changed: dict[str, bytes] = {}
    how: list[Tolerance] = []
    for block in blocks:
        old = changed.get(block.path, files.get(block.path))
        if block.search.strip() == b"":
            if old:
                raise SearchReplaceError(f"the search text is empty, but {block.path} has lines", block.line)
            changed[block.path] = block.replace
            how.append(Tolerance.EXACT)
            continue
        if old is None:
            raise NoMatch(f"there is no file {block.path}", block.line, 0)
        changed[block.path], tolerance = _replace(old, block)
        how.append(tolerance)
    return Edited(changed, tuple(how))


def to_diff(response: bytes | str, files: Mapping[str, bytes]) -> bytes:
    """The blocks of a response as a unified diff against `files`: valid, and it applies to the same bytes.

    Raises what `apply_blocks` raises, and SearchReplaceError if the blocks change nothing.
    """
    edited = apply_blocks(response, files)
    diff = b"".join(file_diff(path, files.get(path), new) for path, new in edited.files.items())
    if not diff:
        raise SearchReplaceError("the blocks change nothing", 1)
    return diff


Key = Callable[[bytes], bytes]
# Where lines go out and which come in: (first line, line after the last, new lines).
Splice = tuple[int, int, list[bytes]]


def _line_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _replace(text: bytes, block: Block) -> tuple[bytes, Tolerance]:
    lines = split_lines(text)
    search, new = split_lines(block.search), split_lines(block.replace)
    for tolerance, find in _STEPS:
        found = list(find(lines, search, new))
        if len(found) > 1:
            places = tuple(splices[0][0] + 1 for splices in found)
            where = ", ".join(map(str, places[:5]))
            reason = f"the search text fits in {len(found)} places of {block.path} (lines {where}): add lines around it"
            raise AmbiguousMatch(reason, block.line, places)
        if found:
            return _splice(lines, found[0], exact=tolerance is Tolerance.EXACT), tolerance
    near, reason = _nearest(lines, search)
    raise NoMatch(f"the search text is not in {block.path}: {reason}", block.line, near)


def _splice(lines: list[bytes], splices: Sequence[Splice], exact: bool) -> bytes:
    """The text with new lines in place of old ones. Unless the match was exact, the new ones get the file's line ends and,
    at its end, its missing last newline."""
    ended = [line for line in lines if line.endswith(b"\n")]
    crlf = sum(line.endswith(b"\r\n") for line in ended) * 2 > len(ended)
    result, position = [], 0
    for first, last, new in splices:
        result += lines[position:first]
        own = new if exact else [_line_end(line) + (b"\r\n" if crlf else b"\n") for line in new]
        if last == len(lines) and last > first and not lines[-1].endswith(b"\n") and own:
            own = [*own[:-1], _line_end(own[-1])]
        result += own
        position = last
    return b"".join(result + lines[position:])


def _windows(lines: Sequence[bytes], search: Sequence[bytes], key: Key, start: int = 0) -> Iterator[int]:
    """Indices at which all lines of `search` stand in `lines`, both compared by `key`."""
    wanted = [key(line) for line in search]
    keys = [key(line) for line in lines]
    if not wanted:
        return
    at = start
    while True:
        try:
            at = keys.index(wanted[0], at, max(len(keys) - len(wanted) + 1, 0))
        except ValueError:
            return
        if keys[at : at + len(wanted)] == wanted:
            yield at
        at += 1


def _by_key(key: Key) -> Callable[[list[bytes], list[bytes], list[bytes]], Iterator[list[Splice]]]:
    def find(lines: list[bytes], search: list[bytes], new: list[bytes]) -> Iterator[list[Splice]]:
        return ([(at, at + len(search), new)] for at in _windows(lines, search, key))

    return find


def _blank_edges(lines: list[bytes], search: list[bytes], new: list[bytes]) -> Iterator[list[Splice]]:
    trimmed = _without_edges(search)
    if trimmed and len(trimmed) < len(search):
        yield from _by_key(bytes.rstrip)(lines, trimmed, _without_edges(new))


def _without_edges(lines: list[bytes]) -> list[bytes]:
    first, last = 0, len(lines)
    while first < last and not lines[first].strip():
        first += 1
    while last > first and not lines[last - 1].strip():
        last -= 1
    return lines[first:last]


def _indentation(lines: list[bytes], search: list[bytes], new: list[bytes]) -> Iterator[list[Splice]]:
    wanted = _indent(search)
    for at in _windows(lines, search, bytes.strip):
        window = lines[at : at + len(search)]
        found = _indent(window)
        same = (_moved(s, wanted, found).rstrip() == line.rstrip() for s, line in zip(search, window, strict=True))
        if all(same):
            yield [(at, at + len(search), [_moved(line, wanted, found) for line in new])]


def _indent(lines: Sequence[bytes]) -> bytes:
    """The white space that all lines with text begin with."""
    indents = [line[: len(line) - len(line.lstrip())] for line in lines if line.strip()]
    return min(indents, key=len, default=b"")


def _moved(line: bytes, old: bytes, new: bytes) -> bytes:
    return new + line.removeprefix(old) if line.strip() else line


def _elision(lines: list[bytes], search: list[bytes], new: list[bytes]) -> Iterator[list[Splice]]:
    parts, replacements = _parts(search), _parts(new)
    if len(parts) < 2 or len(parts) != len(replacements):
        return
    first = next((part for part in parts if part), None)
    if first is None:
        return
    for start in _windows(lines, first, bytes.rstrip):
        splices: list[Splice] = []
        at = start
        for part, replacement in zip(parts, replacements, strict=True):
            place = next(_windows(lines, part, bytes.rstrip, at), None) if part else at
            if place is None:
                break
            splices.append((place, place + len(part), replacement))
            at = place + len(part)
        else:
            yield splices


def _parts(lines: Sequence[bytes]) -> list[list[bytes]]:
    parts: list[list[bytes]] = [[]]
    for line in lines:
        if line.strip() == b"...":
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


_STEPS = (
    (Tolerance.EXACT, _by_key(lambda line: line)),
    (Tolerance.LINE_ENDS, _by_key(_line_end)),
    (Tolerance.TRAILING_SPACE, _by_key(bytes.rstrip)),
    (Tolerance.BLANK_EDGES, _blank_edges),
    (Tolerance.INDENTATION, _indentation),
    (Tolerance.ELISION, _elision),
)


def _nearest(lines: Sequence[bytes], search: Sequence[bytes]) -> tuple[int, str]:
    """(1-based line where most lines of the search text stand in place, what is there) or (0, ...)."""
    places: defaultdict[bytes, list[int]] = defaultdict(list)
    for i, line in enumerate(lines):
        places[line.strip()].append(i)
    votes: Counter[int] = Counter()
    for i, line in enumerate(search):
        own = places.get(line.strip(), []) if line.strip() else []
        votes.update(place - i for place in own if len(own) <= _COMMON)
    if not votes:
        return 0, "none of its lines is there"
    best = min(votes, key=lambda place: (-votes[place], place))
    wrong = next(
        (
            i
            for i, line in enumerate(search)
            if not 0 <= best + i < len(lines) or lines[best + i].rstrip() != line.rstrip()
        ),
        0,
    )
    has = lines[best + wrong].strip() if 0 <= best + wrong < len(lines) else b"(end of file)"
    return (
        max(best, 0) + 1,
        f"nearest is line {max(best, 0) + 1}, where {votes[best]} of {len(search)} lines fit; "
        f"line {best + wrong + 1} there is {has.decode('utf-8', 'replace')!r}",
    )
