"""Messages between a sandbox and its fork server: a JSON header and binary blobs, each length-prefixed.

JSON, not pickle: whatever the other side became, reading its message runs nothing.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from typing import Any

_PREFIX = struct.Struct(">Q")


class Closed(EOFError):
    """The other side is gone."""


def _read_exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            raise Closed("the other side closed the pipe")
        data += chunk
    return bytes(data)


def send(fd: int, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
    """Write one message. Raises BrokenPipeError if nobody reads any more."""
    encoded = json.dumps({**header, "blobs": [len(b) for b in blobs]}).encode()
    data = memoryview(b"".join([_PREFIX.pack(len(encoded)), encoded, *blobs]))
    while data:
        data = data[os.write(fd, data) :]


def receive(fd: int) -> tuple[dict[str, Any], list[bytes]]:
    """Read one message. Raises Closed at the end of the stream."""
    (length,) = _PREFIX.unpack(_read_exactly(fd, _PREFIX.size))
    header = json.loads(_read_exactly(fd, length))
    return header, [_read_exactly(fd, size) for size in header.pop("blobs")]
