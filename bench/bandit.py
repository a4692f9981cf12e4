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

- `seed`: a grid point (2000 runs × 1000 steps) by all contenders (see bandit_ways.py). What takes
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

import functools
import importlib.metadata
import itertools
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bench import bandit_ways, storage
from bench.bandit_seed import PUBLISHED, play
from bench.bandit_ways import Moments, cores, hotloop_plays
from bench.parts import run_parts
from bench.replay_seed import Missing
from bench.replay_ways import imported
from bench.replay_workers import repeated, spread

FIGURE = Path(__file__).parent.parent / "docs" / "bandit-scaling.png"
LIBRARIES = (
    *("numba", "llvmlite", "scipy", "omegaconf", "pymab", "mabwiser", "SMPyBandits"),
    "EpsilonGreedy",
)


class Scale(NamedTuple):
    """How much is measured."""

    runs: int = 2000
    steps: int = 1000
    seconds: float = 0.6
    """Calls of one contender in a round go on for this long, or for one call."""
    many_runs: int = 65_536
    """Of the scaling."""
    story_runs: int = 200
    """Of the scaling of the post's program."""
    most_runs: int = 1_000_000
    """Of the memory."""
    starts: int = 3
    exercise: tuple[int | None, int | None] = (None, None)
    """Runs and steps; the book's."""
    grid: tuple[int, int] = (20, 10)


QUICK = Scale(256, 40, 0.01, 1024, 4, 4096, 1, (64, 400), (2, 2))


def alternate(
    measures: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, list[Any] | dict[str, str]]:
    """Call all of them in turn, in another order each round.

    Returns:
        What each gave, a list over rounds, or `missing`.
    """
    results: dict[str, Any] = {name: [] for name in measures}
    for number in range(rounds):
        order = list(measures)
        random.Random(number).shuffle(order)
        for name in order:
            if isinstance(results[name], list):
                try:
                    results[name].append(measures[name]())
                except Exception as error:
                    results[name] = {"missing": f"failed: {why(error)}"}
        print(".", end="", flush=True)
    print()
    return results


def why(error: Exception) -> str:
    """An error in a line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def store(part: str, result: dict[str, Any]) -> None:
    """Write one part's result."""
    versions = {}
    for library in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    path = storage.save(f"bandit_{part}", {"more_versions": versions, **result})
    print(f"stored: {path.parent.name}/{path.name}")


def scaled(figures: Mapping[str, float], factor: float) -> dict[str, float]:
    """A spread in another unit."""
    return {name: value * factor for name, value in figures.items()}


def per_call(once: Callable[[], tuple[float, ...]], seconds: float) -> float:
    """The median of calls that go on for this long, or of the one that takes longer."""
    return repeated(once, ("call",), seconds, 1)["call"]


class Playing:
    """A contender that was set up: `round` measures, and what it got is added up."""

    def __init__(self, play: bandit_ways.Play, runs: int, scale: Scale) -> None:
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
    for name, way in bandit_ways.WAYS.items():
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
    for name, about in bandit_ways.UNAVAILABLE.items():
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
    found = bandit_ways.cases(scale.steps)
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


@functools.cache
def _playing_way(name: str) -> bandit_ways.Play:
    return bandit_ways.WAYS[name].make()


def job(name: str, num_runs: int, num_steps: int, seed: int) -> float:
    """What a process of the pool is asked to do."""
    return _playing_way(name)(num_runs, num_steps, seed).total


def warmed(name: str) -> None:
    """What it is asked first. The pause lets every process of the pool have one."""
    job(name, 2, 20, 0)
    time.sleep(0.5)


def serial_share(seconds: Mapping[int, float]) -> float:
    """Amdahl's: of T(n) / T(1) = s + (1 − s) / n the s that fits best, by least squares."""
    x = [1 - 1 / number for number in seconds]
    y = [took / seconds[1] - 1 / number for number, took in seconds.items()]
    squares = sum(one * one for one in x)
    return max(sum(a * b for a, b in zip(x, y, strict=True)) / squares, 0.0) if squares else 0.0


def numbers_of_workers() -> list[int]:
    """1, 2, … up to the cores, then twice that: beyond the cores nothing is to be had."""
    most = cores()
    few = list(range(1, most + 1)) if most <= 8 else [2**power for power in range(20)]
    return sorted({*(number for number in few if number <= most), most, 2 * most})


def speed_ups(series: Mapping[int, list[float]]) -> dict[str, Any]:
    """From seconds over rounds, by number of workers: speed-ups, and Amdahl's serial share."""
    medians = {number: statistics.median(values) for number, values in series.items()}
    return {
        "points": {
            str(number): {
                "seconds": spread(values),
                # Round by round, as what slows one of a round slows the other as well.
                "speed_up": spread([a / b for a, b in zip(series[1], values, strict=True)]),
            }
            for number, values in series.items()
        },
        "serial_share": serial_share({n: took for n, took in medians.items() if n <= cores()}),
    }


def scaling(scale: Scale, rounds: int) -> None:
    """Threads and processes."""
    bandits = imported("hotloop.bandits")
    agents, environment = [bandits.EpsilonGreedy(epsilon=0.1)], bandits.Gaussian()
    numbers, seeds = numbers_of_workers(), itertools.count(1)

    def threads(runs: int, number: int) -> tuple[float, ...]:
        play = hotloop_plays(agents, environment, number)
        began = time.perf_counter()
        play(runs, scale.steps, next(seeds))
        return (time.perf_counter() - began,)

    def processes(name: str, runs: int, number: int) -> tuple[float, ...]:
        shares = [runs // number + (one < runs % number) for one in range(number)]
        began = time.perf_counter()
        asked = [pool.submit(job, name, share, scale.steps, next(seeds)) for share in shares]
        for one in asked:
            one.result()
        return (time.perf_counter() - began,)

    many = scale.many_runs
    story = functools.partial(processes, "lazy_messages", scale.story_runs)
    ways: dict[str, tuple[str, int, Callable[[int], tuple[float, ...]]]] = {
        "threads": ("hotloop, threads", many, functools.partial(threads, many)),
        "threads_point": ("hotloop, threads", scale.runs, functools.partial(threads, scale.runs)),
        "processes": ("hotloop, processes", many, functools.partial(processes, "hotloop", many)),
        "story_processes": ("the post's last version, processes", scale.story_runs, story),
    }
    with ProcessPoolExecutor(max(numbers), multiprocessing.get_context("spawn")) as pool:
        began = time.perf_counter()
        for name in ("hotloop", "lazy_messages"):
            for one in [pool.submit(warmed, name) for _ in range(max(numbers))]:
                one.result()
        pool_start = time.perf_counter() - began
        measures: dict[str, Callable[[], float]] = {}
        for name, (_, _, call) in ways.items():
            for number in numbers:
                call(number)
                once = functools.partial(call, number)
                measures[f"{name} {number}"] = functools.partial(per_call, once, scale.seconds)
        figures = alternate(measures, rounds)
    stored: dict[str, Any] = {}
    for name, (about, runs, _) in ways.items():
        stored[name] = {"about": about, "runs": runs}
        found = {number: figures[f"{name} {number}"] for number in numbers}
        series = {number: one for number, one in found.items() if isinstance(one, list)}
        if 1 not in series:
            stored[name] |= found[1]
            continue
        stored[name] |= speed_ups(series)
        points = stored[name]["points"].items()
        cells = [f"{number}: {one['speed_up']['median']:.2f}" for number, one in points]
        share = stored[name]["serial_share"]
        print(f"  {about}, {runs:,} runs: {', '.join(cells)}; serial share {share:.1%}")
    result = {"steps": scale.steps, "rounds": rounds, "cores": cores(), "ways": stored}
    store("scaling", {**result, "pool_start": pool_start})
    path = FIGURE if scale is not QUICK else storage.RESULTS / FIGURE.name
    draw_scaling(result, path)
    print(f"drawn: {path.name}")


def draw_scaling(result: Mapping[str, Any], path: Path) -> None:
    """Speed-up by number of threads or processes, with Amdahl's curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    num_cores = result["cores"]
    curve = [1 + (num_cores - 1) * step / 100 for step in range(101)]
    ticks = {1}
    colours = ("tab:blue", "tab:cyan", "tab:green", "tab:red")
    for place, (colour, way) in enumerate(zip(colours, result["ways"].values(), strict=True)):
        if "missing" in way:
            continue
        ticks |= {int(number) for number in way["points"]}
        ups = [point["speed_up"] for point in way["points"].values()]
        middle = [up["median"] for up in ups]
        ends = [[up["median"] - up["min"] for up in ups], [up["max"] - up["median"] for up in ups]]
        # A little aside of each other, as they lie on each other.
        where = [int(number) + 0.03 * (place - 1.5) for number in way["points"]]
        axes.errorbar(where, middle, ends, fmt="o", capsize=3, markersize=4, color=colour)
        share = way["serial_share"]
        label = f"{way['about']}, {way['runs']:,} runs: serial share {share:.1%}"
        fitted = [1 / (share + (1 - share) / number) for number in curve]
        axes.plot(curve, fitted, color=colour, label=label)
    axes.plot([1, num_cores], [1, num_cores], ":", color="grey", label="ideal")
    axes.axvline(num_cores, color="grey", linewidth=0.8)
    axes.annotate("  cores", (num_cores, 0.05), color="grey")
    axes.set_xticks(sorted(ticks))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("threads or processes")
    axes.set_ylabel("speed-up (times one)")
    axes.set_title(f"ε-greedy, {result['steps']:,} steps a run; lines: Amdahl's law")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


# A peer brings SciPy, and Numba imports it where it finds it; hotloop[bandit] does without.
WITHOUT_SCIPY = "import sys; sys.modules['scipy'] = None\n"
START = (
    WITHOUT_SCIPY
    + """
import json, time
began = time.perf_counter()
from hotloop.bandits import EpsilonGreedy, run
imported = time.perf_counter()
result = run(EpsilonGreedy(epsilon=0.1), num_runs=int(sys.argv[1]), num_steps=int(sys.argv[2]))
reward = result.mean_reward.mean
called = time.perf_counter()
print(json.dumps({"imports": imported - began, "first_result": called - imported}))
"""
)
COMMAND = WITHOUT_SCIPY + "from hotloop.cli import main; sys.exit(main(sys.argv[1:]))"


def timed_process(arguments: Sequence[str], cache: str) -> tuple[float, str]:
    """Seconds of a Python process, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise Missing(f"failed: {''.join(done.stderr.strip().splitlines()[-1:])[:200]}")
    return took, done.stdout


def start(scale: Scale, rounds: int) -> None:
    """The first result of a process. Each cold start is followed by two warm ones."""
    kinds: dict[str, dict[str, list[float]]] = {"cold": {}, "warm": {}}
    missing: dict[str, Any] = {}
    sizes = (str(scale.runs), str(scale.steps))
    words = ("bandit", "run", "epsilon-greedy", "--json", "--epsilon", "0.1")
    command = ("-c", COMMAND, *words, "--runs", sizes[0], "--steps", sizes[1])
    for _ in range(min(rounds, scale.starts)):
        for what in ("api", "command"):
            # A cache of its own for each: what one has compiled, the other would find.
            with tempfile.TemporaryDirectory() as cache:
                for kind in ("cold", "warm", "warm"):
                    try:
                        if what == "command":
                            figures = {"command": timed_process(command, cache)[0]}
                        else:
                            process, printed = timed_process(("-c", START, *sizes), cache)
                            figures = json.loads(printed.splitlines()[-1]) | {"process": process}
                    except Missing as error:
                        missing[what] = {"missing": str(error)}
                        continue
                    for name, value in figures.items():
                        kinds[kind].setdefault(name, []).append(value)
        print(".", end="", flush=True)
    print()
    result = {
        kind: {name: spread(values) for name, values in figures.items()}
        for kind, figures in kinds.items()
    }
    for kind, figures in result.items():
        cells = [f"{name} {values['median']:.2f} s" for name, values in figures.items()]
        print(f"  {kind} cache: {', '.join(cells)}")
    for what, figures in missing.items():
        print(f"  {what}: {figures['missing']}")
    store("start", {"starts": min(rounds, scale.starts), **result, "missing": missing})


# Not ru_maxrss: a child's starts from what its parent held.
MEMORY = (
    WITHOUT_SCIPY
    + """
import json
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))
from hotloop.bandits import EpsilonGreedy, run
imported = peak()
num_runs, num_steps = int(sys.argv[1]), int(sys.argv[2])
result = run(EpsilonGreedy(epsilon=0.1), num_runs=num_runs, num_steps=num_steps)
print(json.dumps({"runs": num_runs, "imported_bytes": imported, "peak_bytes": peak(),
                  "seconds": result.elapsed_s, "reward": result.mean_reward}))
"""
)


def memory(scale: Scale, rounds: int) -> None:
    """Peak memory by number of runs: processes of their own, one for each."""
    del rounds  # bytes do not vary much
    points = []
    for runs in (scale.runs, scale.most_runs):
        command = [sys.executable, "-c", MEMORY, str(runs), str(scale.steps)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        point = json.loads(done.stdout.splitlines()[-1])
        point["reward"] = dict(zip(("mean", "se"), point["reward"], strict=True))
        points.append(point)
        print(
            f"  {runs:9,} runs × {scale.steps:,} steps: {point['peak_bytes'] / 2**20:.0f} MiB, "
            f"{point['imported_bytes'] / 2**20:.0f} MiB of it by importing, "
            f"{point['seconds']:.2f} s"
        )
    store("memory", {"steps": scale.steps, "points": points})


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
    grids = imported("hotloop.bandits.grid")
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


if __name__ == "__main__":
    sys.exit(main())
