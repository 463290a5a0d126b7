"""Scalar rewards from execution: r* of Eq. 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pydantic import BaseModel, ConfigDict, Field

from boostapr.outcomes import Outcome
from boostapr.patches import Patch


class ExecutionRewardSettings(BaseModel):
    """Weights of Eq. 3. `eta` is the penalty per changed line, `r_max` its cap."""

    model_config = ConfigDict(extra="forbid")

    w_apply: float = Field(ge=0)
    w_test: float = Field(ge=0)
    gamma_diff: float = Field(ge=0)
    eta: float = Field(ge=0)
    r_max: float = Field(ge=0)


@dataclass(frozen=True)
class RewardTarget:
    """r* = r_env + gamma_diff * r_diff, with its parts."""

    r_env: float
    r_diff: float
    total: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def execution_reward(
    outcome: Outcome, patch: Patch, required_tests: Sequence[str], settings: ExecutionRewardSettings
) -> RewardTarget:
    """Eq. 3 for one executed candidate.

    r_env = w_apply * applied + w_test * (share of the required tests that passed), r_diff = -min(eta * changed lines,
    r_max). Raises ValueError for an infra outcome: it says nothing about the patch and must be left out, not scored.
    """
    changed = sum(span.added + span.removed for span in patch.spans)
    r_env = settings.w_apply * outcome.applied + settings.w_test * outcome.pass_rate(required_tests)
    r_diff = -min(settings.eta * changed, settings.r_max)
    return RewardTarget(r_env, r_diff, r_env + settings.gamma_diff * r_diff)
