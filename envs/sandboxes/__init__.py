"""Where untrusted code runs: one Protocol, one file per backend.

with open_sandbox(settings) as sandbox:          # one, in this process: Ray actors, threads
    outcome = sandbox.run(instance, response)
for index, outcome in run_many(settings, items, progress="tests"):     # a batch, over worker processes
    ...
"""

from __future__ import annotations

from envs.sandboxes.base import BaseSandbox, Sandbox, SandboxUnavailable
from envs.sandboxes.pool import run_many
from envs.sandboxes.process import ProcessSandbox
from envs.sandboxes.settings import SandboxSettings

__all__ = ["BaseSandbox", "Sandbox", "SandboxSettings", "SandboxUnavailable", "open_sandbox", "run_many"]


def open_sandbox(settings: SandboxSettings) -> BaseSandbox:
    """One sandbox of the configured backend, to be closed by the caller. Raises SandboxUnavailable."""
    return ProcessSandbox(settings)
