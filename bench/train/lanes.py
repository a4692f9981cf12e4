"""Several seeds of one setting: one after another, two at a time, and as lanes.

    python -m bench lanes
    python -m bench lanes --seeds 8 --timesteps 102400 --repeats 3

`hotloop train ppo --env-id CartPole-v1` with its defaults, compiled, one thread. The
ways alternate. A training's seconds are those from its first iteration to its last, start-up apart;
of two at a time, and of lanes in two processes, both halves run at once. Printed and stored: the
seconds that all seeds take, and their mean return over the last tenth of the steps.
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
from bench.markdown import scaled, table
from bench.measuring import spread
from hotloop.runs import RunDirectory
from hotloop.runs.comparison import episodes_in

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
    """Return the seconds of training that all seeds take, and each one's return."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs"
        command = [sys.executable, "-W", "ignore", "-m", "hotloop", "train", "ppo", *OPTIONS]
        command += ["--total-timesteps", str(timesteps), "--seeds", f"1-{seeds}"]
        command += [*WAYS[way], "--run-dir", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        runs = [RunDirectory.open(path / f"seed_{k + 1}").metrics() for k in range(seeds)]
    taken = [lines[-1]["elapsed_s"] for lines in runs]
    returns = []
    for lines in runs:
        steps, each = episodes_in(lines)
        returns.append(float(each[steps > 0.9 * timesteps].mean()))
    if way.startswith("lanes"):
        return max(taken), returns
    return sum(taken) / (2 if way.startswith("two") else 1), returns


def lanes_table() -> str:
    """One row for each way."""
    stored = storage.load("lanes")
    rows = [
        [f"{stored['seeds']} seeds of PPO CartPole-v1, {stored['timesteps']:,} steps each", "s"]
    ]
    rows[0] += ["of the first", "steps/s in all", "return, mean over seeds"]
    ways = stored["ways"]
    first = statistics.median(ways[next(iter(WAYS))]["seconds"])
    for way, told in ways.items():
        middle = statistics.median(told["seconds"])
        rate = stored["seeds"] * stored["timesteps"] / middle
        mean = statistics.fmean(told["returns"])
        rows.append(
            [
                way,
                scaled(spread(told["seconds"]), 1.0),
                f"{middle / first:.2f}",
                f"{rate:,.0f}",
                f"{mean:.0f}",
            ]
        )
    return table(*rows)


def main() -> int:
    """Measure all ways in turn, print and store."""
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
        for way, told in ways.items():
            seconds, told["returns"] = measure(way, options.seeds, options.timesteps)
            told["seconds"].append(round(seconds, 3))
            print(f"{way}: {seconds:.2f} s", flush=True)
    about = {"seeds": options.seeds, "timesteps": options.timesteps}
    path = storage.save("lanes", {**about, "ways": ways})
    print(f"{lanes_table()}\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
