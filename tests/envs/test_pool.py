"""run_many: every item once, duplicates and known results not run again, workers that die, drivers that die."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_cases import GOOD, diff_to, make_instance, make_settings

from boostapr.errors import UserError
from boostapr.outcomes import Outcome, Status
from envs.sandboxes import SandboxUnavailable, pool, run_many
from envs.sandboxes.cache import ResultCache, cache_key

HERE = Path(__file__).parent


def test_every_item_comes_back_once_and_known_results_are_not_run_again(tmp_path, monkeypatch):
    """Order may differ, indices must not; a second pass over the same items starts no worker at all."""
    settings = make_settings(cache=tmp_path / "deep" / "results.sqlite")
    items = [
        (make_instance(), GOOD),
        (make_instance(), diff_to("return 0")),
        (make_instance(), GOOD),
        (make_instance(), b""),
    ]
    first = dict(run_many(settings, items, progress=None))
    assert [first[i].status for i in range(4)] == ["resolved", "tests_failed", "resolved", "format"]
    assert first[0] is first[2]  # identical pairs ran once
    monkeypatch.setattr(pool, "Worker", None)  # would raise if called
    assert dict(run_many(settings, items, progress=None)) == first


def test_flaky_outcomes_are_not_cached(tmp_path):
    """A timeout may be the machine's: it must be looked at again."""
    cache = ResultCache(tmp_path / "c.sqlite")
    for status in Status:
        cache.put(status, Outcome(status))
    assert {s for s in Status if cache.get(s) is None} == {Status.TIMEOUT, Status.OUT_OF_MEMORY, Status.INFRA}
    assert cache.prune(older_than_s=-1) == len(Status) - 3 and cache.get(Status.RESOLVED) is None
    cache.close()


def test_cache_keys_follow_response_instance_and_limits():
    """Anything that can change an outcome changes the key; bookkeeping does not."""
    settings = make_settings()
    key = cache_key(make_instance(), GOOD, settings)
    assert cache_key(make_instance(), GOOD + b"\n", settings) != key
    assert cache_key(make_instance(timeout_s=1), GOOD, settings) != key
    assert cache_key(make_instance(), GOOD, make_settings(memory_mb=64)) != key
    assert cache_key(make_instance(), GOOD, make_settings(workers=7, infra_retries=5)) == key


def test_a_broken_cache_file_is_named(tmp_path):
    """The reader must learn which file to remove."""
    (tmp_path / "c.sqlite").write_text("this is no database, by far" * 100)
    with pytest.raises(UserError, match=r"c\.sqlite cannot be used as the result cache"):
        ResultCache(tmp_path / "c.sqlite")


def test_a_dead_worker_is_replaced_then_its_item_is_infra(monkeypatch):
    """A worker that dies once costs nothing; one that dies every time ends as infra, never as a failure of the patch."""
    real, deaths = pool.Worker.run, []

    def run(self, instance, response):
        if response == b"kills its worker" or (response == GOOD and not deaths):
            deaths.append(response)
            self._process.kill()
        return real(self, instance, response)

    monkeypatch.setattr(pool.Worker, "run", run)
    items = [(make_instance(), GOOD), (make_instance(), b"kills its worker")]
    outcomes = dict(run_many(make_settings(workers=1), items, progress=None))
    assert outcomes[0].status is Status.RESOLVED
    assert outcomes[1].status is Status.INFRA and "worker ended" in outcomes[1].detail
    assert deaths == [GOOD, *[b"kills its worker"] * 2]


def test_an_unusable_backend_says_so(monkeypatch):
    """The worker's reason reaches the caller instead of endless restarts."""
    refuses = "from envs.sandboxes.guest import wire; wire.receive(0); wire.send(1, {'error': 'no kernel for this'})"
    real = subprocess.Popen
    monkeypatch.setattr(pool.subprocess, "Popen", lambda _, **rest: real([sys.executable, "-c", refuses], **rest))
    with pytest.raises(SandboxUnavailable, match="no kernel for this"):
        list(run_many(make_settings(), [(make_instance(), GOOD)], progress=None))


def _descendants(pid: int) -> set[int]:
    found, queue = set(), [pid]
    while queue:
        for task in Path(f"/proc/{queue.pop()}/task").glob("*/children"):
            children = {int(child) for child in task.read_text().split()}
            found |= children
            queue += children
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_dead_driver_leaves_no_process(number, tmp_path):
    """Workers, servers and hostile loops end with the driver, however it ends."""
    script = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from sandbox_cases import *\nfrom envs.sandboxes import run_many\n"
        "loop = make_instance(output_mode='code', target='stats.py', timeout_s=100)\n"
        "code = b'import os\\nif os.fork() == 0: os.setsid()\\nwhile True: pass'\n"
        "print('up', flush=True)\n"
        "list(run_many(make_settings(workers=1), [(loop, code)], None))\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1])
    assert driver.stdout is not None and driver.stdout.readline() == "up\n"
    deadline = time.monotonic() + 60
    while len(family := _descendants(driver.pid)) < 5:  # worker, two servers, the loop and its daemon
        assert time.monotonic() < deadline, "the run did not start"
        time.sleep(0.05)
    driver.send_signal(number)
    driver.wait(30)
    driver.stdout.close()
    while alive := [pid for pid in family if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.05)
    assert not alive


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_closing_early_stops_the_workers():
    """A caller that breaks out of the loop leaves nothing running."""
    loop = make_instance(output_mode="code", target="stats.py", timeout_s=100)
    items = [(make_instance(), GOOD), (loop, b"while True: pass")]
    others = _descendants(os.getpid())
    runs = run_many(make_settings(), items, progress=None)
    index, outcome = next(runs)
    assert (index, outcome.status) == (0, Status.RESOLVED)
    family = _descendants(os.getpid()) - others
    start = time.monotonic()
    runs.close()
    assert time.monotonic() - start < 30
    assert family and not [pid for pid in family if _is_alive(pid)]


def test_outcomes_cross_the_pipe_unchanged():
    """The worker sends outcomes as JSON."""
    outcome = Outcome(Status.TESTS_FAILED, {"a": "failed"}, output="\udc80 é \x00", exit_code=-11)
    assert Outcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome
