"""Trainings with every preset, over five seeds.

    python -m bench presets [--only ppo:Hopper-v5 …] [--seeds 5] [--jobs 2]

Each seed is trained from the command line and then plays 100 episodes with its most probable
actions. Runs are in `runs/presets/`, and an interrupted benchmark resumes them. `presets.json` has
the options, each seed's mean return of the 100 episodes, and its learning curve, the mean training
return in each fiftieth of the steps. Stored results of other presets stay.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from bench import storage
from bench.markdown import table

POINTS = 50
# Mean return of the evaluation, and its spread if given, from rl-baselines3-zoo's benchmark.md (one
# run each, MuJoCo's environments in version 3, LunarLander in version 2).
ZOO: dict[str, tuple[float, float | None]] = {
    "ppo:CartPole-v1": (500.0, None),
    "ppo:Pendulum-v1": (-172.0, None),
    "ppo:LunarLander-v3": (242.0, None),
    "ppo:LunarLanderContinuous-v3": (271.0, None),
    "ppo:HalfCheetah-v5": (5819.0, 664.0),
    "ppo:Hopper-v5": (2410.0, 10.0),
    "ppo:Walker2d-v5": (3479.0, 822.0),
    "ppo:Ant-v5": (1327.0, 452.0),
    "sac:Pendulum-v1": (-157.0, None),
    "td3:Pendulum-v1": (-152.0, None),
    "dqn:CartPole-v1": (500.0, None),
    "dqn:LunarLander-v3": (154.0, None),
}


def presets() -> dict[str, dict[str, Any]]:
    """Return the options of each preset of one environment, by `algorithm:env_id`."""
    from hotloop.algorithms import ALGORITHMS, find

    # The environment of the defaults is included although it has no preset.
    return {"ppo:CartPole-v1": {"total_timesteps": 100_000}} | {
        f"{name}:{env_id}": dict(options)
        for name in ALGORITHMS
        for env_id, options in find(name).presets.items()
        if not env_id.endswith(("/", ":"))  # prefixes of ids
    }


def curve(steps: np.ndarray, returns: np.ndarray, total: int) -> list[float | None]:
    """Return the mean return in each part of the steps, None where no episode ended."""
    part = np.minimum((steps - 1) * POINTS // total, POINTS - 1)
    means = [returns[part == k] for k in range(POINTS)]
    return [round(float(values.mean()), 2) if len(values) else None for values in means]


def train_and_evaluate(
    algorithm: str, env_id: str, total: int, seed: int, folder: Path, extra: list[str]
) -> dict[str, Any]:
    """Train and evaluate one seed, or resume its run in a folder."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.episodes import episodes_from_metrics

    run_dir = folder / f"seed_{seed}"
    hotloop = [sys.executable, "-m", "hotloop"]
    run_args = ["--env-id", env_id, "--seed", str(seed), "--run-dir", str(run_dir)]
    command = [*hotloop, "train", algorithm, *run_args, "--total-timesteps", str(total), *extra]
    if (run_dir / "checkpoints").exists():
        command = [*hotloop, "resume", str(run_dir)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    command = [*hotloop, "eval", str(run_dir), "--episodes", "100", "--json"]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    evaluation = json.loads(completed.stdout)
    run = RunDirectory.open(run_dir)
    return {
        "seed": seed,
        "mean_return": round(evaluation["mean_return"], 1),
        "std_return": round(evaluation["std_return"], 1),
        "curve": curve(*episodes_from_metrics(run.metrics()), total),
        "took_s": round(run.metrics()[-1]["elapsed_s"]),
    }


def reaches_zoo_score(task: str, runs: list[dict[str, Any]]) -> bool | None:
    """Return whether the seeds reach the zoo's score minus its spread or 10 %, None without one."""
    if task not in ZOO:
        return None
    score, spread = ZOO[task]
    least = score - (spread if spread is not None else abs(score) / 10)
    return statistics.fmean(run["mean_return"] for run in runs) >= least


def presets_table(only: str | None = None) -> str:
    """Return a table with one row per measured preset, for one algorithm or all."""
    known = presets()
    rows = [["preset", "steps", "seeds", "mean of 100 episodes ± over seeds", "zoo", "minutes"]]
    for task, result in storage.load("presets")["presets"].items():
        algorithm, _, env_id = task.partition(":")
        if only not in (None, algorithm):
            continue
        runs = result["runs"]
        means = [run["mean_return"] for run in runs]
        spread = f" ± {statistics.stdev(means):,.1f}" if len(means) > 1 else ""
        score = "–"
        if task in ZOO:
            zoo, zoo_spread = ZOO[task]
            score = f"{zoo:,.0f}" + (f" ± {zoo_spread:,.0f}" if zoo_spread else "")
            score += "" if reaches_zoo_score(task, runs) else ", **missed**"
        now = _as_stored(known.get(task, {}))
        rows.append(
            [
                f"{algorithm}, {env_id}" + ("" if now == result["options"] else " (older options)"),
                f"{result['options']['total_timesteps']:,}",
                str(len(runs)),
                f"{statistics.fmean(means):,.1f}{spread} ({min(means):,.0f} to {max(means):,.0f})",
                score,
                f"{statistics.median(run['took_s'] for run in runs) / 60:.1f}",
            ]
        )
    return table(*rows) if len(rows) > 1 else ""


def options_table() -> str:
    """Return a table with one row per preset and its values."""
    from hotloop.algorithms import ALGORITHMS, find

    rows = [["", "preset"]]
    for name in ALGORITHMS:
        for env_id, options in find(name).presets.items():
            values = {**options}
            if "torch_threads" in values:  # depends on the machine
                values["torch_threads"] = "cores, 4 at most"
            text = ", ".join(f"`{option}` {value}" for option, value in values.items())
            rows.append([f"{name}, {env_id}", text])
    return table(*rows)


def draw(path: Path) -> None:
    """Draw the stored curves, a panel per preset: seeds thin, their interquartile mean thick."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    from hotloop.reports.run_groups import aggregate_seeds

    stored = storage.load("presets")["presets"]
    columns = 4
    rows = math.ceil(len(stored) / columns)
    figure = Figure(figsize=(3.2 * columns, 2.3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(rows, columns, squeeze=False).flat
    for axes in all_axes[len(stored) :]:
        axes.remove()
    for axes, (task, result) in zip(all_axes, stored.items(), strict=False):
        total = result["options"]["total_timesteps"]
        steps = (np.arange(POINTS) + 0.5) * total / POINTS
        curves = np.array([run["curve"] for run in result["runs"]], float)
        axes.plot(steps, curves.T, color="C0", alpha=0.35, linewidth=0.7)
        is_complete = ~np.isnan(curves).any(axis=0)
        middle, _ = aggregate_seeds(curves[:, is_complete])
        axes.plot(steps[is_complete], middle, color="C0")
        if task in ZOO:
            axes.axhline(ZOO[task][0], color="C1", linewidth=0.8, linestyle="--")
        axes.set_title(task.replace(":", ", "), fontsize="small", parse_math=False)
        axes.tick_params(labelsize="x-small")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    figure.supxlabel("steps", fontsize="small")
    figure.supylabel("undiscounted return of training episodes", fontsize="small")
    figure.savefig(path, dpi=100)


def _as_stored(options: Any) -> dict[str, Any]:
    """Return options in the form of stored results."""
    return json.loads(json.dumps(dict(options), default=str))


def main() -> int:
    """Train, evaluate, print, store and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench presets", description=__doc__)
    known = presets()
    parser.add_argument(
        "--only", nargs="+", choices=sorted(known), metavar="ALGORITHM:ENV", help="default: all"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="concurrent seeds")
    parser.add_argument("--runs-dir", type=Path, default=storage.ROOT / "runs" / "presets")
    parser.add_argument("--draw", action="store_true", help="draw stored curves without training")
    arguments = parser.parse_args()
    picture = storage.DOCS / "presets.png"
    if arguments.draw:
        draw(picture)
        return 0
    try:
        results = storage.load("presets")["presets"]
    except FileNotFoundError:
        results = {}
    missing = []
    for task in arguments.only or known:
        options = _as_stored(known[task])
        if results.get(task, {}).get("options") != options:
            results[task] = {"options": options, "runs": []}
        seeds = {run["seed"] for run in results[task]["runs"]}
        missing += [(task, seed) for seed in range(1, arguments.seeds + 1) if seed not in seeds]
    # Seeds of a preset share a compiled graph, and each uses one core.
    extra = ["--execution", "compile", "--torch-threads", "1"]
    has_failed = False
    with ThreadPoolExecutor(arguments.jobs) as pool:
        trainings: dict[Future[dict[str, Any]], str] = {}
        for task, seed in missing:
            algorithm, _, env_id = task.partition(":")
            folder = arguments.runs_dir / storage.file_name(f"{algorithm}_{env_id}")
            total = known[task]["total_timesteps"]
            trainings[
                pool.submit(train_and_evaluate, algorithm, env_id, total, seed, folder, extra)
            ] = task
        for training in as_completed(trainings):
            task = trainings[training]
            try:
                run = training.result()
            except subprocess.CalledProcessError as error:  # other trainings continue
                print(f"{task}: {error}", file=sys.stderr, flush=True)
                has_failed = True
                continue
            print(task, json.dumps({**run, "curve": "…"}, ensure_ascii=False), flush=True)
            runs = [*results[task]["runs"], run]
            results[task]["runs"] = sorted(runs, key=lambda run: run["seed"])
            measured = {name: results[name] for name in known if results.get(name, {}).get("runs")}
            storage.save("presets", {"presets": measured})
    draw(picture)
    return int(has_failed)
