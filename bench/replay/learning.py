"""Learning by kind of replay: uniform, by returns and by TD errors, over seeds.

    python -m bench replay-learning --seeds 5 --jobs 2
    python -m bench replay-learning --env-id CartPole-v1 --replays proportional return_to_go

SAC on Pendulum-v1 and DQN on CartPole-v1 are trained with their presets, each training in its own
process. The figures of a run are the mean returns of the episodes in the first and in the last
tenth of the steps, and the area under its smoothed learning curve, which is its average return.
Each kind of replay is compared with uniform replay by Welch's t-interval (95 %, two-sided, without
correction for multiple comparisons). It `helps` if the whole interval is above 0 and `hurts` if it
is below. Otherwise no effect is shown, which does not mean that there is none.

`replay_learning.json`: `cases`, by algorithm and environment: `timesteps`, `seeds`, and by replay
`runs` (every episode's step and return), `summaries` (`first_tenth`, `last_tenth`, `area`, one
number per seed) and `differences` from uniform (`area`, `last_tenth`: `relative`, `lower`, `upper`,
`verdict`). Plot: docs/replay-learning.png.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench import storage
from bench.train.curves import lower_bound
from hotloop.reports.run_groups import RunGroup, SeedCurve, comparison_grid

FIGURE = storage.DOCS / "replay-learning.png"
# Algorithm by environment. The training uses its preset.
CASES = {"Pendulum-v1": "sac", "CartPole-v1": "dqn"}
# Options of each kind of replay.
REPLAYS: dict[str, dict[str, Any]] = {
    "uniform": {"replay": "uniform"},
    "proportional": {"replay": "proportional", "replay_weight_from": "episode_return"},
    "return_to_go": {"replay": "proportional", "replay_weight_from": "return_to_go"},
    "prioritized": {"replay": "prioritized"},
    "rank": {"replay": "rank"},
}
COMPARED = ("area", "last_tenth")


def train(env_id: str, replay: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train once in this process."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.episodes import episodes_from_metrics

    algorithm = importlib.import_module(f"hotloop.algorithms.{CASES[env_id]}")
    extra_options = {} if options.timesteps is None else {"total_timesteps": options.timesteps}
    with tempfile.TemporaryDirectory() as folder:
        config = algorithm.preset(
            env_id,
            seed=seed,
            execution=options.execution,
            torch_threads=options.threads,
            runs_dir=folder,
            **REPLAYS[replay],
            **extra_options,
        )
        result = algorithm.train(config, progress=False)
        steps, returns = episodes_from_metrics(RunDirectory.open(result.run_dir).metrics())
    return {
        "seed": seed,
        "timesteps": result.timesteps,
        "episodes": [[int(s), round(float(r), 2)] for s, r in zip(steps, returns, strict=True)],
    }


def train_in_process(
    env_id: str, replay: str, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Train once in a new process."""
    command = [
        *(sys.executable, "-m", "bench", "replay-learning", "--worker", replay),
        *("--env-id", env_id, "--first-seed", str(seed)),
        *("--threads", str(options.threads), "--execution", options.execution),
    ]
    if options.timesteps is not None:
        command += ["--timesteps", str(options.timesteps)]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(completed.stdout.splitlines()[-1])


def make_group(env_id: str, replay: str, runs: list[dict[str, Any]]) -> RunGroup:
    """Return the runs of one kind of replay as a group for smoothing and drawing."""
    seeds = [
        SeedCurve(
            path=Path(),
            seed=run["seed"],
            positions=np.array([step for step, _ in run["episodes"]], np.int64),
            values=np.array([value for _, value in run["episodes"]], np.float64),
            end=run["timesteps"],
        )
        for run in runs
    ]
    return RunGroup(env_id=env_id, algorithm=CASES[env_id], options={"replay": replay}, seeds=seeds)


def summarize_groups(groups: dict[str, RunGroup]) -> dict[str, dict[str, list[float]]]:
    """Return the compared figures by replay, one number per seed."""
    points, width = comparison_grid(list(groups.values()))
    summaries: dict[str, dict[str, list[float]]] = {}
    for replay, group in groups.items():
        of_seeds: dict[str, list[float]] = {"first_tenth": [], "last_tenth": [], "area": []}
        for seed in group.seeds:
            tenth = seed.end / 10
            early, late = seed.positions <= tenth, seed.positions > 9 * tenth
            of_seeds["first_tenth"].append(_mean(seed.values[early]))
            of_seeds["last_tenth"].append(_mean(seed.values[late]))
            # Points are equidistant, so their mean is the area over the steps.
            curve = seed.smoothed(points, width)
            of_seeds["area"].append(_mean(curve[np.isfinite(curve)]))
        summaries[replay] = of_seeds
    return summaries


def compare_with_uniform(values: list[float], uniform: list[float]) -> dict[str, Any]:
    """Return the relative difference from uniform replay, its interval and the verdict."""
    relative = statistics.fmean(values) - statistics.fmean(uniform)
    relative /= abs(statistics.fmean(uniform))
    lower = lower_bound(values, uniform, 0.975)
    # The upper bound is the negated lower bound of negated values.
    upper = -lower_bound([-x for x in values], [-x for x in uniform], 0.975)
    verdict = "helps" if lower > 0 else "hurts" if upper < 0 else "not shown"
    return {"relative": relative, "lower": lower, "upper": upper, "verdict": verdict}


def _mean(values: Any) -> float:
    """Return the mean, NaN if there are no values."""
    return round(float(np.mean(values)), 3) if len(values) else float("nan")


def draw(cases: dict[str, Any], path: Path) -> None:
    """Draw a panel per environment: mean over seeds and its 95 % band, by replay."""
    from hotloop.reports.comparison_plot import comparison_plot

    groups = [
        make_group(case["env_id"], replay, runs)
        for case in cases.values()
        for replay, runs in case["runs"].items()
    ]
    comparison_plot(groups, path)


def print_case(name: str, case: dict[str, Any]) -> None:
    """Print the result of one environment."""
    for replay, of_seeds in case["summaries"].items():
        cells = ", ".join(
            f"{summary.replace('_', ' ')} {np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"
            for summary, values in of_seeds.items()
        )
        print(f"{name} {replay:12} {cells}")
    for replay, differences in case["differences"].items():
        for summary, difference in differences.items():
            verdict = {
                "helps": f"{replay} replay helps",
                "hurts": f"{replay} replay hurts",
                "not shown": f"not shown that {replay} replay helps or hurts",
            }[difference["verdict"]]
            print(
                f"{name}, {summary.replace('_', ' ')}: {verdict}: {difference['relative']:+.1%} "
                f"({difference['lower']:+.1%} to {difference['upper']:+.1%}) relative to uniform"
            )


def main() -> int:
    """Train, compare, print, store and draw."""
    parser = argparse.ArgumentParser(
        prog="python -m bench replay-learning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--env-id", choices=list(CASES), help="one environment (default: all)")
    parser.add_argument(
        "--replays",
        nargs="+",
        choices=list(REPLAYS),
        default=["uniform", "proportional", "prioritized"],
        help="default: uniform proportional prioritized; uniform is always included",
    )
    parser.add_argument("--seeds", type=int, default=5, help="at least 2")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="concurrent trainings")
    parser.add_argument("--timesteps", type=int, help="default: the preset's")
    parser.add_argument("--threads", type=int, default=1, help="threads of each training")
    parser.add_argument("--execution", default="auto", choices=["auto", "eager", "compile"])
    parser.add_argument("--worker", choices=list(REPLAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run = train(options.env_id, options.worker, options.first_seed, options)
        print(json.dumps(run))
        return 0
    if options.seeds < 2:
        parser.error(f"expected at least 2 --seeds for an interval, got {options.seeds}")

    replays = list(dict.fromkeys(["uniform", *options.replays]))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    env_ids = [options.env_id] if options.env_id else list(CASES)
    # By seed first, so that other load on the machine affects all kinds of replay alike.
    trainings = [(e, replay, seed) for e in env_ids for seed in seeds for replay in replays]

    def train_one(training: tuple[str, str, int]) -> dict[str, Any]:
        run = train_in_process(*training, options)
        late = [value for step, value in run["episodes"] if step > 0.9 * run["timesteps"]]
        print(f"{training[0]} {training[1]:12} seed {training[2]}: {_mean(late):.1f}", flush=True)
        return run

    with ThreadPoolExecutor(options.jobs) as pool:
        trained = dict(zip(trainings, pool.map(train_one, trainings), strict=True))
    try:
        cases = storage.load("replay_learning")["cases"]
    except FileNotFoundError:
        cases = {}
    for env_id in env_ids:
        runs = {replay: [trained[env_id, replay, seed] for seed in seeds] for replay in replays}
        groups = {
            replay: make_group(env_id, replay, replay_runs) for replay, replay_runs in runs.items()
        }
        summaries = summarize_groups(groups)
        uniform = summaries["uniform"]
        name = f"{CASES[env_id]} {env_id}"
        cases[name] = {
            "command": " ".join(["python -m bench replay-learning", *sys.argv[1:]]),
            "env_id": env_id,
            "timesteps": groups["uniform"].end,
            "seeds": list(seeds),
            "summaries": summaries,
            "differences": {
                replay: {
                    summary: compare_with_uniform(summaries[replay][summary], uniform[summary])
                    for summary in COMPARED
                }
                for replay in replays
                if replay != "uniform"
            },
            "runs": runs,
        }
        print_case(name, cases[name])
    path = storage.save("replay_learning", {"cases": cases})
    draw(cases, FIGURE)
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}; drawn: docs/{FIGURE.name}")
    return 0
