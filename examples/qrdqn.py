"""Quantile regression DQN (QR-DQN), as an algorithm in a file of your own.

Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression",
arXiv:1710.10044. The network returns N quantiles of the return for each action. The policy takes
the action with the greatest mean, and the quantiles learn by the quantile Huber loss. Everything
else is DQN.

    cd examples
    hotloop train qrdqn:algorithm --env-id CartPole-v1
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from hotloop.algorithms import dqn
from hotloop.errors import ConfigError
from hotloop.learner import adam_step, clip_grad_norm, value_and_grad
from hotloop.ops import losses
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import Greedy
from hotloop.training import OffPolicy, ReplayBatch, Update
from hotloop.training.options import Count, Positive


@dataclass(frozen=True)
class Quantiles(Greedy):
    """Outputs are N quantiles of the return for each of A actions.

    Attributes:
        num_quantiles: N.
    """

    num_quantiles: int

    meaning: ClassVar[str] = "return_quantiles"
    description: ClassVar[str] = "quantiles of the return for each action"

    @cached_property
    def size(self) -> int:
        return self.spec.num_actions * self.num_quantiles

    @property
    def outputs_per_action(self) -> int:
        return self.num_quantiles

    def greedy(self, outputs: np.ndarray, out: np.ndarray) -> None:
        """Write the actions with the greatest means, on NumPy: workers act without torch."""
        outputs.reshape(len(outputs), -1, self.num_quantiles).mean(2).argmax(1, out=out)

    # --- torch ----------------------------------------------------------------------------------

    def quantiles(self, outputs: Tensor) -> Tensor:
        """Return the quantiles, (B, A, N)."""
        return outputs.unflatten(1, (-1, self.num_quantiles))

    def values(self, outputs: Tensor) -> Tensor:
        """Return the mean returns, (B, A)."""
        return self.quantiles(outputs).mean(2)

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the actions with the greatest means, for exported policies."""
        return self.values(outputs).argmax(1)

    def levels(self, device: torch.device) -> Tensor:
        """Return τ̂, the probabilities of returns below each quantile, (N,)."""
        numbers = torch.arange(self.num_quantiles, dtype=torch.float32, device=device)
        return (numbers + 0.5) / self.num_quantiles


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """Options of a QR-DQN run: those of DQN, and the number of quantiles."""

    num_quantiles: Count = 51
    """N. Raise it for a finer distribution, lower it for faster updates."""
    huber: Positive | None = 1.0
    """κ, differences from which on the loss is linear. None: it is linear everywhere."""

    def check(self) -> None:
        """Check that no option is set that QR-DQN ignores."""
        if self.dueling or self.atoms is not None or self.noisy_std is not None:
            raise ConfigError("qrdqn has no `dueling`, `atoms` or `noisy_std`: use dqn")

    @property
    def head(self) -> Quantiles:
        """Return the head of the network."""
        return Quantiles(self.num_quantiles)


def quantiles_of(outputs: Tensor, action: Tensor, nets: LearnedNetwork) -> Tensor:
    """Return the quantiles of the chosen actions, (B, N)."""
    quantiles = nets.head.quantiles(outputs)
    index = action[:, None, None].expand(-1, 1, quantiles.shape[2])
    return quantiles.gather(1, index).squeeze(1)


def loss(
    params: Tensor, batch: ReplayBatch, target: Tensor, nets: LearnedNetwork, config: Config
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return L = E[w Σ_i mean_j |τ̂_i − 1(u_ij < 0)| H(u_ij) / κ], u_ij = y_j − θ_i.

    H is the Huber loss, or |u| without κ. Dabney et al. 2018, arXiv:1710.10044, algorithm 1.

    Args:
        params: float32, (P,).
        batch: B transitions with weights w, their `importance`.
        target: y, (B, N).
        nets: the network, which returns θ.
        config: has κ.

    Returns:
        The loss, 0-d; the means of the chosen actions, (B,), and the losses by row, (B,).
    """
    outputs, _ = nets.outputs(params, batch.obs, batch.memory, batch.begins)
    quantiles = quantiles_of(outputs, batch.action, nets)
    difference = target[:, None, :] - quantiles[:, :, None]
    size = difference.abs()
    if config.huber is not None:
        zeros = torch.zeros_like(difference)
        size = huber_loss(difference, zeros, reduction="none", delta=config.huber) / config.huber
    levels = nets.head.levels(target.device)[:, None]
    rows = ((levels - (difference < 0).to(torch.float32)).abs() * size).mean(2).sum(1)
    return (batch.importance * rows).mean(), (quantiles.mean(1), rows)


def update(
    state: dqn.State,
    batch: ReplayBatch,
    noise: None,
    hyper: dqn.Hyper,
    *,
    nets: LearnedNetwork,
    config: Config,
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one gradient step of the network. `state`, except its target network, changes in place.

    The next action is the best one of the network (`double`), or of the target network.

    Returns:
        Metrics, and the losses by row, (B,), by which prioritized replay samples.
    """
    with torch.no_grad():
        chooser = outputs = dqn.next_outputs(state.target, batch, None, nets)
        if config.double:
            chooser = dqn.next_outputs(state.params, batch, None, nets)
        next_action = dqn.allowed_values(chooser, batch, nets).argmax(1)
        next_quantiles = quantiles_of(outputs, next_action, nets)
        target = batch.reward[:, None] + batch.discount[:, None] * next_quantiles
    total, (value, error), grad = value_and_grad(loss, state.params, batch, target, nets, config)
    if config.max_grad_norm is None:
        norm = torch.linalg.vector_norm(grad)
    else:
        grad, norm = clip_grad_norm(grad, hyper.max_grad_norm)
    adam_step(state.params, grad, state.adam, learning_rate=hyper.learning_rate)
    metrics = {"loss": total, "q_value": losses.mean(value, batch.row_weight), "grad_norm": norm}
    return metrics, error.detach()


algorithm = OffPolicy(
    name="qrdqn",
    config=Config,
    networks=dqn.networks,
    init=dqn.init,
    hyper=dqn.Hyper,
    updates=(Update(function=update),),
    exploration=dqn.exploration,
    move_targets=dqn.move_target,
)
