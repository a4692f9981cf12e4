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
from bench.bandits.scale import QUICK, BanditScale, alternate, median_call_s, store
from bench.measuring import import_library, spread

FIGURE = storage.DOCS / "bandit-scaling.png"


@functools.cache
def _playing_way(name: str) -> Play:
    return contenders.WAYS[name].make()


def job(name: str, num_runs: int, num_steps: int, seed: int) -> float:
    """Play runs in a process of the pool; return the total reward."""
    return _playing_way(name)(num_runs, num_steps, seed).total


def warm_up(name: str) -> None:
    """Warm up a process of the pool. The pause makes each process get one such task."""
    job(name, 2, 20, 0)
    time.sleep(0.5)


def serial_share(seconds: Mapping[int, float]) -> float:
    """Return the s of Amdahl's law T(n) / T(1) = s + (1 − s) / n by least squares."""
    x = [1 - 1 / number for number in seconds]
    y = [duration_s / seconds[1] - 1 / number for number, duration_s in seconds.items()]
    squares = sum(value * value for value in x)
    return max(sum(a * b for a, b in zip(x, y, strict=True)) / squares, 0.0) if squares else 0.0


def worker_counts() -> list[int]:
    """Return 1, 2, … up to the number of cores, and twice the number of cores."""
    num_cores = cores()
    counts = list(range(1, num_cores + 1)) if num_cores <= 8 else [2**power for power in range(20)]
    return sorted({*(number for number in counts if number <= num_cores), num_cores, 2 * num_cores})


def speed_ups(series: Mapping[int, list[float]]) -> dict[str, Any]:
    """Return speed-ups and Amdahl's serial share from the seconds by number of workers."""
    medians = {number: statistics.median(values) for number, values in series.items()}
    return {
        "points": {
            str(number): {
                "seconds": spread(values),
                # Compared within a round, because other load affects both alike.
                "speed_up": spread([a / b for a, b in zip(series[1], values, strict=True)]),
            }
            for number, values in series.items()
        },
        "serial_share": serial_share(
            {n: duration_s for n, duration_s in medians.items() if n <= cores()}
        ),
    }


def scaling(scale: BanditScale, rounds: int) -> None:
    """Measure the speed-up by threads and processes."""
    bandits = import_library("hotloop.bandits")
    agents, environment = [bandits.EpsilonGreedy(epsilon=0.1)], bandits.GaussianRewards()
    numbers, seeds = worker_counts(), itertools.count(1)

    def threads(runs: int, number: int) -> tuple[float, ...]:
        play = hotloop_plays(agents, environment, number)
        start_s = time.perf_counter()
        play(runs, scale.steps, next(seeds))
        return (time.perf_counter() - start_s,)

    def processes(name: str, runs: int, number: int) -> tuple[float, ...]:
        shares = [runs // number + (k < runs % number) for k in range(number)]
        start_s = time.perf_counter()
        futures = [pool.submit(job, name, share, scale.steps, next(seeds)) for share in shares]
        for task in futures:
            task.result()
        return (time.perf_counter() - start_s,)

    many_runs = scale.many_runs
    story = functools.partial(processes, "lazy_messages", scale.story_runs)
    ways: dict[str, tuple[str, int, Callable[[int], tuple[float, ...]]]] = {
        "threads": ("hotloop, threads", many_runs, functools.partial(threads, many_runs)),
        "threads_point": ("hotloop, threads", scale.runs, functools.partial(threads, scale.runs)),
        "processes": (
            "hotloop, processes",
            many_runs,
            functools.partial(processes, "hotloop", many_runs),
        ),
        "story_processes": ("the post's last version, processes", scale.story_runs, story),
    }
    with ProcessPoolExecutor(max(numbers), multiprocessing.get_context("spawn")) as pool:
        start_s = time.perf_counter()
        for name in ("hotloop", "lazy_messages"):
            for future in [pool.submit(warm_up, name) for _ in range(max(numbers))]:
                future.result()
        pool_start = time.perf_counter() - start_s
        measures: dict[str, Callable[[], float]] = {}
        for name, (_, _, call) in ways.items():
            for number in numbers:
                call(number)
                once = functools.partial(call, number)
                measures[f"{name} {number}"] = functools.partial(median_call_s, once, scale.seconds)
        figures = alternate(measures, rounds)
    stored: dict[str, Any] = {}
    for name, (label, runs, _) in ways.items():
        stored[name] = {"about": label, "runs": runs}
        by_number = {number: figures[f"{name} {number}"] for number in numbers}
        series = {
            number: times_s for number, times_s in by_number.items() if isinstance(times_s, list)
        }
        if 1 not in series:
            stored[name] |= by_number[1]
            continue
        stored[name] |= speed_ups(series)
        points = stored[name]["points"].items()
        cells = [f"{number}: {point['speed_up']['median']:.2f}" for number, point in points]
        share = stored[name]["serial_share"]
        print(f"  {label}, {runs:,} runs: {', '.join(cells)}; serial share {share:.1%}")
    result = {"steps": scale.steps, "rounds": rounds, "cores": cores(), "ways": stored}
    store("scaling", {**result, "pool_start": pool_start})
    path = FIGURE if scale is not QUICK else storage.RESULTS / FIGURE.name
    draw_scaling(result, path)
    print(f"drawn: {path.name}")


def draw_scaling(result: Mapping[str, Any], path: Path) -> None:
    """Draw the speed-up by number of threads or processes, with Amdahl's curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    num_cores = result["cores"]
    curve = [1 + (num_cores - 1) * step / 100 for step in range(101)]
    ticks = {1}
    colors = ("tab:blue", "tab:cyan", "tab:green", "tab:red")
    for place, (color, way) in enumerate(zip(colors, result["ways"].values(), strict=True)):
        if "missing" in way:
            continue
        ticks |= {int(number) for number in way["points"]}
        ups = [point["speed_up"] for point in way["points"].values()]
        middle = [up["median"] for up in ups]
        ends = [[up["median"] - up["min"] for up in ups], [up["max"] - up["median"] for up in ups]]
        # Small offsets separate overlapping points.
        xs = [int(number) + 0.03 * (place - 1.5) for number in way["points"]]
        axes.errorbar(xs, middle, ends, fmt="o", capsize=3, markersize=4, color=color)
        share = way["serial_share"]
        label = f"{way['about']}, {way['runs']:,} runs: serial share {share:.1%}"
        fitted = [1 / (share + (1 - share) / number) for number in curve]
        axes.plot(curve, fitted, color=color, label=label)
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
