"""Twin delayed deep deterministic policy gradient (TD3).

Fujimoto et al. 2018, "Addressing Function Approximation Error in Actor-Critic Methods",
arXiv:1802.09477, algorithm 1, with CleanRL's hyper-parameters: two critics, smoothed target
actions, delayed policy updates. Options beyond the paper are sampling by priorities or returns, and
n-step returns. Policies act in [−1, 1], noise included, and hotloop scales actions to the
environment's bounds.

    from hotloop.algorithms import td3
    result = td3.train(td3.preset("Pendulum-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

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
from hotloop.learner import Scalar, adam_step, move_towards, value_and_grad
from hotloop.ops import losses
from hotloop.policies import GaussianNoise, OrnsteinUhlenbeckNoise, PinkNoise
from hotloop.policies.heads import Deterministic
from hotloop.training import OffPolicy, ReplayBatch, Update
from hotloop.training.options import (
    SET,
    Count,
    Natural,
    NotNegative,
    RequirementTable,
    ScheduledFraction,
    ScheduledNotNegative,
    ScheduledPositive,
)


@dataclass(frozen=True, kw_only=True)
class Config(CriticOptions):
    """Options of a TD3 run."""

    learning_starts: Natural = 25_000
    """Transitions to collect before the first update, at least one batch."""
    learning_rate: ScheduledPositive = 3e-4
    """Adam's learning rate for policy and critics. Lower it if returns are unstable."""
    tau: ScheduledFraction = 0.005
    """τ, step size of the targets' soft update at policy updates. Lower it if Q-values diverge."""
    policy_frequency: Count = 2
    """Number of critic updates for each policy update. Raise it if the policy is unstable."""
    exploration: Literal["gaussian", "ornstein_uhlenbeck", "pink"] = "gaussian"
    """Noise on collected actions. gaussian: independent in each step. ornstein_uhlenbeck:
    correlated over about ten steps. pink: correlated over all times of an episode. Try pink if the
    policy never finds a reward."""
    exploration_noise: NotNegative = 0.1
    """Standard deviation of the noise on collected actions, as a share of half their range. Raise
    it for more exploration."""
    policy_noise: ScheduledNotNegative = 0.2
    """Standard deviation of the noise on target actions, as a share of half their range."""
    noise_clip: ScheduledNotNegative = 0.5
    """Bound on the magnitude of `policy_noise`, as a share of half the range."""

    requires: ClassVar[RequirementTable] = {"exploration": {"exploration_noise": SET}}


class Hyper(NamedTuple):
    """Hyper-parameters that may have a schedule."""

    learning_rate: Scalar
    tau: Scalar
    policy_noise: Scalar
    noise_clip: Scalar


@dataclass(slots=True, kw_only=True)
class State(critic_ensemble.ActorCriticState):
    """Policy, critics, and the target policy.

    Attributes:
        policy_target: parameters of the target actor, float32, (P,).
    """

    policy_target: Tensor


def networks(config: Config, spaces: Spaces, device: torch.device) -> Networks:
    """Return a deterministic policy and two critics."""
    return make_networks(config, spaces, Deterministic(), device)


def init(nets: Networks, config: Config) -> State:
    """Return the initial state."""
    tensors = critic_ensemble.initial_tensors(nets, config.seed)
    return State(**tensors, policy_target=tensors["policy"].clone())


def update_critics(
    state: State, batch: ReplayBatch, noise: Tensor, hyper: Hyper, *, nets: Networks, config: Config
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one step of the critics. `state` changes in place.

    y = r + γ min_k Q'_k(s', clip(π'(s') + clip(σ ε, −c, c), −1, 1)),   ε the `noise`

    Fujimoto et al. 2018, arXiv:1802.09477, eq. 14 and algorithm 1.

    Returns:
        Metrics, and |TD error|, the mean over both critics, (B,).
    """
    with torch.no_grad():
        smoothing = (hyper.policy_noise * noise).clamp(-hyper.noise_clip, hyper.noise_clip)
        outputs = next_outputs(state.policy_target, batch, nets)
        next_action = (nets.policy.head.act(outputs) + smoothing).clamp(-1.0, 1.0)
        values = next_values(state.targets, batch, next_action, nets)
        target = batch.reward + batch.discount * values.amin(0)
    return step_critics(state, batch, target, learning_rate=hyper.learning_rate, nets=nets)


def policy_loss(
    params: Tensor, critics: Tensor, batch: ReplayBatch, nets: Networks
) -> tuple[Tensor, tuple[()]]:
    """Return L = −E[Q_1(s, π(s))], Fujimoto et al. 2018, arXiv:1802.09477, algorithm 1.

    Args:
        params: float32, (P,).
        critics: float32, (C,), without gradient. Only the first critic is used.
        batch: B transitions.
        nets: policy and critics.

    Returns:
        The loss, 0-d, and an empty tuple.
    """
    outputs, _ = nets.policy.outputs(params, batch.obs, batch.memory, batch.begins)
    action, starts = nets.policy.head.act(outputs), sequence_starts(batch)
    values = nets.critics.first_values(critics, batch.obs, action, *starts)
    return -losses.mean(values, batch.policy_weight), ()


def update_policy(
    state: State, batch: ReplayBatch, noise: None, hyper: Hyper, *, nets: Networks, config: Config
) -> dict[str, Tensor]:
    """Make one step of the policy and of all targets, in place."""
    value, _, grad = value_and_grad(policy_loss, state.policy, state.critics, batch, nets)
    adam_step(state.policy, grad, state.policy_adam, learning_rate=hyper.learning_rate)
    move_towards(state.policy_target, state.policy, hyper.tau)
    move_towards(state.targets, state.critics, hyper.tau)
    return {"policy_loss": value}


def exploration(config: Config) -> GaussianNoise:
    """Return noise on actions, after uniform actions."""
    kinds = {
        "gaussian": GaussianNoise,
        "ornstein_uhlenbeck": OrnsteinUhlenbeckNoise,
        "pink": PinkNoise,
    }
    kind = kinds[config.exploration]
    return kind(random_steps=config.random_steps(), std=config.exploration_noise)


algorithm = OffPolicy(
    name="td3",
    config=Config,
    networks=networks,
    init=init,
    hyper=Hyper,
    acting="policy",
    updates=(
        Update(function=update_critics, name="update of the critics", has_noise=True),
        Update(function=update_policy, name="update of the policy", every="policy_frequency"),
    ),
    exploration=exploration,
    presets=presets.TD3,
)
train, preset = algorithm.train, algorithm.preset
