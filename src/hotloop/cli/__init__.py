"""The command `hotloop`: one thin file a subcommand, imported only when it is called."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from hotloop.errors import (
    ConfigError,
    HotloopError,
    MissingExtraError,
    SpaceError,
    UnknownNameError,
    nearest,
)
from hotloop.streams import steady_output

if TYPE_CHECKING:
    import argparse

# Subcommand → module of this package, and what it does.
COMMANDS = {
    "train": "Train an agent with PPO, SAC, TD3, DQN or your own algorithm.",
    "resume": "Continue a training that was stopped or killed.",
    "sweep": "Search for the best options of an algorithm, over several seeds.",
    "eval": "Play episodes with a trained agent and print their mean return.",
    "runs": "List the trainings below a directory and their state.",
    "plot": "Draw learning curves, with confidence bands over seeds.",
    "export": "Save a trained policy as ONNX or NumPy.",
    "profile": "Run a script, find out why it is slow, and print the causes.",
    "report": "Print the report of a profile or a training again.",
    "compare": "Compare options, learning and speed of trainings, or the speed of two profiles.",
    "presets": "List the environments with options that were tuned for them.",
    "plan": "Estimate how many workers and machines a training can use.",
    "doctor": "Check this machine: versions, cores, GPU, and what would make training faster.",
    "cache": "Show or delete the compiled code that hotloop keeps.",
    "bandit": "Run k-armed bandits and draw the figures of Sutton & Barto's chapter 2.",
}

# These read what somebody else may have written.
_OF_RUNS = ("resume", "eval", "runs", "plot", "export", "report", "compare")

HELP = """usage: hotloop COMMAND ...

Fast PPO, SAC, TD3 and DQN for Gymnasium environments, and a profiler that says why any
reinforcement-learning script is slow.

begin with:
  hotloop train ppo --env-id CartPole-v1      train an agent
  hotloop profile my_script.py                find out why a script is slow

commands:
{commands}

options:
  -h, --help     show this
  --version      show the version
  --debug        with any command: show the traceback of an error

`hotloop COMMAND --help` lists the options of a command.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; the process's own by default.

    Returns:
        The exit code: 0, 1 for a failure, 2 for a mistake in the arguments, 130 after Ctrl-C.
    """
    debug, args = _take_debug(list(sys.argv[1:] if argv is None else argv))
    with steady_output() as output:
        code = _answered(args, debug=debug)
        output.flush()
        if output.error is None:
            return code
        if not isinstance(output.error, BrokenPipeError):  # `hotloop … | head` is no accident
            why = getattr(output.error, "strerror", None) or output.error
            tell(f"standard output can't be written ({why}): what was left to print is lost")
        if args[:1] in (["train"], ["resume"]):  # what came of it is in its directory
            return code
        return code or 1


def _answered(args: list[str], *, debug: bool) -> int:
    """Run a command, tell of what it raises, and return the exit code."""
    try:
        with _short_warnings():
            return _run(args)
    except HotloopError as error:
        if debug:
            traceback.print_exc()
        else:
            tell(str(error))
        return 2 if isinstance(error, (ConfigError, SpaceError, UnknownNameError)) else 1
    except KeyboardInterrupt:
        tell("interrupted")
        return 130
    except Exception as error:
        if debug:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        tell(
            f"{type(error).__name__}: {error} ({where.filename}:{where.lineno}); "
            "--debug shows the traceback"
        )
        return 1


def _take_debug(args: list[str]) -> tuple[bool, list[str]]:
    """Whether `--debug` is given, and the rest. What follows `profile`'s script is the script's."""
    ours, theirs = args, []
    if "profile" in args[:2]:
        from hotloop.cli.profile import split

        begin = args.index("profile") + 1
        options, theirs = split(args[begin:])
        ours = args[:begin] + options
    return "--debug" in ours, [arg for arg in ours if arg != "--debug"] + theirs


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = (f"  {name:{width}}     {about}" for name, about in COMMANDS.items())
        print(HELP.format(commands="\n".join(lines)), end="")
        return 0 if args else 2
    if args[0] == "--version":
        from hotloop import __version__

        print(f"hotloop {__version__}")
        return 0
    if args[0] not in COMMANDS:
        raise UnknownNameError(
            f"expected a command ({', '.join(COMMANDS)}), got '{args[0]}'"
            + (nearest(args[0], COMMANDS) or "; `hotloop --help` lists them")
        )
    try:
        os.getcwd()
    except OSError as error:  # torch's libraries would end the process at their import
        raise HotloopError(
            f"the current directory must exist, but it can't be found ({error.strerror}): change "
            "to another one"
        ) from error
    if args[0] not in _OF_RUNS:
        import_from_here()
    return importlib.import_module(f"hotloop.cli.{args[0]}").run(args[1:])


def import_from_here() -> None:
    """Find modules in the current directory, as `python -m` does: environments of the user's own.

    Not for runs of somebody else, who may have put modules of any name beside them.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def need(module: str, *, extra: str, purpose: str) -> None:
    """Make sure that an optional library is there.

    Raises:
        MissingExtraError: it is not; says which extra brings it.
    """
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(f"{purpose} needs {module}: pip install 'hotloop[{extra}]'")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Give a command that imports what a run names the option `--trust`."""
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import and run what the run names (environment and its arguments, network, "
        "algorithm, schedules), even if you have not trained it on this machine",
    )


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Tell warnings as errors are told: one line, and the place where it is not one of ours."""
    own = os.path.dirname(os.path.dirname(__file__)) + os.sep

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = " ".join(str(message).split())
        if not filename.startswith(own):
            text += f" ({os.path.basename(filename)}:{lineno})"
        print(f"hotloop: warning: {text}", file=file or sys.stderr)

    before = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def tell(message: str) -> None:
    """Print a line on standard error; what a terminal would act on is replaced.

    Messages repeat names and values from files that somebody else may have written.
    """
    shown = "".join(
        x if x.isprintable() or x == "\n" else "\N{REPLACEMENT CHARACTER}" for x in message
    )
    print(f"hotloop: {shown}", file=sys.stderr)
