"""Settings of environments, and their plans for the kernels in `kernels/`.

An environment has k arms. At every step each arm has a true value, and a reward is this value plus
noise. The regret of a step is the best arm's true value minus the chosen arm's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hotloop.bandits.checked_settings import REWARD_UNIT, CheckedSettings, check_number, setting
from hotloop.bandits.kernel_plans import KernelPlan
from hotloop.bandits.kernels.layout import LANES
from hotloop.errors import ConfigError
from hotloop.types import Array

MAX_ARMS = 4096
_DEFAULT_ARMS = 10


def _check_resolution(owner: str, name: str, value: float, scale: float) -> None:
    """Check that float32, with 24 binary digits, can represent differences of size `scale`."""
    if scale > 0 and abs(value) > 2**20 * scale:
        raise ConfigError(
            f"`{name}` of {owner} must be at most 2**20 times the scale of differences, {scale:g}, "
            f"got {value!r}: float32 is too coarse there; shift the values towards 0"
        )


def _check_values(owner: str, name: str, values: Any, low: float, high: float) -> tuple[float, ...]:
    if not isinstance(values, (tuple, list, np.ndarray)) or np.ndim(values) != 1 or len(values) < 2:
        raise ConfigError(f"`{name}` of {owner} must be two numbers or more, got {values!r}")
    if len(values) > MAX_ARMS:
        raise ConfigError(
            f"`{name}` of {owner} must be at most {MAX_ARMS} numbers, got {len(values)}"
        )
    for index, value in enumerate(values):
        check_number(owner, f"{name}[{index}]", value, low=low, high=high)
    return tuple(float(value) for value in values)


@dataclass(frozen=True, kw_only=True)
class KernelEnvironment(CheckedSettings):
    """Settings of an environment, and its plan for the kernels."""

    has_contexts: ClassVar[bool] = False

    @property
    def has_unit_rewards(self) -> bool:
        """Whether all rewards lie in [0, 1]."""
        return False

    def plan(self, num_steps: int) -> KernelPlan:
        """Return the plan for the kernels.

        Raises:
            ConfigError: The environment has fewer steps.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class GaussianRewards(KernelEnvironment):
    """The 10-armed testbed: true values are drawn from N(`mean`, `spread`²) for each run.

    Rewards are N(true value, `noise`²). Sutton & Barto 2018, section 2.3.
    """

    name: ClassVar[str] = "gaussian"
    num_arms: int = setting(_DEFAULT_ARMS, low=2, high=MAX_ARMS, unit="arms")
    """Number k of arms, at least 2."""
    mean: float = setting(0.0, unit=REWARD_UNIT)
    """Mean of the true values."""
    spread: float = setting(1.0, low=0, unit=REWARD_UNIT)
    """Standard deviation of the true values, at least 0."""
    noise: float = setting(1.0, low=0, unit=REWARD_UNIT)
    """Standard deviation of a reward, at least 0."""
    means: tuple[float, ...] | None = None
    """True values that all runs share, instead of drawn ones. They set the number of arms."""

    def __post_init__(self) -> None:
        if self.means is not None:
            means = _check_values(self.name, "means", self.means, -1e30, 1e30)
            if self.num_arms not in (_DEFAULT_ARMS, len(means)):
                raise ConfigError(
                    f"`num_arms` of {self.name} must be the number of `means`, {len(means)}, got "
                    f"{self.num_arms!r}: leave it out"
                )
            object.__setattr__(self, "means", means)
            object.__setattr__(self, "num_arms", len(means))
        super().__post_init__()
        if self.means is None:
            _check_resolution(self.name, "mean", self.mean, max(self.spread, self.noise))
        else:
            scale = max(max(self.means) - min(self.means), self.noise)
            _check_resolution(self.name, "means", max(self.means, key=abs), scale)

    def plan(self, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import environments as parts

        means = np.array(self.means or [], np.float32)
        scales = map(float, (self.noise, self.mean, self.spread))
        return KernelPlan(
            parts=(parts.start_stationary, parts.advance_gaussian, parts.give_noisy_reward),
            parameters=(*scales, means.ctypes.data if len(means) else 0),
            arrays=(means,),
        )


@dataclass(frozen=True, kw_only=True)
class Bernoulli(KernelEnvironment):
    """Rewards are 1 with the arm's probability, else 0."""

    name: ClassVar[str] = "bernoulli"
    means: tuple[float, ...] = (0.9, 0.8)
    """Probability of each arm, in [0, 1]."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "means", _check_values(self.name, "means", self.means, 0.0, 1.0))

    @property
    def label(self) -> str:
        """The label in titles, with the probabilities of up to 8 arms."""
        if self.num_arms > 8:
            return f"{self.name}, {self.num_arms} arms"
        return f"{self.name}, means {', '.join(f'{mean:.4g}' for mean in self.means)}"

    @property
    def num_arms(self) -> int:
        """Number k of arms."""
        return len(self.means)

    @property
    def has_unit_rewards(self) -> bool:
        """True."""
        return True

    def plan(self, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import environments as parts

        means = np.array(self.means, np.float32)
        return KernelPlan(
            parts=(parts.start_stationary, parts.advance_bernoulli, parts.give_bernoulli_reward),
            parameters=(0.0, 0.0, 0.0, means.ctypes.data),
            arrays=(means,),
        )


@dataclass(frozen=True, kw_only=True)
class RandomWalk(KernelEnvironment):
    """True values start equal, and each takes an independent step N(0, `walk`²) at every step.

    Sutton & Barto 2018, exercise 2.5.
    """

    name: ClassVar[str] = "random-walk"
    num_arms: int = setting(10, low=2, high=MAX_ARMS, unit="arms")
    """Number k of arms, at least 2."""
    walk: float = setting(0.01, low=0, unit=REWARD_UNIT)
    """Standard deviation of a true value's step, at least 0."""
    start: float = setting(0.0, unit=REWARD_UNIT)
    """Initial true value of every arm."""
    noise: float = setting(1.0, low=0, unit=REWARD_UNIT)
    """Standard deviation of a reward, at least 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_resolution(self.name, "start", self.start, self.walk or self.noise)

    def plan(self, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import environments as parts

        return KernelPlan(
            parts=(parts.start_nothing, parts.advance_walk, parts.give_noisy_reward),
            parameters=tuple(map(float, (self.noise, self.start, self.walk))),
            is_nonstationary=True,
        )


@dataclass(frozen=True, kw_only=True)
class AbruptChange(KernelEnvironment):
    """The 10-armed testbed with new true values every `every` steps."""

    name: ClassVar[str] = "abrupt-change"
    num_arms: int = setting(10, low=2, high=MAX_ARMS, unit="arms")
    """Number k of arms, at least 2."""
    every: int = setting(500, low=1, high=2**31 - 1, unit="steps")
    """Number of steps between changes, 1 … 2³¹ − 1."""
    mean: float = setting(0.0, unit=REWARD_UNIT)
    """Mean of the true values."""
    spread: float = setting(1.0, low=0, unit=REWARD_UNIT)
    """Standard deviation of the true values, at least 0."""
    noise: float = setting(1.0, low=0, unit=REWARD_UNIT)
    """Standard deviation of a reward, at least 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_resolution(self.name, "mean", self.mean, max(self.spread, self.noise))

    def plan(self, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import environments as parts

        scales = map(float, (self.noise, self.mean, self.spread))
        return KernelPlan(
            parts=(parts.start_nothing, parts.advance_abrupt, parts.give_noisy_reward),
            parameters=(*scales, self.every),
            is_nonstationary=True,
            has_padding=True,  # values are drawn in groups of four
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Adversarial(KernelEnvironment):
    """Rewards are fixed in advance and the same in all runs.

    The optimal arm is the one with the largest sum of rewards over the played steps, the first of
    them after a tie. Regret is relative to this arm.

    Raises:
        ConfigError: `rewards` is no matrix of finite numbers, or has fewer than two arms.
    """

    name: ClassVar[str] = "adversarial"
    rewards: Array = field(repr=False)
    """Reward of each arm at each step: (T, k), stored as float32."""

    def __post_init__(self) -> None:
        try:
            rewards = np.array(self.rewards, np.float32, order="C")  # the layout that kernels read
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"`rewards` of {self.name} must be numbers, (T, k): {error}"
            ) from None
        if rewards.ndim != 2 or len(rewards) < 1 or not 2 <= rewards.shape[1] <= MAX_ARMS:
            raise ConfigError(
                f"`rewards` of {self.name} must have shape (T, k), one row per step and 2 to "
                f"{MAX_ARMS} columns, one for each arm, got {rewards.shape}"
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
        """Number k of arms."""
        return self.rewards.shape[1]

    def describe(self) -> dict[str, Any]:
        """Return the name and the matrix as JSON values."""
        return {"name": self.name, "rewards": self.rewards.tolist()}

    @property
    def label(self) -> str:
        """The label in titles."""
        return f"{self.name}, {len(self.rewards):,} steps, {self.num_arms} arms"

    @property
    def has_unit_rewards(self) -> bool:
        """Whether all rewards lie in [0, 1]."""
        return bool(self.rewards.min() >= 0 and self.rewards.max() <= 1)

    def plan(self, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import environments as parts

        matrix = self.rewards
        if len(matrix) < num_steps:
            raise ConfigError(
                f"`rewards` has {len(matrix):,} steps, fewer than `num_steps`, {num_steps:,}: "
                "add rows, or lower `num_steps`"
            )
        best = int(matrix[:num_steps].sum(axis=0, dtype=np.float64).argmax())
        return KernelPlan(
            parts=(parts.start_adversarial, parts.advance_adversarial, parts.give_noisy_reward),
            parameters=(0.0, 0.0, 0.0, matrix.ctypes.data, best),
            arrays=(matrix,),
            is_nonstationary=True,
        )


@dataclass(frozen=True, kw_only=True)
class LinearContextual(KernelEnvironment):
    """Every step has a context x and every arm an unknown θ. True values are x·θ.

    x ~ N(0, I) is drawn at every step and θ_a ~ N(0, I / d) for every run. Rewards are
    N(x·θ_a, `noise`²). The disjoint linear model of Li et al. 2010, arXiv:1003.0146, section 3.1.
    """

    name: ClassVar[str] = "linear-contextual"
    has_contexts: ClassVar[bool] = True
    num_arms: int = setting(10, low=2, high=MAX_ARMS, unit="arms")
    """Number k of arms, at least 2."""
    dimension: int = setting(5, low=1, high=64, unit="components")
    """Length d of a context, from 1 to 64."""
    noise: float = setting(0.1, low=0, unit=REWARD_UNIT)
    """Standard deviation of a reward, at least 0."""

    def plan(self, num_steps: int) -> KernelPlan:
        from hotloop.bandits.kernels import environments as parts

        groups = (self.dimension + 3) // 4
        return KernelPlan(
            parts=(parts.start_contextual, parts.advance_contextual, parts.give_noisy_reward),
            parameters=(float(self.noise), 0.0, self.dimension**-0.5),
            state_bytes=16 * LANES * groups * self.num_arms,
            is_nonstationary=True,
        )


Environment: TypeAlias = Any  # one of these, a JittedEnvironment or a user's object

ENVIRONMENTS: dict[str, Any] = {
    cls.name: cls
    for cls in (GaussianRewards, Bernoulli, RandomWalk, AbruptChange, Adversarial, LinearContextual)
}
"""Environment classes by their names in commands."""
