"""Options for pictures of results, and drawing them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.cli import need
from hotloop.errors import UnknownNameError, nearest

if TYPE_CHECKING:
    from hotloop.bandits.results import Result

KINDS = {
    "curves": "average reward and optimal actions over steps",
    "regret": "cumulative regret, on a linear and a logarithmic axis",
    "boxes": "the regret at the end over runs",
    "shares": "how often each arm was taken",
}


def add_pictures(parser: argparse.ArgumentParser, output: str) -> None:
    kinds = "; ".join(f"{kind}: {about}" for kind, about in KINDS.items())
    parser.add_argument(
        "--picture",
        metavar="KIND[,KIND...]",
        help=f"what to draw (default: curves if --output is given, else nothing). {kinds}",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where to: .png, .svg or .pdf; of several pictures each has its kind in its name, "
        f"as in FILE_regret.png (default: {output})",
    )
    parser.set_defaults(default_output=Path(output))


def pictures_of(options: argparse.Namespace) -> dict[str, Path]:
    """Where each kind of picture goes that is asked for.

    Raises:
        UnknownNameError: there is no such kind.
        ConfigError: the file's suffix is not that of a picture.
        MissingExtraError: matplotlib is not installed.
    """
    if options.picture is None and options.output is None:
        return {}
    kinds: list[str] = list(dict.fromkeys((options.picture or "curves").split(",")))
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownNameError(
                f"expected pictures of {', '.join(KINDS)}, got '{kind}'" + nearest(kind, KINDS)
            )
    from hotloop.bandits.pictures import check_picture

    output = check_picture(options.output or options.default_output, option="--output")
    need("matplotlib", extra="bandit", purpose="drawing a picture")
    if len(kinds) == 1:
        return {kinds[0]: output}
    return {kind: output.with_stem(f"{output.stem}_{kind}") for kind in kinds}


def draw(results: Sequence[Result], pictures: Mapping[str, Path]) -> None:
    """Draw what is asked for."""
    if not pictures:
        return
    from hotloop.bandits import pictures as drawing

    functions = {
        "curves": drawing.learning_curves,
        "regret": drawing.regret_curves,
        "boxes": drawing.regret_boxes,
        "shares": drawing.arm_shares,
    }
    for kind, path in pictures.items():
        functions[kind](results, path)


def as_json(pictures: Mapping[str, Path]) -> dict[str, Any]:
    """Where they are, for one JSON object."""
    return {"pictures": {kind: str(path) for kind, path in pictures.items()}}


def print_pictures(pictures: Mapping[str, Path]) -> None:
    """A line for each: where it is."""
    for kind, path in pictures.items():
        print(f"{kind}: {path}")
