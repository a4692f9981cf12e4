"""The common parts of SAC and TD3: an actor with K critics, and the update of the critics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.learner import AdamState, Scalar, adam_step, value_and_grad
from hotloop.ops import losses
from hotloop.policies import Head, actor, critics
from hotloop.policies.forward import LearnedCritics, LearnedNetwork
from hotloop.training import ReplayBatch
from hotloop.training.options import (
    Count,
    Environment,
    Importable,
    NetworkOptions,
    ReplayOptions,
    ReplaySequenceOptions,
    RequirementTable,
    RunOptions,
    Sizes,
)


class Networks(NamedTuple):
    """The learned networks.

    Attributes:
        policy: the actor.
        critics: the action values.
    """

    policy: LearnedNetwork
    critics: LearnedCritics


@dataclass(frozen=True, kw_only=True)
class ActorCriticOptions(ReplayOptions, NetworkOptions, RunOptions):
    """An actor and its critics."""

    env_id: Environment = "Pendulum-v1"
    """Gymnasium id, `module:Id`, `envpool:Id`, `pettingzoo:module`, or `module:factory`, with
    continuous actions."""
    total_timesteps: Count = 1_000_000
    """Transitions to collect, over all environments, rounded up to whole rounds."""
    hidden_sizes: Sizes = (256, 256)
    """Widths of the hidden layers of all networks."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation after each hidden layer of the policy. Critics use relu."""
    torch_threads: Count | Literal["auto"] = "auto"
    """Threads of the update. auto: at most four, while cores are free. The number does not change
    the results of perceptrons."""

    layer_options: ClassVar[tuple[str, ...]] = ("activation",)  # critics use the others, too

    def check(self) -> None:
        """Check that there is a hidden layer."""
        if not self.hidden_sizes:
            raise ConfigError("`hidden_sizes` must name at least one hidden layer, got none")


@dataclass(frozen=True, kw_only=True)
class CriticOptions(ActorCriticOptions, ReplaySequenceOptions):
    """Networks of the critics, and the recurrent layers."""

    critic_network: Importable | None = None
    """A custom critic, `module:Class`."""
    layer_norm: bool = False
    """Normalize the critics' hidden layers. Set it if Q-values diverge."""

    requires: ClassVar[RequirementTable] = {
        "layer_norm": {"critic_network": (None,)},
        "critic_network": {"memory": (None,)},
    }


@dataclass(slots=True, kw_only=True)
class ActorCriticState:
    """The tensors that learning changes in place.

    Attributes:
        policy: parameters of the actor, float32, (P,).
        policy_adam: state of its optimizer.
        critics: parameters of all critics, float32, (C,).
        critics_adam: state of their optimizer.
        targets: parameters of the target critics, float32, (C,).
    """

    policy: Tensor
    policy_adam: AdamState
    critics: Tensor
    critics_adam: AdamState
    targets: Tensor


def make_networks(
    config: CriticOptions,
    spaces: Spaces,
    head: Head,
    device: torch.device,
    *,
    count: int = 2,
    num_outputs: int = 1,
) -> Networks:
    """Return an actor with this head, and K = `count` critics with the same hidden sizes."""
    policy = actor(
        spaces,
        head,
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        memory=config.memory,
        network=config.network,
    )
    values = critics(
        spaces,
        hidden_sizes=config.hidden_sizes,
        layer_norm=config.layer_norm,
        memory=config.memory,
        count=count,
        num_outputs=num_outputs,
        network=config.network,
        module=config.critic_network,
    )
    return Networks(
        LearnedNetwork(policy, precision=config.precision, device=device),
        LearnedCritics(values, precision=config.precision, device=device),
    )


def initial_tensors(nets: Networks, seed: int) -> dict[str, Any]:
    """Return the tensors of the initial `ActorCriticState`, by name."""
    policy, critics = nets.policy.initial(seed), nets.critics.initial(seed)
    return {
        "policy": policy,
        "policy_adam": AdamState.zeros(policy),
        "critics": critics,
        "critics_adam": AdamState.zeros(critics),
        "targets": critics.clone(),
    }


def next_outputs(params: Tensor, batch: ReplayBatch, nets: Any) -> Tensor:
    """Return the policy's outputs for the next observations of a batch, (B, H)."""
    if batch.memory is None:
        return nets.policy.outputs(params, batch.next_obs)[0]
    obs, begins = batch.next_sequence()
    return nets.policy.outputs(params, obs, batch.memory, begins)[0][len(batch.memory) :]


def next_values(params: Tensor, batch: ReplayBatch, action: Tensor, nets: Any) -> Tensor:
    """Return the values of all critics for actions, (B, A), in the next states, (K, B, …)."""
    if batch.memory is None:
        return nets.critics.values(params, batch.next_obs, action)
    obs, begins = batch.next_sequence()
    return nets.critics.values(params, obs, action, torch.zeros_like(batch.memory), begins)


def sequence_starts(batch: ReplayBatch) -> tuple[Tensor | None, Tensor | None]:
    """Return the critics' hidden states before a batch's sequences, and its episode starts.

    Critics do not act, so no hidden states of theirs are stored: they are 0, (S, M), and the
    burn-in refreshes them. Both are None without recurrence.
    """
    memory = None if batch.memory is None else torch.zeros_like(batch.memory)
    return memory, batch.begins


def critic_loss(
    params: Tensor, batch: ReplayBatch, action: Tensor, target: Tensor, nets: Networks
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return L = Σ_k E[w (Q_k(s, a) − y)²].

    Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1; twice eq. 5 of Haarnoja et al. 2018,
    arXiv:1812.05905.

    Args:
        params: float32, (C,).
        batch: B transitions with weights w, their `importance`.
        action: a in [−1, 1], (B, A).
        target: y, (B,).
        nets: the networks.

    Returns:
        The loss, 0-d; Q, (K, B), and the differences, (K, B).
    """
    values = nets.critics.values(params, batch.obs, action, *sequence_starts(batch))
    difference = values - target
    return (batch.importance * difference.square()).mean(-1).sum(), (values, difference)


def step_critics(
    state: ActorCriticState,
    batch: ReplayBatch,
    target: Tensor,
    *,
    learning_rate: Scalar,
    nets: Networks,
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one step of Adam towards the targets y, (B,). The critics of `state` change in place.

    Returns:
        Metrics, and |TD error|, the mean over all critics, (B,).
    """
    action = nets.policy.unit_action(batch.action)
    value, (values, difference), grad = value_and_grad(
        critic_loss, state.critics, batch, action, target, nets
    )
    adam_step(state.critics, grad, state.critics_adam, learning_rate=learning_rate)
    td_error = difference.detach().abs().mean(0)
    metrics = {
        "critic_loss": value,
        "q_value": losses.mean(values, batch.row_weight),
        "td_error": losses.mean(td_error, batch.row_weight),
    }
    return metrics, td_error
