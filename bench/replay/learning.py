"""Learning by kind of replay: uniform, by returns and by TD errors, over seeds.

    python -m bench replay-learning --seeds 5 --jobs 2
    python -m bench replay-learning --env-id CartPole-v1 --replays proportional return_to_go

SAC on Pendulum-v1 and DQN on CartPole-v1, with their presets; each training is a process of its
own. Of every run: the mean return of the episodes in the first and in the last tenth of the steps,
and the area under its smoothed learning curve over the steps, which is the return that it had on
average. Each kind of replay is compared with uniform by Welch's t-interval (95 %, both sides, no
correction for how many comparisons there are): it `helps` where the whole interval lies above 0,
`hurts` where it lies below, and otherwise nothing is shown, which is not that nothing is there.

`replay_learning.json`: `cases`, by algorithm and environment: `timesteps`, `seeds`, and by replay
`runs` (every episode's step and return), `summaries` (`first_tenth`, `last_tenth`, `area`, a number
for each seed) and `differences` from uniform (`area`, `last_tenth`: `relative`, `lower`, `upper`,
`verdict`). Drawn to docs/replay-learning.png.
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
from hotloop.runs.comparison import Group, SeedCurve, grid

FIGURE = storage.DOCS / "replay-learning.png"
# Environment → algorithm, whose preset is taken.
CASES = {"Pendulum-v1": "sac", "CartPole-v1": "dqn"}
# What a kind of replay is in the configuration.
REPLAYS: dict[str, dict[str, Any]] = {
    "uniform": {"replay": "uniform"},
    "proportional": {"replay": "proportional", "replay_weight_from": "episode_return"},
    "return_to_go": {"replay": "proportional", "replay_weight_from": "return_to_go"},
    "prioritized": {"replay": "prioritized"},
    "rank": {"replay": "rank"},
}
COMPARED = ("area", "last_tenth")


def train(env_id: str, replay: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One training, in this process."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import episodes_of

    algorithm = importlib.import_module(f"hotloop.algorithms.{CASES[env_id]}")
    given = {} if options.timesteps is None else {"total_timesteps": options.timesteps}
    with tempfile.TemporaryDirectory() as folder:
        config = algorithm.preset(
            env_id,
            seed=seed,
            execution=options.execution,
            torch_threads=options.threads,
            runs_dir=folder,
            **REPLAYS[replay],
            **given,
        )
        result = algorithm.train(config, progress=False)
        steps, returns = episodes_of(RunDirectory.open(result.run_dir))
    return {
        "seed": seed,
        "timesteps": result.timesteps,
        "episodes": [[int(s), round(float(r), 2)] for s, r in zip(steps, returns, strict=True)],
    }


def train_in_process(
    env_id: str, replay: str, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One training in a fresh process."""
    command = [
        *(sys.executable, "-m", "bench", "replay-learning", "--worker", replay),
        *("--env-id", env_id, "--first-seed", str(seed)),
        *("--threads", str(options.threads), "--execution", options.execution),
    ]
    if options.timesteps is not None:
        command += ["--timesteps", str(options.timesteps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def group_of(env_id: str, replay: str, runs: list[dict[str, Any]]) -> Group:
    """The runs of one kind of replay, to be smoothed and drawn as every comparison is."""
    seeds = [
        SeedCurve(
            path=Path(),
            seed=run["seed"],
            at=np.array([step for step, _ in run["episodes"]], np.int64),
            values=np.array([value for _, value in run["episodes"]], np.float64),
            end=run["timesteps"],
        )
        for run in runs
    ]
    return Group(env_id=env_id, algorithm=CASES[env_id], options={"replay": replay}, seeds=seeds)


def summaries_of(groups: dict[str, Group]) -> dict[str, dict[str, list[float]]]:
    """What is compared, by replay: a number for each seed."""
    points, width = grid(list(groups.values()))
    summaries: dict[str, dict[str, list[float]]] = {}
    for replay, group in groups.items():
        of_seeds: dict[str, list[float]] = {"first_tenth": [], "last_tenth": [], "area": []}
        for seed in group.seeds:
            tenth = seed.end / 10
            early, late = seed.at <= tenth, seed.at > 9 * tenth
            of_seeds["first_tenth"].append(_mean(seed.values[early]))
            of_seeds["last_tenth"].append(_mean(seed.values[late]))
            # Points are equally far apart: their mean is the area over the steps.
            curve = seed.smoothed(points, width)
            of_seeds["area"].append(_mean(curve[np.isfinite(curve)]))
        summaries[replay] = of_seeds
    return summaries


def difference(ours: list[float], uniform: list[float]) -> dict[str, Any]:
    """How far apart two kinds of replay are, relative to uniform, and what that shows."""
    relative = statistics.fmean(ours) - statistics.fmean(uniform)
    relative /= abs(statistics.fmean(uniform))
    lower = lower_bound(ours, uniform, 0.975)
    # The upper bound is the lower one of what is mirrored.
    upper = -lower_bound([-x for x in ours], [-x for x in uniform], 0.975)
    verdict = "helps" if lower > 0 else "hurts" if upper < 0 else "not shown"
    return {"relative": relative, "lower": lower, "upper": upper, "verdict": verdict}


def _mean(values: Any) -> float:
    """NaN of none."""
    return round(float(np.mean(values)), 3) if len(values) else float("nan")


def draw(cases: dict[str, Any], path: Path) -> None:
    """A panel for each environment: mean over seeds and its 95 % band, by replay."""
    from hotloop.runs.plots import comparison_plot

    groups = [
        group_of(case["env_id"], replay, runs)
        for case in cases.values()
        for replay, runs in case["runs"].items()
    ]
    comparison_plot(groups, path)


def report(name: str, case: dict[str, Any]) -> None:
    """Print what one environment says."""
    for replay, of_seeds in case["summaries"].items():
        cells = ", ".join(
            f"{what.replace('_', ' ')} {np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}"
            for what, values in of_seeds.items()
        )
        print(f"{name} {replay:12} {cells}")
    for replay, differences in case["differences"].items():
        for what, one in differences.items():
            verdict = {
                "helps": f"{replay} replay helps",
                "hurts": f"{replay} replay hurts",
                "not shown": f"not shown that {replay} replay helps or hurts",
            }[one["verdict"]]
            print(
                f"{name}, {what.replace('_', ' ')}: {verdict}: {one['relative']:+.1%} "
                f"({one['lower']:+.1%} to {one['upper']:+.1%}) beside uniform"
            )


def main() -> int:
    """Train, compare, print, store, draw."""
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
        help="default: uniform proportional prioritized; uniform is always among them",
    )
    parser.add_argument("--seeds", type=int, default=5, help="at least 2")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--timesteps", type=int, help="default: the preset's")
    parser.add_argument("--threads", type=int, default=1, help="cores for each one's updates")
    parser.add_argument("--execution", default="auto", choices=["auto", "eager", "compile"])
    parser.add_argument("--worker", choices=list(REPLAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run = train(options.env_id, options.worker, options.first_seed, options)
        print(json.dumps(run))
        return 0
    if options.seeds < 2:
        parser.error(f"--seeds must be at least 2, for an interval, got {options.seeds}")

    replays = list(dict.fromkeys(["uniform", *options.replays]))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    env_ids = [options.env_id] if options.env_id else list(CASES)
    # By seed first: what else the machine does hits all kinds of replay.
    wanted = [(e, replay, seed) for e in env_ids for seed in seeds for replay in replays]

    def one(which: tuple[str, str, int]) -> dict[str, Any]:
        run = train_in_process(*which, options)
        late = [value for step, value in run["episodes"] if step > 0.9 * run["timesteps"]]
        print(f"{which[0]} {which[1]:12} seed {which[2]}: {_mean(late):.1f}", flush=True)
        return run

    with ThreadPoolExecutor(options.jobs) as pool:
        trained = dict(zip(wanted, pool.map(one, wanted), strict=True))
    try:
        cases = storage.load("replay_learning")["cases"]
    except FileNotFoundError:
        cases = {}
    for env_id in env_ids:
        runs = {replay: [trained[env_id, replay, seed] for seed in seeds] for replay in replays}
        groups = {replay: group_of(env_id, replay, kept) for replay, kept in runs.items()}
        summaries = summaries_of(groups)
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
                    what: difference(summaries[replay][what], uniform[what]) for what in COMPARED
                }
                for replay in replays
                if replay != "uniform"
            },
            "runs": runs,
        }
        report(name, cases[name])
    path = storage.save("replay_learning", {"cases": cases})
    draw(cases, FIGURE)
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}; drawn: docs/{FIGURE.name}")
    return 0
