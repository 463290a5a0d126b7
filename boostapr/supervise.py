"""Nothing of a run outlives it: every stage runs under a small process that owns all of its descendants.

    driver (boostapr pipeline)  ->  supervisor (this module)  ->  python -m stages.X  ->  Ray, vLLM, sandboxes

The supervisor is a child subreaper: a descendant whose parent dies, or that called setsid, becomes its child, so it can
find and kill all of them, whatever they did to get away. It is told by the kernel when the driver dies, also by SIGKILL.
Should the supervisor be killed too, the next start of the same run sweeps what is left: every process carries the run
folder in its environment (BOOSTAPR_RUN), and only processes with this very label are touched.

This module imports the standard library and psutil only: it must start at once and stay small. Linux only.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import psutil

LABEL = "BOOSTAPR_RUN"
PARENT = "BOOSTAPR_PARENT"
GRACE_S = 20.0  # what a stage gets between SIGTERM and SIGKILL to close its files and shut Ray down
REAP_S = 30.0  # how long a killed process may take to go away (it may be in the kernel, writing to a slow disk)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Terminated(BaseException):
    """SIGTERM or SIGHUP, raised in the main thread so that `finally` blocks run; the exit code is 128 + signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def run(command: Sequence[str], run_dir: Path, log: Path | None = None) -> int:
    """Run `command` under a supervisor and return its exit code (128 + n if signal n ended it).

    When this returns or raises, no process of the command is left. What it prints passes through and is kept in `log`.
    """
    environment = {**os.environ, LABEL: str(run_dir.resolve()), "PYTHONUNBUFFERED": "1"}
    # A pipe is no terminal: progress bars must be told how wide and how often.
    environment.setdefault("TQDM_NCOLS", "100")
    environment.setdefault("TQDM_MININTERVAL", "0.5" if sys.stderr.isatty() else "15")
    # Threads that wait for work must not spin: beside other work on the same cores that costs several times the run time.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment["SPT_NOENV"] = "1"  # Ray renames its processes; this keeps the name out of the environment block
    environment.pop(PARENT, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "boostapr.supervise", str(os.getpid()), str(log or os.devnull), *command],
        env=environment,
        start_new_session=True,  # Ctrl-C reaches the driver only, which then stops the stage in order
    )
    try:
        return _exit_code(process.wait())
    except BaseException:
        with _deaf():
            process.terminate()
            process.wait()
        raise


def die_with_parent() -> None:
    """If BOOSTAPR_PARENT names a process (the Makefile sets it), get SIGTERM when it dies; exit if it is dead already."""
    parent = os.environ.pop(PARENT, None)
    if parent is not None:
        _die_with(int(parent), signal.SIGTERM)


def raise_on_signals() -> None:
    """Turn SIGTERM and SIGHUP into `Terminated`, as Python turns SIGINT into KeyboardInterrupt."""
    signal.signal(signal.SIGTERM, _raise)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored under nohup: stay so
        signal.signal(signal.SIGHUP, _raise)


def sweep(run_dir: Path) -> list[str]:
    """Kill what an earlier driver of this run left behind, and return the names of what was found.

    Only processes whose environment carries this run folder as label, and their descendants, are touched; never this
    process or its ancestors. Call it with the run's lock held.
    """
    mine = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    found: dict[int, str] = {}
    deadline = time.monotonic() + REAP_S
    while victims := [process for process in _labelled(str(run_dir.resolve())) if process.pid not in mine]:
        for process in _with_descendants(victims):
            if process.pid in mine:
                continue
            with contextlib.suppress(psutil.Error):
                found.setdefault(process.pid, process.name())
                process.kill()
        psutil.wait_procs(victims, timeout=1)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of an earlier start do not die: {[process.pid for process in victims]}")
    return list(found.values())


# -- the supervisor process ---------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """`python -m boostapr.supervise DRIVER_PID LOG COMMAND...`"""
    driver, log, command = int(argv[0]), Path(argv[1]), list(argv[2:])
    raise_on_signals()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _die_with(driver, signal.SIGTERM)
    log.parent.mkdir(parents=True, exist_ok=True)
    me = os.getpid()

    def prepare() -> None:  # in the child, between fork and exec
        _die_with(me, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with log.open("ab") as file:
        stage: subprocess.Popen[bytes] | None = None
        copier: threading.Thread | None = None
        try:
            stage = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a stage that signals its whole process group does not hit its supervisor
                preexec_fn=prepare,
            )
            assert stage.stdout is not None
            copier = threading.Thread(target=_copy, args=(stage.stdout, file), daemon=True)
            copier.start()
            code = stage.wait()
        except Terminated as stop:
            code = stop.exit_code
            if stage is not None:
                with _deaf(), contextlib.suppress(subprocess.TimeoutExpired):
                    stage.terminate()
                    stage.wait(GRACE_S)
        finally:
            with _deaf():
                left = kill_descendants()
                if copier is not None:
                    copier.join(timeout=5)
    if left:
        print(f"boostapr: processes that could not be killed: {left}", file=sys.stderr)
    return _exit_code(code)


def kill_descendants() -> list[int]:
    """SIGKILL every descendant of this process and wait for each; returns the pids that would not die."""
    deadline = time.monotonic() + REAP_S
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not _reap() or time.monotonic() > deadline:
            return [process.pid for process in psutil.Process().children(recursive=True)]
        time.sleep(0.02)


def _reap() -> bool:
    """Collect the dead children; True while some are left. Orphans of the dead arrive here, so one round is not enough."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _copy(source: BinaryIO, log: BinaryIO) -> None:
    """Pass the stage's output on, and keep it in the log: of a progress bar's line only its last state."""
    terminal = sys.stdout.buffer
    line = b""
    while chunk := os.read(source.fileno(), 65536):
        with contextlib.suppress(OSError):  # the terminal may be gone; the log goes on
            terminal.write(chunk)
            terminal.flush()
        *whole, line = (line + chunk).split(b"\n")
        log.writelines(_last_state(text) + b"\n" for text in whole)
        line = line[-65536:]
        log.flush()
    log.write(_last_state(line))


def _last_state(line: bytes) -> bytes:
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1]


# -- small parts --------------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _die_with(parent: int, number: int) -> None:
    """Ask the kernel for a signal when the parent dies. It may have died before the request: then end at once."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(128 + number)


def _raise(number: int, _frame: FrameType | None) -> None:
    raise Terminated(number)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignore further signals while the cleaning goes on: a second Ctrl-C must not leave half of it running.

    (Ignored, not blocked: a mask holds for one thread only, and Python runs handlers in the main one whoever was hit.)
    """
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def _environment(process: psutil.Process) -> Mapping[str, str]:
    try:
        return process.environ()
    except psutil.Error:  # gone, or someone else's
        return {}


def _labelled(label: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _environment(process).get(LABEL) == label]


def _with_descendants(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    found = {process.pid: process for process in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.update({child.pid: child for child in process.children(recursive=True)})
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
