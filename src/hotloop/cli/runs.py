"""`hotloop runs`: list the runs below a directory, with the status of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json, print_table, wide_console
from hotloop.cli.command_parser import CommandParser


def run(args: list[str]) -> int:
    """Run the command. See `hotloop runs --help`."""
    parser = CommandParser(
        prog="hotloop runs",
        description="List the runs below a directory, oldest first: finished and requested steps, "
        "mean return of the last 100 training episodes, best evaluation. A run that can't "
        "be read, or whose configuration was changed after your training, is listed as damaged.",
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        default="runs",
        help="the directory to search, four levels deep (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")
    options = parser.parse_args(args)

    from hotloop.reports.run_table import runs_json
    from hotloop.runs.summary import find_runs

    directory = Path(options.directory)
    paths = find_runs(directory)
    if options.json:
        return print_json(runs_json(paths))
    if paths:
        print_runs(paths, directory)
    else:
        print(f"no runs below {directory}")
    return 0


def print_runs(paths: Sequence[Path], directory: Path) -> None:
    """Print a table of runs."""
    from hotloop.reports.run_table import read_summaries, run_table

    summaries, damaged = read_summaries(paths)
    console = wide_console()
    print_table(run_table(summaries, [x for x, _ in damaged], directory, console.width), console)
    for _, error in damaged:
        notify(str(error))
