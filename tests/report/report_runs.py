"""Synthetic run folders for the tests of the report: small, but with the shape and the accidents of real ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RIGHT = """--- a/stats.py
+++ b/stats.py
@@ -1,3 +1,3 @@
 def mean(values):
-    total = 1
+    total = 0
     for value in values:
@@ -6,2 +6,3 @@
     # the mean is the sum over the count
-    return total
+    count = len(values)
+    return total / count
"""
WRONG = RIGHT.replace("+    total = 0", "+    total = 2")
FIRST_SPAN = (RIGHT.index("-    total"), RIGHT.index("     for value"))
SECOND_SPAN = (RIGHT.index("-    return"), len(RIGHT))
FILES = {
    "stats.py": "def mean(values):\n    total = 1\n    for value in values:\n        total += value\n\n"
    "    # the mean is the sum over the count\n    return total\n"
}
R, T, A, F, INFRA = "resolved", "tests_failed", "apply_failed", "format", "infra"
ANSWERS = {R: RIGHT, T: WRONG, A: RIGHT.replace("@@ -1,3", "@@ -1,x"), F: "I cannot say.", INFRA: RIGHT}
FORMATS = {A: "malformed", F: "not_a_diff"}


def instance(number: int) -> dict[str, Any]:
    """A bug as the evaluate stage stores it; odd ones have two kinds of mistake."""
    return {
        "instance_id": f"bug-{number:03d}",
        "repo": "microbugs",
        "problem_statement": f"`mean([2, 4])` gives {number + 7}.\nIt must be 3 <b>& nothing else</b>.",
        "patch": RIGHT,
        "FAIL_TO_PASS": ["test_stats.TestMean::test_two", "test_stats.TestMean::test_one"],
        "PASS_TO_PASS": ["test_stats.TestMean::test_empty"],
        "files": FILES,
        "test_command": ["python", "-m", "xmlrunner", "--output-file", "{report}", "test_stats"],
        "bug_kinds": ["initial_value", "missing_division"] if number % 2 else ["initial_value"],
        "num_bugs": 1 + number % 2,
    }


def outcome(status: str) -> dict[str, Any]:
    ran, passed = status in (R, T), status == R
    tests = {
        "test_stats.TestMean::test_two": "passed" if passed else "failed",
        "test_stats.TestMean::test_one": "passed",
        "test_stats.TestMean::test_empty": "passed",
    }
    failure = {
        "test": "test_stats.TestMean::test_two",
        "message": "AssertionError: 6 != 3",
        "source_line": "self.assertEqual(mean([2, 4]), 3)",
        "frames": [],
    }
    return {
        "status": status, "tests": tests if ran else {}, "failures": [failure] if status == T else [],
        "exit_code": 0 if passed else 1, "output": "", "wall_s": 0.02, "cpu_s": 0.02, "peak_memory_mb": 20.0, "detail": "",
    }  # fmt: skip


def credit(status: str) -> dict[str, Any]:
    """What R_seq and R_line say: 0.8 shared 75 / 25 for a right answer, -0.4 shared 25 / 75 for a wrong one."""
    seq, weights = (0.8, (0.75, 0.25)) if status == R else (-0.4, (0.25, 0.75))
    if status in (A, F):
        return {"seq": seq, "spans": []}
    spans = [
        {"start": start, "end": end, "score": 0.5 * weight, "weight": weight}
        for (start, end), weight in zip((FIRST_SPAN, SECOND_SPAN), weights, strict=True)
    ]
    return {"seq": seq, "spans": spans}


def row(number: int, status: str, sample: int = 0, mode: str = "greedy", **extra: Any) -> dict[str, Any]:
    """One line of results.jsonl."""
    record = {
        "instance_id": f"bug-{number:03d}",
        "sample": sample,
        "mode": mode,
        "response": ANSWERS.get(status, WRONG),
        "num_tokens": 80,
        "finish": "stop",
        "outcome": outcome(status),
        "format": FORMATS.get(status, "valid"),
        "resolved": status == R,
    }
    return record | extra


def write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def write_results(
    run: Path,
    system: str,
    split: str,
    statuses: Sequence[str],
    samples: Sequence[Sequence[str]] = (),
    with_credit: bool = False,
) -> Path:
    """One greedy answer per status; `samples[i]` are the statuses of the sampled answers to instance i."""
    rows = [row(i, s, **({"credit": credit(s)} if with_credit else {})) for i, s in enumerate(statuses)]
    rows += [row(i, status, k, "sampled") for i, drawn in enumerate(samples) for k, status in enumerate(drawn)]
    path = run / "eval" / system / split / "results.jsonl"
    write_jsonl(path, rows)
    return path


def demo_run(path: Path, n: int = 40) -> Path:
    """Four systems on two splits. Resolved of n=40 on test: base 8, SFT 16, rerank 18, BoostAPR 24; pass@4 has 4 more each.

    BoostAPR breaks bug 0, which SFT solved: 9 newly resolved, 1 degraded, 30 unchanged.
    """
    plan = {"base": (8, 3), "sft": (16, 6), "rerank": (18, 7), "boostapr": (24, 9)}
    for system, (solved, solved_ood) in plan.items():
        shift = 1 if system == "boostapr" else 0
        failing = [A if i % 5 == 4 else F if i % 7 == 6 else T for i in range(n)]
        statuses = [R if shift <= i < solved + shift else failing[i] for i in range(n)]
        sampled = [[R if i < solved + 4 and k == i % 4 else T for k in range(4)] for i in range(n)]
        write_results(path, system, "test", statuses, sampled, with_credit=system == "boostapr")
        statuses = [R if i < solved_ood else T for i in range(n)]
        write_results(path, system, "test_ood", statuses, [[s] * 4 for s in statuses], with_credit=system == "boostapr")
    for split in ("test", "test_ood"):
        write_jsonl(path / "eval" / "instances" / f"{split}.jsonl", [instance(i) for i in range(n)])
    candidates = [(i, k, INFRA if (i, k) == (3, 1) else R if k == 0 else T) for i in range(10) for k in range(4)]
    rows = [
        {"instance_id": f"bug-{i:03d}", "k": k, "response": ANSWERS[s], "outcome": outcome(s)} for i, k, s in candidates
    ]
    write_jsonl(path / "candidates" / "candidates.jsonl", rows)
    attempts = [(i, k, R if k == 0 else A if k == 1 else T) for i in range(10) for k in range(3)]
    rows = [
        {"instance_id": f"bug-{i:03d}", "attempt": k, "outcome": outcome(s), "kept": s == R} for i, k, s in attempts
    ]
    write_jsonl(path / "demonstrations" / "attempts.jsonl", rows)
    write_jsonl(path / "ppo" / "metrics.jsonl", [ppo_step(step) for step in range(31)])
    losses = [{"step": 10 * i, "time": 1.0 * i, "loss": 2.0 * 0.8**i, "learning_rate": 1e-4} for i in range(12)]
    write_jsonl(path / "sft" / "metrics.jsonl", losses)
    stages = {"demonstrations": 41.2, "sft": 95.0, "candidates": 130.0, "reward": 210.5, "ppo": 611.0, "eval": 95.3}
    for stage, seconds in stages.items():
        write_stage(path / stage, stage, seconds)
    (path / "reward" / "metrics.json").write_text(json.dumps(REWARD_METRICS))
    (path / "ppo" / "config.yaml").write_text(
        "seed: 1\nppo:\n  num_steps: 30\n  kl:\n    type: adaptive\n    target: 0.05\n"
    )
    return path


def write_stage(folder: Path, stage: str, seconds: float) -> None:
    """done.json and config.yaml as `boostapr.runs` writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"python": "3.11.2", "boostapr": "0.1.0", "torch": "2.13.0+cpu", "verl": "0.9.1"}
    done = {"stage": stage, "finished": "2026-01-05T10:00:00+0000", "wall_s": seconds, "versions": versions}
    (folder / "done.json").write_text(json.dumps(done))
    (folder / "config.yaml").write_text(f"seed: 1\n{stage}:\n  some_number: 3\n")


def ppo_step(step: int) -> dict[str, Any]:
    """One line of ppo/metrics.jsonl: step 0 is the validation before training, others verl's and our own metrics."""
    values: dict[str, Any] = {"step": step, "time": 1000.0 + 8 * step}
    if step:
        noise = 0.05 * ((step * 7) % 5 - 2) / 2
        values |= {
            "actor/reward_kl_penalty": 0.002 * step,
            "actor/reward_kl_penalty_coeff": 0.01 * 1.02**step,
            "critic/score/mean": 0.2 + 0.02 * step + noise,
            "critic/rewards/mean": 0.2 + 0.018 * step + noise,
            "rollout/format_valid": 0.8 + 0.005 * step,
            "rollout/format_recoverable": 0.05,
            "rollout/format_malformed": 0.1 - 0.002 * step,
            "rollout/format_not_a_diff": 0.05 - 0.001 * step,
            "rollout/fallback": 0.15 - 0.003 * step,
            "rollout/infra": 0.0,
            "rollout/lost": 0.0,
            "actor/grad_norm": None,
        }
    if step % 10 == 0:
        values |= {"val/dev/resolved": 0.40 + 0.006 * step, "val/dev/executed": 1.0, "val/dev/return": 0.3}
    return values


REWARD_METRICS = {
    "data": {"num_candidates": 4000, "num_training_instances": 900, "num_held_out_instances": 100, "num_resolved": 1200},
    "labels": {
        "num_assertion_trace_spans": 62, "num_assertion_trace_negative_spans": 50, "num_function_level_spans": 27,
        "num_function_level_negative_spans": 20, "num_uniform_spans": 11, "num_uniform_negative_spans": 11, "num_passing_spans": 200,
    },
    "r_seq": {"loss": 0.4, "pairwise_accuracy": 0.71, "roc_auc": 0.745, "spearman": 0.51, "num_candidates": 400},
    "r_line": {"loss": 0.5, "pairwise_accuracy": 0.66, "top1_hit_rate": 0.6, "top1_chance": 0.45, "top3_hit_rate": 0.9,
               "top3_chance": 0.85, "within_patch_accuracy": None},
}  # fmt: skip
