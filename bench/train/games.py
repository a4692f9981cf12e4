"""PPO with one shared policy for the three agents of MPE's simple_spread, over seeds.

    pip install mpe2
    python -m bench games [--seeds 3] [--timesteps 600000]

Three agents must cover three landmarks without collisions, with the environment's default options.
The policy sees no index of its agent. The options are the preset's. Returns are means over agents:
of the last 100 episodes of the training, and of 300 episodes with the most probable actions.
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
EPISODES = 300  # of an evaluation, and with random actions


def train(run_dir: Path, seed: int, timesteps: int) -> dict[str, Any]:
    """Train, and return timesteps and mean return after each iteration, and of an evaluation."""
    import hotloop
    from hotloop.algorithms import ppo

    curve: list[list[float]] = []

    def on_report(report: Any) -> None:
        if report.num_episodes:
            curve.append([report.timesteps, report.mean_return])

    config = ppo.preset(ENV_ID, total_timesteps=timesteps, seed=seed, run_dir=str(run_dir))
    ppo.train(config, on_report=on_report, progress=False)
    evaluation = hotloop.evaluate(run_dir, episodes=EPISODES)
    return {"seed": seed, "curve": curve, "greedy": statistics.fmean(evaluation.returns)}


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
    """Return a table of returns early, halfway and at the end, and of the evaluation."""
    stored = storage.load(RESULT)
    runs = stored["runs"]
    rows = [["simple_spread", "steps of agents", "mean return", f"{len(runs)} seeds"]]
    rows.append(["random actions", "–", f"{stored['random']:.1f}", "–"])
    total = runs[0]["curve"][-1][0]
    for share in (0.1, 0.5, 1.0):
        points = [next(x for x in run["curve"] if x[0] >= share * total) for run in runs]
        rows.append(_row("training", points[0][0], [value for _, value in points]))
    rows.append(_row("most probable actions", total, [run["greedy"] for run in runs]))
    return table(*rows)


def _row(name: str, steps: float, values: list[float]) -> list[str]:
    each = ", ".join(f"{value:.1f}" for value in values)
    return [f"PPO, {name}", f"{steps:,.0f}", f"{statistics.fmean(values):.1f}", each]


def main() -> int:
    """Train with each seed, and store the curves."""
    parser = argparse.ArgumentParser(prog="python -m bench games", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--timesteps", type=int, default=600_000)
    options = parser.parse_args()
    result: dict[str, Any] = {"random": random_return(0), "runs": []}
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
            result["runs"].append(train(Path(folder) / "run", seed, options.timesteps))
        print(f"seed {seed}: {result['runs'][-1]['greedy']:.1f}", flush=True)
        storage.save(RESULT, result, peers=("mpe2", "pettingzoo"))
    print(games_table())
    return 0
