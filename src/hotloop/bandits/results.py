"""Results: sums over runs, and the means, standard errors and curves computed from them.

A curve has P points, each the mean of `steps_per_point` steps. An environment has k arms.
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
from hotloop.bandits.parsing import make_agent, make_environment
from hotloop.bandits.run_settings import make_settings
from hotloop.base.files import atomic_write, read_regular
from hotloop.base.rounding import format_mean
from hotloop.errors import BanditError, ConfigError, nearest, shortened
from hotloop.types import Array

FORMAT = 1
# The quantities of a run, in the order of `RunSums.totals`.
QUANTITIES = ("mean_reward", "mean_optimal", "final_regret", "late_reward", "late_optimal")


class MeanEstimate(NamedTuple):
    """A mean over runs and its standard error."""

    mean: float
    se: float

    def __str__(self) -> str:
        return format_mean(self.mean, self.se)

    def to_dict(self) -> dict[str, float | None]:
        """Return the estimate as JSON values, with NaN as null."""
        return {"mean": _finite_or_none(self.mean), "se": _finite_or_none(self.se)}


@dataclass(frozen=True, kw_only=True)
class RunSums:
    """Sums over runs. Their size does not depend on the number of runs.

    Attributes:
        num_runs: number of runs.
        curve: float64, (6, P): sums over runs of reward, reward², optimal, optimal² (a run's means
            over the point's steps), regret, regret² (cumulative at the point's last step).
        totals: float64, (2, 5): sums and sums of squares of `QUANTITIES`.
        arm_pulls: int64, (P, k): number of pulls of each arm within the point's steps. None if they
            were not counted.
    """

    num_runs: int
    curve: Array
    totals: Array
    arm_pulls: Array | None = None

    def __add__(self, later: RunSums) -> RunSums:
        """Return the sums over both. Add in the order of runs to get the same bits."""
        pulls = None
        if self.arm_pulls is not None and later.arm_pulls is not None:
            pulls = self.arm_pulls + later.arm_pulls
        return RunSums(
            num_runs=self.num_runs + later.num_runs,
            curve=self.curve + later.curve,
            totals=self.totals + later.totals,
            arm_pulls=pulls,
        )

    def to_bytes(self) -> bytes:
        """Return a header of 4 int64 (format, runs, points, arms) and the arrays, little-endian."""
        num_arms = 0 if self.arm_pulls is None else self.arm_pulls.shape[1]
        header = np.array([FORMAT, self.num_runs, self.curve.shape[1], num_arms], "<i8")
        parts = [header, self.curve.astype("<f8"), self.totals.astype("<f8")]
        if self.arm_pulls is not None:
            parts.append(self.arm_pulls.astype("<i8"))
        return b"".join(part.tobytes() for part in parts)

    @classmethod
    def from_bytes(cls, stored: bytes) -> RunSums:
        """Return the sums that `to_bytes` serialized.

        Raises:
            BanditError: The bytes are cut short, or have another format.
        """
        header = np.frombuffer(stored[:32], "<i8") if len(stored) >= 32 else np.zeros(4, "<i8")
        version, num_runs, points, num_arms = (int(word) for word in header)
        size = 32 + 8 * (6 * points + 10 + num_arms * points)
        if version != FORMAT or len(stored) != size or min(num_runs, points) < 1:
            raise BanditError(
                f"expected sums of format {FORMAT}, got {len(stored)} bytes of format {version}"
                f"{f' instead of {size} bytes' if version == FORMAT else ''}: they are cut short "
                "or from another version of hotloop; compute them again"
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
    """Return means and standard errors from sums. The error of a single run is NaN."""
    mean = total / num
    if num < 2:
        return mean, np.full_like(mean, math.nan)
    variance = np.maximum(squares - total * mean, 0.0) / (num - 1)
    variance = np.where(variance < 1e-14 * squares / num, 0.0, variance)  # drop rounding errors
    return mean, np.sqrt(variance / num)


@dataclass(frozen=True, kw_only=True)
class BanditResult:
    """The result of one agent in one environment, over many runs.

    Attributes:
        agent: the agent.
        environment: its environment.
        seed: seed of all random numbers.
        num_runs: number of independent runs.
        num_steps: steps of each run.
        steps_per_point: steps that each point of a curve averages over.
        late_steps: number of last steps that `late_reward` and `late_optimal` average over.
        sums: the sums that all estimates and curves are computed from.
        final_regrets: float64, (runs,): final regret of the first runs, at most 8192, for plots of
            its distribution.
        elapsed_s: seconds of playing, divided evenly between the agents of a comparison.
        prepare_s: seconds before that for compiling kernels or loading compiled ones.
    """

    agent: Agent
    environment: Environment
    seed: int
    num_runs: int
    num_steps: int
    steps_per_point: int
    late_steps: int
    sums: RunSums = field(repr=False)
    final_regrets: Array = field(default_factory=lambda: np.empty(0), repr=False)
    elapsed_s: float = math.nan
    prepare_s: float = math.nan

    @classmethod
    def from_sums(cls, sums: RunSums, **attributes: Any) -> BanditResult:
        """Return a result with these sums and the other attributes."""
        return cls(sums=sums, num_runs=sums.num_runs, **attributes)

    @property
    def step(self) -> Array:
        """Last step of each point, counted from 1: int64, (P,)."""
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
        """Share (0 … 1) of each point's steps with an optimal arm: float64, (P,)."""
        return self._curve(2)[0]

    @property
    def optimal_se(self) -> Array:
        """Standard error of `optimal`."""
        return self._curve(2)[1]

    @property
    def regret(self) -> Array:
        """Cumulative regret in true values up to each point's last step: float64, (P,)."""
        return self._curve(4)[0]

    @property
    def regret_se(self) -> Array:
        """Standard error of `regret`."""
        return self._curve(4)[1]

    def estimate(self, quantity: str) -> MeanEstimate:
        """Return the estimate of one of `QUANTITIES`.

        Raises:
            BanditError: There is no such quantity.
        """
        row = _quantity_row(quantity)
        total, squares = self.sums.totals[:, row : row + 1]
        mean, se = _mean_and_error(total, squares, self.num_runs)
        return MeanEstimate(float(mean[0]), float(se[0]))

    @property
    def mean_reward(self) -> MeanEstimate:
        """A run's mean reward over all its steps."""
        return self.estimate("mean_reward")

    @property
    def mean_optimal(self) -> MeanEstimate:
        """A run's share of optimal steps."""
        return self.estimate("mean_optimal")

    @property
    def final_regret(self) -> MeanEstimate:
        """A run's cumulative regret at its end."""
        return self.estimate("final_regret")

    @property
    def late_reward(self) -> MeanEstimate:
        """A run's mean reward over its last `late_steps` steps."""
        return self.estimate("late_reward")

    @property
    def late_optimal(self) -> MeanEstimate:
        """A run's share of optimal steps among its last `late_steps` steps."""
        return self.estimate("late_optimal")

    @property
    def arm_share(self) -> Array | None:
        """Each arm's share of pulls within each point's steps: float64, (P, k), or None."""
        pulls = self.sums.arm_pulls
        return None if pulls is None else pulls / pulls.sum(axis=1, keepdims=True)

    @property
    def ns_per_step(self) -> float:
        """Nanoseconds of wall time per run and step."""
        return self.elapsed_s * 1e9 / (self.num_runs * self.num_steps)

    def _environment_summary(self) -> dict[str, Any]:
        summary = dict(self.environment.describe())
        if "rewards" in summary:  # a matrix of any size
            summary["rewards"] = (
                f"{len(self.environment.rewards)} steps, {self.environment.num_arms} arms"
            )
        return summary

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Return settings, estimates, and optionally curves as JSON values, with NaN as null."""
        content: dict[str, Any] = {
            "agent": self.agent.describe(),
            "environment": self._environment_summary(),
            **{name: getattr(self, name) for name in _SETTINGS},
            "elapsed_s": _finite_or_none(self.elapsed_s),
            "prepare_s": _finite_or_none(self.prepare_s),
            "ns_per_step": _finite_or_none(self.ns_per_step),
        }
        content |= {quantity: self.estimate(quantity).to_dict() for quantity in QUANTITIES}
        if curves:
            content["step"] = self.step.tolist()
            for name in ("reward", "optimal", "regret"):
                for key in (name, f"{name}_se"):
                    content[key] = [_finite_or_none(value) for value in getattr(self, key).tolist()]
            if self.arm_share is not None:
                content["arm_share"] = self.arm_share.tolist()
        return content

    def save(self, path: str | Path) -> Path:
        """Write the result to one .npz file.

        Raises:
            OutputError: The file can't be written. An existing file does not change.
            BanditError: Agent or environment are user-defined and can't be stored.
        """
        path = Path(path)
        header = {"format": FORMAT, "agent": self.agent.describe()}
        header["environment"] = self.environment.describe()
        for kind in ("agent", "environment"):
            if "own" in header[kind]:
                raise BanditError(
                    f"the {kind} '{header[kind]['name']}' is user-defined and can't be stored: "
                    "store `result.sums.to_bytes()` and create the result from it with "
                    "`BanditResult.from_sums`"
                )
        header |= {name: getattr(self, name) for name in (*_SETTINGS, *_TIMES)}
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            np.savez(
                file,
                about=np.frombuffer(json.dumps(header).encode(), np.uint8),
                sums=np.frombuffer(self.sums.to_bytes(), np.uint8),
                final_regrets=self.final_regrets,
            )
        return path

    @classmethod
    def load(cls, path: str | Path) -> BanditResult:
        """Return the result in a file that `save` wrote.

        Raises:
            BanditError: The file is missing, cut short, or of another kind or version.
        """
        try:
            with np.load(io.BytesIO(read_regular(Path(path))), allow_pickle=False) as file:
                header = json.loads(file["about"].tobytes())
                sums, regrets = file["sums"].tobytes(), file["final_regrets"]
        except FileNotFoundError:
            raise BanditError(
                f"there is no file {path}: pass the path of a file that `save` wrote"
            ) from None
        except Exception as error:  # zipfile and zlib raise any exception for wrong bytes
            reason = str(error).split("\n")[0]  # NumPy's next lines contain unsafe advice
            raise BanditError(
                f"{path} is no result of `hotloop bandit run --save`, or it is cut short "
                f"({reason}): run it again"
            ) from error
        if not isinstance(header, dict) or "format" not in header:
            raise BanditError(f"{path} is no result of `hotloop bandit run --save`: run it again")
        if header["format"] != FORMAT:
            raise BanditError(
                f"{path} is a result of format {shortened(str(header['format']))}, this version "
                f"of hotloop reads {FORMAT}: run it again"
            )
        try:
            result = cls(
                sums=RunSums.from_bytes(sums),
                agent=_rebuild(make_agent, header["agent"]),
                environment=_rebuild(make_environment, header["environment"]),
                final_regrets=regrets,
                **{name: header[name] for name in (*_SETTINGS, *_TIMES)},
            )
            result._check_fit()
            return result
        except Exception as error:  # the file may have any content
            reason = shortened(str(error))
            raise BanditError(
                f"{path} was changed, or is from another version of hotloop ({reason}): run it "
                "again"
            ) from error

    def _check_fit(self) -> None:
        """Raise ConfigError if the attributes do not match the arrays."""
        sums = self.sums
        settings = make_settings(self.seed, self.num_steps, self.late_steps, self.steps_per_point)
        for name in _TIMES:
            if not isinstance(getattr(self, name), (int, float)):
                raise ConfigError(f"`{name}` must be a number, got {getattr(self, name)!r}")
        for name, value, stored in (
            ("num_runs", self.num_runs, sums.num_runs),
            ("num_points", settings.num_points, sums.curve.shape[1]),
        ):
            if value != stored:
                raise ConfigError(f"`{name}` is {value}, but the sums have {stored}")
        arms = self.environment.num_arms
        if sums.arm_pulls is not None and sums.arm_pulls.shape[1] != arms:
            raise ConfigError(
                f"`num_arms` is {arms}, but the sums have {sums.arm_pulls.shape[1]} arms"
            )
        regrets = self.final_regrets
        if regrets.dtype != float or regrets.ndim != 1 or len(regrets) > self.num_runs:
            raise ConfigError(
                f"`final_regrets` must be float64, one per run, got {regrets.dtype} "
                f"{regrets.shape} for {self.num_runs} runs"
            )


_TIMES = ("elapsed_s", "prepare_s")
_SETTINGS = ("seed", "num_runs", "num_steps", "steps_per_point", "late_steps")


@dataclass(frozen=True, kw_only=True)
class BanditComparison:
    """Results of several agents on the same random numbers.

    Attributes:
        results: one result per agent, in order.
        products: float64, (agents, agents, 5): sums over runs of the products of two agents'
            quantities, for paired differences.
        elapsed_s: seconds of playing, for all agents together.
        prepare_s: seconds before that for compiling kernels or loading compiled ones.
    """

    results: tuple[BanditResult, ...]
    products: Array = field(repr=False)
    elapsed_s: float = math.nan
    prepare_s: float = math.nan

    def difference(self, agent: int, baseline: int, quantity: str = "mean_reward") -> MeanEstimate:
        """Return the mean difference of a quantity, `agent` minus `baseline`, paired run by run.

        Both arguments are indices of `results`. Both agents had the same true values and noise, so
        this standard error is usually far below that of two independent means.

        Raises:
            BanditError: There is no such quantity.
        """
        row, num = _quantity_row(quantity), self.results[agent].num_runs
        totals = [self.results[index].sums.totals[0, row] for index in (agent, baseline)]
        squares = self.products[agent, agent, row] + self.products[baseline, baseline, row]
        squares = np.array([squares - 2 * self.products[agent, baseline, row]])
        mean, se = _mean_and_error(np.array([totals[0] - totals[1]]), squares, num)
        return MeanEstimate(float(mean[0]), float(se[0]))

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Return results and differences to the first agent as JSON values."""
        results = []
        for index, result in enumerate(self.results):
            content = result.to_dict(curves=curves)
            content["difference_to_first"] = {
                quantity: self.difference(index, 0, quantity).to_dict() for quantity in QUANTITIES
            }
            results.append(content)
        return {
            "elapsed_s": _finite_or_none(self.elapsed_s),
            "prepare_s": _finite_or_none(self.prepare_s),
            "results": results,
        }


def _rebuild(make: Callable[[str, dict[str, Any]], Any], description: Mapping[str, Any]) -> Any:
    """Return the agent or environment whose `describe` returned this description."""
    settings = {**description}
    return make(settings.pop("name"), settings)


def _quantity_row(quantity: str) -> int:
    if quantity not in QUANTITIES:
        raise BanditError(
            f"a quantity must be one of {', '.join(QUANTITIES)}, got '{quantity}'"
            + nearest(quantity, QUANTITIES)
        )
    return QUANTITIES.index(quantity)


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
