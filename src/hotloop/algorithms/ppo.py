"""Proximal policy optimization (PPO).

Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347, with the details
for perceptrons from "The 37 Implementation Details of Proximal Policy Optimization" (Huang et al.
2022): vectorized environments, orthogonal initialization, Adam's ε of 1e-5, annealed learning rate,
generalized advantages, minibatches, normalized advantages, clipped surrogate, optional clipped
value loss, entropy bonus, global gradient clipping, separate networks, and a Gaussian with a
state-independent standard deviation. Unlike most implementations, it does not treat truncation as
termination (`hotloop.ops.gae`).

    from hotloop.algorithms import ppo
    result = ppo.train(ppo.Config(env_id="CartPole-v1", total_timesteps=100_000))
    action = result.policy.act(obs)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hotloop.algorithms import presets
from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.learner import (
    AdamState,
    Scalar,
    adam_step,
    clip_grad_norm,
    new_return_sums,
    scale_value,
    value_and_grad,
)
from hotloop.ops import gae, losses
from hotloop.ops.schedules import linear
from hotloop.policies import actor_critic
from hotloop.policies.forward import LearnedNetwork
from hotloop.policies.heads.gaussian import LOG_STD
from hotloop.training import OnPolicy
from hotloop.training.options import (
    Count,
    Finite,
    MaskOptions,
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
class Config(MaskOptions, SequenceOptions, NetworkOptions, RunOptions):
    """Options of a PPO run."""

    update_epochs: Count = 10
    """Passes over each fragment. Raise it to reuse data, lower it if `approx_kl` gets large."""
    num_minibatches: Count = 4
    """Minibatches of each pass, a divisor of N × num_steps. Raise it if one does not fit into
    memory, lower it if gradients are noisy."""
    learning_rate: ScheduledPositive = linear(1e-3, 0.0)
    """Adam's learning rate. Lower it if returns collapse or `approx_kl` gets large."""
    gae_lambda: ScheduledFraction = 0.95
    """λ of generalized advantages. Raise it for less bias, lower it for less variance."""
    clip_range: ScheduledPositive = 0.2
    """ε of the clipped surrogate. Raise it for larger policy changes, lower it for stability."""
    clip_value_loss: bool = False
    """Clip the change of the value by ε too."""
    normalize_value: bool | None = None
    """Learn the value in units of the returns' standard deviation, so that their scale does not
    matter to layers that policy and value share. None: if the network is recurrent. Set it for
    large returns with `shared_trunk` or an image encoder."""
    normalize_advantages: bool = True
    """Normalize the advantages of each minibatch to mean 0 and standard deviation 1."""
    entropy_coef: ScheduledNotNegative = 0.0
    """Weight of the entropy bonus. Raise it if the policy becomes deterministic too early."""
    value_coef: ScheduledNotNegative = 0.5
    """Weight of the value loss. It matters most if policy and value share layers."""
    max_grad_norm: ScheduledPositive = 0.5
    """Bound on the gradient's Euclidean norm. Lower it if single updates destroy the policy."""
    target_kl: Positive | None = None
    """Stop an iteration's updates if the approximate KL exceeds 1.5 × this value. None: never."""
    shared_trunk: bool = False
    """Share the hidden layers between policy and value."""
    initial_log_std: Finite = 0.0
    """Natural logarithm of the first standard deviation of continuous actions. Lower it to −1 or −2
    if random actions end episodes early or hide the effect of small ones."""

    layer_options: ClassVar[tuple[str, ...]] = (
        "hidden_sizes",
        "activation",
        "layer_norm",
        "shared_trunk",
    )

    @property
    def has_normalized_value(self) -> bool:
        """Return whether the value is learned in units of the returns' standard deviation."""
        return self.memory is not None if self.normalize_value is None else self.normalize_value

    def check(self) -> None:
        """Check that minibatches can be normalized."""
        if self.minibatch_size < 2 and self.normalize_advantages:
            raise ConfigError(
                f"minibatches of {self.minibatch_size} have no standard deviation: lower "
                "`num_minibatches`, or turn `normalize_advantages` off"
            )


class Hyper(NamedTuple):
    """Hyper-parameters that may have a schedule."""

    learning_rate: Scalar
    clip_range: Scalar
    entropy_coef: Scalar
    value_coef: Scalar
    max_grad_norm: Scalar
    gamma: Scalar
    gae_lambda: Scalar


class Batch(NamedTuple):
    """Transitions to learn from: T × N of a fragment, or B of a minibatch.

    Attributes:
        obs: (B, *obs_shape).
        action: (B, *action_shape).
        log_prob: float32, (B,), under the acting policy.
        value: float32, (B,), under the acting policy.
        advantages: float32, (B,).
        returns: float32, (B,), the targets of the value.
        weight: float32, (B,), weights of the transitions, 1 on average. None: equal weights.
        memory: hidden state of a recurrent network before the first step of S sequences, float32,
            (S, M), or None. The rows are then ordered step by step.
        begins: episode starts, bool, (B,), or None without recurrence.
        mask: allowed actions, bool, (B, M), or None without action masks.
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
    mask: Any = None


@dataclass(slots=True)
class State:
    """The tensors that learning changes in place.

    Attributes:
        params: parameters of policy and value, float32, (P,).
        adam: state of the optimizer.
        active: bool, 0-d. False from the first excess of the target KL until the next iteration.
        return_sums: running sums of the returns, float32, (3,). None: the value is not normalized.
    """

    params: Tensor
    adam: AdamState
    active: Tensor
    return_sums: Tensor | None = None


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
    """Return the initial state."""
    params = nets.initial(config.seed)
    if config.initial_log_std:
        if LOG_STD not in nets.layout.shapes:
            raise ConfigError(
                f"`initial_log_std` {config.initial_log_std:g} is for continuous actions, got "
                f"{nets.network.action_spec.kind} ones: leave it out"
            )
        nets.layout.unpack(params)[LOG_STD].fill_(config.initial_log_std)
    active = torch.ones((), dtype=torch.bool, device=params.device)
    if not config.has_normalized_value:
        return State(params, AdamState.zeros(params), active)
    # The first returns then consist of rewards alone, even if rewards are small.
    params = params.masked_fill(nets.value_layer, 0.0)
    return State(params, AdamState.zeros(params), active, new_return_sums())


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
    batch: Batch,
    unit: Tensor | None,
    hyper: Hyper,
    nets: LearnedNetwork,
    config: Config,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's objective as a loss: L = L_policy + c_v L_value − c_e H.

    Schulman et al. 2017, arXiv:1707.06347, eq. 9.

    Args:
        params: float32, (P,).
        batch: B transitions.
        unit: unit of values and returns in the value loss, 0-d. None: 1.
        hyper: 0-d tensors.
        nets: policy and value.
        config: selects the terms.

    Returns:
        The loss and its parts, 0-d each.
    """
    # Evaluate the actions under the current policy.
    log_prob, entropy, value = nets.evaluate(
        params, batch.obs, batch.action, batch.memory, batch.begins, batch.mask
    )
    log_ratio = log_prob - batch.log_prob
    ratio = log_ratio.exp()

    # Compute the terms of the loss.
    advantages, weight, epsilon = batch.advantages, batch.weight, hyper.clip_range
    if config.normalize_advantages:
        advantages = losses.normalized(advantages, weight)
    policy_loss = losses.clipped_policy_loss(ratio, advantages, epsilon, weight)
    value_clip = epsilon if config.clip_value_loss else None
    value_loss = losses.value_loss(
        value, batch.value, batch.returns, weight, clip_range=value_clip, unit=unit
    )
    entropy = losses.mean(entropy, weight)
    with torch.no_grad():
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": losses.approximate_kl(log_ratio, weight),
            "clip_fraction": losses.clip_fraction(ratio, epsilon, weight),
        }
    return policy_loss + hyper.value_coef * value_loss - hyper.entropy_coef * entropy, metrics


def update(
    state: State, batch: Batch, noise: None, hyper: Hyper, *, nets: LearnedNetwork, config: Config
) -> dict[str, Tensor]:
    """Make one gradient step on one minibatch, and return metrics. `state` changes in place."""
    unit, factors = scale_value(
        state.params, state.return_sums, state.adam.step, batch.returns, batch.weight, nets
    )
    _, metrics, grad = value_and_grad(loss, state.params, batch, unit, hyper, nets, config)
    grad, norm = clip_grad_norm(grad if factors is None else grad * factors, hyper.max_grad_norm)
    step(state, grad, factors, metrics["approx_kl"], hyper, config)
    return {**metrics, "grad_norm": norm}


def step(
    state: State,
    grad: Tensor,
    factors: Tensor | None,
    approx_kl: Tensor,
    hyper: Hyper,
    config: Config,
) -> None:
    """Make one step of Adam with a clipped gradient, unless a KL exceeded its target.

    The KL is that of this minibatch or of an earlier one of the iteration. `factors` are those of
    `scale_value`.
    """
    active = None
    if config.target_kl is not None:
        # Decide on the device: a minibatch with too large a KL changes nothing, and neither do
        # later ones. A NaN counts as active, so that the check for NaN finds it.
        state.active.logical_and_(~(approx_kl > 1.5 * config.target_kl))
        active = state.active
    rate = hyper.learning_rate
    adam_step(
        state.params, grad, state.adam, learning_rate=rate, eps=1e-5, active=active, scale=factors
    )


algorithm = OnPolicy(
    name="ppo",
    config=Config,
    networks=networks,
    init=init,
    hyper=Hyper,
    prepare=prepare,
    update=update,
    active="active",
    can_stop_early=lambda config: config.target_kl is not None,
    is_weighted=True,
    presets=presets.PPO,
)
train, preset = algorithm.train, algorithm.preset
