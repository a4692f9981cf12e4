"""Whole trainings, side by side with a peer: same task, same hyper-parameters, same threads.

    python -m bench train --algorithm ppo --env-id CartPole-v1 --against sb3

Runs alternate, each in a process of its own. Printed and stored: steps a second in the training
loop, with compiling taken out of it and with it, and end to end (imports, start-up and everything
else included), medians, spread, the ratios, and the learning curves that go with them. By default
hotloop compiles its update, so that its full speed is seen; `--compile auto` lets it decide, and
`--cold` gives every run an empty cache to compile into.
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
from typing import Any

from bench import storage

# What both are given; for HalfCheetah-v5 these are Stable-Baselines3's defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"num_envs": 8, "num_steps": 128, "num_minibatches": 4},
    "HalfCheetah-v5": {"num_envs": 1, "num_steps": 2048, "num_minibatches": 32},
    "Pendulum-v1": {"num_envs": 1, "num_steps": 2048, "num_minibatches": 32},
}
LEARNING_RATE = 3e-4
EPOCHS = 10


def run_hotloop(options: argparse.Namespace) -> dict[str, Any]:
    """One training with hotloop."""
    from hotloop.algorithms import ppo
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import episodes_of

    with tempfile.TemporaryDirectory() as folder:
        result = ppo.train(
            ppo.Config(
                env_id=options.env_id,
                total_timesteps=options.timesteps,
                seed=options.seed,
                learning_rate=LEARNING_RATE,
                anneal_learning_rate=False,
                update_epochs=EPOCHS,
                torch_threads=options.threads,
                compile=options.compile,
                runs_dir=folder,
                **SETTINGS[options.env_id],
            )
        )
        steps, returns = episodes_of(RunDirectory.open(result.run_dir))
    return {
        "timesteps": result.timesteps,
        "loop_s": result.elapsed_s - result.compile_s,
        "compile_s": result.compile_s,
        "episodes": [[int(s), float(r)] for s, r in zip(steps, returns, strict=True)],
    }


def run_sb3(options: argparse.Namespace) -> dict[str, Any]:
    """One training with Stable-Baselines3."""
    import torch
    from stable_baselines3 import PPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.callbacks import BaseCallback  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import make_vec_env  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(options.threads)
    episodes: list[list[float]] = []

    class Episodes(BaseCallback):
        """Keeps every episode's return."""

        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    episodes.append([self.num_timesteps, float(info["episode"]["r"])])
            return True

    settings = SETTINGS[options.env_id]
    batch = settings["num_envs"] * settings["num_steps"]
    model = PPO(
        "MlpPolicy",
        make_vec_env(options.env_id, n_envs=settings["num_envs"], seed=options.seed),
        n_steps=settings["num_steps"],
        batch_size=batch // settings["num_minibatches"],
        n_epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        seed=options.seed,
        device="cpu",
    )
    started = time.perf_counter()
    model.learn(options.timesteps, callback=Episodes())
    loop_s = time.perf_counter() - started
    return {
        "timesteps": model.num_timesteps,
        "loop_s": loop_s,
        "compile_s": 0.0,
        "episodes": episodes,
    }


RUNNERS = {"hotloop": run_hotloop, "sb3": run_sb3}


def run_in_process(name: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One training in a fresh process; adds `total_s`, from start to exit."""
    command = [
        *(sys.executable, "-m", "bench", "train", "--worker", name),
        *("--env-id", options.env_id, "--timesteps", str(options.timesteps)),
        *("--seed", str(seed), "--threads", str(options.threads), "--compile", options.compile),
    ]
    with tempfile.TemporaryDirectory() as cache:
        cold = {"TORCHINDUCTOR_CACHE_DIR": cache} if getattr(options, "cold", False) else {}
        started = time.perf_counter()
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **cold}
        )
        total_s = time.perf_counter() - started
    return {"seed": seed, "total_s": total_s, **json.loads(done.stdout.splitlines()[-1])}


def last_tenth(run: dict[str, Any], timesteps: int) -> float:
    """Mean return of the episodes that ended in the last tenth of the steps."""
    late = [r for step, r in run["episodes"] if step > 0.9 * timesteps]
    return statistics.fmean(late) if late else float("nan")


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(runs: list[dict[str, Any]], timesteps: int) -> dict[str, Any]:
    """Medians and spread over runs."""
    rates = [run["timesteps"] / run["loop_s"] for run in runs]
    with_compiling = [run["timesteps"] / (run["loop_s"] + run["compile_s"]) for run in runs]
    return {
        "steps_per_s": spread(rates),
        "steps_per_s_with_compiling": spread(with_compiling),
        "compile_s": spread([run["compile_s"] for run in runs]),
        "total_s": spread([run["total_s"] for run in runs]),
        "return_last_tenth": [round(last_tenth(run, timesteps), 1) for run in runs],
    }


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(prog="python -m bench train", description=__doc__)
    parser.add_argument("--algorithm", default="ppo", choices=["ppo"])
    parser.add_argument("--env-id", default="CartPole-v1", choices=sorted(SETTINGS))
    parser.add_argument("--timesteps", type=int, default=102_400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--against", default="sb3", choices=["sb3"])
    parser.add_argument("--compile", default="on", choices=["auto", "on", "off"])
    parser.add_argument("--cold", action="store_true", help="compile into an empty cache")
    parser.add_argument("--worker", choices=sorted(RUNNERS), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(RUNNERS[options.worker](options)))
        return 0

    if options.compile != "off" and not options.cold:
        run_in_process(
            "hotloop", options, seed=1
        )  # fills the cache: what is measured is a warm one
    runs: dict[str, list[dict[str, Any]]] = {"hotloop": [], options.against: []}
    for seed in range(1, options.repeats + 1):
        # Alternating, and every other time the other one first.
        for name in list(runs)[:: 1 if seed % 2 else -1]:
            run = run_in_process(name, options, seed)
            runs[name].append(run)
            print(
                f"{name:8} seed {seed}: {run['timesteps'] / run['loop_s']:8,.0f} steps/s, "
                f"{run['compile_s']:5.1f} s compiling, {run['total_s']:6.1f} s in all, "
                f"return {last_tenth(run, options.timesteps):.1f}",
                flush=True,
            )
    summaries = {name: summary(done, options.timesteps) for name, done in runs.items()}
    ours, peer = summaries["hotloop"], summaries[options.against]
    result = {
        "benchmark": f"{options.algorithm} {options.env_id}",
        "command": " ".join(["python -m bench train", *sys.argv[1:]]),
        "settings": {
            **SETTINGS[options.env_id],
            "epochs": EPOCHS,
            "learning_rate": LEARNING_RATE,
            "threads": options.threads,
            "timesteps": options.timesteps,
            "compile": options.compile,
            "cache": "cold" if options.cold else "warm",
        },
        "summaries": summaries,
        "ratio_steps_per_s": ours["steps_per_s"]["median"] / peer["steps_per_s"]["median"],
        "ratio_with_compiling": ours["steps_per_s_with_compiling"]["median"]
        / peer["steps_per_s"]["median"],
        "ratio_total": peer["total_s"]["median"] / ours["total_s"]["median"],
        "curves": {
            name: [{"seed": run["seed"], "episodes": run["episodes"]} for run in done]
            for name, done in runs.items()
        },
    }
    how = "" if options.compile == "on" else f"_{options.compile}"
    how += "_cold" if options.cold else ""
    path = storage.save(f"train_{options.algorithm}_{options.env_id}{how}", result)
    for name, values in summaries.items():
        rate, total = values["steps_per_s"], values["total_s"]
        within = values["steps_per_s_with_compiling"]["median"]
        print(
            f"{name:8} {rate['median']:8,.0f} steps/s ({rate['min']:,.0f}–{rate['max']:,.0f}), "
            f"{within:,.0f} with compiling, "
            f"{total['median']:.1f} s from prompt to end ({total['min']:.1f}–{total['max']:.1f})"
        )
    print(
        f"ratio: {result['ratio_steps_per_s']:.2f} in steps/s, "
        f"{result['ratio_with_compiling']:.2f} with compiling, {result['ratio_total']:.2f} in all"
    )
    print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    return 0
