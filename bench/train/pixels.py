"""Learning from images: PPO on Pong compared with Stable-Baselines3, and a replay buffer of frames.

    python -m bench pixels

The training is `python -m bench train --env-id ALE/Pong-v5`. The buffer is filled with frames of
Breakout. Its reported size gives the memory of a million transitions. Batches of 32 are sampled
between the steps of the games, as in a training.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np

from bench import storage
from bench.markdown import table
from bench.train import speed
from bench.train.tables import training_table

GAME = "ALE/Breakout-v5"
NUM_ENVS = 8


def measure_replay(capacity: int, num_draws: int) -> dict[str, Any]:
    """Return the bytes per transition, and the seconds to sample 32 of them in the loop."""
    from hotloop.envs import EnvSpec, make_vec
    from hotloop.replay import ReplayBuffer

    envs = make_vec(EnvSpec(GAME, seed=1), NUM_ENVS)
    buffer = ReplayBuffer.for_env(envs, capacity)
    rng, obs = np.random.default_rng(0), envs.reset()
    batch, taken_s = None, []
    while buffer.num_added < capacity or len(taken_s) < num_draws:
        action = rng.integers(0, envs.action_spec.num_actions, NUM_ENVS)
        step = envs.step(action)
        buffer.extend(
            obs=obs,
            action=action,
            reward=step.reward,
            next_obs=step.next_obs,
            terminated=step.terminated,
            truncated=step.truncated,
        )
        obs = step.obs.copy()
        if buffer.num_added >= capacity:
            started = time.perf_counter()
            batch = buffer.sample(32) if batch is None else buffer.sample(32, out=batch)
            taken_s.append(time.perf_counter() - started)
    return {
        "capacity": capacity,
        "bytes_per_transition": buffer.memory()["total"] / capacity,
        "sample_32_s": statistics.median(taken_s[1:]),
    }


def pixels_table() -> str:
    """Return a table of the trainings on Atari games."""
    return training_table("train_ppo_ALE-*.json")


def replay_table() -> str:
    """Return a table of a frame buffer's memory and sampling time."""
    measured = storage.load("pixels_replay")
    return table(
        ["memory of a million transitions", "sampling 32 in the loop"],
        [
            f"{measured['bytes_per_transition'] / 1000:.2f} GB",
            f"{1e3 * measured['sample_32_s']:.3f} ms",
        ],
    )


def main() -> int:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(prog="python -m bench pixels", description=__doc__)
    parser.add_argument("--part", choices=["all", "training", "replay"], default="all")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of the training")
    parser.add_argument("--capacity", type=int, default=50_000, help="capacity of the buffer")
    options = parser.parse_args()
    if options.part != "training":
        measured = measure_replay(options.capacity, num_draws=500)
        path = storage.save("pixels_replay", measured)
        print(replay_table())
        print(f"stored: {path.relative_to(storage.RESULTS.parent.parent)}")
    if options.part != "replay":
        sys.argv[1:] = ["--env-id", "ALE/Pong-v5", "--repeats", str(options.repeats)]
        return speed.main()
    return 0
