"""Weights, masks and group statistics do to the loss what the design says."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import compute_gae_advantage_return, compute_policy_loss_vanilla
from verl.workers.config import FSDPActorConfig

from boostapr.verl_plugin.streams import apply_streams, group_advantages

ROWS, TOKENS = 4, 6


def _batch(seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, TOKENS + 1, (ROWS,), generator=generator)
    mask = (torch.arange(TOKENS) < lengths[:, None]).long()
    return torch.randn(ROWS, TOKENS, generator=generator), mask, torch.rand(ROWS, TOKENS, generator=generator)


def _loss(advantages: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor | None, log_ratio: torch.Tensor) -> float:
    config = FSDPActorConfig(
        strategy="fsdp2",
        ppo_micro_batch_size_per_gpu=1,
        rollout_n=1,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
    )
    old = torch.zeros(ROWS, TOKENS)
    loss, _ = compute_policy_loss_vanilla(old, log_ratio, advantages, mask, "token-mean", config, weights)
    return float(loss)


@given(st.integers(0, 10_000))
def test_weighing_advantages_is_weighing_the_clipped_loss(seed: int) -> None:
    """Eq. 9 is positively homogeneous in A, so no loss function of verl has to change."""
    advantages, mask, weights = _batch(seed)
    log_ratio = 0.5 * torch.randn(ROWS, TOKENS, generator=torch.Generator().manual_seed(seed + 1))
    applied = apply_streams(advantages, mask, weights, torch.ones_like(mask), whiten=False)
    assert abs(_loss(applied.advantages, mask, None, log_ratio) - _loss(advantages, mask, weights, log_ratio)) < 1e-5


@given(st.integers(0, 10_000), st.integers(1, ROWS - 1))
def test_a_dropped_rollout_leaves_no_trace_in_gae(seed: int, kept: int) -> None:
    """Advantages of the others are those of a batch in which it never was: neither its mean nor its scale remains."""
    rewards, mask, values = _batch(seed)
    in_loss = torch.zeros_like(mask)
    in_loss[:kept] = 1
    if int((mask * in_loss).sum()) < 2:  # whitening one token is undefined
        return
    everything, _ = compute_gae_advantage_return(rewards, values, mask, 0.99, 0.95)
    alone, _ = compute_gae_advantage_return(rewards[:kept], values[:kept], mask[:kept], 0.99, 0.95)
    applied = apply_streams(everything, mask, torch.ones(ROWS, TOKENS), in_loss, whiten=True)
    torch.testing.assert_close(applied.advantages[:kept], alone * mask[:kept], atol=2e-3, rtol=2e-3)
    assert not applied.advantages[kept:].any()
    assert torch.equal(applied.loss_mask, mask * in_loss)


def test_nothing_left_is_said() -> None:
    """A step whose rollouts are all masked must be recognised: its denominator would be zero."""
    advantages, mask, weights = _batch(0)
    applied = apply_streams(advantages, mask, weights, torch.zeros_like(mask), whiten=True)
    assert applied.num_tokens == 0
    assert not applied.advantages.any()


def test_group_statistics_see_masked_rollouts_but_not_lost_ones() -> None:
    """group_reward counts for rows that the loss ignores; nan (an error of ours) is as if the row were not there."""
    reward = torch.tensor([1.0, 0.0, float("nan"), 0.5, 0.5])
    mask = torch.ones(5, 3, dtype=torch.long)
    advantages = group_advantages(reward, ["a", "a", "a", "b", "b"], mask, normalize_by_std=False)
    torch.testing.assert_close(advantages[:, 0], torch.tensor([0.5, -0.5, 0.0, 0.0, 0.0]))
    assert torch.equal(advantages, advantages[:, :1].expand(5, 3))


def test_group_statistics_of_nothing() -> None:
    reward = torch.full((2,), float("nan"))
    assert not group_advantages(reward, ["a", "a"], torch.ones(2, 3, dtype=torch.long), True).any()
