"""Checkpoints that can be trusted after a kill: a folder counts only with its `complete.json`, written last.

verl's tracker file is written in place, its checkpoints lack the adaptive KL coefficient, and it forgets to clear what an
earlier process saved; so the stage chooses, completes and prunes checkpoints itself.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from boostapr.files import write_json

_FOLDER = re.compile(r"global_step_(\d+)")
_COMPLETE = "complete.json"


@dataclass(frozen=True)
class Checkpoint:
    """One saved step. kl_coef: the coefficient to be used in the next step."""

    path: Path
    step: int
    kl_coef: float


def complete_checkpoints(folder: Path) -> list[Checkpoint]:
    """Checkpoints that were saved to the end, oldest first."""
    found = []
    for path in folder.glob("global_step_*"):
        match = _FOLDER.fullmatch(path.name)
        marker = path / _COMPLETE
        if match and marker.is_file():
            content = json.loads(marker.read_text())
            found.append(Checkpoint(path, int(match[1]), float(content["kl_coef"])))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint, or None."""
    found = complete_checkpoints(folder)
    return found[-1] if found else None


def mark_complete(path: Path, kl_coef: float) -> None:
    """Declare that everything of a checkpoint folder is on disk."""
    write_json(path / _COMPLETE, {"kl_coef": kl_coef})


def remove_incomplete(folder: Path) -> None:
    """Delete folders that a kill left half-written."""
    complete = {checkpoint.path for checkpoint in complete_checkpoints(folder)}
    for path in folder.glob("global_step_*"):
        if path not in complete:
            shutil.rmtree(path)


def prune(folder: Path, keep: int) -> None:
    """Keep the newest `keep` complete checkpoints."""
    for checkpoint in complete_checkpoints(folder)[:-keep]:
        (checkpoint.path / _COMPLETE).unlink()  # first, so that a kill in between leaves no half checkpoint that counts
        shutil.rmtree(checkpoint.path)
