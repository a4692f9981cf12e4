"""Bandits: a post's program and its fixes, NumPy, Numba, the peers, and the kernels.

    python -m bench bandit
    python -m bench bandit --part seed --part speed --rounds 7
    python -m bench bandit --quick

The contenders take turns, round by round, in another order each time, so that what else the machine
does hits all of them. A round's figure is the median of its calls, each with random numbers of its
own; kept are the median and the extremes over the rounds. Beside each speed stands the average
reward, with its standard error. `--quick` has small sizes, shows whether everything runs, and keeps
its results apart.

Parts, each of which is stored by itself, with the machine and all libraries' versions; times are
seconds, but for those called `ns` (of a run and step):

- `seed`: a grid point (2000 runs × 1000 steps) by all contenders (see contenders.py). What takes
  long plays fewer runs, and the grid point is extrapolated. `bandit_seed.json`: `ways`, by name:
  `about`, `kind`, `ns`, `point`, `runs_a_call`, `times_hotloop`, `reward`, `agrees` (with ours,
  within 4 standard errors), `remark`; `same_rewards`: of versions 1 and 2, and of 3 and 4, from
  the same random numbers; `published`: what the author tells.
- `speed`: agents and environments on one thread, each alone, and several settings of it in one
  `compare`. `bandit_speed.json`: `cases`, by name: `about`, `environment`, `runs`, `alone` (ns),
  `settings`, `compared` (ns, of a setting), `reward`.
- `scaling`: threads, and processes with the same work. `bandit_scaling.json`: `ways`, by name:
  `about`, `runs`, `points` (by number of threads: `seconds`, `speed_up`), `serial_share` (of
  Amdahl's law, fitted). Drawn to docs/bandit-scaling.png.
- `start`: a process from its start to the first result, with an empty and a filled cache of
  compiled functions. `bandit_start.json`: `cold`, `warm`: `imports`, `first_result`, `process`,
  `command`.
- `memory`: the most that a process ever held, by number of runs. `bandit_memory.json`: `points`:
  `runs`, `imported_bytes`, `peak_bytes`.
- `grid`: 200 points. `bandit_grid.json`: `wall`, `kernel_share`.
- `exercise`: exercise 2.11 of the book in full, once. `bandit_exercise.json`.

A time is {"median", "min", "max"}; what could not be measured is {"missing": why}.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.bandits import contenders
from bench.bandits.agents import cases
from bench.bandits.contenders import Moments, cores, hotloop_plays
from bench.bandits.plays import Play
from bench.bandits.post import PUBLISHED, play
from bench.bandits.process import memory, start
from bench.bandits.scale import QUICK, Scale, alternate, per_call, scaled, store, why
from bench.bandits.scaling import scaling
from bench.measuring import Missing, imported, spread
from bench.parts import run_parts


class Playing:
    """A contender that was set up: `round` measures, and what it got is added up."""

    def __init__(self, play: Play, runs: int, scale: Scale) -> None:
        self.play, self.runs, self.scale = play, runs, scale
        self.reward = Moments()
        self.seeds = itertools.count(1)
        play(min(runs, 2), min(scale.steps, 20), 0)  # compiles, where it is compiled

    def once(self) -> tuple[float, ...]:
        """Seconds of a call."""
        began = time.perf_counter()
        reward = self.play(self.runs, self.scale.steps, next(self.seeds))
        took = time.perf_counter() - began
        self.reward = self.reward.plus(reward)
        return (took,)

    def round(self) -> float:
        """Nanoseconds of a run and step."""
        return per_call(self.once, self.scale.seconds) / (self.runs * self.scale.steps) * 1e9


def seed(scale: Scale, rounds: int) -> None:
    """The story."""
    ways: dict[str, Any] = {}
    playing: dict[str, Playing] = {}
    for name, way in contenders.WAYS.items():
        ways[name] = {"about": way.about, "kind": way.kind, "remark": way.remark}
        try:
            playing[name] = Playing(way.make(), min(way.runs, scale.runs), scale)
        except Missing as error:
            ways[name]["missing"] = str(error)
        except Exception as error:
            ways[name]["missing"] = f"failed: {why(error)}"
    figures = alternate({name: one.round for name, one in playing.items()}, rounds)
    for name, one in playing.items():
        measured = figures[name]
        if isinstance(measured, dict):
            ways[name] |= measured
            continue
        ns = spread(measured)
        ways[name] |= {
            "ns": ns,
            "point": scaled(ns, scale.runs * scale.steps * 1e-9),
            "runs_a_call": one.runs,
            "reward": one.reward.estimate(),
        }
    for name, about in contenders.UNAVAILABLE.items():
        ways[name] = {"about": about, "kind": "peer", "missing": "not on the package index"}
    ours = ways["hotloop"]
    for way in ways.values():
        if "ns" in way and "ns" in ours:
            way["times_hotloop"] = way["ns"]["median"] / ours["ns"]["median"]
            way["agrees"] = agree(way["reward"], ours["reward"])
        say(way["about"], way)
    pairs = ("configuration_objects", "plain_dictionaries"), ("eager_arrays", "lazy_messages")
    store(
        "seed",
        {
            "runs": scale.runs,
            "steps": scale.steps,
            "rounds": rounds,
            "ways": ways,
            "same_rewards": [are_alike(one, other, ways, scale.steps) for one, other in pairs],
            "published": PUBLISHED,
        },
    )


def are_alike(one: str, other: str, ways: Mapping[str, Any], steps: int) -> bool | None:
    """Whether two of the seed's versions make the same rewards from the same random numbers.

    They should: they differ in what surrounds the arithmetic. None where one of them is missing.
    """
    if "missing" in ways[one] or "missing" in ways[other]:
        return None
    return bool((play(one, 2, steps, 0) == play(other, 2, steps, 0)).all())


def agree(one: Mapping[str, float], ours: Mapping[str, float]) -> bool:
    """Whether an average lies within 4 standard errors of ours.

    All play the same, so their runs should scatter as ours do, which are many.
    """
    deviation = ours["se"] * math.sqrt(ours["runs"])
    allowed = 4 * deviation * math.sqrt(1 / one["runs"] + 1 / ours["runs"])
    return abs(one["mean"] - ours["mean"]) <= allowed


def say(about: str, way: Mapping[str, Any]) -> None:
    """One line."""
    if "missing" in way:
        print(f"  {about:52} {way['missing']}")
        return
    reward = way["reward"]
    more = "" if way.get("agrees", True) else f" (differs: {way['remark'] or 'why?'})"
    print(
        f"  {about:52} {way['ns']['median']:>11,.1f} ns, {way['point']['median']:9.3f} s a point, "
        f"reward {reward['mean']:.3f} ± {reward['se']:.3f}{more}"
    )


def speed(scale: Scale, rounds: int) -> None:
    """Agents and environments, on one thread."""
    # It says that a plain agent is slow; how slow, is measured here.
    warnings.simplefilter("ignore", imported("hotloop.bandits").BanditSpeedWarning)
    found = cases(scale.steps)
    short = scale._replace(seconds=scale.seconds / 2)
    playing: dict[str, Playing] = {}
    for name, case in found.items():
        runs = min(case.runs, scale.runs)
        playing[name] = Playing(hotloop_plays(case.agents[:1], case.environment, 1), runs, short)
        if len(case.agents) > 1:
            play = hotloop_plays(case.agents, case.environment, 1)
            playing[f"{name} compared"] = Playing(play, runs, short)
    figures = alternate({name: one.round for name, one in playing.items()}, rounds)
    stored: dict[str, Any] = {}
    for name, case in found.items():
        measured, compared = figures[name], figures.get(f"{name} compared")
        result: dict[str, Any] = {
            "about": case.about,
            "environment": case.environment.name,
            "runs": playing[name].runs,
            "reward": playing[name].reward.estimate(),
            "settings": len(case.agents),
            "alone": measured if isinstance(measured, dict) else spread(measured),
        }
        if isinstance(compared, list):
            result["compared"] = scaled(spread(compared), 1 / len(case.agents))
        stored[name] = result
        cells = [
            f"{kind} {result[kind]['median']:,.2f} ns"
            for kind in ("alone", "compared")
            if "median" in result.get(kind, {})
        ]
        print(f"  {case.about:36} {case.environment.name:18} {', '.join(cells)}")
    store("speed", {"steps": scale.steps, "rounds": rounds, "threads": 1, "cases": stored})


def exercise(scale: Scale, rounds: int) -> None:
    """Exercise 2.11, once, on all cores."""
    del rounds
    figures = imported("hotloop.bandits.figures")
    num_runs, num_steps = scale.exercise
    began = time.perf_counter()
    figure = figures.book_figure("2.11", num_runs=num_runs, num_steps=num_steps)
    took = time.perf_counter() - began
    about = figure.to_dict()
    all_steps = len(figure.rows) * figure.num_runs * figure.num_steps
    for row in about["rows"]:
        known = row.get("reference", {}).get("regret_per_step")
        beside = "" if known is None else f" ({known} known)"
        print(f"  {row['label']:44} regret {row['regret_per_step']:.3f} a step{beside}")
    print(f"  {took:.1f} s on {cores()} cores, {took / all_steps * 1e9:.2f} ns a run and step")
    store(
        "exercise",
        {
            "runs": figure.num_runs,
            "steps": figure.num_steps,
            "settings": len(figure.rows),
            "cores": cores(),
            "seconds": took,
            "ns": took / all_steps * 1e9,
            "rows": about["rows"],
        },
    )


def grid(scale: Scale, rounds: int) -> None:
    """A grid of 200 points into a new file."""
    grids = imported("hotloop.sweeps.bandits")
    many, few = scale.grid
    fields = {
        "epsilon": [0.5 * (one + 1) / many for one in range(many)],
        "step_size": [0.5 * (one + 1) / few for one in range(few)],
    }
    one = grids.Grid("epsilon-greedy", fields, num_steps=scale.steps)
    walls, shares, best = [], [], {}
    # The zeroth brings in what is loaded once.
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "grid.sqlite"
            began = time.perf_counter()
            table = one.run(path, num_runs=scale.runs, seed=number, threads=cores())
            walls.append(time.perf_counter() - began)
            shares.append(table.kernel_share)
            best = table.best().settings
    walls, shares = walls[1:], shares[1:]
    wall, share = spread(walls), spread(shares)
    per_step = wall["median"] / (len(one) * scale.runs * scale.steps) * 1e9
    print(
        f"  {len(one)} points: {wall['median']:.2f} s, {per_step:.2f} ns a run and step, "
        f"{share['median']:.1%} of it in kernels"
    )
    store(
        "grid",
        {
            "points": len(one),
            "runs": scale.runs,
            "steps": scale.steps,
            "cores": cores(),
            "rounds": rounds,
            "wall": wall,
            "kernel_share": share,
            "best": best,
        },
    )


RUN: dict[str, Callable[[Scale, int], None]] = {
    "seed": seed,
    "speed": speed,
    "scaling": scaling,
    "start": start,
    "memory": memory,
    "grid": grid,
    "exercise": exercise,
}


def main() -> int:
    """Measure, print, store."""
    seconds = "of one contender in a round"
    return run_parts("bandit", __doc__, RUN, scale=Scale(), quick=QUICK, seconds=seconds)
