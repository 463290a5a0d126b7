"""One Ray cluster per run, and nothing of it left behind when the run ends, fails or is interrupted.

A SIGKILL of the driver is the supervisor's business (boostapr.supervise), under which every stage runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from boostapr.errors import UserError
from boostapr.verl_plugin.settings import VerlSettings

RUN_ID = "BOOSTAPR_RUN_ID"
TRAINER_THREADS = "BOOSTAPR_TRAINER_THREADS"
_PREFIX = "bapr-"
_STOP = (signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 2.0  # between SIGTERM and SIGKILL; a stage that is told to stop has twenty seconds in all
_MAX_SOCKET_FOLDER = 40  # Ray puts about 60 more characters behind it, and a Unix socket's path may have 107


class SessionError(UserError):
    """Ray could not be started."""


def run_id() -> str:
    """The id of the run that this process belongs to, the same in all its processes. Raises RuntimeError outside of a run."""
    try:
        return os.environ[RUN_ID]
    except KeyError:
        raise RuntimeError(f"{RUN_ID} is not set: this code runs only inside `ray_session`") from None


@contextmanager
def ray_session(settings: VerlSettings, log_dir: Path) -> Iterator[None]:
    """Ray for one run, with the environment of `settings`; what its processes printed is moved to `log_dir` at the end.

    Raises SessionError if Ray does not start, with its reason.
    """
    identity = uuid.uuid4().hex[:12]
    variables = environment(settings) | {RUN_ID: identity}
    before = set(psutil.Process().children(recursive=True))
    with _socket_folder() as folder, _environ(variables), _interruptible():
        try:
            for attempt in range(1, settings.ray.start_attempts + 1):
                try:
                    _start_ray(settings, variables, folder / str(attempt))
                    break
                except SessionError:
                    if attempt == settings.ray.start_attempts:
                        raise
                    _end_everything(before)
            yield
        finally:
            _keep_logs(folder, log_dir)  # first: who is told to stop is not given much time
            _end_everything(before)
            _keep_logs(folder, log_dir)
            for path in Path("/tmp").glob(f"rl-colocate-zmq-{identity}-*"):  # see vllm_worker.own_socket
                path.unlink(missing_ok=True)


def environment(settings: VerlSettings) -> dict[str, str]:
    """Environment variables that every process of a run needs, verl's platform choice among them."""
    variables = dict(settings.env)
    if settings.device == "cpu":
        variables["VERL_PLATFORM"] = "cpu"
        variables["VERL_USE_EXTERNAL_MODULES"] = "boostapr.verl_plugin.platform_cpu"
    if settings.trainer_threads is not None:
        variables[TRAINER_THREADS] = str(settings.trainer_threads)
    return variables


@contextmanager
def _socket_folder() -> Iterator[Path]:
    """A folder for Ray's sockets and logs, gone afterwards; those of runs that were killed are removed, too."""
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(old):
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        if len(str(folder)) > _MAX_SOCKET_FOLDER:
            raise SessionError(
                f"The temporary folder {folder.parent} has a path too long for Ray's sockets: set TMPDIR to a shorter one, such as /tmp."
            )
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The kernel gives the lock back when its process dies. Raises BlockingIOError if another process has it."""
    handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


@contextmanager
def _environ(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _start_ray(settings: VerlSettings, variables: Mapping[str, str], folder: Path) -> None:
    import ray

    options: dict[str, Any] = {
        "address": settings.ray.address,
        "log_to_driver": settings.ray.log_to_driver,
        "logging_level": logging.WARNING,
        "runtime_env": {"env_vars": dict(variables)},
    }
    if settings.ray.address == "local":
        options |= {
            "num_cpus": settings.ray.num_cpus,
            "num_gpus": settings.ray.num_gpus,
            "include_dashboard": False,
            "_temp_dir": str(folder),
        }
        if settings.ray.object_store_mb is not None:
            options["object_store_memory"] = settings.ray.object_store_mb << 20
    handlers = {number: signal.getsignal(number) for number in _STOP}
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises plain Exception when its start times out
        raise SessionError(f"Ray did not start (verl.ray.address={settings.ray.address}): {error}") from error
    finally:
        _set_handlers(handlers)  # Ray has put its own in their place


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP through to the caller's handlers while Ray waits.

    Ray's waiting calls pass on KeyboardInterrupt and swallow any other exception that a handler raises. So a signal is
    turned into that, and the caller's handler gets it when everything has been cleared up.
    """
    received: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        received.append(number)
        raise KeyboardInterrupt

    handlers = {number: signal.getsignal(number) for number in _STOP}
    _set_handlers({number: interrupt for number, handler in handlers.items() if callable(handler)})
    try:
        yield
    except KeyboardInterrupt:
        _set_handlers(handlers)
        if received:
            signal.raise_signal(received[0])
        raise
    finally:
        _set_handlers(handlers)


def _set_handlers(handlers: Mapping[signal.Signals, Any]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end_everything(before: set[psutil.Process]) -> None:
    """Shut Ray down, then end what it leaves: vLLM's engine processes outlive the actor that started them by seconds.

    before: descendants that are not of this session.
    """
    import ray

    descendants = [process for process in psutil.Process().children(recursive=True) if process not in before]
    if ray.is_initialized():
        ray.shutdown()
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(descendants, timeout=_GRACE_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=_GRACE_S)


def _keep_logs(folder: Path, log_dir: Path) -> None:
    """Keep what each process printed, named after what it was: `TaskRunner-4711.err`. Ray's own logs are not kept."""
    for path in sorted(folder.glob("*/session_*/logs/*")):
        if path.suffix not in {".out", ".err"} or not path.name.startswith(("worker-", "raylet.err")):
            continue
        text = path.read_text(errors="replace")
        lines = [line for line in text.splitlines() if not line.startswith((":job_id:", ":actor_name:", ":task_name:"))]
        if any(line.strip() for line in lines):
            log_dir.mkdir(parents=True, exist_ok=True)
            actor = re.search(r"^:actor_name:(\w+)", text, re.MULTILINE)
            pid = path.stem.rsplit("-", 1)[-1]
            name = f"{actor[1]}-{pid}" if actor else path.stem
            (log_dir / (name + path.suffix)).write_text("\n".join(lines) + "\n")
