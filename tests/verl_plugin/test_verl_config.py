"""verl's configuration for a run: every key lands, and no wrong one passes."""

from pathlib import Path

import pytest
from helpers import CREDIT, paths, ppo, verl
from tiny_model import make_policy

from boostapr.config import ConfigError
from boostapr.verl_plugin.verl_config import check_with_verl, compose_verl_config


def test_our_numbers_land_in_verls_tree(tmp_path: Path) -> None:
    """Each stage number reaches the key that verl reads; responses become prompts where verl counts prompts."""
    config = compose_verl_config(ppo(), verl(), CREDIT, paths(tmp_path))
    assert config.algorithm.gamma == 0.99
    assert config.algorithm.lam == 0.95
    assert config.algorithm.use_kl_in_reward is True
    assert config.algorithm.kl_ctrl.type == "adaptive"
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n == 64
    assert config.critic.ppo_mini_batch_size == config.actor_rollout_ref.actor.ppo_mini_batch_size
    assert config.critic.fsdp.micro_batch_size_per_gpu == ppo().micro_batch_size
    assert config.actor_rollout_ref.actor.optim.lr == 3e-4
    assert config.critic.optim.lr == 1e-3
    assert config.trainer.device == "cpu"
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert config.trainer.v1.sampler.sampler_kwargs.poll_interval_s == 0.05
    assert config.boostapr.credit.algorithm == "boostapr"


def test_one_warmup_step_is_one(tmp_path: Path) -> None:
    """verl starts the actor *at* step critic_warmup, so one warm-up step is critic_warmup=2."""
    config = compose_verl_config(ppo(critic_warmup_steps=1), verl(), CREDIT, paths(tmp_path))
    assert config.trainer.critic_warmup == 2


def test_grpo_has_no_critic_and_its_kl_in_the_loss(tmp_path: Path) -> None:
    config = compose_verl_config(ppo(advantage="grpo"), verl(), CREDIT, paths(tmp_path))
    assert config.critic.enable is False
    assert config.algorithm.use_kl_in_reward is False
    assert config.actor_rollout_ref.actor.use_kl_loss is True


def test_the_cluster_configuration_composes(tmp_path: Path) -> None:
    """Appendix B.3's numbers with two nodes of eight GPUs."""
    config = compose_verl_config(ppo("paper"), verl("gpu"), CREDIT, paths(tmp_path))
    assert (config.actor_rollout_ref.model.lora_rank, config.actor_rollout_ref.model.lora_alpha) == (64, 128)
    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (64, 4)
    assert config.trainer.total_training_steps == 300
    assert config.algorithm.kl_ctrl.kl_coef == 0.001


@pytest.mark.parametrize(("numbers", "machine"), [("demo", "cpu"), ("paper", "gpu")])
def test_verl_itself_accepts_what_we_ship(tmp_path: Path, numbers: str, machine: str) -> None:
    """verl builds its dataclasses and checks batches and LoRA: a key of `additions` that it does not know fails here."""
    make_policy(tmp_path / "policy")
    check_with_verl(compose_verl_config(ppo(numbers), verl(machine), CREDIT, paths(tmp_path)))


def test_verls_refusal_is_told(tmp_path: Path) -> None:
    make_policy(tmp_path / "policy")
    wrong = {"actor_rollout_ref": {"actor": {"fsdp_config": {"mixed_precisoin": {"param_dtype": "fp32"}}}}}
    config = compose_verl_config(ppo(), verl(additions=wrong), CREDIT, paths(tmp_path))
    with pytest.raises(ConfigError, match="mixed_precisoin"):
        check_with_verl(config)


def test_an_unknown_override_is_named_with_a_suggestion(tmp_path: Path) -> None:
    bad = {"actor_rollout_ref": {"rollout": {"max_model_length": 768}}}
    with pytest.raises(ConfigError, match=r"`actor_rollout_ref.rollout.max_model_length`.*max_model_len`\?"):
        compose_verl_config(ppo(), verl(overrides=bad), CREDIT, paths(tmp_path))


def test_an_addition_must_be_new(tmp_path: Path) -> None:
    """A key that exists belongs to the overrides, where a typing error is found."""
    with pytest.raises(ConfigError, match=r"move it to verl\.overrides"):
        compose_verl_config(ppo(), verl(additions={"trainer": {"nnodes": 2}}), CREDIT, paths(tmp_path))


def test_prompt_and_response_must_fit_the_context(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_len=768"):
        compose_verl_config(ppo(max_prompt_tokens=600), verl(), CREDIT, paths(tmp_path))


def test_truncated_sampling_needs_recomputed_probabilities(tmp_path: Path) -> None:
    """With bypass_mode the trainer takes vLLM's probabilities, which top_p renormalises: the ratio would be wrong."""
    with pytest.raises(ConfigError, match="bypass_mode"):
        compose_verl_config(ppo(sampling={"top_p": 0.9}), verl(), CREDIT, paths(tmp_path))


def test_batches_must_divide_over_the_devices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"devices \* ppo\.micro_batch_size"):
        compose_verl_config(ppo(), verl(devices_per_node=3), CREDIT, paths(tmp_path))


def test_composing_leaves_hydra_as_it_was(tmp_path: Path) -> None:
    """A stage runs under Hydra, whose global state would otherwise be lost."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(config_dir=str(tmp_path), version_base="1.3"):
        mine = GlobalHydra.instance().hydra
        compose_verl_config(ppo(), verl(), CREDIT, paths(tmp_path))
        assert GlobalHydra.instance().hydra is mine
