"""Typed settings of the stages demonstrations, sft, candidates and evaluate. The numbers live in conf/<stage>/*.yaml."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from boostapr.config import RepoPath, Settings, SplitSettings
from boostapr.credit import CreditSettings
from boostapr.rewards import ExecutionRewardSettings
from envs.policies import Sampling

Template = Literal["compact", "full"]


class TeacherSettings(Settings):
    """`rule`: the rule-based teacher, right in a share `accuracy` of its attempts."""

    kind: Literal["rule"]
    accuracy: float = Field(ge=0, le=1)


class DemonstrationSettings(Settings):
    """The demonstrations stage. `num_attempts` a bug; none of the `held_out` splits may share a bug with the data."""

    data: SplitSettings
    held_out: list[str]
    teacher: TeacherSettings
    num_attempts: int = Field(gt=0)


class LoraSettings(Settings):
    """Low-rank adapters on `target_modules`, merged into the exported model; rank 0 trains all parameters."""

    rank: int = Field(ge=0)
    alpha: int = Field(ge=0)
    dropout: float = Field(ge=0, lt=1)
    target_modules: list[str] | Literal["all-linear"]


class SFTSettings(Settings):
    """The sft stage (section 3.2, appendix B.1).

    model: a folder or hub name; template: of the prompts of all stages that use the model. max_length in tokens, prompt
    and response and end token: longer examples are dropped. patch_examples and trace_examples: how many examples of each
    style a kept demonstration gives (0.5: every second one, chosen by seed). validation_share: of the instances, whose
    demonstrations are not trained on. batch_size counts examples per optimiser step, micro_batch_size per forward pass.
    checkpoint_steps and logging_steps in optimiser steps.
    """

    model: str
    template: Template
    max_length: int = Field(gt=1)
    patch_examples: float = Field(ge=0)
    trace_examples: float = Field(ge=0)
    validation_share: float = Field(ge=0, lt=1)
    num_epochs: float = Field(gt=0)
    batch_size: int = Field(gt=0)
    micro_batch_size: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    warmup_steps: int = Field(ge=0)
    weight_decay: float = Field(ge=0)
    max_grad_norm: float = Field(gt=0)
    lora: LoraSettings
    precision: Literal["float32", "bfloat16"]
    gradient_checkpointing: bool
    device: Literal["cpu", "cuda"]
    num_threads: int | None = Field(gt=0)
    checkpoint_steps: int = Field(gt=0)
    num_checkpoints: int = Field(gt=0)
    logging_steps: int = Field(gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> "SFTSettings":
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of micro_batch_size={self.micro_batch_size}"
            )
        if self.patch_examples + self.trace_examples == 0:
            raise ValueError("patch_examples and trace_examples are both 0: there would be nothing to train on")
        return self


class CandidateSettings(Settings):
    """The candidates stage (section 3.3.1): `num_candidates` (K) a bug, drawn by `sampling`, scored by `execution_reward` (Eq. 3).

    model: in the run folder.
    """

    data: SplitSettings
    model: str
    template: Template
    num_candidates: int = Field(gt=0)
    sampling: Sampling
    execution_reward: ExecutionRewardSettings


class SystemSettings(Settings):
    """One row of the results table: who answers.

    policy: `vllm` a model; `rerank` draws `pool_size` responses by `pool_sampling` and R_seq picks among them; `gold`,
    `noop`, `predictions` (a file) need no model. The model is either one of the run folder (`run_model`, such as
    sft/model) or any other (`model`). credit: store with each first answer what R_seq and R_line say of it. num_samples:
    answers for pass@k beside the first one.
    """

    policy: Literal["vllm", "rerank", "gold", "noop", "predictions"]
    num_samples: int = Field(ge=0)
    model: str | None = None
    run_model: str | None = None
    path: Path | None = None
    credit: bool = False
    pool_size: int | None = Field(default=None, gt=0)
    pool_sampling: Sampling | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "SystemSettings":
        asks_model = self.policy in ("vllm", "rerank")
        if asks_model and (self.model is None) == (self.run_model is None):
            raise ValueError(f"policy {self.policy} needs exactly one of `model` and `run_model`")
        if not asks_model and (self.model or self.run_model):
            raise ValueError(f"policy {self.policy} uses no model: leave `model` and `run_model` out")
        if self.policy == "rerank" and (self.pool_size is None or self.pool_sampling is None):
            raise ValueError("policy rerank needs `pool_size` and `pool_sampling`")
        if self.path is not None and self.policy != "predictions":
            raise ValueError(f"policy {self.policy} reads no file: leave `path` out")
        if self.policy == "rerank" and self.pool_size is not None and self.pool_size < max(self.num_samples, 1):
            raise ValueError(f"pool_size={self.pool_size} is less than num_samples={self.num_samples}")
        return self


class CreditViewSettings(Settings):
    """How the credit that is stored with an answer is computed: the reward models in the run folder, and `shaping`, the
    credit section of stage III (granularity, tau of Eq. 5, format penalty of Eq. 7).

    batch_size: responses that go through a reward model at once.
    """

    r_seq: str
    r_line: str
    batch_size: int = Field(gt=0)
    shaping: CreditSettings


class EvaluateSettings(Settings):
    """The evaluate stage (section 4.1). pass@1: `first`; pass@k: `sampled`. `systems` is what `system=...` may name."""

    splits: list[SplitSettings] = Field(min_length=1)
    template: Template
    first: Sampling
    sampled: Sampling
    credit: CreditViewSettings
    run: list[str]
    systems: dict[str, SystemSettings]

    @model_validator(mode="after")
    def _run_names_systems(self) -> "EvaluateSettings":
        unknown = [name for name in self.run if name not in self.systems]
        if unknown:
            raise ValueError(f"run names {', '.join(unknown)}, but systems has only {', '.join(self.systems)}")
        return self


class BenchmarkSettings(Settings):
    """Where bugs come from: the shipped `microbugs`, or `jsonl` files by split name."""

    kind: Literal["microbugs", "jsonl"]
    files: dict[str, RepoPath]
