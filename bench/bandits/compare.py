"""Bandits: a blog post's program and its fixes, NumPy, Numba, other libraries, and hotloop.

    python -m bench bandit
    python -m bench bandit --part seed --part speed --rounds 7
    python -m bench bandit --quick

The contenders alternate in a new random order each round, so that other load on the machine affects
all alike. A round's figure is the median of its calls, each with new random numbers. Median,
minimum and maximum over the rounds are stored, and the average reward with its standard error.
`--quick` uses small sizes to test that everything runs and stores results in a temporary folder.

Each part is stored in its own file with the machine and the libraries' versions. Times are in
seconds, `ns` is nanoseconds per run and step:

- `seed`: a grid point (2000 runs × 1000 steps) by all contenders (see contenders.py). Slow ones
  play fewer runs, and the grid point is extrapolated. `bandit_seed.json`: `ways`, by name: `about`,
  `kind`, `ns`, `point`, `runs_a_call`, `times_hotloop`, `reward`, `agrees` (with hotloop within 4
  standard errors), `remark`; `same_rewards`: whether versions 1 and 2, and 3 and 4, get the same
  rewards from the same random numbers; `published`: the author's figures.
- `speed`: agents and environments on one thread, alone and with several settings in one `compare`.
  `bandit_speed.json`: `cases`, by name: `about`, `environment`, `runs`, `alone` (ns), `settings`,
  `compared` (ns per setting), `reward`.
- `scaling`: threads, and processes with the same work. `bandit_scaling.json`: `ways`, by name:
  `about`, `runs`, `points` (by number of threads: `seconds`, `speed_up`), `serial_share` (fitted
  to Amdahl's law). Plot: docs/bandit-scaling.png.
- `start`: a process from its start to the first result, with an empty and a filled cache of
  compiled functions. `bandit_start.json`: `cold`, `warm`: `imports`, `first_result`, `process`,
  `command`.
- `memory`: peak memory of a process by number of runs. `bandit_memory.json`: `points`: `runs`,
  `imported_bytes`, `peak_bytes`.
- `grid`: 200 points. `bandit_grid.json`: `wall`, `kernel_share`.
- `exercise`: exercise 2.11 of the book in full, once. `bandit_exercise.json`.

A time is {"median", "min", "max"}; a missing figure is {"missing": reason}.
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
from bench.bandits.scale import (
    QUICK,
    BanditScale,
    alternate,
    first_line,
    median_call_s,
    scale_spread,
    store,
)
from bench.bandits.scaling import scaling
from bench.measuring import Missing, import_library, spread
from bench.parts import run_parts


class ContenderPlay:
    """A contender that is ready to play, with the sum of its rewards."""

    def __init__(self, play: Play, runs: int, scale: BanditScale) -> None:
        self.play, self.runs, self.scale = play, runs, scale
        self.reward = Moments()
        self.seeds = itertools.count(1)
        play(min(runs, 2), min(scale.steps, 20), 0)  # triggers compilation

    def once(self) -> tuple[float, ...]:
        """Return the seconds of one call."""
        start_s = time.perf_counter()
        reward = self.play(self.runs, self.scale.steps, next(self.seeds))
        duration_s = time.perf_counter() - start_s
        self.reward = self.reward.plus(reward)
        return (duration_s,)

    def round(self) -> float:
        """Return the nanoseconds per run and step."""
        return median_call_s(self.once, self.scale.seconds) / (self.runs * self.scale.steps) * 1e9


def seed(scale: BanditScale, rounds: int) -> None:
    """Measure the post's versions and all other contenders."""
    ways: dict[str, Any] = {}
    playing: dict[str, ContenderPlay] = {}
    for name, way in contenders.WAYS.items():
        ways[name] = {"about": way.label, "kind": way.kind, "remark": way.remark}
        try:
            playing[name] = ContenderPlay(way.make(), min(way.runs, scale.runs), scale)
        except Missing as error:
            ways[name]["missing"] = str(error)
        except Exception as error:
            ways[name]["missing"] = f"failed: {first_line(error)}"
    figures = alternate({name: contender.round for name, contender in playing.items()}, rounds)
    for name, contender in playing.items():
        measured = figures[name]
        if isinstance(measured, dict):
            ways[name] |= measured
            continue
        ns = spread(measured)
        ways[name] |= {
            "ns": ns,
            "point": scale_spread(ns, scale.runs * scale.steps * 1e-9),
            "runs_a_call": contender.runs,
            "reward": contender.reward.estimate(),
        }
    for name, label in contenders.UNAVAILABLE.items():
        ways[name] = {"about": label, "kind": "peer", "missing": "not on the package index"}
    reference = ways["hotloop"]
    for way in ways.values():
        if "ns" in way and "ns" in reference:
            way["times_hotloop"] = way["ns"]["median"] / reference["ns"]["median"]
            way["agrees"] = agree(way["reward"], reference["reward"])
        print_contender(way["about"], way)
    pairs = ("configuration_objects", "plain_dictionaries"), ("eager_arrays", "lazy_messages")
    store(
        "seed",
        {
            "runs": scale.runs,
            "steps": scale.steps,
            "rounds": rounds,
            "ways": ways,
            "same_rewards": [
                have_same_rewards(first, second, ways, scale.steps) for first, second in pairs
            ],
            "published": PUBLISHED,
        },
    )


def have_same_rewards(first: str, second: str, ways: Mapping[str, Any], steps: int) -> bool | None:
    """Return whether two of the post's versions get the same rewards from the same random numbers.

    They should, because only the code around the arithmetic differs. None if one is missing.
    """
    if "missing" in ways[first] or "missing" in ways[second]:
        return None
    return bool((play(first, 2, steps, 0) == play(second, 2, steps, 0)).all())


def agree(estimate: Mapping[str, float], reference: Mapping[str, float]) -> bool:
    """Return whether an average lies within 4 standard errors of the reference.

    All contenders play the same game, so the standard deviation of the reference's many runs
    applies.
    """
    deviation = reference["se"] * math.sqrt(reference["runs"])
    allowed = 4 * deviation * math.sqrt(1 / estimate["runs"] + 1 / reference["runs"])
    return abs(estimate["mean"] - reference["mean"]) <= allowed


def print_contender(label: str, way: Mapping[str, Any]) -> None:
    """Print one line."""
    if "missing" in way:
        print(f"  {label:52} {way['missing']}")
        return
    reward = way["reward"]
    suffix = "" if way.get("agrees", True) else f" (differs: {way['remark'] or 'why?'})"
    print(
        f"  {label:52} {way['ns']['median']:>11,.1f} ns, "
        f"{way['point']['median']:9.3f} s per point, "
        f"reward {reward['mean']:.3f} ± {reward['se']:.3f}{suffix}"
    )


def speed(scale: BanditScale, rounds: int) -> None:
    """Measure agents and environments on one thread."""
    # The warning that a plain agent is slow is expected here.
    warnings.simplefilter("ignore", import_library("hotloop.bandits").BanditSpeedWarning)
    agent_cases = cases(scale.steps)
    short = scale._replace(seconds=scale.seconds / 2)
    playing: dict[str, ContenderPlay] = {}
    for name, case in agent_cases.items():
        runs = min(case.runs, scale.runs)
        playing[name] = ContenderPlay(
            hotloop_plays(case.agents[:1], case.environment, 1), runs, short
        )
        if len(case.agents) > 1:
            play = hotloop_plays(case.agents, case.environment, 1)
            playing[f"{name} compared"] = ContenderPlay(play, runs, short)
    figures = alternate({name: item.round for name, item in playing.items()}, rounds)
    stored: dict[str, Any] = {}
    for name, case in agent_cases.items():
        measured, compared = figures[name], figures.get(f"{name} compared")
        result: dict[str, Any] = {
            "about": case.label,
            "environment": case.environment.name,
            "runs": playing[name].runs,
            "reward": playing[name].reward.estimate(),
            "settings": len(case.agents),
            "alone": measured if isinstance(measured, dict) else spread(measured),
        }
        if isinstance(compared, list):
            result["compared"] = scale_spread(spread(compared), 1 / len(case.agents))
        stored[name] = result
        cells = [
            f"{kind} {result[kind]['median']:,.2f} ns"
            for kind in ("alone", "compared")
            if "median" in result.get(kind, {})
        ]
        print(f"  {case.label:36} {case.environment.name:18} {', '.join(cells)}")
    store("speed", {"steps": scale.steps, "rounds": rounds, "threads": 1, "cases": stored})


def exercise(scale: BanditScale, rounds: int) -> None:
    """Run exercise 2.11 once on all cores."""
    del rounds
    figures = import_library("hotloop.bandits.figures")
    num_runs, num_steps = scale.exercise
    start_s = time.perf_counter()
    figure = figures.book_figure("2.11", num_runs=num_runs, num_steps=num_steps)
    duration_s = time.perf_counter() - start_s
    content = figure.to_dict()
    all_steps = len(figure.rows) * figure.num_runs * figure.num_steps
    for row in content["rows"]:
        known = row.get("reference", {}).get("regret_per_step")
        known_text = "" if known is None else f" ({known} known)"
        print(f"  {row['label']:44} regret {row['regret_per_step']:.3f} per step{known_text}")
    print(
        f"  {duration_s:.1f} s on {cores()} cores, "
        f"{duration_s / all_steps * 1e9:.2f} ns per run and step"
    )
    store(
        "exercise",
        {
            "runs": figure.num_runs,
            "steps": figure.num_steps,
            "settings": len(figure.rows),
            "cores": cores(),
            "seconds": duration_s,
            "ns": duration_s / all_steps * 1e9,
            "rows": content["rows"],
        },
    )


def grid(scale: BanditScale, rounds: int) -> None:
    """Run a grid of 200 points into a new file."""
    grids = import_library("hotloop.bandits.grids")
    num_epsilons, num_step_sizes = scale.grid
    fields = {
        "epsilon": [0.5 * (k + 1) / num_epsilons for k in range(num_epsilons)],
        "step_size": [0.5 * (k + 1) / num_step_sizes for k in range(num_step_sizes)],
    }
    points = grids.Grid("epsilon-greedy", fields, num_steps=scale.steps)
    walls, shares, best = [], [], {}
    # The first run loads libraries and is not counted.
    for number in range(rounds + 1):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "grid.sqlite"
            start_s = time.perf_counter()
            table = points.run(path, num_runs=scale.runs, seed=number, threads=cores())
            walls.append(time.perf_counter() - start_s)
            shares.append(table.kernel_share)
            best = table.best().settings
    walls, shares = walls[1:], shares[1:]
    wall, share = spread(walls), spread(shares)
    per_step = wall["median"] / (len(points) * scale.runs * scale.steps) * 1e9
    print(
        f"  {len(points)} points: {wall['median']:.2f} s, "
        f"{per_step:.2f} ns per run and step, {share['median']:.1%} of the time in kernels"
    )
    store(
        "grid",
        {
            "points": len(points),
            "runs": scale.runs,
            "steps": scale.steps,
            "cores": cores(),
            "rounds": rounds,
            "wall": wall,
            "kernel_share": share,
            "best": best,
        },
    )


RUN: dict[str, Callable[[BanditScale, int], None]] = {
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
    seconds = "duration of one contender's round"
    return run_parts("bandit", __doc__, RUN, scale=BanditScale(), quick=QUICK, seconds=seconds)
