"""Options for plots of results, and the drawing of these plots."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.importing import require_module
from hotloop.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from hotloop.bandits.results import BanditResult

# The description and the function in `hotloop.bandits.plots` of each kind.
PLOT_KINDS = {
    "curves": ("average reward and optimal actions over steps", "learning_curves"),
    "regret": ("cumulative regret on linear and logarithmic axes", "regret_curves"),
    "boxes": ("distribution of the final regret over runs", "regret_boxes"),
    "shares": ("share of pulls of each arm", "arm_shares"),
}


def add_plots(parser: argparse.ArgumentParser, output: str) -> None:
    kinds = "; ".join(f"{kind}: {text}" for kind, (text, _) in PLOT_KINDS.items())
    parser.add_argument(
        "--picture",
        metavar="KIND[,KIND...]",
        help=f"plots to draw (default: curves with --output, else none). {kinds}",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="the file to write: .png, .svg or .pdf; several pictures get their kind in the name, "
        f"such as FILE_regret.png (default: {output})",
    )
    parser.set_defaults(default_output=Path(output))


def plot_paths(options: argparse.Namespace) -> dict[str, Path]:
    """Return the path of each requested kind of plot.

    Raises:
        UnknownNameError: there is no such kind.
        ConfigError: the file's suffix is no format of plots.
        MissingExtraError: matplotlib is not installed.
    """
    if options.picture is None and options.output is None:
        return {}
    kinds: list[str] = list(dict.fromkeys((options.picture or "curves").split(",")))
    for kind in kinds:
        if kind not in PLOT_KINDS:
            raise UnknownNameError(
                f"expected pictures of {', '.join(PLOT_KINDS)}, got '{kind}'"
                + nearest(kind, PLOT_KINDS)
            )
    from hotloop.bandits.plots import check_plot_path

    output = check_plot_path(options.output or options.default_output, option="--output")
    require_module("matplotlib", extra="bandit", purpose="drawing a picture")
    if len(kinds) == 1:
        return {kinds[0]: output}
    return {kind: output.with_stem(f"{output.stem}_{kind}") for kind in kinds}


def draw_plots(results: Sequence[BanditResult], paths: Mapping[str, Path]) -> None:
    """Draw the requested plots."""
    for kind, path in paths.items():
        from hotloop.bandits import plots

        getattr(plots, PLOT_KINDS[kind][1])(results, path)


def plots_json(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Return the paths of the plots as JSON values."""
    return {"pictures": {kind: str(path) for kind, path in paths.items()}}


def print_plots(paths: Mapping[str, Path]) -> None:
    """Print the path of each plot."""
    for kind, path in paths.items():
        print(f"{kind}: {path}")
