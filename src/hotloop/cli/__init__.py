"""The command `hotloop`. Each subcommand is one module, imported only when it is called."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from contextlib import nullcontext

from hotloop.base.files import path_problem
from hotloop.base.importing import enable_local_imports, names_module
from hotloop.base.signals import Interrupted, interrupt_by_default
from hotloop.base.streams import notify, short_warnings, steady_output
from hotloop.base.version import __version__
from hotloop.errors import ConfigError, HotloopError, SpaceError, UnknownNameError, nearest

# Subcommand, which is also the name of its module → description.
COMMANDS = {
    "train": "Train an agent with PPO, SAC, TD3, DQN or your own algorithm.",
    "resume": "Continue a training that was stopped or killed.",
    "sweep": "Search for the best options of an algorithm over seeds.",
    "eval": "Play episodes with a trained agent and print their mean return.",
    "runs": "List the trainings below a directory and their state.",
    "plot": "Draw learning curves, with confidence bands over seeds.",
    "export": "Save a trained policy as ONNX or NumPy.",
    "push": "Publish a trained policy on the Hugging Face Hub.",
    "profile": "Run a script, find out why it is slow, and print the causes.",
    "accelerate": "Run a script of Stable-Baselines3 with hotloop's fast updates.",
    "report": "Print the report of a profile or a training again.",
    "compare": "Compare the learning and speed of trainings, or two profiles.",
    "presets": "List the environments with options that were tuned for them.",
    "plan": "Estimate how many workers and machines a training can use.",
    "doctor": "Check this machine, and show what would make training faster.",
    "cache": "Show, build or delete the compiled code that hotloop keeps.",
    "bandit": "Run k-armed bandits, and draw the figures of Sutton & Barto.",
}

# What other tools call a subcommand, for the error about an unknown one.
_OTHER_NAMES = {"play": "eval", "enjoy": "eval", "test": "eval", "learn": "train", "tune": "sweep"}
# These commands import the `module:name` of an option, also from the current directory.
_IMPORTING_COMMANDS = ("train", "sweep", "plan", "bandit")
# These commands run a program, with the program's arguments.
_RUNNING_COMMANDS = ("profile", "accelerate")

HELP = """usage: hotloop COMMAND ...

Fast PPO, SAC, TD3 and DQN for Gymnasium environments, and a profiler that finds
out why a reinforcement-learning script is slow.

start with:
  hotloop train ppo --env-id CartPole-v1      train an agent
  hotloop profile my_script.py                find out why a script is slow
  hotloop accelerate my_script.py             speed up a script of SB3

commands:
{commands}

options:
  -h, --help     show this help
  --version      show the version
  --debug        with any command: show the full traceback of an error

`hotloop COMMAND --help` lists the options of a command.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, `sys.argv[1:]` by default.

    Returns:
        The exit code: 0, 1 for a failure, 2 for invalid arguments, 130 after Ctrl-C.
    """
    debug, args = _split_debug(list(sys.argv[1:] if argv is None else argv))
    with steady_output() as output:
        code = _run_guarded(args, debug=debug)
        output.flush()
        if output.error is None:
            return code
        if not isinstance(output.error, BrokenPipeError):  # `hotloop … | head` closes it early
            reason = getattr(output.error, "strerror", None) or output.error
            notify(f"standard output can't be written ({reason}): the rest of it is lost")
        is_training = args[:1] in (["train"], ["resume"])  # whose run directory has the results
        return code if is_training else code or 1


def _run_guarded(args: list[str], *, debug: bool) -> int:
    """Run a command, print what it raises as one line, and return the exit code."""
    try:
        # Programs that other commands run keep the handlers that they expect.
        is_training = args[:1] in (["train"], ["resume"])
        with short_warnings(), interrupt_by_default() if is_training else nullcontext():
            return _run(args)
    except HotloopError as error:
        if debug:
            traceback.print_exc()
        else:
            notify(str(error))
        return 2 if isinstance(error, (ConfigError, SpaceError, UnknownNameError)) else 1
    except KeyboardInterrupt as interrupt:
        notify("interrupted")
        return interrupt.exit_code if isinstance(interrupt, Interrupted) else 130
    except Exception as error:
        if debug:
            raise
        if problem := path_problem(error):
            notify(problem)
            return 1
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        notify(f"{type(error).__name__}: {error} ({place}); --debug shows the traceback")
        return 1


def _split_debug(args: list[str]) -> tuple[bool, list[str]]:
    """Remove `--debug`, except from the arguments of a script, and return whether it was set."""
    own_args, script_args = args, []
    for command in _RUNNING_COMMANDS:
        if command in args[:2]:
            parser = importlib.import_module(f"hotloop.cli.{command}").parser()
            start = args.index(command) + 1
            options, script_args = parser.split_program(args[start:])
            own_args = args[:start] + options
    return "--debug" in own_args, [arg for arg in own_args if arg != "--debug"] + script_args


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = (f"  {name:{width}}     {summary}" for name, summary in COMMANDS.items())
        print(HELP.format(commands="\n".join(lines)), end="")
        return 0 if args else 2
    if args[0] == "--version":
        print(f"hotloop {__version__}")
        return 0
    if args[0] not in COMMANDS:
        name = _OTHER_NAMES.get(args[0], args[0])
        hint = nearest(name, COMMANDS) or "; `hotloop --help` lists them"
        raise UnknownNameError(f"expected a command ({', '.join(COMMANDS)}), got '{args[0]}'{hint}")
    try:
        os.getcwd()
    except OSError as error:  # importing torch would end the process
        reason = f"can't be found ({error.strerror})"
        raise HotloopError(f"the current directory {reason}: change to another one") from error
    if args[0] in _IMPORTING_COMMANDS and any(map(names_module, args[1:])):
        enable_local_imports()
    return importlib.import_module(f"hotloop.cli.{args[0]}").run(args[1:])
