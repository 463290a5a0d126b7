"""Training curves: one JSON line per step for programs, TensorBoard for eyes."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from boostapr.files import JsonlWriter


class MetricsWriter:
    """Writes `metrics.jsonl` and `tensorboard/` in a stage folder.

    A stage that resumes passes `resume_step`, the last step that its checkpoint holds: later lines, written before the
    kill, are dropped, so that no step appears twice.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        self.path = folder / "metrics.jsonl"
        if resume_step is not None and self.path.exists():
            self._rewind(resume_step)
        self._lines = JsonlWriter(self.path)
        self._folder = folder / "tensorboard"
        self._purge = None if resume_step is None else resume_step + 1
        self._board: Any = None

    def _rewind(self, step: int) -> None:
        kept = [line for line in self.path.read_bytes().splitlines(keepends=True) if _step(line) <= step]
        scratch = self.path.with_suffix(".tmp")
        scratch.write_bytes(b"".join(kept))
        scratch.replace(self.path)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One line `{"step", "time", name: value, ...}`; a value that is not finite is written as null."""
        numbers = {name: float(value) for name, value in values.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self._lines.write({"step": step, "time": round(time.time(), 3), **finite})
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import, and not every stage logs

            self._board = SummaryWriter(str(self._folder), purge_step=self._purge)
        for name, value in numbers.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._lines.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _step(line: bytes) -> float:
    """The step of a line; a line cut by a kill belongs to no step that is kept."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
