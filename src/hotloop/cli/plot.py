"""`hotloop plot RUN…`: learning curves over runs and seeds."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cli import need, tell
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.errors import ConfigError, RunDirectoryError

if TYPE_CHECKING:
    from hotloop.runs.comparison import Comparison, Group, Over

_FORMATS = (".png", ".svg", ".pdf")


def run(args: list[str]) -> int:
    """Plot; see `hotloop plot --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop plot",
        description="Draw learning curves, a panel for each environment. Runs that differ by their "
        "seed alone are one curve: the interquartile mean over seeds and its 95 % bootstrap "
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
        help="where to: .png, .svg or .pdf (default: %(default)s)",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        default="return",
        help="return or length of training episodes, evaluation, or any number that a run logs, "
        "such as entropy, or that its environment tells of episodes, such as is_success (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--x",
        choices=("steps", "time", "updates"),
        default="steps",
        help="draw it over transitions, seconds of training, or updates (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the table"
    )
    options = parser.parse_args(args)
    if options.output.suffix not in _FORMATS:
        raise ConfigError(
            f"`--output` must end in {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}, "
            f"got '{options.output}'"
        )
    need("matplotlib", extra="train", purpose="drawing a curve")

    from hotloop.runs.comparison import EPISODES, compare
    from hotloop.runs.plots import comparison_plot
    from hotloop.runs.summary import find_runs

    found = [path for given in options.runs for path in find_runs(Path(given))]
    comparison = compare(dict.fromkeys(found), metric=options.metric, over=options.x)
    for _, why in comparison.left_out:
        tell(f"left out: {why}")
    if not comparison.groups:
        raise RunDirectoryError(
            f"there is nothing to draw in {', '.join(options.runs)}: name runs "
            + ("in which an episode has ended" if options.metric in EPISODES else "that have it")
        )
    comparison_plot(comparison.groups, options.output, metric=options.metric, over=options.x)
    if options.json:
        json.dump(_to_json(comparison, options), sys.stdout)
        print()
        return 0
    _print_table(comparison.groups, options.metric, options.x)
    print(f"\nlearning curves: {options.output}")
    return 0


def _print_table(groups: list[Group], metric: str, over: Over) -> None:
    from rich.text import Text

    from hotloop.runs.comparison import OVER

    table = plain_table()
    table.add_column("group", overflow="fold")
    for heading in ("seeds", OVER[over], f"{metric}, last tenth"):
        table.add_column(heading, justify="right", no_wrap=True)
    has_several_envs = len({group.env_id for group in groups}) > 1
    for group in groups:
        label = f"{group.env_id}: {group.label}" if has_several_envs else group.label
        end = f"{group.end:,.0f}"
        table.add_row(Text(label), str(len(group.seeds)), end, _interval(*group.final()))
    print_table(table, wide_console())


def _interval(middle: float, band: tuple[float, float] | None) -> str:
    if math.isnan(middle):
        return "–"
    form = ",.1f" if abs(middle) >= 10 else ".4g"
    told = format(middle, form)
    return told if band is None else f"{told} ({band[0]:{form}} to {band[1]:{form}})"


def _to_json(comparison: Comparison, options: argparse.Namespace) -> dict[str, Any]:
    groups: list[dict[str, Any]] = []
    for group in comparison.groups:
        middle, band = group.final()
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
    left_out = [{"path": str(path), "why": why} for path, why in comparison.left_out]
    return {
        "output": str(options.output),
        "metric": options.metric,
        "x": options.x,
        "groups": groups,
        "left_out": left_out,
    }
