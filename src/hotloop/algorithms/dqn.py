"""Deep Q-learning (DQN).

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518, with
CleanRL's hyper-parameters for perceptrons, double Q-learning (van Hasselt et al. 2016,
arXiv:1509.06461), and, where they are asked for, dueling networks (Wang et al. 2016,
arXiv:1511.06581), Huber's loss, soft target updates, rewards of n steps, and batches drawn by
priorities or returns.

    from hotloop.algorithms import dqn
    result = dqn.train(dqn.preset("CartPole-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from hotloop.algorithms import off_policy
from hotloop.algorithms.batches import Batch
from hotloop.algorithms.off_policy import OffPolicyConfig
from hotloop.algorithms.session import Specs, open_session
from hotloop.learner import (
    AdamState,
    Execution,
    Metrics,
    ParameterLayout,
    adam_step,
    choose,
    clip_grad_norm,
    move_towards,
    value_and_grad,
)
from hotloop.policies import Actor, Exploration, networks
from hotloop.policies.dueling import Dueling
from hotloop.runs import Checkpoint, OnReport, Result, check_fields
from hotloop.types import Array

METRICS = ("loss", "q_value", "td_error", "grad_norm")

# What an environment needs to be learned well, where the defaults don't do.
PRESETS: dict[str, dict[str, Any]] = {
    # A fifth of the steps that CleanRL takes, and twice its updates.
    "CartPole-v1": {
        "total_timesteps": 100_000,
        "learning_starts": 1_000,
        "update_to_data": 1.0,
        "target_interval": 200,
    },
}


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig):
    """What a DQN run is made of."""

    total_timesteps: int = 500_000
    """Transitions to collect, over all environments; rounded up to whole rounds."""
    batch_size: int = 128
    """B, transitions in one update."""
    buffer_size: int = 10_000
    """Transitions that are kept; then each new one replaces the oldest."""
    learning_starts: int = 10_000
    """Transitions to collect before the first update."""
    train_frequency: int = 10
    """Steps of each environment between two rounds of updates."""
    update_to_data: float = 0.1
    """Updates for each transition collected since learning began."""
    hidden_sizes: tuple[int, ...] = (120, 84)
    """Widths of the hidden layers."""
    learning_rate: float = 2.5e-4
    """Adam's α."""
    double: bool = True
    """Let the network choose the action whose value the target network tells."""
    dueling: bool = False
    """Learn V(s) and A(s, a) by a last hidden layer each: Q = V + A − mean A."""
    huber: float | None = None
    """δ: errors beyond it count linearly; None: squared, all of them."""
    max_grad_norm: float | None = None
    """Bound on the gradient's Euclidean norm; None: none."""
    tau: float = 1.0
    """τ: how far the target network moves towards the network; 1 copies it."""
    target_interval: int = 500
    """Transitions between two moves of the target network, which come after a round's updates."""
    epsilon_start: float = 1.0
    """ε, the probability of a uniform action, at first."""
    epsilon_end: float = 0.05
    """ε in the end."""
    exploration_fraction: float = 0.5
    """Share of the run over which ε falls, linearly."""
    report_interval: int = 2_000
    """Transitions between two lines of metrics, in whole rounds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(
            self,
            counts=("target_interval",),
            positive=("learning_rate", "huber", "max_grad_norm", "exploration_fraction"),
            fractions=("tau", "epsilon_start", "epsilon_end", "exploration_fraction"),
        )


def preset(env_id: str, **options: Any) -> Config:
    """The configuration that suits an environment; `options` come before the preset's."""
    return Config(**{"env_id": env_id, **PRESETS.get(env_id, {}), **options})


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


@dataclass(frozen=True)
class Networks:
    """What is learned: the actor's perceptron itself, or the dueling streams that it is made of."""

    actor: Actor
    dueling: Dueling | None

    @property
    def layout(self) -> ParameterLayout:
        """Of `State.params` and `State.target`."""
        return ParameterLayout((self.dueling or self.actor).parameter_shapes())

    def values(self, params: Tensor, obs: Tensor) -> Tensor:
        """Q of all actions: float32, (B, A), from (B, *obs_shape)."""
        named = self.layout.unpack(params)
        if self.dueling is not None:
            named = self.dueling.folded(named)
        return networks.actor_head(self.actor, named, obs)


def loss(
    params: Tensor, batch: Batch, target: Tensor, nets: Networks, config: Config
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """L = E[w l(Q(s, a) − y)], l the square or Huber's; Mnih et al. 2015, eq. 2.

    Args:
        params: float32, (P,).
        batch: B transitions; w is their `importance`.
        target: y, (B,).
        nets: which networks.
        config: read as constants.

    Returns:
        The loss, 0-d; Q of the actions taken, (B,), and the differences, (B,).
    """
    value = _of_action(nets.values(params, batch.obs), batch.action)
    if config.huber is None:
        each = (value - target).square()
    else:
        each = huber_loss(value, target, reduction="none", delta=config.huber)
    return (batch.importance * each).mean(), (value, value - target)


def update(state: State, batch: Batch, *, nets: Networks, config: Config) -> tuple[Tensor, Tensor]:
    """One step of the network; `state` changes in place, the target network aside.

    y = r + γ Q'(s', argmax_a Q(s', a)); without double Q-learning, γ max_a Q'(s', a)

    van Hasselt et al. 2016, arXiv:1509.06461, eq. 4; Mnih et al. 2015, eq. 2.

    Args:
        state: parameters and optimizer.
        batch: B transitions.
        nets: which networks.
        config: read as constants.

    Returns:
        `METRICS`, float32, (4,), and |TD error|, (B,).
    """
    with torch.no_grad():
        next_values = nets.values(state.target, batch.next_obs)
        if config.double:
            best = nets.values(state.params, batch.next_obs).argmax(1)
            next_value = _of_action(next_values, best)
        else:
            next_value = next_values.amax(1)
        target = batch.reward + batch.discount * next_value
    total, (value, difference), grad = value_and_grad(
        loss, state.params, batch, target, nets, config
    )
    if config.max_grad_norm is None:
        norm = torch.linalg.vector_norm(grad)
    else:
        grad, norm = clip_grad_norm(grad, config.max_grad_norm)
    rate = torch.tensor(config.learning_rate)
    adam_step(state.params, grad, state.adam, learning_rate=rate)
    td_error = difference.detach().abs()
    return torch.stack([total, value.detach().mean(), td_error.mean(), norm]), td_error


def _of_action(values: Tensor, action: Tensor) -> Tensor:
    """The values of these actions: (B,), from (B, A) and (B,)."""
    return values.gather(1, action.unsqueeze(1)).squeeze(1)


class Learner:
    """The owner of all that learning changes; see `off_policy.Learner`."""

    def __init__(self, config: Config, actor: Actor) -> None:
        self.config = config
        dueling = Dueling(actor) if config.dueling else None
        self.nets = nets = Networks(actor, dueling)
        params = nets.layout.pack((dueling or actor).initial_parameters(config.seed))
        self.state = State(params, AdamState.zeros(params), params.clone())
        self._views = nets.layout.views(params)
        if dueling is None:
            self.acting = self._views
        else:
            self.acting = {name: x.copy() for name, x in dueling.folded(self._views).items()}
        self.num_updates = 0
        self._num_moves = 0  # of the target network, had it moved from the first transition on
        self.metrics = Metrics({"update": METRICS})
        choice = choose(
            config.compile,
            num_calls=config.planned_updates,
            # The target forward, the network forward and backward, and forward for double.
            flop_per_call=2 * params.numel() * config.batch_size * (5 if config.double else 4),
        )
        self.executions = [Execution(partial(update, nets=nets, config=config), choice)]

    def update(self, batch: Batch) -> Tensor:
        """See `off_policy.Learner`."""
        self.num_updates += 1
        metrics, td_error = self.executions[0](self.state, batch)
        self.metrics.add("update", metrics, self.num_updates)
        return td_error

    def end_round(self, timesteps: int) -> None:
        """See `off_policy.Learner`; acting reads the parameters' own memory, or folded streams."""
        moves = timesteps // self.config.target_interval
        if moves > self._num_moves:
            # Several that fall into one round are one: what it moves towards is the same.
            tau = 1.0 - (1.0 - self.config.tau) ** (moves - self._num_moves)
            self._num_moves = moves
            move_towards(self.state.target, self.state.params, tau)
        self._fold()

    def _fold(self) -> None:
        if self.nets.dueling is not None:
            for name, array in self.nets.dueling.folded(self._views).items():
                self.acting[name][...] = array

    def is_finite(self) -> bool:
        """See `off_policy.Learner`."""
        return bool(self.state.params.isfinite().all())

    def to_arrays(self) -> dict[str, Array]:
        """See `off_policy.Learner`."""
        state = self.state
        return {
            **state.adam.to_arrays(),
            "params": state.params.numpy().copy(),
            "target": state.target.numpy().copy(),
        }

    def to_json(self) -> dict[str, Any]:
        """See `off_policy.Learner`."""
        return {"num_updates": self.num_updates, "num_moves": self._num_moves}

    def load(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> None:
        """See `off_policy.Learner`."""
        self.state.adam.load(arrays)
        self.state.params.copy_(torch.from_numpy(arrays["params"]))
        self.state.target.copy_(torch.from_numpy(arrays["target"]))
        self.num_updates = checkpoint.state["learner"]["num_updates"]
        self._num_moves = checkpoint.state["learner"]["num_moves"]
        self._fold()


def train(
    config: Config,
    *,
    env: str | Callable[..., Any] | None = None,
    on_report: OnReport | None = None,
    resume_from: str | Path | None = None,
) -> Result:
    """Train, and leave a run directory behind.

    Args:
        config: what to do.
        env: a factory of environments, called with `config.env_kwargs`; used instead of
            `config.env_id`.
        on_report: called before the first iteration and after each; returning True stops the run.
        resume_from: a run directory, or a checkpoint in one, to go on from. The rest is as it was,
            but for `total_timesteps`, which may grow, and what changes nothing that is learned.

    Returns:
        The policy and where everything was written.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError: before anything starts.
        CheckpointError: the checkpoint to go on from is damaged or of another run.
        EnvironmentFailure: an environment raised or gave what its spaces rule out.
        NonFiniteError: a loss was NaN or infinite.
        KeyboardInterrupt: after metrics, timing and the last checkpoint were written.
    """
    with open_session(
        config,
        algorithm="dqn",
        env=env,
        network_name=None,
        on_report=on_report,
        resume_from=resume_from,
        collecting=lambda config: off_policy.collecting(config, _make_actor),
    ) as session:
        config = session.chosen(config)
        actor = _make_actor(config, session.envs)
        fraction = config.exploration_fraction * config.total_timesteps / config.num_envs
        return off_policy.run(
            config,
            session,
            actor=actor,
            learner=Learner(config, actor),
            exploration=Exploration(
                epsilon=(config.epsilon_start, config.epsilon_end),
                epsilon_steps=max(1, round(fraction)),
            ),
        )


def _make_actor(config: Config, envs: Specs) -> Actor:
    # A dueling network's last hidden layer is one for each stream, side by side.
    sizes = tuple(config.hidden_sizes)
    if config.dueling:
        sizes = (*sizes[:-1], 2 * sizes[-1])
    return Actor(
        kind="action_values",
        obs_spec=envs.obs_spec,
        action_spec=envs.action_spec,
        hidden_sizes=sizes,
        activation=config.activation,
    )
