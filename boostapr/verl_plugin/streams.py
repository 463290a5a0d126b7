"""Applying token streams to a batch, as plain tensor functions (design: section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils.torch_functional import masked_whiten


@dataclass(frozen=True)
class AppliedStreams:
    """advantages float[B, T], weighted; loss_mask int64[B, T], which tokens make up the loss and its denominator."""

    advantages: torch.Tensor
    loss_mask: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens left in the loss."""
        return int(self.loss_mask.sum())


def apply_streams(
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_weights: torch.Tensor,
    in_loss: torch.Tensor,
    whiten: bool,
) -> AppliedStreams:
    """Drop the tokens with in_loss = 0 and weigh the others. All arguments are [B, T], padded with zeros.

    whiten: the advantages are GAE's, which verl whitened over all tokens. Whitening is affine, so doing it again over the
    tokens that stay gives what whitening only those would have given: a dropped rollout leaves no trace in the scale.
    The clipped objective is positively homogeneous in the advantage, so weighing it equals weighing the loss (Eq. 9).
    """
    mask = response_mask * in_loss
    if whiten and bool(mask.any()) and not torch.equal(mask, response_mask):
        advantages = masked_whiten(advantages, mask)
    return AppliedStreams(advantages * loss_weights * mask, mask)


def group_advantages(
    group_reward: torch.Tensor, groups: Sequence[str], response_mask: torch.Tensor, normalize_by_std: bool
) -> torch.Tensor:
    """verl's GRPO advantages from one scalar per response, float[B, T].

    Args:
        group_reward: float[B]; rows with nan stay out of their group's mean and deviation and get advantage 0.
        groups: prompt id of each row.
    """
    counted = torch.isfinite(group_reward)
    rewards = torch.zeros_like(response_mask, dtype=torch.float32)
    rewards[:, 0] = torch.where(counted, group_reward, 0.0)
    advantages = torch.zeros_like(rewards)
    rows = counted.nonzero()[:, 0]
    if len(rows):
        index = np.array(groups, dtype=object)[rows.numpy()]
        advantages[rows], _ = compute_grpo_outcome_advantage(
            rewards[rows], response_mask[rows], index, norm_adv_by_std_in_grpo=normalize_by_std
        )
    return advantages
