"""`hotloop plot RUN…`: plot learning curves over runs and seeds."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.figures import check_plot_path
from hotloop.base.rounding import format_interval
from hotloop.base.text_tables import plain_table, print_table, wide_console
from hotloop.cli import notify, require_module
from hotloop.errors import RunDirectoryError

if TYPE_CHECKING:
    from hotloop.reports.run_groups import GroupedRuns, RunGroup, XAxis


def run(args: list[str]) -> int:
    """Run the command. See `hotloop plot --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop plot",
        description="Plot learning curves, one panel per environment. Runs that differ only in "
        "their seed are one curve: the interquartile mean over seeds and its 95 % bootstrap "
        "interval. Curves are smoothed over a twentieth of the steps.",
    )
    parser.add_argument(
        "runs", metavar="RUN", nargs="+", help="a run directory, or a directory of runs"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("learning_curves.png"),
        help="the file to write: .png, .svg or .pdf (default: %(default)s)",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        default="return",
        help="return or length of training episodes, evaluation, any logged number, such as "
        "entropy, or a number in the environment's episode info, such as is_success (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--x",
        choices=("steps", "time", "updates"),
        default="steps",
        help="x-axis: transitions, seconds of training, or updates (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the table"
    )
    # Read and check the options.
    options = parser.parse_args(args)
    check_plot_path(options.output, option="--output")
    require_module("matplotlib", extra="train", purpose="drawing a curve")

    from hotloop.reports.comparison_plot import comparison_plot
    from hotloop.reports.run_groups import group_runs
    from hotloop.runs.episodes import EPISODE_LISTS
    from hotloop.runs.summary import find_runs

    # Compare the runs, and draw the curves.
    paths = [path for directory in options.runs for path in find_runs(Path(directory))]
    comparison = group_runs(dict.fromkeys(paths), metric=options.metric, x_axis=options.x)
    for _, reason in comparison.skipped:
        notify(f"left out: {reason}")
    if not comparison.groups:
        raise RunDirectoryError(
            f"there is nothing to plot in {', '.join(options.runs)}: pass runs "
            + (
                "with a finished episode"
                if options.metric in EPISODE_LISTS
                else "that have this metric"
            )
        )
    comparison_plot(comparison.groups, options.output, metric=options.metric, x_axis=options.x)
    # Report the comparison.
    if options.json:
        json.dump(_to_json(comparison, options), sys.stdout)
        print()
        return 0
    _print_table(comparison.groups, options.metric, options.x)
    print(f"\nlearning curves: {options.output}")
    return 0


def _print_table(groups: list[RunGroup], metric: str, over: XAxis) -> None:
    from rich.text import Text

    from hotloop.reports.run_groups import X_AXIS_LABELS

    table = plain_table()
    table.add_column("group", overflow="fold")
    for heading in ("seeds", X_AXIS_LABELS[over], f"{metric}, last tenth"):
        table.add_column(heading, justify="right", no_wrap=True)
    has_several_envs = len({group.env_id for group in groups}) > 1
    for group in groups:
        label = f"{group.env_id}: {group.label}" if has_several_envs else group.label
        end = f"{group.end:,.0f}"
        table.add_row(
            Text(label), str(len(group.seeds)), end, format_interval(*group.final_score())
        )
    print_table(table, wide_console())


def _to_json(comparison: GroupedRuns, options: argparse.Namespace) -> dict[str, Any]:
    groups: list[dict[str, Any]] = []
    for group in comparison.groups:
        middle, band = group.final_score()
        is_known = not math.isnan(middle)
        groups.append(
            {
                "env_id": group.env_id,
                "algorithm": group.algorithm,
                "options": group.options,
                "seeds": [seed.seed for seed in group.seeds],
                "runs": [str(seed.path) for seed in group.seeds],
                "end": group.end,
                "interquartile_mean": middle if is_known else None,
                "interval": list(band) if is_known and band is not None else None,
            }
        )
    left_out = [{"path": str(path), "why": reason} for path, reason in comparison.skipped]
    return {
        "output": str(options.output),
        "metric": options.metric,
        "x": options.x,
        "groups": groups,
        "left_out": left_out,
    }
