"""Truncated quantile critics (TQC).

Kuznetsov et al. 2020, "Controlling Overestimation Bias with Truncated Mixture of Continuous
Distributional Quantile Critics", arXiv:2005.04269. Each of N critics returns M atoms, the quantiles
of the return's distribution. The target pools the atoms of all critics and drops the d N largest,
so it does not overestimate the return. The policy maximizes the mean of all atoms. Policy,
temperature and state are SAC's.

    from hotloop.algorithms import tqc
    result = tqc.train(tqc.preset("Pendulum-v1"))
    action = result.policy.act(obs)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from hotloop.algorithms import critic_ensemble, presets, sac
from hotloop.algorithms.critic_ensemble import (
    CriticOptions,
    next_outputs,
    next_values,
    sequence_starts,
)
from hotloop.algorithms.sac import EntropyTarget, Hyper, SoftOptions, State
from hotloop.envs import Spaces
from hotloop.errors import ConfigError
from hotloop.learner import adam_step, move_towards, value_and_grad
from hotloop.ops import losses
from hotloop.policies import Exploration
from hotloop.policies.forward import LearnedCritics, LearnedNetwork
from hotloop.policies.heads import SquashedGaussian
from hotloop.training import OffPolicy, ReplayBatch, Update
from hotloop.training.options import Count, Natural, ScheduledPositive, between


@dataclass(frozen=True, kw_only=True)
class Config(EntropyTarget, SoftOptions, CriticOptions):
    """Options of a TQC run."""

    critic_learning_rate: ScheduledPositive = 3e-4
    """Adam's learning rate for the critics and the temperature. Lower it if Q-values diverge."""
    policy_frequency: Count = 1
    """Update the policy every n critic updates, n times in a row."""
    num_critics: Annotated[int, between(1, 100)] = 5
    """N, critics. Lower it for speed."""
    num_quantiles: Annotated[int, between(1, 1_000)] = 25
    """M, atoms of each critic. Lower it for speed."""
    num_dropped: Natural = 2
    """d, dropped atoms for each critic, the largest of all. Raise it if Q-values are too large,
    lower it if they are too small."""

    def check(self) -> None:
        """Check that the target has an atom."""
        if self.num_dropped >= self.num_quantiles:
            raise ConfigError(
                f"`num_dropped` must be less than `num_quantiles` = {self.num_quantiles}, got "
                f"{self.num_dropped}: 2 of 25 is usual"
            )


class Networks(NamedTuple):
    """The learned networks.

    Attributes:
        policy: the actor.
        critics: N critics with M outputs.
        midpoints: τ_m = (2 m − 1) / (2 M), the levels of the quantiles, float32, (M,).
    """

    policy: LearnedNetwork
    critics: LearnedCritics
    midpoints: Tensor


def networks(config: Config, spaces: Spaces, device: torch.device) -> Networks:
    """Return a squashed Gaussian policy and the critics."""
    count, num_outputs = config.num_critics, config.num_quantiles
    nets = critic_ensemble.make_networks(
        config, spaces, SquashedGaussian(), device, count=count, num_outputs=num_outputs
    )
    return Networks(*nets, (torch.arange(num_outputs, device=device) + 0.5) / num_outputs)


def quantile_loss(
    params: Tensor, batch: ReplayBatch, action: Tensor, target: Tensor, nets: Networks
) -> tuple[Tensor, Tensor]:
    """Return Σ_n E[w mean_m,i ρ_m(y_i − θ_nm)], ρ_m(u) = |τ_m − 1(u < 0)| Huber(u).

    It is the quantile Huber loss of Dabney et al. 2018, arXiv:1710.10044, with δ = 1.

    Args:
        params: float32, (C,).
        batch: B transitions with weights w, their `importance`.
        action: in [−1, 1], (B, A).
        target: the atoms y, (B, I).
        nets: the networks.

    Returns:
        The loss, 0-d, and the atoms θ, (N, B, M).
    """
    atoms = nets.critics.values(params, batch.obs, action, *sequence_starts(batch))
    difference = target[:, None, :] - atoms[..., None]  # (N, B, M, I)
    size = difference.abs()
    huber = torch.where(size > 1.0, size - 0.5, 0.5 * difference.square())
    slope = (nets.midpoints[:, None] - (difference < 0.0).to(torch.float32)).abs()
    rows = (slope * huber).mean((-1, -2))
    return (batch.importance * rows).mean(-1).sum(), atoms


def update_critics(
    state: State, batch: ReplayBatch, noise: Tensor, hyper: Hyper, *, nets: Networks, config: Config
) -> tuple[dict[str, Tensor], Tensor]:
    """Make one step of the critics and a soft update of their targets. `state` changes in place.

    y_i = r + γ (z_i − α log π(ã'|s')),   z the (M − d) N smallest target atoms at (s', ã')

    Kuznetsov et al. 2020, arXiv:2005.04269.

    Returns:
        Metrics, and the distance between the means of target and atoms, (B,).
    """
    with torch.no_grad():
        alpha = sac.temperature(state, hyper.alpha, config)
        outputs = next_outputs(state.policy, batch, nets)
        next_action, log_prob = nets.policy.head.sample(outputs, noise)
        atoms = next_values(state.targets, batch, next_action, nets)
        pool = atoms.transpose(0, 1).flatten(1).sort(1).values
        kept = pool[:, : config.num_critics * (config.num_quantiles - config.num_dropped)]
        future = kept - (alpha * log_prob)[:, None]
        target = batch.reward[:, None] + batch.discount[:, None] * future
    action = nets.policy.unit_action(batch.action)
    value, atoms, grad = value_and_grad(quantile_loss, state.critics, batch, action, target, nets)
    rate = hyper.critic_learning_rate
    adam_step(state.critics, grad, state.critics_adam, learning_rate=rate)
    move_towards(state.targets, state.critics, hyper.tau)
    td_error = (target.mean(1) - atoms.detach().mean((0, 2))).abs()
    metrics = {
        "critic_loss": value,
        "q_value": losses.mean(atoms.mean(-1), batch.row_weight),
        "td_error": losses.mean(td_error, batch.row_weight),
    }
    return metrics, td_error


def policy_loss(
    params: Tensor,
    critics: Tensor,
    alpha: Tensor,
    batch: ReplayBatch,
    noise: Tensor,
    nets: Networks,
) -> tuple[Tensor, Tensor]:
    """Return E[α log π(ã|s) − mean_n,m θ_nm(s, ã)], and log π(ã|s), (B,); see `sac.policy_loss`."""
    outputs, _ = nets.policy.outputs(params, batch.obs, batch.memory, batch.begins)
    action, log_prob = nets.policy.head.sample(outputs, noise)
    values = nets.critics.values(critics, batch.obs, action, *sequence_starts(batch))
    return losses.mean(alpha * log_prob - values.mean((0, 2)), batch.policy_weight), log_prob


def update_policy(
    state: State, batch: ReplayBatch, noise: Tensor, hyper: Hyper, *, nets: Networks, config: Config
) -> dict[str, Tensor]:
    """Make one step of the policy and of the temperature, if it is learned, in place."""
    alpha = sac.temperature(state, hyper.alpha, config)
    value, log_prob, grad = value_and_grad(
        policy_loss, state.policy, state.critics, alpha, batch, noise, nets
    )
    adam_step(state.policy, grad, state.policy_adam, learning_rate=hyper.policy_learning_rate)
    rate = hyper.critic_learning_rate if config.alpha is None else None
    metrics = sac.step_temperature(
        state, alpha, log_prob, hyper.target_entropy, learning_rate=rate, weight=batch.row_weight
    )
    return {"policy_loss": value, **metrics}


algorithm = OffPolicy(
    name="tqc",
    config=Config,
    networks=networks,
    init=sac.init,
    hyper=sac.hyper,
    acting="policy",
    updates=(
        Update(function=update_critics, name="update of the critics", has_noise=True),
        Update(
            function=update_policy,
            name="update of the policy",
            every="policy_frequency",
            times="policy_frequency",
            has_noise=True,
        ),
    ),
    exploration=lambda config: Exploration(random_steps=config.random_steps()),
    presets=presets.TQC,
)
train, preset = algorithm.train, algorithm.preset
