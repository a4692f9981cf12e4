"""Self-play: tic-tac-toe without a lost game, and connect four against scripted players.

    python -m bench self-play [--game tictactoe|connect_four] [--seeds 1 2 3]

The policy trains against snapshots of itself, which make one move in four at random. In tic-tac-toe
DQN learns with its preset. Each checkpoint then plays all games, in both seats, in which the
opponent makes any of the perfect moves, and all games with any moves at all. In connect four PPO
learns, and each checkpoint plays against random moves, and against a player that sees wins and
threats one move ahead. The policy plays its most probable actions. Runs are in a temporary
directory. Stored results of other games and seeds stay.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import table
from bench.self_play.perfect import count_games
from hotloop.algorithms.presets import DQN

_COMMON: dict[str, Any] = {"execution": "eager", "keep_checkpoints": 1_000}
# `raw_env` is the game without PettingZoo's checks of each move, which masks make needless.
GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "tictactoe": (
        "dqn",
        {
            **DQN["pettingzoo:pettingzoo.classic.tictactoe_v3"],
            **_COMMON,
            "env_id": "pettingzoo.classic.tictactoe.tictactoe:raw_env",
            "checkpoint_interval": 40_000,
        },
    ),
    "connect_four": (
        "ppo",
        {
            **_COMMON,
            "env_id": "pettingzoo.classic.connect_four.connect_four:raw_env",
            "self_play": "uniform",
            "self_play_epsilon": 0.25,
            "self_play_pool": 5,
            "self_play_interval": 8_192,
            "action_masks": True,
            "num_envs": 32,
            "gamma": 1.0,
            "hidden_sizes": (256, 256),
            "num_steps": 64,
            "learning_rate": "linear:1e-3,0",
            "entropy_coef": 0.01,
            "total_timesteps": 100_000,
            "checkpoint_interval": 20_000,
        },
    ),
}
"""Algorithm and options of each game."""
OPPONENTS = {"random": "random", "one_ply": "bench.self_play.one_ply:one_ply"}
"""Opponents in connect four."""
_NUM_GAMES = 200


def count_losses(run_dir: Path, checkpoint: str) -> dict[str, float]:
    """Return the numbers of lost games of tic-tac-toe against perfect moves and any moves."""
    import hotloop

    policy = hotloop.load(run_dir, checkpoint)
    known: dict[bytes, int] = {}

    def choose(observation: Any, mask: Any) -> int:
        key = observation["observation"].tobytes()
        if key not in known:
            known[key] = int(policy.act(observation, action_mask=mask))
        return known[key]

    return {
        "perfect": count_games(choose, is_perfect=True)["losses"],
        "any": count_games(choose, is_perfect=False)["losses"],
    }


def play_opponents(run_dir: Path, checkpoint: str) -> dict[str, float]:
    """Return the share of won games of connect four against each opponent."""
    import hotloop

    shares: dict[str, float] = {}
    for name, opponent in OPPONENTS.items():
        played = hotloop.evaluate(
            run_dir, checkpoint=checkpoint, opponent=opponent, episodes=_NUM_GAMES, seed=1
        )
        shares[name] = sum(score == 1 for score in played.info["score"]) / _NUM_GAMES
    return shares


def train(game: str, seed: int) -> dict[str, Any]:
    """Return the tests of each checkpoint of a training, and its ratings."""
    from hotloop.algorithms import find
    from hotloop.base import documents

    name, options = GAMES[game]
    test = count_losses if game == "tictactoe" else play_opponents
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        start = time.process_time()
        algorithm = find(name)
        config = algorithm.config(**options, seed=seed, run_dir=str(run_dir))
        algorithm.train(config, progress=False)
        seconds = time.process_time() - start
        names = sorted(path.name for path in (run_dir / "checkpoints").glob("step-*"))
        curve = [{"timesteps": int(x.removeprefix("step-")), **test(run_dir, x)} for x in names]
        ratings = documents.read(run_dir / "self_play.json")
    return {
        "seed": seed,
        "cpu_seconds": round(seconds, 1),
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


def tictactoe_table() -> str:
    """Return the steps after which no game of tic-tac-toe is lost, and the losses at the end."""
    rows = [
        [
            "seed",
            "no loss to perfect moves after",
            "no loss to any moves after",
            "games lost at the end, to perfect and to any moves",
        ]
    ]
    for run in storage.load("self_play").get("tictactoe", []):
        first = [unbeaten_from(run["curve"], kind) for kind in ("perfect", "any")]
        steps = ["–" if x is None else f"{x:,} steps" for x in first]
        last = run["curve"][-1]
        rows.append([str(run["seed"]), *steps, f"{last['perfect']}, {last['any']}"])
    return table(*rows) if len(rows) > 1 else ""


def connect_four_table() -> str:
    """Return the mean shares of won games of connect four over the steps."""
    runs = storage.load("self_play").get("connect_four", [])
    rows = [["steps", "won against random moves", "won against one move ahead"]]
    for points in zip(*(run["curve"] for run in runs), strict=True):
        shares = [[point[name] for point in points] for name in OPPONENTS]
        rows.append([f"{points[0]['timesteps']:,}", *(_describe(x) for x in shares)])
    return table(*rows) if len(rows) > 1 else ""


def _describe(shares: list[float]) -> str:
    """Return the mean of shares, and their range over seeds."""
    mean = f"{100 * sum(shares) / len(shares):.0f} %"
    if len(shares) == 1:
        return mean
    return f"{mean} ({100 * min(shares):.0f} … {100 * max(shares):.0f})"


def main() -> int:
    """Train with several seeds, and store the results of each game."""
    parser = argparse.ArgumentParser(prog="python -m bench self-play", description=__doc__)
    parser.add_argument("--game", choices=GAMES, action="append")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    for game in options.game or GAMES:
        for seed in options.seeds:
            run = train(game, seed)
            print(f"{game}, seed {seed}: {run}", flush=True)
            results: dict[str, Any] = {}
            with contextlib.suppress(FileNotFoundError):
                results = storage.load("self_play")
                del results["machine"]
            runs = [run, *(x for x in results.get(game, []) if x["seed"] != seed)]
            results[game] = sorted(runs, key=lambda x: x["seed"])
            storage.save("self_play", results)
    print(tictactoe_table(), connect_four_table(), sep="\n\n")
    return 0
