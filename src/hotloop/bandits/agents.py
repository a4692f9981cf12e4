"""Agents: what is known of each before it plays. How they play is in `kernels/`.

k arms, rewards r; N is how often an arm was taken, Q the value it is estimated to have; t is the
current step, from 1. Where several arms look best one of them is drawn, each as likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hotloop.errors import ConfigError

_LARGEST = 1e30  # what float32 holds, with room for sums
_MANY = 8  # values that a label has room for


def number(
    owner: str,
    name: str,
    value: Any,
    *,
    low: float = -_LARGEST,
    high: float = _LARGEST,
    above: bool = False,
) -> None:
    """Whether a setting is a finite number within its limits.

    Raises:
        ConfigError: it is not.
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    is_good = is_number and not isinstance(value, bool) and low <= value <= high
    if is_good and not (above and value == low):
        return
    limits = f"{'above' if above else 'from'} {low:g} up to {high:g}"
    raise ConfigError(f"`{name}` of {owner} must be a finite number {limits}, got {value!r}")


def whole(name: str, value: Any, low: int, high: int, *, owner: str = "") -> int:
    """A count, as a user gives it.

    Raises:
        ConfigError: it is no whole number, or out of range.
    """
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= value <= high:
        setting = f"`{name}` of {owner}" if owner else f"`{name}`"
        raise ConfigError(f"{setting} must be a whole number from {low} to {high:,}, got {value!r}")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Described:
    """What can say of itself what it is."""

    name: ClassVar[str]

    def describe(self) -> dict[str, Any]:
        """Its name and its settings, as JSON holds them."""
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"name": self.name} | {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in settings.items()
        }

    title: ClassVar[str] = ""  # its name as people write it

    @property
    def label(self) -> str:
        """A short text for a legend: its name, and the settings that are not the usual ones."""
        changed = [
            f"{one.name.replace('_', ' ')} {_short(getattr(self, one.name))}"
            for one in fields(self)
            if one.default is not getattr(self, one.name) and one.default != getattr(self, one.name)
        ]
        return ", ".join([self.title or self.name, *changed])


def _short(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        if len(value) > _MANY:
            return ", ".join([*map(_short, value[:3]), "…"])
        return ", ".join(map(_short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy(Described):
    """With probability ε any arm, else the one with the largest Q.

    Q ← Q + α (r − Q), α = `step_size`, or 1/N (sample averages). Sutton & Barto 2018, sections 2.2
    and 2.5. ε at step t is `epsilon` / (1 + `epsilon_decay` (t − 1)).

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "epsilon-greedy"
    epsilon: float = 0.1
    """Probability of exploring, 0 … 1."""
    step_size: float | None = None
    """α in (0, 1]; None for sample averages."""
    initial_value: float = 0.0
    """What Q starts from."""
    epsilon_decay: float = 0.0
    """How fast ε falls; 0: not at all."""

    def __post_init__(self) -> None:
        number(self.name, "epsilon", self.epsilon, low=0, high=1)
        number(self.name, "initial_value", self.initial_value)
        number(self.name, "epsilon_decay", self.epsilon_decay, low=0)
        _check_step_size(self.name, self.step_size)

    @property
    def label(self) -> str:
        """A short text for a legend."""
        parts = [f"ε-greedy, ε = {_short(self.epsilon)}" if self.epsilon else "greedy"]
        if self.epsilon_decay:
            parts.append(f"decay {_short(self.epsilon_decay)}")
        if self.step_size is not None:
            parts.append(f"α = {_short(self.step_size)}")
        if self.initial_value:
            parts.append(f"Q₁ = {_short(self.initial_value)}")
        return ", ".join(parts)


def _check_step_size(owner: str, step_size: float | None) -> None:
    if step_size is not None:
        number(owner, "step_size", step_size, low=0, high=1, above=True)


@dataclass(frozen=True, kw_only=True)
class Optimistic(Described):
    """Greedy from estimates that are too high: every arm disappoints until it was tried often.

    Q ← Q + α (r − Q) from Q₁ = `initial_value`. Sutton & Barto 2018, section 2.6.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "optimistic"
    initial_value: float = 5.0
    """Q₁."""
    step_size: float | None = 0.1
    """α in (0, 1]; None for sample averages, which forget Q₁ at an arm's first reward."""

    def __post_init__(self) -> None:
        number(self.name, "initial_value", self.initial_value)
        _check_step_size(self.name, self.step_size)

    @property
    def label(self) -> str:
        """A short text for a legend."""
        rate = "sample averages" if self.step_size is None else f"α = {_short(self.step_size)}"
        return f"optimistic, Q₁ = {_short(self.initial_value)}, {rate}"


@dataclass(frozen=True, kw_only=True)
class UCB(Described):
    """The arm with the largest Q + c √(ln t / N); arms not yet tried come first.

    Sutton & Barto 2018, eq. 2.10.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "ucb"
    c: float = 2.0
    """Degree of exploration, from 0."""
    step_size: float | None = None
    """α in (0, 1]; None for sample averages."""

    def __post_init__(self) -> None:
        number(self.name, "c", self.c, low=0)
        _check_step_size(self.name, self.step_size)

    @property
    def label(self) -> str:
        """A short text for a legend."""
        rate = "" if self.step_size is None else f", α = {_short(self.step_size)}"
        return f"UCB, c = {_short(self.c)}{rate}"


@dataclass(frozen=True, kw_only=True)
class UCB1(Described):
    """The arm with the largest mean + scale √(ln n / N), n the pulls so far.

    Auer, Cesa-Bianchi, Fischer 2002, "Finite-time analysis of the multiarmed bandit problem", fig.
    1: the scale is √2 there, for rewards in [0, 1].

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "ucb1"
    title: ClassVar[str] = "UCB1"
    scale: float = math.sqrt(2.0)
    """What the confidence radius is multiplied by, from 0."""

    def __post_init__(self) -> None:
        number(self.name, "scale", self.scale, low=0)


@dataclass(frozen=True, kw_only=True)
class Gradient(Described):
    """Draws from softmax(H), and H moves with the reward above its mean so far.

    H_a ← H_a + α (r − r̄)(1[a taken] − π_a). Sutton & Barto 2018, eq. 2.12; r̄ is the mean of the
    earlier rewards (at step 1 the reward itself), or 0 without a baseline.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "gradient"
    step_size: float = 0.1
    """α, above 0."""
    baseline: bool = True
    """Whether r̄ is subtracted."""

    def __post_init__(self) -> None:
        number(self.name, "step_size", self.step_size, low=0, above=True)
        if not isinstance(self.baseline, bool):
            raise ConfigError(
                f"`baseline` of {self.name} must be true or false, got {self.baseline!r}"
            )

    @property
    def label(self) -> str:
        """A short text for a legend."""
        without = "" if self.baseline else ", no baseline"
        return f"gradient, α = {_short(self.step_size)}{without}"


@dataclass(frozen=True, kw_only=True)
class GaussianThompson(Described):
    """Draws each arm's value from its posterior and takes the largest.

    Rewards N(μ, `noise`²), prior μ ~ N(`prior_mean`, `prior_std`²). Thompson 1933; Russo et al.
    2018, "A tutorial on Thompson sampling", arXiv:1707.02038.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "gaussian-thompson"
    title: ClassVar[str] = "Thompson (Gaussian)"
    prior_mean: float = 0.0
    """Mean of the prior."""
    prior_std: float = 1.0
    """Standard deviation of the prior, 1e-6 … 1e6."""
    noise: float = 1.0
    """Standard deviation of a reward, 1e-6 … 1e6."""

    def __post_init__(self) -> None:
        number(self.name, "prior_mean", self.prior_mean)
        number(self.name, "prior_std", self.prior_std, low=1e-6, high=1e6)
        number(self.name, "noise", self.noise, low=1e-6, high=1e6)


@dataclass(frozen=True, kw_only=True)
class BetaThompson(Described):
    """As Gaussian Thompson sampling, for rewards of 0 or 1: posteriors Beta(α + ones, β + zeros).

    A reward between them counts as that share of a one, and the rest as a zero.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "beta-thompson"
    title: ClassVar[str] = "Thompson (Beta)"
    prior_alpha: float = 1.0
    """α of the prior, above 0."""
    prior_beta: float = 1.0
    """β of the prior, above 0."""

    def __post_init__(self) -> None:
        number(self.name, "prior_alpha", self.prior_alpha, low=0, above=True)
        number(self.name, "prior_beta", self.prior_beta, low=0, above=True)


@dataclass(frozen=True, kw_only=True)
class KLUCB(Described):
    """The arm with the largest q for which N kl(mean, q) ≤ ln n + c ln ln n, n the pulls so far.

    kl is that of Bernoulli distributions: rewards lie in [0, 1]. Garivier and Cappé 2011,
    arXiv:1102.2490, algorithm 1.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "kl-ucb"
    title: ClassVar[str] = "KL-UCB"
    c: float = 0.0
    """Weight of ln ln n, from 0."""

    def __post_init__(self) -> None:
        number(self.name, "c", self.c, low=0)


@dataclass(frozen=True, kw_only=True)
class EXP3(Described):
    """Draws from weights that grow exponentially with rewards, each over its arm's probability.

    p = (1 − γ) w / Σw + γ / k, w_a ← w_a exp(γ r / (k p_a)) for the arm taken; rewards lie in [0,
    1]. Auer, Cesa-Bianchi, Freund, Schapire 2002, "The nonstochastic multiarmed bandit problem",
    fig. 1.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "exp3"
    title: ClassVar[str] = "EXP3"
    gamma: float = 0.1
    """γ in (0, 1]."""

    def __post_init__(self) -> None:
        number(self.name, "gamma", self.gamma, low=0, high=1, above=True)


@dataclass(frozen=True, kw_only=True)
class MOSS(Described):
    """The arm with the largest mean + √(max(ln(T / (k N)), 0) / N), T being the number of steps.

    Audibert and Bubeck 2009, "Minimax policies for adversarial and stochastic bandits", section 2.
    """

    name: ClassVar[str] = "moss"
    title: ClassVar[str] = "MOSS"


@dataclass(frozen=True, kw_only=True)
class LinUCB(Described):
    """The arm with the largest x·θ̂_a + α √(xᵀ A_a⁻¹ x), a ridge regression for each arm.

    Li et al. 2010, arXiv:1003.0146, algorithm 1.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "lin-ucb"
    title: ClassVar[str] = "LinUCB"
    alpha: float = 1.0
    """Degree of exploration, from 0."""
    ridge: float = 1.0
    """A_a starts from so many times the identity, above 0."""

    def __post_init__(self) -> None:
        number(self.name, "alpha", self.alpha, low=0)
        number(self.name, "ridge", self.ridge, low=0, above=True)


@dataclass(frozen=True, kw_only=True)
class LinTS(Described):
    """Draws each arm's value from N(x·θ̂_a, v² xᵀ A_a⁻¹ x) and takes the largest.

    Agrawal and Goyal 2013, arXiv:1209.3352, algorithm 1, with a regression for each arm.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str] = "lin-ts"
    title: ClassVar[str] = "LinTS"
    scale: float = 1.0
    """v, from 0."""
    ridge: float = 1.0
    """A_a starts from so many times the identity, above 0."""

    def __post_init__(self) -> None:
        number(self.name, "scale", self.scale, low=0)
        number(self.name, "ridge", self.ridge, low=0, above=True)


Agent: TypeAlias = Any  # one of the above, a JittedAgent, or a user's own object: see plain.py

AGENTS: dict[str, Any] = {
    one.name: one
    for one in (
        EpsilonGreedy,
        Optimistic,
        UCB,
        UCB1,
        Gradient,
        GaussianThompson,
        BetaThompson,
        KLUCB,
        EXP3,
        MOSS,
        LinUCB,
        LinTS,
    )
}
"""Agents by the name that commands know them by."""
