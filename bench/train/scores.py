"""Scores of all presets over fresh seeds, beside published ones.

    python -m bench scores [--only ppo:Hopper-v5 …] [--seeds 10] [--jobs 2]

A cell is an algorithm with the preset of an environment. Each seed is trained from the command line
and then plays 100 episodes with its most probable actions. `scores.json` has each seed's returns,
its training time and its learning curve, the mean training return in each fiftieth of the steps. It
is written after every seed, and stored seeds are not trained again, unless the preset has changed.
Runs are in `runs/scores/`, and an interrupted benchmark resumes them. Tune presets on other seeds,
from 1001 on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import storage
from bench.markdown import table
from hotloop.base.rounding import format_interval, format_number

POINTS = 50


class Reference(NamedTuple):
    """A published score.

    Attributes:
        source: `zoo` (rl-baselines3-zoo) or `Tianshou`.
        score: mean return.
        spread: standard deviation: over the episodes of one run (zoo), or over seeds (Tianshou).
    """

    source: str
    score: float
    spread: float


# From https://github.com/DLR-RM/rl-baselines3-zoo/blob/0088472/benchmark.md and
# https://github.com/thu-ml/tianshou/tree/1da9b86/examples/mujoco. Most scores are for earlier
# versions of the environments: v3 or v2 of MuJoCo's, v2 of LunarLander.
REFERENCES: dict[str, tuple[Reference, ...]] = {
    "ppo:CartPole-v1": (Reference("zoo", 500.0, 0.0),),
    "ppo:Acrobot-v1": (Reference("zoo", -73.5, 18.2),),
    "ppo:MountainCar-v0": (Reference("zoo", -110.4, 19.5),),
    "ppo:MountainCarContinuous-v0": (Reference("zoo", 88.3, 2.6),),
    "ppo:Pendulum-v1": (Reference("zoo", -172.2, 104.2),),
    "ppo:LunarLander-v3": (Reference("zoo", 242.1, 31.8),),
    "ppo:LunarLanderContinuous-v3": (Reference("zoo", 270.9, 32.1),),
    "ppo:BipedalWalker-v3": (Reference("zoo", 213.3, 129.5),),
    "ppo:HalfCheetah-v5": (Reference("zoo", 5819.1, 663.5), Reference("Tianshou", 5783.9, 1244.0)),
    "ppo:Hopper-v5": (Reference("zoo", 2410.4, 10.0), Reference("Tianshou", 2609.3, 700.8)),
    "ppo:Walker2d-v5": (Reference("zoo", 3478.8, 821.7), Reference("Tianshou", 3588.5, 756.6)),
    "ppo:Ant-v5": (Reference("zoo", 1327.2, 451.6), Reference("Tianshou", 3258.4, 1079.3)),
    "ppo:Reacher-v5": (Reference("Tianshou", -4.1, 0.3),),
    "ppo:InvertedPendulum-v5": (Reference("Tianshou", 1000.0, 0.0),),
    "ppo:InvertedDoublePendulum-v5": (Reference("Tianshou", 9231.3, 270.4),),
    "ppo:Swimmer-v5": (Reference("zoo", 281.6, 9.7), Reference("Tianshou", 66.7, 99.1)),
    "sac:Pendulum-v1": (Reference("zoo", -157.0, 88.7),),
    "td3:Pendulum-v1": (Reference("zoo", -151.9, 90.2),),
    "td3:MountainCarContinuous-v0": (Reference("zoo", 93.5, 0.1),),
    "dqn:CartPole-v1": (Reference("zoo", 500.0, 0.0),),
    "dqn:MountainCar-v0": (Reference("zoo", -100.8, 9.9),),
    "dqn:LunarLander-v3": (Reference("zoo", 154.4, 79.2),),
}


def cells() -> dict[str, dict[str, Any]]:
    """Return the options of each preset of one environment, by `algorithm:env_id`."""
    from hotloop.algorithms import ALGORITHMS, find

    # The environment of the defaults is included although it has no preset.
    return {"ppo:CartPole-v1": {"total_timesteps": 100_000}} | {
        f"{name}:{env_id}": dict(options)
        for name in ALGORITHMS
        for env_id, options in find(name).presets.items()
        if not env_id.endswith(("/", ":"))  # prefixes of ids
        and not env_id.startswith("pettingzoo:")  # games have no score of one policy
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


def scores_table(only: str | None = None) -> str:
    """Return a table with one row per measured cell, for one algorithm or all."""
    from hotloop.reports.run_groups import aggregate_seeds

    known = cells()
    head = ["cell", "steps", "seeds", "interquartile mean (95 % interval)", "median"]
    rows = [[*head, "published", "minutes a seed", "command"]]
    for name, result in storage.load("scores")["cells"].items():
        algorithm, _, env_id = name.partition(":")
        if only not in (None, algorithm):
            continue
        runs, total = result["runs"], result["options"]["total_timesteps"]
        scores = np.array([run["mean_return"] for run in runs])
        means, bounds = aggregate_seeds(scores[:, None])
        interval = None if bounds is None else (float(bounds[0][0]), float(bounds[1][0]))
        is_current = _as_stored(known.get(name, {})) == result["options"]
        command = f"hotloop train {algorithm} --env-id {env_id} --seeds {_seeds(runs)}"
        if name not in _preset_names():
            command += f" --total-timesteps {total}"
        rows.append(
            [
                f"{algorithm}, {env_id}" + ("" if is_current else " (older options)"),
                f"{total:,}",
                f"{len(runs)}: {_seeds(runs)}",
                format_interval(float(means[0]), interval),
                format_number(float(np.median(scores)), None),
                _comparison(name, float(means[0]), interval),
                f"{statistics.median(run['took_s'] for run in runs) / 60:.1f}",
                f"`{command}`" if is_current else "–",
            ]
        )
    return table(*rows) if len(rows) > 1 else ""


def _comparison(name: str, score: float, interval: tuple[float, float] | None) -> str:
    """Return the published scores of a cell, and whether `score` reaches them."""
    texts: list[str] = []
    for source, reference, spread in REFERENCES.get(name, ()):
        decimals = 1 if abs(reference) < 1_000 else 0
        text = f"{source} {reference:,.{decimals}f} ± {spread:,.{decimals}f}"
        if score >= reference:
            text += ", reached"
        elif interval is not None and interval[1] >= reference:
            text += ", below, but inside the interval"
        elif interval is None:
            text += ", below, with too few seeds for an interval"
        else:
            text += ", **missed**"
        texts.append(text)
    return "<br>".join(texts) or "–"


def _preset_names() -> set[str]:
    """Return the cells whose options `hotloop train` applies on its own."""
    from hotloop.algorithms import find

    pairs = (name.partition(":") for name in cells())
    return {f"{name}:{env_id}" for name, _, env_id in pairs if env_id in find(name).presets}


def _seeds(runs: list[dict[str, Any]]) -> str:
    """Return the seeds in the syntax of `--seeds`: `1-5,7`."""
    spans: list[list[int]] = []
    for run in runs:
        if spans and run["seed"] == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], run["seed"]]
        else:
            spans.append([run["seed"]])
    return ",".join("-".join(map(str, span)) for span in spans)


def draw(path: Path) -> None:
    """Draw the stored curves, a panel per cell: seeds thin, their interquartile mean thick."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    from hotloop.reports.run_groups import aggregate_seeds

    stored = storage.load("scores")["cells"]
    columns = 4
    rows = math.ceil(len(stored) / columns)
    figure = Figure(figsize=(3.2 * columns, 2.3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(rows, columns, squeeze=False).flat
    for axes in all_axes[len(stored) :]:
        axes.remove()
    for axes, (name, result) in zip(all_axes, stored.items(), strict=False):
        total = result["options"]["total_timesteps"]
        steps = (np.arange(POINTS) + 0.5) * total / POINTS
        curves = np.array([run["curve"] for run in result["runs"]], float)
        axes.plot(steps, curves.T, color="C0", alpha=0.35, linewidth=0.7)
        is_complete = ~np.isnan(curves).any(axis=0)
        middle, band = aggregate_seeds(curves[:, is_complete])
        axes.plot(steps[is_complete], middle, color="C0")
        if band is not None:
            axes.fill_between(steps[is_complete], *band, color="C0", alpha=0.2, linewidth=0)
        for reference in REFERENCES.get(name, ()):
            style = "--" if reference.source == "zoo" else ":"
            axes.axhline(reference.score, color="C1", linewidth=0.8, linestyle=style)
        axes.set_title(name.replace(":", ", "), fontsize="small", parse_math=False)
        axes.tick_params(labelsize="x-small")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    figure.supxlabel("steps", fontsize="small")
    figure.supylabel("undiscounted return of training episodes", fontsize="small")
    figure.savefig(path, dpi=100)


def _as_stored(options: Any) -> dict[str, Any]:
    """Return options in the form of stored results."""
    return json.loads(json.dumps(dict(options), default=str))


def _folder(runs_dir: Path, name: str, options: dict[str, Any]) -> Path:
    """Return the directory of a cell's runs. Other options have another one."""
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:8]
    algorithm, _, env_id = name.partition(":")
    return runs_dir / f"{algorithm}_{storage.file_name(env_id)}_{digest}"


def main() -> int:
    """Train, evaluate, print, store and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench scores", description=__doc__)
    known = cells()
    parser.add_argument(
        "--only", nargs="+", choices=sorted(known), metavar="ALGORITHM:ENV", help="default: all"
    )
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds, from 1 on")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="concurrent seeds")
    parser.add_argument("--runs-dir", type=Path, default=storage.ROOT / "runs" / "scores")
    parser.add_argument("--draw", action="store_true", help="draw stored curves without training")
    arguments = parser.parse_args()
    picture = storage.DOCS / "scores.png"
    if arguments.draw:
        draw(picture)
        return 0
    try:
        results = storage.load("scores")["cells"]
    except FileNotFoundError:
        results = {}
    missing = []
    for name in arguments.only or known:
        options = _as_stored(known[name])
        if results.get(name, {}).get("options") != options:
            results[name] = {"options": options, "runs": []}
        seeds = {run["seed"] for run in results[name]["runs"]}
        missing += [(name, seed) for seed in range(1, arguments.seeds + 1) if seed not in seeds]
    # Seeds of a cell share a compiled graph, and each uses one core.
    extra = ["--execution", "compile", "--torch-threads", "1"]
    has_failed = False
    with ThreadPoolExecutor(arguments.jobs) as pool:
        trainings: dict[Future[dict[str, Any]], str] = {}
        for name, seed in missing:
            algorithm, _, env_id = name.partition(":")
            folder = _folder(arguments.runs_dir, name, results[name]["options"])
            total = known[name]["total_timesteps"]
            trainings[
                pool.submit(train_and_evaluate, algorithm, env_id, total, seed, folder, extra)
            ] = name
        for training in as_completed(trainings):
            name = trainings[training]
            try:
                run = training.result()
            except subprocess.CalledProcessError as error:  # other trainings continue
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                has_failed = True
                continue
            print(name, json.dumps({**run, "curve": "…"}, ensure_ascii=False), flush=True)
            runs = [*results[name]["runs"], run]
            results[name]["runs"] = sorted(runs, key=lambda run: run["seed"])
            measured = {name: results[name] for name in known if results.get(name, {}).get("runs")}
            storage.save("scores", {"cells": measured})
    draw(picture)
    return int(has_failed)
