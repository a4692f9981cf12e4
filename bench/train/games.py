"""PPO with one shared policy for the three agents of MPE's simple_spread, over seeds.

    pip install mpe2
    python -m bench games

Three agents must cover three landmarks without collisions. The policy sees no index of its agent.
Returns are means over agents and the last 100 episodes of the training.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench import storage
from bench.markdown import table

RESULT = "games"
ENV_ID = "pettingzoo:mpe2.simple_spread_v3"
OPTIONS: dict[str, Any] = {
    "total_timesteps": 600_000,
    "num_steps": 100,
    "num_minibatches": 8,
    "torch_threads": 1,
}
EPISODES = 200  # with random actions


def train(run_dir: Path, seed: int) -> list[list[float]]:
    """Train, and return timesteps and mean return after each iteration."""
    from hotloop.algorithms import ppo

    curve: list[list[float]] = []

    def on_report(report: Any) -> None:
        if report.num_episodes:
            curve.append([report.timesteps, report.mean_return])

    config = ppo.preset(ENV_ID, **OPTIONS, seed=seed, run_dir=str(run_dir))
    ppo.train(config, on_report=on_report, progress=False)
    return curve


def random_return(seed: int) -> float:
    """Return the mean return of an agent that acts at random."""
    from hotloop import EnvSpec, make_vec

    envs = make_vec(EnvSpec(ENV_ID, seed=seed), 3)
    rng = np.random.default_rng(seed)
    envs.reset()
    total, num_ended = 0.0, 0
    while num_ended < EPISODES:
        step = envs.step(rng.integers(envs.action_spec.num_actions, size=3))
        total += float(step.reward.sum())
        num_ended += int((step.terminated | step.truncated).sum())
    return total / num_ended


def games_table() -> str:
    """Return a table of returns, early, halfway and at the end."""
    stored = storage.load(RESULT)
    rows = [["", "steps of agents", "mean return", "over seeds"]]
    rows.append(["random actions", "–", f"{stored['random']:.1f}", "–"])
    curves = stored["curves"]
    for share in (0.1, 0.5, 1.0):
        total = curves[0][-1][0]
        points = [next(x for x in curve if x[0] >= share * total) for curve in curves]
        values = [value for _, value in points]
        spread = f"{min(values):.1f} … {max(values):.1f}"
        rows.append(["PPO", f"{points[0][0]:,}", f"{statistics.mean(values):.1f}", spread])
    return table(*rows)


def main() -> int:
    """Train with each seed, and store the curves."""
    parser = argparse.ArgumentParser(prog="python -m bench games", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
        curves = [train(Path(folder) / f"{k}", k) for k in range(1, options.seeds + 1)]
    result = {"random": random_return(0), "curves": curves}
    storage.save(RESULT, result, peers=("mpe2", "pettingzoo"))
    print(games_table())
    return 0
