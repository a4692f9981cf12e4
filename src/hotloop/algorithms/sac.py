"""Soft actor-critic (SAC).

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905, with
CleanRL's hyper-parameters: two critics, a learned temperature, and delayed policy updates, repeated
to make up for the delay. Options beyond the paper are layer normalization of the critics, sampling
by priorities or returns, and n-step returns. Policies act in [−1, 1], and hotloop scales actions to
the environment's bounds. The entropy refers to actions in [−1, 1].

    from hotloop.algorithms import sac
    result = sac.train(sac.preset("Pendulum-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from hotloop.algorithms import critic_ensemble, presets
from hotloop.algorithms.critic_ensemble import (
    CriticOptions,
    Networks,
    make_networks,
    next_outputs,
    next_values,
    sequence_starts,
    step_critics,
)
from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.learner import AdamState, Scalar, adam_step, move_towards, value_and_grad
from hotloop.ops import losses
from hotloop.policies import Exploration
from hotloop.policies.heads import SquashedGaussian
from hotloop.training import OffPolicy, ReplayBatch, Update, hyper_of
from hotloop.training.options import (
    Count,
    Options,
    Positive,
    RequirementTable,
    ScheduledFinite,
    ScheduledFraction,
    ScheduledNotNegative,
    ScheduledPositive,
    between,
)


@dataclass(frozen=True, kw_only=True)
class EntropyOptions(Options):
    """Rates and temperature, for continuous and for discrete actions."""

    policy_learning_rate: ScheduledPositive = 3e-4
    """Adam's learning rate for the policy. Lower it if returns are unstable."""
    critic_learning_rate: ScheduledPositive = 1e-3
    """Adam's learning rate for the critics and the temperature. Lower it if Q-values diverge."""
    policy_frequency: Count = 2
    """Update the policy every N critic updates, N times in a row."""
    alpha: ScheduledNotNegative | None = None
    """A fixed temperature, the weight of the entropy. None: learned."""
    initial_alpha: Positive = 1.0
    """Initial value of a learned temperature. Raise it for more exploration in the beginning.
    `init_from` replaces it by the other run's temperature."""

    requires: ClassVar[RequirementTable] = {"initial_alpha": {"alpha": (None,)}}


@dataclass(frozen=True, kw_only=True)
class SoftOptions(EntropyOptions):
    """Rates and temperature of an algorithm with target critics."""

    tau: ScheduledFraction = 0.005
    """τ, step size of the target critics' soft update. Lower it if Q-values diverge."""


@dataclass(frozen=True, kw_only=True)
class EntropyTarget(Options):
    """The target of a temperature that is learned for continuous actions."""

    target_entropy: ScheduledFinite | None = None
    """Target entropy of a learned temperature. None: −A. Raise it for more exploration."""

    requires: ClassVar[RequirementTable] = {"target_entropy": {"alpha": (None,)}}


@dataclass(frozen=True, kw_only=True)
class Config(EntropyTarget, SoftOptions, CriticOptions):
    """Options of a SAC run."""

    num_critics: Annotated[int, between(1, 100)] = 2
    """K, critics. Raise it, with `target_critics`, for several updates for each transition."""
    target_critics: Count | None = None
    """Number of critics in a random subset. The target is the smallest value of the subset, which
    changes with each update. If set, the policy maximizes the mean of all critics. None: the target
    uses all critics, and the policy maximizes the smallest value."""
    policy_updates: Count | None = None
    """Updates of the policy every `policy_frequency` updates of the critics. None:
    `policy_frequency` updates."""

    def check(self) -> None:
        """Check that targets use no more critics than there are."""
        if self.target_critics is not None and self.target_critics > self.num_critics:
            raise ConfigError(
                f"`target_critics` must be at most `num_critics` = {self.num_critics}, got "
                f"{self.target_critics}: REDQ has 2 of 10"
            )

    def value_of(self, name: str) -> Any:
        """Return an option's value, and `policy_frequency` for None in `policy_updates`."""
        value = super().value_of(name)
        return self.policy_frequency if name == "policy_updates" and value is None else value


class Hyper(NamedTuple):
    """Hyper-parameters that may have a schedule. A learned temperature ignores `alpha`."""

    policy_learning_rate: Scalar
    critic_learning_rate: Scalar
    tau: Scalar
    alpha: Scalar
    target_entropy: Scalar


class HasTemperature(Protocol):
    """A state with a learned temperature.

    Attributes:
        log_alpha: logarithm of the temperature, float32, (1,).
        alpha_adam: state of its optimizer.
    """

    log_alpha: Tensor
    alpha_adam: AdamState


@dataclass(slots=True, kw_only=True)
class State(critic_ensemble.ActorCriticState):
    """Policy, critics, and the temperature.

    Attributes:
        log_alpha: logarithm of the temperature, float32, (1,).
        alpha_adam: state of its optimizer.
    """

    log_alpha: Tensor
    alpha_adam: AdamState


def networks(config: Config, spaces: Spaces, device: torch.device) -> Networks:
    """Return a squashed Gaussian policy and K critics."""
    return make_networks(config, spaces, SquashedGaussian(), device, count=config.num_critics)


def init(nets: Networks, config: Config) -> State:
    """Return the initial state."""
    tensors = critic_ensemble.initial_tensors(nets, config.seed)
    return State(**tensors, **initial_temperature(config))


def initial_temperature(config: EntropyOptions) -> dict[str, Any]:
    """Return the temperature's tensors of the initial `State`, by name."""
    log_alpha = torch.tensor([math.log(config.initial_alpha)], dtype=torch.float32)
    return {"log_alpha": log_alpha, "alpha_adam": AdamState.zeros(log_alpha)}


def hyper(config: Config, nets: Networks) -> Hyper:
    """Return the hyper-parameters of a run, as numbers and schedules."""
    hyper = hyper_of(Hyper, config)
    if config.target_entropy is None:
        hyper = hyper._replace(target_entropy=-math.prod(nets.policy.network.action_spec.shape))
    return hyper


def temperature(state: HasTemperature, alpha: Scalar, config: EntropyOptions) -> Tensor:
    """Return α before this update, (1,): the learned one, or the fixed `alpha`."""
    return state.log_alpha.exp() if config.alpha is None else alpha.expand(1)


def update_critics(
    state: State, batch: ReplayBatch, noise: Tensor, hyper: Hyper, *, nets: Networks, config: Config
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one step of the critics and a soft update of their targets. `state` changes in place.

    y = r + γ (min_k Q'_k(s', ã') − α log π(ã'|s')),   ã' sampled with `noise`

    Haarnoja et al. 2018, arXiv:1812.05905, eq. 5–6. With `target_critics`, the minimum is over a
    random subset of the critics: Chen et al. 2021, arXiv:2101.05982. The first numbers of further
    rows of `noise` draw it.

    Returns:
        Metrics, and |TD error|, the mean over all critics, (B,).
    """
    with torch.no_grad():
        alpha = temperature(state, hyper.alpha, config)
        outputs = next_outputs(state.policy, batch, nets)
        next_action, log_prob = nets.policy.head.sample(outputs, noise[: len(batch.reward)])
        values = next_values(state.targets, batch, next_action, nets)
        if config.target_critics is not None:
            keys = noise[len(batch.reward) :, :1]  # the smallest keys choose the critics
            bound = keys.sort(0).values[config.target_critics - 1]
            values = torch.where(keys <= bound, values, torch.inf)
        target = batch.reward + batch.discount * (values.amin(0) - alpha * log_prob)
    rate = hyper.critic_learning_rate
    result = step_critics(state, batch, target, learning_rate=rate, nets=nets)
    move_towards(state.targets, state.critics, hyper.tau)
    return result


def policy_loss(
    params: Tensor,
    critics: Tensor,
    alpha: Tensor,
    batch: ReplayBatch,
    noise: Tensor,
    nets: Networks,
    *,
    has_mean: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return L = E[α log π(ã|s) − min_k Q_k(s, ã)], with ã sampled by `noise`.

    Haarnoja et al. 2018, arXiv:1812.05905, eq. 9. With `has_mean`, the mean over the critics takes
    the place of the minimum: Chen et al. 2021, arXiv:2101.05982.

    Args:
        params: float32, (P,).
        critics: float32, (C,), without gradient.
        alpha: the temperature, (1,).
        batch: B transitions.
        noise: standard normal, (B, A).
        nets: policy and critics.
        has_mean: whether the policy maximizes the mean of the critics.

    Returns:
        The loss, 0-d, and log π(ã|s), (B,).
    """
    outputs, _ = nets.policy.outputs(params, batch.obs, batch.memory, batch.begins)
    action, log_prob = nets.policy.head.sample(outputs, noise)
    values = nets.critics.values(critics, batch.obs, action, *sequence_starts(batch))
    value = values.mean(0) if has_mean else values.amin(0)
    return losses.mean(alpha * log_prob - value, batch.policy_weight), log_prob


def update_policy(
    state: State, batch: ReplayBatch, noise: Tensor, hyper: Hyper, *, nets: Networks, config: Config
) -> dict[str, Tensor]:
    """Make one step of the policy and of the temperature, if it is learned, in place."""
    alpha = temperature(state, hyper.alpha, config)
    value, log_prob, grad = value_and_grad(
        partial(policy_loss, has_mean=config.target_critics is not None),
        *(state.policy, state.critics, alpha, batch, noise, nets),
    )
    adam_step(state.policy, grad, state.policy_adam, learning_rate=hyper.policy_learning_rate)
    rate = hyper.critic_learning_rate if config.alpha is None else None
    metrics = step_temperature(
        state, alpha, log_prob, hyper.target_entropy, learning_rate=rate, weight=batch.row_weight
    )
    return {"policy_loss": value, **metrics}


def step_temperature(
    state: HasTemperature,
    alpha: Tensor,
    log_prob: Tensor,
    target_entropy: Scalar,
    *,
    learning_rate: Scalar | None,
    weight: Tensor | None = None,
) -> dict[str, Tensor]:
    """Make one step of the temperature α, (1,), if it is learned, and return metrics.

    L(α) = −α E[log π(ã|s) + H̄], Haarnoja et al. 2018, arXiv:1812.05905, eq. 18, by log α.

    Args:
        state: its temperature changes in place.
        alpha: α, (1,).
        log_prob: log π(ã|s), (B,).
        target_entropy: H̄, 0-d.
        learning_rate: Adam's learning rate, 0-d. None: α is fixed.
        weight: weights of the rows, (B,); None for equal weights.
    """
    entropy = -losses.mean(log_prob.detach(), weight)
    alpha_loss = alpha * (entropy - target_entropy)  # the same as its gradient by log α
    if learning_rate is not None:
        adam_step(state.log_alpha, alpha_loss, state.alpha_adam, learning_rate=learning_rate)
    return {"alpha_loss": alpha_loss[0], "alpha": alpha[0], "entropy": entropy}


def critic_noise_shape(nets: Networks, config: Config) -> tuple[int, int]:
    """Return a row of noise per transition, and per critic to choose a subset of them."""
    num_rows = config.batch_size * config.sequence_steps
    if config.target_critics is not None:
        num_rows += config.num_critics
    return num_rows, math.prod(nets.policy.network.action_spec.shape)


algorithm = OffPolicy(
    name="sac",
    config=Config,
    networks=networks,
    init=init,
    hyper=hyper,
    acting="policy",
    updates=(
        Update(
            function=update_critics,
            name="update of the critics",
            noise_shape=critic_noise_shape,
        ),
        Update(
            function=update_policy,
            name="update of the policy",
            every="policy_frequency",
            times="policy_updates",
            has_noise=True,
        ),
    ),
    exploration=lambda config: Exploration(random_steps=config.random_steps()),
    presets=presets.SAC,
)
train, preset = algorithm.train, algorithm.preset
