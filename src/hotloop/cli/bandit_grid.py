"""`hotloop bandit grid AGENT FIELD=VALUES…`: a bandit over ranges of its settings, resumable."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.cli import need
from hotloop.cli.signals import Ended, end_once
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import ConfigError, UnknownNameError, nearest

if TYPE_CHECKING:
    from rich.live import Live

    from hotloop.bandits.grid import Grid, GridProgress, GridTable

_EPILOG = """`hotloop bandit --help` lists agents, environments and their fields. A range is a list,
each part of which may be a progression:
  epsilon=0.01,0.1           values
  step_size=none,0.1         words are none, true, false
  epsilon=0.1:0.5:0.1        steps: 0.1, 0.2, … 0.5
  epsilon=2**-7:2**-2:x2     factors: 2⁻⁷, 2⁻⁶, … 2⁻²
  --env means=0.9,0.8;0.5,0.4    of what is a list itself, several with ; between them (quote it)

Everything computed is in the file within a quarter of a second. Stopped or killed, the same command
goes on from there; with more --runs it adds to what is there.

example:
  hotloop bandit grid epsilon-greedy epsilon=2**-7:2**-2:x2 step_size=none,0.1 --picture study.png
"""
_TOP = 20
_QUANTITIES = ("mean_reward", "mean_optimal", "final_regret", "late_reward", "late_optimal")


def run(args: list[str]) -> int:
    """Compute a grid; see `hotloop bandit grid --help`."""
    options = _parsed(_parser(), args)
    need("numba", extra="bandit", purpose="a bandit")
    if options.picture is not None:
        need("matplotlib", extra="bandit", purpose="drawing a picture")
    if options.export is not None:
        need("pyarrow", extra="parquet", purpose="exporting a grid")
        if options.export.suffix != ".parquet":
            raise ConfigError(f"`--export` must end in .parquet, got '{options.export}'")

    from hotloop.bandits.grid import Grid, picture_axes
    from hotloop.bandits.pictures import check_picture

    outer = _fields(options.env, "--env ")
    if options.arms is not None:
        if "num_arms" in outer:
            raise ConfigError("`--arms` and `--env num_arms=…` are the same: give one of them")
        outer["num_arms"] = options.arms
    grid = Grid(
        options.agent,
        _fields(options.ranges, ""),
        environment_name=options.environment,
        environment_fields=outer,
        num_steps=options.steps,
        late_steps=options.late_steps,
        steps_per_point=options.steps_per_point,
    )
    if options.picture is not None:  # before the work, which may take long
        check_picture(options.picture, option="--picture")
        picture_axes(grid.ranges)
    table = _compute(grid, options)
    if table is None:
        return options.exit_code
    if options.picture is not None:
        table.save_picture(options.picture, options.quantity)
    if options.export is not None:
        table.save_parquet(options.export)
    files = {"picture": options.picture, "export": options.export}
    written = {name: str(path) for name, path in files.items() if path is not None}
    if options.json:
        json.dump(table.to_dict() | written, sys.stdout, allow_nan=False)
        print()
        return 0
    print(f"{table.title}\n")
    _print_table(table, options.quantity, print_all=options.all)
    print(f"\n± standard error over runs\n{_summary(table)}")
    for name, path in written.items():
        print(f"{name}: {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotloop bandit grid",
        description="Play all combinations of an agent's settings, and keep what comes out in one "
        "SQLite file.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("agent", metavar="AGENT", help="such as epsilon-greedy, ucb, gradient")
    parser.add_argument(
        "ranges", metavar="FIELD=RANGE", nargs="*", help="the agent's settings; see below"
    )
    parser.add_argument(
        "--environment", metavar="NAME", default="gaussian", help="where (default: %(default)s)"
    )
    parser.add_argument(
        "--env",
        metavar="FIELD=RANGE",
        nargs="+",
        action="extend",
        default=[],
        help="settings of the environment, of which there may be ranges too",
    )
    parser.add_argument(
        "--arms", metavar="RANGE", help="how many arms the environment has: --env num_arms=RANGE"
    )
    whole = {"metavar": "N", "type": int}
    about = "(default: %(default)s)"
    parser.add_argument("--runs", **whole, default=2000, help=f"runs of each point {about}")
    parser.add_argument("--steps", **whole, default=1000, help=f"steps of each run {about}")
    parser.add_argument("--seed", **whole, default=0, help=f"of all random numbers {about}")
    parser.add_argument("--threads", **whole, help="how many compute (default: one a core)")
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
        choices=_QUANTITIES,
        default=_QUANTITIES[0],
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
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the table"
    )
    return parser


def _parsed(parser: argparse.ArgumentParser, args: list[str]) -> argparse.Namespace:
    """Options; one that there isn't is answered with the nearest.

    Raises:
        UnknownNameError: there is no such option.
    """
    options, rest = parser.parse_known_intermixed_args(args)
    if rest:
        name = rest[0].split("=")[0]
        known = [one for action in parser._actions for one in action.option_strings]
        raise UnknownNameError(
            f"`{parser.prog}` has no option '{name}'"
            + (nearest(name, known) or f"; `{parser.prog} --help` lists them")
        )
    return options


def _fields(given: Sequence[str], option: str) -> dict[str, str]:
    """`field=range` each, as a mapping."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, values = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals:
            raise ConfigError(
                f"expected {option}FIELD=RANGE such as epsilon=0.01,0.1, got '{option}{text}'"
            )
        if name in found:
            raise ConfigError(f"`{option}{name}` is given twice: give all its values at once")
        found[name] = values
    return found


def _compute(grid: Grid, options: argparse.Namespace) -> GridTable | None:
    """The table; None after Ctrl-C, with the exit code in the options."""
    live = _LiveLine()
    with end_once() as ending:

        def on_progress(progress: GridProgress) -> None:
            live.show(progress)
            ending.check()

        try:
            table = grid.run(
                options.file,
                num_runs=options.runs,
                seed=options.seed,
                threads=options.threads,
                on_progress=on_progress,
            )
        except Ended as ended:
            live.close()
            print(f"hotloop: stopped; {_kept(live.progress, options.file)}", file=sys.stderr)
            options.exit_code = ended.exit_code
            return None
        except BaseException:
            live.close()
            raise
    live.close()
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


class _LiveLine:
    """Where a grid stands, on stderr: redrawn in a terminal, a line now and then in a log."""

    def __init__(self) -> None:
        from rich.console import Console

        self.progress: GridProgress | None = None
        self._console = Console(stderr=True)
        self._is_live = self._console.is_terminal
        self._interval_s = 0.1 if self._is_live else 5.0
        self._shown_at = time.monotonic() - (self._interval_s if self._is_live else 0.0)
        self._live: Live | None = None

    def show(self, progress: GridProgress) -> None:
        """Draw it, unless the last drawing is too recent."""
        if self.progress is None and 0 < progress.kept_run_steps < progress.all_run_steps:
            share = progress.kept_run_steps / progress.all_run_steps
            print(
                f"hotloop: {progress.points:,} of {progress.all_points:,} points, {share:.0%} of "
                "all run·steps, are in the file already",
                file=sys.stderr,
            )
        self.progress = progress
        now = time.monotonic()
        if now - self._shown_at < self._interval_s:
            return
        self._shown_at = now
        if not self._is_live:
            print(describe(progress), file=sys.stderr, flush=True)
            return
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # Without a thread of its own: one less beside those that compute.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        text = Text(describe(progress), no_wrap=True, overflow="ellipsis")
        self._live.update(text, refresh=True)

    def close(self) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def describe(progress: GridProgress) -> str:
    """One line: points, runs × steps, their rate, time left."""
    share = progress.run_steps / progress.all_run_steps
    return " · ".join(
        [
            f"{progress.points:,}/{progress.all_points:,} points",
            f"{share:.0%} of {_short(progress.all_run_steps)} run·steps",
            f"{_short(progress.steps_per_s)}/s",
            f"{_duration(progress.left_s)} left",
        ]
    )


def _short(number: float) -> str:
    """12.3 M, 1.2 G."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _print_table(table: GridTable, quantity: str, *, print_all: bool) -> None:
    from rich.text import Text

    from hotloop.bandits.grid import text_of

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
            f"{_plain(row.mean_reward)}",
            f"{_percent(row.mean_optimal)}",
            f"{_plain(row.final_regret)}",
            f"{_plain(row.late_reward)}",
            f"{_percent(row.late_optimal)}",
        )
        printed.add_row(*(Text(text_of(row.settings[name])) for name in settings), *estimates)
    print_table(printed, wide_console())
    if len(shown) < len(rows):
        print(f"… and {len(rows) - len(shown):,} more: --all prints them")


def _plain(estimate: tuple[float, float]) -> str:
    """A mean and its standard error, to the error's second digit."""
    mean, se = estimate
    if math.isnan(mean):
        return "–"
    if not se > 0:  # a single run, or runs that are all alike
        return f"{mean:,.4g}"
    digits = min(max(1 - math.floor(math.log10(se)), 0), 6)
    return f"{mean:,.{digits}f} ± {se:,.{digits}f}"


def _percent(estimate: tuple[float, float]) -> str:
    mean, se = (100 * part for part in estimate)
    if math.isnan(mean):
        return "–"
    return f"{mean:.1f} ± {se:.1f} %" if se > 0 else f"{mean:.1f} %"


def _summary(table: GridTable) -> str:
    """The last lines: how much was computed in which time, and where it is."""
    all_run_steps = len(table.rows) * table.num_runs * table.num_steps
    points = f"{len(table.rows):,} point{'s' * (len(table.rows) != 1)}"
    if not table.computed_run_steps:
        return f"{points}: all of it was in {table.path}, nothing had to be computed"
    kept = all_run_steps - table.computed_run_steps
    there = f", {_short(kept)} were in the file" if kept > 0 else ""
    return (
        f"{points}: {_short(table.computed_run_steps)} run·steps{there}; {table.elapsed_s:,.3f} s "
        f"on {table.threads} thread{'s' * (table.threads != 1)}, {table.kernel_share:.0%} of it in "
        f"kernels; kept in {table.path}"
    )
