"""The run folder: what a stage leaves behind, when it counts as finished, and who may work in it.

    runs/<name>/                      one run; locked by its driver
      <stage>/config.yaml             the settings that the stage saw, resolved
      <stage>/metrics.jsonl           and tensorboard/
      <stage>/log.txt                 everything it printed
      <stage>/done.json               written last, atomically: without it the stage is unfinished

A finished stage is skipped. An unfinished one continues from what its folder holds. Both hold only as long as the
settings are the ones it was started with: otherwise `StaleStage` lists the keys that differ.
"""

import fcntl
import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from boostapr.config import flatten
from boostapr.errors import UserError
from boostapr.files import JsonlWriter, read_jsonl, write_atomic, write_json
from boostapr.metrics import MetricsWriter

__all__ = [
    "JsonlWriter",
    "MetricsWriter",
    "MissingInput",
    "Run",
    "RunLocked",
    "Stage",
    "StageRun",
    "StaleStage",
    "read_jsonl",
    "write_atomic",
    "write_json",
]

# Recorded with every result: another version of one of these may give other numbers.
VERSIONS = ("boostapr", "torch", "transformers", "verl", "vllm", "ray", "peft", "tokenizers", "numpy")


class RunLocked(UserError):
    """Another driver is at work in the run folder."""


class StaleStage(UserError):
    """A stage's folder was made with other settings than those given now."""


class MissingInput(UserError):
    """A file that another stage makes does not exist yet."""


@dataclass(frozen=True)
class Stage:
    """A link of the chain.

    Attributes:
        name: its name in `force=[...]` and in messages; usually also its module and command.
        folder: its place in the run folder.
        title: one line for the list that the pipeline prints.
        needs: names of the stages whose files it reads.
        settings: the sections of the root config that it reads. It sees no others, so that these decide alone whether
            what it left is still valid.
        makes: the files it leaves; it does not count as finished without them.
        module: what runs it, if not `stages.<name>`.
        overrides: settings that it has on top of those of the run.
        grows: it keeps a record of the settings with each of its results, and checks it itself: other settings reopen the
            stage instead of making it stale, and it looks for its inputs as it needs them.
    """

    name: str
    folder: str
    title: str
    needs: tuple[str, ...]
    settings: tuple[str, ...]
    makes: tuple[str, ...] = ()
    module: str = ""
    overrides: tuple[str, ...] = ()
    grows: bool = False

    @property
    def command(self) -> str:
        """The command that runs it alone, without the settings of the run."""
        return " ".join([f"boostapr {(self.module or self.name).removeprefix('stages.')}", *self.overrides])


class Run:
    """One run folder and the chain of stages that fill it.

    Args:
        folder: runs/<name>
        chain: the stages in the order in which they run.
        command: what the user typed after the stage's name, such as "experiment=demo", for the remedies in messages.
        local: dotted keys that change how fast a result comes, not what it is; a difference in them is none.
    """

    def __init__(self, folder: Path, chain: Sequence[Stage], command: str = "", local: Sequence[str] = ()) -> None:
        self.folder = folder
        self.chain = tuple(chain)
        self.command = command
        self.local = frozenset(local)
        self._lock: int | None = None

    def __getitem__(self, name: str) -> Stage:
        for stage in self.chain:
            if stage.name == name:
                return stage
        raise UserError(f"There is no stage `{name}`; there are: {', '.join(stage.name for stage in self.chain)}.")

    def path(self, stage: Stage | str) -> Path:
        """The folder of a stage."""
        return self.folder / (self[stage] if isinstance(stage, str) else stage).folder

    # -- the lock ----------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the run folder for this process; the kernel gives it back when the process ends, however it ends.

        Raises:
            RunLocked: another process has it; the message holds its pid.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise RunLocked(
                f"{self.folder} is in use by another boostapr (process {owner}). "
                f"Wait for it, stop it (`kill {owner}`), or choose another folder with `name=...`."
            ) from None
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._lock = handle

    def unlock(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- finished, stale, forced ---------------------------------------------------------------------------------------

    def done(self, stage: Stage | str) -> dict[str, Any] | None:
        """What done.json says, or None while the stage is unfinished."""
        path = self.path(stage) / "done.json"
        if not path.exists():
            return None
        record: dict[str, Any] = yaml.safe_load(path.read_text())
        return record

    def check(self, stage: Stage, settings: Mapping[str, Any]) -> None:
        """Is what the stage's folder holds made with these settings? A stage that grows is reopened if it is not.

        Raises:
            StaleStage: it is not; lists the keys that differ, old and new value, and the remedies.
        """
        path = self.path(stage) / "config.yaml"
        if not path.exists():
            return
        before, now = flatten(yaml.safe_load(path.read_text()) or {}), flatten(settings)
        absent = object()
        keys = [key for key in sorted({*before, *now} - self.local) if before.get(key, absent) != now.get(key, absent)]
        if keys and stage.grows:
            (self.path(stage) / "done.json").unlink(missing_ok=True)
        elif keys:
            lines = "\n".join(f"  {key}: {_show(before, key)} -> {_show(now, key)}" for key in keys)
            state = "finished" if self.done(stage) else "begun"
            later = [later.name for later in self.after(stage)]
            redo = f" (and with it {', '.join(later)})" if later else ""
            raise StaleStage(
                f"{self.path(stage)} was {state} with other settings:\n{lines}\n"
                f"Either go back to those settings, or redo {stage.name}{redo} with `force=[{stage.name}]`, "
                f"or start a new run with `name=...`."
            )

    def after(self, stage: Stage) -> list[Stage]:
        """The stages that build on this one, directly or through others."""
        found = {stage.name}
        later = []
        for other in self.chain:
            if found & set(other.needs):
                found.add(other.name)
                later.append(other)
        return later

    def reset(self, stage: Stage) -> list[Stage]:
        """Empty the stage's folder and those of the stages that build on it; returns those that held anything."""
        emptied = []
        for one in [stage, *self.after(stage)]:
            folder = self.path(one)
            if folder.exists():
                (folder / "done.json").unlink(missing_ok=True)  # first, so that a kill halfway leaves it unfinished
                shutil.rmtree(folder)
                emptied.append(one)
        return emptied

    def open(self, stage: Stage, settings: Mapping[str, Any]) -> "StageRun":
        """Begin or continue a stage: checks its inputs and leaves config.yaml.

        Raises:
            StaleStage: the folder was begun with other settings.
            MissingInput: a stage that it needs is unfinished.
        """
        self.check(stage, settings)
        self.check_needs(stage)
        folder = self.path(stage)
        resumed = (folder / "config.yaml").exists()
        (folder / "done.json").unlink(missing_ok=True)
        write_atomic(folder / "config.yaml", yaml.safe_dump(dict(settings), sort_keys=False))
        return StageRun(self, stage, folder, resumed)

    def check_needs(self, stage: Stage, planned: Iterable[str] = ()) -> None:
        """Are the stages that this one needs finished, or `planned` to run before it?

        Raises:
            MissingInput: one is not; says how to run it.
        """
        for name in () if stage.grows else stage.needs:
            if name not in planned and self.done(name) is None:
                raise self.missing(self[name], self.path(name), stage)

    def missing(self, maker: Stage, path: Path, reader: Stage) -> MissingInput:
        """The error that says which stage makes `path`, and with which command."""
        return MissingInput(
            f"Stage {reader.name} needs {path}, which stage {maker.name} makes. Run it first:\n"
            f"  {f'{maker.command} {self.command}'.strip()}\n"
            f"or all that is missing:  {f'boostapr pipeline {self.command}'.strip()}"
        )


@dataclass
class StageRun:
    """What a stage works with: its folder, the files of the stages before it, and its metrics.

    resumed: an earlier start was interrupted, and what it left is there.
    """

    run: Run
    stage: Stage
    folder: Path
    resumed: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return self.stage.name

    def input(self, path: str) -> Path:
        """A file or folder of an earlier stage, by its path in the run folder, such as "sft/model".

        Raises:
            MissingInput: it does not exist; says which stage makes it, with its command.
        """
        full = self.run.folder / path
        if not full.exists():
            makers = [stage for stage in self.run.chain if full.is_relative_to(self.run.path(stage))]
            if not makers:
                raise MissingInput(f"Stage {self.name} needs {full}, which no stage makes.")
            raise self.run.missing(makers[-1], full, self.stage)
        return full

    def metrics(self, resume_step: int | None = None) -> MetricsWriter:
        """The stage's metrics; `resume_step` as in `MetricsWriter`."""
        return MetricsWriter(self.folder, resume_step)

    def finish(self, **details: Any) -> None:
        """Write done.json: from now on the stage counts as finished. `details` are kept in it.

        Its `wall_s` is the time of this start; `resumed` says whether there were others before it.
        """
        seconds = time.monotonic() - self.started
        for path in self.stage.makes:
            if not (self.folder / path).exists():
                raise RuntimeError(f"stage {self.name} ended without leaving {self.folder / path}")
        write_json(
            self.folder / "done.json",
            {
                "stage": self.name,
                "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "wall_s": round(seconds, 1),
                "resumed": self.resumed,
                "versions": versions(),
                **details,
            },
        )


def versions(names: Iterable[str] = VERSIONS) -> dict[str, str]:
    """Installed versions of the packages that shape the numbers; those not installed are left out."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _show(values: Mapping[str, Any], key: str) -> str:
    return repr(values[key]) if key in values else "(absent)"
