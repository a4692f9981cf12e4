"""`hotloop eval RUN`: evaluate the policy of a run directory, without torch."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from hotloop.base.importing import enable_local_imports, require_module
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json
from hotloop.cli.command_parser import CommandParser, count, natural
from hotloop.cli.stored_run import add_run_arguments


def run(args: list[str]) -> int:
    """Run the command. See `hotloop eval --help`."""
    from hotloop.rollouts.evaluation import MAX_STEPS

    parser = CommandParser(
        prog="hotloop eval",
        description="Play episodes with the most probable actions of a run's policy, in new "
        "environments, and print the mean and standard deviation of the returns.",
    )
    add_run_arguments(parser, "a run directory, or hf://user/name")
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
    options = parser.parse_args(args)
    for module in ("gymnasium", "safetensors"):
        require_module(module, extra="train", purpose="evaluation")

    from hotloop.reports.evaluation import Evaluation
    from hotloop.rollouts.video import MAX_STEPS as VIDEO_STEPS
    from hotloop.rollouts.video import Camera
    from hotloop.runs import RunDirectory
    from hotloop.runs.hub import local_run
    from hotloop.training.trained_policy import evaluate, film_maker, load, run_spec

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
    make_game = film_maker(directory, options.opponent, trust=options.trust)
    spec = replace(spec, action_masks=directory.config["config"].get("action_masks", False))
    with closing(Camera(spec, make_game)) as camera:
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
    evaluation = Evaluation(options.run, played, options.video, episode)
    if options.json:
        return print_json(evaluation.to_json())
    print(evaluation.text(directory.config), flush=True)
    return 0
