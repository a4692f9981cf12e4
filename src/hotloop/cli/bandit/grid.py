"""The command `hotloop bandit grid AGENT FIELD=VALUES…`: a resumable grid of settings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.base.signals import Interrupted, interrupt_once
from hotloop.base.text_tables import plain_table, print_table, wide_console
from hotloop.cli import require_module
from hotloop.cli.bandit.options import add_environment, add_json, add_sizes, new_parser, reject_args
from hotloop.cli.bandit.progress import GridLine, format_count
from hotloop.cli.bandit.tables import plus_minus, print_json
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.bandits.grids import Grid, GridProgress, GridTable

_EPILOG = """`hotloop bandit --help` lists agents and their fields. A range is a list of values and
progressions:
  epsilon=0.01,0.1           values
  step_size=none,0.1         the words none, true, false
  epsilon=0.1:0.5:0.1        steps: 0.1, 0.2, … 0.5
  epsilon=2**-7:2**-2:x2     factors: 2⁻⁷, 2⁻⁶, … 2⁻²
  epsilon=log:0.01,0.5,8     8 points, evenly spaced in the logarithm; lin:0,1,5 evenly
  --env num_arms=int:2,5     integers
  --env 'means=0.9,0.8;0.5,0.4'    lists, separated by ;

Results are stored in the file every quarter of a second. After a stop or a kill, run the same
command to resume. With more --runs it adds runs to the stored ones.

example:
  hotloop bandit grid epsilon-greedy epsilon=2**-7:2**-2:x2 step_size=none,0.1 --picture study.png
"""
_MAX_ROWS = 20


def run(args: list[str]) -> int:
    """Run the command. See `hotloop bandit grid --help`."""
    parser = _parser()
    options, unknown = parser.parse_known_intermixed_args(args)  # ranges may follow options
    reject_args(parser, unknown)
    require_module("numba", extra="bandit", purpose="a bandit")
    if options.picture is not None:
        require_module("matplotlib", extra="bandit", purpose="drawing a picture")
    if options.export is not None:
        require_module("pyarrow", extra="parquet", purpose="exporting a grid")
        if options.export.suffix != ".parquet":
            raise ConfigError(f"`--export` must end in .parquet, got '{options.export}'")

    from hotloop.bandits.grids import Grid
    from hotloop.bandits.grids.grid_table import plot_axes
    from hotloop.bandits.plots import check_plot_path
    from hotloop.base.space_syntax import parse_assignments

    # Build the grid.
    environment_fields = parse_assignments(options.env, "--env ")
    if options.arms is not None:
        if "num_arms" in environment_fields:
            raise ConfigError("`--arms` and `--env num_arms=…` are the same: give one of them")
        environment_fields["num_arms"] = options.arms
    grid = Grid(
        options.agent,
        parse_assignments(options.ranges),
        environment_name=options.environment,
        environment_fields=environment_fields,
        num_steps=options.steps,
        late_steps=options.late_steps,
        steps_per_point=options.steps_per_point,
    )
    if options.picture is not None:  # check before the computation, which may take long
        check_plot_path(options.picture, option="--picture")
        plot_axes(grid.ranges)
    # Compute it, write files and print the table.
    try:
        table = _compute(grid, options)
    except Interrupted as stop:
        return stop.exit_code
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

    description = "Play all combinations of an agent's settings, with results in one SQLite file."
    parser = new_parser("grid", description)
    parser.epilog = _EPILOG
    parser.add_argument("agent", metavar="AGENT", help="such as epsilon-greedy, ucb, gradient")
    parser.add_argument(
        "ranges", metavar="FIELD=RANGE", nargs="*", help="settings of the agent; see below"
    )
    add_environment(parser, accepts_ranges=True)
    add_sizes(parser, runs=2000, steps=1000)
    whole = {"metavar": "N", "type": int}
    note = "(default: %(default)s)"
    parser.add_argument(
        "--late-steps", **whole, help="number of last steps for the late columns (default: a tenth)"
    )
    parser.add_argument(
        "--steps-per-point", **whole, help="steps that each point of a curve averages over"
    )
    parser.add_argument(
        "--file", metavar="FILE", type=Path, default=Path("grid.sqlite"), help=f"SQLite file {note}"
    )
    parser.add_argument(
        "--quantity",
        choices=QUANTITIES,
        default=QUANTITIES[0],
        help=f"quantity that sorts the table and that the picture shows {note}",
    )
    parser.add_argument("--all", action="store_true", help=f"print all points, not {_MAX_ROWS}")
    parser.add_argument(
        "--picture",
        metavar="FILE",
        type=Path,
        help="draw a parameter study (one range) or a heat map (two): .png, .svg or .pdf",
    )
    parser.add_argument(
        "--export", metavar="FILE", type=Path, help="write settings, estimates and curves: .parquet"
    )
    add_json(parser)
    return parser


def _compute(grid: Grid, options: argparse.Namespace) -> GridTable:
    """Return the table, or raise Interrupted after printing what the file contains."""
    with interrupt_once() as guard, GridLine() as line:

        def on_progress(progress: GridProgress) -> None:
            line.show(progress)
            guard.check()

        try:
            table = grid.run(
                options.file,
                num_runs=options.runs,
                seed=options.seed,
                threads=options.threads,
                on_progress=on_progress,
            )
        except Interrupted:
            line.close()
            print(f"hotloop: stopped {_stored_text(line.progress, options.file)}", file=sys.stderr)
            raise
    if table.num_of_other_kernels:
        print(
            f"hotloop: {table.num_of_other_kernels:,} rows in {options.file} are from another "
            "version of the kernels: they stay in the file, their runs were computed again",
            file=sys.stderr,
        )
    return table


def _stored_text(progress: GridProgress | None, path: Path) -> str:
    if progress is None:
        return "before the first result"
    return (
        f"with {progress.finished_points:,} of {progress.total_points:,} points complete in {path}"
        ", and finished parts of the others: run the same command to resume"
    )


def _print_table(table: GridTable, quantity: str, *, print_all: bool) -> None:
    from rich.text import Text

    from hotloop.bandits.grids.notation import setting_text

    rows = table.sorted(quantity)
    printed_rows = rows if print_all else rows[:_MAX_ROWS]
    settings = list(table.ranges) or list(rows[0].settings)
    printed = plain_table()
    for name in settings:
        printed.add_column(Text(name), justify="right", no_wrap=True)
    late = f"last {table.late_steps:,}"
    headings = ("reward", "optimal", "regret", f"reward, {late}", f"optimal, {late}")
    for heading in headings:
        printed.add_column(heading, justify="right", no_wrap=True)
    for row in printed_rows:
        estimates = (
            plus_minus(row.mean_reward),
            plus_minus(row.mean_optimal, percent=True),
            plus_minus(row.final_regret),
            plus_minus(row.late_reward),
            plus_minus(row.late_optimal, percent=True),
        )
        printed.add_row(*(Text(setting_text(row.settings[name])) for name in settings), *estimates)
    print_table(printed, wide_console())
    if len(printed_rows) < len(rows):
        print(f"… and {len(rows) - len(printed_rows):,} more: --all prints them")


def _summary(table: GridTable) -> str:
    """Return the last line: run·steps, time and file."""
    all_run_steps = len(table.rows) * table.num_runs * table.num_steps
    points = f"{len(table.rows):,} point{'s' * (len(table.rows) != 1)}"
    if not table.computed_run_steps:
        return f"{points}: all results were in {table.path}, nothing was computed"
    stored = all_run_steps - table.computed_run_steps
    stored_text = f", {format_count(stored)} were in the file" if stored > 0 else ""
    return (
        f"{points}: {format_count(table.computed_run_steps)} run·steps{stored_text}; "
        f"{table.elapsed_s:,.3f} s on {table.threads} thread{'s' * (table.threads != 1)}, "
        f"{table.kernel_share:.0%} of it in kernels, after {table.prepare_s:.1f} s of preparing "
        f"them; stored in {table.path}"
    )
