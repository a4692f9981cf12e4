"""Recurrent PPO beside sb3-contrib's: same task, layers, hyper-parameters, threads.

    python -m bench memory --part speed [--rounds 3]

Runs alternate, each in a process of its own: CartPole-v1 without velocities, an LSTM of 64 that
policy and value share, two hidden layers of 64 each behind it, 8 environments × 32 steps, 10 passes
of 2 minibatches, one thread. sb3-contrib pads sequences that it cuts where episodes begin, and lets
the policy alone teach a shared LSTM, which is less work.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench import storage
from bench.markdown import scaled, table
from bench.measuring import spread
from bench.memory.environments import positions_of_cartpole

STEPS = {"hotloop": 50_000, "sb3-contrib": 15_000}
SETTINGS: dict[str, Any] = {"gamma": 0.98, "gae_lambda": 0.9, "learning_rate": 1e-3}


def run_hotloop(steps: int) -> dict[str, Any]:
    """One training with hotloop."""
    from hotloop.algorithms import ppo

    with tempfile.TemporaryDirectory() as folder:
        config = ppo.Config(
            env_id="bench.memory.environments:positions_of_cartpole",
            memory="lstm:64",
            total_timesteps=steps,
            num_envs=8,
            num_steps=32,
            num_minibatches=2,
            update_epochs=10,
            normalize_reward=True,
            runs_dir=folder,
            **SETTINGS,
        )
        result = ppo.train(config, progress=False)
    return {"timesteps": result.timesteps, "loop_s": result.elapsed_s - result.compile_s}


def run_peer(steps: int) -> dict[str, Any]:
    """One training with sb3-contrib."""
    import torch
    from sb3_contrib import RecurrentPPO  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
        make_vec_env,
    )
    from stable_baselines3.common.vec_env import (  # pyright: ignore[reportMissingImports]
        VecNormalize,
    )

    torch.set_num_threads(1)
    envs = VecNormalize(make_vec_env(positions_of_cartpole, 8), norm_obs=False, gamma=0.98)
    layers = {"lstm_hidden_size": 64, "shared_lstm": True, "enable_critic_lstm": False}
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        n_steps=32,
        batch_size=128,
        n_epochs=10,
        policy_kwargs={**layers, "net_arch": [64, 64]},
        device="cpu",
        **SETTINGS,
    )
    began = time.perf_counter()
    model.learn(steps)
    return {"timesteps": model.num_timesteps, "loop_s": time.perf_counter() - began}


def measure(rounds: int) -> None:
    """Alternate, print, store."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in STEPS}
    for _ in range(rounds):
        for name in STEPS:
            began = time.perf_counter()
            command = [sys.executable, "-m", "bench.memory.speed", name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            run = json.loads(done.stdout.splitlines()[-1])
            run["whole_s"] = time.perf_counter() - began
            runs[name].append(run)
            print(f"{name}: {run['timesteps'] / run['loop_s']:,.0f} steps/s", flush=True)
    storage.save("memory_speed", {"runs": runs}, peers=("sb3_contrib",))
    print(speed_table())


def speed_table() -> str:
    """One row: steps a second of both, and the ratio."""
    runs = storage.load("memory_speed")["runs"]
    rates = {
        name: [run["timesteps"] / run["loop_s"] for run in some] for name, some in runs.items()
    }
    ours, theirs = (statistics.median(rates[name]) for name in STEPS)
    return table(
        ["PPO, LSTM of 64, CartPole-v1 without velocities", *STEPS, "ratio"],
        [
            "steps a second",
            *(scaled(spread(rates[name]), 1.0) for name in STEPS),
            f"{ours / theirs:.1f}",
        ],
    )


def main() -> None:
    """Train with one of them, for `measure`."""
    name = sys.argv[1]
    run = {"hotloop": run_hotloop, "sb3-contrib": run_peer}[name](STEPS[name])
    print(json.dumps(run))


if __name__ == "__main__":
    main()
