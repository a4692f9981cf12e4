"""The files of `hotloop report` that other viewers open: trace, flame graph, speedscope, stacks."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.profiler.session import Session


_ENDINGS = {
    "html": (".html", ".htm"),
    "trace": (".json", ".json.gz"),
    "flame": (".svg",),
    "speedscope": (".json",),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what asks for pictures, and what it is that they show."""
    group = parser.add_argument_group("files for other viewers")
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="all processes on one timeline, for ui.perfetto.dev; .json or .json.gz",
    )
    group.add_argument("--flame", metavar="FILE", help="a flame graph, for a browser; .svg")
    group.add_argument("--speedscope", metavar="FILE", help="stacks for speedscope.app; .json")
    group.add_argument("--folded", metavar="FILE", help="stacks as text, in the collapsed format")
    group.add_argument(
        "--by",
        choices=("elapsed", "on-core", "blocked"),
        help="what time stacks are weighed by (default: elapsed)",
    )
    group.add_argument(
        "--merge-workers", action="store_true", help="stacks of all workers are one process's"
    )
    group.add_argument(
        "--import",
        dest="imported",
        metavar="FILE",
        help="stacks of py-spy (--format raw) or austin, drawn instead of our own samples",
    )


def are_asked_for(options: argparse.Namespace) -> bool:
    """Whether there is a file to write for another viewer."""
    return any((options.trace, options.flame, options.speedscope, options.folded))


def check(options: argparse.Namespace) -> None:
    """Look at the options before anything is read.

    Raises:
        ConfigError: a file's name does not end as its kind's do; options of pictures without one;
            `--import` with what only our own samples can tell.
    """
    for option, endings in _ENDINGS.items():
        path = getattr(options, option)
        if path is not None and not path.endswith(endings):
            raise ConfigError(f"`--{option}` must end in {' or '.join(endings)}, got '{path}'")
    has_pictures = options.flame or options.speedscope or options.folded
    for option, value in (("--by", options.by), ("--merge-workers", options.merge_workers)):
        if value and not has_pictures:
            raise ConfigError(
                f"expected --flame, --speedscope or --folded with `{option}`, got none of them: it "
                "is these that it changes"
            )
        if value and options.imported is not None:
            raise ConfigError(
                f"expected `--import` without `{option}`, got both: imported stacks have one "
                "weight each and do not tell workers"
            )
    if options.imported is not None and not has_pictures:
        raise ConfigError(
            "expected --flame, --speedscope or --folded with `--import`, got none of them: they "
            "are what is made of imported stacks"
        )


def write(session: Session, options: argparse.Namespace) -> None:
    """Write the files that were asked for, and say so.

    Raises:
        OutputError: one can't be written there.
        ProfileError: there are no samples, or imported stacks can't be read.
    """
    if options.trace:
        from hotloop.profiler.render import trace

        trace.write(session, options.trace)
        _say(options.trace)
    if not (options.flame or options.speedscope or options.folded):
        return
    from hotloop.profiler.render import flame

    if options.imported is not None:
        source, how = flame.read_folded(options.imported), {}
    else:
        by = (options.by or "elapsed").replace("-", "_")
        source, how = session, {"by": by, "merge_workers": options.merge_workers}
    for path, write_picture in (
        (options.flame, flame.write_svg),
        (options.speedscope, flame.write_speedscope),
        (options.folded, flame.write_folded),
    ):
        if path:
            write_picture(source, path, **how)
            _say(path)


def _say(path: str) -> None:
    print(f"wrote {path}", file=sys.stderr)
