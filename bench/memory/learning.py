"""Tasks that need memory, trained with and without hidden state, over five seeds.

    python -m bench memory --part learning [--only NAME …] [--seeds 5] [--jobs 2]
    python -m bench memory --part scale [--only NAME …] [--seeds 5] [--jobs 2]

`scale` has returns of several scales, with the default options and with values that are not
normalized.

Each seed is trained from the command line and then plays 100 episodes with its most probable
actions. Runs are in `runs/memory/`, and an interrupted benchmark resumes them.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

from bench import storage
from bench.markdown import table
from bench.train.scores import train_and_evaluate

ENVIRONMENTS = "bench.memory.environments"
_DISCOUNTS = "--gamma 0.98 --gae-lambda 0.9 --normalize-reward"


class MemoryTask(NamedTuple):
    """A training task.

    Attributes:
        title: readable name of the environment.
        algorithm: name of the algorithm.
        env_id: id of the environment.
        total: number of transitions.
        options: options on the command line.
        goal: goal of every seed: a minimum ("≥") or an upper bound ("<") of the mean return.
    """

    title: str
    algorithm: str
    env_id: str
    total: int
    options: str
    goal: tuple[str, float] | None = None


CARTPOLE = "CartPole-v1 without velocities"
T_MAZE = "T-maze of 10 steps"
PENDULUM = "Pendulum-v1 without velocity"
TASKS = {
    "cartpole-lstm": MemoryTask(
        CARTPOLE,
        "ppo",
        f"{ENVIRONMENTS}:positions_of_cartpole",
        150_000,
        f"--memory lstm:64 {_DISCOUNTS}",
        ("≥", 475.0),
    ),
    "cartpole-gru": MemoryTask(
        CARTPOLE,
        "ppo",
        f"{ENVIRONMENTS}:positions_of_cartpole",
        150_000,
        f"--memory gru:64 {_DISCOUNTS}",
        ("≥", 475.0),
    ),
    "cartpole-none": MemoryTask(
        CARTPOLE,
        "ppo",
        f"{ENVIRONMENTS}:positions_of_cartpole",
        150_000,
        "--normalize-reward",
        ("<", 200.0),
    ),
    "t-maze-gru": MemoryTask(
        T_MAZE,
        "ppo",
        f"{ENVIRONMENTS}:TMaze",
        200_000,
        f"--memory gru:32 {_DISCOUNTS} --num-steps 32 --num-minibatches 2 --entropy-coef 0.01",
        ("≥", 3.9),
    ),
    "t-maze-none": MemoryTask(
        T_MAZE,
        "ppo",
        f"{ENVIRONMENTS}:TMaze",
        200_000,
        "--gamma 0.98 --normalize-reward --entropy-coef 0.01",
        ("<", 3.0),
    ),
    "t-maze-dqn-gru": MemoryTask(
        T_MAZE,
        "dqn",
        f"{ENVIRONMENTS}:TMaze",
        50_000,
        "--memory gru:32 --hidden-sizes 64 --learning-starts 1000 --buffer-size 50000 "
        "--batch-size 32 --train-frequency 4 --update-to-data 0.25 --learning-rate 1e-3 "
        "--gamma 0.98 --target-interval 500 --exploration-fraction 0.3",
        ("≥", 3.9),
    ),
    **{
        f"pendulum-sac-{memory}": MemoryTask(
            PENDULUM,
            "sac",
            f"{ENVIRONMENTS}:AnglesOfPendulum",
            15_000,
            f"{options} --hidden-sizes 64 64 --learning-starts 1000 --update-to-data 0.5 "
            "--policy-frequency 1",
        )
        for memory, options in (
            ("gru", "--memory gru:32 --batch-size 32"),
            ("none", "--batch-size 256"),
        )
    },
}


def _scale_tasks() -> Iterator[tuple[str, MemoryTask]]:
    """Yield the tasks with returns of several scales, by name."""
    lag = " --workers 2 --schedule lag:1"
    for name, title, env_id, total, more in (
        ("ppo-cartpole", CARTPOLE, "positions_of_cartpole", 100_000, ""),
        ("ppo-pendulum", PENDULUM, "AnglesOfPendulum", 100_000, ""),
        ("ppo-recall", "recall of a sign after 8 steps", "Recall", 20_000, ""),
        ("appo-cartpole", CARTPOLE, "positions_of_cartpole", 100_000, lag),
        ("appo-pendulum", PENDULUM, "AnglesOfPendulum", 100_000, lag),
        ("appo-recall", "recall of a sign after 8 steps", "Recall", 20_000, lag),
    ):
        algorithm = name.partition("-")[0]
        for way, value in (("defaults", ""), ("raw", " --normalize-value False")):
            options = f"--memory lstm:64{more}{value}"
            task = MemoryTask(title, algorithm, f"{ENVIRONMENTS}:{env_id}", total, options)
            yield f"{name}-{way}", task


SCALE_TASKS = dict(_scale_tasks())
PARTS = {"learning": TASKS, "scale": SCALE_TASKS}


def measure(part: str, only: list[str] | None, seeds: int, jobs: int) -> int:
    """Train and evaluate missing seeds, print and store."""
    tasks, stored_name = PARTS[part], f"memory_{part}"
    try:
        results = storage.load(stored_name)["tasks"]
    except FileNotFoundError:
        results = {}
    missing: list[tuple[str, int]] = []
    for name, task in tasks.items():
        if only is not None and name not in only:
            continue
        settings = {"options": task.options, "total_timesteps": task.total}
        if {x: results.get(name, {}).get(x) for x in settings} != settings:
            results[name] = {**settings, "runs": []}
        stored = {run["seed"] for run in results[name]["runs"]}
        missing += [(name, seed) for seed in range(1, seeds + 1) if seed not in stored]
    missing.sort(key=lambda item: item[1])  # an interrupted benchmark has seeds of all tasks
    has_failed = False
    with ThreadPoolExecutor(jobs) as pool:
        trainings: dict[Future[dict[str, Any]], str] = {}
        for name, seed in missing:
            task, folder = tasks[name], storage.ROOT / "runs" / "memory" / name
            extra = ["--torch-threads", "1", *task.options.split()]
            arguments = task.algorithm, task.env_id, task.total, seed, folder, extra
            trainings[pool.submit(train_and_evaluate, *arguments)] = name
        for training in as_completed(trainings):
            name = trainings[training]
            try:
                run = training.result()
            except Exception as error:  # other trainings continue
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                has_failed = True
                continue
            print(name, json.dumps({**run, "curve": "…"}, ensure_ascii=False), flush=True)
            runs = sorted([*results[name]["runs"], run], key=lambda item: item["seed"])
            results[name]["runs"] = runs
            measured = {name: results[name] for name in tasks if results.get(name, {}).get("runs")}
            storage.save(stored_name, {"tasks": measured})
    return int(has_failed)


def scale_table() -> str:
    """Return a table with one row per task, without and with normalized values."""
    results = storage.load("memory_scale")["tasks"]
    rows = [["", "options", "steps", "`--normalize-value False`", "the default"]]
    for name in results:
        prefix, _, way = name.rpartition("-")
        if way != "defaults":
            continue
        task, cells = SCALE_TASKS[name], []
        for other in (f"{prefix}-raw", name):
            means = [run["mean_return"] for run in results.get(other, {"runs": []})["runs"]]
            cells.append(f"{_mean_and_range(means)}, {len(means)} seeds" if means else "–")
        rows.append([f"{task.algorithm}, {task.title}", f"`{task.options}`", f"{task.total:,}"])
        rows[-1] += cells
    return table(*rows)


def _mean_and_range(means: list[float]) -> str:
    return f"{statistics.fmean(means):,.1f} ({min(means):,.1f} to {max(means):,.1f})"


def learning_table() -> str:
    """Return a table with one row per trained task."""
    rows = [
        ["", "options", "steps", "mean of 100 episodes, over seeds", "goal: seeds that reach it"]
    ]
    for name, result in storage.load("memory_learning")["tasks"].items():
        task = TASKS[name]
        means = [run["mean_return"] for run in result["runs"]]
        goal = "–"
        if task.goal is not None:
            sign, bound = task.goal
            met = sum(mean >= bound if sign == "≥" else mean < bound for mean in means)
            goal = f"{sign} {bound:g}: {met} of {len(means)}"
        rows.append(
            [
                f"{task.algorithm}, {task.title}",
                f"`{result['options']}`",
                f"{result['total_timesteps']:,}",
                _mean_and_range(means),
                goal,
            ]
        )
    return table(*rows)
