"""Eq. 4 and Eq. 6 against numbers worked out by hand, and the direction in which they push."""

import math

import pytest
import torch

from reward_models.losses import contrastive_loss, hybrid_loss


def minus_log_sigmoid(x: float) -> float:
    return math.log1p(math.exp(-x))


def test_hybrid_loss_equals_equation_4_by_hand() -> None:
    """Two instances: one pair with gap 0.8, one of three candidates with gaps 0.5 (twice) and a tie."""
    scores = torch.tensor([0.6, 0.1, 0.0, 0.3, 0.5])
    targets = torch.tensor([1.0, 0.2, 0.7, 0.2, 0.2])
    groups = torch.tensor([0, 0, 1, 1, 1])
    squares = [0.4**2, 0.1**2, 0.7**2, 0.1**2, 0.3**2]
    pairs = [0.8 * minus_log_sigmoid(0.5), 0.5 * minus_log_sigmoid(-0.3), 0.5 * minus_log_sigmoid(-0.5)]
    expected = 0.5 * sum(squares) / 5 + sum(pairs) / 3
    assert hybrid_loss(scores, targets, groups, lambda_reg=0.5).item() == pytest.approx(expected, abs=1e-6)


def test_hybrid_loss_never_pairs_across_instances() -> None:
    """An easier bug must not teach that its patches are better: only the regression term is left."""
    scores, targets = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    assert hybrid_loss(scores, targets, torch.tensor([0, 1]), 0.5).item() == pytest.approx(0.5)
    assert hybrid_loss(scores, targets, torch.tensor([0, 0]), 0.0).item() == pytest.approx(minus_log_sigmoid(-1.0))


def test_hybrid_loss_without_pairs_is_the_regression_term() -> None:
    """A batch of ties must not divide by zero."""
    scores = torch.tensor([0.5, 0.25], requires_grad=True)
    loss = hybrid_loss(scores, torch.tensor([0.5, 0.5]), torch.tensor([0, 0]), lambda_reg=2.0)
    assert loss.item() == pytest.approx(2.0 * 0.0625 / 2)
    loss.backward()
    assert torch.isfinite(scores.grad).all()


def test_preference_gradient_raises_the_better_and_scales_with_the_gap() -> None:
    """Descending Eq. 4 must raise R(y+) and lower R(y-), four times as hard for a gap four times as large."""

    def gradient(better: float) -> torch.Tensor:
        scores = torch.zeros(2, requires_grad=True)
        hybrid_loss(scores, torch.tensor([better, 0.0]), torch.tensor([0, 0]), lambda_reg=0.0).backward()
        return scores.grad

    assert gradient(0.2)[0] < 0 < gradient(0.2)[1]
    assert torch.allclose(gradient(0.8), 4 * gradient(0.2))


def test_contrastive_loss_prefers_partners_of_the_same_instance() -> None:
    """Span 1 (failing) meets span 0 of its own instance only; span 3, whose instance has none, meets both passing spans."""
    scores = torch.tensor([1.0, 0.5, 2.0, 0.0])
    labels = torch.tensor([1, -1, 1, -1])
    groups = torch.tensor([0, 0, 1, 2])
    within = minus_log_sigmoid(0.5)
    across = (minus_log_sigmoid(1.0) + minus_log_sigmoid(2.0)) / 2
    loss = contrastive_loss(scores, labels, groups, torch.ones(4))
    assert loss.item() == pytest.approx((within + across) / 2, abs=1e-6)


def test_contrastive_loss_weighs_failing_spans_by_their_label() -> None:
    """A label of weight 3 counts three times; one of weight 0 not at all."""
    scores, labels = torch.tensor([1.0, 0.5, 0.0]), torch.tensor([1, -1, -1])
    groups = torch.zeros(3, dtype=torch.long)
    first, second = minus_log_sigmoid(0.5), minus_log_sigmoid(1.0)
    loss = contrastive_loss(scores, labels, groups, torch.tensor([1.0, 3.0, 1.0]))
    assert loss.item() == pytest.approx((3 * first + second) / 4, abs=1e-6)
    only = contrastive_loss(scores, labels, groups, torch.tensor([1.0, 0.0, 1.0]))
    assert only.item() == pytest.approx(second, abs=1e-6)


def test_contrastive_gradient_leaves_neutral_spans_alone() -> None:
    """Neutral spans of a failing patch are no evidence; passing spans go up, failing ones down."""
    scores = torch.zeros(3, requires_grad=True)
    contrastive_loss(scores, torch.tensor([1, -1, 0]), torch.tensor([0, 0, 0]), torch.ones(3)).backward()
    assert scores.grad[0] < 0 < scores.grad[1]
    assert scores.grad[2] == 0


@pytest.mark.parametrize("labels", [[1, 1], [-1, -1], [0, 0], []])
def test_contrastive_loss_without_a_pair_is_zero_and_differentiable(labels: list[int]) -> None:
    """A batch of only passing or only failing spans is ordinary and must not stop training."""
    scores = torch.ones(len(labels), requires_grad=True)
    groups = torch.zeros(len(labels), dtype=torch.long)
    loss = contrastive_loss(scores, torch.tensor(labels, dtype=torch.long), groups, torch.ones(len(labels)))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(scores.grad, torch.zeros(len(labels)))
