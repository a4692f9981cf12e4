"""Sweeps: the same trials one after another, over processes, in lanes, and by other programs.

    python -m bench sweep
    python -m bench sweep --rounds 1 --trials 8 --timesteps 8192

The trials are PPO on CartPole with random learning rates, one seed each. The ways alternate. Each
is measured as a command from its start to its end:

- `1 process`, `2 processes`: `hotloop sweep` with `--jobs`.
- `1 process, lanes`, `2 processes, lanes`: the same with `--lanes`.
- `a process a trial`: `hotloop train` for each trial, two at a time.
- `Optuna, Stable-Baselines3`: a process for each trial, two at a time, as in rl-zoo, with imports
  and environments, the same hyper-parameters and one thread each.
- `Ray`: `hotloop sweep --backend ray`, two at a time, including the start of a local Ray.
- `Ray Tune, Stable-Baselines3`: Tune's own program, two at a time, with reused processes.

Plot: docs/sweep-scaling.png, the speed-up by processes with Amdahl's curves.

`sweep.json`, for other sizes `sweep_<trials>x<steps>.json`: `ways`, by name: `about`, `seconds`;
`serial`, Amdahl's serial share from 1 and 2 processes; `overhead_s`, time of a trial of `1 process`
beyond its training, including its share of the sweep's start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import storage
from bench.bandits.scaling import serial_share
from bench.markdown import format_figure, format_ratio, table
from bench.measuring import spread
from hotloop.experiments import Results

FIGURE = storage.DOCS / "sweep-scaling.png"
_SETTINGS = {"num_envs": 8, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4}
_SB3 = """
import sys
import torch
torch.set_num_threads(1)
import optuna
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
rate, steps = float(sys.argv[1]), int(sys.argv[2])
envs = make_vec_env("CartPole-v1", n_envs=8, seed=1)
PPO("MlpPolicy", envs, learning_rate=rate, n_steps=128, batch_size=256, n_epochs=4, seed=1,
    device="cpu").learn(steps)
"""


_TUNE = """
import sys
from ray import init, tune

def train(given):
    import torch
    torch.set_num_threads(1)
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    envs = make_vec_env("CartPole-v1", n_envs=8, seed=1)
    PPO("MlpPolicy", envs, learning_rate=given["rate"], n_steps=128, batch_size=256, n_epochs=4,
        seed=1, device="cpu").learn(given["steps"])
    return {"score": 0.0}

init(num_cpus=2, include_dashboard=False, log_to_driver=False)
steps, *rates = sys.argv[1:]
space = {"rate": tune.grid_search([float(x) for x in rates]), "steps": int(steps)}
results = tune.Tuner(
    tune.with_resources(train, {"cpu": 1}),
    param_space=space,
    tune_config=tune.TuneConfig(reuse_actors=True),
    run_config=tune.RunConfig(verbose=0, storage_path=sys.path[0] or "/tmp"),
).fit()
assert not results.errors, results.errors
"""


def rates(count: int) -> list[float]:
    """Return the learning rates of the trials."""
    return (10.0 ** np.random.default_rng(0).uniform(-4, -2, count)).tolist()


def sweep(
    count: int,
    steps: int,
    jobs: int,
    lanes: int,
    *extra: str,
    overheads_s: list[float] | None = None,
) -> float:
    """Return the seconds of `hotloop sweep`; append those beyond trainings to `overheads_s`."""
    with tempfile.TemporaryDirectory() as folder:
        options = {**_SETTINGS, "total_timesteps": steps, "env_id": "CartPole-v1"}
        arguments = [f"--{name.replace('_', '-')}={x}" for name, x in options.items()]
        space = f"learning_rate={','.join(map(repr, rates(count)))}"
        command = [sys.executable, "-m", "hotloop", "sweep", "ppo", *arguments, space]
        command += ["--sampler", "grid", "--jobs", str(jobs), "--lanes", str(lanes)]
        command += ["--file", str(Path(folder) / "sweep.sqlite"), *extra]
        start_s = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        duration_s = time.perf_counter() - start_s
        if overheads_s is not None:
            results = Results(Path(folder) / "sweep.sqlite")
            overheads_s.append(duration_s - sum(run.seconds or 0.0 for run in results.runs()))
            results.close()
        return duration_s


def run_each(make: Callable[[float, str], list[str]], count: int, at_once: int = 2) -> float:
    """Return the seconds of a process for each trial, `at_once` at a time."""
    with tempfile.TemporaryDirectory() as folder:
        start_s = time.perf_counter()
        pending, running = rates(count), []
        while pending or running:
            while pending and len(running) < at_once:
                command = make(pending.pop(), str(Path(folder) / f"{len(pending)}"))
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                running.append(
                    subprocess.Popen(
                        command,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        env=environment,
                    )
                )
            time.sleep(0.01)
            for process in [
                running_process for running_process in running if running_process.poll() is not None
            ]:
                assert process.returncode == 0, process.args
                running.remove(process)
        return time.perf_counter() - start_s


def tune(count: int, steps: int) -> float:
    """Return the seconds of Ray Tune's own program."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(_TUNE)
        command = [sys.executable, str(program), str(steps), *map(repr, rates(count))]
        start_s = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - start_s


def hotloop_train(steps: int) -> Callable[[float, str], list[str]]:
    """Return a function that makes the command of a trial."""
    options = {**_SETTINGS, "total_timesteps": steps, "env_id": "CartPole-v1"}
    arguments = [f"--{name.replace('_', '-')}={x}" for name, x in options.items()]

    def make(rate: float, directory: str) -> list[str]:
        own_arguments = [f"--learning-rate={rate!r}", f"--run-dir={directory}"]
        return [sys.executable, "-m", "hotloop", "train", "ppo", *arguments, *own_arguments]

    return make


def sweep_table() -> str:
    """Return a table with one row per way, for short and for longer trials."""
    rows = [["trials of PPO CartPole-v1", "", "time, s", "time per trial, s"]]
    rows[0] += ["speed-up over one after another"]
    for name in ("sweep", "sweep_20x102400"):
        stored = storage.load(name)
        single_s = stored["ways"]["1 process"]["seconds"]["median"]
        label = f"{stored['trials']} of {stored['timesteps']:,} steps"
        for way in stored["ways"].values():
            seconds = way["seconds"]
            each_s = seconds["median"] / stored["trials"]
            ratio = format_ratio(single_s / seconds["median"])
            rows.append([label, way["about"], format_figure(seconds, 1.0), f"{each_s:.2f}", ratio])
            label = ""
    return table(*rows)


def draw() -> None:
    """Draw the measured speed-up by processes with Amdahl's curves."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    numbers = np.arange(1, 17)
    axes.plot(numbers, numbers, color="#999999", linestyle="--", label="no serial share")
    for color, name in zip(("#0077bb", "#ee7733"), ("sweep", "sweep_20x102400"), strict=True):
        stored = storage.load(name)
        seconds = {
            number: stored["ways"][way]["seconds"]["median"]
            for number, way in ((1, "1 process"), (2, "2 processes"))
        }
        serial, label = stored["serial"], f"{stored['trials']} × {stored['timesteps']:,} steps"
        curve = 1 / (serial + (1 - serial) / numbers)
        axes.plot(numbers, curve, color=color, label=f"{label}: {serial:.0%} serial")
        ups = [seconds[1] / x for x in seconds.values()]
        axes.plot(list(seconds), ups, "o", color=color)
    axes.set(xlabel="processes", ylabel="speed-up over one process", xscale="log", yscale="log")
    axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.savefig(FIGURE, dpi=130)
    pyplot.close(figure)


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(
        prog="python -m bench sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--timesteps", type=int, default=20_480)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--way", action="append", help="1 process, 2 processes …; repeat for more")
    options = parser.parse_args()
    count, steps, lanes = options.trials, options.timesteps, options.lanes
    overheads_s: list[float] = []
    ways: dict[str, tuple[str, Callable[[], float]]] = {
        "1 process": (
            "one after another",
            lambda: sweep(count, steps, 1, 1, overheads_s=overheads_s),
        ),
        "2 processes": ("two processes", lambda: sweep(count, steps, 2, 1)),
        "1 process, lanes": (f"one process, {lanes} lanes", lambda: sweep(count, steps, 1, lanes)),
        "2 processes, lanes": (
            f"two processes, {lanes} lanes each",
            lambda: sweep(count, steps, 2, lanes),
        ),
        "a process a trial": (
            "`hotloop train` for each, two at a time",
            lambda: run_each(hotloop_train(steps), count),
        ),
        "sb3": (
            "Stable-Baselines3 and Optuna, a process for each, two at a time",
            lambda: run_each(
                lambda rate, _: [sys.executable, "-c", _SB3, repr(rate), str(steps)], count
            ),
        ),
        "ray": (
            "`--backend ray`, two at a time",
            lambda: sweep(count, steps, 2, 1, "--backend", "ray"),
        ),
        "tune": ("Stable-Baselines3 and Ray Tune, two at a time", lambda: tune(count, steps)),
    }
    chosen_ways = options.way or list(ways)
    for shared in (1, lanes):  # compile the updates once
        sweep(shared, steps, 1, shared, "--execution", "compile")
    durations_s: dict[str, list[float]] = {name: [] for name in ways if name in chosen_ways}
    for number in range(options.rounds):
        for name in list(durations_s)[:: 1 if number % 2 == 0 else -1]:
            durations_s[name].append(ways[name][1]())
            print(f"  {name}: {durations_s[name][-1]:.1f} s", flush=True)
    result: dict[str, Any] = {
        name: {"about": ways[name][0], "seconds": spread(series)}
        for name, series in durations_s.items()
    }
    if not {"1 process", "2 processes"} <= result.keys():
        print("not stored: this needs both `1 process` and `2 processes`")
        return 0
    single_s, double_s = (
        result[name]["seconds"]["median"] for name in ("1 process", "2 processes")
    )
    serial = serial_share({1: single_s, 2: double_s})
    for name, way in result.items():
        print(
            f"{name:22} {json.dumps(way['seconds'])}, {single_s / way['seconds']['median']:.2f} ×"
        )
    overhead_s = statistics.median(overheads_s) / count
    print(f"serial by Amdahl's law: {serial:.1%}; a trial beyond its training: {overhead_s:.3f} s")
    is_usual = (count, steps) == (parser.get_default("trials"), parser.get_default("timesteps"))
    storage.save(
        "sweep" if is_usual else f"sweep_{count}x{steps}",
        {
            "trials": count,
            "timesteps": steps,
            "rounds": options.rounds,
            "lanes": lanes,
            "ways": result,
            "serial": serial,
            "overhead_s": overhead_s,
        },
        peers=("stable-baselines3", "optuna", "ray"),
    )
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
