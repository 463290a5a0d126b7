"""Checkpoints and model folders that a kill cannot leave half-written for the next stage to find."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint of the Trainer after `step` optimiser steps."""

    path: Path
    step: int


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete checkpoint-N of a folder, or None; ones that a kill cut short are removed.

    The Trainer writes trainer_state.json last, so a checkpoint is complete if that file is.
    """
    found: Checkpoint | None = None
    for path in folder.glob("checkpoint-*"):
        try:
            step = int(json.loads((path / "trainer_state.json").read_text())["global_step"])
        except (OSError, ValueError, KeyError):
            shutil.rmtree(path)
            continue
        if found is None or step > found.step:
            found = Checkpoint(path, step)
    return found


@contextlib.contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """A scratch folder beside `target` that takes its place if the block succeeds."""
    scratch = target.with_name(f".{target.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    shutil.rmtree(target, ignore_errors=True)
    scratch.replace(target)
