"""The warm fork server of one sandbox slot: receives a tree and a command, runs it contained, returns what happened.

    python -m guest.server            (messages on stdin and stdout, see wire.py)

The first message configures it, and the reply lists what is contained; then one reply per run. It ends when its stdin
does, and takes every process of the slot along.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from . import LOADED_AT_START, runner, wire
from . import slot as slots

# What tests of small programs import: loaded once here instead of in every run.
_PRELOAD = """
    argparse ast bisect calendar collections.abc contextlib copy csv dataclasses datetime decimal difflib enum
    fractions functools hashlib heapq inspect io itertools json logging math operator pathlib pickle random re shutil
    statistics string struct subprocess tempfile textwrap threading time traceback types typing uuid xml.dom.minidom
"""
_FIRST_CHECK_S = 0.05  # most runs are over before memory and disk are looked at
_CHECK_EVERY_S = 0.02
_MOST_PATIENCE = 10  # times the limit, however busy the machine is
_REPORT_LIMIT = 16 << 20
_SETUP_FAILED = 121


class Output:
    """What a run prints: the first and the last half of the limit are kept, the middle is counted."""

    def __init__(self, limit: int) -> None:
        self.half, self.head, self.tail, self.dropped = limit // 2, bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:] if room > 0 else data
        if len(self.tail) > 2 * self.half:
            self._trim()

    def _trim(self) -> None:
        extra = max(0, len(self.tail) - self.half)
        self.dropped += extra
        del self.tail[:extra]

    def value(self) -> bytes:
        self._trim()
        gap = f"\n... {self.dropped} bytes left out ...\n".encode() if self.dropped else b""
        return bytes(self.head) + gap + bytes(self.tail)


class Server:
    """The loop around one `Slot`."""

    def __init__(self, slot: slots.Slot, requests: int) -> None:
        self.slot = slot
        self.requests = requests

    def run(self, request: Mapping[str, Any], contents: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        """One run from a wiped box to a wiped box."""
        slot = self.slot
        module = runner.python_module(request["argv"])
        if module is not None and not runner.preload(module):
            return {"error": f"the test runner {module} is not installed for {sys.executable}"}, []
        slot.write_tree(request["files"], contents)
        out_read, out_write = os.pipe()
        attest_read, attest_write = os.pipe()
        start = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._become_run(request, module, out_write, attest_write)
        os.close(out_write)
        os.close(attest_write)
        result, output, attestation = self._watch(pid, out_read, attest_read, start, request)
        result["wall_s"] = time.monotonic() - start
        report = slot.read_file(slot.report, _REPORT_LIMIT)
        changed = [
            path
            for (path, _, is_protected), content in zip(request["files"], contents, strict=True)
            if is_protected and slot.read_file(f"{slot.work}/{path}", len(content) + 1) != content
        ]
        slot.wipe()
        result |= {"attestation": attestation.decode(errors="replace"), "has_report": report is not None}
        result |= {"root": slot.work, "changed": changed}
        return result, [output.value(), report or b""]

    def _watch(
        self, pid: int, out_read: int, attest_read: int, start: float, request: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Output, bytes]:
        """Read the run's output and hold it to its limits until it ends; then end all of its processes."""
        slot, output, attestation, stopped = self.slot, Output(self.slot.config.output_limit_bytes), b"", ""
        timeout_s: float = request["timeout_s"]
        deadline, next_check, peak_mb = start + timeout_s, start + _FIRST_CHECK_S, 0.0
        ended = os.pidfd_open(pid)
        poll = select.poll()
        for fd in (out_read, attest_read, ended):
            poll.register(fd, select.POLLIN)
        poll.register(self.requests, 0)  # only a hang-up: the driver is gone
        is_running = True
        while is_running and not stopped:
            now = time.monotonic()
            if now >= deadline:
                # A busy machine is not the program's fault: the time it stood in line for a core does not count.
                starved = slots.starved_s(pid)
                deadline = start + min(timeout_s + starved, timeout_s * _MOST_PATIENCE)
                if now >= deadline:
                    stopped = "timeout"
                    break
            if now >= next_check:
                used = slot.memory_mb(request["memory_mb"])
                peak_mb = max(peak_mb, used)
                if used > request["memory_mb"]:
                    stopped = "memory"
                elif not slot.has_own_root and slot.disk_used_mb() > slot.config.disk_mb:
                    stopped = "disk"
                next_check = time.monotonic() + _CHECK_EVERY_S
                continue
            for fd, event in poll.poll(max(0.0, min(deadline, next_check) - now) * 1000 + 1):
                if fd == ended:
                    is_running = False
                elif fd == self.requests:
                    slot.kill_all()
                    os._exit(0)
                elif event & select.POLLIN and (data := os.read(fd, 1 << 16)):
                    if fd == out_read:
                        output.add(data)
                    elif len(attestation) < 1 << 16:
                        attestation += data
                else:
                    poll.unregister(fd)
        code, cpu_s = None, 0.0
        if not is_running:
            _, status, usage = os.wait4(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            cpu_s, peak_mb = usage.ru_utime + usage.ru_stime, max(peak_mb, usage.ru_maxrss / 1024)
            if code in (-signal.SIGXCPU, -signal.SIGKILL) and cpu_s >= slots.cpu_limit_s(timeout_s) - 0.1:
                stopped, code = "timeout", None
        cpu_s += slot.kill_all()
        for fd in (out_read, attest_read):  # everyone is dead: read what still stands in the pipes
            while data := os.read(fd, 1 << 16):
                if fd == out_read:
                    output.add(data)
                elif len(attestation) < 1 << 16:
                    attestation += data
            os.close(fd)
        os.close(ended)
        return {"exit_code": code, "stopped": stopped, "cpu_s": cpu_s, "peak_memory_mb": peak_mb}, output, attestation

    def _become_run(self, request: Mapping[str, Any], module: str | None, output: int, attest: int) -> NoReturn:
        """In the forked child: never returns."""
        slot = self.slot
        try:
            os.setsid()
            null = os.open("/dev/null", os.O_RDONLY)
            for source, target in ((null, 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            memory = request["address_space_mb"]
            limit = None if memory is None else memory * slots.MIB + slots.address_space_bytes()
            slot.restrict(request["timeout_s"], limit)
            attest = os.dup2(attest, 3, inheritable=False)
            os.closerange(4, 1 << 20)
            os.chdir(slot.work)
            _forget_modules({path.partition("/")[0].removesuffix(".py") for path, _, _ in request["files"]})
            os.environ.clear()
            os.environ.update(request["environment"] | {"HOME": slot.tmp, "TMPDIR": slot.tmp})
            argv = [argument.replace("{report}", slot.report) for argument in request["argv"]]
        except BaseException as error:
            _fail_setup(attest, request["nonce"], f"{type(error).__name__}: {error}")
        if module is None:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            try:
                os.execvp(argv[0], argv)
            except OSError as error:
                _fail_setup(attest, request["nonce"], f"cannot start {argv[0]}: {error.strerror}")
        os._exit(runner.run_module(module, argv[3:], slot.report, request["nonce"], attest) & 0xFF)


def _forget_modules(local: set[str]) -> None:
    """Let the program import its own modules, not ours or the library's that bear the same name."""
    parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [entry for entry in sys.path if entry != parent]
    runners = {root for tree in runner.RUNNER_TREES.values() for root in tree}
    for name in list(sys.modules):
        top = name.partition(".")[0]
        if top == "guest" or (top in local and top not in runners and top not in LOADED_AT_START):
            del sys.modules[name]


def _fail_setup(attest: int, nonce: str, message: str) -> NoReturn:
    os.write(attest, json.dumps({"nonce": nonce, "setup_error": message}).encode())
    os._exit(_SETUP_FAILED)


def _self_test(slot: slots.Slot) -> str:
    """What a contained process of this slot cannot do but must, or ""."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        problem = ""
        try:
            slot.restrict(timeout_s=10, memory_bytes=None)
            for path in (os.path.dirname(os.__file__), sys.executable):
                if not os.access(path, os.R_OK | os.X_OK):
                    problem = f"the interpreter ({path}) cannot be read by uid {os.getuid()}"
            with open(f"{slot.work}/probe", "w") as file:
                file.write("x")
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        os.write(write_end, problem.encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        problem = pipe.read().decode(errors="replace")
    slot.kill_all()
    slot.wipe()
    return problem


def _rehearse(slot: slots.Slot) -> None:
    """Warm up by running tests of our own in this process, silently; nothing happens without xmlrunner."""
    if not runner.preload("xmlrunner"):
        return
    saved = sys.argv, list(sys.path), sys.stdout, sys.stderr
    null = os.open(os.devnull, os.O_WRONLY)
    with open(os.devnull, "w") as silence:
        sys.stdout = sys.stderr = silence
        runner.run_module("xmlrunner", ["--output-file", slot.report, "guest.rehearsal"], slot.report, "", null)
    sys.argv, sys.path[:], sys.stdout, sys.stderr = saved
    slot.wipe()


def main() -> None:
    """Configure from the first message, then serve runs until stdin ends."""
    requests, replies = 0, 1
    header, _ = wire.receive(requests)
    slot = slots.Slot(slots.Config(**header | {"readable": tuple(header["readable"])}))
    try:
        slot.enter()
        problem = _self_test(slot)
    except OSError as error:
        problem = str(error)
    wire.send(replies, {"error": problem, "contained": slot.contained, "root": slot.work})
    if problem:
        return
    for name in _PRELOAD.split():
        importlib.import_module(name)
    _rehearse(slot)
    gc.collect()
    gc.freeze()  # keep the shared pages shared
    server = Server(slot, requests)
    with contextlib.suppress(wire.Closed, BrokenPipeError):
        while True:
            request, contents = wire.receive(requests)
            wire.send(replies, *server.run(request, contents))


if __name__ == "__main__":
    main()
