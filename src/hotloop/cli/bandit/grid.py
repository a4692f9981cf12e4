"""`hotloop bandit grid AGENT FIELD=VALUES…`: a bandit over ranges of its settings, resumable."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.cli import need
from hotloop.cli.bandit.options import add_environment, add_json, add_sizes, parser_of, refuse
from hotloop.cli.bandit.progress import GridLine, short
from hotloop.cli.bandit.tables import plus_minus, print_json
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import ConfigError
from hotloop.system.signals import Ended, end_once

if TYPE_CHECKING:
    from hotloop.sweeps.bandits import Grid, GridProgress, GridTable

_EPILOG = """`hotloop bandit --help` lists agents and their fields. A range is a list, each part of
which may be a progression:
  epsilon=0.01,0.1           values
  step_size=none,0.1         words are none, true, false
  epsilon=0.1:0.5:0.1        steps: 0.1, 0.2, … 0.5
  epsilon=2**-7:2**-2:x2     factors: 2⁻⁷, 2⁻⁶, … 2⁻²
  epsilon=log:0.01,0.5,8     so many points of a range, by its logarithm; lin:0,1,5 evenly
  --env num_arms=int:2,5     whole numbers
  --env means=0.9,0.8;0.5,0.4    of what is a list itself, several with ; between them (quote it)

Everything computed is in the file within a quarter of a second. Stopped or killed, the same command
goes on from there; with more --runs it adds to what is there.

example:
  hotloop bandit grid epsilon-greedy epsilon=2**-7:2**-2:x2 step_size=none,0.1 --picture study.png
"""
_TOP = 20


def run(args: list[str]) -> int:
    """Compute a grid; see `hotloop bandit grid --help`."""
    parser = _parser()
    options, rest = parser.parse_known_intermixed_args(args)  # ranges may stand behind options
    refuse(parser, rest)
    need("numba", extra="bandit", purpose="a bandit")
    if options.picture is not None:
        need("matplotlib", extra="bandit", purpose="drawing a picture")
    if options.export is not None:
        need("pyarrow", extra="parquet", purpose="exporting a grid")
        if options.export.suffix != ".parquet":
            raise ConfigError(f"`--export` must end in .parquet, got '{options.export}'")

    from hotloop.bandits.pictures import check_picture
    from hotloop.sweeps.bandits import Grid
    from hotloop.sweeps.bandits.table import picture_axes
    from hotloop.sweeps.grammar import texts_of

    outer = texts_of(options.env, "--env ")
    if options.arms is not None:
        if "num_arms" in outer:
            raise ConfigError("`--arms` and `--env num_arms=…` are the same: give one of them")
        outer["num_arms"] = options.arms
    grid = Grid(
        options.agent,
        texts_of(options.ranges),
        environment_name=options.environment,
        environment_fields=outer,
        num_steps=options.steps,
        late_steps=options.late_steps,
        steps_per_point=options.steps_per_point,
    )
    if options.picture is not None:  # before the work, which may take long
        check_picture(options.picture, option="--picture")
        picture_axes(grid.ranges)
    try:
        table = _compute(grid, options)
    except Ended as ended:
        return ended.exit_code
    if options.picture is not None:
        table.save_picture(options.picture, options.quantity)
    if options.export is not None:
        table.save_parquet(options.export)
    files = {"picture": options.picture, "export": options.export}
    written = {name: str(path) for name, path in files.items() if path is not None}
    if options.json:
        return print_json(table.to_dict() | written)
    print(f"{table.title}\n")
    _print_table(table, options.quantity, print_all=options.all)
    print(f"\n± standard error over runs\n{_summary(table)}")
    for name, path in written.items():
        print(f"{name}: {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    from hotloop.bandits.results import QUANTITIES

    about = (
        "Play all combinations of an agent's settings, and keep what comes out in one SQLite file."
    )
    parser = parser_of("grid", about)
    parser.epilog = _EPILOG
    parser.add_argument("agent", metavar="AGENT", help="such as epsilon-greedy, ucb, gradient")
    parser.add_argument(
        "ranges", metavar="FIELD=RANGE", nargs="*", help="the agent's settings; see below"
    )
    add_environment(parser, of_ranges=True)
    add_sizes(parser, runs=2000, steps=1000)
    whole = {"metavar": "N", "type": int}
    about = "(default: %(default)s)"
    parser.add_argument(
        "--late-steps", **whole, help="the last steps, for the late columns (default: a tenth)"
    )
    parser.add_argument(
        "--steps-per-point", **whole, help="steps that a point of a curve is the mean of"
    )
    parser.add_argument(
        "--file", metavar="FILE", type=Path, default=Path("grid.sqlite"), help=f"the file {about}"
    )
    parser.add_argument(
        "--quantity",
        choices=QUANTITIES,
        default=QUANTITIES[0],
        help=f"what the table is sorted by and the picture shows {about}",
    )
    parser.add_argument("--all", action="store_true", help=f"print all points, not the best {_TOP}")
    parser.add_argument(
        "--picture",
        metavar="FILE",
        type=Path,
        help="draw a parameter study (one range) or a heat map (two): .png, .svg or .pdf",
    )
    parser.add_argument(
        "--export", metavar="FILE", type=Path, help="write settings, estimates, curves: .parquet"
    )
    add_json(parser)
    return parser


def _compute(grid: Grid, options: argparse.Namespace) -> GridTable:
    """The table.

    Raises:
        Ended: by Ctrl-C, `kill` or a closed terminal; what is kept has been told.
    """
    with end_once() as ending, GridLine() as line:

        def on_progress(progress: GridProgress) -> None:
            line.show(progress)
            ending.check()

        try:
            table = grid.run(
                options.file,
                num_runs=options.runs,
                seed=options.seed,
                threads=options.threads,
                on_progress=on_progress,
            )
        except Ended:
            line.close()
            print(f"hotloop: stopped; {_kept(line.progress, options.file)}", file=sys.stderr)
            raise
    if table.num_of_other_kernels:
        print(
            f"hotloop: {table.num_of_other_kernels:,} rows in {options.file} are from another "
            "version of the kernels: they are left alone, their runs were computed anew",
            file=sys.stderr,
        )
    return table


def _kept(progress: GridProgress | None, path: Path) -> str:
    if progress is None:
        return "nothing was computed"
    return (
        f"{progress.points:,} of {progress.all_points:,} points are complete in {path}, and what "
        "ended of the others is kept: the same command goes on from there"
    )


def _print_table(table: GridTable, quantity: str, *, print_all: bool) -> None:
    from rich.text import Text

    from hotloop.sweeps.bandits.notation import text_of

    rows = table.sorted(quantity)
    shown = rows if print_all else rows[:_TOP]
    settings = list(table.ranges) or list(rows[0].settings)
    printed = plain_table()
    for name in settings:
        printed.add_column(Text(name), justify="right", no_wrap=True)
    late = f"last {table.late_steps:,}"
    headings = ("reward", "optimal", "regret", f"reward, {late}", f"optimal, {late}")
    for heading in headings:
        printed.add_column(heading, justify="right", no_wrap=True)
    for row in shown:
        estimates = (
            plus_minus(row.mean_reward),
            plus_minus(row.mean_optimal, percent=True),
            plus_minus(row.final_regret),
            plus_minus(row.late_reward),
            plus_minus(row.late_optimal, percent=True),
        )
        printed.add_row(*(Text(text_of(row.settings[name])) for name in settings), *estimates)
    print_table(printed, wide_console())
    if len(shown) < len(rows):
        print(f"… and {len(rows) - len(shown):,} more: --all prints them")


def _summary(table: GridTable) -> str:
    """The last lines: how much was computed in which time, and where it is."""
    all_run_steps = len(table.rows) * table.num_runs * table.num_steps
    points = f"{len(table.rows):,} point{'s' * (len(table.rows) != 1)}"
    if not table.computed_run_steps:
        return f"{points}: all of it was in {table.path}, nothing had to be computed"
    kept = all_run_steps - table.computed_run_steps
    there = f", {short(kept)} were in the file" if kept > 0 else ""
    return (
        f"{points}: {short(table.computed_run_steps)} run·steps{there}; {table.elapsed_s:,.3f} s "
        f"on {table.threads} thread{'s' * (table.threads != 1)}, {table.kernel_share:.0%} of it in "
        f"kernels, after {table.prepare_s:.1f} s of preparing them; kept in {table.path}"
    )
