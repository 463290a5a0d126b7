"""Results of earlier runs: content-addressed, in one SQLite file, safe for concurrent processes and crashes."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import sqlite3
import sys
import time
from pathlib import Path

from boostapr.errors import UserError
from boostapr.outcomes import Outcome
from envs.sandboxes.settings import SandboxSettings
from envs.tasks import BugInstance

_BUSY_WAIT_S = 60.0
# Settings that change what an outcome can be; the others (workers, retries, the cache itself) do not.
_LIMITS = ("backend", "timeout_s", "memory_mb", "disk_mb", "max_processes", "max_open_files", "output_limit_bytes")


@functools.cache
def runner_version() -> str:
    """Digest of this package's sources, the interpreter and the test runners: what turns a response into an outcome."""
    digest = hashlib.sha256(sys.version.encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    for package in ("unittest-xml-reporting", "pytest"):
        try:
            digest.update(importlib.metadata.version(package).encode())
        except importlib.metadata.PackageNotFoundError:
            digest.update(b"none")
    return digest.hexdigest()


def cache_key(instance: BugInstance, response: bytes, settings: SandboxSettings) -> str:
    """Hex digest over the instance, the response's bytes, the runner's version and the limits."""
    limits = {name: getattr(settings, name) for name in _LIMITS}
    parts = [
        instance.digest,
        hashlib.sha256(response).hexdigest(),
        runner_version(),
        json.dumps(limits, sort_keys=True),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class ResultCache:
    """key -> Outcome. Flaky outcomes (timeout, out of memory, infra) are never stored.

    Raises UserError if the file exists and is no such cache.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The caller serialises access; threads may differ from call to call.
        self._database = sqlite3.connect(path, timeout=_BUSY_WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, outcome TEXT NOT NULL, stored_at REAL NOT NULL)"
            )
        except sqlite3.DatabaseError as error:
            self._database.close()
            raise UserError(f"{path} cannot be used as the result cache ({error}): remove it or name another") from None

    def get(self, key: str) -> Outcome | None:
        """The stored outcome, or None."""
        row = self._database.execute("SELECT outcome FROM results WHERE key = ?", (key,)).fetchone()
        return Outcome.from_dict(json.loads(row[0])) if row else None

    def put(self, key: str, outcome: Outcome) -> None:
        """Store an outcome unless it is flaky."""
        if not outcome.status.is_flaky:
            row = (key, json.dumps(outcome.to_dict()), time.time())
            self._database.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", row)

    def prune(self, older_than_s: float) -> int:
        """Forget results stored more than that many seconds ago; returns how many."""
        limit = time.time() - older_than_s
        removed = self._database.execute("DELETE FROM results WHERE stored_at < ?", (limit,)).rowcount
        self._database.execute("VACUUM")
        return removed

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._database.close()
