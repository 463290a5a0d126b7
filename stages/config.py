"""The root configuration: one model, composed from `conf/`, that every stage and the pipeline read.

Each section is defined beside the code that it configures; here they come together.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from boostapr.config import RepoPath, Settings


class MachineSettings(Settings):
    """What a run needs before it starts; checked at start-up, before any long work.

    `requirements` are the files of the tested set of package versions. Memory and disk are in GiB.
    """

    memory_gb: float = Field(gt=0)
    disk_gb: float = Field(gt=0)
    requirements: tuple[RepoPath, ...]


class Config(Settings):
    """One run. `force` names finished stages to redo, or is "all"; the run folder is `runs`/`name`."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,-]*$")
    runs: Path
    seed: int = Field(ge=0, lt=2**32)
    force: list[str] | Literal["all"]
    machine: MachineSettings
