"""Categorical deep Q-learning (C51), as an algorithm in a file of your own.

Bellemare, Dabney and Munos 2017, "A Distributional Perspective on Reinforcement Learning",
arXiv:1707.06887. The network returns a distribution of returns for each action, over fixed atoms
from `v_min` to `v_max`. The policy takes the action with the greatest mean, and the loss is the
cross-entropy between the projected distribution of the target and the network's. Everything else
is DQN.

    cd examples
    hotloop train c51:algorithm --env-id CartPole-v1
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hotloop.algorithms import dqn
from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.learner import adam_step, clip_grad_norm, value_and_grad
from hotloop.ops import losses
from hotloop.policies import actor
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import Greedy
from hotloop.training import OffPolicy, ReplayBatch, Update
from hotloop.training.options import Count


@dataclass(frozen=True)
class ReturnDistribution(Greedy):
    """Outputs are N logits for each of A actions: a distribution of returns over the atoms.

    Attributes:
        v_min: z_1, the least return.
        v_max: z_N, the greatest return.
        num_atoms: N.
    """

    v_min: float
    v_max: float
    num_atoms: int

    meaning: ClassVar[str] = "return_logits"
    description: ClassVar[str] = "logits of the return's atoms for each action"

    @cached_property
    def size(self) -> int:
        return self.spec.num_actions * self.num_atoms

    @cached_property
    def spacing(self) -> float:
        """Return Δz."""
        return (self.v_max - self.v_min) / (self.num_atoms - 1)

    # --- acting, on NumPy -----------------------------------------------------------------------

    @cached_property
    def _numpy_atoms(self) -> np.ndarray:
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)

    def greedy(self, outputs: np.ndarray, out: np.ndarray) -> None:
        """Write the actions with the greatest means."""
        logits = outputs.reshape(len(outputs), -1, self.num_atoms)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        means = weights @ self._numpy_atoms / weights.sum(axis=2)
        means.argmax(axis=1, out=out)

    # --- torch ----------------------------------------------------------------------------------

    def atoms(self, device: torch.device) -> Tensor:
        """Return z, (N,)."""
        steps = torch.arange(self.num_atoms, dtype=torch.float32, device=device)
        return self.v_min + self.spacing * steps

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Return the logarithms of the probabilities, (B, A, N)."""
        return outputs.unflatten(1, (-1, self.num_atoms)).log_softmax(2)

    def means(self, log_probs: Tensor) -> Tensor:
        """Return the expected returns, (B, A)."""
        return log_probs.exp() @ self.atoms(log_probs.device)

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the actions with the greatest means, for exported policies."""
        return self.means(self.log_probs(outputs)).argmax(1)

    def project(self, probs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the distribution of r + γ Z, projected onto the atoms, (B, N).

        m_i = Σ_j p_j [1 − |[r + γ z_j] − z_i| / Δz],   with […] clipped to z_1 … z_N and to 0 … 1

        Bellemare et al. 2017, arXiv:1707.06887, eq. 7.

        Args:
            probs: p, (B, N).
            reward: r, (B,).
            discount: γ, 0 after a terminal transition, (B,).
        """
        atoms = self.atoms(probs.device)
        returns = (reward[:, None] + discount[:, None] * atoms).clamp(self.v_min, self.v_max)
        distance = (returns[:, :, None] - atoms).abs() / self.spacing
        return (probs[:, :, None] * (1.0 - distance).clamp(min=0.0)).sum(1)


@dataclass(frozen=True, kw_only=True)
class Config(dqn.Config):
    """Options of a C51 run: those of DQN, and the atoms."""

    v_min: float = 0.0
    """Least discounted return of the atoms. Lower it if rewards are negative."""
    v_max: float = 100.0
    """Greatest discounted return of the atoms. Raise it if returns exceed it; lower it if they stay
    far below."""
    num_atoms: Count = 51
    """Number of atoms. Raise it for a finer distribution, lower it for faster updates."""

    def check(self) -> None:
        """Check the atoms, and that no option is set that C51 ignores."""
        if not self.v_min < self.v_max or self.num_atoms < 2:
            raise ConfigError(
                "`v_min` must be below `v_max`, with at least 2 atoms, got "
                f"{self.v_min}, {self.v_max} and {self.num_atoms}"
            )
        if self.dueling or self.huber is not None:
            raise ConfigError("c51 has no `dueling` or `huber`: leave them out, or use dqn")


def networks(config: Config, spaces: Spaces, device: torch.device) -> LearnedNetwork:
    """Return a network whose head holds a distribution of returns for each action."""
    network = actor(
        spaces,
        ReturnDistribution(config.v_min, config.v_max, config.num_atoms),
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        layer_norm=config.layer_norm,
        memory=config.memory,
        network=config.network,
    )
    return LearnedNetwork(network, precision=config.precision, device=device)


def of_action(log_probs: Tensor, action: Tensor) -> Tensor:
    """Return the distributions of the actions, (B, N), from all of them, (B, A, N)."""
    index = action[:, None, None].expand(-1, 1, log_probs.shape[2])
    return log_probs.gather(1, index).squeeze(1)


def loss(
    params: Tensor, batch: ReplayBatch, target: Tensor, nets: LearnedNetwork
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return L = −E[w Σ_i m_i log p_i(s, a)], Bellemare et al. 2017, algorithm 1.

    Args:
        params: float32, (P,).
        batch: B transitions with weights w, their `importance`.
        target: m, (B, N).
        nets: the network.

    Returns:
        The loss, 0-d; the means of the chosen actions, (B,), and the cross-entropies, (B,).
    """
    outputs, _ = nets.outputs(params, batch.obs, batch.memory, batch.begins)
    log_probs = nets.head.log_probs(outputs)
    cross_entropy = -(target * of_action(log_probs, batch.action)).sum(1)
    value = dqn.action_values(nets.head.means(log_probs), batch.action)
    return (batch.importance * cross_entropy).mean(), (value, cross_entropy)


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
        Metrics, and the cross-entropies, (B,), by which prioritized replay samples.
    """
    with torch.no_grad():
        log_probs = nets.head.log_probs(dqn.next_outputs(state.target, batch, None, nets))
        chooser = log_probs
        if config.double:
            chooser = nets.head.log_probs(dqn.next_outputs(state.params, batch, None, nets))
        next_action = nets.head.means(chooser).argmax(1)
        probs = of_action(log_probs, next_action).exp()
        target = nets.head.project(probs, batch.reward, batch.discount)
    total, (value, cross_entropy), grad = value_and_grad(loss, state.params, batch, target, nets)
    if config.max_grad_norm is None:
        norm = torch.linalg.vector_norm(grad)
    else:
        grad, norm = clip_grad_norm(grad, hyper.max_grad_norm)
    adam_step(state.params, grad, state.adam, learning_rate=hyper.learning_rate)
    weight = None if batch.memory is None else batch.importance  # 0 for steps of the burn-in
    metrics = {"loss": total, "q_value": losses.mean(value, weight), "grad_norm": norm}
    return metrics, cross_entropy.detach()


algorithm = OffPolicy(
    name="c51",
    config=Config,
    networks=networks,
    init=dqn.init,
    hyper=dqn.Hyper,
    updates=(Update(function=update),),
    exploration=dqn.exploration,
    move_targets=dqn.move_target,
)
