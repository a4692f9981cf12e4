"""`hotloop resume RUN`: continue a run that was stopped or killed."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, get_args

from hotloop.base.importing import enable_local_imports, long_imports, require_module
from hotloop.base.streams import notify
from hotloop.cli.command_parser import CommandParser, add_trust_option
from hotloop.errors import ConfigError


def run(args: list[str]) -> int:
    """Run the command. See `hotloop resume --help`."""
    parser = CommandParser(
        prog="hotloop resume",
        description="Continue a stopped or killed run from its last checkpoint. It ends with the "
        "same weights as without the interruption. An off-policy run, such as of sac, needs "
        "--save-replay from its start for this; otherwise its replay buffer starts empty. If the "
        "run was killed after its last step, the missing files are written.",
        usage="hotloop resume [--checkpoint NAME] [--trust] [options of train] RUN",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="a run directory")
    parser.add_argument(
        "--checkpoint",
        default="last",
        metavar="NAME",
        help="continue from this checkpoint, for example if the last one is damaged; later "
        "checkpoints are deleted (default: %(default)s)",
    )
    add_trust_option(parser)
    _add_changeable_options(parser)
    options, more_args = parser.parse_known_args(args)
    for module in ("torch", "gymnasium", "tyro", "safetensors", "matplotlib"):
        require_module(module, extra="train", purpose="training")

    with long_imports():
        from hotloop.algorithms import ALGORITHMS, find
        from hotloop.reports.training_summary import TrainingSummary
        from hotloop.runs import RunDirectory
        from hotloop.runs.learning_curve import learning_curve
        from hotloop.runs.policies import policy_runs
        from hotloop.training.options import from_stored, untrusted_options
        from hotloop.training.options.arguments import parse
        from hotloop.training.resume import (
            check_changes,
            finished_checkpoint,
            write_missing_accounting,
        )
        from hotloop.training.several_policies import check_whole, finished_steps
        from hotloop.training.terminal import train_in_terminal

    directory = RunDirectory.open(options.run)
    runs = [RunDirectory.open(path) for path in policy_runs(directory.path)]
    if runs and options.checkpoint != "last":
        raise ConfigError(
            f"{options.run} has several policies, which continue from the newest checkpoint that "
            "all of them have: leave --checkpoint out"
        )
    stored, name, untrusted = directory.config, directory.config["algorithm"], []
    if name in ALGORITHMS:
        untrusted = untrusted_options(find(name).config, stored["config"])
    for run in (directory, *runs):
        run.check_trusted(is_trusted=options.trust, untrusted_options=untrusted)
        if run.is_changed:
            run.sign()
    if directory.may_import(is_trusted=options.trust):
        enable_local_imports()
    directory.checkpoints.check_version(options.checkpoint)
    # Read the stored configuration, and apply the options.
    if ":" not in name and name not in ALGORITHMS:
        raise ConfigError(
            f"{options.run} is a run of '{name}', which this version of hotloop does not have: "
            f"resume it with hotloop {stored['versions'].get('hotloop')}"
        )
    algorithm = find(name)
    config = from_stored(algorithm.config, stored["config"])
    if config.track and not (options.trust or directory.is_signed):
        notify(
            f"{options.run} was not trained by you on this machine: it continues without its "
            f"trackers ({', '.join(config.track)}); pass --trust to use them"
        )
        config = dataclasses.replace(config, track=())
    changes = [*options.changes, *more_args]
    if changes:
        prog = f"hotloop resume {options.run}"
        config = parse(algorithm.config, changes, prog=prog, defaults=vars(config))
    check_changes(config, directory)
    if stored["config"].get("policies"):
        check_whole(directory.path)
    # Complete the files of a finished run.
    checkpoint = steps = None
    if runs:
        steps = finished_steps(directory, config)
    elif options.checkpoint == "last":
        checkpoint = finished_checkpoint(directory, config.total_timesteps)
        steps = None if checkpoint is None else checkpoint.state["timesteps"]
    if steps is not None:
        directory.lock()
        try:
            if checkpoint is not None:
                write_missing_accounting(directory, config, checkpoint)
            curves = [str(learning_curve(run)) for run in runs or [directory]]
        finally:
            directory.close()
        print(
            f"{options.run} is finished, with {steps:,} steps; learning curve: "
            f"{', '.join(curves)}; pass --total-timesteps with a larger number to continue"
        )
        return 0
    # Train from the checkpoint.
    resume_from = directory.path
    if options.checkpoint != "last":
        resume_from = resume_from / "checkpoints" / options.checkpoint
    return train_in_terminal(
        algorithm,
        config,
        TrainingSummary().print,
        env=stored["env_id"],
        resume_from=resume_from,
    )


def _add_changeable_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a training that may change, and append their arguments to `changes`."""
    from hotloop.training.options import ReplayOptions, RunOptions, changeable_options
    from hotloop.training.options.constraints import type_hints

    class Keep(argparse.Action):
        def __call__(
            self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
        ) -> None:
            value = [] if self.nargs == 0 else [values]
            namespace.changes = [*namespace.changes, option_string, *value]

    parser.set_defaults(changes=[])
    group = parser.add_argument_group(
        "options of the training that may change",
        "`hotloop train ALGORITHM --help` describes them. `--eval-interval None` leaves "
        "evaluations out, and `--total-timesteps N` continues up to that number of steps.",
    )
    hints = type_hints(RunOptions) | type_hints(ReplayOptions)
    for name in sorted(changeable_options(RunOptions) | changeable_options(ReplayOptions)):
        flag, is_switch = f"--{name.replace('_', '-')}", bool in get_args(hints[name])
        flags = [flag, f"--no-{flag[2:]}"] if is_switch else [flag]
        nargs = 0 if is_switch else None
        group.add_argument(*flags, action=Keep, nargs=nargs, metavar="VALUE", default=None)
