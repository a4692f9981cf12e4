"""APPO: effect of policy lag on learning, with and without corrections, and throughput.

    python -m bench asynchronous
    python -m bench asynchronous --part learning --seeds 8 --jobs 2
    python -m bench asynchronous --part throughput --rounds 3

- `learning`: tasks with equal numbers of steps: CartPole-v1, HalfCheetah-v5, and two with recurrent
  networks, a T-maze and CartPole without velocities. Experience is delayed by 1 to 64 batches.
  `asynchronous_learning.json`: by task: `timesteps`, `options`, and `runs`, by way, a list of
  seeds: `seed`, `return` (mean over the last tenth of the steps), `age` (mean, in iterations),
  `effective_share` (mean). Each seed is stored as it ends. An interrupted benchmark resumes, and a
  larger `--seeds` adds seeds.
- `throughput`: whole trainings on CartPole-v1 in turn, and workers whose steps sleep 3 ms, one in
  ten of them 100 ms, with a learner that is busy for a fifth of the time.
  `asynchronous_throughput.json`: `cartpole`, by way, steps per second; `uneven`, by way, the
  figures of `bench.rollouts.measure.sample`.

`--quick` uses small sizes to test that everything runs and stores results in a temporary folder.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from bench import storage
from bench.markdown import format_figure, table
from bench.measuring import spread
from bench.memory.learning import TASKS as MEMORY
from bench.rollouts.measure import measure
from bench.rollouts.scale import alternate
from bench.train.curves import lower_bound
from hotloop.runs import RunDirectory
from hotloop.runs.episodes import episodes_from_metrics

# --- policy lag -----------------------------------------------------------------------------------


class AsyncTask(NamedTuple):
    """A training task.

    Attributes:
        title: readable name of the environment.
        timesteps: number of transitions.
        options: options on the command line, with those of ppo's preset, since appo has no presets.
    """

    title: str
    timesteps: int
    options: str


def _options(name: str) -> str:
    """Return the options of a task from `bench.memory.learning`."""
    task = MEMORY[name]
    return f"--env-id {task.env_id} {task.options}"


TASKS = {
    "cartpole": AsyncTask("CartPole-v1", 204_800, "--env-id CartPole-v1"),
    "halfcheetah": AsyncTask(
        "HalfCheetah-v5",
        307_200,
        "--env-id HalfCheetah-v5 --num-envs 8 --num-steps 256 --num-minibatches 32 "
        "--normalize-obs --normalize-reward --learning-rate linear:3e-4,0",
    ),
    "t-maze": AsyncTask(MEMORY["t-maze-gru"].title + ", GRU", 200_000, _options("t-maze-gru")),
    "memory": AsyncTask(
        MEMORY["cartpole-lstm"].title + ", LSTM", 204_800, _options("cartpole-lstm")
    ),
}
HOLD_BACKS = (1, 4, 16, 64)
PPO = "ppo"
# Both algorithms have ppo's defaults. Otherwise ppo would have its preset of HalfCheetah-v5.
_NO_PRESET = (
    "--hidden-sizes 64 64 --activation tanh --initial-log-std 0 --update-epochs 10 --gamma 0.99 "
    "--gae-lambda 0.95 --clip-range 0.2 --entropy-coef 0 --value-coef 0.5 --max-grad-norm 0.5"
)
WAYS: dict[str, str] = {PPO: f"ppo {_NO_PRESET}"}
WAYS |= {f"appo, {count} held back": f"appo --hold-back {count}" for count in HOLD_BACKS}
WAYS |= {
    f"appo, {count} held back, not corrected": (
        f"appo --hold-back {count} --no-vtrace --proximal-power 0"
    )
    for count in HOLD_BACKS
}


def train(way: str, *options: str) -> list[dict[str, Any]]:
    """Train from the command line; return the lines of metrics."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [sys.executable, "-W", "ignore", "-m", "hotloop", "train", *way.split()]
        command += [*options, "--torch-threads", "1", "--run-dir", str(path)]
        completed = subprocess.run(command, capture_output=True, text=True)
        if completed.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{completed.stderr[-2000:]}")
        return RunDirectory.open(path).metrics()


def train_seed(way: str, seed: int, task: AsyncTask) -> dict[str, float]:
    """Train a seed; return the figures to store."""
    options = ["--seed", str(seed), "--total-timesteps", str(task.timesteps), *task.options.split()]
    lines = train(WAYS[way], *options)
    steps, returns = episodes_from_metrics(lines)
    result = {"seed": seed, "return": float(returns[steps > 0.9 * task.timesteps].mean())}
    for name, key in (("age", "age_mean"), ("effective_share", "effective_share")):
        values = [line[key] for line in lines if key in line]
        result |= {name: statistics.fmean(values)} if values else {}
    return result


def learning(seeds: int, jobs: int, tasks: Mapping[str, AsyncTask]) -> None:
    """Train missing seeds, and store each seed as it ends."""
    try:
        stored = storage.load("asynchronous_learning")
    except FileNotFoundError:
        stored = {}
    results: dict[str, dict[str, Any]] = {}
    for name, task in tasks.items():
        settings = {"timesteps": task.timesteps, "options": task.options}
        stored_task = stored.get(name, {})
        is_same = {key: stored_task.get(key) for key in settings} == settings
        results[name] = {**settings, "runs": stored_task["runs"] if is_same else {}}
    # Small delays first, then seed by seed, so that an interrupted benchmark has balanced seeds.
    missing = [
        (name, way, seed)
        for ways in (list(WAYS)[:3], list(WAYS)[3:])
        for seed in range(1, seeds + 1)
        for name in tasks
        for way in ways
        if seed not in [run["seed"] for run in results[name]["runs"].get(way, [])]
    ]
    with ThreadPoolExecutor(jobs) as pool:
        trainings = {
            pool.submit(train_seed, way, seed, tasks[name]): (name, way, seed)
            for name, way, seed in missing
        }
        for training in as_completed(trainings):
            name, way, seed = trainings[training]
            run = training.result()
            print(f"  {name}, {way}, seed {seed}: {run['return']:.1f}", flush=True)
            runs = results[name]["runs"]
            runs[way] = sorted([*runs.get(way, []), run], key=lambda run: run["seed"])
            results[name]["runs"] = {way: runs[way] for way in WAYS if way in runs}
            storage.save("asynchronous_learning", results)


def learning_table() -> str:
    """Return a table with one row per task and way."""
    stored = storage.load("asynchronous_learning")
    rows = [["", "age", "effective share", "return", "difference", "lower 95 % bound"]]
    for name, task in TASKS.items():
        runs = stored.get(name, {}).get("runs", {})
        peer = [run["return"] for run in runs.get(PPO, [])]
        if len(peer) < 2:
            continue
        for way, way_runs in runs.items():
            values = [run["return"] for run in way_runs]
            if len(values) < 2:
                continue
            middle = statistics.fmean(values)
            digits = 0 if abs(middle) >= 10 else 2
            spread_text = f"{statistics.stdev(values):,.{digits}f}"
            mean_text = f"{middle:,.{digits}f} ± {spread_text} ({len(values)} seeds)"
            row = [f"{task.title}: {way}", "–", "–", mean_text]
            if way == PPO:
                rows.append([*row, "", ""])
                continue
            row[1] = f"{statistics.fmean(run['age'] for run in way_runs):.1f}"
            row[2] = f"{statistics.fmean(run['effective_share'] for run in way_runs):.2f}"
            difference = middle / statistics.fmean(peer) - 1.0
            rows.append([*row, f"{difference:+.0%}", f"{lower_bound(values, peer):+.0%}"])
    return table(*rows)


# --- throughput -----------------------------------------------------------------------------------

LOAD = 0.2
PEER = "Stable-Baselines3's PPO"
CARTPOLE_ENV = ("--env-id", "CartPole-v1")
CARTPOLE = {
    "ppo, inline": "ppo",
    "ppo, 1 worker, overlapped": "ppo --workers 1 --overlap",
    "appo, inline": "appo",
    "appo, 1 worker, `lag:1`": "appo --workers 1 --schedule lag:1",
    "appo, 1 worker, `async`": "appo --workers 1 --schedule async",
    "appo, 2 workers, `async`": "appo --workers 2 --schedule async",
}
UNEVEN = {
    "ppo, `barrier`": "barrier",
    "ppo overlapped, appo `lag:1`": "barrier overlap",
    "appo, `async`": "async fragments",
}


def peer_rate(timesteps: int) -> float:
    """Return Stable-Baselines3's transitions per second with the same batches, passes, threads."""
    command = [sys.executable, "-m", "bench", "train", "--worker", "sb3", "--algorithm", "ppo"]
    command += [*CARTPOLE_ENV, "--timesteps", str(timesteps), "--threads", "1"]
    completed = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(completed.stdout.splitlines()[-1])
    return figures["timesteps"] / figures["loop_s"]


def throughput(rounds: int, timesteps: int, workers: int, seconds: float, execution: str) -> None:
    """Measure all ways in turn and store the figures."""
    fixed = ("--execution", execution)
    rates: dict[str, list[float]] = {PEER: [], **{name: [] for name in CARTPOLE}}
    for way in CARTPOLE.values():  # fills the compiler's cache
        train(way, *CARTPOLE_ENV, *fixed, "--total-timesteps", "2048")
    for number in range(rounds):
        for name in list(rates)[:: 1 if number % 2 == 0 else -1]:
            if name == PEER:
                rates[name].append(peer_rate(timesteps))
                print(f"  {name}: {rates[name][-1]:,.0f} steps/s", flush=True)
                continue
            total = ("--total-timesteps", str(timesteps))
            lines = train(CARTPOLE[name], *CARTPOLE_ENV, *fixed, *total)
            # Between the first and the last line, without start-up.
            steps, took_s = (lines[-1][key] - lines[0][key] for key in ("timesteps", "elapsed_s"))
            rates[name].append(steps / took_s)
            print(f"  {name}: {rates[name][-1]:,.0f} steps/s", flush=True)
    arguments = {"workers": workers, "seconds": seconds, "loads": [LOAD]}
    measures = {
        name: functools.partial(measure, "sample", method=method, **arguments)
        for name, method in UNEVEN.items()
    }
    print("  uneven ", end="", flush=True)
    result = {
        "timesteps": timesteps,
        "execution": execution,
        "rounds": rounds,
        "cartpole": {name: spread(values) for name, values in rates.items()},
        **arguments,
        "uneven": alternate(measures, rounds),
    }
    storage.save("asynchronous_throughput", result)


def throughput_table() -> str:
    """Return a table with one row per way."""
    stored = storage.load("asynchronous_throughput")
    rows = [["", "steps/s", "over the first row, or over the ideal"]]
    first = next(iter(stored["cartpole"].values()))["median"]
    for name, rate in stored["cartpole"].items():
        ratio = rate["median"] / first
        rows.append([f"CartPole-v1: {name}", format_figure(rate, 1.0), f"{ratio:.2f}"])
    load = f"{LOAD:.0%}"
    for name, figures in stored["uneven"].items():
        label = f"{stored['workers']} workers of 3 or 100 ms: {name}"
        if "missing" in figures:
            rows.append([label, figures["missing"], "–"])
            continue
        share = figures[f"of_ideal {load}"]["median"]
        rows.append([label, format_figure(figures[f"rate {load}"], 1.0), f"{share:.1%}"])
    return table(*rows)


def main() -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(
        prog="python -m bench asynchronous",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--part", choices=["learning", "throughput"], help="default: both")
    parser.add_argument("--seeds", type=int, default=8, help="learning: seeds 1 … N of each way")
    parser.add_argument("--jobs", type=int, default=1, help="learning: concurrent trainings")
    parser.add_argument("--timesteps", type=int, default=102_400, help="throughput")
    parser.add_argument("--rounds", type=int, default=5, help="throughput")
    parser.add_argument("--seconds", type=float, default=20.0, help="throughput: uneven steps")
    parser.add_argument("--workers", type=int, default=24, help="throughput: uneven steps")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, results in a temporary folder"
    )
    options = parser.parse_args()
    execution, tasks = "compile", TASKS
    if options.quick:
        storage.RESULTS = Path(tempfile.mkdtemp(prefix="asynchronous-quick-"))
        print(f"quick: results are not representative and are in {storage.RESULTS}")
        options.seeds, options.timesteps, options.rounds = 2, 8_192, 1
        tasks = {"cartpole": TASKS["cartpole"]._replace(timesteps=66_560)}
        options.seconds, options.workers, execution = 1.0, 3, "eager"
    if options.part in (None, "learning"):
        learning(options.seeds, options.jobs, tasks)
        print(f"{learning_table()}\n", flush=True)
    if options.part in (None, "throughput"):
        throughput(options.rounds, options.timesteps, options.workers, options.seconds, execution)
        print(throughput_table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
