"""Learning: trainings from the command line over seeds, each evaluated on 100 episodes.

    python -m bench learning [--task "sac Pendulum-v1"] [--jobs 2]

Stores `bench/results/learning.json`: evaluation returns, and the mean training return of the first
and the last tenth of the steps. Tasks that are not run keep what is stored of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench import storage

# Task → algorithm, options of `hotloop train`, and seeds; what else there is comes from presets.
TASKS: dict[str, tuple[str, list[str], range]] = {
    "CartPole-v1": ("ppo", ["--total-timesteps", "200000"], range(1, 6)),
    "Pendulum-v1": ("ppo", ["--total-timesteps", "200000", "--gamma", "0.95"], range(1, 4)),
    "HalfCheetah-v5": (
        "ppo",
        [
            *("--total-timesteps", "200000", "--num-envs", "1", "--num-steps", "2048"),
            *("--num-minibatches", "32", "--learning-rate", "3e-4"),
        ],
        range(1, 4),
    ),
    "sac Pendulum-v1": ("sac", ["--total-timesteps", "20000"], range(1, 6)),
    "td3 Pendulum-v1": ("td3", ["--total-timesteps", "20000"], range(1, 6)),
    "dqn CartPole-v1": ("dqn", ["--total-timesteps", "100000"], range(1, 6)),
}


def learn(
    algorithm: str, env_id: str, options: list[str], seed: int, folder: Path
) -> dict[str, Any]:
    """One training and its evaluation, as a user would do them."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import episodes_of

    run_dir = folder / f"{env_id}-{seed}"
    hotloop = [sys.executable, "-m", "hotloop"]
    where = ["--env-id", env_id, "--seed", str(seed), "--run-dir", str(run_dir)]
    command = [*hotloop, "train", algorithm, *where, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    command = [*hotloop, "eval", str(run_dir), "--episodes", "100", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    evaluation = json.loads(done.stdout)
    steps, returns = episodes_of(RunDirectory.open(run_dir))
    tenth = steps.max() / 10
    return {
        "seed": seed,
        "mean_return": round(evaluation["mean_return"], 1),
        "std_return": round(evaluation["std_return"], 1),
        "training_first_tenth": round(float(returns[steps <= tenth].mean()), 1),
        "training_last_tenth": round(float(returns[steps > 9 * tenth].mean()), 1),
    }


def main() -> int:
    """Train, evaluate, print, store."""
    parser = argparse.ArgumentParser(prog="python -m bench learning", description=__doc__)
    parser.add_argument("--task", choices=sorted(TASKS), help="one task (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="seeds side by side, a core each")
    arguments = parser.parse_args()
    try:
        results = storage.load("learning")["tasks"]
    except FileNotFoundError:
        results = {}
    for task, (algorithm, options, seeds) in TASKS.items():
        if arguments.task not in (None, task):
            continue
        env_id = task.split()[-1]
        if arguments.jobs > 1 and algorithm in ("sac", "td3"):  # others have one thread
            options = [*options, "--torch-threads", "1"]
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:

            def one(
                seed: int,
                what: tuple[str, str, list[str]] = (algorithm, env_id, options),
                where: Path = Path(folder),
            ) -> dict[str, Any]:
                run = learn(*what, seed, where)
                print(f"{what[0]} {what[1]}", json.dumps(run), flush=True)
                return run

            runs = list(pool.map(one, seeds))
        mean = round(float(np.mean([run["mean_return"] for run in runs])), 1)
        results[task] = {
            "command": f"hotloop train {algorithm} --env-id {env_id} " + " ".join(options),
            "mean_return": mean,
            "runs": runs,
        }
        storage.save("learning", {"tasks": results})
    return 0
