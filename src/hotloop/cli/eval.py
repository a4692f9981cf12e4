"""`hotloop eval RUN`: evaluate the policy of a run directory, without torch."""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hotloop.base.importing import enable_local_imports, require_module
from hotloop.base.rounding import format_number
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json
from hotloop.cli.command_parser import CommandParser, add_trust_option, count, natural

if TYPE_CHECKING:
    from hotloop.runs import RunDirectory
    from hotloop.training.trained_policy import EvaluationResult
    from hotloop.types import Episode


def run(args: list[str]) -> int:
    """Run the command. See `hotloop eval --help`."""
    from hotloop.rollouts.evaluation import MAX_STEPS

    parser = CommandParser(
        prog="hotloop eval",
        description="Play episodes with the most probable actions of a run's policy, in new "
        "environments, and print the mean and standard deviation of the returns.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory, or hf://user/name")
    parser.add_argument(
        "--episodes", type=count, default=100, help="episodes to play (default: %(default)s)"
    )
    parser.add_argument(
        "--max-steps",
        type=count,
        default=MAX_STEPS,
        metavar="N",
        help="maximum length of an episode; a longer one is cut, and counts with its return up "
        "to there (default: %(default)s)",
    )
    parser.add_argument(
        "--checkpoint", default="last", help="last (the default), best, or another one's name"
    )
    parser.add_argument("--seed", type=natural, help="the environments' seed (default: the run's)")
    parser.add_argument(
        "--opponent",
        metavar="NAME",
        help="in games: random (the default after self-play), a run, or module:function",
    )
    parser.add_argument(
        "--video",
        metavar="FILE",
        help="record the first episode as a video: .mp4 or .gif (needs the extra `video`)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object with all episodes instead"
    )
    add_trust_option(parser)
    options = parser.parse_args(args)
    for module in ("gymnasium", "safetensors"):
        require_module(module, extra="train", purpose="evaluation")

    from hotloop.rollouts.video import MAX_STEPS as VIDEO_STEPS
    from hotloop.rollouts.video import Camera
    from hotloop.runs import RunDirectory
    from hotloop.runs.hub import local_run
    from hotloop.training.trained_policy import evaluate, load, run_spec

    # Check that the run may be loaded, and that a video can be recorded.
    run_path = local_run(options.run)
    directory = RunDirectory.open(run_path)
    directory.check_trusted(is_trusted=options.trust, only_environment=True)
    if ":" in (options.opponent or "") or directory.may_import(is_trusted=options.trust):
        enable_local_imports()
    chosen = {"checkpoint": options.checkpoint, "trust": options.trust}
    spec = run_spec(directory)
    if options.seed is not None:
        spec = replace(spec, seed=options.seed)
    with closing(Camera(spec)) as camera:
        if options.video is not None:
            camera.check(options.video)
        # Play the episodes, and record the video.
        limit = f"--max-steps {options.max_steps:,} cuts an episode"
        played = evaluate(
            run_path,
            episodes=options.episodes,
            seed=options.seed,
            max_steps=options.max_steps,
            opponent=options.opponent,
            on_note=lambda text: notify(f"{text}; {limit}"),
            **chosen,
        )
        episode = None
        if options.video is not None:
            policy = load(run_path, **chosen)
            max_steps = min(VIDEO_STEPS, options.max_steps)
            episode = camera.record(policy.acting, options.video, max_steps=max_steps)
    _print_result(directory, played, episode, options)
    return 0


def _print_result(
    directory: RunDirectory,
    played: EvaluationResult,
    episode: Episode | None,
    options: argparse.Namespace,
) -> None:
    """Print the returns, and the path of the video if there is one."""
    returns, lengths = played.returns, played.lengths
    if options.json:
        summary = {
            "run": options.run,
            "episodes": len(returns),
            "mean_return": played.mean_return,
            "std_return": played.std_return,
            "returns": returns,
            "lengths": lengths,
            "num_cut": played.num_cut,
        }
        if played.info:
            summary["info"] = played.info
        if episode is not None:
            summary["video"] = {
                "path": options.video,
                "return": episode.undiscounted_return,
                "length": episode.length,
                "is_cut": episode.is_cut,
            }
        print_json(summary)
        return
    print(f"{directory.config['algorithm']} on {directory.config['env_id']}, {options.run}")
    spread = played.std_return
    low, high = (format_number(end, spread) for end in (min(returns), max(returns)))
    mean_length = format_number(float(np.mean(lengths)))
    print(f"mean length {mean_length}, returns {low} … {high}")
    for name, values in played.info.items():
        known = [value for value in values if value is not None]
        mean = format_number(float(np.mean(known)), float(np.std(known)))
        print(f"mean {name} {mean} over {len(known)} episodes")
    if episode is not None:
        scene = f"the first {episode.length:,} steps of an" if episode.is_cut else "an"
        filmed = format_number(episode.undiscounted_return, spread)
        end = " up to there" * episode.is_cut
        print(f"video of {scene} episode with return {filmed}{end}: {options.video}")
    print(played, flush=True)
