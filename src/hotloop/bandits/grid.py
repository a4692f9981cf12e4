"""A grid: one kind of agent in one kind of environment, over ranges of their settings.

What is computed goes into one SQLite file (`grid_file`), so a grid that was stopped, or killed,
goes on where it was, and more runs are added to what is there. A point's numbers are the same bits
however the work was divided.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from hotloop.bandits.agents import AGENTS, Agent
from hotloop.bandits.environments import ENVIRONMENTS, Environment
from hotloop.bandits.grid_file import GridFile, Piece
from hotloop.bandits.options import agent_from, environment_from, value_of
from hotloop.bandits.plans import plan_agent, plan_environment
from hotloop.bandits.results import QUANTITIES, Estimate, Result, Sums
from hotloop.bandits.running import (
    CHUNK,
    KERNEL_VERSION,
    MAX_RUNS,
    available_cores,
    chunk_sums,
    settings_from,
    whole,
)
from hotloop.errors import ConfigError, HotloopError, MissingExtraError
from hotloop.files import written_whole

MAX_VALUES, MAX_POINTS = 10_000, 100_000
ENV = "env."  # before an environment's field: agents have fields of the same names

# Points a job. They share the random numbers: in a random walk a run and step costs each of eight
# 15 ns, and one alone 50.
_MAX_GROUP = 8
_JOB_S = 30.0  # a job that would take longer has fewer points: it is what a kill can cost
_COMMIT_S = 0.25
_GRACE_S = 2.0  # for jobs that are under way when a grid is stopped

_RANGES = "list values as 0.01,0.1, steps as 0.1:0.5:0.1, factors as 2**-7:2**-2:x2"


def values_from(name: str, text: str) -> list[int | float | bool | None]:
    """The values that a range stands for.

    Args:
        name: of the field, for messages.
        text: values with commas between them ("none,0.1"), each of which may be first:last:step
            ("0.1:0.5:0.1") or first:last:xfactor ("2**-7:2**-2:x2"). The last is among them where a
            whole number of steps leads there.

    Raises:
        ConfigError: it is written wrongly, or stands for more than 10,000 values.
    """
    values: list[int | float | bool | None] = []
    try:
        for part in text.split(","):
            if not part.strip():
                raise ConfigError("a value is missing")
            values += _progression(part) if ":" in part else [value_of(part)]
    except ConfigError as error:
        raise ConfigError(f"`{name}={text}` is no range: {error}; {_RANGES}") from None
    return values


def _progression(text: str) -> list[int | float | bool | None]:
    ends = text.split(":")
    if len(ends) != 3:
        raise ConfigError(f"`{text}` must have three parts, first:last:step")
    is_geometric = ends[2].strip().lower().startswith("x")
    ends[2] = ends[2].strip()[1:] if is_geometric else ends[2]
    first, last, step = (_exact(end) for end in ends)
    if is_geometric:
        if first * last <= 0 or step <= 0 or step == 1:
            raise ConfigError(f"`{text}` needs ends of one sign, and a factor above 0 but 1")
        num = math.log(last / first) / math.log(step)
    else:
        if step == 0:
            raise ConfigError(f"the step of `{text}` is 0")
        num = float((last - first) / step)
    if num < -1e-9:
        raise ConfigError(f"`{text}` leads away from its end")
    if num >= MAX_VALUES:
        raise ConfigError(f"`{text}` stands for more than {MAX_VALUES:,} values")
    # Exact until here: 0.1 + 2·0.1 is then the very 0.3 that a list would have.
    steps = range(math.floor(num + 1e-9) + 1)
    exact = [first * step**one if is_geometric else first + step * one for one in steps]
    are_whole = all(isinstance(value_of(end), int) for end in ends)
    return [int(value) if are_whole else float(value) for value in exact]


def _exact(text: str) -> Fraction:
    """The number that was written: 0.1, where a float is 0.1000000000000000055…"""
    value: Any = value_of(text)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (is_number and abs(value) < 1e308):
        raise ConfigError(f"a range is made of finite numbers, got '{text}'")
    try:
        return Fraction(text.strip() if value else 0)  # "1e-999999999" has a billion digits
    except ValueError:  # a power
        return Fraction(value)


@dataclass(frozen=True, kw_only=True)
class GridProgress:
    """Where a grid stands.

    Attributes:
        points: how many of `all_points` have all their runs.
        all_points: the grid's.
        run_steps: runs × steps that are there, of `all_run_steps`.
        all_run_steps: runs × steps of all points.
        kept_run_steps: those among `run_steps` that were in the file already.
        elapsed_s: seconds since the grid began.
    """

    points: int
    all_points: int
    run_steps: int
    all_run_steps: int
    kept_run_steps: int
    elapsed_s: float

    @property
    def steps_per_s(self) -> float:
        """Runs × steps computed per second, so far."""
        return (self.run_steps - self.kept_run_steps) / max(self.elapsed_s, 1e-9)

    @property
    def left_s(self) -> float:
        """Seconds that the rest takes at this rate; NaN before anything is known."""
        left = self.all_run_steps - self.run_steps
        return left / self.steps_per_s if self.steps_per_s > 0 else (math.nan if left else 0.0)


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """A point of a grid, and what came of it.

    Attributes:
        settings: the fields that were given, an environment's as "env.walk"; JSON values.
        config: the point in full, as the file has it; JSON values.
        result: estimates and curves.
    """

    settings: dict[str, Any]
    config: dict[str, Any]
    result: Result

    @property
    def agent(self) -> Agent:
        """Who played."""
        return self.result.agent

    @property
    def environment(self) -> Environment:
        """Where."""
        return self.result.environment

    @property
    def mean_reward(self) -> Estimate:
        """A run's mean reward over all its steps."""
        return self.result.mean_reward

    @property
    def mean_optimal(self) -> Estimate:
        """A run's share of optimal steps."""
        return self.result.mean_optimal

    @property
    def final_regret(self) -> Estimate:
        """A run's cumulative regret at its end."""
        return self.result.final_regret

    @property
    def late_reward(self) -> Estimate:
        """A run's mean reward over its last `late_steps` steps."""
        return self.result.late_reward

    @property
    def late_optimal(self) -> Estimate:
        """A run's share of optimal steps among its last `late_steps`."""
        return self.result.late_optimal


@dataclass(frozen=True, kw_only=True)
class GridTable:
    """A finished grid.

    Attributes:
        rows: one for each point, in the grid's order: the last range changes fastest, agents within
            environments.
        ranges: the fields that have several values: name → values, an environment's as "env.walk".
        path: the file.
        seed, num_runs, num_steps, late_steps, steps_per_point: of every point.
        threads: how many computed.
        elapsed_s: seconds that it took, the file's opening, reading and closing among them.
        kernel_share: what part of `elapsed_s` the threads spent in kernels, in the mean; NaN if
            nothing was left to compute.
        computed_run_steps: runs × steps computed; the rest was in the file.
        num_of_other_kernels: the file's rows of these points that are of another version of the
            kernels: they are left alone, and not part of anything here.
    """

    rows: tuple[GridRow, ...]
    ranges: dict[str, list[Any]]
    path: Path
    seed: int
    num_runs: int
    num_steps: int
    late_steps: int
    steps_per_point: int
    threads: int
    elapsed_s: float
    kernel_share: float
    computed_run_steps: int
    num_of_other_kernels: int

    @property
    def title(self) -> str:
        """What was played, in one line: names, the settings that all points share, sizes, seed."""
        row = self.rows[0]
        agent, environment = row.agent.name, row.environment.name
        for name, value in row.settings.items():
            if name not in self.ranges and name.startswith(ENV):
                environment += f", {name.removeprefix(ENV)} {text_of(value)}"
            elif name not in self.ranges:
                agent += f", {name} {text_of(value)}"
        if f"{ENV}num_arms" not in row.settings and f"{ENV}means" not in self.ranges:
            environment += f", {row.environment.num_arms} arms"
        sizes = f"{self.num_runs:,} runs of {self.num_steps:,} steps"
        return f"{agent} · {environment} · {sizes} · seed {self.seed}"

    def sorted(self, quantity: str = "mean_reward") -> list[GridRow]:
        """The rows, best first (for a regret: the least); rows without a number stand last.

        Raises:
            BanditError: there is no such quantity.
        """
        sign = 1 if quantity == "final_regret" else -1
        means = [row.result.estimate(quantity).mean for row in self.rows]
        order = np.argsort([math.inf if math.isnan(mean) else sign * mean for mean in means])
        return [self.rows[index] for index in order]

    def best(self, quantity: str = "mean_reward") -> GridRow:
        """The first of `sorted`."""
        return self.sorted(quantity)[0]

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """What JSON can hold: settings and estimates, NaN as null; the curves too if asked for."""
        points = []
        for row in self.rows:
            about = row.result.to_dict(curves=curves)
            outer = ("seed", "num_runs", "num_steps", "late_steps", "steps_per_point")
            for name in (*outer, "elapsed_s", "ns_per_step"):
                del about[name]
            # The file's description of an environment has a matrix' digest for the matrix.
            about |= {kind: row.config[kind] for kind in ("agent", "environment")}
            points.append({"settings": row.settings, **about})
        share = None if math.isnan(self.kernel_share) else self.kernel_share
        return {
            **{name: getattr(self, name) for name in _OUTER},
            "path": str(self.path),
            "kernel_share": share,
            "points": points,
        }

    def save_picture(self, path: str | Path, quantity: str = "mean_reward") -> Path:
        """Draw a quantity over the one or two fields that have several values.

        One field of numbers is a parameter study with error bars, and so is one beside another with
        words among its values (`none`, `true`): a line for each of those. Two fields of numbers are
        a heat map.

        Raises:
            ConfigError: other fields than these have several values, or the suffix is no picture's.
            MissingExtraError: matplotlib is not installed.
            OutputError: `path` can't be written.
        """
        from hotloop.bandits.pictures import check_picture, heat_map, parameter_study

        path, (x, y) = check_picture(path), picture_axes(self.ranges)
        percent = 100 if quantity.endswith("optimal") else 1
        estimates = {}
        for row in self.rows:
            where = _key(row.settings[x]), _key(row.settings[y]) if y else None
            mean, se = row.result.estimate(quantity)
            estimates[where] = Estimate(percent * mean, percent * se)
        label = _QUANTITY_LABELS[quantity].format(late=f"the last {self.late_steps:,}")
        if y is not None and _is_numeric(self.ranges[y]):
            nothing = Estimate(math.nan, math.nan)  # `means` says how many arms there are
            values = [
                [estimates.get((_key(one), _key(other)), nothing).mean for one in self.ranges[x]]
                for other in self.ranges[y]
            ]
            heat_map(
                self.ranges[x],
                self.ranges[y],
                np.array(values),
                path,
                title=self.title,
                x_label=_with_unit(x),
                y_label=_with_unit(y),
                value_label=label,
                best=np.nanargmin if quantity == "final_regret" else np.nanargmax,
            )
            return path
        others = {f"{y} = {text_of(one)}": _key(one) for one in self.ranges[y]} if y else {}
        lines = {
            line: [
                (float(one), estimates[_key(one), other])
                for one in self.ranges[x]
                if (_key(one), other) in estimates
            ]
            for line, other in (others or {self.rows[0].agent.name: None}).items()
        }
        parameter_study(lines, path, title=self.title, x_label=_with_unit(x), y_label=label)
        return path

    def save_parquet(self, path: str | Path) -> Path:
        """Write a row a point: settings, estimates, and the curves as lists.

        Columns: `agent`, its fields, `environment`, its fields as "env.walk", `seed`, `num_runs`,
        `num_steps`, …; `mean_reward`, `mean_reward_se`, … for the five estimates; `step`, `reward`,
        `reward_se`, … as lists.

        Raises:
            MissingExtraError: pyarrow is not installed.
            OutputError: `path` can't be written.
        """
        try:
            arrow, parquet = (
                importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet")
            )
        except ImportError as error:
            raise MissingExtraError(
                "exporting a grid needs pyarrow: pip install 'hotloop[parquet]'"
            ) from error
        rows = [_flat(row) for row in self.rows]
        columns = {name: arrow.array(_alike([row[name] for row in rows])) for name in rows[0]}
        path = Path(path)
        with written_whole(path) as aside:
            parquet.write_table(arrow.table(columns), aside)
        return path


_OUTER = (
    *("ranges", "seed", "num_runs", "num_steps", "late_steps", "steps_per_point"),
    *("threads", "elapsed_s", "computed_run_steps", "num_of_other_kernels"),
)
_QUANTITY_LABELS = {
    "mean_reward": "reward per step",
    "mean_optimal": "steps that take an optimal arm, %",
    "final_regret": "cumulative regret at the end, units of reward",
    "late_reward": "reward per step, {late}",
    "late_optimal": "steps that take an optimal arm, {late}, %",
}
_UNITS = {"num_arms": "arms", "dimension": "components", "every": "steps"} | dict.fromkeys(
    ("initial_value", "prior_mean", "prior_std", "mean", "spread", "noise", "walk", "start"),
    "units of reward",
)


def _with_unit(name: str) -> str:
    return f"{name}, {_UNITS.get(name.removeprefix(ENV), 'dimensionless')}"


def picture_axes(ranges: Mapping[str, Sequence[Any]]) -> tuple[str, str | None]:
    """Which field a picture has along x, and which along y or as its lines.

    Raises:
        ConfigError: there is no picture of so many fields, or of words alone.
    """
    numeric = [name for name, values in ranges.items() if _is_numeric(values)]
    if not 1 <= len(ranges) <= 2 or not numeric:
        have = ", ".join(ranges) or "none has"
        raise ConfigError(
            "a picture is of one field or two that have several values, one of them numbers alone, "
            f"got {have}: give such ranges, or export the grid"
        )
    others = [name for name in ranges if name != numeric[0]]
    return numeric[0], others[0] if others else None


def _is_numeric(values: Iterable[Any]) -> bool:
    return all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)


def text_of(value: Any) -> str:
    """A setting as it is written: none, true, 0.1, (0.9, 0.8)."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"({', '.join(text_of(one) for one in value)})"
    return str(value) if isinstance(value, str) else json.dumps(value).replace("null", "none")


def _key(value: Any) -> str:
    """What tells values apart as the file does: 1 and 1.0 are one, 1 and true are not."""
    return json.dumps(_canonical(value), sort_keys=True)


def _canonical(value: Any) -> Any:
    """A setting as JSON, the same text for the same value: whole numbers as integers."""
    if isinstance(value, np.ndarray) and value.ndim == 2:  # a matrix is told by its digest
        digest = hashlib.sha256(np.ascontiguousarray(value, "<f4").tobytes()).hexdigest()
        return {"shape": list(value.shape), "sha256": digest}
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_canonical(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _described(thing: Any) -> dict[str, Any]:
    settings = {one.name: _canonical(getattr(thing, one.name)) for one in fields(thing)}
    return {"name": thing.name, **settings}


def _flat(row: GridRow) -> dict[str, Any]:
    """A point in columns."""
    result = row.result
    columns = {"agent": row.agent.name}
    columns |= _typed(row.agent, row.config["agent"])
    columns["environment"] = row.environment.name
    inner = _typed(row.environment, row.config["environment"])
    columns |= {f"{ENV}{name}": value for name, value in inner.items()}
    for name in ("seed", "num_runs", "num_steps", "late_steps", "steps_per_point"):
        columns[name] = getattr(result, name)
    for quantity in QUANTITIES:
        columns[quantity], columns[f"{quantity}_se"] = result.estimate(quantity)
    for name in ("step", "reward", "optimal", "regret"):
        columns[name] = getattr(result, name)
        if name != "step":
            columns[f"{name}_se"] = getattr(result, f"{name}_se")
    return columns


def _typed(thing: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the types of their fields: a column is float64 though all in it are whole."""
    typed = {}
    for one in fields(thing):
        value = config[one.name]
        is_float = "float" in str(one.type) and isinstance(value, int)
        typed[one.name] = float(value) if is_float else value
    return typed


def _alike(values: list[Any]) -> list[Any]:
    """A column has one type; whatever else JSON can hold stands there as text."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, dict) for value in known):
        return [value if value is None else json.dumps(value) for value in values]
    if any(isinstance(value, list) for value in known):
        return [value if value is None else [float(one) for one in value] for value in values]
    if any(isinstance(value, int) and value >= 1 << 63 for value in known):
        return [np.uint64(value) for value in values]
    return values


@dataclass(frozen=True, kw_only=True)
class _Point:
    """An agent in an environment; `environment` is its number."""

    agent: Agent
    environment: int
    settings: dict[str, Any]
    config: dict[str, Any]


class Grid:
    """All combinations of settings of one kind of agent and one kind of environment.

    Args:
        agent_name: a name of `AGENTS`.
        agent_fields: field → its values: a sequence, a single one, or text as `values_from` reads
            it. Fields that are not named keep their usual value.
        environment_name: a name of `ENVIRONMENTS`.
        environment_fields: likewise. A value of `means` is a tuple, of `rewards` a matrix or a
            file's path; as text, such values have semicolons between them ("0.9,0.8;0.5,0.4").
        num_steps: steps of each run.
        late_steps: the steps at the end that `late_…` are taken over; a tenth by default.
        steps_per_point: how many steps a curve's point is the mean of; at most 1000 points (up to
            2000 steps: as many as steps) by default.

    Raises:
        ConfigError: a range is written wrongly, or a point makes no sense; it is named.
        UnknownNameError: there is no such agent, environment or field.
    """

    def __init__(
        self,
        agent_name: str,
        agent_fields: Mapping[str, Any] | None = None,
        *,
        environment_name: str = "gaussian",
        environment_fields: Mapping[str, Any] | None = None,
        num_steps: int = 1000,
        late_steps: int | None = None,
        steps_per_point: int | None = None,
    ) -> None:
        self.agent_name, self.environment_name = agent_name, environment_name
        agents = _made(agent_from, agent_name, agent_fields or {}, AGENTS, "")
        environments = _made(
            environment_from, environment_name, environment_fields or {}, ENVIRONMENTS, ENV
        )
        _check_num_points(len(agents) * len(environments))
        settings = settings_from(0, num_steps, late_steps, steps_per_point, False)
        self.num_steps, self.late_steps = int(settings.num_steps), settings.late_steps
        self.steps_per_point = settings.steps_per_point
        self.environments = [environment for environment, _ in environments]
        steps = {name: getattr(self, name) for name in _STEPS}
        self._points: dict[str, _Point] = {}
        for index, (environment, outer) in enumerate(environments):
            plan_environment(environment, self.num_steps)  # raises if it has fewer steps
            place = _described(environment)
            for agent, inner in agents:
                plan_agent(agent, environment, self.num_steps)  # raises if it can't play there
                config = {"agent": _described(agent), "environment": place, **steps}
                settings = inner | outer
                # Two spellings of one point are one point.
                self._points.setdefault(
                    json.dumps(config, sort_keys=True, allow_nan=False),
                    _Point(agent=agent, environment=index, settings=settings, config=config),
                )
        self.ranges = _varied([point.settings for point in self._points.values()])

    def __len__(self) -> int:
        """How many points it has."""
        return len(self._points)

    def run(
        self,
        path: str | Path,
        *,
        num_runs: int = 2000,
        seed: int = 0,
        threads: int | None = None,
        on_progress: Callable[[GridProgress], None] | None = None,
    ) -> GridTable:
        """Compute what the file does not hold yet.

        Every quarter of a second what has been computed is in the file for good. After an
        exception, Ctrl-C's among them, what had ended by then is kept too, and the same call goes
        on from there.

        Args:
            path: the SQLite file; other grids and other seeds may be in it too.
            num_runs: runs of each point. Fewer or more than are in the file: full chunks of 2048
                are taken from there, a last one that is not full is computed anew.
            seed: of all random numbers, the same for all points.
            threads: how many compute; as many as the process has cores by default.
            on_progress: called some times a second, from the calling thread.

        Returns:
            The finished grid: the same whether it was stopped in between or not.

        Raises:
            ConfigError: `num_runs`, `seed` or `threads` make no sense.
            BanditError: the file is no grid, is damaged or of another version; it stays as it is.
            OutputError: the file can't be written.
        """
        started_at = time.perf_counter()
        path = Path(path)
        num_runs = whole("num_runs", num_runs, 1, MAX_RUNS)
        seed = whole("seed", seed, 0, 2**64 - 1)
        threads = whole("threads", available_cores() if threads is None else threads, 1, 1024)
        points = list(self._points.values())
        with GridFile(path, seed=seed, kernel_version=KERNEL_VERSION) as file:
            ids = file.ids(list(self._points))
            wanted = [
                [
                    Piece(one, first_run, min(CHUNK, num_runs - first_run))
                    for first_run in range(0, num_runs, CHUNK)
                ]
                for one in ids
            ]
            run = _Run(self, file, seed, num_runs, threads, started_at, on_progress)
            while True:
                there = file.pieces(ids)
                run.compute(
                    [[piece for piece in pieces if piece not in there] for pieces in wanted]
                )
                # Another process that adds runs to these points takes a last chunk that is not full
                # out of the file; then it is computed once more.
                read = [_folded(file, pieces) for pieces in wanted]
                if None not in read:
                    break
            num_of_other_kernels = file.num_of_other_kernels(ids)
        steps = {name: getattr(self, name) for name in _STEPS}
        rows = tuple(
            GridRow(
                settings=point.settings,
                config=point.config,
                result=Result.from_sums(
                    sums,
                    agent=point.agent,
                    environment=self.environments[point.environment],
                    seed=seed,
                    **steps,
                ),
            )
            for point, sums in zip(points, read, strict=True)
            if sums is not None
        )
        elapsed_s = time.perf_counter() - started_at
        share = run.kernel_s / (elapsed_s * threads) if run.computed_run_steps else math.nan
        return GridTable(
            rows=rows,
            ranges=self.ranges,
            path=path,
            seed=seed,
            num_runs=num_runs,
            **steps,
            threads=threads,
            elapsed_s=elapsed_s,
            kernel_share=share,
            computed_run_steps=run.computed_run_steps,
            num_of_other_kernels=num_of_other_kernels,
        )


_STEPS = ("num_steps", "late_steps", "steps_per_point")


def _folded(file: GridFile, pieces: Sequence[Piece]) -> Sums | None:
    """All pieces of a point, added in order; None if one is not there."""
    total = None
    for piece in pieces:
        sums = file.sums(piece)
        if sums is None:
            return None
        total = sums if total is None else total + sums
    return total


def _made(
    make: Callable[[str, Mapping[str, Any]], Any],
    kind_name: str,
    given: Mapping[str, Any],
    known: Mapping[str, Any],
    prefix: str,
) -> list[tuple[Any, dict[str, Any]]]:
    """Every agent or environment that the ranges stand for, with the settings that were given."""
    has_tuples = {}
    if kind_name in known:
        for one in fields(known[kind_name]):
            has_tuples[one.name] = any(kind in str(one.type) for kind in ("tuple", "Array"))
    ranges: dict[str, list[Any]] = {}
    for written, values in given.items():
        name = written.replace("-", "_")
        if has_tuples and name not in has_tuples:
            make(kind_name, {written: None})  # says so, and which is nearest
        if name in ranges:
            raise ConfigError(f"`{prefix}{name}` is given twice: give all its values at once")
        ranges[name] = _values(name, values, of_tuples=has_tuples.get(name, False))
    _check_num_points(math.prod(map(len, ranges.values())))
    made = []
    for combination in itertools.product(*ranges.values()):
        settings = dict(zip(ranges, combination, strict=True))
        try:
            thing = make(kind_name, settings)
        except ConfigError as error:
            # A matrix is not told; what is wrong with it stands in the message.
            told = {name: one for name, one in settings.items() if name != "rewards"}
            where = ", ".join(f"{name} = {text_of(value)}" for name, value in told.items())
            raise ConfigError(f"{error} (the point {where})" if where else str(error)) from None
        shown = {
            prefix + name: value if _is_path(name, value) else _canonical(getattr(thing, name))
            for name, value in settings.items()
        }
        made.append((thing, shown))
    return made


def _check_num_points(num: int) -> None:
    if num > MAX_POINTS:
        raise ConfigError(
            f"a grid has at most {MAX_POINTS:,} points, these ranges give {num:,}: "
            "take fewer values"
        )


def _is_path(name: str, value: Any) -> bool:
    return name == "rewards" and isinstance(value, str)


def _values(name: str, given: Any, *, of_tuples: bool) -> list[Any]:
    if of_tuples:
        if isinstance(given, str):
            return [part.strip() for part in given.split(";")]
        if not isinstance(given, (list, tuple)):
            return [given]
        # A value is a row of numbers, or a matrix; several are a list of those, files or None.
        depth = 2 if name == "rewards" else 1
        are_several = any(
            isinstance(one, (str, type(None))) or np.ndim(one) == depth for one in given
        )
        return list(given) if are_several else [given]
    if isinstance(given, str):
        return list(values_from(name, given))
    if isinstance(given, Iterable):
        values = list(given)
        if not values:
            raise ConfigError(f"`{name}` needs one value or more, got none; {_RANGES}")
        return [one.item() if isinstance(one, np.generic) else one for one in values]
    return [given]


def _varied(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The fields with several values, and these in order."""
    ranges = {}
    for name in settings[0]:
        values = {_key(one[name]): one[name] for one in settings}
        if len(values) > 1:
            ranges[name] = list(values.values())
    return ranges


@dataclass(frozen=True)
class _Job:
    """The same runs of some points in one environment: one call of the kernels."""

    points: tuple[int, ...]
    environment: int
    first_run: int
    num_runs: int


@dataclass(frozen=True)
class _Outcome:
    """What became of a job: sums, or an exception, or neither where it was not begun."""

    job: _Job
    elapsed_s: float = 0.0
    blobs: tuple[bytes, ...] = ()
    error: BaseException | None = None


class _Dealer:
    """Deals what there is to do out in jobs: large ones first, small ones at the end.

    Large ones share more; small ones at the end let all threads end together.
    """

    def __init__(self, jobs: Iterable[_Job], num_threads: int, num_steps: int) -> None:
        self._jobs = deque(jobs)
        self._num_left = sum(len(job.points) for job in self._jobs)
        self._num_threads, self._num_steps = num_threads, num_steps
        self._step_s = 10e-9  # a run and step, until one has been measured

    def measured(self, outcome: _Outcome) -> None:
        """Learn from what a job took."""
        job = outcome.job
        self._step_s = outcome.elapsed_s / (len(job.points) * job.num_runs * self._num_steps)

    def next(self) -> _Job | None:
        """The next job; None if nothing is left."""
        if not self._jobs:
            return None
        job = self._jobs.popleft()
        point_s = self._step_s * job.num_runs * self._num_steps
        num = min(_MAX_GROUP, self._num_left // (2 * self._num_threads), int(_JOB_S / point_s))
        num = max(num, 1)
        taken, rest = job.points[:num], job.points[num:]
        if rest:
            self._jobs.appendleft(_Job(rest, job.environment, job.first_run, job.num_runs))
        self._num_left -= len(taken)
        return _Job(taken, job.environment, job.first_run, job.num_runs)


class _Run:
    """A grid under way: threads compute, the calling thread writes."""

    def __init__(
        self,
        grid: Grid,
        file: GridFile,
        seed: int,
        num_runs: int,
        num_threads: int,
        started_at: float,
        on_progress: Callable[[GridProgress], None] | None,
    ) -> None:
        self.kernel_s, self.computed_run_steps = 0.0, 0
        self._grid, self._file, self._seed, self._num_runs = grid, file, seed, num_runs
        self._num_threads, self._started_at, self._on_progress = (
            num_threads,
            started_at,
            on_progress,
        )
        self._points = list(grid._points.values())
        self._unsaved: list[tuple[Piece, bytes]] = []

    def compute(self, missing: Sequence[Sequence[Piece]]) -> None:
        """Compute these pieces, a list a point, and store them."""
        self._left = [len(pieces) for pieces in missing]
        self._ids = {index: pieces[0].point for index, pieces in enumerate(missing) if pieces}
        num_left = sum(piece.num_runs for pieces in missing for piece in pieces)
        self._all = len(missing) * self._num_runs * self._grid.num_steps
        self._present = self._all - num_left * self._grid.num_steps
        self._kept = self._present - self.computed_run_steps
        dealer = _Dealer(self._jobs(missing), self._num_threads, self._grid.num_steps)
        self._tell()
        if num_left:
            self._compute(dealer)

    def _jobs(self, missing: Sequence[Sequence[Piece]]) -> Iterable[_Job]:
        """Points of one environment by eights, chunk after chunk: soon the first are whole."""
        by_environment: dict[int, list[int]] = {}
        for index in self._ids:
            by_environment.setdefault(self._points[index].environment, []).append(index)
        for environment, indices in by_environment.items():
            for start in range(0, len(indices), _MAX_GROUP):
                chunks: dict[tuple[int, int], list[int]] = {}
                for index in indices[start : start + _MAX_GROUP]:
                    for _, first_run, num_runs in missing[index]:
                        chunks.setdefault((first_run, num_runs), []).append(index)
                for (first_run, num_runs), group in sorted(chunks.items()):
                    yield _Job(tuple(group), environment, first_run, num_runs)

    def _compute(self, dealer: _Dealer) -> None:
        # Threads of our own: those of `concurrent.futures` are waited for when the interpreter
        # ends, and after Ctrl-C a job may have half a minute to go.
        jobs: SimpleQueue[_Job | None] = SimpleQueue()
        outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        stop = threading.Event()
        for _ in range(self._num_threads):
            target, args = self._work, (jobs, outcomes, stop)
            threading.Thread(target=target, args=args, daemon=True, name="grid").start()
        num_under_way, committed_at = 0, time.monotonic()
        try:
            while True:
                # One job more a thread, so that none waits for this one.
                while num_under_way < 2 * self._num_threads and (job := dealer.next()):
                    jobs.put(job)
                    num_under_way += 1
                if not num_under_way and not self._unsaved:
                    return
                with contextlib.suppress(Empty):
                    outcome = outcomes.get(timeout=0.1)
                    num_under_way -= 1
                    self._take(outcome)
                    dealer.measured(outcome)
                if time.monotonic() - committed_at >= _COMMIT_S or not num_under_way:
                    self._save()
                    committed_at = time.monotonic()
                self._tell()
        except BaseException:
            stop.set()
            give_up_at = time.monotonic() + _GRACE_S
            with contextlib.suppress(Empty, HotloopError):
                for _ in range(num_under_way):
                    outcome = outcomes.get(timeout=max(0.0, give_up_at - time.monotonic()))
                    if outcome.error is None:
                        self._take(outcome)
            with contextlib.suppress(HotloopError):  # the first exception is what is told
                self._save()
            raise
        finally:
            for _ in range(self._num_threads):
                jobs.put(None)

    def _work(
        self,
        jobs: SimpleQueue[_Job | None],
        outcomes: SimpleQueue[_Outcome],
        stop: threading.Event,
    ) -> None:
        grid = self._grid
        while (job := jobs.get()) is not None:
            if stop.is_set():
                outcomes.put(_Outcome(job))
                continue
            started_at = time.perf_counter()
            try:
                sums = chunk_sums(
                    [self._points[index].agent for index in job.points],
                    grid.environments[job.environment],
                    seed=self._seed,
                    num_steps=grid.num_steps,
                    first_run=job.first_run,
                    num_runs=job.num_runs,
                    late_steps=grid.late_steps,
                    steps_per_point=grid.steps_per_point,
                )
                elapsed_s = time.perf_counter() - started_at
                outcomes.put(_Outcome(job, elapsed_s, tuple(one.to_bytes() for one in sums)))
            except BaseException as error:
                outcomes.put(_Outcome(job, error=error))

    def _take(self, outcome: _Outcome) -> None:
        if outcome.error is not None:
            raise outcome.error
        job = outcome.job
        self.kernel_s += outcome.elapsed_s
        for index, blob in zip(job.points, outcome.blobs, strict=False):  # none if not begun
            piece = Piece(self._ids[index], job.first_run, job.num_runs)
            self._unsaved.append((piece, blob))
            self._left[index] -= 1
            self.computed_run_steps += job.num_runs * self._grid.num_steps
            self._present += job.num_runs * self._grid.num_steps

    def _save(self) -> None:
        # Interrupted between the commit and the next line, the same rows are stored once more: that
        # changes nothing.
        if self._unsaved:
            self._file.add(self._unsaved)
            self._unsaved.clear()

    def _tell(self) -> None:
        if self._on_progress is not None:
            self._on_progress(
                GridProgress(
                    points=self._left.count(0),
                    all_points=len(self._left),
                    run_steps=self._present,
                    all_run_steps=self._all,
                    kept_run_steps=self._kept,
                    elapsed_s=time.perf_counter() - self._started_at,
                )
            )
