"""Self-play: tic-tac-toe without a lost game, and connect four against scripted players.

    python -m bench self-play [--game tictactoe|connect_four] [--seeds 5]

PPO trains against snapshots of itself. In tic-tac-toe each checkpoint then plays all games, in both
seats, in which the opponent makes any of the perfect moves, and all games with any moves at all.
This is done with and without random moves of the snapshots. In connect four each checkpoint plays
against random moves, and against a player that sees wins and threats one move ahead. The policy
plays its most probable actions. Runs are in a temporary directory.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import storage
from bench.markdown import table
from bench.self_play.perfect import count_games

EPSILON = 0.25
COMMON: dict[str, Any] = {
    "action_masks": True,
    "num_envs": 32,
    "num_steps": 64,
    "gamma": 1.0,
    "keep_checkpoints": 1_000,
    "execution": "eager",
    "self_play": "uniform",
}
TICTACTOE: dict[str, Any] = {
    **COMMON,
    "env_id": "pettingzoo:pettingzoo.classic.tictactoe_v3",
    "self_play_interval": 10_240,
    "self_play_pool": 5,
    "hidden_sizes": (128, 128),
    "learning_rate": "linear:2e-3,0",
    "entropy_coef": "linear:0.03,0.003",
    "total_timesteps": 500_000,
    "checkpoint_interval": 20_480,
}
CONNECT_FOUR: dict[str, Any] = {
    **COMMON,
    "env_id": "pettingzoo:pettingzoo.classic.connect_four_v3",
    "self_play_epsilon": EPSILON,
    "self_play_interval": 20_480,
    "self_play_pool": 5,
    "hidden_sizes": (256, 256),
    "learning_rate": "linear:1e-3,0",
    "entropy_coef": 0.01,
    "total_timesteps": 500_000,
    "checkpoint_interval": 81_920,
}
VARIANTS = {"none": 0.0, "one in four": EPSILON}
"""Random moves of the snapshots in tic-tac-toe."""
OPPONENTS = {"random": "random", "one_ply": "bench.self_play.one_ply:one_ply"}
"""Opponents in connect four."""
_GAMES = 400
_ONLY_HERE = {"keep_checkpoints", "checkpoint_interval", "execution"}


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
            run_dir, checkpoint=checkpoint, opponent=opponent, episodes=_GAMES, seed=1
        )
        shares[name] = sum(score == 1 for score in played.info["score"]) / _GAMES
    return shares


def train(
    options: dict[str, Any], seed: int, test: Callable[[Path, str], dict[str, float]]
) -> dict[str, Any]:
    """Return the tests of each checkpoint of a training, and its ratings."""
    from hotloop.algorithms import ppo
    from hotloop.base import documents

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        start = time.perf_counter()
        config = ppo.Config(**options, seed=seed, run_dir=str(run_dir))
        ppo.algorithm.train(config, progress=False)
        seconds = time.perf_counter() - start
        names = sorted(path.name for path in (run_dir / "checkpoints").glob("step-*"))
        curve = [{"timesteps": int(x.removeprefix("step-")), **test(run_dir, x)} for x in names]
        ratings = documents.read(run_dir / "self_play.json")
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
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


def command() -> str:
    """Return the command that trains tic-tac-toe as here."""
    options = {**TICTACTOE, "self_play_epsilon": EPSILON}
    words = ["hotloop train ppo"]
    for name, value in options.items():
        if name in _ONLY_HERE:
            continue
        flag = "--" + name.replace("_", "-")
        values = value if isinstance(value, tuple) else (value,)
        words.append(flag if value is True else " ".join([flag, *map(str, values)]))
    lines = textwrap.wrap("    " + " ".join(words), 100, break_on_hyphens=False)
    return " \\\n        ".join(lines)


def tictactoe_table() -> str:
    """Return the steps after which no game of tic-tac-toe is lost, and the losses at the end."""
    rows = [
        [
            "random moves of snapshots",
            "seed",
            "no loss to perfect moves after",
            "no loss to any moves after",
            "games lost at the end, to perfect and to any moves",
        ]
    ]
    for run in storage.load("self_play").get("tictactoe", {}).get("runs", []):
        first = [unbeaten_from(run["curve"], kind) for kind in ("perfect", "any")]
        steps = ["–" if x is None else f"{x:,} steps" for x in first]
        last = run["curve"][-1]
        lost = f"{last['perfect']}, {last['any']}"
        rows.append([run["random_moves"], str(run["seed"]), *steps, lost])
    return table(*rows) if len(rows) > 1 else ""


def connect_four_table() -> str:
    """Return the mean shares of won games of connect four over the steps."""
    runs = storage.load("self_play").get("connect_four", {}).get("runs", [])
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
    parser.add_argument("--game", choices=("tictactoe", "connect_four"))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    games = [options.game] if options.game else ["tictactoe", "connect_four"]
    with contextlib.suppress(FileNotFoundError):
        results = storage.load("self_play")
        del results["machine"]
    jobs: list[tuple[str, dict[str, Any], Any, dict[str, Any]]] = []
    for name, epsilon in VARIANTS.items():
        settings = {**TICTACTOE, "self_play_epsilon": epsilon}
        jobs.append(("tictactoe", settings, count_losses, {"random_moves": name}))
    jobs.append(("connect_four", CONNECT_FOUR, play_opponents, {}))
    for game, settings, test, fields in jobs:
        if game not in games:
            continue
        if "random_moves" not in fields or fields["random_moves"] == "none":
            results[game] = {"timesteps": settings["total_timesteps"], "runs": []}
        for seed in range(1, options.seeds + 1):
            run = {**fields, **train(settings, seed, test)}
            print(f"{game}, seed {seed}: {run}", flush=True)
            results[game]["runs"].append(run)
            storage.save("self_play", results)
    print(tictactoe_table(), connect_four_table(), sep="\n\n")
    return 0
