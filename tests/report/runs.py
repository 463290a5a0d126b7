"""Synthetic run folders for the tests of the report: small, but with the shape and the accidents of real ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATCH = """--- a/stats.py
+++ b/stats.py
@@ -1,4 +1,4 @@
 def mean(values):
-    total = 1
+    total = 0
     for value in values:
@@ -6,3 +6,4 @@
     # the mean is the sum over the count
-    return total
+    count = len(values)
+    return total / count
"""
FILES = {"stats.py": "def mean(values):\n    total = 1\n    for value in values:\n        total += value\n\n"
         "    # the mean is the sum over the count\n    return total\n"}  # fmt: skip


def instance(number: int, repo: str = "microbugs/stats") -> dict[str, Any]:
    return {
        "instance_id": f"bug-{number:03d}",
        "repo": repo,
        "problem_statement": "`mean([2, 4])` gives 7.\nIt must be 3 <b>& nothing else</b>.",
        "patch": PATCH,
        "FAIL_TO_PASS": ["test_stats.TestMean::test_two", "test_stats.TestMean::test_one"],
        "PASS_TO_PASS": ["test_stats.TestMean::test_empty"],
        "files": FILES,
        "test_command": ["python", "-m", "xmlrunner", "--output-file", "{report}", "test_stats"],
    }


def outcome(status: str) -> dict[str, Any]:
    passed = status == "resolved"
    ran = status in ("resolved", "tests_failed")
    tests = {
        "test_stats.TestMean::test_two": "passed" if passed else "failed",
        "test_stats.TestMean::test_one": "passed",
        "test_stats.TestMean::test_empty": "passed",
    }
    return {
        "status": status,
        "tests": tests if ran else {},
        "failures": [] if passed or not ran else [{"test": "test_stats.TestMean::test_two", "message": "AssertionError: 6 != 3",
                                                  "source_line": "self.assertEqual(mean([2, 4]), 3)", "frames": []}],
        "exit_code": 0 if passed else 1, "output": "", "wall_s": 0.02, "cpu_s": 0.02, "peak_memory_mb": 20.0, "detail": "",
    }  # fmt: skip


def row(
    number: int, status: str, sample: int = 0, mode: str = "greedy", credit: bool = False, **extra: Any
) -> dict[str, Any]:
    formats = {"apply_failed": "malformed", "format": "not_a_diff"}
    response = {"apply_failed": PATCH.replace("@@ -1,4", "@@ -1,x"), "format": "I cannot say."}.get(status, PATCH)
    record = {
        "instance_id": f"bug-{number:03d}",
        "sample": sample,
        "mode": mode,
        "response": response,
        "outcome": outcome(status),
        "format": formats.get(status, "valid"),
        "resolved": status == "resolved",
    }
    if credit:
        record["credit"] = {"seq": 0.8 if status == "resolved" else -0.3, "spans": span_credit(response)}
    return record | extra


def span_credit(response: str) -> list[dict[str, Any]]:
    """Byte ranges of the two replacements of PATCH with their scores and weights (softmax of 1.0 and 0.45 at tau 0.5)."""
    data = response.encode()
    found = []
    for first, last, score, weight in (
        (b"-    total = 1", b"+    total = 0\n", 1.0, 0.75),
        (b"-    return total\n", b"/ count\n", 0.45, 0.25),
    ):
        start = data.find(first)
        if start >= 0:
            found.append({"start": start, "end": data.index(last, start) + len(last), "score": score, "weight": weight})
    return found


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def results(
    run: Path,
    system: str,
    split: str,
    statuses: Sequence[str],
    samples: Sequence[Sequence[str]] = (),
    credit: bool = False,
) -> Path:
    """One greedy answer per status; `samples[i]` are the statuses of the sampled answers to instance i."""
    rows = [row(i, status, credit=credit) for i, status in enumerate(statuses)]
    rows += [row(i, status, k, "sampled") for i, drawn in enumerate(samples) for k, status in enumerate(drawn)]
    path = run / "eval" / system / split / "results.jsonl"
    write_jsonl(path, rows)
    return path


R, T, A, F, I = "resolved", "tests_failed", "apply_failed", "format", "infra"  # noqa: E741  # one letter a status keeps the tables legible


def demo_run(path: Path, n: int = 40) -> Path:
    """Four systems on two splits; resolved: base 8, SFT 16, rerank 18, BoostAPR 24 of 40, so that every number is known."""
    plan = {"base": (8, 3), "sft": (16, 6), "rerank": (18, 7), "boostapr": (24, 9)}
    for system, (solved, solved_ood) in plan.items():
        # BoostAPR breaks bug 0, which SFT solved, and gains others instead.
        shift = 1 if system == "boostapr" else 0
        statuses = [
            R if shift <= i < solved + shift else (A if i % 5 == 4 else F if i % 7 == 6 else T) for i in range(n)
        ]
        sampled = [[R if i < solved + 4 and k == i % 4 else T for k in range(4)] for i in range(n)]
        results(path, system, "test", statuses, sampled if system != "rerank" else (), credit=system == "boostapr")
        results(path, system, "test_ood", [R if i < solved_ood else T for i in range(n)], credit=system == "boostapr")
    for split in ("test", "test_ood"):
        write_jsonl(
            path / "eval" / "instances" / f"{split}.jsonl",
            [instance(i, f"microbugs/{'stats' if i % 2 else 'text'}") for i in range(n)],
        )
    write_jsonl(path / "candidates" / "candidates.jsonl", [
        {"instance_id": f"bug-{i:03d}", "k": k, "response": PATCH, "num_tokens": 80, "outcome": outcome(I if (i, k) == (3, 1) else R if k == 0 else T),
         "reward": {"r_env": 1.0, "r_diff": -0.01, "total": 0.99}} for i in range(10) for k in range(4)])  # fmt: skip
    write_jsonl(path / "ppo" / "metrics.jsonl", [ppo_step(step) for step in range(0, 31)])
    for stage, seconds in (
        ("demonstrations", 41.2),
        ("sft", 95.0),
        ("candidates", 130.0),
        ("reward", 210.5),
        ("ppo", 611.0),
    ):
        folder = path / stage
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "done.json").write_text(
            json.dumps(
                {
                    "stage": stage,
                    "wall_s": seconds,
                    "versions": {"python": "3.11.2", "torch": "2.13.0", "verl": "0.9.1"},
                    "finished": "2026-01-05T10:00:00+0000",
                    "command": f"python -m stages.{stage} experiment=demo",
                    "seed": 1,
                }
            )
        )
        (folder / "config.yaml").write_text(f"seed: 1\nstage: {stage}\n")
    return path


def ppo_step(step: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "actor/reward_kl_penalty": 0.002 * step, "actor/reward_kl_penalty_coeff": 0.01 * 1.02**step,
        "critic/score/mean": 0.2 + 0.02 * step + 0.05 * ((step * 7) % 5 - 2) / 2, "critic/rewards/mean": 0.2 + 0.018 * step,
    }  # fmt: skip
    if step == 0:
        values = {}
    if step % 10 == 0:
        values["val-core/dev/acc/mean@1"] = 0.40 + 0.006 * step
        values["val-aux/dev/applied/mean@1"] = 0.9
    return {"step": step, "data": values}
