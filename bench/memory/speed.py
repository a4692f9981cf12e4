"""Recurrent PPO compared with sb3-contrib's: same task, layers, hyper-parameters, threads.

    python -m bench memory --part speed [--rounds 3]

Runs alternate, each in its own process: CartPole-v1 without velocities, an LSTM of 64 shared by
policy and value, each with two hidden layers of 64 behind it, 8 environments × 32 steps, 10 passes
of 2 minibatches, one thread. sb3-contrib cuts sequences at episode starts and pads them. It trains
a shared LSTM only by the policy's gradient, which is less work.
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
from bench.markdown import format_figure, table
from bench.measuring import spread
from bench.memory.environments import positions_of_cartpole

STEPS = {"hotloop": 50_000, "sb3-contrib": 15_000}
SETTINGS: dict[str, Any] = {"gamma": 0.98, "gae_lambda": 0.9, "learning_rate": 1e-3}


def run_hotloop(steps: int) -> dict[str, Any]:
    """Train once with hotloop."""
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
    """Train once with sb3-contrib."""
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
    start_s = time.perf_counter()
    model.learn(steps)
    return {"timesteps": model.num_timesteps, "loop_s": time.perf_counter() - start_s}


def measure(rounds: int) -> None:
    """Run both in turn, print and store."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in STEPS}
    for _ in range(rounds):
        for name in STEPS:
            start_s = time.perf_counter()
            command = [sys.executable, "-m", "bench.memory.speed", name]
            completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            run = json.loads(completed.stdout.splitlines()[-1])
            run["whole_s"] = time.perf_counter() - start_s
            runs[name].append(run)
            print(f"{name}: {run['timesteps'] / run['loop_s']:,.0f} steps/s", flush=True)
    storage.save("memory_speed", {"runs": runs}, peers=("sb3_contrib",))
    print(speed_table())


def speed_table() -> str:
    """Return a table with the steps per second of both and their ratio."""
    runs = storage.load("memory_speed")["runs"]
    rates = {
        name: [run["timesteps"] / run["loop_s"] for run in entries]
        for name, entries in runs.items()
    }
    rate, peer_rate = (statistics.median(rates[name]) for name in STEPS)
    return table(
        ["PPO, LSTM of 64, CartPole-v1 without velocities", *STEPS, "ratio"],
        [
            "steps/s",
            *(format_figure(spread(rates[name]), 1.0) for name in STEPS),
            f"{rate / peer_rate:.1f}",
        ],
    )


def main() -> None:
    """Train with one library, for `measure`."""
    name = sys.argv[1]
    run = {"hotloop": run_hotloop, "sb3-contrib": run_peer}[name](STEPS[name])
    print(json.dumps(run))


if __name__ == "__main__":
    main()
