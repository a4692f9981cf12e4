"""`hotloop resume RUN`: continue a run that was stopped or killed."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from hotloop.cli import add_trust_option, enable_local_imports, require_module
from hotloop.errors import ConfigError


def run(args: list[str]) -> int:
    """Run the command. See `hotloop resume --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop resume",
        description="Continue a stopped or killed run from its last checkpoint. It ends with the "
        "same weights as without the interruption. A run of sac, td3 or dqn needs --save-replay "
        "from its start for this; otherwise its replay buffer starts empty. If the run was killed "
        "after its last step, the missing files are written.",
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument(
        "--checkpoint",
        default="last",
        metavar="NAME",
        help="continue from this checkpoint, for example if the last one is damaged; later "
        "checkpoints are deleted (default: %(default)s)",
    )
    parser.add_argument(
        "--total-timesteps",
        type=int,
        metavar="N",
        help="continue up to this number of steps (default: as set at the start)",
    )
    parser.add_argument(
        "--save-replay",
        action="store_true",
        help="from now on save the replay buffer with the last checkpoint (sac, td3, dqn)",
    )
    add_trust_option(parser)
    options = parser.parse_args(args)
    for module in ("torch", "gymnasium", "safetensors", "matplotlib"):
        require_module(module, extra="train", purpose="training")

    from hotloop.algorithms import ALGORITHMS, find
    from hotloop.cli.train import train
    from hotloop.runs import RunDirectory
    from hotloop.runs.plots import learning_curve
    from hotloop.training.options import from_stored
    from hotloop.training.resume import finished_checkpoint, write_missing_accounting

    directory = RunDirectory.open(options.run)
    directory.check_trusted(is_trusted=options.trust)
    if directory.may_import(is_trusted=options.trust):
        enable_local_imports()
    directory.checkpoints.check_version(options.checkpoint)
    stored = directory.config
    # Read the stored configuration, and apply the options.
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
    # Complete the files of a finished run.
    checkpoint = finished_checkpoint(directory, config) if options.checkpoint == "last" else None
    if checkpoint is not None:
        directory.lock()
        try:
            write_missing_accounting(directory, config, checkpoint)
            curve = learning_curve(directory)
        finally:
            directory.close()
        print(
            f"{options.run} is finished, with {config.total_timesteps:,} steps; learning curve: "
            f"{curve}; pass --total-timesteps N to continue"
        )
        return 0
    # Train from the checkpoint.
    resume_from = Path(options.run)
    if options.checkpoint != "last":
        resume_from = resume_from / "checkpoints" / options.checkpoint
    return train(algorithm, config, env=stored["env_id"], resume_from=resume_from)
