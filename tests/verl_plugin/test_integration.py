"""Stage III for real: Ray, verl, vLLM. Minutes each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from boostapr import supervise
from boostapr.verl_plugin.checkpoints import latest_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
TINY = {
    "batch_size": 4,
    "num_rollouts": 2,
    "mini_batch_size": 8,
    "micro_batch_size": 4,
    "num_epochs": 1,
    "critic_warmup_steps": 0,
    "max_prompt_tokens": 96,
    "max_response_tokens": 64,
    "kl": {"horizon": 50},
}
CONTEXT = {"overrides": {"actor_rollout_ref": {"rollout": {"max_model_len": 160}}}}


def _start(folder: Path, spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    """As `boostapr ppo` starts a stage: a driver, under it a supervisor, under it the stage."""
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    command = [sys.executable, str(HERE / "tiny_run.py"), str(folder), str(path)]
    code = "import sys; from pathlib import Path; from boostapr import supervise; sys.exit(supervise.run(sys.argv[3:], Path(sys.argv[1]), Path(sys.argv[2])))"
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(folder / "log.txt"), *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])},
    )


def _wait(condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline, f"nothing after {seconds} s"
        time.sleep(0.1)


def _finish(process: subprocess.Popen[bytes], folder: Path) -> None:
    code = process.wait()
    assert code == 0, (folder / "log.txt").read_text()[-4000:]


def _of_this_run(folder: Path) -> list[str]:
    """Processes that carry the run's label, or work in its folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(supervise.LABEL) == str(folder.resolve()):
                found.append(" ".join(process.cmdline())[:80])
        except psutil.Error:
            continue
    return found


def _metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ppo" / "metrics.jsonl").read_text().splitlines()]


def _weights_in_step(rows: list[dict[str, Any]]) -> float:
    """Largest difference between the probabilities by which vLLM sampled and those of the policy that is to be updated."""
    return max(abs(row["actor/ppo_kl"]) for row in rows if row["step"] > 0)


def test_lora_survives_a_sigkill(tmp_path: Path) -> None:
    """Killed after step 2, a run goes on at step 3 with its adapter and its KL coefficient, and leaves no process."""
    spec = {
        "ppo": TINY
        | {
            "num_steps": 4,
            "save_steps": 2,
            "test_steps": 4,
            "lora": {"rank": 8, "alpha": 16, "target_modules": "all-linear", "merge": False},
        },
        "verl": CONTEXT,
    }
    checkpoints = tmp_path / "ppo" / "checkpoints"
    first = _start(tmp_path, spec)
    _wait(lambda: latest_checkpoint(checkpoints) is not None, first, 600)
    first.send_signal(signal.SIGKILL)
    first.wait()
    _wait(lambda: not _of_this_run(tmp_path), _Alive(), 30)
    saved = latest_checkpoint(checkpoints)
    assert saved is not None and saved.step == 2

    second = _start(tmp_path, spec)
    _finish(second, tmp_path)
    assert not _of_this_run(tmp_path)
    rows = _metrics(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4], "every step once, none lost, none doubled"
    assert rows[3]["actor/reward_kl_penalty_coeff"] == pytest.approx(saved.kl_coef)
    assert rows[2]["training/next_kl_coef"] == pytest.approx(saved.kl_coef)
    assert saved.kl_coef != pytest.approx(0.005), "the coefficient moved, so that restoring it can be seen"
    assert rows[3]["actor/reward_kl_penalty"] != 0, "step 3 starts from the trained adapter, not from the reference"
    assert _weights_in_step(rows) < 1e-4, "vLLM samples from the weights that are trained, adapter and all"
    before, after = (
        load_file(tmp_path / "policy/model.safetensors"),
        load_file(tmp_path / "ppo/model/model.safetensors"),
    )
    assert set(before) == set(after)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_all_parameters_with_dense_rewards(tmp_path: Path) -> None:
    """Token rewards on edit lines, weights synchronised each step, validation executed, a model that can be loaded."""
    spec = {
        "ppo": TINY | {"num_steps": 3, "save_steps": 3, "test_steps": 3, "execute_rollouts": True},
        "verl": CONTEXT,
        "patches": True,
    }
    process = _start(tmp_path, spec)
    _finish(process, tmp_path)
    assert not _of_this_run(tmp_path)
    rows = _metrics(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for row in rows[1:]:
        assert row["rollout/rewarded_tokens"] > 3, "the score is spread over the edit lines"
        assert row["rollout/lost"] == 0
        assert row["rollout/executed"] == 1
        assert row["critic/score/mean"] == pytest.approx(row["rollout/return"], abs=1e-4), (
            "verl's sum is ours (conservation)"
        )
    assert abs(rows[1]["actor/reward_kl_penalty"]) < 1e-6, "policy and reference are one yet: rows were not mixed up"
    values = (rows[1]["critic/values/min"], rows[1]["critic/values/max"])
    assert max(map(abs, values)) < 0.1, "the critic starts at zero: the policy follows no noise"
    assert _weights_in_step(rows) < 1e-4
    assert rows[0]["val/dev/resolved"] == rows[3]["val/dev/resolved"] == 0.5
    before, after = (
        load_file(tmp_path / "policy/model.safetensors"),
        load_file(tmp_path / "ppo/model/model.safetensors"),
    )
    assert all(value.dtype == torch.float32 for value in after.values())
    assert any(not torch.equal(before[name], after[name]) for name in before)


class _Alive:
    """A process that `_wait` takes for running: what is waited for happens after its end."""

    def poll(self) -> None:
        return None
