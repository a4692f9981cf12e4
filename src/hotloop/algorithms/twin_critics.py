"""What SAC and TD3 share: two critics beside an actor, and the step that learns them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotloop.algorithms.batches import Batch
from hotloop.learner import AdamState, ParameterLayout, adam_step, value_and_grad
from hotloop.ops.products import Precision
from hotloop.policies import Actor, Critics, networks

CRITIC_METRICS = ("critic_loss", "q_value", "td_error")


@dataclass(frozen=True)
class Networks:
    """What is learned, and where its parameters stand.

    Attributes:
        actor: acts.
        critics: tell what its actions are worth.
        precision: of the matrix products.
    """

    actor: Actor
    critics: Critics
    precision: Precision

    @classmethod
    def around(cls, actor: Actor, *, layer_norm: bool, precision: Precision) -> Networks:
        """An actor, and two critics with hidden layers as wide as its own."""
        critics = Critics(
            inputs=actor.obs_size + actor.action_size,
            hidden_sizes=actor.hidden_sizes,
            layer_norm=layer_norm,
        )
        return cls(actor, critics, precision)

    @property
    def policy_layout(self) -> ParameterLayout:
        """Of the actor's parameters, and of a target actor's."""
        return ParameterLayout(self.actor.parameter_shapes())

    @property
    def critics_layout(self) -> ParameterLayout:
        """Of the critics' parameters, and of the target critics'."""
        return ParameterLayout(self.critics.parameter_shapes())


def critic_loss(
    params: Tensor, inputs: Tensor, target: Tensor, importance: Tensor, nets: Networks
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """L = Σ_k E[w (Q_k(s, a) − y)²].

    Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1; twice eq. 5 of Haarnoja et al. 2018,
    arXiv:1812.05905.

    Args:
        params: float32, (C,).
        inputs: observations and actions side by side, (B, D + A).
        target: y, (B,).
        importance: w, (B,).
        nets: which networks.

    Returns:
        The loss, 0-d; Q, (K, B), and the differences, (K, B).
    """
    named = nets.critics_layout.unpack(params)
    values = networks.action_values(nets.critics, named, inputs, nets.precision)
    difference = values - target
    return (importance * difference.square()).mean(-1).sum(), (values, difference)


def step_critics(
    params: Tensor,
    adam: AdamState,
    batch: Batch,
    target: Tensor,
    *,
    learning_rate: float,
    nets: Networks,
) -> tuple[Tensor, Tensor]:
    """One step of Adam towards the targets; `params` and `adam` change in place.

    Args:
        params: float32, (C,).
        adam: their optimizer's memory.
        batch: B transitions.
        target: y, (B,).
        learning_rate: α.
        nets: which networks.

    Returns:
        `CRITIC_METRICS`, float32, (3,), and |TD error|, the mean of both critics', (B,).
    """
    action = networks.unit_action(nets.actor, batch.action)
    inputs = torch.cat([batch.obs.flatten(1).to(torch.float32), action], 1)
    value, (values, difference), grad = value_and_grad(
        critic_loss, params, inputs, target, batch.importance, nets
    )
    adam_step(params, grad, adam, learning_rate=torch.tensor(learning_rate))
    td_error = difference.detach().abs().mean(0)
    return torch.stack([value, values.detach().mean(), td_error.mean()]), td_error
