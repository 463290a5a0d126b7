"""What all sandboxes share: the Protocol and the flow from a response to an `Outcome`."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from envs.sandboxes.cache import ResultCache, cache_key
from envs.sandboxes.grading import RunResult, grade
from envs.sandboxes.leases import scratch_folder
from envs.sandboxes.settings import SandboxSettings
from envs.sandboxes.tree import Tree, Unusable, build_tree
from envs.tasks import BugInstance

logger = logging.getLogger(__name__)


class Sandbox(Protocol):
    """A place where untrusted code runs. Thread-safe; one run at a time."""

    def run(self, instance: BugInstance, response: bytes) -> Outcome:
        """Apply the response, run the tests, grade. Never raises for what the response does."""
        ...

    def close(self) -> None:
        """Stop all processes and remove all files of this sandbox. Idempotent."""
        ...


class InfraError(Exception):
    """The machine failed, not the response: worth a retry, then `infra`."""


class SandboxUnavailable(UserError):
    """The backend cannot work on this machine at all. The message says why and what to do."""


@dataclass(frozen=True)
class Command:
    """One execution, as a backend sees it. memory_mb bounds all processes together."""

    tree: Tree
    argv: tuple[str, ...]
    timeout_s: float
    memory_mb: int
    language: str
    image: str | None


def clean_environment() -> dict[str, str]:
    """Environment of every run: nothing of the driver's, and nothing that differs from run to run."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        # Plugins that happen to be installed beside us are no part of an instance (it can name its own with -p).
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


class BaseSandbox(ABC):
    """The flow of design.md section 4: tree, apply, overlay, run, grade; with retries of the machine's failures."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._scratch = scratch_folder("apply")
        self._cache = ResultCache(settings.cache) if settings.cache else None

    @abstractmethod
    def _execute(self, command: Command) -> RunResult:
        """Run one command from a clean state. Raises InfraError if the machine fails."""

    @abstractmethod
    def _stop(self) -> None:
        """Release what the backend holds. May be called twice."""

    def run(self, instance: BugInstance, response: bytes) -> Outcome:
        """See `Sandbox.run`; known results come from the cache, if there is one."""
        with self._lock:
            if self._cache is None:
                return self._run(instance, response)
            key = cache_key(instance, response, self.settings)
            outcome = self._cache.get(key)
            if outcome is None:
                outcome = self._run(instance, response)
                self._cache.put(key, outcome)
            return outcome

    def _run(self, instance: BugInstance, response: bytes) -> Outcome:
        try:
            tree = build_tree(instance, response, self._scratch)
        except Unusable as refusal:
            return Outcome(refusal.status, detail=refusal.detail)
        except OSError as error:  # no git, no space left: nothing that a response can cause
            return Outcome(Status.INFRA, detail=f"the tree could not be prepared: {error}")
        command = Command(
            tree=tree,
            argv=instance.test_command,
            timeout_s=instance.timeout_s or self.settings.timeout_s,
            memory_mb=instance.memory_mb or self.settings.memory_mb,
            language=instance.language,
            image=instance.image,
        )
        try:
            return grade(instance, tree, self._retrying(command))
        except InfraError as error:
            return Outcome(Status.INFRA, detail=str(error))

    def _retrying(self, command: Command) -> RunResult:
        wait = self.settings.retry_backoff_s
        for attempt in range(self.settings.infra_retries + 1):
            try:
                return self._execute(command)
            except InfraError as error:
                last = error
            if attempt < self.settings.infra_retries:
                logger.warning("sandbox failure, trying again in %.1f s: %s", wait, last)
                time.sleep(wait)
                wait *= 2
        raise last

    def close(self) -> None:
        """See `Sandbox.close`."""
        with self._lock:
            self._stop()
            shutil.rmtree(self._scratch, ignore_errors=True)
            if self._cache is not None:
                self._cache.close()

    def __enter__(self) -> BaseSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
