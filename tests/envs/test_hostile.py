"""Hostile programs, run as the "repair" of an instance: each ends in its right status, and nothing else is harmed.

The hostile line runs when the tests import the module or call the function, inside the sandbox only.
"""

import os
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_cases import GOOD, TESTS, diff_to, make_instance, make_settings

from boostapr.outcomes import Status
from envs.sandboxes import BaseSandbox, SandboxUnavailable, open_sandbox


@pytest.fixture(scope="module", params=[True, False], ids=["namespaces", "no namespaces"])
def sandbox(request) -> Iterator[BaseSandbox]:
    """With all walls, and with those that are left where namespaces are refused (containers, no root)."""
    try:
        opened = open_sandbox(make_settings(namespaces=request.param))
    except SandboxUnavailable as error:
        pytest.skip(f"process backend, namespaces={request.param}: {error}")
    with opened:
        yield opened


def module(text: str) -> bytes:
    """A response in code mode: the whole of stats.py."""
    return textwrap.dedent(text).encode()


def run(sandbox, text, **changes):
    return sandbox.run(make_instance(output_mode="code", target="stats.py", **changes), module(text))


def assert_next_run_is_clean(sandbox):
    """The neighbour after a hostile run must not notice."""
    outcome = sandbox.run(make_instance(), GOOD)
    assert outcome.status is Status.RESOLVED, outcome


@pytest.mark.parametrize(
    "text",
    [
        "while True: pass",
        "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "import threading\nthreading.Lock().acquire(); threading.Event().wait()",
    ],
    ids=["loop", "ignores SIGTERM", "deadlock"],
)
def test_endless_programs_time_out(sandbox, text):
    """A loop, a loop that ignores signals, and a sleep all end at the limit."""
    outcome = run(sandbox, text, timeout_s=1)
    assert outcome.status is Status.TIMEOUT
    assert_next_run_is_clean(sandbox)


def test_fork_bomb_is_bounded_and_cleared(sandbox):
    """The machine keeps its process table, the next run its cores."""
    text = """
        import os, time
        def add(a, b):
            while True:
                try:
                    if os.fork() == 0:
                        while True: time.sleep(60)
                except OSError:
                    time.sleep(60)
    """
    # Out of memory where only that bounds it: without a uid of its own, a slot has no count of processes.
    assert run(sandbox, text, timeout_s=1).status in (Status.TIMEOUT, Status.OUT_OF_MEMORY)
    assert_next_run_is_clean(sandbox)


def test_memory_hogs_run_out_of_memory(sandbox):
    """One process beyond the limit; and many, each below it."""
    one = "def add(a, b):\n    hog = bytearray(400 << 20)\n    return a + b\n"
    assert run(sandbox, one).status is Status.OUT_OF_MEMORY
    many = """
        import os, time
        for _ in range(12):
            if os.fork() == 0:
                hog = bytearray(os.urandom(1 << 20) * 40)
                time.sleep(60)
        time.sleep(60)
    """
    assert run(sandbox, many, timeout_s=10).status is Status.OUT_OF_MEMORY
    assert_next_run_is_clean(sandbox)


def test_disk_filler_hits_its_quota(sandbox):
    """Many files below the size limit of one file."""
    text = """
        import errno, os
        code = 0
        try:
            for n in range(1000):
                with open(f"fill-{n}", "wb") as file: file.write(bytes(1 << 20))
        except OSError as error:
            code = error.errno
        for name in os.listdir("."):
            if name.startswith("fill-"): os.remove(name)
        def add(a, b): return {errno.ENOSPC: "full", 0: "unlimited"}[code]
    """
    outcome = run(sandbox, text)
    assert outcome.status is Status.TESTS_FAILED
    assert "quota" in outcome.detail or "'full' != 3" in outcome.failures[0].message
    assert_next_run_is_clean(sandbox)


def test_much_output_is_capped(sandbox):
    """A flood of output costs time, not memory; its two ends are kept."""
    text = """
        import sys
        print("first line")
        for _ in range(200): sys.stdout.write("x" * (1 << 18))
        print("last line", flush=True)
        def add(a, b): return a + b
    """
    outcome = run(sandbox, text)
    assert outcome.status is Status.RESOLVED
    assert len(outcome.output) < 25_000 and "bytes left out" in outcome.output
    assert "first line" in outcome.output and "OK" in outcome.output


def test_daemons_do_not_survive(sandbox):
    """A double-forked daemon of its own session is dead when the run is graded."""
    text = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    time.sleep(0.02)
                    open(os.environ["TMPDIR"] + "/alive", "a").write("x")
            os._exit(0)
        os.wait()
        def add(a, b): return a + b
    """
    assert run(sandbox, text).status is Status.RESOLVED
    looks = """
        import os, time
        time.sleep(0.1)
        mine = [str(os.getpid())] if os.getuid() < 60100 else [p for p in os.listdir("/proc") if p.isdigit() and os.stat(f"/proc/{p}").st_uid == os.getuid()]
        assert mine == [str(os.getpid())], mine
        assert os.listdir(os.environ["TMPDIR"]) == [], os.listdir(os.environ["TMPDIR"])
        def add(a, b): return a + b
    """
    outcome = run(sandbox, looks)
    assert outcome.status is Status.RESOLVED, outcome


def test_files_do_not_reach_the_next_run(sandbox):
    """Work folder, temporary folder and shared memory are empty again, however hard the tree is to remove."""
    leaves = """
        import os, pathlib
        for root in (".", os.environ["TMPDIR"], "/dev/shm", "/tmp"):
            try: pathlib.Path(root, "planted").write_text("x")
            except OSError: pass
        home = os.getcwd()
        for _ in range(1500):
            os.mkdir("d"); os.chdir("d")
        os.chmod(".", 0)
        os.chdir(home)
        pathlib.Path("sitecustomize.py").write_text("import os; os._exit(0)")
        def add(a, b): return a + b
    """
    assert run(sandbox, leaves).status is Status.RESOLVED
    looks = """
        import os
        found = {root: os.listdir(root) for root in (".", os.environ["TMPDIR"], "/dev/shm") if os.access(root, os.R_OK)}
        assert sorted(found["."]) == ["stats.py", "test_stats.py"], found
        assert not found[os.environ["TMPDIR"]] and not found.get("/dev/shm"), found
        def add(a, b): return a + b
    """
    outcome = run(sandbox, looks)
    assert outcome.status is Status.RESOLVED, outcome


def test_nothing_outside_can_be_written_or_read(sandbox, tmp_path, monkeypatch):
    """Writes outside, secrets of the host and of the driver, and its parent processes are out of reach."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    tmp_path.chmod(0o777)
    (tmp_path / "readable").write_text("host file")
    text = f"""
        import os, signal, ctypes
        reached = []
        def attempt(name, action):
            try:
                if action() is not False: reached.append(name)
            except OSError: pass
        for place in ("/etc/x", "/usr/x", "/x", {str(tmp_path / "x")!r}, {str(Path.home() / "x")!r}):
            attempt("write " + place, lambda: open(place, "w"))
        attempt("shadow", lambda: open("/etc/shadow").read())
        attempt("host file", lambda: open({str(tmp_path / "readable")!r}).read())
        def environ_of_others():
            for pid in os.listdir("/proc"):
                if pid.isdigit() and int(pid) != os.getpid():
                    attempt("environ " + pid, lambda: open(f"/proc/{{pid}}/environ").read())
            return False
        attempt("environ", environ_of_others)
        if "SECRET_TOKEN" in os.environ: reached.append("own environ")
        for pid in (1, os.getppid(), {os.getpid()}):
            attempt(f"kill {{pid}}", lambda: os.kill(pid, signal.SIGKILL))
        attempt("root", lambda: os.setuid(0))
        libc = ctypes.CDLL(None, use_errno=True)
        for name, arguments in dict(unshare=(0x10000000,), ptrace=(16, 1, 0, 0), mount=(0, 0, 0, 0, 0)).items():
            attempt(name, lambda: getattr(libc, name)(*arguments) == 0)
        def add(a, b): return reached
    """
    outcome = run(sandbox, text)
    assert outcome.failures[0].message == "AssertionError: [] != 3", outcome
    assert not (tmp_path / "x").exists()
    assert_next_run_is_clean(sandbox)


def test_the_network_is_out_of_reach(sandbox):
    """Neither this machine's own services nor others: a listener of ours on every address sees nobody."""
    import socket

    with socket.create_server(("0.0.0.0", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        text = f"""
            import socket
            reached = []
            for host in ("127.0.0.1", {socket.gethostbyname(socket.gethostname())!r}, "192.0.2.1"):
                try: reached.append(socket.create_connection((host, {port}), 1))
                except OSError: pass
            def add(a, b): return len(reached)
        """
        outcome = run(sandbox, text)
        assert outcome.failures[0].message == "AssertionError: 0 != 3", outcome
        with pytest.raises(TimeoutError):
            server.accept()


FORGED = '<testsuite><testcase classname="test_stats.T" name="test_add"/><testcase classname="test_stats.T" name="test_zero"/></testsuite>'


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import sys; sys.exit(0)", Status.SPOOFED),
        ("import os; os._exit(0)", Status.SPOOFED),
        ("import os\ndef add(a, b): os._exit(0)", Status.SPOOFED),
        (f"import os, sys\nopen(sys.argv[2], 'w').write({FORGED!r})\nos._exit(0)", Status.SPOOFED),
        ("print('test_add PASSED')\nprint('OK')\ndef add(a, b): return 0", Status.TESTS_FAILED),
        ("import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef add(a, b): return 0", Status.SPOOFED),
        ("import unittest\nunittest.TestCase.run = lambda s, r: r.startTest(s) or r.addSuccess(s)\ndef add(a, b): return 0",
         Status.SPOOFED),
        ("import unittest.case as c\nc.TestCase.assertEqual.__code__ = (lambda self, a, b, msg=None: None).__code__\n"
         "def add(a, b): return 0", Status.SPOOFED),
        ("import xmlrunner.result as r\nr._XMLTestResult.addFailure = r._XMLTestResult.addSuccess\ndef add(a, b): return 0",
         Status.SPOOFED),
        ("import unittest\nclass T(unittest.TestCase):\n    def assertEqual(self, *a): pass\nunittest.TestCase = T\n"
         "def add(a, b): return 0", Status.SPOOFED),
        ("import builtins\nbuiltins.print = lambda *a: None\ndef add(a, b): return 0", Status.SPOOFED),
        ("import os, sys, time\nif os.fork() == 0:\n    path = sys.argv[2]\n    time.sleep(0.05)\n    end = time.time() + 5\n"
         f"    while time.time() < end: open(path, 'w').write({FORGED!r})\n    os._exit(0)\ndef add(a, b): return 0", None),
        ("import unittest\nraise unittest.SkipTest('all is well')", Status.COLLECT_FAILED),
        ("import unittest\ndef add(a, b): raise unittest.SkipTest('all is well')", Status.TESTS_FAILED),
        ("import os\nfor name in ('test_stats.py',):\n    try: os.remove(name)\n    except OSError: pass\n"
         "try: open('test_stats.py', 'w').write('')\nexcept OSError: pass\ndef add(a, b): return 0", None),
    ],
)  # fmt: skip
def test_forged_results_are_never_resolved(sandbox, text, status):
    """Early exits, forged reports, printed verdicts, and changes to the runner: spoofed, or plainly failed."""
    outcome = run(sandbox, text)
    assert outcome.status is not Status.RESOLVED
    if status is not None:
        assert outcome.status is status, outcome
    if outcome.status is Status.SPOOFED:
        assert outcome.pass_rate(make_instance().required_tests) == 0.0 and outcome.detail


def test_a_patch_cannot_touch_tests_or_steer_the_runner(sandbox):
    """Edited tests are restored, new conftest.py, configuration and shadowing modules removed, before anything runs."""
    empty_tests = "--- a/test_stats.py\n+++ b/test_stats.py\n@@ -1,2 +1,2 @@\n-import unittest\n+import unittest; raise SystemExit(0)\n from stats import add\n"
    instance = make_instance(files={**make_instance().files, "test_stats.py": TESTS})
    assert sandbox.run(instance, empty_tests.encode()).status is Status.TESTS_FAILED
    for name in ("conftest.py", "xmlrunner.py", "unittest/__init__.py", "sitecustomize.py"):
        steer = f"--- /dev/null\n+++ b/{name}\n@@ -0,0 +1,1 @@\n+import os; os._exit(0)\n"
        assert sandbox.run(make_instance(), steer.encode()).status is Status.TESTS_FAILED, name


def test_conftest_and_pytest_tricks(sandbox):
    """The same through pytest: hooks in a conftest.py do not run, changes to its classes are seen."""
    tests = "from stats import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"
    changes = {
        "test_files": {"test_stats.py": tests}, "FAIL_TO_PASS": ["test_stats::test_add"], "PASS_TO_PASS": [],
        "test_command": ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml={report}"],
    }  # fmt: skip
    hook = "import pytest\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport(item, call):\n    r = yield\n    r.get_result().outcome = 'passed'\n"
    lines = hook.splitlines()
    steer = f"--- /dev/null\n+++ b/conftest.py\n@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}\n" for line in lines)
    assert sandbox.run(make_instance(**changes), steer.encode()).status is Status.TESTS_FAILED
    patched = "import _pytest.runner as r\nr.call_runtest_hook = lambda *a, **k: None\ndef add(a, b): return 0"
    assert run(sandbox, patched, **changes).status is not Status.RESOLVED
    patched = "import _pytest.reports as r\nr.TestReport.from_item_and_call = None\ndef add(a, b): return 0"
    assert run(sandbox, patched, **changes).status is not Status.RESOLVED


def test_the_servers_own_modules_are_not_in_the_way(sandbox):
    """The program sees neither the server's modules nor its pipes."""
    text = """
        import os, sys
        assert not [n for n in sys.modules if n.startswith("guest")]
        fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
        assert fds[:3] == [0, 1, 2] and len(fds) <= 6, fds
        def add(a, b): return a + b
    """
    outcome = run(sandbox, text)
    assert outcome.status is Status.RESOLVED, outcome


def test_infra_is_retried_when_the_server_dies():
    """A server that is gone is replaced, and the response is none the wiser."""
    with open_sandbox(make_settings()) as own:
        assert own.run(make_instance(), GOOD).status is Status.RESOLVED
        own._server.kill()
        own._server.wait()
        time.sleep(0.05)
        assert own.run(make_instance(), diff_to("return a + b")).status is Status.RESOLVED
