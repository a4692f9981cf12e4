"""Asynchronous proximal policy optimization (APPO).

PPO that learns from what older policies did, so that nobody waits: environments are stepped while
the networks learn. Beyond `ppo`: V-trace returns (Espeholt et al. 2018, arXiv:1802.01561); the
decoupled objective, whose clipping is not around the policy that acted (Hilton et al. 2021,
arXiv:2110.00641) but around one between it and the newest; a hard bound on the age of what is
learned from. With experience of the newest policy itself it is PPO's update.

    from hotloop.algorithms import appo
    result = appo.train(appo.Config(env_id="CartPole-v1", workers=2, schedule="async"))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.algorithms import ppo
from hotloop.algorithms.ppo import Hyper, networks
from hotloop.errors import ConfigError
from hotloop.learner import clip_grad_norm
from hotloop.learner.gradients import computed_once
from hotloop.ops import vtrace
from hotloop.policies.learned import LearnedNetwork
from hotloop.system.memory import need_memory
from hotloop.training import OnPolicy
from hotloop.training.newest import Newest
from hotloop.training.options import Hint, Natural, NotNegative, Positive
from hotloop.types import Fragment

_TRANSITION_BYTES = 29  # at least, of an observation of one byte

# Of the running mean of gradients' norms a minibatch is a hundredth; and what it may be at most.
_NEW = 0.01
_OUTLIER = 4.0
# Of a minibatch: one of rows that are no transitions has none.
_LEAST_WEIGHT = 1e-6

# Who acted computed its log-probabilities elsewhere: so far apart they may be of one policy.
_ROUNDING = 1e-4


@dataclass(frozen=True, kw_only=True)
class Config(ppo.Config):
    """Options of an APPO run."""

    schedule: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        Literal["barrier", "variable", "lag:1", "async"],
        Hint("'lag:1' collects the next fragments while learning, 'async' waits for nobody"),
    ] = "barrier"
    """barrier: T steps of each environment, then an update. variable, with workers: an update as
    soon as there are as many steps in all. lag:1, with workers: the next fragments are collected
    while these are learned from, reproducibly. async, with workers: fragments as they come in,
    first ready first."""
    max_policy_age: Natural = 4
    """async: iterations between the policy that acted and the newest. At least 2."""
    too_old: Literal["wait", "drop"] = "wait"
    """async: learning waits rather than let a transition become older; or whole fragments that did
    are dropped, which is a bias against environments that are slow."""
    vtrace: bool = True
    """Correct returns and advantages for the age of the policy that acted (V-trace); else they are
    PPO's, by the values of that time."""
    max_rho: Positive = 1.0
    """vtrace: bound ρ̄ on the importance of a step."""
    max_c: Positive = 1.0
    """vtrace: bound c̄ on how far back it counts; at most `max_rho`."""
    proximal_power: NotNegative = 1.0
    """How the policy that clipping is around follows the newest one as experience grows old; 0: it
    does not, clipping is around the policy that acted."""
    max_importance: Positive = 1.0
    """Bound on the weight of a step, what the proximal policy is to the one that acted."""
    hold_back: Natural = 0
    """Batches that are kept back before they are learned from: makes experience older on purpose,
    to see what age does."""

    def check(self) -> None:
        """Refuse bounds that contradict each other, or that can't be kept."""
        if self.max_c > self.max_rho:
            raise ConfigError(
                f"`max_c` must be at most `max_rho` = {self.max_rho}, got {self.max_c}: 1 and 1 "
                "are usual"
            )
        num_batches = -(-self.total_timesteps // self.batch_size)
        if self.hold_back >= num_batches:
            raise ConfigError(
                f"`hold_back` must be less than the batches of the run, {num_batches:,}, or "
                f"nothing is learned, got {self.hold_back:,}: lower it, or raise `total_timesteps`"
            )
        need_memory(
            _TRANSITION_BYTES * self.batch_size * self.hold_back,
            f"{self.hold_back:,} batches that are kept back",
            "lower `hold_back`",
        )

        if self.overlap and self.schedule in ("lag:1", "async"):
            raise ConfigError(
                f"`overlap` is what `schedule` '{self.schedule}' does anyway: leave it out"
            )
        if self.too_old == "drop" and self.schedule != "async":
            raise ConfigError(
                f"`too_old` 'drop' is for `schedule` 'async', got '{self.schedule}', in which "
                "nothing becomes too old: leave it out"
            )
        if self.schedule == "async" and self.max_policy_age < 2:
            raise ConfigError(
                f"`max_policy_age` must be at least 2 where `schedule` is 'async', as workers are "
                f"up to two fragments ahead, got {self.max_policy_age}: raise it, or choose "
                "'lag:1' (1) or 'barrier' (0)"
            )


class Batch(NamedTuple):
    """Transitions that are learned from, beside those of PPO's `Batch`.

    Attributes:
        newest_log_prob: float32, (B,), under the policy as it was before this iteration's updates.
        proximal_log_prob: float32, (B,), under the one that clipping is around.
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


@dataclass(slots=True)
class State(ppo.State):
    """PPO's state, and what a stream needs.

    Attributes:
        usual_norm: float32, 0-d: the running mean of its gradients' norms.
    """

    usual_norm: Tensor


def init(nets: LearnedNetwork, config: Config) -> State:
    """Return the first state."""
    first = ppo.init(nets, config)
    return State(first.params, first.adam, first.active, usual_norm=torch.zeros(()))


def prepare(fragment: Fragment, hyper: Hyper, config: Config, newest: Newest) -> Batch:
    """Return a fragment's transitions, (T, N, …), with advantages and returns.

    log π_prox = (1 − p) log π_new + p log μ,   p = age^−k,   1 at an age of 0

    Interpolated as in Li et al. 2025, arXiv:2512.06547, whose k is 1: where a policy moves on by as
    much in each update, the proximal one is an update behind the newest, as PPO's is.
    """
    log_importance = newest.log_prob - fragment.log_prob
    share = np.maximum(newest.age, 1).astype(np.float32) ** np.float32(-config.proximal_power)
    policies = {
        "newest_log_prob": newest.log_prob,
        "proximal_log_prob": fragment.log_prob + (1.0 - share) * log_importance,
    }
    if not config.vtrace:
        return Batch(**ppo.prepare(fragment, hyper, config)._asdict(), **policies)
    returns, advantages = vtrace(
        fragment.reward,
        newest.value,
        newest.next_value,
        fragment.terminated,
        fragment.truncated,
        log_importance,
        gamma=float(hyper.gamma),
        gae_lambda=float(hyper.gae_lambda),
        max_rho=config.max_rho,
        max_c=config.max_c,
    )
    return Batch(
        obs=fragment.obs,
        action=fragment.action,
        log_prob=fragment.log_prob,
        value=newest.value,
        advantages=advantages,
        returns=returns,
        **policies,
    )


def loss(
    params: Tensor, batch: Batch, hyper: Hyper, nets: LearnedNetwork, config: Config
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's objective for what an older policy μ did, as a loss.

    L_policy = −E[min(w̄, π_prox/μ) min(r A, clip(r, 1 − ε, 1 + ε) A)],   r = π/π_prox

    Hilton et al. 2021, arXiv:2110.00641, the decoupled objective, with a truncated weight; the rest
    is `ppo.loss`.
    """
    log_importance = batch.newest_log_prob - batch.log_prob
    weight = (batch.proximal_log_prob - batch.log_prob).exp().clamp(max=config.max_importance)
    if batch.weight is not None:
        weight = weight * batch.weight
    batch = batch._replace(log_prob=batch.proximal_log_prob)
    is_async = config.schedule == "async"  # a batch does not hold everybody: normalised before
    total, parts = ppo.loss(params, batch, hyper, nets, config, weight, is_async)
    if is_async:
        # Means of the rows at hand: weights are 1 on average over many batches, not over this one.
        share = batch.weight.mean().clamp(min=_LEAST_WEIGHT)
        parts = {name: part / share for name, part in parts.items()}
    with torch.no_grad():
        # The largest is 1: the share is the same, and no square is infinite.
        ratio = (log_importance - log_importance.max()).exp()
        is_truncated = log_importance > math.log(config.max_rho) + _ROUNDING
        return total, {
            **parts,
            # Kish 1965: (Σ w)² / (n Σ w²), the share of the rows that count.
            "effective_share": ratio.mean().square() / ratio.square().mean(),
            "truncated_share": is_truncated.to(torch.float32).mean(),
        }


def update(
    state: State, batch: Batch, noise: None, hyper: Hyper, *, nets: LearnedNetwork, config: Config
) -> dict[str, Tensor]:
    """Make one gradient step on one minibatch; `state` changes in place."""
    clip = clip_grad_norm
    if config.schedule == "async":
        clip = partial(clip_stream, usual_norm=state.usual_norm, weight=batch.weight)
    return ppo.step(loss, state, batch, hyper, nets, config, clip)


def clip_stream(
    grad: Tensor, max_norm: Tensor, *, usual_norm: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Scale the gradients of a stream all alike, so that their usual norm is at most `max_norm`.

    A bound on each gradient would pull those apart that few batches hold: they have a great weight,
    and another norm. Those alone are cut whose norm, for their weight, is several times the usual.

    Args:
        grad: (P,), of a minibatch.
        max_norm: the bound, 0-d.
        usual_norm: n̄, 0-d, changed in place: the running mean of ‖g‖ / w; 0 before the first.
        weight: of the minibatch's rows, (B,); w is their mean.

    Returns:
        min(1, max_norm / n̄) min(1, 4 n̄ w / ‖g‖) g, and ‖g‖, 0-d.
    """
    norm = torch.linalg.vector_norm(grad)
    own = norm / weight.mean().clamp(min=_LEAST_WEIGHT)
    is_first = usual_norm == 0.0
    most = torch.where(is_first, own, _OUTLIER * usual_norm)
    counted = torch.minimum(own, most)
    usual = torch.where(is_first, own, usual_norm + _NEW * (counted - usual_norm))
    # A gradient that is NaN may be one that is not used.
    usual_norm.copy_(torch.where(usual.isfinite(), usual, usual_norm))
    scale = torch.clamp(max_norm / (usual_norm + 1e-6), max=1.0)
    return grad * computed_once(scale * torch.clamp(most / (own + 1e-6), max=1.0)), norm


algorithm = OnPolicy(
    name="appo",
    config=Config,
    networks=networks,
    init=init,
    hyper=Hyper,
    prepare=prepare,
    update=update,
    active="active",
    may_end=lambda config: config.target_kl is not None,
    is_weighted=True,
    corrects=True,
)
train, preset = algorithm.train, algorithm.preset
