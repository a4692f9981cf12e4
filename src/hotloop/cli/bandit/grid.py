"""The command `hotloop bandit grid AGENT FIELD=VALUES…`: a resumable grid of settings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.base.importing import require_module
from hotloop.base.signals import Interrupted, interrupt_once
from hotloop.base.space_syntax import parse_assignments
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json
from hotloop.cli.bandit.grid_output import MAX_ROWS, GridLine, print_grid
from hotloop.cli.bandit.options import (
    add_environment,
    add_json,
    add_sizes,
    environment_fields,
    new_parser,
    parse_options,
)
from hotloop.cli.command_parser import count
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.bandits.grids import Grid, GridProgress, GridTable

_EPILOG = """`hotloop bandit --help` lists agents and their fields. A range is a list of
values and progressions:
  step_size=none,0.1         values, or the words none, true, false
  epsilon=0.1:0.5:0.1        steps: 0.1, 0.2, … 0.5
  epsilon=2**-7:2**-2:x2     factors: 2⁻⁷, 2⁻⁶, … 2⁻²
  epsilon=log:0.01,0.5,8     8 points, evenly spaced in the logarithm
  epsilon=lin:0,1,5          5 points, evenly spaced
  --env num_arms=int:2,5     integers
  --env 'means=0.9,0.8;0.5,0.4'    lists, separated by ;

Results are stored every quarter of a second. After a stop or a kill, run the
same command to resume. With more --runs it adds runs to the stored ones.

example:
  hotloop bandit grid epsilon-greedy epsilon=2**-7:2**-2:x2 --picture study.png
"""


def run(args: list[str]) -> int:
    """Run the command. See `hotloop bandit grid --help`."""
    options = parse_options(_parser(), args, is_intermixed=True)
    grid = _make_grid(options)
    try:
        table = _compute(grid, options)
    except Interrupted as stop:
        return stop.exit_code
    # Write files and print the table.
    if options.picture is not None:
        table.save_picture(options.picture, options.quantity)
    if options.export is not None:
        table.save_parquet(options.export)
    files = {"picture": options.picture, "export": options.export}
    written = {name: str(path) for name, path in files.items() if path is not None}
    if options.json:
        return print_json(table.to_dict() | written)
    print_grid(table, options.quantity, prints_all=options.all)
    for name, path in written.items():
        print(f"{name}: {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    from hotloop.bandits.results import QUANTITIES

    parser = new_parser("grid", "Play all combinations of settings, and store results in a file.")
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("agent", metavar="AGENT", help="such as epsilon-greedy, ucb, gradient")
    add("ranges", metavar="FIELD=RANGE", nargs="*", help="settings of the agent; see below")
    add_environment(parser, accepts_ranges=True)
    add_sizes(parser, runs=2000, steps=1000)
    number, path = {"metavar": "N", "type": count}, {"metavar": "FILE", "type": Path}
    note = "(default: %(default)s)"
    add("--late-steps", **number, help="last steps, for the late columns (default: a tenth)")
    add("--steps-per-point", **number, help="steps that each point of a curve averages over")
    add("--file", **path, default=Path("grid.sqlite"), help=f"SQLite file {note}")
    quantity = f"quantity that sorts the table and that the picture shows: {', '.join(QUANTITIES)}"
    add("--quantity", choices=QUANTITIES, default=QUANTITIES[0], metavar="NAME", help=quantity)
    add("--all", action="store_true", help=f"print all points, not {MAX_ROWS}")
    picture = "draw a parameter study (one range) or a heat map (two): .png, .svg or .pdf"
    add("--picture", **path, help=picture)
    add("--export", **path, help="write settings, estimates and curves: .parquet")
    add_json(parser)
    return parser


def _make_grid(options: argparse.Namespace) -> Grid:
    """Return the grid, after checks that need no computation, which may take long."""
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

    grid = Grid(
        options.agent,
        parse_assignments(options.ranges),
        environment_name=options.environment,
        environment_fields=environment_fields(options),
        num_steps=options.steps,
        late_steps=options.late_steps,
        steps_per_point=options.steps_per_point,
    )
    if options.picture is not None:
        check_plot_path(options.picture, option="--picture")
        plot_axes(grid.ranges)
    return grid


def _compute(grid: Grid, options: argparse.Namespace) -> GridTable:
    """Return the table, or raise Interrupted after printing what the file contains."""
    line = GridLine()
    with interrupt_once() as guard, line:

        def on_progress(progress: GridProgress) -> None:
            line.show_grid(progress)
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
            notify(f"stopped {line.stored_text(options.file)}")
            raise
    if table.num_of_other_kernels:
        notify(
            f"{table.num_of_other_kernels:,} rows in {options.file} are from another version of "
            "the kernels: they stay in the file, their runs were computed again"
        )
    return table
