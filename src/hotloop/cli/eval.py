"""`hotloop eval RUN`: play the policy of a run directory. Needs no torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hotloop.cli import add_trust, import_from_here, need
from hotloop.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from hotloop.runs import RunDirectory
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

    from hotloop.envs import make_vec
    from hotloop.envs.closing import closed_in_time
    from hotloop.policies import ActingPolicy
    from hotloop.rollouts.evaluation import evaluate
    from hotloop.runs import RunDirectory

    directory = RunDirectory.open(options.run)
    directory.check_trusted(is_trusted=options.trust, only_environment=True)
    if directory.may_import(is_trusted=options.trust):
        import_from_here()
    network, snapshot, _ = directory.load_policy(options.checkpoint, is_trusted=options.trust)
    policy = ActingPolicy(network, snapshot)
    config = {"num_envs": 1, "env_kwargs": {}, **directory.config["config"]}
    seed = config["seed"] if options.seed is None else options.seed
    env_id = directory.config["env_id"]
    with closed_in_time() as to_close:
        envs = make_vec(
            env_id,
            config["num_envs"],
            seed=seed,
            env_kwargs=config["env_kwargs"],
            stream="evaluation",
        )
        to_close.append(envs)
        if envs.obs_spec != network.obs_spec or envs.action_spec != network.action_spec:
            raise CheckpointError(
                f"the policy of {directory.path} was trained on other spaces than '{env_id}' has "
                "now: evaluate it with the environment's version of that time (config.json has it)"
            )
        filmed = None
        if options.video is not None:
            from hotloop.rollouts.video import record_video

            filmed = record_video(
                env_id, policy, options.video, env_kwargs=config["env_kwargs"], seed=seed
            )
        episodes = evaluate(envs, policy, num_episodes=options.episodes)
        _tell(directory, episodes, filmed, options)
    return 0


def _tell(
    directory: RunDirectory,
    episodes: Sequence[Episode],
    filmed: Episode | None,
    options: argparse.Namespace,
) -> None:
    """Print what came of it."""
    returns = np.array([episode.undiscounted_return for episode in episodes])
    lengths = np.array([episode.length for episode in episodes])
    if options.json:
        summary = {
            "run": str(directory.path),
            "episodes": len(returns),
            "mean_return": float(returns.mean()),
            "std_return": float(returns.std()),
            "returns": returns.tolist(),
            "lengths": lengths.tolist(),
        }
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
    print(f"mean length {lengths.mean():.1f}, returns {returns.min():.1f} … {returns.max():.1f}")
    if filmed is not None:
        print(f"video of an episode with return {filmed.undiscounted_return:.1f}: {options.video}")
    counted = f"{len(returns)} episode{'' if len(returns) == 1 else 's'}"
    print(f"mean return {returns.mean():.1f} ± {returns.std():.1f} over {counted}", flush=True)
