"""Several seeds of one setting: one after another, two at a time, and vectorized (lanes).

    python -m bench lanes
    python -m bench lanes --seeds 8 --timesteps 102400 --repeats 3

The command is `hotloop train ppo --env-id CartPole-v1` with default options, compiled, with one
thread. The ways alternate. A training's seconds are those from its first iteration to its last,
without start-up. With two processes, both halves run at the same time. The figures are the seconds
of all seeds, and their mean return over the last tenth of the steps.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import format_figure, table
from bench.measuring import spread
from hotloop.runs import RunDirectory
from hotloop.runs.episodes import episodes_from_metrics

OPTIONS = ("--env-id", "CartPole-v1", "--torch-threads", "1", "--execution", "compile")
OVERLAPPED = ("--workers", "1", "--overlap")
WAYS: dict[str, tuple[str, ...]] = {
    "one after another, a worker, overlapped": ("--jobs", "1", *OVERLAPPED),
    "one after another, inline": ("--jobs", "1"),
    "two at a time, inline": ("--jobs", "2"),
    "lanes, one process": ("--lanes", "on", "--jobs", "1"),
    "lanes, two processes": ("--lanes", "on", "--jobs", "2"),
}
"""The first is the fastest way to train one seed."""


def measure(way: str, seeds: int, timesteps: int) -> tuple[float, list[float]]:
    """Return the training seconds of all seeds, and each seed's return."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs"
        command = [sys.executable, "-W", "ignore", "-m", "hotloop", "train", "ppo", *OPTIONS]
        command += ["--total-timesteps", str(timesteps), "--seeds", f"1-{seeds}"]
        command += [*WAYS[way], "--run-dir", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        runs = [RunDirectory.open(path / f"seed_{k + 1}").metrics() for k in range(seeds)]
    durations_s = [lines[-1]["elapsed_s"] for lines in runs]
    returns = []
    for lines in runs:
        steps, each = episodes_from_metrics(lines)
        returns.append(float(each[steps > 0.9 * timesteps].mean()))
    if way.startswith("lanes"):
        return max(durations_s), returns
    return sum(durations_s) / (2 if way.startswith("two") else 1), returns


def lanes_table() -> str:
    """Return a table with one row per way."""
    stored = storage.load("lanes")
    rows = [
        [
            f"{stored['seeds']} seeds of PPO CartPole-v1, {stored['timesteps']:,} steps each",
            "time, s",
        ]
    ]
    rows[0] += ["over the first", "steps/s of all seeds", "return, mean over seeds"]
    ways = stored["ways"]
    first = statistics.median(ways[next(iter(WAYS))]["seconds"])
    for way, figures in ways.items():
        middle = statistics.median(figures["seconds"])
        rate = stored["seeds"] * stored["timesteps"] / middle
        mean = statistics.fmean(figures["returns"])
        rows.append(
            [
                way,
                format_figure(spread(figures["seconds"]), 1.0),
                f"{middle / first:.2f}",
                f"{rate:,.0f}",
                f"{mean:.0f}",
            ]
        )
    return table(*rows)


def main() -> int:
    """Measure all ways in turn, print and store the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench lanes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--timesteps", type=int, default=102_400)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for way in WAYS:  # fills the compiler's cache
        measure(way, options.seeds, 2_048)
    ways: dict[str, dict[str, Any]] = {way: {"seconds": []} for way in WAYS}
    for _ in range(options.repeats):
        for way, figures in ways.items():
            seconds, figures["returns"] = measure(way, options.seeds, options.timesteps)
            figures["seconds"].append(round(seconds, 3))
            print(f"{way}: {seconds:.2f} s", flush=True)
    settings = {"seeds": options.seeds, "timesteps": options.timesteps}
    path = storage.save("lanes", {**settings, "ways": ways})
    print(f"{lanes_table()}\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
