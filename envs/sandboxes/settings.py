"""The sandbox section of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SandboxSettings(BaseModel):
    """conf/sandbox. Sizes in MiB, times in seconds of wall clock."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    backend: Literal["process"]
    workers: int = Field(ge=1, description="worker processes of run_many, each with one sandbox")
    timeout_s: float = Field(gt=0, description="for instances that set none")
    memory_mb: int = Field(ge=16, description="for instances that set none; all processes of a run together")
    disk_mb: int = Field(ge=1, description="what a run may write, together")
    max_processes: int = Field(ge=1)
    max_open_files: int = Field(ge=16)
    output_limit_bytes: int = Field(ge=1024, description="kept of stdout and stderr together; the middle is cut")
    infra_retries: int = Field(ge=0, description="further tries after the machine failed")
    retry_backoff_s: float = Field(ge=0, description="wait before the first retry; doubles each time")
    cache: Path | None = Field(description="SQLite file of results, null for none")
    readable: tuple[str, ...] = Field(description="further host paths that runs may read, e.g. a JDK in /opt")
    namespaces: bool = Field(description="use private mount, pid, network and IPC namespaces where the kernel lets us")
    landlock: bool
    seccomp: bool
