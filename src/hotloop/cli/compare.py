"""`hotloop compare`: compare runs by options, returns and speed, or profiles by speed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json, terminal_width
from hotloop.cli.command_parser import CommandParser
from hotloop.errors import ConfigError, RunDirectoryError


def run(args: list[str]) -> int:
    """Run the command. See `hotloop compare --help`."""
    parser = CommandParser(
        prog="hotloop compare",
        description="Compare runs, or two profiles. For runs it prints the options that differ, "
        "the interquartile mean over seeds in the last tenth of the steps that all have, its "
        "difference from A, and the speed of two runs. For profiles and saved sessions it prints "
        "what takes more or less time per environment step in B than in A. Intervals are 95 %.",
    )
    parser.add_argument(
        "sides",
        metavar="A B",
        nargs="+",
        type=Path,
        help="two or more runs, or directories with runs of several seeds; or two profiles",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="metric of runs: return or length of training episodes, evaluation, or any logged "
        "number, such as entropy (default: return, and evaluation if the runs have it)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write one HTML page about two profiles, with a flame graph of the changes; "
        ".html",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args(args)
    # Check the paths.
    paths = options.sides
    if len(paths) < 2:
        raise ConfigError(
            f"expected two or more runs, or two profiles, got only {paths[0]}: add what to compare "
            "it with"
        )
    for path in paths:
        if not path.exists():
            raise RunDirectoryError(
                f"expected a run, a directory of runs or a profile, got {path}, which does not "
                "exist: `hotloop runs` lists the runs made here"
            )
    # Compare runs, or else two profiles.
    if options.html is not None and not options.html.endswith((".html", ".htm")):
        raise ConfigError(f"`--html` must end in .html or .htm, got '{options.html}'")
    if all(map(_has_runs, paths)):
        if options.html is not None:
            raise ConfigError(
                f"expected two profiles with `--html`, got the run {paths[0]}: `hotloop report "
                "DIR --html FILE` writes the page of a run"
            )
        return _compare_runs(paths, options)
    if len(paths) > 2 or options.metric is not None:
        other = next(path for path in paths if not _has_runs(path))
        feature = "a comparison of more than two" if len(paths) > 2 else "`--metric`"
        raise ConfigError(
            f"{feature} needs run directories, got {other}, which has no config.json of a run: "
            "pass only run directories, or two profiles"
        )
    from hotloop.profiler.diagnose.comparison import compare
    from hotloop.profiler.render.comparison import render
    from hotloop.profiler.session.reading import read

    a, b = map(read, paths)
    speed = compare(a, b)
    if options.json:
        print_json({"speed": speed.to_json()})
    else:
        print(render(speed, max_width=terminal_width()))
        sys.stdout.flush()
    for problem in (*a.problems, *b.problems):
        notify(problem)
    if options.html is not None:
        from hotloop.profiler.render.html import comparison

        comparison.write(speed, a, b, options.html)
        notify(f"wrote {options.html}")
    return 0


def _has_runs(path: Path) -> bool:
    """Return whether the path is a run or a directory of runs, and no profile."""
    from hotloop.profiler.session.reading import METADATA_FILE
    from hotloop.runs.summary import find_runs

    return path.is_dir() and not (path / METADATA_FILE).exists() and bool(find_runs(path))


def _compare_runs(paths: list[Path], options: argparse.Namespace) -> int:
    from hotloop.reports.comparison import compare_runs
    from hotloop.reports.comparison_text import print_comparison

    result = compare_runs(paths, metric=options.metric)
    if options.json:
        return print_json(result.to_json())
    print_comparison(result)
    sys.stdout.flush()
    for note in result.notes:
        notify(note)
    return 0
