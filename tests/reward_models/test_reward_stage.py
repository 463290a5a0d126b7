"""The reward stage on candidates of real instances: files in, two models and honest counts out, resumable between the two."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tiny_backbone import make_diff

from boostapr.errors import UserError
from boostapr.outcomes import Failure, Frame, Outcome, Status
from envs.tasks import BugInstance
from reward_models.scorer import RewardScorer
from reward_models.settings import RewardSettings, RLineSettings, RSeqSettings, ServingSettings
from stages import reward

SOURCE = "def f(xs):\n    return xs[0]\n\n\ndef g(xs):\n    return xs[1]\n"
TESTS = "import stats\n\n\ndef test_f():\n    assert stats.f([1]) == 2\n"


@pytest.fixture
def settings(r_seq_settings: RSeqSettings, r_line_settings: RLineSettings) -> RewardSettings:
    quick = {"num_epochs": 1, "checkpoint_steps": 5}
    return RewardSettings(
        run_backbone=None,
        backbone="given",
        validation_fraction=0.25,
        max_length=200,
        input_mode="patch",
        num_threads=1,
        r_seq=r_seq_settings.model_copy(update=quick),
        r_line=r_line_settings.model_copy(update=quick),
        serving=ServingSettings(max_batch=8, wait_ms=0, num_cpus=0, num_gpus=0, num_threads=1),
    )


def make_inputs(folder: Path, num_instances: int = 12) -> tuple[Path, dict[str, BugInstance]]:
    """Per instance: a passing patch, two whose edit of f fails f's test, one that git refuses."""
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []
    failure = Failure(
        "t::test_f", "AssertionError", "assert stats.f([1]) == 2", (Frame("test_stats.py", 5, "test_f", True),)
    )
    for number in range(num_instances):
        for k in range(4):
            new = rng.choice(["    return sum(xs)", "    return 2"]) if k == 0 else f"    return {k}"
            edits = [(1, "def f(xs):", "    return xs[0]", new), (5, "def g(xs):", "    return xs[1]", "    return 0")]
            outcome = (
                Outcome(Status.RESOLVED, exit_code=0)
                if k == 0
                else Outcome(Status.APPLY_FAILED)
                if k == 3
                else Outcome(Status.TESTS_FAILED, failures=(failure,), exit_code=1)
            )
            total = {0: 0.99, 1: 0.2, 2: 0.2, 3: -0.01}[k]
            response = make_diff("stats.py", edits)
            rows.append(
                {
                    "instance_id": f"i{number}",
                    "k": k,
                    "response": response,
                    "outcome": outcome.to_dict(),
                    "reward": {"total": total},
                }
            )
    rows.append({**rows[0], "k": 4, "outcome": Outcome(Status.INFRA).to_dict(), "reward": {"total": None}})
    rows.append({**rows[0], "k": 5, "response": make_diff("stats.py", [(1, "x", "y", "z" * 900)])})
    path = folder / "candidates.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    instance = {
        "problem_statement": "",
        "FAIL_TO_PASS": ("t::test_f",),
        "PASS_TO_PASS": (),
        "test_command": ("true",),
        "files": {"stats.py": SOURCE},
        "test_files": {"test_stats.py": TESTS},
    }
    return path, {f"i{n}": BugInstance(instance_id=f"i{n}", **instance) for n in range(num_instances)}


def test_the_stage_trains_both_models_and_counts_its_labels(
    settings: RewardSettings, backbone: Path, tmp_path: Path
) -> None:
    candidates, instances = make_inputs(tmp_path)
    metrics = reward.run(settings, candidates, instances, str(backbone), 0, tmp_path / "reward")
    assert json.loads((tmp_path / "reward" / "metrics.json").read_text()) == metrics
    assert metrics["data"] == {
        "num_candidates": 50,
        "num_dropped_infra": 1,
        "num_dropped_too_long": 1,
        "num_training_instances": 9,
        "num_held_out_instances": 3,
        "num_resolved": 12,
    }
    assert metrics["labels"] == {
        "num_passing_spans": 24,
        "num_assertion_trace_spans": 48,
        "num_assertion_trace_negative_spans": 24,
        "num_function_level_spans": 0,
        "num_function_level_negative_spans": 0,
        "num_uniform_spans": 24,
        "num_uniform_negative_spans": 24,
    }
    assert metrics["r_seq"]["num_candidates"] == 12
    assert metrics["r_line"]["num_within_patch_pairs"] == 6
    scorer = RewardScorer.load(tmp_path / "reward" / "r_seq", tmp_path / "reward" / "r_line", batch_size=4)
    (score,) = scorer.score([make_diff("stats.py", [(1, "def f(xs):", "", "    return 2")])], "edit_line")
    assert len(score.units) == 1
    assert not list((tmp_path / "reward").rglob("checkpoint-*")), "checkpoints are only needed while training"


def test_a_stage_killed_between_the_models_trains_only_the_second(
    settings: RewardSettings, backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R_seq was finished: it must be kept as it is, with its metrics, and R_line trained."""
    candidates, instances = make_inputs(tmp_path)
    with monkeypatch.context() as killed:
        killed.setattr(reward, "train_r_line", _killed)
        with pytest.raises(KeyboardInterrupt):
            reward.run(settings, candidates, instances, str(backbone), 0, tmp_path / "reward")
    first = (tmp_path / "reward" / "r_seq" / "model.safetensors").read_bytes()
    monkeypatch.setattr(reward, "train_r_seq", _killed)
    metrics = reward.run(settings, candidates, instances, str(backbone), 0, tmp_path / "reward")
    assert (tmp_path / "reward" / "r_seq" / "model.safetensors").read_bytes() == first
    assert metrics["r_seq"]["num_pairs"] > 0 and metrics["r_line"]["num_spans"] > 0


def _killed(*args: Any, **kwargs: Any) -> dict[str, Any]:
    raise KeyboardInterrupt


def test_candidates_of_another_benchmark_are_refused(settings: RewardSettings, backbone: Path, tmp_path: Path) -> None:
    candidates, instances = make_inputs(tmp_path)
    del instances["i3"]
    with pytest.raises(UserError, match="'i3'"):
        reward.run(settings, candidates, instances, str(backbone), 0, tmp_path / "reward")


def test_a_backbone_is_named_once(settings: RewardSettings) -> None:
    """Two backbones, or none, is a mistake that must come up before any training."""
    for run_backbone, backbone in ((None, None), ("sft/model", "Qwen/x")):
        values = settings.model_dump() | {"run_backbone": run_backbone, "backbone": backbone}
        with pytest.raises(ValueError, match="either run_backbone"):
            RewardSettings(**values)
