"""`hotloop plot RUN…`: plot learning curves over runs and seeds."""

from __future__ import annotations

from pathlib import Path

from hotloop.base.figures import check_plot_path
from hotloop.base.importing import require_module
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json
from hotloop.cli.command_parser import CommandParser
from hotloop.errors import RunDirectoryError


def run(args: list[str]) -> int:
    """Run the command. See `hotloop plot --help`."""
    parser = CommandParser(
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
    from hotloop.reports.comparison_text import print_groups
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
        content = {"output": str(options.output), "metric": options.metric, "x": options.x}
        return print_json(content | comparison.to_json())
    print_groups(comparison.groups, options.metric, options.x)
    print(f"\nlearning curves: {options.output}")
    return 0
