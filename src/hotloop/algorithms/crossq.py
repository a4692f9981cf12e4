"""CrossQ: SAC with batch normalization and without target networks.

Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
Efficiency and Simplicity", arXiv:1902.05605. All layers of policy and critics normalize their
inputs by batch renormalization. Critics compute (s, a) and (s', ã') as one batch, whose statistics
fit both, so the values at s' need no target network. The acting policy is a plain perceptron, with
the running statistics folded into its weights.

    from hotloop.algorithms import crossq
    result = crossq.train(crossq.preset("Pendulum-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.algorithms import presets
from hotloop.algorithms.critic_ensemble import ActorCriticOptions
from hotloop.algorithms.sac import (
    EntropyOptions,
    EntropyTarget,
    initial_temperature,
    step_temperature,
    temperature,
)
from hotloop.envs import Spaces
from hotloop.errors import ConfigError, SpaceError
from hotloop.learner import AdamState, Scalar, adam_step, move_towards, value_and_grad
from hotloop.ops import losses
from hotloop.policies import Exploration, actor
from hotloop.policies.batch_norm import NormalizedPerceptrons
from hotloop.policies.critics import check_numbers
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads import SquashedGaussian
from hotloop.training import OffPolicy, ReplayBatch, Update, hyper_of
from hotloop.training.options import (
    Count,
    Natural,
    ScheduledFraction,
    ScheduledPositive,
    Sizes,
)

NUM_CRITICS = 2
BETA1 = 0.5  # of Adam for policy and critics, as in sb3-contrib
UNUSED = ("layer_norm",)  # of an image encoder


@dataclass(frozen=True, kw_only=True)
class Config(EntropyTarget, EntropyOptions, ActorCriticOptions):
    """Options of a CrossQ run."""

    hidden_sizes: Sizes = (256, 256)
    """Widths of the policy's hidden layers."""
    critic_hidden_sizes: Sizes = (1024, 1024)
    """Widths of the critics' hidden layers. Lower them for speed."""
    policy_learning_rate: ScheduledPositive = 1e-3
    """Adam's learning rate for the policy. Lower it if returns are unstable."""
    critic_learning_rate: ScheduledPositive = 1e-3
    """Adam's learning rate for the critics and the temperature. Lower it if Q-values diverge."""
    policy_frequency: Count = 3
    """Number of critic updates for each policy update. Raise it if the policy is unstable."""
    statistics_rate: ScheduledFraction = 0.01
    """Step size of the running means and variances at each update. Lower it if batches are small
    or noisy."""
    batch_norm_updates: Natural = 100_000
    """First updates of the critics with batch normalization, before running statistics take part
    (batch renormalization). Lower it for long trainings with small batches."""

    def check(self) -> None:
        """Check that policy and critics are perceptrons with a hidden layer."""
        if not self.critic_hidden_sizes:
            raise ConfigError("`critic_hidden_sizes` must name at least one hidden layer, got none")
        if self.network not in (None, "perceptron") or self.layer_norm:
            raise ConfigError(
                "crossq trains perceptrons with batch normalization, got "
                + (f"`network` {self.network!r}" if self.network else "`layer_norm`")
                + ": leave it out, or use sac"
            )


class Hyper(NamedTuple):
    """Hyper-parameters that may have a schedule. A learned temperature ignores `alpha`."""

    policy_learning_rate: Scalar
    critic_learning_rate: Scalar
    statistics_rate: Scalar
    alpha: Scalar
    target_entropy: Scalar


class Networks(NamedTuple):
    """The learned networks.

    Attributes:
        policy: the acting policy, without normalization.
        actor: the layers of the policy that learns.
        critics: two critics.
    """

    policy: LearnedNetwork
    actor: NormalizedPerceptrons
    critics: NormalizedPerceptrons


@dataclass(slots=True, kw_only=True)
class State:
    """Policy, critics, their running statistics, and the temperature.

    Attributes:
        policy: parameters of the acting policy, float32, (P,), computed from `actor`.
        actor: parameters of the policy that learns.
        actor_statistics: running means and variances of its inputs to layers.
        actor_adam: state of its optimizer.
        critics: parameters of both critics.
        critics_statistics: running means and variances of their inputs to layers.
        critics_adam: state of their optimizer.
        log_alpha: logarithm of the temperature, float32, (1,).
        alpha_adam: state of its optimizer.
    """

    policy: Tensor
    actor: Tensor
    actor_statistics: Tensor
    actor_adam: AdamState
    critics: Tensor
    critics_statistics: Tensor
    critics_adam: AdamState
    log_alpha: Tensor
    alpha_adam: AdamState


def networks(config: Config, spaces: Spaces, device: torch.device) -> Networks:
    """Return a squashed Gaussian policy and two critics.

    Raises:
        SpaceError: the observations hold images, and `network` is not `perceptron`, or several
            parts.
    """
    advice = "choose `network` 'perceptron' to read them as numbers, or use ppo"
    if spaces.obs_spec.is_packed:
        raise SpaceError(
            "crossq reads one array, but these observations hold several parts with images: use "
            "ppo, or a wrapper that makes them one array"
        )
    check_numbers(spaces, config.network, advice)
    network = actor(
        spaces,
        SquashedGaussian(),
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        network="perceptron",
    )
    num_obs, num_actions = (math.prod(x.shape) for x in (spaces.obs_spec, spaces.action_spec))
    layers = NormalizedPerceptrons(
        "policy",
        (num_obs, *config.hidden_sizes, network.head_size),
        activation=config.activation,
        precision=config.precision,
    )
    critics = NormalizedPerceptrons(
        "critic",
        (num_obs + num_actions, *config.critic_hidden_sizes, 1),
        count=NUM_CRITICS,
        precision=config.precision,
    )
    policy = LearnedNetwork(network, precision=config.precision, device=device)
    return Networks(policy, layers, critics)


def init(nets: Networks, config: Config) -> State:
    """Return the initial state."""
    device = torch.device("cpu")
    policy = nets.actor.initial(np.random.default_rng((config.seed, 0)), device)
    critics = nets.critics.initial(np.random.default_rng((config.seed, 1)), device)
    statistics = nets.actor.initial_statistics(device)
    return State(
        policy=acting_policy(policy, statistics, nets),
        actor=policy,
        actor_statistics=statistics,
        actor_adam=AdamState.zeros(policy),
        critics=critics,
        critics_statistics=nets.critics.initial_statistics(device),
        critics_adam=AdamState.zeros(critics),
        **initial_temperature(config),
    )


def hyper(config: Config, nets: Networks) -> Hyper:
    """Return the hyper-parameters of a run, as numbers and schedules."""
    hyper = hyper_of(Hyper, config)
    if config.target_entropy is None:
        hyper = hyper._replace(target_entropy=-math.prod(nets.policy.network.action_spec.shape))
    return hyper


def acting_policy(params: Tensor, statistics: Tensor, nets: Networks) -> Tensor:
    """Return the parameters of the acting policy, (P,), which needs no statistics."""
    parts = [part.flatten() for layer in nets.actor.fold(params, statistics) for part in layer]
    return torch.cat(parts)


def critic_loss(
    params: Tensor,
    statistics: Tensor,
    is_warm: Tensor,
    batch: ReplayBatch,
    action: Tensor,
    next_action: Tensor,
    entropy_cost: Tensor,
    nets: Networks,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return L = Σ_k E[w (Q_k(s, a) − y)²], y = r + γ (min_k Q_k(s', ã') − α log π(ã'|s')).

    Bhatt et al. 2024, arXiv:1902.05605: one forward pass of both halves, and no gradient through y.

    Args:
        params: float32, (C,).
        statistics: their running means and variances, (S,).
        is_warm: whether the running statistics take part, bool, 0-d.
        batch: B transitions with weights w, their `importance`.
        action: a in [−1, 1], (B, A).
        next_action: ã', (B, A).
        entropy_cost: α log π(ã'|s'), (B,).
        nets: the networks.

    Returns:
        The loss, 0-d; Q, (K, B), the differences, (K, B), and the batch's statistics, (S,).
    """
    obs = torch.cat([batch.obs, batch.next_obs]).flatten(1)
    inputs = torch.cat([obs, torch.cat([action, next_action])], 1)
    outputs, batch_statistics = nets.critics.train(params, statistics, inputs, is_warm)
    values, next_values = outputs.squeeze(-1).split(len(action), 1)
    next_value = next_values.detach().amin(0) - entropy_cost
    difference = values - (batch.reward + batch.discount * next_value)
    loss = (batch.importance * difference.square()).mean(-1).sum()
    return loss, (values, difference, batch_statistics)


def update_critics(
    state: State, batch: ReplayBatch, noise: Tensor, hyper: Hyper, *, nets: Networks, config: Config
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one step of the critics and of their statistics. `state` changes in place.

    Returns:
        Metrics, and |TD error|, the mean over both critics, (B,).
    """
    with torch.no_grad():
        outputs, _ = nets.policy.outputs(state.policy, batch.next_obs)
        next_action, log_prob = nets.policy.head.sample(outputs, noise)
        entropy_cost = temperature(state, hyper.alpha, config) * log_prob
    value, (values, difference, batch_statistics), grad = value_and_grad(
        critic_loss,
        state.critics,
        state.critics_statistics,
        state.critics_adam.step >= config.batch_norm_updates,
        batch,
        nets.policy.unit_action(batch.action),
        next_action,
        entropy_cost,
        nets,
    )
    rate = hyper.critic_learning_rate
    adam_step(state.critics, grad, state.critics_adam, learning_rate=rate, beta1=BETA1)
    move_towards(state.critics_statistics, batch_statistics, hyper.statistics_rate)
    td_error = difference.detach().abs().mean(0)
    metrics = {"critic_loss": value, "q_value": values.mean(), "td_error": td_error.mean()}
    return metrics, td_error


def policy_loss(
    params: Tensor,
    state: State,
    is_warm: Tensor,
    alpha: Tensor,
    batch: ReplayBatch,
    noise: Tensor,
    nets: Networks,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return L = E[α log π(ã|s) − min_k Q_k(s, ã)], with ã sampled by `noise`.

    The policy normalizes by the statistics of the batch, the critics by their running ones.

    Args:
        params: parameters of the policy that learns, float32.
        state: critics and statistics, without gradient.
        is_warm: whether the running statistics take part, bool, 0-d.
        alpha: the temperature, (1,).
        batch: B transitions.
        noise: standard normal, (B, A).
        nets: policy and critics.

    Returns:
        The loss, 0-d; log π(ã|s), (B,), and the batch's statistics.
    """
    obs = batch.obs.flatten(1)
    outputs, batch_statistics = nets.actor.train(params, state.actor_statistics, obs, is_warm)
    action, log_prob = nets.policy.head.sample(outputs[0], noise)
    inputs = torch.cat([obs, action], 1)
    values = nets.critics.outputs(state.critics, state.critics_statistics, inputs)
    value = values.squeeze(-1).amin(0)
    return losses.mean(alpha * log_prob - value, batch.weight), (log_prob, batch_statistics)


def update_policy(
    state: State, batch: ReplayBatch, noise: Tensor, hyper: Hyper, *, nets: Networks, config: Config
) -> dict[str, Tensor]:
    """Make one step of the policy, its statistics and a learned temperature, in place."""
    alpha = temperature(state, hyper.alpha, config)
    is_warm = state.critics_adam.step > config.batch_norm_updates
    value, (log_prob, batch_statistics), grad = value_and_grad(
        policy_loss, state.actor, state, is_warm, alpha, batch, noise, nets
    )
    rate = hyper.policy_learning_rate
    adam_step(state.actor, grad, state.actor_adam, learning_rate=rate, beta1=BETA1)
    move_towards(state.actor_statistics, batch_statistics, hyper.statistics_rate)
    state.policy.copy_(acting_policy(state.actor, state.actor_statistics, nets))
    rate = hyper.critic_learning_rate if config.alpha is None else None
    metrics = step_temperature(state, alpha, log_prob, hyper.target_entropy, learning_rate=rate)
    return {"policy_loss": value, **metrics}


algorithm = OffPolicy(
    name="crossq",
    config=Config,
    networks=networks,
    init=init,
    hyper=hyper,
    acting="policy",
    updates=(
        Update(function=update_critics, name="update of the critics", has_noise=True),
        Update(
            function=update_policy,
            name="update of the policy",
            every="policy_frequency",
            has_noise=True,
        ),
    ),
    exploration=lambda config: Exploration(random_steps=config.random_steps()),
    presets=presets.CROSSQ,
)
train, preset = algorithm.train, algorithm.preset
