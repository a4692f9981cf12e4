"""Does it learn? Trainings from the command line over seeds, each evaluated on 100 episodes.

    python -m bench learning [--task CartPole-v1]

Stores `bench/results/learning.json`: evaluation returns, and the mean training return of the first
and the last tenth of the steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench import storage

# Task → options of `hotloop train ppo`, and seeds.
TASKS: dict[str, tuple[list[str], range]] = {
    "CartPole-v1": (["--total-timesteps", "200000"], range(1, 6)),
    "Pendulum-v1": (["--total-timesteps", "200000", "--gamma", "0.95"], range(1, 4)),
    "HalfCheetah-v5": (
        [
            *("--total-timesteps", "200000", "--num-envs", "1", "--num-steps", "2048"),
            *("--num-minibatches", "32", "--learning-rate", "3e-4", "--no-anneal-learning-rate"),
        ],
        range(1, 4),
    ),
}


def learn(env_id: str, options: list[str], seed: int, folder: Path) -> dict[str, Any]:
    """One training and its evaluation, as a user would do them."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import episodes_of

    run_dir = folder / f"{env_id}-{seed}"
    hotloop = [sys.executable, "-m", "hotloop"]
    where = ["--env-id", env_id, "--seed", str(seed), "--run-dir", str(run_dir)]
    subprocess.run([*hotloop, "train", "ppo", *where, *options], check=True, capture_output=True)
    command = [*hotloop, "eval", str(run_dir), "--episodes", "100", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
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
    chosen = parser.parse_args().task
    try:
        results = storage.load("learning")["tasks"]
    except FileNotFoundError:
        results = {}
    for env_id, (options, seeds) in TASKS.items():
        if chosen not in (None, env_id):
            continue
        runs = []
        with tempfile.TemporaryDirectory() as folder:
            for seed in seeds:
                runs.append(learn(env_id, options, seed, Path(folder)))
                print(env_id, json.dumps(runs[-1]), flush=True)
        mean = round(float(np.mean([run["mean_return"] for run in runs])), 1)
        results[env_id] = {
            "command": f"hotloop train ppo --env-id {env_id} " + " ".join(options),
            "mean_return": mean,
            "runs": runs,
        }
        storage.save("learning", {"tasks": results})
    return 0
