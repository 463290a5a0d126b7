"""verl's synchronous PPO trainer, made to execute token streams. Extension point: `register_trainer`.

The trainer knows no algorithm: credit functions decide rewards, weights and masks (design: section 3), this class applies
them between verl's advantages and verl's updates. The rest are the guards that a long run needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from ray.exceptions import GetTimeoutError
from tensordict import TensorDict
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer

from boostapr.errors import UserError
from boostapr.metrics import MetricsWriter
from boostapr.tokens import check_fingerprint, check_ids, read_fingerprint
from boostapr.verl_plugin import vllm_replica
from boostapr.verl_plugin.checkpoints import latest_checkpoint, mark_complete, prune
from boostapr.verl_plugin.streams import apply_streams, group_advantages
from boostapr.verl_plugin.verl_config import TRAINER_MODE
from boostapr.verl_plugin.workers import PolicyWorker


class TrainingError(UserError):
    """Training cannot go on, or did not do what was planned."""


@register_trainer(TRAINER_MODE)
class StreamTrainer(PPOTrainerSync):
    """PPO (GAE critic) or GRPO on token streams."""

    def __init__(self, config: DictConfig) -> None:
        self.own = config.boostapr
        self.device = config.trainer.device
        vllm_replica.register(self.device)
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # the base class compares with this literal
        super().__init__(config)
        self._idle = False  # True in a step in which every token is masked
        self._writer: MetricsWriter | None = None

    # -- start-up -------------------------------------------------------------------------------------------------------

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()
        self._fingerprint = read_fingerprint(Path(self.own.policy_dir))
        check_fingerprint(self._fingerprint, self.tokenizer, "verl's tokenizer")

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self.steps_per_epoch == 0:
            raise TrainingError(
                f"{len(self.train_dataset)} training prompts are fewer than ppo.batch_size={self.config.data.train_batch_size}: "
                "verl drops incomplete batches, so there would be no step at all."
            )

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            worker = self._worker_class(role)
            if worker is not None:
                self.role_worker_mapping[role] = ray.remote(worker)

    def _worker_class(self, role: Role) -> type | None:
        if self.device == "cpu":
            from boostapr.verl_plugin.engines_cpu import CPUPolicyWorker, CPUTrainingWorker

            return CPUTrainingWorker if role == Role.Critic else CPUPolicyWorker
        return None if role == Role.Critic else PolicyWorker

    def _setup(self) -> None:
        super()._setup()
        conversations = [prompt["messages"] for prompt in self._fingerprint["prompts"]]
        for number, replica in enumerate(self.llm_server_manager.get_replicas()):
            ids: list[list[int]] = ray.get(replica.servers[0].encode_prompts.remote(conversations))
            check_ids(self._fingerprint, ids, f"vLLM (replica {number})")
        self._writer = MetricsWriter(
            Path(self.own.output_dir), resume_step=self.global_steps if self.global_steps else -1
        )

    def on_init_end(self) -> None:
        self._sync_weights()

    def on_step_end(self) -> None:
        with marked_timer("update_weights", self.timing_raw, color="red"):
            self._sync_weights()

    def _sync_weights(self) -> None:
        """verl's weight transfer with a deadline: when the receiving end fails, verl's sender waits for ever."""
        timeout = self.own.weight_sync_timeout_s
        try:
            ray.get(self.actor_rollout_wg.update_weights(global_steps=self.global_steps, mode="naive"), timeout=timeout)
        except GetTimeoutError:
            raise TrainingError(
                f"vLLM did not take the new weights within verl.weight_sync_timeout_s={timeout:g} s; its log in the stage's "
                "logs folder says why."
            ) from None

    # -- one step -------------------------------------------------------------------------------------------------------

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._check_rollouts(batch)
        return super()._balance_batch(batch, metrics, *args, **kwargs)

    def _check_rollouts(self, batch: Any) -> None:
        """Every rollout must be there (verl would pad with rows of the wrong length), and most must be sound."""
        expected = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
        if len(batch) != expected:
            raise TrainingError(
                f"{len(batch)} rollouts instead of {expected}: agent loops failed, see the logs folder of the stage."
            )
        errors = [extra["error"] for extra in self._extra_fields(batch)]
        lost = [error for error in errors if error]
        if len(lost) > self.own.max_failed_share * expected:
            raise TrainingError(
                f"{len(lost)} of {expected} rollouts were lost to errors (allowed: ppo.max_failed_share="
                f"{self.own.max_failed_share}). The first one:\n{lost[0]}"
            )

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        # verl leaves "no_lora_adapter" in extra_info, and the critic, which has no adapter, would try to switch it off.
        batch = super()._compute_ref_log_prob(batch, metrics)
        batch.extra_info.pop("no_lora_adapter", None)
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's advantages over all rollouts, then weights and masks."""
        batch = super()._compute_advantage(batch, metrics)
        names = ["uid", "response_mask", "advantages", "loss_weights", "in_loss", "group_reward"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=names)
        lengths = [len(row) for row in data["response_mask"].unbind()]
        advantages, mask, weights, in_loss = (
            _padded(data[name]) for name in ("advantages", "response_mask", "loss_weights", "in_loss")
        )
        if not self.own.critic_learns:
            rewards = _padded(data["group_reward"])[:, 0]
            by_std = self.config.algorithm.norm_adv_by_std_in_grpo
            advantages = group_advantages(rewards, _values(data["uid"]), mask, by_std)
        applied = apply_streams(advantages, mask, weights, in_loss, whiten=self.own.critic_learns)
        metrics["training/masked_tokens"] = float(mask.sum() - applied.num_tokens)
        self._idle = applied.num_tokens == 0
        metrics["training/idle"] = float(self._idle)
        if self._idle:
            return batch
        loss_mask = _nested(applied.loss_mask, lengths)
        fields = {
            "advantages": _nested(applied.advantages, lengths),
            "response_mask": loss_mask,  # what verl's losses multiply with
            "loss_mask": loss_mask.clone(),  # what verl counts for the denominator
        }
        tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(batch))
        )
        return batch

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch if self._idle else super()._update_critic(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch if self._idle else super()._update_actor(batch, metrics)

    # -- metrics --------------------------------------------------------------------------------------------------------

    def _extra_fields(self, batch: Any) -> list[dict[str, Any]]:
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        return _values(data["extra_fields"])

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """verl's metrics, `rollout/*` means over the step's responses, and one line in metrics.jsonl."""
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        infos = [extra["reward_extra_info"] for extra in self._extra_fields(batch)]
        metrics.update({f"rollout/{name.rstrip('_')}": value for name, value in _means(infos).items()})
        if self.config.algorithm.use_kl_in_reward:
            metrics["training/next_kl_coef"] = float(self.kl_ctrl_in_reward.value)
        self._write(self.global_steps, metrics)

    def _val_metrics_update(
        self,
        data_sources: list[str],
        sample_uids: Any,
        reward_extra_infos_dict: dict[str, list[float]],
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, float]:
        """`val/<split>/<name>` means (verl's own names say the same less plainly)."""
        metrics, infos = {}, reward_extra_infos_dict
        for source in sorted(set(data_sources)):
            rows = [i for i, name in enumerate(data_sources) if name == source]
            for name, values in infos.items():
                metrics[f"val/{source}/{name.rstrip('_')}"] = float(np.mean([values[i] for i in rows]))
        lost = float(np.mean(infos["lost"]))
        if lost > self.own.max_failed_share:
            raise TrainingError(
                f"{lost:.0%} of the validation responses were lost to errors (allowed: ppo.max_failed_share="
                f"{self.own.max_failed_share}); AgentLoopWorkerTQ in the stage's logs folder says which."
            )
        if self.global_steps == 0:
            self._write(0, metrics)
        return metrics

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float | np.number)}
        assert self._writer is not None
        self._writer.log(step, numbers)

    # -- checkpoints and the end ----------------------------------------------------------------------------------------

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0:
            return
        checkpoint = latest_checkpoint(Path(self.config.trainer.default_local_dir))
        if checkpoint is None or checkpoint.step != self.global_steps:
            raise TrainingError(
                f"No complete checkpoint of step {self.global_steps} in {self.config.trainer.default_local_dir}."
            )
        if self.config.algorithm.use_kl_in_reward:
            self.kl_ctrl_in_reward.value = checkpoint.kl_coef

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        folder = Path(self.config.trainer.default_local_dir)
        coefficient = (
            self.kl_ctrl_in_reward.value
            if self.config.algorithm.use_kl_in_reward
            else self.config.algorithm.kl_ctrl.kl_coef
        )
        mark_complete(folder / f"global_step_{self.global_steps}", float(coefficient))
        prune(folder, self.own.keep_checkpoints)

    def fit(self, agent_loop_manager: Any) -> None:
        """Train to the planned step. Raises TrainingError if verl ends early, which it does without an error."""
        super().fit(agent_loop_manager)
        done = self.global_steps - 1
        if done != self.total_training_steps:
            raise TrainingError(f"verl stopped after step {done} of {self.total_training_steps} without an error.")
        assert self._writer is not None
        self._writer.close()


def _padded(field: Any) -> torch.Tensor:
    """[B, T] from a TransferQueue field, whose rows may differ in length."""
    return torch.nn.utils.rnn.pad_sequence(list(field.unbind()), batch_first=True)


def _nested(values: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    rows = [row[:length].clone() for row, length in zip(values, lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _values(field: Any) -> list[Any]:
    """Python values of a TransferQueue field that holds no tensors."""
    return [getattr(value, "data", value) for value in field]


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
