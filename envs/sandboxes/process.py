"""The process backend: a warm fork server per sandbox, with every wall that this kernel and user allow.

As root: a uid per slot, private namespaces with a root of their own, Landlock, seccomp, limits. Without root the uid
and the namespaces are missing, and that is said once, loudly. docs/sandboxes.md has the table.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import site
import subprocess
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path
from typing import Any

from envs.sandboxes.base import BaseSandbox, Command, InfraError, SandboxUnavailable, clean_environment
from envs.sandboxes.grading import RunResult
from envs.sandboxes.guest import runner, wire
from envs.sandboxes.guest.slot import Config
from envs.sandboxes.leases import lease_uid, scratch_folder
from envs.sandboxes.settings import SandboxSettings

logger = logging.getLogger(__name__)

_WALLS = {
    "own_uid": "runs share the user's own id: they may signal and trace the user's other processes, fork without limit",
    "namespaces": "no private file system, process and IPC namespaces: host files that everyone may read are readable",
    "network": "the network is open",
    "landlock": "no Landlock: runs may write wherever the slot's user may",
    "seccomp": "no seccomp filter: every system call of the kernel is open",
    "disk": "the disk quota is only looked at every few milliseconds",
}
_told: set[str] = set()


def readable_paths(settings: SandboxSettings) -> tuple[str, ...]:
    """Host paths that runs may read: the system's programs and libraries, this Python, and settings.readable."""
    system = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"]
    python = [sys.base_prefix, sys.prefix, sysconfig.get_path("stdlib"), *site.getsitepackages()]
    kept: list[str] = []
    for path in [*system, *python, *settings.readable]:
        if not any(path == other or path.startswith(f"{other}/") for other in kept):
            kept.append(path)
    return tuple(kept)


class ProcessSandbox(BaseSandbox):
    """See the module. Raises SandboxUnavailable if runs cannot work here."""

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings)
        self.contained: tuple[str, ...] = ()
        self._server: subprocess.Popen[bytes] | None = None
        self._uid: int | None = None
        self._lock_fd: int | None = None
        if os.geteuid() == 0:
            self._uid, self._lock_fd = lease_uid()
        self._box = scratch_folder("box")
        self._box.chmod(0o711)
        self._has_namespaces = settings.namespaces and os.geteuid() == 0
        try:
            self._start()
        except BaseException:
            self._stop()
            raise

    def _start(self) -> None:
        try:
            self._launch()
        except InfraError as error:
            if not self._has_namespaces:
                raise SandboxUnavailable(
                    f"the process sandbox cannot start: {error}. Use a Python that every user may read (not below "
                    "/root), or another sandbox backend"
                ) from None
            logger.warning("no private namespaces for the process sandbox (%s): going on without", error)
            self._has_namespaces = False
            self._start()
            return
        missing = [text for wall, text in _WALLS.items() if wall not in self.contained]
        if missing and not _told.issuperset(missing):
            _told.update(missing)
            logger.warning("the process sandbox does NOT contain everything here: %s", "; ".join(missing))

    def _launch(self) -> None:
        settings = self.settings
        config = Config(
            uid=self._uid,
            folder=str(self._box),
            readable=readable_paths(settings),
            namespaces=self._has_namespaces,
            landlock=settings.landlock,
            seccomp=settings.seccomp,
            disk_mb=settings.disk_mb,
            max_processes=settings.max_processes,
            max_open_files=settings.max_open_files,
            output_limit_bytes=settings.output_limit_bytes,
        )
        self._server = subprocess.Popen(
            [sys.executable, "-m", "guest.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=clean_environment() | {"PYTHONPATH": str(Path(__file__).parent), "PYTHONSAFEPATH": "1"},
            cwd="/",
            start_new_session=True,
        )
        reply, _ = self._exchange(asdict(config), [])
        if reply["error"]:
            self._kill_server()
            raise InfraError(reply["error"])
        self.contained = tuple(reply["contained"])

    def _exchange(self, header: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        server = self._server
        assert server is not None and server.stdin is not None and server.stdout is not None
        try:
            wire.send(server.stdin.fileno(), header, blobs)
            return wire.receive(server.stdout.fileno())
        except (OSError, EOFError) as error:
            self._kill_server()
            raise InfraError(f"the sandbox's server ended with exit code {server.returncode} ({error})") from None

    def _execute(self, command: Command) -> RunResult:
        if self._server is None or self._server.poll() is not None:
            self._launch()
        nonce = secrets.token_hex(16)
        files = list(command.tree.files.items())
        request = {
            "argv": list(command.argv),
            "files": [[path, file.mode, file.is_protected] for path, file in files],
            "timeout_s": command.timeout_s,
            "memory_mb": command.memory_mb,
            # A JVM reserves far more address space than it uses: there the watch on real memory is the limit.
            "address_space_mb": command.memory_mb if command.language == "python" else None,
            "environment": clean_environment(),
            "nonce": nonce,
        }
        reply, blobs = self._exchange(request, [file.content for _, file in files])
        if reply.get("error"):
            raise InfraError(reply["error"])
        attested, setup_error = parse_attestation(reply["attestation"], nonce)
        if setup_error:
            raise InfraError(setup_error)
        return RunResult(
            exit_code=reply["exit_code"],
            stopped=reply["stopped"],
            output=blobs[0].decode("utf-8", "replace"),
            report=blobs[1] if reply["has_report"] else None,
            is_attestable=runner.python_module(command.argv) is not None,
            attested=attested,
            changed=tuple(reply["changed"]),
            root=reply["root"],
            wall_s=reply["wall_s"],
            cpu_s=reply["cpu_s"],
            peak_memory_mb=reply["peak_memory_mb"],
        )

    def _kill_server(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        for pipe in (server.stdin, server.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            server.wait(timeout=15)  # it ends its processes itself once its stdin is closed
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def _stop(self) -> None:
        self._kill_server()
        shutil.rmtree(self._box, ignore_errors=True)
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None


def parse_attestation(text: str, nonce: str) -> tuple[tuple[int, str, tuple[str, ...]] | None, str]:
    """((exit code, report hash, tampered names), setup error) of the wrapper's message; (None, "") unless it is whole
    and bears the nonce of this run."""
    try:
        message = json.loads(text)
        if message["nonce"] != nonce:
            return None, ""
        if "setup_error" in message:
            return None, str(message["setup_error"])
        return (int(message["code"]), str(message["report"]), tuple(map(str, message["tampered"]))), ""
    except (ValueError, KeyError, TypeError):
        return None, ""
