"""Returns and advantages of a policy from the steps of an older policy."""

from __future__ import annotations

import math
from typing import NamedTuple

from hotloop.errors import ConfigError
from hotloop.ops.advantages import checked_steps, td_errors
from hotloop.ops.arrays import backward_sums
from hotloop.types import Array


class VTrace(NamedTuple):
    """Targets of a value function, and advantages.

    Attributes:
        returns: v, float32, (T, N).
        advantages: A, float32, (T, N).
    """

    returns: Array
    advantages: Array


def vtrace(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    log_ratio: Array,
    *,
    gamma: float,
    gae_lambda: float,
    max_rho: float = 1.0,
    max_c: float = 1.0,
) -> VTrace:
    """Compute V-trace: λ-returns of the policy π from steps of the policy μ.

    v_t = V(s_t) + ρ_t δ_t + γ c_t (1 − ended_t) (v_{t+1} − V(s_{t+1}))
    δ_t = r_t + γ (1 − terminated_t) V(s'_t) − V(s_t)
    ρ_t = min(ρ̄, π/μ),  c_t = λ min(c̄, π/μ)

    Espeholt et al. 2018, arXiv:1802.01561, eq. 1 and remark 2 (λ). The advantages do not include
    the ratio of their own step, because the policy's objective does:

    A_t = δ_t + γ λ (1 − ended_t) (v_{t+1} − V(s_{t+1}))

    With π = μ, v is the λ-return and A the generalized advantage of `gae`. Termination stops the
    bootstrap, truncation does not. Both end the recursion.

    Args:
        reward: float32, (T, N). The other arrays have the same shape and are float32, flags bool.
        value: V(s_t) of π.
        next_value: V of the *true* successor s'_t, even if the episode ended.
        terminated: Whether the episode terminated with this step.
        truncated: Whether the episode was truncated after this step.
        log_ratio: log π(a_t | s_t) − log μ(a_t | s_t).
        gamma: discount γ, in [0, 1].
        gae_lambda: λ, in [0, 1].
        max_rho: ρ̄, at least `max_c`. It sets whose values are learned: those of π if infinite.
        max_c: c̄. It limits how far errors propagate to earlier steps.

    Raises:
        ShapeError: arrays are not (T, N) with T ≥ 1, their shapes differ, or flags are not bool.
        ConfigError: γ or λ is not in [0, 1], or ρ̄ < c̄.
    """
    xp, (*arrays, log_ratio) = checked_steps(
        {
            "reward": reward,
            "value": value,
            "next_value": next_value,
            "terminated": terminated,
            "truncated": truncated,
            "log_ratio": log_ratio,
        },
        {"gamma": gamma, "gae_lambda": gae_lambda},
    )
    if not max_rho >= max_c > 0.0:
        raise ConfigError(
            f"`max_rho` must be at least `max_c`, which is positive, got {max_rho} and {max_c}: "
            "1 and 1 are usual"
        )
    # Clip the logarithms, so that large ratios do not overflow.
    rho = xp.exp(xp.clip(log_ratio, None, math.log(max_rho)))
    c = xp.exp(xp.clip(log_ratio, None, math.log(max_c)))
    delta, carry = td_errors(xp, *arrays, gamma=gamma, gae_lambda=gae_lambda)
    excess = backward_sums(rho * delta, carry * c)  # v − V
    delta[:-1] += carry[:-1] * excess[1:]
    _, checked_value, *_ = arrays
    return VTrace(xp.asarray(checked_value + excess, dtype=xp.float32), delta)
