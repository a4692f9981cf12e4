"""Files of `hotloop report` for other viewers: trace, flame graph, speedscope, stacks."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.profiler.session import Session


_SUFFIXES = {
    "html": (".html", ".htm"),
    "trace": (".json", ".json.gz"),
    "flame": (".svg",),
    "speedscope": (".json",),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for files and for the content of flame graphs."""
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
        help="the time that stacks are weighted by (default: elapsed)",
    )
    group.add_argument(
        "--merge-workers", action="store_true", help="merge the stacks of all workers into one"
    )


def has_outputs(options: argparse.Namespace) -> bool:
    """Return whether an option requests a file for another viewer."""
    return any((options.trace, options.flame, options.speedscope, options.folded))


def check_options(options: argparse.Namespace) -> None:
    """Check the options before reading the profile.

    Raises:
        ConfigError: A file has the wrong suffix, or an option has no file that it applies to.
    """
    for option, suffixes in _SUFFIXES.items():
        path = getattr(options, option)
        if path is not None and not path.endswith(suffixes):
            raise ConfigError(f"`--{option}` must end in {' or '.join(suffixes)}, got '{path}'")
    has_pictures = options.flame or options.speedscope or options.folded
    for option, value in (("--by", options.by), ("--merge-workers", options.merge_workers)):
        if value and not has_pictures:
            raise ConfigError(
                f"expected --flame, --speedscope or --folded with `{option}`, got none of them: it "
                "changes only these files"
            )


def write_files(session: Session, options: argparse.Namespace) -> None:
    """Write the requested files, and print their paths.

    Raises:
        OutputError: A file can't be written.
        ProfileError: The profile has no samples.
    """
    if options.trace:
        from hotloop.profiler.render import trace

        trace.write(session, options.trace)
        _print_written(options.trace)
    if not (options.flame or options.speedscope or options.folded):
        return
    from hotloop.profiler.render import flame

    times: dict[str | None, flame.TimeKind] = {"on-core": "on_core", "blocked": "blocked"}
    by = times.get(options.by, "elapsed")
    for path, write_picture in (
        (options.flame, flame.write_svg),
        (options.speedscope, flame.write_speedscope),
        (options.folded, flame.write_folded),
    ):
        if path:
            write_picture(session, path, by=by, merge_workers=options.merge_workers)
            _print_written(path)


def _print_written(path: str) -> None:
    print(f"wrote {path}", file=sys.stderr)
