"""Stages of a short training from the prompt to its end.

    python -m bench start
    python -m bench start --timesteps 20000 --repeats 10

`hotloop train ppo --env-id CartPole-v1` runs in a new process each time. A first run with
`--execution compile` fills the cache with the compiled update. Lines are those of the printed
timing tree. Figures are median, minimum and maximum over the repeats, in seconds.

`start.json`: `lines`, by name, in order: a figure; `whole`, from prompt to end.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time

from bench import storage
from bench.markdown import format_figure, table
from bench.measuring import spread

TRAIN = ("train", "ppo", "--env-id", "CartPole-v1")
# Path of each line in the timing tree, and its explanation.
LINES: dict[str, tuple[tuple[str, ...], str]] = {
    "begin Python": (
        ("start", "begin Python"),
        "The interpreter and the command, which imports no heavy library "
        "(`python -m bench imports` checks this).",
    ),
    "import torch": (
        ("start", "import torch"),
        "torch computes the update. Its compiler, which takes longer to import, is not imported.",
    ),
    "import hotloop": (
        ("start", "import hotloop"),
        "The algorithm, its networks, its learner and its workers. tyro, Gymnasium and matplotlib "
        "are imported later if needed.",
    ),
    "read options": (
        ("start", "read options"),
        "tyro makes an option for each field of the configuration, and every value is validated.",
    ),
    "make environments": (
        ("make_envs",),
        "Gymnasium is imported and makes eight environments. Their spaces determine the network.",
    ),
    "make the learner": (
        ("make_learner",),
        "Parameters, Adam's moments and the rollout's arrays are allocated once.",
    ),
    "load the update": (
        ("update", "minibatch", "compile"),
        "The update runs once on copies to compute its cache key. The cached artifact is verified "
        "by its digest and loaded.",
    ),
}
TRAINING = "the training itself"
END = "the end"
WHY = {
    TRAINING: "Collecting, learning and saving the checkpoint.",
    END: "A process that was started earlier draws the curve. The summary is printed, and the "
    "interpreter exits.",
}
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
ROW = re.compile(r"( *)(\S.*?)  +[\d.]+%  .*?([\d.,]+) (ns|µs|ms|s)(?:  \w+)?$")


def seconds_by_path(printed: str) -> dict[tuple[str, ...], float]:
    """Return the total of each row of a printed timing tree, by its path below the root."""
    seconds: dict[tuple[str, ...], float] = {}
    path: list[str] = []
    for line in printed.splitlines():
        if row := ROW.match(line):
            indent, name, total, unit = row.groups()
            path[len(indent) // 2 :] = [name]
            seconds[tuple(path[1:])] = float(total.replace(",", "")) * UNITS[unit]
    return seconds


def run(timesteps: int, *options: str) -> dict[str, float]:
    """Train once in a new process; return the seconds of each line and of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*TRAIN, "--total-timesteps", str(timesteps), "--run-dir", f"{folder}/run"]
        start_s = time.perf_counter()
        completed = subprocess.run(
            [sys.executable, "-m", "hotloop", *command, *options],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        whole_s = time.perf_counter() - start_s
    tree = seconds_by_path(completed.stdout)
    lines = {name: tree.get(path, 0.0) for name, (path, _) in LINES.items()}
    lines[TRAINING] = tree[()] - sum(lines.values())
    return {**lines, END: whole_s - tree[()], "whole": whole_s}


def start_table() -> str:
    """Return a table with one row per line and its explanation."""
    result = storage.load("start")
    whole_s = result["whole"]["median"]
    rows = [["", "time, s", "share", ""]]
    for name, figure in result["lines"].items():
        reason = LINES[name][1] if name in LINES else WHY[name]
        rows.append([name, format_figure(figure, 1.0), f"{figure['median'] / whole_s:.0%}", reason])
    rows.append(["from prompt to end", format_figure(result["whole"], 1.0), "", ""])
    return table(*rows)


def main() -> int:
    """Fill the cache, measure, print and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--timesteps", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    run(options.timesteps, "--execution", "compile")
    runs: list[dict[str, float]] = []
    for number in range(1, options.repeats + 1):
        runs.append(run(options.timesteps))
        print(f"run {number}: {runs[-1]['whole']:.2f} s from prompt to end", flush=True)
    figures = {name: spread([run_seconds[name] for run_seconds in runs]) for name in runs[0]}
    for name, figure in figures.items():
        print(f"{name:20}{figure['median']:7.3f} s ({figure['min']:.3f}–{figure['max']:.3f})")
    path = storage.save(
        "start",
        {
            "command": " ".join(["python -m bench start", *sys.argv[1:]]),
            "timesteps": options.timesteps,
            "repeats": options.repeats,
            "whole": figures.pop("whole"),
            "lines": figures,
        },
    )
    print(f"stored: {path.relative_to(storage.ROOT)}")
    return 0
