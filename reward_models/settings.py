"""Typed settings of the reward stage. The numbers live in conf/reward/*.yaml; nothing tunable has a default here."""

from typing import Literal

from pydantic import Field, model_validator

from boostapr.config import Settings
from reward_models.labels import LabelSource


class OptimizationSettings(Settings):
    """How one reward model is trained (appendix B.2).

    `batch_size` counts candidates per optimiser step, `micro_batch_size` candidates per forward pass on one device; both
    are filled with whole instances, so that within-instance pairs exist. `checkpoint_steps` is the number of optimiser
    steps between two checkpoints, each of which is scored on the held-out instances; the best one is kept.
    """

    learning_rate: float = Field(gt=0)
    head_learning_rate: float = Field(gt=0)
    batch_size: int = Field(gt=0)
    micro_batch_size: int = Field(gt=0)
    num_epochs: float = Field(gt=0)
    adam_beta1: float = Field(ge=0, lt=1)
    adam_beta2: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0)
    warmup_fraction: float = Field(ge=0, lt=1)
    max_grad_norm: float = Field(gt=0)
    bf16: bool
    gradient_checkpointing: bool
    checkpoint_steps: int = Field(gt=0)
    logging_steps: int = Field(gt=0)
    head_init_std: float = Field(gt=0)

    @model_validator(mode="after")
    def _micro_batches_fill_a_batch(self) -> "OptimizationSettings":
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size={self.batch_size} is not a multiple of micro_batch_size={self.micro_batch_size}: "
                "an optimiser step is made of whole micro-batches"
            )
        return self


class RSeqSettings(OptimizationSettings):
    """R_seq (section 3.3.2). `lambda_reg` weighs the regression term of Eq. 4."""

    lambda_reg: float = Field(ge=0)


class RLineSettings(OptimizationSettings):
    """R_line (section 3.3.3). `hidden_dim` is the width of the span head's MLP.

    `label_weights` weighs the failing spans of Eq. 6 by how their label was found (Table 10 of the paper shows that
    better-founded labels help more); 1.0 everywhere is the plain Eq. 6.
    """

    hidden_dim: int = Field(gt=0)
    label_weights: dict[LabelSource, float]

    @model_validator(mode="after")
    def _every_failing_source_has_a_weight(self) -> "RLineSettings":
        expected = set(LabelSource) - {LabelSource.PASSING}
        if set(self.label_weights) != expected or min(self.label_weights.values()) < 0:
            raise ValueError(f"label_weights needs exactly the keys {sorted(expected)}, each with a weight >= 0")
        return self


class ServingSettings(Settings):
    """The reward server of stage III: requests wait at most `wait_ms` for a batch of `max_batch` responses."""

    max_batch: int = Field(gt=0)
    wait_ms: float = Field(ge=0)
    num_cpus: float = Field(ge=0)
    num_gpus: float = Field(ge=0)
    num_threads: int = Field(gt=0)


class RewardSettings(Settings):
    """The reward stage.

    Both models start from `run_backbone`, a folder of this run such as sft/model, or from `backbone`, a model folder or a
    name on the Hugging Face hub. `max_length` is in tokens of the backbone, the end token included: longer candidates are
    dropped from training (counted), never truncated (section 3.1).
    """

    run_backbone: str | None
    backbone: str | None
    validation_fraction: float = Field(gt=0, lt=1)
    max_length: int = Field(gt=1)
    input_mode: Literal["patch"]
    num_threads: int = Field(gt=0)
    r_seq: RSeqSettings
    r_line: RLineSettings
    serving: ServingSettings

    @model_validator(mode="after")
    def _one_backbone(self) -> "RewardSettings":
        if (self.run_backbone is None) == (self.backbone is None):
            raise ValueError("set either run_backbone (a folder of this run) or backbone (a model folder or hub name)")
        return self
