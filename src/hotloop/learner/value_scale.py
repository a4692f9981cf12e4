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
from hotloop.policies.forward import LearnedNetwork

# A minibatch's share of the running sums. With the usual 40 minibatches of an iteration, they cover
# about 12 iterations. A slower mean would keep the large returns of a first, poor value function.
_NEW_SHARE = 0.002
# Minimum of σ in units of the root mean square: if a policy always succeeds, all returns are equal.
_MIN_SHARE = 0.1
# Minimum of σ², if all returns are 0.
_MIN_SQUARE = 1e-16


def new_return_sums() -> Tensor:
    """Return the sums before the first minibatch, float32, (3,)."""
    return torch.zeros(3)


def scale_value(
    params: Tensor,
    sums: Tensor | None,
    step: Tensor,
    returns: Tensor,
    weight: Tensor | None,
    nets: LearnedNetwork,
) -> tuple[Tensor | None, Tensor | None]:
    """Add a minibatch's returns R to the running sums, and return the units of learning.

    σ² = max(E[R²] − E[R]², 0.01 E[R²]). Before the first step, E[R] is added to the value's bias.

    Args:
        params: parameters of policy and value, float32, (P,), changed in place.
        sums: running sums of w, w R and w R², float32, (3,), changed in place. None: σ is 1.
        step: the number of the optimizer's steps so far, 0-d.
        returns: R, float32, (B,).
        weight: w, float32, (B,). None for equal weights.
        nets: policy and value.

    Returns:
        σ, 0-d, the unit of the value in its loss; and the factor of each parameter's gradient and
        change, (P,), σ in the value's last layer and 1 elsewhere. None for both without sums.
    """
    if sums is None:
        return None, None
    rows = torch.stack([torch.ones_like(returns), returns, returns.square()])
    sums.add_(_NEW_SHARE * (torch.stack([mean(row, weight) for row in rows]) - sums))
    total, linear, square = sums
    average, square = linear / total.clamp(min=_MIN_SQUARE), square / total.clamp(min=_MIN_SQUARE)
    variance = torch.maximum(square - average.square(), _MIN_SHARE**2 * square)
    unit = variance.clamp(min=_MIN_SQUARE).sqrt()
    params.add_(nets.value_bias * torch.where(step == 0.0, average, 0.0))
    return unit, torch.where(nets.value_layer, unit, 1.0)
