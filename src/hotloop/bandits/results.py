"""Results: sums over runs, and the means, standard errors and curves made from them.

A curve has P points, each the mean of `steps_per_point` steps; an environment has k arms.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hotloop.bandits.agents import Agent
from hotloop.bandits.environments import Environment
from hotloop.bandits.options import agent_from, environment_from
from hotloop.errors import BanditError, ConfigError, UnknownNameError, nearest
from hotloop.system.files import written_whole
from hotloop.types import Array

FORMAT = 1
# What is kept of every run at its end, by row of `Sums.totals`.
QUANTITIES = ("mean_reward", "mean_optimal", "final_regret", "late_reward", "late_optimal")


class Estimate(NamedTuple):
    """A mean over runs and its standard error."""

    mean: float
    se: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.se:.2g}"

    def to_dict(self) -> dict[str, float | None]:
        """What JSON can hold: NaN as null."""
        return {"mean": _finite(self.mean), "se": _finite(self.se)}


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What is added up over runs; as large for a million of them as for one.

    Attributes:
        num_runs: how many runs are in it.
        curve: float64, (6, P): over runs, the sums of reward, reward², optimal, optimal² (a run's
            means over the point's steps), regret, regret² (cumulative at the point's last step).
        totals: float64, (2, 5): the sums and the sums of squares of `QUANTITIES`.
        arm_pulls: int64, (P, k): how often each arm was taken within the point's steps; None if
            that was not asked for.
    """

    num_runs: int
    curve: Array
    totals: Array
    arm_pulls: Array | None = None

    def __add__(self, later: Sums) -> Sums:
        """The sums over both; bit for bit the same only if always folded in the order of runs."""
        pulls = None
        if self.arm_pulls is not None and later.arm_pulls is not None:
            pulls = self.arm_pulls + later.arm_pulls
        return Sums(
            num_runs=self.num_runs + later.num_runs,
            curve=self.curve + later.curve,
            totals=self.totals + later.totals,
            arm_pulls=pulls,
        )

    def to_bytes(self) -> bytes:
        """A header of four int64 (format, runs, points, arms), then the arrays; little-endian."""
        num_arms = 0 if self.arm_pulls is None else self.arm_pulls.shape[1]
        header = np.array([FORMAT, self.num_runs, self.curve.shape[1], num_arms], "<i8")
        parts = [header, self.curve.astype("<f8"), self.totals.astype("<f8")]
        if self.arm_pulls is not None:
            parts.append(self.arm_pulls.astype("<i8"))
        return b"".join(part.tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, stored: bytes) -> Sums:
        """What `to_bytes` gave.

        Raises:
            BanditError: the bytes are cut short, or of another layout.
        """
        header = np.frombuffer(stored[:32], "<i8") if len(stored) >= 32 else np.zeros(4, "<i8")
        version, num_runs, points, num_arms = (int(word) for word in header)
        size = 32 + 8 * (6 * points + 10 + num_arms * points)
        if version != FORMAT or len(stored) != size or min(num_runs, points) < 1:
            raise BanditError(
                f"sums of format {FORMAT} were expected, got {len(stored)} bytes of format "
                f"{version}{f', of which {size} should be there' if version == FORMAT else ''}: "
                "they are cut short or of another version of hotloop; compute them again"
            )
        numbers = np.frombuffer(stored, "<f8", 6 * points + 10, 32)
        pulls = None
        if num_arms:
            pulls = np.frombuffer(stored, "<i8", num_arms * points, 32 + 8 * (6 * points + 10))
            pulls = pulls.reshape(points, num_arms).copy()
        return cls(
            num_runs=num_runs,
            curve=numbers[: 6 * points].reshape(6, points).copy(),
            totals=numbers[6 * points :].reshape(2, 5).copy(),
            arm_pulls=pulls,
        )


def _mean_and_error(total: Array, squares: Array, num: int) -> tuple[Array, Array]:
    """Means and their standard errors from sums; the error of a single run is NaN."""
    mean = total / num
    if num < 2:
        return mean, np.full_like(mean, math.nan)
    variance = np.maximum(squares - total * mean, 0.0) / (num - 1)
    variance = np.where(variance < 1e-14 * squares / num, 0.0, variance)  # what rounding leaves
    return mean, np.sqrt(variance / num)


class Estimates:
    """The estimates over runs, by their names."""

    def estimate(self, quantity: str) -> Estimate:
        """One of `QUANTITIES`."""
        raise NotImplementedError

    @property
    def mean_reward(self) -> Estimate:
        """A run's mean reward over all its steps."""
        return self.estimate("mean_reward")

    @property
    def mean_optimal(self) -> Estimate:
        """A run's share of optimal steps."""
        return self.estimate("mean_optimal")

    @property
    def final_regret(self) -> Estimate:
        """A run's cumulative regret at its end."""
        return self.estimate("final_regret")

    @property
    def late_reward(self) -> Estimate:
        """A run's mean reward over its last `late_steps` steps."""
        return self.estimate("late_reward")

    @property
    def late_optimal(self) -> Estimate:
        """A run's share of optimal steps among its last `late_steps`."""
        return self.estimate("late_optimal")


@dataclass(frozen=True, kw_only=True)
class Result(Estimates):
    """One agent in one environment, over many runs.

    Attributes:
        agent: what played.
        environment: where.
        seed: of all random numbers.
        num_runs: independent runs.
        num_steps: steps of each.
        steps_per_point: how many steps a point of a curve is the mean of.
        late_steps: the steps at the end that `late_reward` and `late_optimal` are taken over.
        sums: what everything else is made from.
        final_regrets: float64, the regret of the first runs at their end (8192 of them at most),
            for their distribution.
        elapsed_s: seconds that playing took; several agents share theirs evenly.
        prepare_s: seconds before that: compiling, or loading what was compiled.
    """

    agent: Agent
    environment: Environment
    seed: int
    num_runs: int
    num_steps: int
    steps_per_point: int
    late_steps: int
    sums: Sums = field(repr=False)
    final_regrets: Array = field(default_factory=lambda: np.empty(0), repr=False)
    elapsed_s: float = math.nan
    prepare_s: float = math.nan

    @classmethod
    def from_sums(cls, sums: Sums, **about: Any) -> Result:
        """A result from sums that were kept, `about` being the other attributes."""
        return cls(sums=sums, num_runs=sums.num_runs, **about)

    @property
    def step(self) -> Array:
        """The last step of each point, counted from 1: int64, (P,)."""
        ends = np.arange(1, self.sums.curve.shape[1] + 1) * self.steps_per_point
        return np.minimum(ends, self.num_steps)

    def _curve(self, row: int) -> tuple[Array, Array]:
        return _mean_and_error(self.sums.curve[row], self.sums.curve[row + 1], self.num_runs)

    @property
    def reward(self) -> Array:
        """Mean reward of each point: float64, (P,)."""
        return self._curve(0)[0]

    @property
    def reward_se(self) -> Array:
        """Standard error of `reward`."""
        return self._curve(0)[1]

    @property
    def optimal(self) -> Array:
        """Share (0 … 1) of each point's steps that took an optimal arm: float64, (P,)."""
        return self._curve(2)[0]

    @property
    def optimal_se(self) -> Array:
        """Standard error of `optimal`."""
        return self._curve(2)[1]

    @property
    def regret(self) -> Array:
        """Cumulative regret, of true values, up to each point's last step: float64, (P,)."""
        return self._curve(4)[0]

    @property
    def regret_se(self) -> Array:
        """Standard error of `regret`."""
        return self._curve(4)[1]

    def estimate(self, quantity: str) -> Estimate:
        """One of `QUANTITIES`, over runs.

        Raises:
            BanditError: there is no such quantity.
        """
        row = _row(quantity)
        total, squares = self.sums.totals[:, row : row + 1]
        mean, se = _mean_and_error(total, squares, self.num_runs)
        return Estimate(float(mean[0]), float(se[0]))

    @property
    def arm_share(self) -> Array | None:
        """Share of pulls that each arm got within each point's steps: float64, (P, k)."""
        pulls = self.sums.arm_pulls
        return None if pulls is None else pulls / pulls.sum(axis=1, keepdims=True)

    @property
    def ns_per_step(self) -> float:
        """Nanoseconds a run and step, on the clock."""
        return self.elapsed_s * 1e9 / (self.num_runs * self.num_steps)

    def _environment_in_short(self) -> dict[str, Any]:
        about = dict(self.environment.describe())
        if "rewards" in about:  # a matrix of any size
            about["rewards"] = (
                f"{len(self.environment.rewards)} steps, {self.environment.num_arms} arms"
            )
        return about

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """What JSON can hold: settings and estimates, NaN as null; the curves too if asked for."""
        about: dict[str, Any] = {
            "agent": self.agent.describe(),
            "environment": self._environment_in_short(),
            **{name: getattr(self, name) for name in _SETTINGS},
            "elapsed_s": _finite(self.elapsed_s),
            "prepare_s": _finite(self.prepare_s),
            "ns_per_step": _finite(self.ns_per_step),
        }
        about |= {quantity: self.estimate(quantity).to_dict() for quantity in QUANTITIES}
        if curves:
            about["step"] = self.step.tolist()
            for name in ("reward", "optimal", "regret"):
                for full in (name, f"{name}_se"):
                    about[full] = [_finite(value) for value in getattr(self, full).tolist()]
            if self.arm_share is not None:
                about["arm_share"] = self.arm_share.tolist()
        return about

    def save(self, path: str | Path) -> Path:
        """Write everything to one .npz file.

        Raises:
            OutputError: it can't be written; what was there before stays.
            BanditError: agent or environment are a user's own, which no file can hold.
        """
        path = Path(path)
        about = {"format": FORMAT, "agent": self.agent.describe()}
        about["environment"] = self.environment.describe()
        for kind in ("agent", "environment"):
            if "own" in about[kind]:
                raise BanditError(
                    f"the {kind} '{about[kind]['name']}' is your own, which a file can't hold: "
                    "keep `result.sums.to_bytes()` and make the result from it with "
                    "`Result.from_sums`"
                )
        about |= {name: getattr(self, name) for name in (*_SETTINGS, *_TIMES)}
        with written_whole(path) as aside, open(aside, "wb") as file:
            np.savez(
                file,
                about=np.frombuffer(json.dumps(about).encode(), np.uint8),
                sums=np.frombuffer(self.sums.to_bytes(), np.uint8),
                final_regrets=self.final_regrets,
            )
        return path

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """What `save` wrote.

        Raises:
            BanditError: there is no such file, or it is cut short, of another kind or version.
        """
        try:
            with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as file:
                about = json.loads(file["about"].tobytes())
                sums, regrets = file["sums"].tobytes(), file["final_regrets"]
        except FileNotFoundError:
            raise BanditError(f"there is no file {path}: name one that `save` wrote") from None
        except Exception as error:  # zipfile and zlib raise of any kind where bytes are wrong
            raise BanditError(
                f"{path} is no result of `hotloop bandit run --save`, or it is cut short "
                f"({error}): run it again"
            ) from error
        if not isinstance(about, dict) or "format" not in about:
            raise BanditError(f"{path} is no result of `hotloop bandit run --save`: run it again")
        if about["format"] != FORMAT:
            raise BanditError(
                f"{path} is a result of format {about['format']}, this version of hotloop "
                f"reads {FORMAT}: run it again"
            )
        try:
            result = cls(
                sums=Sums.from_bytes(sums),
                agent=_described(agent_from, about["agent"]),
                environment=_described(environment_from, about["environment"]),
                final_regrets=regrets,
                **{name: about[name] for name in (*_SETTINGS, *_TIMES)},
            )
            result._check_fit()
            return result
        except (KeyError, TypeError, ConfigError, UnknownNameError) as error:
            raise BanditError(
                f"{path} was changed, or is of another version of hotloop ({error}): run it again"
            ) from error

    def _check_fit(self) -> None:
        """Whether what a file says of a result fits its arrays."""
        sums, points = self.sums, self.sums.curve.shape[1]
        for name in _SETTINGS:
            if not isinstance(getattr(self, name), int):
                raise ConfigError(f"`{name}` must be a whole number, got {getattr(self, name)!r}")
        for name in _TIMES:
            if not isinstance(getattr(self, name), (int, float)):
                raise ConfigError(f"`{name}` must be a number, got {getattr(self, name)!r}")
        if self.num_runs != sums.num_runs:
            raise ConfigError(f"`num_runs` is {self.num_runs}, its sums are of {sums.num_runs}")
        if self.steps_per_point < 1 or -(-self.num_steps // self.steps_per_point) != points:
            raise ConfigError(
                f"`num_steps` is {self.num_steps}, `steps_per_point` {self.steps_per_point}, its "
                f"sums are of {points} points"
            )
        if not 1 <= self.late_steps <= self.num_steps:
            raise ConfigError(f"`late_steps` is {self.late_steps} of {self.num_steps} steps")
        arms = self.environment.num_arms
        if sums.arm_pulls is not None and sums.arm_pulls.shape[1] != arms:
            raise ConfigError(
                f"`num_arms` is {arms}, its sums are of {sums.arm_pulls.shape[1]} arms"
            )
        regrets = self.final_regrets
        if regrets.dtype != float or regrets.ndim != 1 or len(regrets) > self.num_runs:
            raise ConfigError(
                f"`final_regrets` must be float64, one for a run, got {regrets.dtype} "
                f"{regrets.shape} for {self.num_runs} runs"
            )


_TIMES = ("elapsed_s", "prepare_s")
_SETTINGS = ("seed", "num_runs", "num_steps", "steps_per_point", "late_steps")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several agents on the same random numbers.

    Attributes:
        results: one for each agent, in order.
        products: float64, (agents, agents, 5): the sums over runs of the products of two agents'
            quantities, which a paired difference needs.
        elapsed_s: seconds that all took together.
        prepare_s: seconds before that: compiling, or loading what was compiled.
    """

    results: tuple[Result, ...]
    products: Array = field(repr=False)
    elapsed_s: float = math.nan
    prepare_s: float = math.nan

    def difference(self, one: int, other: int, quantity: str = "mean_reward") -> Estimate:
        """How much more of a quantity agent `one` got than agent `other`, run by run.

        Both met the same rewards' noise and the same true values, so this standard error is mostly
        far below that of two independent means.

        Raises:
            BanditError: there is no such quantity.
        """
        row, num = _row(quantity), self.results[one].num_runs
        totals = [self.results[which].sums.totals[0, row] for which in (one, other)]
        squares = self.products[one, one, row] + self.products[other, other, row]
        squares = np.array([squares - 2 * self.products[one, other, row]])
        mean, se = _mean_and_error(np.array([totals[0] - totals[1]]), squares, num)
        return Estimate(float(mean[0]), float(se[0]))

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """What JSON can hold; the differences are those to the first agent."""
        results = []
        for index, result in enumerate(self.results):
            about = result.to_dict(curves=curves)
            about["difference_to_first"] = {
                quantity: self.difference(index, 0, quantity).to_dict() for quantity in QUANTITIES
            }
            results.append(about)
        return {
            "elapsed_s": _finite(self.elapsed_s),
            "prepare_s": _finite(self.prepare_s),
            "results": results,
        }


def _described(make: Callable[[str, dict[str, Any]], Any], description: Mapping[str, Any]) -> Any:
    """The agent or the environment whose `describe()` gave this."""
    settings = {**description}
    return make(settings.pop("name"), settings)


def _row(quantity: str) -> int:
    if quantity not in QUANTITIES:
        raise BanditError(
            f"a quantity must be one of {', '.join(QUANTITIES)}, got '{quantity}'"
            + nearest(quantity, QUANTITIES)
        )
    return QUANTITIES.index(quantity)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
