"""Settings of stage III (section 3.4, appendix B.3) and of the machine that verl runs on. The numbers live in conf/ppo/ and conf/verl/."""

from typing import Any, Literal

from pydantic import Field, model_validator

from boostapr.config import Settings, SplitSettings


class OptimizerSettings(Settings):
    """AdamW of the actor or the critic. `warmup_steps` counts PPO steps; the rate is constant afterwards."""

    lr: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    betas: tuple[float, float]
    max_grad_norm: float = Field(gt=0)
    warmup_steps: int = Field(ge=0)


class KLSettings(Settings):
    """KL penalty in the reward against the frozen reference policy.

    `coef` is beta at the start. adaptive: each step multiplies it by 1 + clip(KL / target - 1, +-0.2) * sequences / horizon.
    """

    type: Literal["adaptive", "fixed"]
    coef: float = Field(ge=0)
    target: float = Field(gt=0)
    horizon: int = Field(gt=0)


class LoraSettings(Settings):
    """Low-rank adapters on the policy. `merge`: vLLM receives merged weights instead of the adapter (verl casts those to bf16)."""

    rank: int = Field(gt=0)
    alpha: int = Field(gt=0)
    target_modules: str | tuple[str, ...]
    merge: bool


class SamplingSettings(Settings):
    """How responses are drawn. temperature 0 is greedy."""

    temperature: float = Field(ge=0)
    top_p: float = Field(gt=0, le=1)


class PPOSettings(Settings):
    """One PPO run. data: prompts to train on; dev_data: prompts whose responses are executed every test_steps.

    model, r_seq and r_line are folders in the run folder: the policy to start from, and the reward models.
    batch_size counts prompts per step, num_rollouts responses per prompt; mini_batch_size (one optimiser step) and
    micro_batch_size (one forward and backward on one device) count responses. *_tokens are lengths in tokens, *_steps
    are PPO steps. critic_warmup_steps: steps in which only the critic learns. value_clip: the value loss is clipped to
    old value +- value_clip (Eq. 23 has no clip: a huge number). max_failed_share: the run stops when more of a step's
    rollouts than this were lost to errors of ours, since training would go on with little or nothing.
    """

    data: SplitSettings
    dev_data: SplitSettings
    model: str
    r_seq: str
    r_line: str
    seed: int = Field(ge=0)
    num_steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    num_rollouts: int = Field(gt=0)
    mini_batch_size: int = Field(gt=0)
    micro_batch_size: int = Field(gt=0)
    num_epochs: int = Field(gt=0)
    actor: OptimizerSettings
    critic: OptimizerSettings
    critic_warmup_steps: int = Field(ge=0)
    advantage: Literal["gae", "grpo"]
    gamma: float = Field(gt=0, le=1)
    lam: float = Field(ge=0, le=1)
    clip_ratio: float = Field(gt=0, lt=1)
    value_clip: float = Field(gt=0)
    entropy_coeff: float = Field(ge=0)
    kl: KLSettings
    lora: LoraSettings | None
    max_prompt_tokens: int = Field(gt=0)
    max_response_tokens: int = Field(gt=0)
    sampling: SamplingSettings
    validation: SamplingSettings
    execute_rollouts: bool
    max_failed_share: float = Field(ge=0, le=1)
    validate_first: bool
    test_steps: int = Field(gt=0)
    save_steps: int = Field(gt=0)
    keep_checkpoints: int = Field(gt=0)

    @model_validator(mode="after")
    def _batches_divide(self) -> "PPOSettings":
        sequences = self.batch_size * self.num_rollouts
        if self.mini_batch_size % self.num_rollouts:
            raise ValueError(
                f"mini_batch_size={self.mini_batch_size} must be a multiple of num_rollouts={self.num_rollouts} "
                "(verl keeps the responses to a prompt in one mini-batch's count)"
            )
        if sequences % self.mini_batch_size:
            raise ValueError(
                f"batch_size * num_rollouts = {sequences} responses do not divide into mini-batches of "
                f"mini_batch_size={self.mini_batch_size}"
            )
        if self.mini_batch_size % self.micro_batch_size:
            raise ValueError(
                f"mini_batch_size={self.mini_batch_size} must be a multiple of micro_batch_size={self.micro_batch_size}"
            )
        if self.sampling.temperature == 0:
            raise ValueError("sampling.temperature is 0: PPO needs to explore, training rollouts cannot be greedy")
        return self


class RaySettings(Settings):
    """The Ray cluster of this run. address "local" starts one that lives and dies with the run.

    num_cpus and num_gpus are logical (every actor takes one CPU however idle it is); None lets Ray count.
    start_attempts: Ray gives its own processes half a minute to come up, which a busy laptop may not manage.
    """

    address: str
    start_attempts: int = Field(gt=0)
    num_cpus: int | None = Field(gt=0)
    num_gpus: int | None = Field(ge=0)
    object_store_mb: int | None = Field(gt=80)
    log_to_driver: bool


class VerlSettings(Settings):
    """The machine: which device, how many, and verl keys that follow from it.

    env: environment variables of every process. overrides: merged into verl's own `ppo_trainer` configuration, where each
    key must exist. additions: keys that verl's dataclasses accept although its yaml does not list them (Hydra's `+`).
    The *_timeout_s turn a hang (a lost weight transfer, a dead rollout worker) into an error.
    """

    device: Literal["cpu", "cuda"]
    num_nodes: int = Field(gt=0)
    devices_per_node: int = Field(gt=0)
    trainer_threads: int | None = Field(gt=0)
    poll_interval_s: float = Field(gt=0)
    weight_sync_timeout_s: float = Field(gt=0)
    rollout_timeout_s: float = Field(gt=0)
    ray: RaySettings
    env: dict[str, str]
    overrides: dict[str, Any]
    additions: dict[str, Any]
