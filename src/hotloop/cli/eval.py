"""`hotloop eval RUN`: play the policy of a run directory. Needs no torch."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

import numpy as np

from hotloop.cli import add_trust, import_from_here, need
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.runs import RunDirectory
    from hotloop.training.trained import Played
    from hotloop.types import Episode


def run(args: list[str]) -> int:
    """Evaluate; see `hotloop eval --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop eval",
        description="Play the policy of a run directory, deterministically, in environments of its "
        "own, and print the mean and the standard deviation of its returns.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument(
        "--episodes", type=int, default=100, help="episodes to play (default: %(default)s)"
    )
    parser.add_argument(
        "--checkpoint",
        default="last",
        help="last, best, or another one (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="of the environments (default: the run's)"
    )
    parser.add_argument(
        "--video",
        metavar="FILE",
        help="film the first episode too: .mp4 or .gif (needs the extra `video`)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object with every episode instead"
    )
    add_trust(parser)
    options = parser.parse_args(args)
    if options.episodes < 1:
        raise ConfigError(f"`--episodes` must be positive, got {options.episodes}")
    if options.seed is not None and options.seed < 0:
        raise ConfigError(f"`--seed` must not be negative, got {options.seed}")
    for module in ("gymnasium", "safetensors"):
        need(module, extra="train", purpose="evaluation")

    from hotloop.rollouts.video import check_filmable, record_video
    from hotloop.runs import RunDirectory
    from hotloop.training.trained import evaluate, load

    directory = RunDirectory.open(options.run)
    directory.check_trusted(is_trusted=options.trust, only_environment=True)
    if directory.may_import(is_trusted=options.trust):
        import_from_here()
    chosen = {"checkpoint": options.checkpoint, "trust": options.trust}
    config = {"env_kwargs": {}, **directory.config["config"]}
    made = {"env_kwargs": config["env_kwargs"]}
    if options.video is not None:
        check_filmable(directory.config["env_id"], **made)
    played = evaluate(options.run, episodes=options.episodes, seed=options.seed, **chosen)
    filmed = None
    if options.video is not None:
        seed = config["seed"] if options.seed is None else options.seed
        policy = load(options.run, **chosen)
        filmed = record_video(directory.config["env_id"], policy, options.video, seed=seed, **made)
    _tell(directory, played, filmed, options)
    return 0


def _tell(
    directory: RunDirectory,
    played: Played,
    filmed: Episode | None,
    options: argparse.Namespace,
) -> None:
    """Print what came of it."""
    returns, lengths = played.returns, played.lengths
    if options.json:
        summary = {
            "run": str(directory.path),
            "episodes": len(returns),
            "mean_return": played.mean_return,
            "std_return": played.std_return,
            "returns": returns,
            "lengths": lengths,
        }
        if played.info:
            summary["info"] = played.info
        if filmed is not None:
            summary["video"] = {
                "path": options.video,
                "return": filmed.undiscounted_return,
                "length": filmed.length,
            }
        json.dump(summary, sys.stdout)
        print()
        return
    print(f"{directory.config['algorithm']} on {directory.config['env_id']}, {directory.path}")
    print(f"mean length {np.mean(lengths):.1f}, returns {min(returns):.1f} … {max(returns):.1f}")
    for name, values in played.info.items():
        found = [value for value in values if value is not None]
        print(f"mean {name} {np.mean(found):.4g} over {len(found)} episodes")
    if filmed is not None:
        print(f"video of an episode with return {filmed.undiscounted_return:.1f}: {options.video}")
    print(played, flush=True)
