"""The run of a command: its arguments, and opening it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hotloop.base.importing import enable_local_imports, require_module
from hotloop.cli.command_parser import add_trust_option

if TYPE_CHECKING:
    from hotloop.runs import RunDirectory


def add_run_arguments(parser: argparse.ArgumentParser, run_help: str = "a run directory") -> None:
    """Add the run, `--checkpoint` and `--trust`."""
    parser.add_argument("run", metavar="RUN", help=run_help)
    parser.add_argument(
        "--checkpoint", default="last", help="last, best, or another name (default: %(default)s)"
    )
    add_trust_option(parser)


def open_run(options: argparse.Namespace) -> RunDirectory:
    """Open the run whose checkpoint a command reads.

    Raises:
        MissingExtraError: checkpoints can't be read.
        RunDirectoryError: there is no such run.
    """
    require_module("safetensors", extra="train", purpose="reading a checkpoint")

    from hotloop.runs import RunDirectory

    directory = RunDirectory.open(options.run)
    if directory.may_import(is_trusted=options.trust):
        enable_local_imports()
    return directory
