"""`hotloop profile`: run a script or a command of hotloop, and report where its time goes."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from hotloop.base.program_arguments import program_name, python_arguments
from hotloop.cli.command_parser import CommandParser, count, milliseconds, positive
from hotloop.errors import ConfigError
from hotloop.timing.gpu_window import LENGTH_S

# Commands of hotloop that run long enough for a profile.
OWN_COMMANDS = ("train", "resume", "eval", "bandit")
_USAGE = """hotloop profile [OPTIONS] SCRIPT [ARGUMENT ...]
       hotloop profile [OPTIONS] -m MODULE [ARGUMENT ...]
       hotloop profile [OPTIONS] train ppo ...
       hotloop profile [OPTIONS] python SCRIPT [ARGUMENT ...]
       hotloop profile --pid N [--seconds S] [--out DIR]"""


def run(args: list[str]) -> int:
    """Run the command. See `hotloop profile --help`."""
    from hotloop.profiler.collect import launch
    from hotloop.profiler.render.live import LiveReport, check_terminal

    own_args, program_args = parser().split_program(args)
    options = parser().parse_own(own_args)
    if options.pid is not None:
        return _attach(options, own_args, program_args)
    if options.seconds is not None:
        raise ConfigError("`--seconds` needs `--pid`: a script is recorded until it ends")
    _check_experiment(options)
    if options.live:
        check_terminal()
    arguments = python_arguments(program_args, "profile", OWN_COMMANDS)
    directory = launch.make_directory(options.out, program_name(program_args))
    live_report = LiveReport(directory) if options.live else nullcontext()
    with live_report, _experiment(options, directory):
        code = launch.record_program(
            arguments,
            directory,
            interval_s=options.interval,
            gpu_window_s=options.gpu_window,
            hooks=not options.no_hooks,
            py_spy=options.py_spy,
            is_live=options.live,
            what_if=options.what_if,
            options=_out_parser().parse_known_args(own_args)[1],
        )
    if options.live:
        launch.print_output(directory)
    from hotloop.profiler.render import final_report  # importing it earlier would delay the script

    final_report.print_and_write(directory)
    return code


def _attach(options: argparse.Namespace, own_args: list[str], program_args: list[str]) -> int:
    """Record a process that already runs."""
    from hotloop.profiler.collect.attach import check_process, record_process
    from hotloop.profiler.collect.launch import make_directory

    allowed = {"--pid", "--seconds", "--out"}
    surplus = [x for x in own_args if x.startswith("--") and x.partition("=")[0] not in allowed]
    if program_args or surplus:
        raise ConfigError(
            "expected `--pid N` with `--seconds` and `--out` alone, got "
            f"'{(surplus + program_args)[0]}': a running process has its own arguments, and py-spy "
            "samples it from outside"
        )
    check_process(options.pid)
    directory = make_directory(options.out, f"pid-{options.pid}")
    record_process(options.pid, directory, seconds=options.seconds)
    from hotloop.profiler.render import final_report

    final_report.print_and_write(directory)
    return 0


def _check_experiment(options: argparse.Namespace) -> None:
    if (options.what_if_at or options.progress) and not options.what_if:
        raise ConfigError("--what-if-at and --progress need --what-if: add it")
    if options.what_if and not options.interval:
        raise ConfigError("--what-if needs samples, got `--interval 0`: leave it out")


def _experiment(options: argparse.Namespace, directory: Path) -> AbstractContextManager[object]:
    """Return the experiment of `--what-if`, or a context that does nothing."""
    if not options.what_if:
        return nullcontext()
    from hotloop.profiler.what_if.experiment import Experiment

    return Experiment(directory, options.what_if_at, options.progress)


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
    add = parser.add_argument
    interval, window = milliseconds(least=1), milliseconds(least=20, auto_s=LENGTH_S)
    interval_help = "time between samples (default: 10; 0: no samples)"
    add("--interval", metavar="MS", type=interval, default=0.01, help=interval_help)
    window_help = "length of each recording with torch's profiler, 3, 10, 30, 100, … s after torch "
    window_help += "starts to use a GPU (default: auto, which is 250; 0: never)"
    add("--gpu-window", metavar="MS", type=window, default=LENGTH_S, help=window_help)
    add("--no-hooks", action="store_true", help="do not wrap functions of other libraries")
    add("--py-spy", action="store_true", help="sample with py-spy too, into py-spy.txt in DIR")
    pid_help = "attach py-spy to a running process and its children, instead of starting a script; "
    pid_help += "without spans, causes of waits and memory"
    add("--pid", metavar="N", type=count, help=pid_help)
    seconds_help = "time to record with --pid (default: until the process ends, or Ctrl-C)"
    add("--seconds", metavar="S", type=positive, help=seconds_help)
    what_if_help = "delay the most expensive places in turn, in windows of 0.2 s, and report how "
    what_if_help += (
        "much the program would gain if they were faster; takes a minute, and slows the "
    )
    what_if_help += "program by a tenth"
    add("--what-if", action="store_true", help=what_if_help)
    at_help = "delay this place: FILE:LINE, or the name of a function, a span or a stage (act, "
    at_help += "step, store, sample, learn); repeat it for several (default: chosen by samples)"
    add("--what-if-at", metavar="PLACE", action="append", default=[], help=at_help)
    progress_help = "measure the throughput by the passes of this place (default: environment "
    progress_help += "steps, else updates, else the outermost loop)"
    add("--progress", metavar="PLACE", default="", help=progress_help)
    return parser


def _out_parser() -> CommandParser:
    """Return a parser of the options that a repetition of the profile leaves out."""
    parser = CommandParser(prog="hotloop profile", add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="directory of the profile (default: profiles/<script>__<time>)",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="show the report while the script runs; its output to the terminal follows at its end",
    )
    return parser
