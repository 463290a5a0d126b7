"""Files that survive a kill: whole-file writes are atomic, and appended JSON lines tolerate a cut last line."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from boostapr.errors import UserError


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write the whole file or nothing: a reader sees the old content or the new, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = data.encode() if isinstance(data, str) else data
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Every row of a JSON-lines file; a last line that was cut by a kill is left out.

    Raises:
        UserError: a line other than an unfinished last one is no JSON object; names the file and line.
    """
    return [row for row, _ in _rows(path)]


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Rows with the byte offset behind each."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            offset += len(line)
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    return  # cut by a kill
                raise UserError(
                    f"{path}, line {number}: not JSON ({error}). Remove the line, or redo the stage."
                ) from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number}: a JSON object is needed, not {type(row).__name__}.")
            yield row, offset


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


class JsonlWriter:
    """Appends rows to a JSON-lines file that may exist already; `rows` are those it held when opened.

    A last line that a kill cut short is removed first, so that a resumed stage goes on behind the last whole row.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rows: list[dict[str, Any]] = []
        end = 0
        if path.exists():
            for row, end in _rows(path):  # noqa: B007  # `end` is used after the loop: the offset behind the last row
                self.rows.append(row)
            os.truncate(path, end)
        self._file: IO[str] = path.open("a", encoding="utf-8")
        if self.rows and not _ends_with_newline(path):
            self._file.write("\n")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; it is in the operating system's hands when this returns, so a kill does not lose it."""
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "JsonlWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
