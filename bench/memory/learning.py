"""Memory: tasks that need it, with and without, over five seeds.

    python -m bench memory --part learning [--only NAME …] [--seeds 5] [--jobs 2]

Each seed is trained and then plays 100 episodes with its most probable actions, from the command
line. Runs lie in `runs/memory/` until they are stored: what was stopped goes on where it was.
"""

from __future__ import annotations

import json
import statistics
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from bench import storage
from bench.markdown import table
from bench.train.presets import learn

ENVIRONMENTS = "bench.memory.environments"
_DISCOUNTS = "--gamma 0.98 --gae-lambda 0.9 --normalize-reward"


class Task(NamedTuple):
    """What is trained.

    Attributes:
        about: the environment, for people.
        algorithm: by its name.
        env_id: of the environment.
        total: transitions.
        options: on the command line.
        goal: what is asked of every seed: a mean return at least, or below; None: nothing.
    """

    about: str
    algorithm: str
    env_id: str
    total: int
    options: str
    goal: tuple[str, float] | None = None


CARTPOLE = "CartPole-v1 without velocities"
T_MAZE = "T-maze of 10 steps"
TASKS = {
    "cartpole-lstm": Task(
        CARTPOLE,
        "ppo",
        f"{ENVIRONMENTS}:positions_of_cartpole",
        150_000,
        f"--memory lstm:64 {_DISCOUNTS}",
        ("≥", 475.0),
    ),
    "cartpole-gru": Task(
        CARTPOLE,
        "ppo",
        f"{ENVIRONMENTS}:positions_of_cartpole",
        150_000,
        f"--memory gru:64 {_DISCOUNTS}",
        ("≥", 475.0),
    ),
    "cartpole-none": Task(
        CARTPOLE,
        "ppo",
        f"{ENVIRONMENTS}:positions_of_cartpole",
        150_000,
        "--normalize-reward",
        ("<", 200.0),
    ),
    "t-maze-gru": Task(
        T_MAZE,
        "ppo",
        f"{ENVIRONMENTS}:TMaze",
        200_000,
        f"--memory gru:32 {_DISCOUNTS} --num-steps 32 --num-minibatches 2 --entropy-coef 0.01",
        ("≥", 3.9),
    ),
    "t-maze-none": Task(
        T_MAZE,
        "ppo",
        f"{ENVIRONMENTS}:TMaze",
        200_000,
        "--gamma 0.98 --normalize-reward --entropy-coef 0.01",
        ("<", 3.0),
    ),
    "t-maze-dqn-gru": Task(
        T_MAZE,
        "dqn",
        f"{ENVIRONMENTS}:TMaze",
        50_000,
        "--memory gru:32 --hidden-sizes 64 --learning-starts 1000 --buffer-size 50000 "
        "--batch-size 32 --train-frequency 4 --update-to-data 0.25 --learning-rate 1e-3 "
        "--gamma 0.98 --target-interval 500 --exploration-fraction 0.3",
        ("≥", 3.9),
    ),
}


def measure(only: list[str] | None, seeds: int, jobs: int) -> int:
    """Train and evaluate what is not stored yet, print, store."""
    try:
        results = storage.load("memory_learning")["tasks"]
    except FileNotFoundError:
        results = {}
    wanted: list[tuple[str, int]] = []
    for name in only or TASKS:
        task = TASKS[name]
        told = {"options": task.options, "total_timesteps": task.total}
        if {x: results.get(name, {}).get(x) for x in told} != told:
            results[name] = {**told, "runs": []}
        kept = {run["seed"] for run in results[name]["runs"]}
        wanted += [(name, seed) for seed in range(1, seeds + 1) if seed not in kept]
    has_failed = False
    with ThreadPoolExecutor(jobs) as pool:
        trainings: dict[Future[dict[str, Any]], str] = {}
        for name, seed in wanted:
            task, folder = TASKS[name], storage.ROOT / "runs" / "memory" / name
            more = ["--torch-threads", "1", *task.options.split()]
            arguments = task.algorithm, task.env_id, task.total, seed, folder, more
            trainings[pool.submit(learn, *arguments)] = name
        for training in as_completed(trainings):
            name = trainings[training]
            try:
                run = training.result()
            except Exception as error:  # the others go on
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                has_failed = True
                continue
            print(name, json.dumps({**run, "curve": "…"}, ensure_ascii=False), flush=True)
            runs = sorted([*results[name]["runs"], run], key=lambda one: one["seed"])
            results[name]["runs"] = runs
            told = {name: results[name] for name in TASKS if results.get(name, {}).get("runs")}
            storage.save("memory_learning", {"tasks": told})
    return int(has_failed)


def learning_table() -> str:
    """One row a task that was trained."""
    rows = [["", "options", "steps", "100 episodes each: mean over seeds", "asked of each seed"]]
    for name, result in storage.load("memory_learning")["tasks"].items():
        task = TASKS[name]
        means = [run["mean_return"] for run in result["runs"]]
        asked = "–"
        if task.goal is not None:
            sign, bound = task.goal
            met = sum(mean >= bound if sign == "≥" else mean < bound for mean in means)
            asked = f"{sign} {bound:g}: {met} of {len(means)}"
        rows.append(
            [
                f"{task.algorithm}, {task.about}",
                f"`{result['options']}`",
                f"{result['total_timesteps']:,}",
                f"{statistics.fmean(means):,.1f} ({min(means):,.1f} to {max(means):,.1f})",
                asked,
            ]
        )
    return table(*rows)
