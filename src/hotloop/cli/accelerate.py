"""`hotloop accelerate`: run a Stable-Baselines3 script with hotloop's classes in place."""

from __future__ import annotations

import os
import sys

from hotloop.base.program_arguments import python_arguments
from hotloop.cli.command_parser import CommandParser

_USAGE = """hotloop accelerate [OPTIONS] SCRIPT [ARGUMENT ...]
       hotloop accelerate [OPTIONS] -m MODULE [ARGUMENT ...]
       hotloop accelerate [OPTIONS] python SCRIPT [ARGUMENT ...]"""


def run(args: list[str]) -> int:
    """Run the command. See `hotloop accelerate --help`."""
    own_args, program_args = parser().split_program(args)
    options = parser().parse_own(own_args)
    arguments = python_arguments(program_args, "accelerate")
    from hotloop.accelerate.libraries import check_libraries
    from hotloop.accelerate.script import script_command

    check_libraries()
    command = script_command(arguments, execution=options.execution, precision=options.precision)
    # The script gets this process: its signals, its terminal and its exit code.
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)


def parser() -> CommandParser:
    """Return the parser of the options."""
    parser = CommandParser(
        prog="hotloop accelerate",
        usage=_USAGE,
        description="Run an unchanged script that uses Stable-Baselines3, with hotloop's updates, "
        "acting and replay in its models. The output and exit code of the script stay the same. "
        "At its end, print what was accelerated, what was not and why.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--execution",
        choices=("auto", "eager", "compile"),
        default="auto",
        help="how updates run (default: auto, which compiles them where this pays)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="type of the matrix products in updates of SAC, TD3, DDPG and DQN (default: float32). "
        "Try bfloat16 on a processor with AMX or AVX512-BF16",
    )
    return parser
