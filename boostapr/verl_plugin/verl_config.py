"""verl's configuration for one run: verl's own `ppo_trainer` composed by Hydra, then the machine's keys, then the run's.

Extension points named here: `data.custom_cls` (dataset), `rollout.agent.agent_loop_config_path` (agent loop),
`trainer.v1.trainer_mode` (trainer) and `trainer.v1.sampler.custom_sampler` (replay buffer). Everything is merged in struct
mode: a key that verl does not have is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from boostapr.config import ConfigError, flatten, nearest
from boostapr.verl_plugin.settings import PPOSettings, VerlSettings

TRAINER_MODE = "boostapr"
AGENT_LOOP = "boostapr_single_turn"
_AGENT_LOOPS = Path(__file__).with_name("agent_loops.yaml")


@dataclass(frozen=True)
class RunPaths:
    """Files of one run. policy: HF folder with tokenizer and token fingerprint; output: the stage folder."""

    policy: Path
    train_rows: Path
    dev_rows: Path
    output: Path

    @property
    def checkpoints(self) -> Path:
        """Folder with one `global_step_N` per checkpoint."""
        return self.output / "checkpoints"


def compose_verl_config(ppo: PPOSettings, verl: VerlSettings, credit: Mapping[str, Any], paths: RunPaths) -> DictConfig:
    """The complete configuration that verl's trainer gets. `credit` is the dumped CreditSettings.

    Raises:
        ConfigError: an override names no key of verl, or numbers do not fit each other (batches, lengths, sampling).
    """
    config = deepcopy(_base_config())
    _merge(config, verl.overrides, "verl.overrides")
    _add(config, verl.additions, "verl.additions")
    _merge(config, _run_keys(ppo, verl, paths), "the run's own keys")
    with open_dict(config):
        # verl's critic reads its micro-batch size from the engine; without it, all rows of a mini-batch go in one, padded.
        config.critic.fsdp.use_dynamic_bsz = False
        config.critic.fsdp.micro_batch_size_per_gpu = ppo.micro_batch_size
        config.critic.fsdp.infer_micro_batch_size_per_gpu = ppo.micro_batch_size
        config.trainer.v1.sampler.sampler_kwargs = {
            "poll_interval_s": verl.poll_interval_s,
            "timeout_s": verl.rollout_timeout_s,
        }
        config.boostapr = {
            "credit": dict(credit),
            "max_failed_share": ppo.max_failed_share,
            "critic_learns": ppo.advantage == "gae",
            "weight_sync_timeout_s": verl.weight_sync_timeout_s,
            "keep_checkpoints": ppo.keep_checkpoints,
            "policy_dir": str(paths.policy),
            "output_dir": str(paths.output),
        }
    _check(config, ppo, verl)
    return config


def check_with_verl(config: DictConfig) -> None:
    """verl's own validation, in the driver, before any process starts.

    Raises ConfigError with verl's words.
    """
    from hydra.errors import InstantiationException
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    try:
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
        )
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    except (
        AssertionError,
        ValueError,
        TypeError,
        ConfigAttributeError,
        ConfigKeyError,
        InstantiationException,
    ) as error:
        raise ConfigError(f"verl refuses this configuration: {' '.join(str(error).split()) or repr(error)}") from error


@cache
def _base_config() -> DictConfig:
    """verl's own configuration, not to be changed."""
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    # A stage runs under Hydra already, and Hydra holds one global state: put it aside for a moment.
    mine = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer")
    finally:
        GlobalHydra.instance().hydra = mine  # asked for anew: Hydra puts another instance in its place
    OmegaConf.set_struct(config, True)
    return config


def _merge(config: DictConfig, values: Mapping[str, Any], source: str) -> None:
    """Set existing keys only."""
    for key, value in flatten(values).items():
        if not _exists(config, key):
            known = list(flatten(OmegaConf.to_container(config, resolve=False)))  # type: ignore[arg-type]  # a DictConfig gives a dict
            close = nearest(key, known)
            hint = (
                f"Did you mean `{close}`?"
                if close
                else "If one of verl's dataclasses accepts it, put it into verl.additions."
            )
            raise ConfigError(f"`{key}` (in {source}) is no key of verl's configuration. {hint}")
        OmegaConf.update(config, key, value, merge=False)


def _add(config: DictConfig, values: Mapping[str, Any], source: str) -> None:
    """Set new keys only: one that exists belongs into the overrides, where a typing error is found."""
    for key, value in flatten(values).items():
        if _exists(config, key):
            raise ConfigError(f"`{key}` (in {source}) exists in verl's configuration: move it to verl.overrides.")
        OmegaConf.update(config, key, value, merge=False, force_add=True)


def _exists(config: DictConfig, key: str) -> bool:
    node: Any = OmegaConf.to_container(config, resolve=False)
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


def _run_keys(ppo: PPOSettings, verl: VerlSettings, paths: RunPaths) -> dict[str, Any]:
    """Where each of our settings goes in verl's tree."""
    prompts_per_mini_batch = ppo.mini_batch_size // ppo.num_rollouts  # verl counts prompts there, we count responses
    use_critic = ppo.advantage == "gae"
    lora: dict[str, Any] = {}
    if ppo.lora is not None:
        targets = ppo.lora.target_modules
        lora = {
            "lora_rank": ppo.lora.rank,
            "lora_alpha": ppo.lora.alpha,
            "target_modules": targets if isinstance(targets, str) else list(targets),
            "lora": {"merge": ppo.lora.merge},
        }

    def optimizer(settings: Any) -> dict[str, Any]:
        return {
            "lr": settings.lr,
            "weight_decay": settings.weight_decay,
            "betas": list(settings.betas),
            "clip_grad": settings.max_grad_norm,
            "lr_warmup_steps": settings.warmup_steps,
        }

    return {
        "data": {
            "train_files": str(paths.train_rows),
            "val_files": str(paths.dev_rows),
            "train_batch_size": ppo.batch_size,
            "max_prompt_length": ppo.max_prompt_tokens,
            "max_response_length": ppo.max_response_tokens,
            "seed": ppo.seed,
            "custom_cls": {"path": "pkg://boostapr.verl_plugin.dataset", "name": "PromptDataset"},
        },
        "actor_rollout_ref": {
            "model": {"path": str(paths.policy), **lora},
            "actor": {
                "optim": optimizer(ppo.actor),
                "ppo_mini_batch_size": prompts_per_mini_batch,
                "ppo_micro_batch_size_per_gpu": ppo.micro_batch_size,
                "ppo_epochs": ppo.num_epochs,
                "data_loader_seed": ppo.seed,
                "clip_ratio": ppo.clip_ratio,
                "clip_ratio_low": ppo.clip_ratio,
                "clip_ratio_high": ppo.clip_ratio,
                "entropy_coeff": ppo.entropy_coeff,
                "use_kl_loss": not use_critic,
                "kl_loss_coef": ppo.kl.coef,
            },
            "ref": {"log_prob_micro_batch_size_per_gpu": ppo.micro_batch_size},
            "rollout": {
                "n": ppo.num_rollouts,
                "seed": ppo.seed,
                "temperature": ppo.sampling.temperature,
                "top_p": ppo.sampling.top_p,
                "log_prob_micro_batch_size_per_gpu": ppo.micro_batch_size,
                "val_kwargs": {
                    "temperature": ppo.validation.temperature,
                    "top_p": ppo.validation.top_p,
                    "do_sample": ppo.validation.temperature > 0,
                },
                "agent": {"default_agent_loop": AGENT_LOOP, "agent_loop_config_path": str(_AGENT_LOOPS)},
            },
        },
        "critic": {
            "enable": use_critic,
            "model": {"path": str(paths.policy)},
            "optim": optimizer(ppo.critic),
            "ppo_micro_batch_size_per_gpu": ppo.micro_batch_size,
            "data_loader_seed": ppo.seed,
            "cliprange_value": ppo.value_clip,
        },
        "algorithm": {
            "adv_estimator": ppo.advantage,
            "gamma": ppo.gamma,
            "lam": ppo.lam,
            "use_kl_in_reward": use_critic,
            "kl_ctrl": {
                "type": ppo.kl.type,
                "kl_coef": ppo.kl.coef,
                "target_kl": ppo.kl.target,
                "horizon": ppo.kl.horizon,
            },
        },
        "trainer": {
            "nnodes": verl.num_nodes,
            "n_gpus_per_node": verl.devices_per_node,
            "device": verl.device,
            "total_training_steps": ppo.num_steps,
            "total_epochs": ppo.num_steps,  # an epoch has at least one step: never the limit, so no run ends early
            # verl updates the actor from this step on, counting from 1
            "critic_warmup": ppo.critic_warmup_steps + 1,
            "val_before_train": ppo.validate_first,
            "test_freq": ppo.test_steps,
            "save_freq": ppo.save_steps,
            "default_local_dir": str(paths.checkpoints),
            "project_name": "boostapr",
            "experiment_name": paths.output.parent.name or "ppo",
            "v1": {
                "trainer_mode": TRAINER_MODE,
                "sampler": {
                    "custom_sampler": {"path": "pkg://boostapr.verl_plugin.replay", "name": "DeadlineReplayBuffer"},
                },
            },
        },
    }


def _check(config: DictConfig, ppo: PPOSettings, verl: VerlSettings) -> None:
    """What verl would pad, truncate or mis-weight in silence."""
    devices = verl.num_nodes * verl.devices_per_node
    responses = ppo.batch_size * ppo.num_rollouts
    if ppo.mini_batch_size % (devices * ppo.micro_batch_size):
        raise ConfigError(
            f"ppo.mini_batch_size={ppo.mini_batch_size} must be a multiple of devices * ppo.micro_batch_size = "
            f"{devices} * {ppo.micro_batch_size}: verl would otherwise pad batches with rows of the wrong length."
        )
    if responses % (devices * ppo.micro_batch_size):
        raise ConfigError(
            f"ppo.batch_size * ppo.num_rollouts = {responses} must be a multiple of devices * ppo.micro_batch_size = "
            f"{devices} * {ppo.micro_batch_size}."
        )
    room = config.actor_rollout_ref.rollout.max_model_len
    if room is not None and room < ppo.max_prompt_tokens + ppo.max_response_tokens:
        raise ConfigError(
            f"ppo.max_prompt_tokens + ppo.max_response_tokens = {ppo.max_prompt_tokens + ppo.max_response_tokens} does not fit "
            f"verl.overrides.actor_rollout_ref.rollout.max_model_len={room}."
        )
    if config.algorithm.rollout_correction.bypass_mode and ppo.sampling.top_p < 1:
        raise ConfigError(
            f"ppo.sampling.top_p={ppo.sampling.top_p} with algorithm.rollout_correction.bypass_mode=true: vLLM's probabilities "
            "are of the truncated distribution, the trainer's are not. Set top_p=1 or bypass_mode=false."
        )
