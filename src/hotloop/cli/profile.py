"""`hotloop profile`: run a script or a command of hotloop, and report where its time goes."""

from __future__ import annotations

import argparse

from hotloop.cli.command_parser import CommandParser, milliseconds
from hotloop.errors import ConfigError
from hotloop.timing.gpu_window import LENGTH_S

_USAGE = """hotloop profile [OPTIONS] SCRIPT [ARGUMENT ...]
       hotloop profile [OPTIONS] -m MODULE [ARGUMENT ...]
       hotloop profile [OPTIONS] train ppo ...
       hotloop profile [OPTIONS] python SCRIPT [ARGUMENT ...]"""


def run(args: list[str]) -> int:
    """Run the command. See `hotloop profile --help`."""
    from hotloop.profiler.collect import launch, program

    own_args, program_args = split_arguments(args)
    options = profile_options(own_args)
    arguments = program.python_arguments(program_args)
    directory = launch.make_directory(options.out, program.program_name(program_args))
    code = launch.record_program(
        arguments,
        directory,
        interval_s=options.interval,
        gpu_window_s=options.gpu_window,
        hooks=not options.no_hooks,
        py_spy=options.py_spy,
        options=_out_parser().parse_known_args(own_args)[1],
    )
    from hotloop.profiler.render import final_report  # not before: the script would start later

    final_report.print_and_write(directory)
    return code


def split_arguments(args: list[str]) -> tuple[list[str], list[str]]:
    """Split into options of this command and the script with its arguments, without a `--`."""
    actions = _parser()._option_string_actions
    index = 0
    while index < len(args) and args[index].startswith("-") and args[index] not in ("-m", "--"):
        action = actions.get(args[index])
        index += 2 if action is not None and action.nargs is None else 1
    return args[:index], args[index + (args[index : index + 1] == ["--"]) :]


def profile_options(args: list[str]) -> argparse.Namespace:
    """Return the options of this command, see `split_arguments`.

    Raises:
        ConfigError: An option is unknown or has an invalid value.
    """
    options, unknown = _parser().parse_known_args(args)
    if unknown:
        raise ConfigError(
            f"expected an option of `hotloop profile` before the script, got '{unknown[0]}': "
            "options of the script must follow the script; `hotloop profile --help` lists ours"
        )
    return options


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="hotloop profile",
        usage=_USAGE,
        description="Run an unchanged Python script and report where the time of all its "
        "processes goes. The output and exit code of the script stay the same.",
        allow_abbrev=False,
        parents=[_out_parser()],
    )
    parser.add_argument(
        "--interval",
        metavar="MS",
        type=milliseconds(least=1),
        default=0.01,
        help="time between samples (default: 10; 0: no samples)",
    )
    parser.add_argument(
        "--gpu-window",
        metavar="MS",
        type=milliseconds(least=20, auto_s=LENGTH_S),
        default=LENGTH_S,
        help="length of each recording with torch's profiler, 3, 10, 30, 100, … s after torch "
        "starts to use a GPU (default: auto, which is 250; 0: never)",
    )
    parser.add_argument(
        "--no-hooks", action="store_true", help="do not wrap functions of other libraries"
    )
    parser.add_argument(
        "--py-spy",
        action="store_true",
        help="sample with py-spy too, into py-spy.txt in the profile directory",
    )
    return parser


def _out_parser() -> argparse.ArgumentParser:
    """Return a parser of the options that a repeated profile does not share."""
    parser = CommandParser(prog="hotloop profile", add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="directory of the profile (default: profiles/<script>__<time>)",
    )
    return parser
