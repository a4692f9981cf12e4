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
    from hotloop.runs.comparison import Comparison, Group

_FORMATS = (".png", ".svg", ".pdf")


def run(args: list[str]) -> int:
    """Plot; see `hotloop plot --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop plot",
        description="Draw learning curves, a panel for each environment. Runs that differ by their "
        "seed alone are one curve: the mean over seeds and its 95 % confidence interval. Returns "
        "are of training episodes, smoothed over a twentieth of the steps.",
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
        "--json", action="store_true", help="print one JSON object instead of the table"
    )
    options = parser.parse_args(args)
    if options.output.suffix not in _FORMATS:
        raise ConfigError(
            f"`--output` must end in {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}, "
            f"got '{options.output}'"
        )
    need("matplotlib", extra="train", purpose="drawing a curve")

    from hotloop.runs.comparison import compare
    from hotloop.runs.plots import comparison_plot
    from hotloop.runs.summary import find_runs

    found = [path for given in options.runs for path in find_runs(Path(given))]
    comparison = compare(dict.fromkeys(found))
    for _, why in comparison.left_out:
        tell(f"left out: {why}")
    if not comparison.groups:
        raise RunDirectoryError(
            f"there is nothing to draw in {', '.join(options.runs)}: name runs in which an episode "
            "has ended"
        )
    comparison_plot(comparison.groups, options.output)
    if options.json:
        json.dump(_to_json(comparison, options.output), sys.stdout)
        print()
        return 0
    _print_table(comparison.groups)
    print(f"\nlearning curves: {options.output}")
    return 0


def _print_table(groups: list[Group]) -> None:
    from rich.text import Text

    table = plain_table()
    table.add_column("group", overflow="fold")
    for heading in ("seeds", "steps", "return, last tenth"):
        table.add_column(heading, justify="right", no_wrap=True)
    has_several_envs = len({group.env_id for group in groups}) > 1
    for group in groups:
        label = f"{group.env_id}: {group.label}" if has_several_envs else group.label
        steps = f"{group.timesteps:,}"
        table.add_row(Text(label), str(len(group.seeds)), steps, _interval(*group.final_return()))
    print_table(table, wide_console())


def _interval(mean: float, half_width: float | None) -> str:
    if math.isnan(mean):
        return "–"
    return f"{mean:,.1f}" + ("" if half_width is None else f" ± {half_width:,.1f}")


def _to_json(comparison: Comparison, output: Path) -> dict[str, Any]:
    groups = []
    for group in comparison.groups:
        mean, half_width = group.final_return()
        groups.append(
            {
                "env_id": group.env_id,
                "algorithm": group.algorithm,
                "options": group.options,
                "seeds": [seed.seed for seed in group.seeds],
                "runs": [str(seed.path) for seed in group.seeds],
                "timesteps": group.timesteps,
                "mean_return": None if math.isnan(mean) else mean,
                "half_width": None if half_width is None or math.isnan(half_width) else half_width,
            }
        )
    left_out = [{"path": str(path), "why": why} for path, why in comparison.left_out]
    return {"output": str(output), "groups": groups, "left_out": left_out}
