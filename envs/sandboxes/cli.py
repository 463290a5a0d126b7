"""`boostapr sandbox`: clear away what dead runs left, and measure what a run costs.

boostapr sandbox prune [--cache FILE --days N]
boostapr sandbox bench [--runs N] [sandbox.workers=4 ...]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from boostapr.config import load_section
from boostapr.errors import UserError
from envs.sandboxes import SandboxSettings, leases, open_sandbox, run_many
from envs.sandboxes.cache import ResultCache
from envs.tasks import BugInstance, from_json

_DAY_S = 86400.0
_TESTS = """import unittest
from adder import add

class T(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)
"""


def _instance() -> BugInstance:
    return from_json(
        {
            "instance_id": "bench",
            "problem_statement": "",
            "FAIL_TO_PASS": ["test_adder.T::test_add"],
            "PASS_TO_PASS": [],
            "files": {"adder.py": "def add(a, b):\n    return a - b\n"},
            "test_files": {"test_adder.py": _TESTS},
            "test_command": ["python", "-m", "xmlrunner", "--output-file", "{report}", "test_adder"],
        }
    )


def _response(number: int) -> bytes:
    head = "--- a/adder.py\n+++ b/adder.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n"
    return f"{head}+    return a + b  # {number}\n".encode()


def _time_ms(action: Callable[[int], object], runs: int) -> list[float]:
    times = []
    for number in range(runs):
        start = time.perf_counter()
        action(number)
        times.append((time.perf_counter() - start) * 1000)
    return times


def _plain_ms(runs: int) -> list[float]:
    """The same tests, our own and harmless, in a fresh interpreter each time and without any wall."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "adder.py").write_text("def add(a, b):\n    return a + b\n")
        Path(folder, "test_adder.py").write_text(_TESTS)
        command = [sys.executable, "-m", "xmlrunner", "--output-file", "report.xml", "test_adder"]
        return _time_ms(lambda _: subprocess.run(command, cwd=folder, capture_output=True, check=True), runs)


def bench(settings: SandboxSettings, runs: int) -> None:
    """Print medians side by side: one sandbox run after run, a plain interpreter per run, and the pool's throughput."""
    instance = _instance()
    settings = settings.model_copy(update={"cache": None})
    with open_sandbox(settings) as sandbox:
        sandbox.run(instance, _response(-1))
        warm = _time_ms(lambda number: sandbox.run(instance, _response(number)), runs)
    plain = _plain_ms(max(1, runs // 5))
    start = time.perf_counter()
    count = sum(1 for _ in run_many(settings, [(instance, _response(n)) for n in range(runs)], progress=None))
    rate = count / (time.perf_counter() - start)
    print(
        f"{settings.backend} sandbox, warm, apply and tests   {statistics.median(warm):8.1f} ms (best {min(warm):.1f})"
    )
    print(f"python per run, no walls, tests only      {statistics.median(plain):8.1f} ms (best {min(plain):.1f})")
    print(f"run_many, {settings.workers} workers, with their start     {rate:8.1f} runs/s")


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="boostapr sandbox", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    prune = commands.add_parser("prune", help="remove processes and folders of sandboxes whose owners are gone")
    prune.add_argument("--cache", type=Path, help="also forget results in this cache file")
    prune.add_argument("--days", type=float, help="that are older than this many days")
    measure = commands.add_parser("bench", help="what a run costs here")
    measure.add_argument("--runs", type=int, default=50)
    measure.add_argument("overrides", nargs="*", help="settings of conf/sandbox")
    options = parser.parse_args(argv)
    if options.command == "bench":
        bench(load_section(SandboxSettings, "sandbox", ["name=bench", *options.overrides]), options.runs)
        return 0
    if (options.cache is None) != (options.days is None):
        raise UserError("--cache and --days go together")
    killed, removed = leases.prune()
    print(f"killed {killed} processes, removed {removed} folders of sandboxes whose owners are gone")
    if options.cache is not None:
        if not options.cache.is_file():
            raise UserError(f"there is no cache file {options.cache}")
        cache = ResultCache(options.cache)
        print(f"forgot {cache.prune(options.days * _DAY_S)} results older than {options.days:g} days")
        cache.close()
    return 0
