"""Population-based training of two teams, beside the same members without exploits.

    python -m bench populations [--seeds 5] [--timesteps 65536]

Hunters and runners (`bench.self_play.pursuit`) learn by PPO in populations of four members each,
whose learning rates are drawn from 1e-5 … 1e-1. Both ways begin with the same members and take the
same steps. Afterwards the best hunters of one way, by the matches within their population, play
against the best runners of the other way, and all hunters against all runners. The advantage is the
difference of the hunters' returns: those of the population-based hunters against runners that were
trained without it, minus those of the others. The intervals are Student's over seeds, 95 %.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import table
from bench.self_play.pursuit import Pursuit
from hotloop.base.statistics import student_t

RESULT = "populations"
MEMBERS, GENERATIONS, GAMES = 4, 8, 16
WAYS = {"population-based": True, "without exploits": False}
OPTIONS: dict[str, Any] = {
    "policies": "hunter,runner",
    "num_envs": 32,
    "num_steps": 64,
    "num_minibatches": 4,
    "update_epochs": 4,
    "hidden_sizes": (32, 32),
    "execution": "eager",
}


def train(way: str, seed: int, timesteps: int, folder: Path) -> dict[str, Any]:
    """Train a population, and return its last generation and the runs of all members."""
    from hotloop.algorithms import ppo
    from hotloop.base.space_syntax import Range
    from hotloop.experiments.policy_population import Population

    config = ppo.Config(**OPTIONS, seed=seed, total_timesteps=timesteps, run_dir=str(folder / way))
    population = Population(
        ppo.algorithm,
        config,
        {"learning_rate": Range(1e-5, 1e-1, is_log=True)},
        members=MEMBERS,
        generations=GENERATIONS,
        num_games=GAMES,
        replaces=WAYS[way],
        env=Pursuit,
    )
    generations = population.train()
    last = generations[-1]
    return {
        "generation": last,
        "exploits": sum(len(generation.exploits) for generation in generations),
        "best": population.best(last),
        "all": {
            name: [folder / way / "members" / str(k) / "policies" / name for k in range(MEMBERS)]
            for name in last.fitness
        },
    }


def advantages(ways: dict[str, Any], seed: int) -> dict[str, float]:
    """Return the advantage of population-based training of the best members, and of all."""
    from hotloop import EnvSpec
    from hotloop.experiments.matches import Matches
    from hotloop.policies import ActingPolicy
    from hotloop.runs import RunDirectory

    def load(path: Path) -> ActingPolicy:
        network, snapshot, _ = RunDirectory.open(path).load_policy()
        return ActingPolicy(network, snapshot)

    game: Any = Pursuit
    matches = Matches(EnvSpec(game, seed=10_000 + seed), OPTIONS["policies"], 64, 1_000)
    first, second = (ways[way] for way in WAYS)

    def caught(hunters: list[Path], runners: list[Path]) -> float:
        results = [
            result["hunter"]
            for i, hunter in enumerate(hunters)
            for k, runner in enumerate(runners)
            for result in matches.play(
                {"hunter": load(hunter), "runner": load(runner)}, i * MEMBERS + k
            )
        ]
        return statistics.fmean(results)

    best = {way: {name: [path] for name, path in ways[way]["best"].items()} for way in WAYS}
    a, b = best.values()
    result = {
        "best": caught(a["hunter"], b["runner"]) - caught(b["hunter"], a["runner"]),
        "all": caught(first["all"]["hunter"], second["all"]["runner"])
        - caught(second["all"]["hunter"], first["all"]["runner"]),
    }
    matches.close()
    return result


def interval(values: list[float]) -> str:
    """Return mean and 95 % interval as text."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:+.2f}"
    width = student_t(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:+.2f} ± {width:.2f}"


def populations_table() -> str:
    """Return the table of the last result."""
    runs = storage.load(RESULT)["runs"]
    rows = [["hunters' and runners' advantage, catches", "mean over seeds", "each seed"]]
    for name, text in (("best", "best members"), ("all", "all members")):
        values = [run[name] for run in runs]
        rows.append([text, interval(values), ", ".join(f"{value:+.1f}" for value in values)])
    return table(*rows)


def main() -> int:
    """Train with several seeds, and store the results."""
    parser = argparse.ArgumentParser(prog="python -m bench populations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--timesteps", type=int, default=65_536)
    options = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
            ways = {way: train(way, seed, options.timesteps, Path(folder)) for way in WAYS}
            run: dict[str, Any] = {"seed": seed, **advantages(ways, seed)}
        for way, result in ways.items():
            generation = result["generation"]
            run[way] = {
                "fitness": generation.fitness,
                "exploits": result["exploits"],
                "match_steps": generation.match_steps,
                "learning_rates": {
                    name: [x["learning_rate"] for x in values]
                    for name, values in generation.options.items()
                },
            }
        runs.append(run)
        print(run, flush=True)
    storage.save(RESULT, {"timesteps": options.timesteps, "runs": runs}, peers=("pettingzoo",))
    print(populations_table())
    return 0
