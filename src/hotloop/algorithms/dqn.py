"""Deep Q-learning (DQN).

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518, with
CleanRL's hyper-parameters for perceptrons and double Q-learning (van Hasselt et al. 2016,
arXiv:1509.06461). Options add dueling networks (Wang et al. 2016, arXiv:1511.06581), the Huber
loss, soft target updates, n-step returns, sampling by priorities or returns, distributions of
returns (C51: Bellemare et al. 2017, arXiv:1707.06887), and noisy layers (Fortunato et al. 2018,
arXiv:1706.10295). All of them together are Rainbow (Hessel et al. 2018, arXiv:1710.02298).
Recurrent networks learn from sequences, as in "Recurrent Experience Replay in Distributed
Reinforcement Learning" (Kapturowski et al. 2019, section 3: R2D2's stored state and burn-in; here
with gradients, too).

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
from hotloop.errors import ConfigError
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
from hotloop.policies.heads import (
    Dueling,
    DuelingReturnDistribution,
    Greedy,
    ReturnDistribution,
)
from hotloop.policies.heads.base import MASKED
from hotloop.training import OffPolicy, ReplayBatch, Update
from hotloop.training.options import (
    FRACTION,
    SET,
    Count,
    Finite,
    Fraction,
    MaskOptions,
    Natural,
    NetworkOptions,
    Positive,
    ReplaySequenceOptions,
    RequirementTable,
    RunOptions,
    ScheduledFraction,
    ScheduledPositive,
    Sizes,
    between,
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
    atoms: Annotated[int, between(2, 1_000)] | None = None
    """N, number of possible returns of which the network learns the probabilities (C51), such as
    51. None: it learns the mean return. Set it if returns vary a lot, lower it for speed."""
    value_min: Finite = -10.0
    """atoms: the least discounted return. Lower it if returns fall below it."""
    value_max: Finite = 10.0
    """atoms: the greatest discounted return. Raise it if returns exceed it, lower it if they stay
    far below, since the atoms then are closer."""
    noisy_std: Positive | None = None
    """σ₀, initial noise of noisy layers, which explore in addition to ε-greedy, such as 0.5. None:
    plain layers. Raise it if the policy explores too little."""
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
        "noisy_std",
    )
    requires: ClassVar[RequirementTable] = {
        "value_min": {"atoms": SET},
        "value_max": {"atoms": SET},
        "huber": {"atoms": (None,)},
    }

    def check(self) -> None:
        """Check the atoms."""
        if self.atoms is not None and self.value_min >= self.value_max:
            raise ConfigError(
                f"`value_min` must be below `value_max`, got {self.value_min} and "
                f"{self.value_max}: choose the least and the greatest discounted return"
            )

    @property
    def head(self) -> Greedy:
        """Return the head of the network."""
        if self.atoms is None:
            return Dueling() if self.dueling else Greedy()
        kind = DuelingReturnDistribution if self.dueling else ReturnDistribution
        return kind(self.value_min, self.value_max, self.atoms)


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
    """Return a network of action values, or of distributions of returns."""
    network = actor(
        spaces,
        config.head,
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        layer_norm=config.layer_norm,
        memory=config.memory,
        noisy_std=config.noisy_std,
        network=config.network,
    )
    return LearnedNetwork(network, precision=config.precision, device=device)


def init(nets: LearnedNetwork, config: Config) -> State:
    """Return the initial state."""
    params = nets.initial(config.seed)
    return State(params, AdamState.zeros(params), params.clone())


def noise_shape(nets: LearnedNetwork, config: Config) -> tuple[int, int] | None:
    """Return the shape of an update's noise: that of three forward passes, and for acting."""
    return (4, nets.num_noise) if nets.num_noise else None


def loss(
    params: Tensor,
    batch: ReplayBatch,
    target: Tensor,
    noise: Tensor | None,
    nets: LearnedNetwork,
    config: Config,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return L = E[w l], with l = (Q(s, a) − y)² or its Huber loss, Mnih et al. 2015, eq. 2.

    With atoms, l is KL(m ‖ p(s, a)) of the target's distribution m. Its gradient is that of the
    cross-entropy in Bellemare et al. 2017, arXiv:1707.06887, algorithm 1.

    Args:
        params: float32, (P,).
        batch: B transitions with weights w, their `importance`.
        target: y, (B,), or m, (B, N).
        noise: noise of noisy layers, (K,), or None.
        nets: the network.
        config: selects l.

    Returns:
        The loss, 0-d; Q of the chosen actions, (B,), and their errors, |Q − y| or KL, (B,).
    """
    outputs = nets.outputs(params, batch.obs, batch.memory, batch.begins, noise)[0]
    value = action_values(nets.head.values(outputs), batch.action)
    if config.atoms is not None:
        log_probs = action_log_probs(outputs, batch.action, nets)
        losses_by_row = (torch.xlogy(target, target) - target * log_probs).sum(1)
        error = losses_by_row.clamp_min(0.0)  # by rounding, the sum may be below 0
    else:
        error = (value - target).abs()
        if config.huber is None:
            losses_by_row = (value - target).square()
        else:
            losses_by_row = huber_loss(value, target, reduction="none", delta=config.huber)
    return (batch.importance * losses_by_row).mean(), (value, error)


def update(
    state: State,
    batch: ReplayBatch,
    noise: Tensor | None,
    hyper: Hyper,
    *,
    nets: LearnedNetwork,
    config: Config,
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one gradient step of the network. `state`, except its target network, changes in place.

    y = r + γ Q'(s', argmax_a Q(s', a)), or r + γ max_a Q'(s', a) without double Q-learning

    van Hasselt et al. 2016, arXiv:1509.06461, eq. 4; Mnih et al. 2015, eq. 2. With atoms, the
    distribution of the same action takes the place of its mean, see `ReturnDistribution.project`.

    With noisy layers, the three forward passes have independent noise, (K,) each, and acting has
    new noise after the step: Fortunato et al. 2018, arXiv:1706.10295.

    Returns:
        Metrics, and |TD error|, or KL, by which Hessel et al. 2018, arXiv:1710.02298, prioritize,
        (B,).
    """
    target_noise, chooser_noise, online_noise, acting_noise = (
        (None,) * 4 if noise is None else noise.unbind()
    )
    with torch.no_grad():
        chooser = outputs = next_outputs(state.target, batch, target_noise, nets)
        if config.double:
            chooser = next_outputs(state.params, batch, chooser_noise, nets)
        next_action = allowed_values(chooser, batch, nets).argmax(1)
        if config.atoms is None:
            next_value = action_values(outputs, next_action)
            target = batch.reward + batch.discount * next_value
        else:
            probs = action_log_probs(outputs, next_action, nets).exp()
            target = nets.head.project(probs, batch.reward, batch.discount)
    total, (value, error), grad = value_and_grad(
        loss, state.params, batch, target, online_noise, nets, config
    )
    if config.max_grad_norm is None:
        norm = torch.linalg.vector_norm(grad)
    else:
        grad, norm = clip_grad_norm(grad, hyper.max_grad_norm)
    adam_step(state.params, grad, state.adam, learning_rate=hyper.learning_rate)
    if acting_noise is not None:
        nets.set_noise(state.params, acting_noise)
    td_error = error.detach()
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


def next_outputs(
    params: Tensor, batch: ReplayBatch, noise: Tensor | None, nets: LearnedNetwork
) -> Tensor:
    """Return the network's outputs for the next state of each transition, (B, H)."""
    if batch.memory is None:
        return nets.outputs(params, batch.next_obs, noise=noise)[0]
    obs, begins = batch.next_sequence()
    return nets.outputs(params, obs, batch.memory, begins, noise)[0][len(batch.memory) :]


def allowed_values(outputs: Tensor, batch: ReplayBatch, nets: LearnedNetwork) -> Tensor:
    """Return Q of all next actions, (B, A), from `next_outputs`. Forbidden ones are `MASKED`."""
    values = nets.head.values(outputs)
    return values if batch.next_mask is None else values.masked_fill(~batch.next_mask, MASKED)


def action_values(values: Tensor, action: Tensor) -> Tensor:
    """Return the values of actions, (B,), from all values, (B, A), and actions, (B,)."""
    return values.gather(1, action.unsqueeze(1)).squeeze(1)


def action_log_probs(outputs: Tensor, action: Tensor, nets: LearnedNetwork) -> Tensor:
    """Return the log-probabilities of the returns of actions, (B, N), from outputs, (B, A · N)."""
    log_probs = nets.head.log_probs(outputs)
    index = action[:, None, None].expand(-1, 1, log_probs.shape[2])
    return log_probs.gather(1, index).squeeze(1)


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
    updates=(Update(function=update, noise_shape=noise_shape),),
    exploration=exploration,
    move_targets=move_target,
    presets=presets.DQN,
)
train, preset = algorithm.train, algorithm.preset
