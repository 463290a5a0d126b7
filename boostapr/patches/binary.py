"""The body of a "GIT binary patch": base-85 lines around a zlib stream. git drops a corrupt one without an error code."""

from __future__ import annotations

import base64
import re
import zlib

_METHOD = re.compile(rb"(?:literal|delta) (\d{1,12})[^\n]*\n")
_LINE = re.compile(rb"([A-Za-z])([^\n]+)\n")
_CHUNK = 1 << 16
# git itself inflates whatever a patch declares; a response that declares more than this is refused instead.
MAX_INFLATED = 1 << 28


def binary_end(data: bytes, start: int) -> int | None:
    """The end of the binary patch whose first line is at `start`, or None if git could not decode it."""
    end = _hunk_end(data, data.index(b"\n", start) + 1)
    if end is None or _METHOD.match(data, end) is None:
        return end
    return _hunk_end(data, end)


def _hunk_end(data: bytes, start: int) -> int | None:
    method = _METHOD.match(data, start)
    if method is None or int(method[1]) > MAX_INFLATED:
        return None
    stream = zlib.decompressobj()
    size, position = 0, method.end()
    try:
        while (line := _LINE.match(data, position)) is not None:
            length = line[1][0]
            length -= 64 if length <= 90 else 70
            capacity = len(line[2]) // 5 * 4
            if len(line[2]) % 5 or not capacity - 4 < length <= capacity:
                return None
            size += _inflated(stream, base64.b85decode(line[2])[:length])
            position = line.end()
    except (ValueError, zlib.error):
        return None
    if data[position : position + 1] != b"\n" or not stream.eof or size != int(method[1]):
        return None
    return position + 1


def _inflated(stream: zlib._Decompress, chunk: bytes) -> int:
    """Feed `chunk`; how many bytes came out. They are not kept."""
    size = 0
    while chunk and not stream.eof:
        size += len(stream.decompress(chunk, _CHUNK))
        if size > MAX_INFLATED:
            raise ValueError("inflates to more than it may")
        chunk = stream.unconsumed_tail
    return size
