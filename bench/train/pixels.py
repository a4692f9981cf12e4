"""Learning from images: PPO on Pong beside Stable-Baselines3, and a replay buffer of its frames.

    python -m bench pixels

The training is `python -m bench train --env-id ALE/Pong-v5`. The buffer is filled with frames of
Breakout; what a million transitions take is told from what it says of itself, and 32 of them are
drawn between the steps of the games, as a training does it.
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
    """Return bytes a transition, and the seconds that drawing 32 of them takes in the loop."""
    from hotloop.envs import make_vec
    from hotloop.replay import ReplayBuffer

    envs = make_vec(GAME, NUM_ENVS, seed=1)
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
    """Trainings on Atari games, as the table of all trainings has them."""
    return training_table("train_ppo_ALE-*.json")


def replay_table() -> str:
    """What a buffer of frames takes."""
    measured = storage.load("pixels_replay")
    return table(
        ["a million transitions", "32 drawn, in the loop"],
        [
            f"{measured['bytes_per_transition'] / 1000:.2f} GB",
            f"{1e3 * measured['sample_32_s']:.3f} ms",
        ],
    )


def main() -> int:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(prog="python -m bench pixels", description=__doc__)
    parser.add_argument("--part", choices=["all", "training", "replay"], default="all")
    parser.add_argument("--repeats", type=int, default=3, help="of the training")
    parser.add_argument("--capacity", type=int, default=50_000, help="of the buffer")
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
