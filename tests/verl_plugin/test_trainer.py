"""The trainer's own steps, without Ray: streams applied, the KL coefficient kept, early ends noticed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import AdaptiveKLController
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from boostapr.verl_plugin import trainer as module
from boostapr.verl_plugin.checkpoints import latest_checkpoint
from boostapr.verl_plugin.trainer import StreamTrainer, TrainingError


def _trainer(folder: Path, **own: Any) -> StreamTrainer:
    """An instance without verl's start-up."""
    trainer = object.__new__(StreamTrainer)
    trainer.config = OmegaConf.create(
        {
            "trainer": {"default_local_dir": str(folder)},
            "algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"kl_coef": 0.005}, "norm_adv_by_std_in_grpo": True},
            "data": {"train_batch_size": 2},
            "actor_rollout_ref": {"rollout": {"n": 2}},
        }
    )
    defaults = {"max_failed_share": 0.25, "critic_learns": True, "keep_checkpoints": 1, "weight_sync_timeout_s": 0.1}
    trainer.own = OmegaConf.create(defaults | own)
    trainer.kl_ctrl_in_reward = AdaptiveKLController(0.005, 0.1, 10_000)
    trainer.global_steps = 0
    trainer._idle = False
    trainer._writer = None
    return trainer


class _Queue:
    """The TransferQueue's fields in memory."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def kv_batch_get(self, keys: Any, partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        return {name: self.fields[name] for name in select_fields}

    def kv_batch_put(self, keys: Any, partition_id: str, fields: Any) -> None:
        self.fields.update({name: fields[name] for name in fields.keys()})  # noqa: SIM118  # a TensorDict iterates rows


def _rows(*rows: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def _batch(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> tuple[_Queue, Any]:
    queue = _Queue(fields)
    monkeypatch.setattr(module, "tq", queue)
    monkeypatch.setattr(PPOTrainerSync, "_compute_advantage", lambda self, batch, metrics: batch)

    class Batch(list):
        keys, partition_id = ["k0", "k1"], "train"

    return queue, Batch([0, 1])


def _fields(in_loss: list[list[int]]) -> dict[str, Any]:
    return {
        "uid": ["u", "u"],
        "response_mask": _rows([1, 1, 1], [1, 1], dtype=torch.int64),
        "advantages": _rows([1.0, -1.0, 2.0], [0.5, -0.5]),
        "loss_weights": _rows([1.0, 0.5, 0.0], [1.0, 1.0]),
        "in_loss": _rows(*in_loss, dtype=torch.int64),
        "group_reward": torch.tensor([[1.0], [0.0]]),
    }


def test_streams_are_applied_after_the_advantages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights scale the advantages; response_mask and loss_mask (the denominator) stay whole when nothing is masked."""
    queue, batch = _batch(monkeypatch, _fields([[1, 1, 1], [1, 1]]))
    metrics: dict[str, Any] = {}
    _trainer(tmp_path)._compute_advantage(batch, metrics)
    assert [row.tolist() for row in queue.fields["advantages"].unbind()] == [[1.0, -0.5, 0.0], [0.5, -0.5]]
    assert [row.tolist() for row in queue.fields["loss_mask"].unbind()] == [[1, 1, 1], [1, 1]]
    assert metrics["training/masked_tokens"] == 0


def test_a_masked_rollout_leaves_both_masks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """verl multiplies with response_mask and divides by loss_mask: one alone would bias the loss."""
    queue, batch = _batch(monkeypatch, _fields([[0, 0, 0], [1, 1]]))
    metrics: dict[str, Any] = {}
    _trainer(tmp_path)._compute_advantage(batch, metrics)
    for name in ("response_mask", "loss_mask"):
        assert [row.tolist() for row in queue.fields[name].unbind()] == [[0, 0, 0], [1, 1]], name
    assert metrics["training/masked_tokens"] == 3


def test_a_step_without_tokens_updates_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its loss would be 0 / 0; both updates are skipped."""
    _, batch = _batch(monkeypatch, _fields([[0, 0, 0], [0, 0]]))
    calls: list[str] = []
    for name in ("_update_actor", "_update_critic"):
        monkeypatch.setattr(PPOTrainerSync, name, lambda self, batch, metrics, name=name: calls.append(name))
    trainer, metrics = _trainer(tmp_path), {}
    trainer._compute_advantage(batch, metrics)
    assert trainer._update_actor(batch, metrics) is batch
    assert trainer._update_critic(batch, metrics) is batch
    assert not calls
    assert metrics["training/idle"] == 1.0


def test_grpo_reads_group_reward(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The group's statistics come from the stream made for them, not from the sum of dense rewards."""
    queue, batch = _batch(monkeypatch, _fields([[1, 1, 1], [1, 1]]))
    trainer = _trainer(tmp_path, critic_learns=False)
    trainer._compute_advantage(batch, {})
    first, second = queue.fields["advantages"].unbind()
    half = 0.5 / (0.5**0.5 + 1e-6)
    torch.testing.assert_close(first, torch.tensor([half, 0.5 * half, 0.0]))
    torch.testing.assert_close(second, torch.tensor([-half, -half]))


def test_the_kl_coefficient_survives_a_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """verl's checkpoints do not hold it: a resumed run would begin with the initial coefficient again."""
    before = _trainer(tmp_path)
    before.global_steps = 5
    before.kl_ctrl_in_reward.update(current_kl=0.2, n_steps=1000)
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: (tmp_path / "global_step_5").mkdir())
    before._save_checkpoint()

    after = _trainer(tmp_path)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: setattr(self, "global_steps", 5))
    after._load_checkpoint()
    assert after.kl_ctrl_in_reward.value == before.kl_ctrl_in_reward.value == pytest.approx(0.0051)


def test_a_checkpoint_counts_only_when_verl_is_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(self: Any) -> None:
        (tmp_path / "global_step_5").mkdir()
        raise OSError("disk full")

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", fail)
    trainer = _trainer(tmp_path)
    trainer.global_steps = 5
    with pytest.raises(OSError, match="disk full"):
        trainer._save_checkpoint()
    assert latest_checkpoint(tmp_path) is None


def _extra(*errors: str) -> dict[str, Any]:
    return {"extra_fields": [{"error": error} for error in errors]}


def test_missing_rollouts_stop_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """verl would fill up with padding whose token streams have the wrong length."""
    _, batch = _batch(monkeypatch, _extra("", ""))
    with pytest.raises(TrainingError, match="2 rollouts instead of 4"):
        _trainer(tmp_path)._check_rollouts(batch)


def test_too_many_lost_rollouts_stop_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A dead reward server masks everything; without this the run would end well, having learned nothing."""
    _, batch = _batch(monkeypatch, _extra("boom", "", "bang", ""))
    batch.extend([2, 3])
    with pytest.raises(TrainingError, match=r"2 of 4 rollouts were lost.*\nboom"):
        _trainer(tmp_path)._check_rollouts(batch)
    _, batch = _batch(monkeypatch, _extra("boom", "", "", ""))
    batch.extend([2, 3])
    _trainer(tmp_path)._check_rollouts(batch)


def test_an_early_end_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """verl returns without one when a resumed run stands at an epoch's end."""
    monkeypatch.setattr(PPOTrainerSync, "fit", lambda self, manager: None)
    trainer = _trainer(tmp_path)
    trainer.global_steps, trainer.total_training_steps = 4, 10
    with pytest.raises(TrainingError, match="step 3 of 10"):
        trainer.fit(None)


def test_a_hung_weight_transfer_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hang(refs: Any, timeout: float) -> None:
        raise module.GetTimeoutError

    monkeypatch.setattr(module, "ray", SimpleNamespace(get=hang))
    trainer = _trainer(tmp_path)
    trainer.actor_rollout_wg = SimpleNamespace(update_weights=lambda **_: [])
    with pytest.raises(TrainingError, match=r"weight_sync_timeout_s=0.1 s"):
        trainer._sync_weights()
