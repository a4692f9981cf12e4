"""Tic-tac-toe by self-play: when does the policy never lose to a perfect player?

    python -m bench self-play [--seeds 1] [--timesteps 500000]

PPO trains against snapshots of itself alone. Each checkpoint then plays all games, in both seats,
in which the opponent makes any of the perfect moves, and all games with any moves at all. The
policy plays its most probable actions. Runs are in a temporary directory.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import table
from bench.self_play.perfect import count_games

OPTIONS: dict[str, Any] = {
    "env_id": "pettingzoo:pettingzoo.classic.tictactoe_v3",
    "self_play": "prioritized",
    "self_play_interval": 10_240,
    "self_play_pool": 30,
    "action_masks": True,
    "num_envs": 32,
    "num_steps": 64,
    "hidden_sizes": (128, 128),
    "learning_rate": "linear:2e-3,0",
    "entropy_coef": "linear:0.03,0.003",
    "gamma": 1.0,
    "checkpoint_interval": 20_480,
    "keep_checkpoints": 1_000,
    "execution": "eager",
}


def losses(run_dir: Path, checkpoint: str) -> dict[str, int]:
    """Return the numbers of lost games against perfect moves and against all moves."""
    import hotloop

    policy = hotloop.load(run_dir, checkpoint)

    def choose(observation: Any, mask: Any) -> int:
        return int(policy.act(observation, action_mask=mask))

    return {
        "perfect": count_games(choose, is_perfect=True)["losses"],
        "any": count_games(choose, is_perfect=False)["losses"],
    }


def train(seed: int, total: int) -> dict[str, Any]:
    """Return the losses of each checkpoint of a training, and its ratings."""
    from hotloop.algorithms import ppo
    from hotloop.base import documents

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        config = ppo.Config(**OPTIONS, seed=seed, total_timesteps=total, run_dir=str(run_dir))
        ppo.algorithm.train(config, progress=False)
        names = sorted(path.name for path in (run_dir / "checkpoints").glob("step-*"))
        curve = [{"timesteps": int(x.removeprefix("step-")), **losses(run_dir, x)} for x in names]
        ratings = documents.read(run_dir / "self_play.json")
    return {
        "seed": seed,
        "curve": curve,
        "rating": ratings["ratings"][-1],
        "interval": ratings["intervals"][-1],
    }


def unbeaten_from(curve: list[dict[str, int]], kind: str) -> int | None:
    """Return the steps of the first checkpoint from which on all lose no game, or None."""
    first = None
    for point in reversed(curve):
        if point[kind]:
            break
        first = point["timesteps"]
    return first


def self_play_table() -> str:
    """Return the table of the last result."""
    rows = [["seed", "never loses to perfect moves after", "lost games at the end, to any moves"]]
    for run in storage.load("self_play")["runs"]:
        first = unbeaten_from(run["curve"], "perfect")
        steps = "–" if first is None else f"{first:,} steps"
        rows.append([str(run["seed"]), steps, str(run["curve"][-1]["any"])])
    return table(*rows)


def main() -> int:
    """Train with several seeds, and store the results."""
    parser = argparse.ArgumentParser(prog="python -m bench self-play", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--timesteps", type=int, default=500_000)
    options = parser.parse_args()
    runs = []
    for seed in range(1, options.seeds + 1):
        runs.append(train(seed, options.timesteps))
        print(f"seed {seed}: {runs[-1]}", flush=True)
        storage.save("self_play", {"timesteps": options.timesteps, "runs": runs})
    print(self_play_table())
    return 0
