"""Speed-up by threads, and by processes with the same work."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench import storage
from bench.bandits import contenders
from bench.bandits.contenders import cores, hotloop_plays
from bench.bandits.plays import Play
from bench.bandits.scale import QUICK, Scale, alternate, per_call, store
from bench.measuring import imported, spread

FIGURE = storage.DOCS / "bandit-scaling.png"


@functools.cache
def _playing_way(name: str) -> Play:
    return contenders.WAYS[name].make()


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
