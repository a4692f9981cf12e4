"""Proximal policy optimization (PPO).

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347, with those of
"The 37 Implementation Details of Proximal Policy Optimization" (Huang et al. 2022) that concern
perceptrons: side-by-side environments, orthogonal initialisation, Adam's ε of 1e-5, annealed
learning rate, generalized advantages, minibatches, normalised advantages, clipped surrogate,
optional clipped value loss, entropy bonus, global gradient clipping, separate networks, a Gaussian
whose standard deviation does not depend on the state. One habit of most implementations is not
followed: truncation is not taken for termination (`hotloop.ops.gae`).

    from hotloop.algorithms import ppo
    result = ppo.train(ppo.Config(env_id="CartPole-v1", total_timesteps=100_000))
    action = result.policy.act(obs)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hotloop.algorithms import presets
from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.learner import AdamState, Scalar, adam_step, clip_grad_norm, value_and_grad
from hotloop.ops import gae, losses
from hotloop.ops.schedules import linear
from hotloop.policies import actor_critic
from hotloop.policies.learned import LearnedNetwork
from hotloop.training import OnPolicy
from hotloop.training.options import (
    Count,
    NetworkOptions,
    Positive,
    RunOptions,
    ScheduledFraction,
    ScheduledNotNegative,
    ScheduledPositive,
    SequenceOptions,
)
from hotloop.types import Fragment


@dataclass(frozen=True, kw_only=True)
class Config(SequenceOptions, NetworkOptions, RunOptions):
    """Options of a PPO run."""

    update_epochs: Count = 10
    """Passes over each fragment."""
    num_minibatches: Count = 4
    """Minibatches a pass; must divide N × num_steps."""
    learning_rate: ScheduledPositive = linear(1e-3, 0.0)
    """Adam's α."""
    gae_lambda: ScheduledFraction = 0.95
    """λ of the generalized advantages."""
    clip_range: ScheduledPositive = 0.2
    """ε of the clipped surrogate."""
    clip_value_loss: bool = False
    """Clip the value's change by ε too."""
    normalize_advantages: bool = True
    """Give each minibatch's advantages mean 0 and standard deviation 1."""
    entropy_coef: ScheduledNotNegative = 0.0
    """Weight of the entropy bonus."""
    value_coef: ScheduledNotNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: ScheduledPositive = 0.5
    """Bound on the gradient's Euclidean norm."""
    target_kl: Positive | None = None
    """Stop an iteration's updates once the approximate KL exceeds 1.5 × this; None: never."""
    shared_trunk: bool = False
    """Let policy and value share the hidden layers."""
    action_masks: bool = False
    """Take, and learn from, allowed actions alone: `info["action_mask"]` of each reset and step has
    1 for those, 0 for the others."""

    layer_options: ClassVar[tuple[str, ...]] = (
        "hidden_sizes",
        "activation",
        "layer_norm",
        "shared_trunk",
    )

    def check(self) -> None:
        """Refuse minibatches that can't be normalised."""
        if self.minibatch_size < 2 and self.normalize_advantages:
            raise ConfigError(
                f"minibatches of {self.minibatch_size} have no standard deviation: lower "
                "`num_minibatches`, or turn `normalize_advantages` off"
            )


class Hyper(NamedTuple):
    """Options that may change while it trains."""

    learning_rate: Scalar
    clip_range: Scalar
    entropy_coef: Scalar
    value_coef: Scalar
    max_grad_norm: Scalar
    gamma: Scalar
    gae_lambda: Scalar


class Batch(NamedTuple):
    """Transitions that are learned from: T × N of a fragment, B of a minibatch.

    Attributes:
        obs: (B, *obs_shape).
        action: (B, *action_shape).
        log_prob: float32, (B,), under the policy that acted.
        value: float32, (B,), likewise.
        advantages: float32, (B,).
        returns: float32, (B,), the value's targets.
        weight: float32, (B,), how much each counts, 1 on average; None: all the same.
        memory: of a network with memory, float32, (S, M), what it remembered before the first step
            of S sequences, whose rows come step by step; else None.
        begins: bool, (B,), where an episode begins; else None.
    """

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    advantages: Any
    returns: Any
    weight: Any = None
    memory: Any = None
    begins: Any = None


@dataclass(slots=True)
class State:
    """What learning changes, in place.

    Attributes:
        params: float32, (P,), all parameters of policy and value.
        adam: the optimizer's memory.
        active: bool, 0-d; False once the target KL was exceeded, until the next iteration.
    """

    params: Tensor
    adam: AdamState
    active: Tensor


def networks(config: Config, spaces: Spaces, device: torch.device) -> LearnedNetwork:
    """Return a policy and a value function."""
    network = actor_critic(
        spaces,
        hidden_sizes=config.hidden_sizes,
        activation=config.activation,
        shared_trunk=config.shared_trunk,
        layer_norm=config.layer_norm,
        memory=config.memory,
        network=config.network,
    )
    return LearnedNetwork(network, precision=config.precision, device=device)


def init(nets: LearnedNetwork, config: Config) -> State:
    """Return the first state."""
    params = nets.initial(config.seed)
    return State(params, AdamState.zeros(params), torch.ones((), dtype=torch.bool))


def prepare(fragment: Fragment, hyper: Hyper, config: Config) -> Batch:
    """Return a fragment's transitions, (T, N, …), with advantages and returns."""
    advantages = gae(
        fragment.reward,
        fragment.value,
        fragment.next_value,
        fragment.terminated,
        fragment.truncated,
        gamma=float(hyper.gamma),
        gae_lambda=float(hyper.gae_lambda),
    )
    return Batch(
        obs=fragment.obs,
        action=fragment.action,
        log_prob=fragment.log_prob,
        value=fragment.value,
        advantages=advantages,
        returns=advantages + fragment.value,
    )


def loss(
    params: Tensor,
    batch: Any,
    hyper: Hyper,
    nets: LearnedNetwork,
    config: Config,
    policy_weight: Tensor | None = None,
    is_normalized: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's objective, as a loss: L = L_policy + c_v L_value − c_e H.

    Schulman et al. 2017, arXiv:1707.06347, eq. 9.

    Args:
        params: float32, (P,).
        batch: B transitions.
        hyper: 0-d tensors.
        nets: policy and value.
        config: which terms there are.
        policy_weight: how much each transition counts for the policy, (B,); None: the batch's.
        is_normalized: whether advantages have been, over more than this minibatch.

    Returns:
        The loss and its parts, 0-d each.
    """
    log_prob, entropy, value = nets.evaluate(
        params, batch.obs, batch.action, batch.memory, batch.begins
    )
    log_ratio = log_prob - batch.log_prob
    ratio = log_ratio.exp()

    advantages, weight = batch.advantages, batch.weight
    if config.normalize_advantages and not is_normalized:
        mean, std = losses.moments(advantages, weight)
        advantages = (advantages - mean) / (std + 1e-8)

    of_policy = weight if policy_weight is None else policy_weight
    policy_loss = losses.clipped_policy_loss(ratio, advantages, hyper.clip_range, of_policy)
    if config.clip_value_loss:
        value_loss = losses.clipped_value_loss(
            value, batch.value, batch.returns, hyper.clip_range, weight
        )
    else:
        value_loss = losses.value_loss(value, batch.returns, weight)
    mean_entropy = losses.mean(entropy, weight)
    total = policy_loss + hyper.value_coef * value_loss - hyper.entropy_coef * mean_entropy
    with torch.no_grad():
        is_clipped = (ratio - 1.0).abs() > hyper.clip_range
        return total, {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": mean_entropy,
            "approx_kl": losses.approximate_kl(log_ratio, weight),
            "clip_fraction": losses.mean(is_clipped.to(torch.float32), weight),
        }


def update(
    state: State, batch: Batch, noise: None, hyper: Hyper, *, nets: LearnedNetwork, config: Config
) -> dict[str, Tensor]:
    """Make one gradient step on one minibatch; `state` changes in place.

    Returns:
        The loss's parts and the gradient's norm before clipping.
    """
    return step(loss, state, batch, hyper, nets, config)


def step(
    loss: Callable[..., Any],
    state: State,
    batch: Any,
    hyper: Hyper,
    nets: LearnedNetwork,
    config: Config,
    clip: Callable[..., tuple[Tensor, Tensor]] = clip_grad_norm,
) -> dict[str, Tensor]:
    """Make the step that a loss asks for: its gradient, clipped, through Adam.

    Args:
        loss: as the one here.
        state: changes in place.
        batch: a minibatch.
        hyper: 0-d tensors.
        nets: policy and value.
        config: which terms there are.
        clip: of a gradient and a bound gives the gradient clipped and its norm before.

    Returns:
        The loss's parts and the gradient's norm before clipping.
    """
    _, parts, grad = value_and_grad(loss, state.params, batch, hyper, nets, config)
    grad, norm = clip(grad, hyper.max_grad_norm)
    active = None
    if config.target_kl is not None:
        # Decided where the tensors are: a minibatch too far off changes nothing, nor do later ones.
        # One that is NaN counts, and is found.
        state.active.logical_and_(~(parts["approx_kl"] > 1.5 * config.target_kl))
        active = state.active
    rate = hyper.learning_rate
    adam_step(state.params, grad, state.adam, learning_rate=rate, eps=1e-5, active=active)
    return {**parts, "grad_norm": norm}


algorithm = OnPolicy(
    name="ppo",
    config=Config,
    networks=networks,
    init=init,
    hyper=Hyper,
    prepare=prepare,
    update=update,
    active="active",
    may_end=lambda config: config.target_kl is not None,
    is_weighted=True,
    presets=presets.PPO,
)
train, preset = algorithm.train, algorithm.preset
