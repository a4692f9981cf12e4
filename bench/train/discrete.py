"""Learning of DQN with its options, and of discrete SAC, on CartPole-v1.

    python -m bench discrete [--only C51 …] [--seeds 5]

Each algorithm trains with its preset for 50,000 steps, all seeds as lanes of one process. Then it
plays 100 episodes per seed with the best actions. `discrete_learning.json` has the options and, for
each seed, the returns of training episodes with their steps, and of the 100 episodes. Stored
results of other algorithms stay.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import table

ENV_ID, TIMESTEPS, GOAL = "CartPole-v1", 50_000, 475.0
C51 = {"atoms": 51, "value_min": 0.0, "value_max": 100.0}
NOISY = {"noisy_std": 0.5, "epsilon_end": 0.0}
# Label → algorithm and options beside the preset.
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "DQN": ("dqn", {}),
    "C51": ("dqn", C51),
    "noisy layers": ("dqn", NOISY),
    "Rainbow": (
        "dqn",
        {
            **C51,
            **NOISY,
            "dueling": True,
            "n_step": 3,
            "replay": "prioritized",
            "replay_alpha": 0.5,
        },
    ),
    "discrete SAC": ("sac_discrete", {}),
}


def train(label: str, num_seeds: int) -> list[dict[str, Any]]:
    """Train and evaluate all seeds of a contender."""
    import hotloop
    from hotloop.algorithms import find
    from hotloop.runs import RunDirectory
    from hotloop.runs.episodes import episodes_from_metrics
    from hotloop.training.lanes import train_lanes

    name, options = CONTENDERS[label]
    algorithm, runs = find(name), []
    with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
        configs = [
            algorithm.preset(
                ENV_ID,
                total_timesteps=TIMESTEPS,
                seed=seed,
                torch_threads=1,
                run_dir=str(Path(folder) / str(seed)),
                **options,
            )
            for seed in range(1, num_seeds + 1)
        ]
        for config, result in zip(configs, train_lanes(algorithm, configs), strict=True):
            if isinstance(result, Exception):
                raise result
            steps, returns = episodes_from_metrics(RunDirectory.open(result.run_dir).metrics())
            evaluation = hotloop.evaluate(result.run_dir, episodes=100)
            episodes = zip(steps.tolist(), returns.tolist(), strict=True)
            runs.append(
                {
                    "seed": config.seed,
                    "episodes": [[step, round(value, 1)] for step, value in episodes],
                    "mean_return": round(evaluation.mean_return, 1),
                }
            )
    return runs


def discrete_table() -> str:
    """Return a table with a row per algorithm."""
    header = ["", "options", "return of the last tenth", "100 episodes at the end"]
    rows = [[*header, "range over seeds", f"seeds from {GOAL:.0f}"]]
    for label, result in storage.load("discrete_learning")["algorithms"].items():
        runs, options = result["runs"], result["options"]
        ends = [
            statistics.fmean(value for step, value in run["episodes"] if step > 0.9 * TIMESTEPS)
            for run in runs
        ]
        means = [run["mean_return"] for run in runs]
        values = ", ".join(f"`{name}` {value}" for name, value in options.items())
        rows.append(
            [
                label,
                values or "–",
                f"{statistics.fmean(ends):.0f}",
                f"{statistics.fmean(means):.0f}",
                f"{min(means):.0f} … {max(means):.0f}",
                f"{sum(mean >= GOAL for mean in means)} of {len(means)}",
            ]
        )
    return table(*rows)


def main() -> int:
    """Train, store and print."""
    parser = argparse.ArgumentParser(prog="python -m bench discrete", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    for label in options.only:
        runs = train(label, options.seeds)
        print(label, [run["mean_return"] for run in runs], flush=True)
        try:
            stored = storage.load("discrete_learning")["algorithms"]
        except FileNotFoundError:
            stored = {}
        stored[label] = {"options": CONTENDERS[label][1], "runs": runs}
        ordered = {name: stored[name] for name in CONTENDERS if name in stored}
        storage.save("discrete_learning", {"algorithms": ordered})
    print(discrete_table())
    return 0
