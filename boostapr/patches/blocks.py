"""SEARCH/REPLACE blocks (Aider's form) in a response: finding them and the file that each one means.

    src/shapes.py
    ```python
    <<<<<<< SEARCH
    old lines
    =======
    new lines
    >>>>>>> REPLACE
    ```

Fences and the text around are optional. The path stands on the line before the fence; where models put it elsewhere (inside
the fence, on the fence, behind SEARCH, not at all in a later block of the same file) it is found there.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from boostapr.patches.parse import to_bytes

_SEARCH = re.compile(rb"<{5,9} SEARCH\b>?[ \t]*([^\r\n]*?)[ \t]*\r?\Z")
_DIVIDER = re.compile(rb"={5,9}[ \t]*\r?\Z")
_REPLACE = re.compile(rb">{5,9} REPLACE[ \t]*\r?\Z")
_FENCE = re.compile(rb"[ \t]*(?:`{3,}|~{3,})[ \t]*([^\r\n`]*?)[ \t]*\r?\Z")
_PATH = re.compile(r"[\w./@+~-]*[\w-][./][\w./@+~-]+\Z|[\w.-]+\Z")
_LABEL = re.compile(r"(?i)(?:file(?:name|path)?|path)\s*[:=]\s*")
_LOOK_BACK = 4  # lines before a block among which its path is looked for


class SearchReplaceError(ValueError):
    """A SEARCH/REPLACE response that cannot be applied. `line`: where in the response (1-based) the block begins."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(f"line {line} of the response: {reason}")
        self.reason = reason
        self.line = line


class BlockSyntaxError(SearchReplaceError):
    """The markers do not form a block, or no path goes with it."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block. `search` and `replace` are whole lines (each ends with its newline); `start:end` are its bytes in the
    response, markers included; `line` is the number of its SEARCH line."""

    path: str
    search: bytes
    replace: bytes
    start: int
    end: int
    line: int


def parse_blocks(response: bytes | str, known: Collection[str] = ()) -> tuple[Block, ...]:
    """The blocks of a response, in order; none if it has no SEARCH line.

    known: paths that exist. A path among them is believed wherever it stands; a lone known file needs no path at all.

    Raises:
        BlockSyntaxError: a block is not closed, or has no path.
    """
    data = to_bytes(response)
    lines = data.split(b"\n")
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    blocks: list[Block] = []
    i = 0
    while i < len(lines):
        opened = _SEARCH.match(lines[i])
        if opened is None:
            i += 1
            continue
        divider = _find(lines, i + 1, _DIVIDER, i, "======= line")
        closed = _find(lines, divider + 1, _REPLACE, i, ">>>>>>> REPLACE line")
        path = _path_of(lines, i, opened[1], known) or (blocks[-1].path if blocks else "")
        if not path and len(known) == 1:
            path = next(iter(known))
        if not path:
            raise BlockSyntaxError("no file path goes with this block: write it on the line before the block", i + 1)
        end = min(offsets[closed + 1], len(data))
        blocks.append(
            Block(path, _text(lines[i + 1 : divider]), _text(lines[divider + 1 : closed]), offsets[i], end, i + 1)
        )
        i = closed + 1
    return tuple(blocks)


def _text(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _find(lines: list[bytes], start: int, marker: re.Pattern[bytes], opened: int, name: str) -> int:
    for i in range(start, len(lines)):
        if marker.match(lines[i]):
            return i
        if _SEARCH.match(lines[i]):
            break
    raise BlockSyntaxError(f"the block that begins here has no {name}", opened + 1)


def _path_of(lines: list[bytes], at: int, behind: bytes, known: Collection[str]) -> str:
    """The path of the block whose SEARCH line is `lines[at]`, or an empty string."""
    candidates = [behind]
    for line in reversed(lines[max(at - _LOOK_BACK, 0) : at]):
        if _REPLACE.match(line):
            break
        fence = _FENCE.match(line)
        if fence is None:
            candidates.append(line)
        elif b" " in fence[1] or b"." in fence[1] or b"/" in fence[1]:
            candidates.append(fence[1].rpartition(b" ")[2])
    cleaned = [_clean(candidate) for candidate in candidates]
    for path in cleaned:
        if path in known:
            return path
    return next((path for path in cleaned if ("." in path or "/" in path) and _PATH.match(path)), "")


def _clean(line: bytes) -> str:
    """A line without what models wrap a path in: quotes, stars, list and comment signs, `File:`, a closing colon."""
    text = line.decode("utf-8", "surrogateescape").strip()
    text = re.sub(r"^(?:[#>*-]+|//|\d+\.)\s+", "", text)
    text = _LABEL.sub("", text, count=1).strip("*`\"' ")
    text = text.removesuffix(":").strip("*`\"' ")
    return text.removeprefix("./")
