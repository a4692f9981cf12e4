"""Start of a training: what goes by from the prompt to the end of a short one, line by line.

    python -m bench start
    python -m bench start --timesteps 20000 --repeats 10

`hotloop train ppo --env-id CartPole-v1` runs as a user starts it, a process each time. A run with
`--execution compile` comes first: it fills the cache, so that the others find the compiled update
there. Lines are those of the timing tree that is printed. Kept are the median and the extremes over
the repeats, in seconds.

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
from bench.markdown import scaled, table
from bench.measuring import spread

TRAIN = ("train", "ppo", "--env-id", "CartPole-v1")
# Where each line's seconds are in the tree, and why they are spent.
LINES: dict[str, tuple[tuple[str, ...], str]] = {
    "begin Python": (
        ("start", "begin Python"),
        "The interpreter and the command, which imports nothing heavy (`python -m bench imports` "
        "holds it to that).",
    ),
    "import torch": (
        ("start", "import torch"),
        "The update is torch's; its compiler's half, which takes longer than this, stays out.",
    ),
    "import hotloop": (
        ("start", "import hotloop"),
        "The algorithm, its networks, its learner and its workers; tyro, Gymnasium and matplotlib "
        "come where they are needed.",
    ),
    "read options": (
        ("start", "read options"),
        "tyro makes an option of each field of the configuration, and every value is checked.",
    ),
    "make environments": (
        ("make_envs",),
        "Gymnasium is imported and makes eight of them; their spaces decide the network's shapes.",
    ),
    "make the learner": (
        ("make_learner",),
        "Parameters, Adam's moments and the rollout's arrays are made once, in their final size.",
    ),
    "load the update": (
        ("update", "minibatch", "compile"),
        "The update runs once on copies, which is its key in the cache; what is found there is "
        "held against its digest and loaded.",
    ),
}
TRAINING = "the training itself"
END = "the end"
WHY = {
    TRAINING: "Collecting and learning, and the checkpoint: what the command is for.",
    END: "The curve is drawn, by a process that was begun before; the summary is printed and the "
    "interpreter ends.",
}
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
ROW = re.compile(r"( *)(\S.*?)  +[\d.]+%  .*?([\d.,]+) (ns|µs|ms|s)(?:  \w+)?$")


def seconds_by_path(printed: str) -> dict[tuple[str, ...], float]:
    """Return the total of each row of a printed timing tree, by its path below the root."""
    found: dict[tuple[str, ...], float] = {}
    path: list[str] = []
    for line in printed.splitlines():
        if row := ROW.match(line):
            indent, name, total, unit = row.groups()
            path[len(indent) // 2 :] = [name]
            found[tuple(path[1:])] = float(total.replace(",", "")) * UNITS[unit]
    return found


def run(timesteps: int, *options: str) -> dict[str, float]:
    """Train once in a fresh process; return the seconds of each line, and of the whole."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*TRAIN, "--total-timesteps", str(timesteps), "--run-dir", f"{folder}/run"]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "hotloop", *command, *options],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        whole = time.perf_counter() - began
    tree = seconds_by_path(done.stdout)
    lines = {name: tree.get(path, 0.0) for name, (path, _) in LINES.items()}
    lines[TRAINING] = tree[()] - sum(lines.values())
    return {**lines, END: whole - tree[()], "whole": whole}


def start_table() -> str:
    """One row for each line of the start, with what it is for."""
    result = storage.load("start")
    whole = result["whole"]["median"]
    rows = [["", "s", "share", ""]]
    for name, figure in result["lines"].items():
        why = LINES[name][1] if name in LINES else WHY[name]
        rows.append([name, scaled(figure, 1.0), f"{figure['median'] / whole:.0%}", why])
    rows.append(["from prompt to end", scaled(result["whole"], 1.0), "", ""])
    return table(*rows)


def main() -> int:
    """Fill the cache, measure, print, store."""
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
    figures = {name: spread([one[name] for one in runs]) for name in runs[0]}
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
