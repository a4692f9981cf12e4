"""Costs of a process: time until the first result, and peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from bench.bandits.scale import BanditScale, store
from bench.measuring import Missing, spread

# Another library installs SciPy, and Numba imports it if present. hotloop[bandit] has no SciPy.
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
    """Return the seconds of a Python process and its output."""
    start_s = time.perf_counter()
    completed = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "HOTLOOP_CACHE": cache},
        capture_output=True,
        text=True,
    )
    duration_s = time.perf_counter() - start_s
    if completed.returncode:
        raise Missing(f"failed: {''.join(completed.stderr.strip().splitlines()[-1:])[:200]}")
    return duration_s, completed.stdout


def start(scale: BanditScale, rounds: int) -> None:
    """Time the first result of a process. Two warm starts follow each cold one."""
    kinds: dict[str, dict[str, list[float]]] = {"cold": {}, "warm": {}}
    missing: dict[str, Any] = {}
    sizes = (str(scale.runs), str(scale.steps))
    words = ("bandit", "run", "epsilon-greedy", "--json", "--epsilon", "0.1")
    command = ("-c", COMMAND, *words, "--runs", sizes[0], "--steps", sizes[1])
    for _ in range(min(rounds, scale.starts)):
        for program in ("api", "command"):
            # Separate caches, so that each program compiles its functions.
            with tempfile.TemporaryDirectory() as cache:
                for kind in ("cold", "warm", "warm"):
                    try:
                        if program == "command":
                            figures = {"command": timed_process(command, cache)[0]}
                        else:
                            process, printed = timed_process(("-c", START, *sizes), cache)
                            figures = json.loads(printed.splitlines()[-1]) | {"process": process}
                    except Missing as error:
                        missing[program] = {"missing": str(error)}
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
    for program, figures in missing.items():
        print(f"  {program}: {figures['missing']}")
    store("start", {"starts": min(rounds, scale.starts), **result, "missing": missing})


# Not ru_maxrss, which a child inherits from its parent.
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


def memory(scale: BanditScale, rounds: int) -> None:
    """Measure peak memory by number of runs, each in its own process."""
    del rounds  # memory hardly varies
    points = []
    for runs in (scale.runs, scale.most_runs):
        command = [sys.executable, "-c", MEMORY, str(runs), str(scale.steps)]
        completed = subprocess.run(command, check=True, capture_output=True, text=True)
        point = json.loads(completed.stdout.splitlines()[-1])
        point["reward"] = dict(zip(("mean", "se"), point["reward"], strict=True))
        points.append(point)
        print(
            f"  {runs:9,} runs × {scale.steps:,} steps: {point['peak_bytes'] / 2**20:.0f} MiB, "
            f"{point['imported_bytes'] / 2**20:.0f} MiB of it by importing, "
            f"{point['seconds']:.2f} s"
        )
    store("memory", {"steps": scale.steps, "points": points})
