"""Asynchronous proximal policy optimization (APPO).

PPO that learns from data of older policies, so that environments can step while the networks learn.
Beyond `ppo`, it has V-trace returns (Espeholt et al. 2018, arXiv:1802.01561), a hard bound on
policy lag, and the decoupled objective (Hilton et al. 2021, arXiv:2110.00641). This objective clips
around a proximal policy between the acting and the newest policy, instead of the acting policy.
For data of the newest policy, the update equals PPO's.

    from hotloop.algorithms import appo
    result = appo.train(appo.Config(env_id="CartPole-v1", workers=2, schedule="async"))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.algorithms import ppo
from hotloop.algorithms.ppo import Hyper, networks
from hotloop.base.memory import require_memory
from hotloop.errors import ConfigError
from hotloop.learner import clip_grad_norm, scale_value, value_and_grad
from hotloop.learner.gradients import computed_once
from hotloop.ops import losses, vtrace
from hotloop.policies.forward import LearnedNetwork
from hotloop.training import OnPolicy
from hotloop.training.fragment_streams import FragmentStream, LaggedFragments
from hotloop.training.options import Hint, Natural, NotNegative, Positive, RequirementTable
from hotloop.training.policy_reevaluation import PolicyReevaluation
from hotloop.types import Fragment, transition_bytes

# A minibatch's share of the running mean of gradient norms, and the maximum multiple of that mean.
_NEW_SHARE = 0.01
_OUTLIER_FACTOR = 4.0
# Minimum mean weight of a minibatch, which is 0 if none of its rows is a transition.
_MIN_WEIGHT = 1e-6

# Maximum difference of one policy's log-probabilities from different processes or devices.
_ROUNDING_TOLERANCE = 1e-4


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """Options of an APPO run."""

    schedule: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["barrier", "variable", "lag:1", "async"],
        Hint("'lag:1' collects the next fragments while learning, 'async' never waits for workers"),
    ] = "barrier"
    """barrier: update after T steps of each environment. variable, with workers: update after N × T
    steps in all. lag:1, with workers: collect the next fragments during an update, reproducibly.
    async, with workers: learn from fragments as they arrive."""
    max_policy_age: Natural = 4
    """async: maximum policy lag, in iterations, at least 2. Raise it if learning waits for old
    fragments, lower it if learning is unstable."""
    too_old: Literal["wait", "drop"] = "wait"
    """async: wait: learning waits, so that no transition exceeds `max_policy_age`. drop: discard
    fragments that exceed it, which biases learning against slow environments."""
    vtrace: bool = True
    """Correct returns and advantages for policy lag (V-trace). Off: compute them as PPO does."""
    max_rho: Positive = 1.0
    """vtrace: bound ρ̄ on importance ratios. Raise it for less bias, lower it for less variance."""
    max_c: Positive = 1.0
    """vtrace: bound c̄ on the ratios that carry corrections back to earlier steps, at most
    `max_rho`. Lower it for less variance."""
    proximal_power: NotNegative = 1.0
    """How fast the proximal policy, the center of clipping, moves from the acting to the newest
    policy with age. 0: always the acting policy."""
    max_importance: Positive = 1.0
    """Bound on a step's weight in the policy loss, the ratio of the proximal to the acting policy.
    Lower it for less variance."""
    hold_back: Natural = 0
    """Number of batches by which learning is delayed, to study the effect of policy lag."""

    requires: ClassVar[RequirementTable] = {
        "max_policy_age": {"schedule": ("async",)},
        "too_old": {"schedule": ("async",)},
        "max_rho": {"vtrace": (True,)},
        "max_c": {"vtrace": (True,)},
        "overlap": {"schedule": ("barrier", "variable")},  # the others include it
    }

    def check(self) -> None:
        """Check bounds that depend on each other, and memory."""
        if self.max_c > self.max_rho:
            raise ConfigError(
                f"`max_c` must be at most `max_rho` = {self.max_rho}, got {self.max_c}: 1 and 1 "
                "are usual"
            )
        num_batches = -(-self.total_timesteps // self.batch_size)
        if self.hold_back >= num_batches:
            raise ConfigError(
                f"`hold_back` must be less than the run's number of batches, {num_batches:,}, or "
                f"nothing is learned, got {self.hold_back:,}: lower it, or raise `total_timesteps`"
            )
        require_memory(
            transition_bytes() * self.batch_size * self.hold_back,
            f"{self.hold_back:,} delayed batches",
            "lower `hold_back`",
        )

        if self.schedule == "async" and self.max_policy_age < 2:
            raise ConfigError(
                f"`max_policy_age` must be at least 2 for `schedule` 'async', since workers are "
                f"up to two fragments ahead, got {self.max_policy_age}: raise it, or choose "
                "'lag:1' (1) or 'barrier' (0)"
            )


class Batch(NamedTuple):
    """Transitions to learn from: the fields of PPO's `Batch`, and two more.

    Attributes:
        newest_log_prob: float32, (B,), under the policy before this iteration's updates.
        proximal_log_prob: float32, (B,), under the proximal policy, the center of clipping.
    """

    obs: Any
    action: Any
    log_prob: Any
    value: Any
    advantages: Any
    returns: Any
    newest_log_prob: Any
    proximal_log_prob: Any
    weight: Any = None
    memory: Any = None
    begins: Any = None
    mask: Any = None


@dataclass(slots=True, kw_only=True)
class State(ppo.State):
    """PPO's state, and a running mean for gradient clipping.

    Attributes:
        usual_norm: running mean of the gradients' norms, float32, 0-d.
    """

    usual_norm: Tensor


def init(nets: LearnedNetwork, config: Config) -> State:
    """Return the initial state."""
    base = ppo.init(nets, config)
    return State(base.params, base.adam, base.active, base.return_sums, usual_norm=torch.zeros(()))


def fragments(config: Config) -> LaggedFragments:
    """Return the stage that delays, reevaluates and weights fragments."""
    return LaggedFragments(
        collects_ahead=config.schedule == "lag:1",
        max_policy_age=config.max_policy_age,
        drops_too_old=config.too_old == "drop",
        delay=config.hold_back,
        stream=FragmentStream() if config.schedule == "async" else None,
        normalizes=config.normalize_advantages,
    )


def prepare(
    fragment: Fragment, hyper: Hyper, config: Config, reevaluation: PolicyReevaluation
) -> Batch:
    """Return a fragment's transitions, (T, N, …), with advantages and returns.

    log π_prox = (1 − p) log π_new + p log μ,   p = age^−k,   1 at an age of 0

    The interpolation follows Li et al. 2025, arXiv:2512.06547, with k = 1. If each update changes
    the policy equally, the proximal policy is one update older than the newest, as in PPO.
    """
    log_importance = reevaluation.log_prob - fragment.log_prob
    p = np.maximum(reevaluation.age, 1).astype(np.float32) ** np.float32(-config.proximal_power)
    if config.vtrace:
        returns, advantages = vtrace(
            fragment.reward,
            reevaluation.value,
            reevaluation.next_value,
            fragment.terminated,
            fragment.truncated,
            log_importance,
            gamma=float(hyper.gamma),
            gae_lambda=float(hyper.gae_lambda),
            max_rho=config.max_rho,
            max_c=config.max_c,
        )
        steps = fragment.obs, fragment.action, fragment.log_prob, reevaluation.value
        batch = ppo.Batch(*steps, advantages, returns)
    else:
        batch = ppo.prepare(fragment, hyper, config)
    return Batch(
        **batch._asdict(),
        newest_log_prob=reevaluation.log_prob,
        proximal_log_prob=fragment.log_prob + (1.0 - p) * log_importance,
    )


def loss(
    params: Tensor,
    batch: Batch,
    unit: Tensor | None,
    hyper: Hyper,
    nets: LearnedNetwork,
    config: Config,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return PPO's objective for data of an older policy μ, as a loss.

    L_policy = −E[min(w̄, π_prox/μ) min(r A, clip(r, 1 − ε, 1 + ε) A)],   r = π/π_prox

    It is the decoupled objective of Hilton et al. 2021, arXiv:2110.00641, with a truncated weight.
    Arguments, results and the other terms are those of `ppo.loss`.
    """
    # Evaluate the actions under the current policy.
    log_prob, entropy, value = nets.evaluate(
        params, batch.obs, batch.action, batch.memory, batch.begins, batch.mask
    )
    log_ratio = log_prob - batch.proximal_log_prob
    ratio = log_ratio.exp()
    weight, epsilon = batch.weight, hyper.clip_range
    importance = (batch.proximal_log_prob - batch.log_prob).exp()
    policy_weight = importance.clamp(max=config.max_importance)
    if weight is not None:
        policy_weight = policy_weight * weight

    # Compute the terms of the loss.
    advantages, is_async = batch.advantages, config.schedule == "async"
    if config.normalize_advantages and not is_async:  # async normalizes over several batches
        advantages = losses.normalized(advantages, weight)
    policy_loss = losses.clipped_policy_loss(ratio, advantages, epsilon, policy_weight)
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
        if is_async:
            # Report means over this batch. The weights' mean is 1 only over many batches.
            mean_weight = batch.weight.mean().clamp(min=_MIN_WEIGHT)
            metrics = {name: part / mean_weight for name, part in metrics.items()}
        # Scale the largest importance to 1, so that no square overflows. The share does not change.
        log_importance = batch.newest_log_prob - batch.log_prob
        relative = (log_importance - log_importance.max()).exp()
        is_truncated = log_importance > math.log(config.max_rho) + _ROUNDING_TOLERANCE
        metrics |= {
            # Kish 1965: (Σ w)² / (n Σ w²), the effective share of rows.
            "effective_share": relative.mean().square() / relative.square().mean(),
            "truncated_share": is_truncated.to(torch.float32).mean(),
        }
    return policy_loss + hyper.value_coef * value_loss - hyper.entropy_coef * entropy, metrics


def update(
    state: State, batch: Batch, noise: None, hyper: Hyper, *, nets: LearnedNetwork, config: Config
) -> dict[str, Tensor]:
    """Make one gradient step on one minibatch. `state` changes in place."""
    unit, factors = scale_value(
        state.params, state.return_sums, state.adam.step, batch.returns, batch.weight, nets
    )
    _, metrics, grad = value_and_grad(loss, state.params, batch, unit, hyper, nets, config)
    grad = grad if factors is None else grad * factors
    if config.schedule == "async":
        grad, norm = clip_by_mean_norm(
            grad, hyper.max_grad_norm, usual_norm=state.usual_norm, weight=batch.weight
        )
    else:
        grad, norm = clip_grad_norm(grad, hyper.max_grad_norm)
    ppo.step(state, grad, factors, metrics["approx_kl"], hyper, config)
    return {**metrics, "grad_norm": norm}


def clip_by_mean_norm(
    grad: Tensor, max_norm: Tensor, *, usual_norm: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Scale all gradients by a common factor, so that their mean norm is at most `max_norm`.

    A bound on each gradient would distort the shares of transitions: those of slow environments are
    in few batches, which have large weights and different norms. Only outliers are clipped
    individually: gradients whose norm, relative to their weight, is several times the mean.

    Args:
        grad: gradient of a minibatch, (P,).
        max_norm: the bound, 0-d.
        usual_norm: n̄, 0-d, changed in place: the running mean of ‖g‖ / w, initially 0.
        weight: weights of the minibatch's rows, (B,), with mean w.

    Returns:
        min(1, max_norm / n̄) min(1, 4 n̄ w / ‖g‖) g, and ‖g‖, 0-d.
    """
    norm = torch.linalg.vector_norm(grad)
    relative_norm = norm / weight.mean().clamp(min=_MIN_WEIGHT)
    is_first = usual_norm == 0.0
    limit = torch.where(is_first, relative_norm, _OUTLIER_FACTOR * usual_norm)
    clipped = torch.minimum(relative_norm, limit)
    mean = torch.where(is_first, relative_norm, usual_norm + _NEW_SHARE * (clipped - usual_norm))
    # The gradient of an inactive update may be NaN.
    usual_norm.copy_(torch.where(mean.isfinite(), mean, usual_norm))
    scale = torch.clamp(max_norm / (usual_norm + 1e-6), max=1.0)
    return grad * computed_once(scale * torch.clamp(limit / (relative_norm + 1e-6), max=1.0)), norm


algorithm = OnPolicy(
    name="appo",
    config=Config,
    networks=networks,
    init=init,
    hyper=Hyper,
    prepare=prepare,
    update=update,
    active="active",
    can_stop_early=lambda config: config.target_kl is not None,
    is_weighted=True,
    fragments=fragments,
    learns_on_device=False,
)
train, preset = algorithm.train, algorithm.preset
