"""`hotloop report`: what a profile or a run has recorded, of all its processes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hotloop.cli import pictures

if TYPE_CHECKING:
    from hotloop.profiler.render.findings import Findings


def run(args: list[str]) -> int:
    """Report; see `hotloop report --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop report",
        description="Where the time of a profile or a run went, over all of its processes.",
    )
    parser.add_argument("directory", metavar="DIR", help="a profile's or a run's directory")
    parser.add_argument("--html", metavar="FILE", help="also as one page for a browser; .html")
    pictures.add_options(parser)
    options = parser.parse_args(args)
    pictures.check(options)
    from hotloop.profiler.render.findings import Findings
    from hotloop.profiler.session.reading import read

    session = read(Path(options.directory))
    found = Findings(session)
    print_findings(found, file=sys.stdout)
    if options.html:
        from hotloop.profiler.render import html

        html.write(found, options.html)
        print(f"wrote {options.html}", file=sys.stderr)
    pictures.write(session, options)
    return 0


def print_findings(found: Findings, *, file: TextIO) -> None:
    """Print the report: for people in a terminal, plain elsewhere."""
    from hotloop.profiler.render import text

    if file.isatty() and not os.environ.get("NO_COLOR"):
        from rich.console import Console

        Console(file=file).print(text.renderable(found))
    else:
        print(text.render(found), file=file)
