"""`hotloop report`: what a run has learned, and where the time of a run or a profile went."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hotloop.cli import pictures, starving
from hotloop.cli.workers import print_nodes
from hotloop.errors import ProfileError, RunDirectoryError

if TYPE_CHECKING:
    from hotloop.profiler.render.findings import Findings
    from hotloop.profiler.render.html import Before
    from hotloop.runs.learning import Learning


def run(args: list[str]) -> int:
    """Report; see `hotloop report --help`."""
    parser = argparse.ArgumentParser(
        prog="hotloop report",
        description="What a run has learned, and where the time of a run or a profile went, over "
        "all of its processes.",
    )
    parser.add_argument("directory", metavar="DIR", help="a profile's or a run's directory")
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also as one page for a browser, of a run with curves of its returns, evaluations and "
        "metrics, its options and its videos; .html",
    )
    pictures.add_options(parser)
    options = parser.parse_args(args)
    pictures.check(options)
    from hotloop.profiler.render.findings import Findings
    from hotloop.profiler.session.reading import read
    from hotloop.runs import learning

    directory = Path(options.directory)
    learned, damage, unrecorded = None, "", ""
    if learning.is_run(directory):
        try:
            learned = learning.read(directory)
        except RunDirectoryError as error:
            damage = str(error)
    found = None
    try:
        found = Findings(read(directory))
    except ProfileError as error:
        if damage:
            raise RunDirectoryError(damage) from error
        if learned is None or pictures.are_asked_for(options):
            raise
        unrecorded = f"where the time went is not known: {error}"
    if learned is not None:
        print(learning.summary_text(learned), end="\n\n", flush=True)
    for problem in filter(None, (damage, unrecorded)):
        print(problem, end="\n\n", flush=True)
    if found is not None:
        print_findings(found, file=sys.stdout)
        if learned is not None:
            starving.print_of_run(directory)
            print_nodes(directory)
    if options.html:
        from hotloop.profiler.render import html

        page = Path(options.html)
        before = _before(learned, directory, page, [damage, unrecorded])
        html.write(found, page, before)
        print(f"wrote {options.html}", file=sys.stderr)
    if found is not None:
        pictures.write(found.session, options)
    return 0


def _before(
    learned: Learning | None, directory: Path, page: Path, problems: list[str]
) -> Before | None:
    """What the page says of a run before the profile; None: it is no run."""
    from hotloop.profiler.render.html import Before, Section
    from hotloop.profiler.render.html.tables import escaped
    from hotloop.runs import learning_page

    told = "".join(f'<p class="card">{escaped(one)}</p>' for one in problems if one)
    missing = Section("problems", "What is not known", told)
    if learned is None:
        return Before("a run that is damaged", (), [missing]) if told else None
    sections = learning_page.sections(learned, directory, page)
    return Before(
        learning_page.overview(learned),
        learning_page.figures(learned),
        [missing, *(Section(*section) for section in sections)],
    )


def print_findings(found: Findings, *, file: TextIO) -> None:
    """Print the report: for people in a terminal, plain elsewhere."""
    from hotloop.profiler.render import text

    if file.isatty() and not os.environ.get("NO_COLOR"):
        from rich.console import Console

        Console(file=file).print(text.renderable(found))
    else:
        print(text.render(found), file=file)
