"""Nothing of a run outlives it: what the supervisor promises, checked with real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from boostapr import supervise

# A stage that leaves every kind of descendant: a child, one in a session of its own, and one whose parent is gone.
STUBBORN = """
import os, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
plain = subprocess.Popen([sys.executable, "-c", code])
own_session = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
orphan = subprocess.run(["sh", "-c", f'setsid "{sys.executable}" -c "{code}" > /dev/null 2>&1 & echo $!'], capture_output=True, text=True)
open(sys.argv[1] + ".new", "w").write(f"{os.getpid()} {plain.pid} {own_session.pid} {orphan.stdout.strip()}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(float(sys.argv[2]))
"""
DRIVER = "import sys; from pathlib import Path; from boostapr import supervise; supervise.raise_on_signals(); "
DRIVER += "supervise.run([sys.executable, '-c', *sys.argv[2:]], Path(sys.argv[1]))"


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.02)


def pids_in(path: Path) -> list[int]:
    wait_for(path.exists)
    return [int(word) for word in path.read_text().split()]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def test_exit_code_and_output_pass_through(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The driver sees the stage's own exit code; the log holds the last state of a progress bar, not each one."""
    log = tmp_path / "stage" / "log.txt"
    code = "import sys; print('10%\\r50%\\r100%'); print('oops', file=sys.stderr); sys.exit(7)"
    assert supervise.run([sys.executable, "-c", code], tmp_path, log) == 7
    assert log.read_text() == "100%\noops\n"
    assert "10%" in capfd.readouterr().out
    assert supervise.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], tmp_path) == 128 + 9


def test_the_stage_carries_the_label_of_its_run(tmp_path: Path) -> None:
    """Sweeping finds processes by this label, also where Ray has renamed them (SPT_NOENV keeps the environment whole)."""
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['BOOSTAPR_RUN'] + ' ' + os.environ['SPT_NOENV'])"
    supervise.run([sys.executable, "-c", code, str(tmp_path / "seen")], tmp_path)
    assert (tmp_path / "seen").read_text() == f"{tmp_path.resolve()} 1"


def test_descendants_die_when_the_stage_ends(tmp_path: Path) -> None:
    """Also those that called setsid, ignore SIGTERM, or whose parent is gone."""
    assert supervise.run([sys.executable, "-c", STUBBORN, str(tmp_path / "pids"), "0"], tmp_path) == 0
    pids = pids_in(tmp_path / "pids")
    assert len(pids) == 4
    assert alive(pids) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_descendants_die_with_the_driver(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL leaves the driver no chance to act: the kernel tells the supervisor."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), STUBBORN, str(tmp_path / "pids"), "600"])
    pids = pids_in(tmp_path / "pids")
    assert len(alive(pids)) == 4
    driver.send_signal(number)
    driver.wait(timeout=120)
    wait_for(lambda: not alive(pids))
    wait_for(lambda: not supervise._labelled(str(tmp_path.resolve())))


def test_ctrl_c_reaches_the_driver_only(tmp_path: Path) -> None:
    """The stage is in another session: it is stopped in order (SIGTERM), not by a KeyboardInterrupt of its own."""
    stage = "import signal, sys, time, pathlib\n"
    stage += "def stop(*_): pathlib.Path(sys.argv[1] + '.term').write_text('x'); sys.exit(0)\n"
    stage += "signal.signal(signal.SIGTERM, stop); pathlib.Path(sys.argv[1]).write_text('1'); time.sleep(600)"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), stage, str(tmp_path / "up")], start_new_session=True
    )
    wait_for((tmp_path / "up").exists)
    os.killpg(driver.pid, signal.SIGINT)
    assert driver.wait(timeout=120) != 0
    assert (tmp_path / "up.term").exists()


def test_sweep_takes_only_its_own_run(tmp_path: Path) -> None:
    """After a SIGKILL of everything, the next start ends what carries its label, and touches nothing else."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    nested = [
        sys.executable,
        "-c",
        "import subprocess, sys, time; subprocess.Popen(['sleep', '600'], env={}); time.sleep(600)",
    ]
    mine, other = tmp_path / "mine", tmp_path / "mine-2"
    left = subprocess.Popen(nested, env={**os.environ, supervise.LABEL: str(mine)})
    foreign = subprocess.Popen(sleeper, env={**os.environ, supervise.LABEL: str(other)})
    unlabelled = subprocess.Popen(sleeper)
    try:
        wait_for(lambda: psutil.Process(left.pid).children())
        child = psutil.Process(left.pid).children()[0].pid
        found = supervise.sweep(mine)
        assert len(found) == 2
        wait_for(lambda: alive([left.pid, child]) == [])
        assert alive([foreign.pid, unlabelled.pid]) == [foreign.pid, unlabelled.pid]
        assert supervise.sweep(mine) == []
    finally:
        for process in (left, foreign, unlabelled):
            process.kill()
            process.wait()


def test_the_supervisor_ends_if_its_driver_is_gone_already(tmp_path: Path) -> None:
    """The driver may die between starting the supervisor and the supervisor's request to be told."""
    command = [sys.executable, "-m", "boostapr.supervise", "1", os.devnull, "touch", str(tmp_path / "ran")]
    assert subprocess.run(command).returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "ran").exists()


def test_die_with_parent_under_make(tmp_path: Path) -> None:
    """As the Makefile does it: the parent is killed with SIGKILL and the driver is told; without the variable nothing changes."""
    program = "from boostapr import supervise; supervise.die_with_parent(); import os, sys, time, pathlib; "
    program += "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    recipe = f'exec env BOOSTAPR_PARENT=$$PPID "{sys.executable}" -c "{program}" {tmp_path / "pid"}'
    (tmp_path / "Makefile").write_text(f"run:\n\t@{recipe}\n")
    make = subprocess.Popen(["make", "-C", str(tmp_path), "run"], stdout=subprocess.DEVNULL)
    pids = pids_in(tmp_path / "pid")
    assert alive(pids) == pids
    make.kill()
    make.wait()
    wait_for(lambda: not alive(pids))
