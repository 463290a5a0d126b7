"""A tiny instance, its reference patch, and settings for sandboxes to run it in."""

from envs.sandboxes import SandboxSettings
from envs.tasks import BugInstance, from_json

TESTS = """import unittest
from stats import add

class T(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(1, 2), 3)

    def test_zero(self):
        self.assertEqual(add(0, 0), 0)
"""
BUGGY = "# the sum of a and b\ndef add(a, b):\n    return a - b\n"


def make_instance(**changes: object) -> BugInstance:
    """stats.add subtracts; two tests, one of which shows it."""
    row: dict[str, object] = {
        "instance_id": "stats-1",
        "problem_statement": "add subtracts",
        "FAIL_TO_PASS": ["test_stats.T::test_add"],
        "PASS_TO_PASS": ["test_stats.T::test_zero"],
        "files": {"stats.py": BUGGY},
        "test_files": {"test_stats.py": TESTS},
        "test_command": ["python", "-m", "xmlrunner", "--output-file", "{report}", "test_stats"],
    }
    return from_json(row | changes)


def diff_to(line: str) -> bytes:
    """A response that replaces the faulty line."""
    head = "--- a/stats.py\n+++ b/stats.py\n@@ -2,2 +2,2 @@\n def add(a, b):\n-    return a - b\n"
    return (head + f"+    {line}\n").encode()


GOOD = diff_to("return a + b")


def make_settings(**changes: object) -> SandboxSettings:
    """Small limits: hostile programs must end quickly."""
    values: dict[str, object] = {
        "backend": "process",
        "workers": 2,
        "timeout_s": 20.0,
        "memory_mb": 128,
        "disk_mb": 16,
        "max_processes": 24,
        "max_open_files": 128,
        "output_limit_bytes": 20_000,
        "infra_retries": 1,
        "retry_backoff_s": 0.01,
        "cache": None,
        "readable": (),
        "namespaces": True,
        "landlock": True,
        "seccomp": True,
    }
    return SandboxSettings.model_validate(values | changes)
