"""Deep Q-learning (DQN).

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518, with
CleanRL's hyper-parameters for perceptrons, double Q-learning (van Hasselt et al. 2016,
arXiv:1509.06461), and, where they are asked for, dueling networks (Wang et al. 2016,
arXiv:1511.06581), Huber's loss, soft target updates, rewards of n steps, and batches drawn by
priorities or returns. With memory it learns from sequences, as "Recurrent Experience Replay in
Distributed Reinforcement Learning" does (Kapturowski et al. 2019, section 3: R2D2's stored state
and burn-in, whose gradient is followed here).

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
from hotloop.policies import Exploration, actor
from hotloop.policies.learned import LearnedNetwork
from hotloop.training import Batch, OffPolicy, Update
from hotloop.training.options import (
    FRACTION,
    Count,
    Fraction,
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
class Config(ReplaySequenceOptions, NetworkOptions, RunOptions):
    """Options of a DQN run."""

    total_timesteps: Count = 500_000
    """Transitions to collect, over all environments; rounded up to whole rounds."""
    batch_size: Count = 128
    """B, transitions in one update; with memory, sequences."""
    buffer_size: Count = 10_000
    """Transitions that are kept; then each new one replaces the oldest."""
    learning_starts: Natural = 10_000
    """Transitions to collect before the first update."""
    train_frequency: Count = 10
    """Steps of each environment between two rounds of updates."""
    update_to_data: Positive = 0.1
    """Updates for each transition collected since learning began."""
    hidden_sizes: Sizes = (120, 84)
    """Widths of the hidden layers."""
    activation: Literal["tanh", "relu"] = "relu"
    """After each hidden layer."""
    learning_rate: ScheduledPositive = 2.5e-4
    """Adam's α."""
    double: bool = True
    """Let the network choose the action whose value the target network tells."""
    dueling: bool = False
    """Learn V(s) and A(s, a) by a last hidden layer each: Q = V + A − mean A."""
    huber: Positive | None = None
    """δ: errors beyond it count linearly; None: squared, all of them."""
    max_grad_norm: ScheduledPositive | None = None
    """Bound on the gradient's Euclidean norm; None: none."""
    tau: ScheduledFraction = 1.0
    """τ: how far the target network moves towards the network; 1 copies it."""
    target_interval: Count = 500
    """Transitions between two moves of the target network, which come after a round's updates."""
    epsilon_start: Fraction = 1.0
    """ε, the probability of a uniform action, at first."""
    epsilon_end: Fraction = 0.05
    """ε in the end."""
    exploration_fraction: Annotated[Positive, FRACTION] = 0.5
    """Share of the run over which ε falls, linearly."""
    action_masks: bool = False
    """Take, and learn from, allowed actions alone: `info["action_mask"]` of each reset and step has
    1 for those, 0 for the others."""
    report_interval: Count = 2_000
    """Transitions between two lines of metrics, in whole rounds."""

    layer_options: ClassVar[tuple[str, ...]] = (
        "hidden_sizes",
        "activation",
        "layer_norm",
        "dueling",
    )


class Hyper(NamedTuple):
    """Numbers that may change while it trains; where there is no bound its norm is not read."""

    learning_rate: Scalar
    gamma: Scalar
    tau: Scalar
    max_grad_norm: Scalar


@dataclass(slots=True)
class State:
    """What learning changes, in place.

    Attributes:
        params: float32, (P,), the network's parameters.
        adam: its optimizer's memory.
        target: float32, (P,), the target network's.
    """

    params: Tensor
    adam: AdamState
    target: Tensor


def networks(config: Config, spaces: Spaces, device: torch.device) -> LearnedNetwork:
    """Return a network of action values."""
    network = actor(
        spaces,
        "dueling" if config.dueling else "greedy",
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        layer_norm=config.layer_norm,
        memory=config.memory,
        network=config.network,
    )
    return LearnedNetwork(network, precision=config.precision, device=device)


def init(nets: LearnedNetwork, config: Config) -> State:
    """Return the first state."""
    params = nets.initial(config.seed)
    return State(params, AdamState.zeros(params), params.clone())


def loss(
    params: Tensor, batch: Batch, target: Tensor, nets: LearnedNetwork, config: Config
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """L = E[w l(Q(s, a) − y)], l the square or Huber's; Mnih et al. 2015, eq. 2.

    Args:
        params: float32, (P,).
        batch: B transitions; w is their `importance`.
        target: y, (B,).
        nets: the network.
        config: which l.

    Returns:
        The loss, 0-d; Q of the actions taken, (B,), and the differences, (B,).
    """
    values = nets.values(params, batch.obs, batch.memory, batch.begins)
    value = of_action(values, batch.action)
    if config.huber is None:
        each = (value - target).square()
    else:
        each = huber_loss(value, target, reduction="none", delta=config.huber)
    return (batch.importance * each).mean(), (value, value - target)


def update(
    state: State, batch: Batch, noise: None, hyper: Hyper, *, nets: LearnedNetwork, config: Config
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one step of the network; `state` changes in place, the target network aside.

    y = r + γ Q'(s', argmax_a Q(s', a)); without double Q-learning, γ max_a Q'(s', a)

    van Hasselt et al. 2016, arXiv:1509.06461, eq. 4; Mnih et al. 2015, eq. 2.

    Returns:
        Metrics, and |TD error|, (B,).
    """
    with torch.no_grad():
        next_values = values_of_next(state.target, batch, nets)
        if config.double:
            best = values_of_next(state.params, batch, nets).argmax(1)
            next_value = of_action(next_values, best)
        else:
            next_value = next_values.amax(1)
        target = batch.reward + hyper.gamma * batch.discount * next_value
    total, (value, difference), grad = value_and_grad(
        loss, state.params, batch, target, nets, config
    )
    if config.max_grad_norm is None:
        norm = torch.linalg.vector_norm(grad)
    else:
        grad, norm = clip_grad_norm(grad, hyper.max_grad_norm)
    adam_step(state.params, grad, state.adam, learning_rate=hyper.learning_rate)
    td_error = difference.detach().abs()
    counted = None if batch.memory is None else batch.importance  # what is learned from
    metrics = {
        "loss": total,
        "q_value": losses.mean(value, counted),
        "td_error": losses.mean(td_error, counted),
        "grad_norm": norm,
    }
    return metrics, td_error


def move_target(state: State, count: int, hyper: Hyper) -> None:
    """Let the target network follow, as far as `count` moves would take it."""
    tau: Any = hyper.tau if count == 1 else 1.0 - (1.0 - hyper.tau) ** count
    move_towards(state.target, state.params, tau)


def values_of_next(params: Tensor, batch: Batch, nets: LearnedNetwork) -> Tensor:
    """Return the values of all actions after each transition, (B, A).

    Within an episode the next observation of a step is the observation of the next one: those of a
    sequence, its first observation before them, are a sequence that is one step longer.
    """
    if batch.memory is None or batch.begins is None:
        return nets.values(params, batch.next_obs)
    count = len(batch.memory)
    obs = torch.cat([batch.obs[:count], batch.next_obs])
    begins = torch.cat([batch.begins[:count], batch.begins])
    return nets.values(params, obs, batch.memory, begins)[count:]


def of_action(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of these actions: (B,), from (B, A) and (B,)."""
    return values.gather(1, action.unsqueeze(1)).squeeze(1)


def exploration(config: Config) -> Exploration:
    """Return ε-greedy exploration."""
    steps = config.exploration_fraction * config.total_timesteps / config.total_envs
    return Exploration(
        epsilon=(config.epsilon_start, config.epsilon_end), epsilon_steps=max(1, round(steps))
    )


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
