"""A worker process of `run_many`: one sandbox behind a pipe.

    python -m envs.sandboxes.worker            (messages on stdin and stdout, see guest/wire.py)

A process and not a thread, so that reading reports and applying patches use all cores, and nothing that a report does
to the parser can hurt the driver.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType

from envs.sandboxes import open_sandbox
from envs.sandboxes.base import SandboxUnavailable
from envs.sandboxes.guest import linux, wire
from envs.sandboxes.settings import SandboxSettings
from envs.tasks import from_json


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def main() -> None:
    """Serve runs until stdin ends, or the driver dies, or SIGTERM asks for a tidy end."""
    parent = os.getppid()
    linux.set_parent_death_signal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:  # it died in between
        return
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # a stray print must not break the messages
    header, _ = wire.receive(requests)
    try:
        sandbox = open_sandbox(SandboxSettings.model_validate(header))
    except (SandboxUnavailable, OSError) as error:
        wire.send(replies, {"error": str(error)})
        return
    wire.send(replies, {"error": ""})
    with sandbox:
        while True:
            try:
                header, (response,) = wire.receive(requests)
            except wire.Closed:
                return
            wire.send(replies, sandbox.run(from_json(header), response).to_dict())


if __name__ == "__main__":
    main()
