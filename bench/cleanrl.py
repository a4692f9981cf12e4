"""Scripts in CleanRL's style, with and without hotloop: their differences and their CPU time.

    python -m bench cleanrl --repeats 5

Runs alternate, each in its own process with one thread. The figure is the process's CPU time from
start to exit, with imports, in a cache that an earlier run has filled.
"""

from __future__ import annotations

import argparse
import difflib
import os
import resource
import subprocess
import sys

from bench import storage
from bench.markdown import format_figure, table
from bench.measuring import spread

FOLDER = storage.ROOT / "examples" / "cleanrl_style"
RESULT = "cleanrl"
TIMESTEPS = {"ppo": 50_000, "dqn": 50_000, "sac": 8_000}
# Steps of a run that compiles the updates, as runs of CleanRL's length do.
COMPILING = """
from hotloop import learner
choose = learner.choose
learner.choose = lambda mode, **options: choose("compile", **options)
import {name}_hotloop as script
script.main(script.Args(total_timesteps={timesteps}))
"""
COMPILING_TIMESTEPS = {"ppo": 1_024, "dqn": 10_100, "sac": 5_100}


def difference(name: str) -> str:
    """Return the difference between a script and its version with hotloop, as Markdown."""
    files = f"{name}.py", f"{name}_hotloop.py"
    before, after = ((FOLDER / file).read_text().splitlines() for file in files)
    text = "\n".join(difflib.unified_diff(before, after, *files, n=1, lineterm=""))
    return f"```diff\n{text}\n```"


def speed_table() -> str:
    """Return a table with a row per script."""
    rows = [["script", "steps", "CPU seconds", "with hotloop", "ratio"]]
    for name, row in storage.load(RESULT)["scripts"].items():
        figures = [row["original"], row["hotloop"]]
        cells = [format_figure(figure, 1.0) for figure in figures]
        ratio = figures[0]["median"] / figures[1]["median"]
        rows.append([f"`{name}.py`", f"{row['timesteps']:,}", *cells, f"{ratio:.2f}"])
    return table(*rows)


def run(*arguments: str) -> float:
    """Run Python in the scripts' folder and return its CPU time, s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        cwd=FOLDER,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(prog="python -m bench cleanrl", description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    scripts = {}
    for name, timesteps in TIMESTEPS.items():
        run("-c", COMPILING.format(name=name, timesteps=COMPILING_TIMESTEPS[name]))
        seconds: dict[str, list[float]] = {"original": [], "hotloop": []}
        for k in range(repeats):
            # The order is reversed every other round.
            for side in list(seconds)[:: -1 if k % 2 else 1]:
                script = f"{name}.py" if side == "original" else f"{name}_hotloop.py"
                seconds[side].append(run(script, "--total_timesteps", str(timesteps)))
        scripts[name] = {
            "timesteps": timesteps,
            **{side: spread(values) for side, values in seconds.items()},
        }
        storage.save(RESULT, {"benchmark": "scripts in CleanRL's style", "scripts": scripts})
        print(name, scripts[name], flush=True)
    return 0
