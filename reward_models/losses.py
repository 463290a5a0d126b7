"""The two objectives of stage II: Eq. 4 (hybrid regression and preference) and Eq. 6 (contrastive spans)."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def hybrid_loss(scores: Tensor, targets: Tensor, groups: Tensor, lambda_reg: float) -> Tensor:
    """Eq. 4: lambda_reg * mean (R_seq - r*)^2 + mean over pairs of -w log sigmoid(R_seq(y+) - R_seq(y-)).

    Args:
        scores: float[N], R_seq(y).
        targets: float[N], r*(x, y) of Eq. 3.
        groups: int[N], one number per instance. Only candidates of the same instance are paired: across instances a
            higher r* may only mean an easier bug.
        lambda_reg: weight of the regression term.

    Returns:
        The scalar loss. A pair is (y+, y-) with r*(y+) > r*(y-), its weight w = r*(y+) - r*(y-). Without any pair the
        second term is 0.
    """
    regression = torch.mean((scores - targets) ** 2)
    gaps = targets[:, None] - targets[None, :]
    better, worse = torch.nonzero((groups[:, None] == groups[None, :]) & (gaps > 0), as_tuple=True)
    if better.numel() == 0:
        return lambda_reg * regression
    preference = -(gaps[better, worse] * logsigmoid(scores[better] - scores[worse])).mean()
    return lambda_reg * regression + preference


def contrastive_loss(scores: Tensor, labels: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
    """Eq. 6: E over (l+, l-) of -log sigmoid(R_line(l+) - R_line(l-)).

    The paper leaves the pairing open. Here the expectation first draws a failing span l-, then one of its partners l+:
    the passing spans of the same instance if this batch has any (they solve the same bug, so that the comparison is about
    the edit and not about the bug), else every passing span of the batch. So each failing span counts once, however many
    partners it has, and a batch without passing or without failing spans has loss 0.

    Args:
        scores: float[S], R_line of each span.
        labels: int[S], +1 passing, -1 failing, 0 neutral (ignored).
        groups: int[S], one number per instance.
        weights: float[S] >= 0, weight of the label; read for failing spans only.

    Returns:
        The scalar loss: the weighted mean over failing spans.
    """
    positive = torch.nonzero(labels > 0).flatten()
    negative = torch.nonzero((labels < 0) & (weights > 0)).flatten()
    if positive.numel() == 0 or negative.numel() == 0:
        return scores.sum() * 0.0
    same = groups[negative][:, None] == groups[positive][None, :]
    partners = torch.where(same.any(dim=1, keepdim=True), same, torch.ones_like(same)).to(scores.dtype)
    losses = -logsigmoid(scores[positive][None, :] - scores[negative][:, None])
    per_negative = (losses * partners).sum(dim=1) / partners.sum(dim=1)
    weight = weights[negative].to(scores.dtype)
    return (weight * per_negative).sum() / weight.sum()
