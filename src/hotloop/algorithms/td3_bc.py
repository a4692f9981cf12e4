"""TD3 with behaviour cloning (TD3+BC): offline, from a data set alone.

Fujimoto & Gu 2021, "A Minimalist Approach to Offline Reinforcement Learning", arXiv:2106.06860: the
critics of TD3, a policy loss with a term that imitates the data, and normalized observations. With
`q_weight` 0 it is behaviour cloning. No environment is stepped, except for evaluations.

    from hotloop.algorithms import td3_bc
    result = td3_bc.train("Pendulum-v1", replay_from="minari:pendulum/medium-v0")
    action = result.policy.act(obs)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from hotloop.algorithms import td3
from hotloop.algorithms.critic_ensemble import CriticOptions, Networks, make_networks
from hotloop.algorithms.td3 import State, update_critics
from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.learner import Scalar, adam_step, move_towards, value_and_grad
from hotloop.ops import losses
from hotloop.policies.heads import Deterministic
from hotloop.training import OffPolicy, ReplayBatch, Update
from hotloop.training.options import (
    MAY_CHANGE,
    Count,
    Natural,
    Positive,
    ScheduledFraction,
    ScheduledNotNegative,
    ScheduledPositive,
)
from hotloop.training.options.base import default_of

# Inherited options that would have no effect, because there are no environment steps to store.
UNUSED = (
    *("num_envs", "workers", "envs_per_worker", "backend", "inference", "schedule", "overlap"),
    *("max_failures", "step_timeout_s", "fragment_steps", "max_policy_age", "updates_per_launch"),
    *("learning_starts", "buffer_size", "train_frequency", "update_to_data", "replay_from_share"),
    *("replay", "replay_alpha", "replay_beta", "replay_weight_from", "replay_shift"),
    *("replay_replacement", "hindsight", "hindsight_share", "save_replay", "replay_device"),
    *("memory", "sequence_length", "burn_in", "policies", "policy_options"),
)


@dataclass(frozen=True, kw_only=True)
class Config(CriticOptions):
    """Options of a TD3+BC run."""

    total_timesteps: Annotated[Count, MAY_CHANGE] = 1_000_000
    """Updates of the critics. There are no environment steps, so they count as timesteps."""
    learning_starts: Natural = 0
    """Unused: the data set is complete from the start."""
    normalize_obs: bool = True
    """Normalize observations to mean 0 and standard deviation 1 over the data set."""
    clip_obs: Positive | None = None
    """Bound on the magnitude of observations. None: no bound."""
    eval_interval: Annotated[Count | None, MAY_CHANGE] = 5_000
    """Updates between two evaluations, which are the only learning curve. None: no evaluation."""
    learning_rate: ScheduledPositive = 3e-4
    """Adam's learning rate for policy and critics. Lower it if returns are unstable."""
    tau: ScheduledFraction = 0.005
    """τ, step size of the targets' soft update at policy updates. Lower it if Q-values diverge."""
    policy_frequency: Count = 2
    """Number of critic updates for each policy update. Raise it if the policy is unstable."""
    policy_noise: ScheduledNotNegative = 0.2
    """Standard deviation of the noise on target actions, as a share of half their range."""
    noise_clip: ScheduledNotNegative = 0.5
    """Bound on the magnitude of `policy_noise`, as a share of half the range."""
    q_weight: ScheduledNotNegative = 2.5
    """α, weight of the action values beside the imitation of the data. Raise it to improve on poor
    data, lower it if the policy leaves good data. 0: behaviour cloning."""

    @property
    def first_update_at(self) -> int:
        """Return 1: the first round updates."""
        return 1

    def check(self) -> None:
        """Check that no option is set that needs environment steps."""
        for name in UNUSED:
            value, default = self.value_of(name), default_of(type(self), name)
            if value != default:
                raise ConfigError(
                    f"`{name}` {value!r} has no effect, because td3_bc learns from a data set and "
                    "steps no environments: leave it out"
                )


class Hyper(NamedTuple):
    """Hyper-parameters that may have a schedule."""

    learning_rate: Scalar
    tau: Scalar
    policy_noise: Scalar
    noise_clip: Scalar
    q_weight: Scalar


def networks(config: Config, spaces: Spaces, device: torch.device) -> Networks:
    """Return a deterministic policy and two critics."""
    return make_networks(config, spaces, Deterministic(), device)


def policy_loss(
    params: Tensor,
    critics: Tensor,
    batch: ReplayBatch,
    action: Tensor,
    q_weight: Tensor,
    nets: Networks,
) -> tuple[Tensor, tuple[Tensor]]:
    """Return L = −λ E[Q_1(s, π(s))] + E[(π(s) − a)²], with λ = α / E[|Q_1(s, π(s))|].

    Fujimoto & Gu 2021, arXiv:2106.06860, with λ as in the authors' program: a constant of each
    batch, without gradient. The square is a mean over the components of an action.

    Args:
        params: float32, (P,).
        critics: float32, (C,), without gradient. Only the first critic is used.
        batch: B transitions.
        action: a in [−1, 1], (B, A).
        q_weight: α, 0-d.
        nets: policy and critics.

    Returns:
        The loss, 0-d, and the mean squared distance from the data's actions, 0-d.
    """
    outputs, _ = nets.policy.outputs(params, batch.obs)
    policy_action = nets.policy.head.act(outputs)
    values = nets.critics.first_values(critics, batch.obs, policy_action)
    scale = q_weight / values.detach().abs().mean().clamp_min(1e-8)
    distance = (policy_action - action).square().mean(-1)
    imitation = losses.mean(distance, batch.weight)
    return imitation - scale * losses.mean(values, batch.weight), (imitation,)


def update_policy(
    state: State, batch: ReplayBatch, noise: None, hyper: Hyper, *, nets: Networks, config: Config
) -> dict[str, Tensor]:
    """Make one step of the policy and of all targets, in place."""
    action = nets.policy.unit_action(batch.action)
    value, (imitation,), grad = value_and_grad(
        policy_loss, state.policy, state.critics, batch, action, hyper.q_weight, nets
    )
    adam_step(state.policy, grad, state.policy_adam, learning_rate=hyper.learning_rate)
    move_towards(state.policy_target, state.policy, hyper.tau)
    move_towards(state.targets, state.critics, hyper.tau)
    return {"policy_loss": value, "imitation_loss": imitation}


algorithm = OffPolicy(
    name="td3_bc",
    config=Config,
    networks=networks,
    init=td3.init,
    hyper=Hyper,
    acting="policy",
    updates=(
        Update(function=update_critics, name="update of the critics", has_noise=True),
        Update(function=update_policy, name="update of the policy", every="policy_frequency"),
    ),
    is_offline=True,
)
train, preset = algorithm.train, algorithm.preset
