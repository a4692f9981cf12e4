"""Environments: the settings of each, and its plan for the kernels, which are in `kernels/`.

k arms; in every step an arm has a true value, and a reward is that plus noise. Regret is counted in
true values: the best arm's minus that of the arm taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hotloop.bandits.described import IN_REWARDS, Described, number, setting
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.plan import Plan
from hotloop.errors import ConfigError
from hotloop.types import Array

MAX_ARMS = 4096
_USUAL_ARMS = 10


def _check_resolution(owner: str, name: str, value: float, scale: float) -> None:
    """Whether float32, of 24 binary digits, tells apart true values that differ by `scale`."""
    if scale > 0 and abs(value) > 2**20 * scale:
        raise ConfigError(
            f"`{name}` of {owner} must be at most 2**20 times what true values and rewards differ "
            f"by, {scale:g}, got {value!r}: float32 can't tell them apart there; shift the values "
            "towards 0"
        )


def _check_values(owner: str, name: str, values: Any, low: float, high: float) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list, np.ndarray)) or np.ndim(values) != 1 or len(values) < 2:
        raise ConfigError(f"`{name}` of {owner} must be two numbers or more, got {values!r}")
    if len(values) > MAX_ARMS:
        raise ConfigError(f"`{name}` of {owner} must be at most {MAX_ARMS}, got {len(values)}")
    for index, value in enumerate(values):
        number(owner, f"{name}[{index}]", value, low=low, high=high)
    return tuple(float(value) for value in values)


@dataclass(frozen=True, kw_only=True)
class KernelEnvironment(Described):
    """The settings of an environment that kernels make, and how it is laid out for them."""

    has_contexts: ClassVar[bool] = False

    @property
    def is_unit(self) -> bool:
        """Whether rewards are known to lie in 0 … 1."""
        return False

    def plan(self, num_steps: int) -> Plan:
        """What it does.

        Raises:
            ConfigError: it has fewer steps than are asked for.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Gaussian(KernelEnvironment):
    """The 10-armed testbed: true values N(`mean`, `spread`²), drawn anew for each run.

    Rewards are N(true value, `noise`²). Sutton & Barto 2018, section 2.3.
    """

    name: ClassVar[str] = "gaussian"
    num_arms: int = setting(_USUAL_ARMS, low=2, high=MAX_ARMS, unit="arms")
    """k, from 2."""
    mean: float = setting(0.0, unit=IN_REWARDS)
    """Mean of the true values."""
    spread: float = setting(1.0, low=0, unit=IN_REWARDS)
    """Standard deviation of the true values, from 0."""
    noise: float = setting(1.0, low=0, unit=IN_REWARDS)
    """Standard deviation of a reward, from 0."""
    means: tuple[float, ...] | None = None
    """True values that all runs share, instead of drawn ones; there are then as many arms."""

    def __post_init__(self) -> None:
        if self.means is not None:
            given = _check_values(self.name, "means", self.means, -1e30, 1e30)
            if self.num_arms not in (_USUAL_ARMS, len(given)):
                raise ConfigError(
                    f"`num_arms` of {self.name} must be the number of `means`, {len(given)}, got "
                    f"{self.num_arms!r}: leave it out"
                )
            object.__setattr__(self, "means", given)
            object.__setattr__(self, "num_arms", len(given))
        super().__post_init__()
        if self.means is None:
            _check_resolution(self.name, "mean", self.mean, max(self.spread, self.noise))
        else:
            scale = max(max(self.means) - min(self.means), self.noise)
            _check_resolution(self.name, "means", max(self.means, key=abs), scale)

    def plan(self, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import environments as parts

        given = np.array(self.means or [], np.float32)
        scales = map(float, (self.noise, self.mean, self.spread))
        return Plan(
            parts=(parts.start_stationary, parts.advance_gaussian, parts.give_noisy),
            parameters=(*scales, given.ctypes.data if len(given) else 0),
            arrays=(given,),
        )


@dataclass(frozen=True, kw_only=True)
class Bernoulli(KernelEnvironment):
    """Rewards of 1 with the arm's probability, else 0."""

    name: ClassVar[str] = "bernoulli"
    means: tuple[float, ...] = (0.9, 0.8)
    """The arms' probabilities, each 0 … 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "means", _check_values(self.name, "means", self.means, 0.0, 1.0))

    @property
    def label(self) -> str:
        """A short text for a title: its probabilities, unless they are many."""
        if self.num_arms > 8:
            return f"{self.name}, {self.num_arms} arms"
        return f"{self.name}, means {', '.join(f'{mean:.4g}' for mean in self.means)}"

    @property
    def num_arms(self) -> int:
        """k."""
        return len(self.means)

    @property
    def is_unit(self) -> bool:
        """They do."""
        return True

    def plan(self, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import environments as parts

        given = np.array(self.means, np.float32)
        return Plan(
            parts=(parts.start_stationary, parts.advance_bernoulli, parts.give_bernoulli),
            parameters=(0.0, 0.0, 0.0, given.ctypes.data),
            arrays=(given,),
        )


@dataclass(frozen=True, kw_only=True)
class RandomWalk(KernelEnvironment):
    """True values that start equal and take independent steps N(0, `walk`²), all in every step.

    Sutton & Barto 2018, exercise 2.5.
    """

    name: ClassVar[str] = "random-walk"
    num_arms: int = setting(10, low=2, high=MAX_ARMS, unit="arms")
    """k, from 2."""
    walk: float = setting(0.01, low=0, unit=IN_REWARDS)
    """Standard deviation of a true value's step, from 0."""
    start: float = setting(0.0, unit=IN_REWARDS)
    """Every true value before the first step."""
    noise: float = setting(1.0, low=0, unit=IN_REWARDS)
    """Standard deviation of a reward, from 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_resolution(self.name, "start", self.start, self.walk or self.noise)

    def plan(self, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import environments as parts

        return Plan(
            parts=(parts.start_nothing, parts.advance_walk, parts.give_noisy),
            parameters=tuple(map(float, (self.noise, self.start, self.walk))),
            has_walk=True,
        )


@dataclass(frozen=True, kw_only=True)
class AbruptChange(KernelEnvironment):
    """As the testbed, but all true values are drawn anew every so many steps."""

    name: ClassVar[str] = "abrupt-change"
    num_arms: int = setting(10, low=2, high=MAX_ARMS, unit="arms")
    """k, from 2."""
    every: int = setting(500, low=1, high=2**31 - 1, unit="steps")
    """Steps from one change to the next, 1 … 2³¹ − 1."""
    mean: float = setting(0.0, unit=IN_REWARDS)
    """Mean of the true values."""
    spread: float = setting(1.0, low=0, unit=IN_REWARDS)
    """Standard deviation of the true values, from 0."""
    noise: float = setting(1.0, low=0, unit=IN_REWARDS)
    """Standard deviation of a reward, from 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_resolution(self.name, "mean", self.mean, max(self.spread, self.noise))

    def plan(self, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import environments as parts

        scales = map(float, (self.noise, self.mean, self.spread))
        return Plan(
            parts=(parts.start_nothing, parts.advance_abrupt, parts.give_noisy),
            parameters=(*scales, self.every),
            has_walk=True,
            has_padding=True,  # drawn four by four
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Adversarial(KernelEnvironment):
    """Rewards that were fixed in advance, the same in all runs.

    Regret is against the arm that would have got most over the steps played; that arm counts as the
    optimal one, of several such arms the first alone.

    Raises:
        ConfigError: the matrix is no matrix of finite numbers, or has fewer than two arms.
    """

    name: ClassVar[str] = "adversarial"
    rewards: Array = field(repr=False)
    """What each arm gives at each step: (T, k), kept as float32."""

    def __post_init__(self) -> None:
        try:
            rewards = np.array(self.rewards, np.float32, order="C")  # as the kernels read it
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"`rewards` of {self.name} must be numbers, (T, k): {error}"
            ) from None
        if rewards.ndim != 2 or len(rewards) < 1:
            raise ConfigError(
                f"`rewards` of {self.name} must have shape (T, k), a row a step, got "
                f"{rewards.shape}"
            )
        if rewards.shape[1] < 2 or rewards.shape[1] > MAX_ARMS:
            raise ConfigError(
                f"`rewards` of {self.name} must have 2 to {MAX_ARMS} columns, one for each arm, "
                f"got {rewards.shape[1]}"
            )
        if not np.isfinite(rewards).all():
            step, arm = np.argwhere(~np.isfinite(rewards))[0]
            raise ConfigError(
                f"`rewards` of {self.name} must be finite, got {rewards[step, arm]} at step "
                f"{step + 1}, arm {arm}"
            )
        rewards.setflags(write=False)
        object.__setattr__(self, "rewards", rewards)

    @property
    def num_arms(self) -> int:
        """k."""
        return self.rewards.shape[1]

    def describe(self) -> dict[str, Any]:
        """Its name and its matrix, as JSON holds them."""
        return {"name": self.name, "rewards": self.rewards.tolist()}

    @property
    def label(self) -> str:
        """A short text for a legend."""
        return f"{self.name}, {len(self.rewards):,} steps, {self.num_arms} arms"

    @property
    def is_unit(self) -> bool:
        """Whether all of the matrix lies in 0 … 1."""
        return bool(self.rewards.min() >= 0 and self.rewards.max() <= 1)

    def plan(self, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import environments as parts

        matrix = self.rewards
        if len(matrix) < num_steps:
            raise ConfigError(
                f"`rewards` has {len(matrix):,} steps, fewer than the {num_steps:,} asked for: "
                "give more, or play fewer"
            )
        best = int(matrix[:num_steps].sum(axis=0, dtype=np.float64).argmax())
        return Plan(
            parts=(parts.start_adversarial, parts.advance_adversarial, parts.give_noisy),
            parameters=(0.0, 0.0, 0.0, matrix.ctypes.data, best),
            arrays=(matrix,),
            has_walk=True,
        )


@dataclass(frozen=True, kw_only=True)
class LinearContextual(KernelEnvironment):
    """A context x in every step, an unknown θ for each arm; true values are x·θ.

    x ~ N(0, I), drawn anew in every step; θ_a ~ N(0, I / d), drawn anew for each run; rewards
    N(x·θ_a, `noise`²). The disjoint linear model of Li et al. 2010, arXiv:1003.0146, section 3.1.
    """

    name: ClassVar[str] = "linear-contextual"
    has_contexts: ClassVar[bool] = True
    num_arms: int = setting(10, low=2, high=MAX_ARMS, unit="arms")
    """k, from 2."""
    dimension: int = setting(5, low=1, high=64, unit="components")
    """d, the length of a context, from 1 to 64."""
    noise: float = setting(0.1, low=0, unit=IN_REWARDS)
    """Standard deviation of a reward, from 0."""

    def plan(self, num_steps: int) -> Plan:
        from hotloop.bandits.kernels import environments as parts

        groups = (self.dimension + 3) // 4
        return Plan(
            parts=(parts.start_contextual, parts.advance_contextual, parts.give_noisy),
            parameters=(float(self.noise), 0.0, self.dimension**-0.5),
            state_bytes=16 * LANES * groups * self.num_arms,
            has_walk=True,
        )


Environment: TypeAlias = Any  # one of the above, a JittedEnvironment, or a user's own: see plain.py

ENVIRONMENTS: dict[str, Any] = {
    one.name: one
    for one in (Gaussian, Bernoulli, RandomWalk, AbruptChange, Adversarial, LinearContextual)
}
"""Environments by the name that commands know them by."""
