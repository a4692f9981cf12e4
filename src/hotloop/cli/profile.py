"""`hotloop profile`: run a script or a command of hotloop, and report where its time goes."""

from __future__ import annotations

from hotloop.base.program_arguments import program_name, python_arguments
from hotloop.cli.command_parser import CommandParser, milliseconds
from hotloop.timing.gpu_window import LENGTH_S

# Commands of hotloop that run long enough for a profile.
OWN_COMMANDS = ("train", "resume", "eval", "bandit")
_USAGE = """hotloop profile [OPTIONS] SCRIPT [ARGUMENT ...]
       hotloop profile [OPTIONS] -m MODULE [ARGUMENT ...]
       hotloop profile [OPTIONS] train ppo ...
       hotloop profile [OPTIONS] python SCRIPT [ARGUMENT ...]"""


def run(args: list[str]) -> int:
    """Run the command. See `hotloop profile --help`."""
    from hotloop.profiler.collect import launch

    own_args, program_args = parser().split_program(args)
    options = parser().parse_own(own_args)
    arguments = python_arguments(program_args, "profile", OWN_COMMANDS)
    directory = launch.make_directory(options.out, program_name(program_args))
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


def parser() -> CommandParser:
    """Return the parser of the options."""
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


def _out_parser() -> CommandParser:
    """Return a parser of the options that a repeated profile does not share."""
    parser = CommandParser(prog="hotloop profile", add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="directory of the profile (default: profiles/<script>__<time>)",
    )
    return parser
