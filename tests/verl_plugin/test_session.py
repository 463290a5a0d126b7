"""What surrounds Ray: environment, errors, processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from helpers import verl

from boostapr import supervise
from boostapr.verl_plugin import session
from boostapr.verl_plugin.session import RUN_ID, SessionError, environment, ray_session, run_id
from boostapr.verl_plugin.vllm_worker import own_socket


def test_a_cpu_run_chooses_our_platform() -> None:
    """`import verl` reads these; without them it takes the machine for a GPU machine."""
    variables = environment(verl())
    assert variables["VERL_PLATFORM"] == "cpu"
    assert variables["VERL_USE_EXTERNAL_MODULES"] == "boostapr.verl_plugin.platform_cpu"
    assert variables["BOOSTAPR_TRAINER_THREADS"] == "2"
    assert "VERL_PLATFORM" not in environment(verl("gpu"))


def test_two_runs_use_two_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl names the socket after the Ray job id, which is 01000000 in every private cluster."""
    verls = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"
    names = []
    for identity in ("one", "two"):
        monkeypatch.setenv(RUN_ID, identity)
        names.append(own_socket(verls))
    assert names[0] != names[1]
    monkeypatch.delenv(RUN_ID)
    with pytest.raises(RuntimeError, match="only inside"):
        run_id()


def test_a_failed_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each attempt's processes are ended, the environment is as before, and the reason is told."""
    attempts: list[subprocess.Popen[bytes]] = []

    def fail(*_: object) -> None:
        attempts.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        raise SessionError("Ray did not start: port in use")

    monkeypatch.setattr(session, "_start_ray", fail)
    before = dict(os.environ)
    with pytest.raises(SessionError, match="port in use"), ray_session(verl(), tmp_path):
        pass
    assert len(attempts) == verl().ray.start_attempts
    assert not any(
        psutil.pid_exists(p.pid) and psutil.Process(p.pid).status() != psutil.STATUS_ZOMBIE for p in attempts
    )
    assert dict(os.environ) == before


def test_other_children_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(session, "_start_ray", lambda *_: None)
    try:
        with ray_session(verl(), tmp_path):
            pass
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


def test_sigterm_reaches_the_caller_after_the_clearing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inside it is a KeyboardInterrupt, the only exception that Ray's waiting calls do not swallow; outside the stage's own."""
    steps: list[str] = []
    monkeypatch.setattr(session, "_start_ray", lambda *_: None)
    monkeypatch.setattr(session, "_end_everything", lambda _: steps.append("cleared"))
    before = signal.getsignal(signal.SIGTERM)
    supervise.raise_on_signals()
    try:
        with pytest.raises(supervise.Terminated), ray_session(verl(), tmp_path):
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                steps.append("interrupted")
                raise
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == ["interrupted", "cleared"]


def test_folders_of_killed_runs_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After a SIGKILL nobody clears up; the next run does, and leaves the folder of a living run alone."""
    monkeypatch.setattr(session.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(
        session.tempfile,
        "mkdtemp",
        lambda prefix: str(tmp_path / f"{prefix}new") if not (tmp_path / f"{prefix}new").mkdir() else "",
    )
    monkeypatch.setattr(session, "_MAX_SOCKET_FOLDER", 4096)
    dead, alive = tmp_path / "bapr-dead", tmp_path / "bapr-alive"
    dead.mkdir()
    alive.mkdir()
    with session._locked(alive), session._socket_folder() as folder:
        assert not dead.exists()
        assert alive.exists()
        assert folder.exists()
    assert not folder.exists()


def test_a_long_temporary_folder_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray fails with "AF_UNIX path too long" otherwise."""
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(
        session.tempfile, "mkdtemp", lambda prefix: str(deep / "x") if (deep / "x").mkdir() is None else ""
    )
    with pytest.raises(SessionError, match="TMPDIR"), ray_session(verl(), tmp_path):
        pass
