"""The scale of returns, so that learning a value does not depend on the unit of rewards.

PopArt (van Hasselt et al. 2016, "Learning values across many orders of magnitude",
arXiv:1602.07714) learns a normalized value, and rescales its last layer whenever the statistics of
returns change. The last layer here holds the product of that layer and the scale σ. Then nothing is
rescaled, acting policies and checkpoints need no statistics, and each step of the optimizer is the
same: the loss is that of values and returns in units of σ, and gradient and change of the last
layer are multiplied by σ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotloop.ops.losses import mean

# A minibatch's share of the running sums. With the usual 40 minibatches of an iteration, they cover
# about 12 iterations. A slower mean keeps the large returns of a first, poor value function.
_NEW_SHARE = 0.002
# Minimum of σ in units of the root mean square. Returns of a policy that always succeeds are equal.
_MIN_SHARE = 0.1
# Minimum of σ², if all returns are 0.
_MIN_SQUARE = 1e-16


def new_return_sums() -> Tensor:
    """Return the sums before the first minibatch, float32, (3,)."""
    return torch.zeros(3)


def add_returns(sums: Tensor, returns: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Add a minibatch's returns R to the running sums, and return their mean and scale.

    σ² = max(E[R²] − E[R]², 0.01 E[R²])

    Args:
        sums: running sums of w, w R and w R², float32, (3,), changed in place.
        returns: R, float32, (B,).
        weight: w, float32, (B,). None for equal weights.

    Returns:
        E[R] and σ, 0-d each.
    """
    rows = torch.stack([torch.ones_like(returns), returns, returns.square()])
    sums.add_(_NEW_SHARE * (torch.stack([mean(row, weight) for row in rows]) - sums))
    total, linear, square = sums
    average, square = linear / total.clamp(min=_MIN_SQUARE), square / total.clamp(min=_MIN_SQUARE)
    variance = torch.maximum(square - average.square(), _MIN_SHARE**2 * square)
    return average, variance.clamp(min=_MIN_SQUARE).sqrt()
