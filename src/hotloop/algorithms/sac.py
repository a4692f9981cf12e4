"""Soft actor-critic (SAC).

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905, with
CleanRL's hyper-parameters: two critics, a temperature that is learned too, policy updates delayed
and then made up for. Beyond the paper: critics' hidden layers can be normalised, batches drawn by
priorities or returns, rewards taken over n steps. Actions are learned in [−1, 1], whatever their
bounds are, and so is their entropy.

    from hotloop.algorithms import sac
    result = sac.train(sac.preset("Pendulum-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

import math
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
from hotloop.errors import ConfigError
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
from hotloop.ops.products import Precision
from hotloop.policies import Actor, Exploration, networks
from hotloop.runs import Checkpoint, OnReport, Result, check_fields
from hotloop.types import Array

POLICY_METRICS = ("policy_loss", "alpha_loss", "alpha", "entropy")

# What an environment needs to be learned well, where the defaults don't do.
PRESETS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        "total_timesteps": 20_000,
        "learning_starts": 500,
        "policy_learning_rate": 1e-3,
        "buffer_size": 20_000,
    },
}


@dataclass(frozen=True, kw_only=True)
class Config(OffPolicyConfig):
    """What a SAC run is made of."""

    env_id: str = "Pendulum-v1"
    """Gymnasium id, `module:Id`, `envpool:Id`, or `module:factory`; of continuous actions."""
    total_timesteps: int = 1_000_000
    """Transitions to collect, over all environments; rounded up to whole rounds."""
    policy_learning_rate: float = 3e-4
    """Adam's α, of the policy."""
    critic_learning_rate: float = 1e-3
    """Adam's α, of the critics and of the temperature."""
    tau: float = 0.005
    """τ: how far the target critics move towards the critics at each update."""
    policy_frequency: int = 2
    """Updates of the critics between those of the policy, which then are as many."""
    alpha: float | None = None
    """The temperature, fixed; None: learned."""
    initial_alpha: float = 1.0
    """Where a learned temperature starts."""
    target_entropy: float | None = None
    """What a learned temperature holds the policy's entropy at; None: −A."""
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
            positive=("policy_learning_rate", "critic_learning_rate", "initial_alpha"),
            not_negative=("alpha",),
            fractions=("tau",),
        )
        off_policy.check_precision(self.precision)
        if self.alpha is not None and (self.initial_alpha, self.target_entropy) != (1.0, None):
            raise ConfigError(
                f"`alpha` ({self.alpha}) is fixed, and `initial_alpha` and `target_entropy` are of "
                "one that is learned: leave these out, or leave `alpha` out"
            )
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ConfigError(f"`target_entropy` must be finite, got {self.target_entropy!r}")


def preset(env_id: str, **options: Any) -> Config:
    """The configuration that suits an environment; `options` come before the preset's."""
    return Config(**{"env_id": env_id, **PRESETS.get(env_id, {}), **options})


@dataclass(slots=True)
class State:
    """What learning changes, in place.

    Attributes:
        policy: float32, (P,), the actor's parameters.
        policy_adam: its optimizer's memory.
        critics: float32, (C,), both critics' parameters.
        critics_adam: their optimizer's memory.
        targets: float32, (C,), the target critics'.
        log_alpha: float32, (1,), logarithm of the temperature.
        alpha_adam: its optimizer's memory.
    """

    policy: Tensor
    policy_adam: AdamState
    critics: Tensor
    critics_adam: AdamState
    targets: Tensor
    log_alpha: Tensor
    alpha_adam: AdamState


def policy_loss(
    params: Tensor,
    critics: Tensor,
    alpha: Tensor,
    batch: Batch,
    noise: Tensor,
    nets: Networks,
    config: Config,
) -> tuple[Tensor, Tensor]:
    """L = E[α log π(ã|s) − min_k Q_k(s, ã)], ã drawn with `noise`.

    Haarnoja et al. 2018, arXiv:1812.05905, eq. 9.

    Args:
        params: float32, (P,).
        critics: float32, (C,), not differentiated.
        alpha: the temperature, (1,).
        batch: B transitions.
        noise: standard normal, (B, A).
        nets: which networks.
        config: read as constants.

    Returns:
        The loss, 0-d, and log π(ã|s), (B,).
    """
    named = nets.policy_layout.unpack(params)
    head = networks.actor_head(nets.actor, named, batch.obs, nets.precision)
    action, log_prob = networks.squashed_gaussian(head, noise)
    inputs = torch.cat([batch.obs.flatten(1).to(torch.float32), action], 1)
    critics_named = nets.critics_layout.unpack(critics)
    values = networks.action_values(nets.critics, critics_named, inputs, nets.precision)
    return losses.mean(alpha * log_prob - values.amin(0), batch.share), log_prob


def update_critics(
    state: State, batch: Batch, noise: Tensor, *, nets: Networks, config: Config
) -> tuple[Tensor, Tensor]:
    """One step of the critics and their targets; `state` changes in place.

    y = r + γ (min_k Q'_k(s', ã') − α log π(ã'|s')),   ã' drawn with `noise`

    Haarnoja et al. 2018, arXiv:1812.05905, eq. 5–6.

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
        alpha = _alpha(state, config)
        named = nets.policy_layout.unpack(state.policy)
        head = networks.actor_head(nets.actor, named, batch.next_obs, nets.precision)
        next_action, log_prob = networks.squashed_gaussian(head, noise)
        next_inputs = torch.cat([batch.next_obs.flatten(1).to(torch.float32), next_action], 1)
        targets = nets.critics_layout.unpack(state.targets)
        values = networks.action_values(nets.critics, targets, next_inputs, nets.precision)
        target = batch.reward + batch.discount * (values.amin(0) - alpha * log_prob)
    result = step_critics(
        state.critics,
        state.critics_adam,
        batch,
        target,
        learning_rate=config.critic_learning_rate,
        nets=nets,
    )
    move_towards(state.targets, state.critics, config.tau)
    return result


def update_policy(
    state: State, batch: Batch, noise: Tensor, *, nets: Networks, config: Config
) -> Tensor:
    """One step of the policy and, where it is learned, of the temperature, in place.

    L(α) = −α E[log π(ã|s) + H̄], Haarnoja et al. 2018, arXiv:1812.05905, eq. 18, by log α.

    Args:
        state: parameters and optimizers.
        batch: B transitions.
        noise: standard normal, (B, A).
        nets: which networks.
        config: read as constants.

    Returns:
        `POLICY_METRICS`, float32, (4,).
    """
    alpha = _alpha(state, config)
    value, log_prob, grad = value_and_grad(
        policy_loss, state.policy, state.critics, alpha, batch, noise, nets, config
    )
    rate = torch.tensor(config.policy_learning_rate)
    adam_step(state.policy, grad, state.policy_adam, learning_rate=rate)
    entropy = -log_prob.detach().mean()
    wanted = config.target_entropy
    surplus = entropy - (-float(nets.actor.action_size) if wanted is None else wanted)
    alpha_loss = alpha * surplus  # its gradient by log α is itself
    if config.alpha is None:
        rate = torch.tensor(config.critic_learning_rate)
        adam_step(state.log_alpha, alpha_loss, state.alpha_adam, learning_rate=rate)
    return torch.stack([value, alpha_loss[0], alpha[0], entropy])


def _alpha(state: State, config: Config) -> Tensor:
    """The temperature, (1,), as it is before this update."""
    return state.log_alpha.exp() if config.alpha is None else torch.full((1,), config.alpha)


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
        log_alpha = torch.tensor([math.log(config.initial_alpha)], dtype=torch.float32)
        self.state = State(
            policy=policy,
            policy_adam=AdamState.zeros(policy),
            critics=values,
            critics_adam=AdamState.zeros(values),
            targets=values.clone(),
            log_alpha=log_alpha,
            alpha_adam=AdamState.zeros(log_alpha),
        )
        self.acting = nets.policy_layout.views(policy)
        self.rng = np.random.default_rng((config.seed, 2))
        self.num_updates = 0
        self.metrics = Metrics({"critics": CRITIC_METRICS, "policy": POLICY_METRICS})
        self._noise = np.empty((config.batch_size, actor.action_size), np.float32)
        self._noise_tensor = torch.from_numpy(self._noise)
        # Products of matrices, forward and backward: the target's actor and critics and the
        # critics, then the actor and through the critics to the actions.
        per_row = 2 * (policy.numel() * 4 + values.numel() * 6)
        choice = choose(
            config.compile,
            num_calls=2 * config.planned_updates,
            flop_per_call=per_row * config.batch_size / 2,
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
        metrics, td_error = update_critics(self.state, batch, self._draw_noise())
        self.metrics.add("critics", metrics, self.num_updates)
        if self.num_updates % self.config.policy_frequency == 0:
            for _ in range(self.config.policy_frequency):
                metrics = update_policy(self.state, batch, self._draw_noise())
                self.metrics.add("policy", metrics, self.num_updates)
        return td_error

    def end_round(self, timesteps: int) -> None:
        """Nothing is left to do: acting reads the parameters' own memory."""

    def is_finite(self) -> bool:
        """See `off_policy.Learner`."""
        state = self.state
        parts = (state.policy, state.critics, state.log_alpha)
        return all(bool(x.isfinite().all()) for x in parts)

    def to_arrays(self) -> dict[str, Array]:
        """See `off_policy.Learner`."""
        state = self.state
        return {
            **state.policy_adam.to_arrays("policy_adam"),
            **state.critics_adam.to_arrays("critics_adam"),
            **state.alpha_adam.to_arrays("alpha_adam"),
            **{
                name: getattr(state, name).numpy().copy()
                for name in ("critics", "targets", "log_alpha")
            },
        }

    def to_json(self) -> dict[str, Any]:
        """See `off_policy.Learner`."""
        return {"num_updates": self.num_updates, "rng": self.rng.bit_generator.state}

    def load(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> None:
        """See `off_policy.Learner`."""
        state, stored = self.state, checkpoint.state["learner"]
        state.policy.copy_(self.nets.policy_layout.pack(checkpoint.snapshot.params))
        for name in ("policy_adam", "critics_adam", "alpha_adam"):
            getattr(state, name).load(arrays, name)
        for name in ("critics", "targets", "log_alpha"):
            getattr(state, name).copy_(torch.from_numpy(arrays[name]))
        self.num_updates = stored["num_updates"]
        self.rng.bit_generator.state = stored["rng"]

    def _draw_noise(self) -> Tensor:
        self.rng.standard_normal(dtype=np.float32, out=self._noise)
        return self._noise_tensor


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
        algorithm="sac",
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
            exploration=Exploration(random_steps=config.random_steps()),
        )


def _make_actor(config: Config, envs: Specs) -> Actor:
    return Actor(
        kind="squashed_gaussian",
        obs_spec=envs.obs_spec,
        action_spec=envs.action_spec,
        hidden_sizes=tuple(config.hidden_sizes),
        activation=config.activation,
    )
