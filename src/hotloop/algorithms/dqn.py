"""Deep Q-learning (DQN).

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518, with
CleanRL's hyper-parameters for perceptrons and double Q-learning (van Hasselt et al. 2016,
arXiv:1509.06461). Options add dueling networks (Wang et al. 2016, arXiv:1511.06581), the Huber
loss, soft target updates, n-step returns, and sampling by priorities or returns. Recurrent networks
learn from sequences, as in "Recurrent Experience Replay in Distributed Reinforcement Learning"
(Kapturowski et al. 2019, section 3: R2D2's stored state and burn-in; here with gradients, too).

    from hotloop.algorithms import dqn
    result = dqn.train(dqn.preset("CartPole-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from hotloop.algorithms import presets
from hotloop.envs import Spaces
from hotloop.learner import (
    AdamState,
    Scalar,
    adam_step,
    clip_grad_norm,
    move_towards,
    value_and_grad,
)
from hotloop.ops import losses
from hotloop.policies import EpsilonGreedy, actor
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import Dueling, Greedy
from hotloop.policies.heads.base import MASKED
from hotloop.training import OffPolicy, ReplayBatch, Update
from hotloop.training.options import (
    FRACTION,
    Count,
    Fraction,
    MaskOptions,
    Natural,
    NetworkOptions,
    Positive,
    ReplaySequenceOptions,
    RunOptions,
    ScheduledFraction,
    ScheduledPositive,
    Sizes,
)


@dataclass(frozen=True, kw_only=True)
class Config(MaskOptions, ReplaySequenceOptions, NetworkOptions, RunOptions):
    """Options of a DQN run."""

    total_timesteps: Count = 500_000
    """Transitions to collect, over all environments, rounded up to whole rounds."""
    batch_size: Count = 128
    """B, transitions, or sequences for a recurrent network, in one update."""
    buffer_size: Count = 10_000
    """Transitions in the full buffer, where each new one replaces the oldest."""
    learning_starts: Natural = 10_000
    """Transitions to collect before the first update, at least one batch."""
    train_frequency: Count = 10
    """Steps of each environment between two rounds of updates."""
    update_to_data: Positive = 0.1
    """Updates for each transition collected since learning began. Raise it if environment steps are
    expensive, lower it if updates are."""
    hidden_sizes: Sizes = (120, 84)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation after each hidden layer."""
    learning_rate: ScheduledPositive = 2.5e-4
    """Adam's learning rate. Lower it if returns or losses are unstable."""
    double: bool = True
    """Double Q-learning: the network selects the next action, the target network evaluates it."""
    dueling: bool = False
    """Dueling network: V(s) and A(s, a) from separate last hidden layers, Q = V + A − mean A."""
    huber: Positive | None = None
    """δ of the Huber loss. Set it to limit the effect of large errors. None: squared loss."""
    max_grad_norm: ScheduledPositive | None = None
    """Bound on the gradient's Euclidean norm. None: no bound."""
    tau: ScheduledFraction = 1.0
    """τ, step size of the target network's soft update. 1: copy it. Lower it if values diverge."""
    target_interval: Count = 500
    """Transitions between target updates, at the end of a round. Raise it if values diverge."""
    epsilon_start: Fraction = 1.0
    """Initial ε, the probability of a random action."""
    epsilon_end: Fraction = 0.05
    """Final ε. Raise it for more exploration late in the run."""
    exploration_fraction: Annotated[Positive, FRACTION] = 0.5
    """Share of the run in which ε decreases linearly. Raise it for more exploration."""
    report_interval: Count = 2_000
    """Transitions between two lines of metrics, in whole rounds."""

    layer_options: ClassVar[tuple[str, ...]] = (
        "hidden_sizes",
        "activation",
        "layer_norm",
        "dueling",
    )


class Hyper(NamedTuple):
    """Hyper-parameters that may have a schedule. `max_grad_norm` is unused if it is None."""

    learning_rate: Scalar
    tau: Scalar
    max_grad_norm: Scalar


@dataclass(slots=True)
class State:
    """The tensors that learning changes in place.

    Attributes:
        params: parameters of the network, float32, (P,).
        adam: state of its optimizer.
        target: parameters of the target network, float32, (P,).
    """

    params: Tensor
    adam: AdamState
    target: Tensor


def networks(config: Config, spaces: Spaces, device: torch.device) -> LearnedNetwork:
    """Return a network of action values."""
    network = actor(
        spaces,
        Dueling() if config.dueling else Greedy(),
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        layer_norm=config.layer_norm,
        memory=config.memory,
        network=config.network,
    )
    return LearnedNetwork(network, precision=config.precision, device=device)


def init(nets: LearnedNetwork, config: Config) -> State:
    """Return the initial state."""
    params = nets.initial(config.seed)
    return State(params, AdamState.zeros(params), params.clone())


def loss(
    params: Tensor, batch: ReplayBatch, target: Tensor, nets: LearnedNetwork, config: Config
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return L = E[w l(Q(s, a) − y)], l the squared or Huber loss, Mnih et al. 2015, eq. 2.

    Args:
        params: float32, (P,).
        batch: B transitions with weights w, their `importance`.
        target: y, (B,).
        nets: the network.
        config: selects l.

    Returns:
        The loss, 0-d; Q of the chosen actions, (B,), and the differences, (B,).
    """
    values = nets.outputs(params, batch.obs, batch.memory, batch.begins)[0]
    value = action_values(values, batch.action)
    if config.huber is None:
        losses_by_row = (value - target).square()
    else:
        losses_by_row = huber_loss(value, target, reduction="none", delta=config.huber)
    return (batch.importance * losses_by_row).mean(), (value, value - target)


def update(
    state: State,
    batch: ReplayBatch,
    noise: None,
    hyper: Hyper,
    *,
    nets: LearnedNetwork,
    config: Config,
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one gradient step of the network. `state`, except its target network, changes in place.

    y = r + γ Q'(s', argmax_a Q(s', a)), or r + γ max_a Q'(s', a) without double Q-learning

    van Hasselt et al. 2016, arXiv:1509.06461, eq. 4; Mnih et al. 2015, eq. 2.

    Returns:
        Metrics, and |TD error|, (B,).
    """
    with torch.no_grad():
        next_values = compute_next_values(state.target, batch, nets)
        if config.double:
            best_action = compute_next_values(state.params, batch, nets).argmax(1)
            next_value = action_values(next_values, best_action)
        else:
            next_value = next_values.amax(1)
        target = batch.reward + batch.discount * next_value
    total, (value, difference), grad = value_and_grad(
        loss, state.params, batch, target, nets, config
    )
    if config.max_grad_norm is None:
        norm = torch.linalg.vector_norm(grad)
    else:
        grad, norm = clip_grad_norm(grad, hyper.max_grad_norm)
    adam_step(state.params, grad, state.adam, learning_rate=hyper.learning_rate)
    td_error = difference.detach().abs()
    metrics = {
        "loss": total,
        "q_value": losses.mean(value, batch.row_weight),
        "td_error": losses.mean(td_error, batch.row_weight),
        "grad_norm": norm,
    }
    return metrics, td_error


def move_target(state: State, num_moves: int, hyper: Hyper) -> None:
    """Update the target network by `num_moves` soft updates at once."""
    tau: Any = hyper.tau if num_moves == 1 else 1.0 - (1.0 - hyper.tau) ** num_moves
    move_towards(state.target, state.params, tau)


def compute_next_values(params: Tensor, batch: ReplayBatch, nets: LearnedNetwork) -> Tensor:
    """Return the values of all actions in the next state of each transition, (B, A).

    The values of forbidden actions are `MASKED`, less than all others.
    """
    if batch.memory is None:
        values = nets.outputs(params, batch.next_obs)[0]
    else:
        obs, begins = batch.next_sequence()
        values = nets.outputs(params, obs, batch.memory, begins)[0][len(batch.memory) :]
    return values if batch.next_mask is None else values.masked_fill(~batch.next_mask, MASKED)


def action_values(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of actions, (B,), from all values, (B, A), and actions, (B,)."""
    return values.gather(1, action.unsqueeze(1)).squeeze(1)


def exploration(config: Config) -> EpsilonGreedy:
    """Return ε-greedy exploration."""
    steps = config.exploration_fraction * config.total_timesteps / config.total_envs
    num_steps = max(1, round(steps))
    return EpsilonGreedy(start=config.epsilon_start, end=config.epsilon_end, num_steps=num_steps)


algorithm = OffPolicy(
    name="dqn",
    config=Config,
    networks=networks,
    init=init,
    hyper=Hyper,
    updates=(Update(function=update),),
    exploration=exploration,
    move_targets=move_target,
    presets=presets.DQN,
)
train, preset = algorithm.train, algorithm.preset
