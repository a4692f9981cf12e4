"""Twin delayed deep deterministic policy gradient (TD3).

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
arXiv:1802.09477, algorithm 1, with CleanRL's hyper-parameters: two critics, smoothed target
actions, a delayed policy. Beyond the paper: batches drawn by priorities or returns, rewards taken
over n steps. Actions, and the noise that is added to them, are learned in [−1, 1], whatever their
bounds are.

    from hotloop.algorithms import td3
    result = td3.train(td3.preset("Pendulum-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotloop.algorithms import off_policy
from hotloop.algorithms.batches import Batch
from hotloop.algorithms.off_policy import OffPolicyConfig
from hotloop.algorithms.session import Specs, open_session
from hotloop.algorithms.twin_critics import CRITIC_METRICS, Networks, step_critics
from hotloop.learner import (
    AdamState,
    Execution,
    Metrics,
    adam_step,
    choose,
    move_towards,
    value_and_grad,
)
from hotloop.ops import losses
from hotloop.ops.activations import tanh
from hotloop.ops.products import Precision
from hotloop.policies import Actor, Exploration, networks
from hotloop.runs import Checkpoint, OnReport, Result, check_fields
from hotloop.types import Array

POLICY_METRICS = ("policy_loss",)

# What an environment needs to be learned well, where the defaults don't do.
PRESETS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        "total_timesteps": 20_000,
        "learning_starts": 500,
        "learning_rate": 1e-3,
        "buffer_size": 20_000,
    },
}


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig):
    """What a TD3 run is made of."""

    env_id: str = "Pendulum-v1"
    """Gymnasium id, `module:Id`, `envpool:Id`, or `module:factory`; of continuous actions."""
    total_timesteps: int = 1_000_000
    """Transitions to collect, over all environments; rounded up to whole rounds."""
    learning_starts: int = 25_000
    """Transitions to collect before the first update."""
    learning_rate: float = 3e-4
    """Adam's α, of policy and critics."""
    tau: float = 0.005
    """τ: how far the targets move towards policy and critics, whenever the policy is updated."""
    policy_frequency: int = 2
    """Updates of the critics for one of the policy."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions while collecting, in halves of their range."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target's actions."""
    noise_clip: float = 0.5
    """Bound on that noise."""
    layer_norm: bool = False
    """Normalise the critics' hidden layers."""
    precision: Precision = "float32"
    """Of the matrix products; bfloat16 is faster where the CPU has instructions for it."""
    torch_threads: int = field(default_factory=off_policy.available_threads)
    """Cores for the update; by default all there are, up to 4."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(
            self,
            counts=("policy_frequency",),
            positive=("learning_rate",),
            not_negative=("exploration_noise", "policy_noise", "noise_clip"),
            fractions=("tau",),
        )
        off_policy.check_precision(self.precision)


def preset(env_id: str, **options: Any) -> Config:
    """The configuration that suits an environment; `options` come before the preset's."""
    return Config(**{"env_id": env_id, **PRESETS.get(env_id, {}), **options})


@dataclass(slots=True)
class State:
    """What learning changes, in place.

    Attributes:
        policy: float32, (P,), the actor's parameters.
        policy_adam: its optimizer's memory.
        policy_target: float32, (P,), the target actor's.
        critics: float32, (C,), both critics' parameters.
        critics_adam: their optimizer's memory.
        targets: float32, (C,), the target critics'.
    """

    policy: Tensor
    policy_adam: AdamState
    policy_target: Tensor
    critics: Tensor
    critics_adam: AdamState
    targets: Tensor


def policy_loss(
    params: Tensor, critics: Tensor, batch: Batch, nets: Networks, config: Config
) -> tuple[Tensor, tuple[()]]:
    """L = −E[Q_1(s, π(s))], Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1.

    Args:
        params: float32, (P,).
        critics: float32, (C,), not differentiated; only the first one counts.
        batch: B transitions.
        nets: which networks.
        config: read as constants.

    Returns:
        The loss, 0-d, and nothing.
    """
    named = nets.policy_layout.unpack(params)
    action = tanh(networks.actor_head(nets.actor, named, batch.obs, nets.precision))
    inputs = torch.cat([batch.obs.flatten(1).to(torch.float32), action], 1)
    first, first_named = networks.first_critic(nets.critics, nets.critics_layout.unpack(critics))
    values = networks.action_values(first, first_named, inputs, nets.precision)
    return -losses.mean(values, batch.share), ()


def update_critics(
    state: State, batch: Batch, noise: Tensor, *, nets: Networks, config: Config
) -> tuple[Tensor, Tensor]:
    """One step of the critics; `state` changes in place.

    y = r + γ min_k Q'_k(s', clip(π'(s') + clip(σ ε, −c, c), −1, 1)),   ε the `noise`

    Fujimoto et al. 2018, arXiv:1802.09477, eq. 14 and algorithm 1.

    Args:
        state: parameters and optimizers.
        batch: B transitions.
        noise: standard normal, (B, A).
        nets: which networks.
        config: read as constants.

    Returns:
        `CRITIC_METRICS`, float32, (3,), and |TD error|, the mean of both critics', (B,).
    """
    with torch.no_grad():
        named = nets.policy_layout.unpack(state.policy_target)
        head = networks.actor_head(nets.actor, named, batch.next_obs, nets.precision)
        smoothing = (config.policy_noise * noise).clamp(-config.noise_clip, config.noise_clip)
        next_action = (tanh(head) + smoothing).clamp(-1.0, 1.0)
        next_inputs = torch.cat([batch.next_obs.flatten(1).to(torch.float32), next_action], 1)
        targets = nets.critics_layout.unpack(state.targets)
        values = networks.action_values(nets.critics, targets, next_inputs, nets.precision)
        target = batch.reward + batch.discount * values.amin(0)
    return step_critics(
        state.critics,
        state.critics_adam,
        batch,
        target,
        learning_rate=config.learning_rate,
        nets=nets,
    )


def update_policy(state: State, batch: Batch, *, nets: Networks, config: Config) -> Tensor:
    """One step of the policy and of all targets, in place.

    Args:
        state: parameters and optimizers.
        batch: B transitions.
        nets: which networks.
        config: read as constants.

    Returns:
        `POLICY_METRICS`, float32, (1,).
    """
    value, _, grad = value_and_grad(policy_loss, state.policy, state.critics, batch, nets, config)
    rate = torch.tensor(config.learning_rate)
    adam_step(state.policy, grad, state.policy_adam, learning_rate=rate)
    move_towards(state.policy_target, state.policy, config.tau)
    move_towards(state.targets, state.critics, config.tau)
    return value.reshape(1)


class Learner:
    """The owner of all that learning changes; see `off_policy.Learner`."""

    def __init__(self, config: Config, actor: Actor) -> None:
        off_policy.warn_of_slow(config.precision)
        self.config = config
        self.nets = nets = Networks.around(
            actor, layer_norm=config.layer_norm, precision=config.precision
        )
        policy = nets.policy_layout.pack(actor.initial_parameters(config.seed))
        values = nets.critics_layout.pack(nets.critics.initial_parameters(config.seed))
        self.state = State(
            policy=policy,
            policy_adam=AdamState.zeros(policy),
            policy_target=policy.clone(),
            critics=values,
            critics_adam=AdamState.zeros(values),
            targets=values.clone(),
        )
        self.acting = nets.policy_layout.views(policy)
        self.rng = np.random.default_rng((config.seed, 2))
        self.num_updates = 0
        self.metrics = Metrics({"critics": CRITIC_METRICS, "policy": POLICY_METRICS})
        self._noise = np.empty((config.batch_size, actor.action_size), np.float32)
        self._noise_tensor = torch.from_numpy(self._noise)
        # Products of matrices: the target's actor and critics, the critics forward and backward;
        # less often, the actor forward and backward, through one critic.
        often = 1 / config.policy_frequency
        per_row = 2 * (policy.numel() * (1 + 3 * often) + values.numel() * (4 + often))
        calls = config.planned_updates * (1 + often)
        choice = choose(
            config.compile,
            num_calls=int(calls),
            flop_per_call=per_row * config.batch_size * config.planned_updates / calls,
        )
        self.executions = [
            Execution(partial(function, nets=nets, config=config), choice, name)
            for function, name in (
                (update_critics, "update of the critics"),
                (update_policy, "update of the policy"),
            )
        ]

    def update(self, batch: Batch) -> Tensor:
        """See `off_policy.Learner`."""
        update_critics, update_policy = self.executions
        self.num_updates += 1
        self.rng.standard_normal(dtype=np.float32, out=self._noise)
        metrics, td_error = update_critics(self.state, batch, self._noise_tensor)
        self.metrics.add("critics", metrics, self.num_updates)
        if self.num_updates % self.config.policy_frequency == 0:
            self.metrics.add("policy", update_policy(self.state, batch), self.num_updates)
        return td_error

    def end_round(self, timesteps: int) -> None:
        """Nothing is left to do: acting reads the parameters' own memory."""

    def is_finite(self) -> bool:
        """See `off_policy.Learner`."""
        return all(bool(x.isfinite().all()) for x in (self.state.policy, self.state.critics))

    def to_arrays(self) -> dict[str, Array]:
        """See `off_policy.Learner`."""
        state = self.state
        return {
            **state.policy_adam.to_arrays("policy_adam"),
            **state.critics_adam.to_arrays("critics_adam"),
            **{
                name: getattr(state, name).numpy().copy()
                for name in ("policy_target", "critics", "targets")
            },
        }

    def to_json(self) -> dict[str, Any]:
        """See `off_policy.Learner`."""
        return {"num_updates": self.num_updates, "rng": self.rng.bit_generator.state}

    def load(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> None:
        """See `off_policy.Learner`."""
        state, stored = self.state, checkpoint.state["learner"]
        state.policy.copy_(self.nets.policy_layout.pack(checkpoint.snapshot.params))
        for name in ("policy_adam", "critics_adam"):
            getattr(state, name).load(arrays, name)
        for name in ("policy_target", "critics", "targets"):
            getattr(state, name).copy_(torch.from_numpy(arrays[name]))
        self.num_updates = stored["num_updates"]
        self.rng.bit_generator.state = stored["rng"]


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
        algorithm="td3",
        env=env,
        network_name=None,
        on_report=on_report,
        resume_from=resume_from,
        collecting=lambda config: off_policy.collecting(config, _make_actor),
    ) as session:
        config = session.chosen(config)
        actor = _make_actor(config, session.envs)
        return off_policy.run(
            config,
            session,
            actor=actor,
            learner=Learner(config, actor),
            exploration=Exploration(
                random_steps=config.random_steps(), noise_std=config.exploration_noise
            ),
        )


def _make_actor(config: Config, envs: Specs) -> Actor:
    return Actor(
        kind="deterministic",
        obs_spec=envs.obs_spec,
        action_spec=envs.action_spec,
        hidden_sizes=tuple(config.hidden_sizes),
        activation=config.activation,
    )
