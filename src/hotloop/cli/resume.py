"""`hotloop resume RUN`: go on with a run that was stopped or killed."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from hotloop.cli import add_trust, import_from_here, need
from hotloop.errors import ConfigError


def run(args: list[str]) -> int:
    """Resume; see `hotloop resume --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop resume",
        description="Go on with a run that was stopped or killed, where its last checkpoint was "
        "saved: it ends with the weights that it would have had without the interruption. A run of "
        "sac, td3 or dqn does so if it was started with --save-replay; else its replay buffer "
        "begins empty. Of a run that was killed after its last step, what is missing is written.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument(
        "--checkpoint",
        default="last",
        metavar="NAME",
        help="go on from this one instead, such as one that is whole where the last is damaged; "
        "later ones are removed (default: %(default)s)",
    )
    parser.add_argument(
        "--total-timesteps",
        type=int,
        metavar="N",
        help="go on to so many steps (default: as the run was started)",
    )
    parser.add_argument(
        "--save-replay",
        action="store_true",
        help="keep the replay buffer with the last checkpoint from now on (sac, td3, dqn)",
    )
    add_trust(parser)
    options = parser.parse_args(args)
    for module in ("torch", "gymnasium", "safetensors", "matplotlib"):
        need(module, extra="train", purpose="training")

    from hotloop.algorithms import ALGORITHMS, find
    from hotloop.cli.train import train
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import learning_curve
    from hotloop.training.options import from_stored
    from hotloop.training.resume import finish, finished

    directory = RunDirectory.open(options.run)
    directory.check_trusted(is_trusted=options.trust)
    if directory.may_import(is_trusted=options.trust):
        import_from_here()
    directory.checkpoints.check_version(options.checkpoint)
    stored = directory.config
    name = stored["algorithm"]
    if ":" not in name and name not in ALGORITHMS:
        raise ConfigError(
            f"{options.run} is a run of '{name}', which this version of hotloop does not have: "
            f"resume it with hotloop {stored['versions'].get('hotloop')}"
        )
    algorithm = find(name)
    config = from_stored(algorithm.config, stored["config"])
    if options.total_timesteps is not None:
        config = dataclasses.replace(config, total_timesteps=options.total_timesteps)
    if options.save_replay:
        if not hasattr(config, "save_replay"):
            raise ConfigError(f"`--save-replay`: {name} has no replay buffer")
        config = dataclasses.replace(config, save_replay=True)
    last = finished(directory, config) if options.checkpoint == "last" else None
    if last is not None:
        directory.lock()
        try:
            finish(directory, config, last)
            curve = learning_curve(directory)
        finally:
            directory.close()
        print(
            f"{options.run} is finished, with {config.total_timesteps:,} steps; learning curve: "
            f"{curve}; --total-timesteps N goes on to more"
        )
        return 0
    resume_from = Path(options.run)
    if options.checkpoint != "last":
        resume_from = resume_from / "checkpoints" / options.checkpoint
    return train(algorithm, config, env=stored["env_id"], resume_from=resume_from)
