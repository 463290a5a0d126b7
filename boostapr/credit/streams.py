"""What credit functions take and give: Rollout and TokenStreams, and the settings that they share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from boostapr.credit.units import Granularity
from boostapr.outcomes import FailureCause, Outcome
from boostapr.patches import PatchFormat


class CreditSettings(BaseModel):
    """Which algorithm turns rollouts into token streams, and its numbers.

    tau: temperature of Eq. 5 (inf: all units alike). format_penalty: r_fmt of Eq. 7, one number per format class.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: str
    tau: float = Field(gt=0)
    granularity: Granularity
    format_penalty: dict[PatchFormat, float]

    @field_validator("algorithm")
    @classmethod
    def _known(cls, name: str) -> str:
        from boostapr.credit.algorithms import CREDIT

        if name not in CREDIT:
            raise ValueError(f"unknown credit algorithm {name!r}; there are {', '.join(sorted(CREDIT))}")
        return name

    @field_validator("format_penalty")
    @classmethod
    def _complete(cls, table: dict[PatchFormat, float]) -> dict[PatchFormat, float]:
        missing = [kind.value for kind in PatchFormat if kind not in table]
        if missing:
            raise ValueError(f"no penalty for format class {', '.join(missing)}")
        if not all(math.isfinite(value) for value in table.values()):
            raise ValueError("penalties must be finite")
        return table


@dataclass(frozen=True, slots=True)
class Rollout:
    """One response as the credit functions see it.

    tokens: bytes of each of the T tokens; response_mask: bool[T], False for tokens that the policy did not write.
    seq_score: R_seq (or another scalar). unit_scores: R_line, one per unit of the patch at the granularity in use; empty if the
    response is longer than R_line reads.
    """

    response: bytes
    tokens: list[bytes]
    response_mask: NDArray[np.bool_]
    outcome: Outcome | None
    seq_score: float | None
    unit_scores: list[float] | None


@dataclass(frozen=True, slots=True)
class TokenStreams:
    """Everything that the trainer learns about one rollout of T tokens (design: token streams).

    token_rewards: float64[T], zero where response_mask is False; its sum is the return. loss_weights: float64[T] >= 0.
    in_loss: bool[T], False: no gradient, not in the loss denominator. group_reward: what group statistics see.
    fallback: the whole score went to the last token (`credit/fallback_rate`).
    """

    token_rewards: NDArray[np.float64]
    loss_weights: NDArray[np.float64]
    in_loss: NDArray[np.bool_]
    group_reward: float
    cause: FailureCause
    fallback: bool = False
