"""`hotloop sweep report FILE`: test the best options on fresh seeds, and plot the scores."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.base.files import make_directory
from hotloop.base.importing import require_module
from hotloop.base.streams import notify
from hotloop.base.text_tables import print_json
from hotloop.cli.command_parser import CommandParser, add_trust_option, count
from hotloop.cli.stored_sweep import open_results
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.experiments import Plan, Results, Trial


def run(args: list[str]) -> int:
    """Run the command. See `hotloop sweep report --help`."""
    parser = CommandParser(
        prog="hotloop sweep report",
        description="Print the best options of a sweep, compare them with the defaults on fresh "
        "seeds, and plot the effect of each option. It writes plots, one HTML page, and the best "
        "options as a file for `hotloop train --config`.",
    )
    add = parser.add_argument
    add("path", type=Path, metavar="FILE", help="results of a sweep")
    add("--test-seeds", metavar="SEEDS", help="fresh seeds to train the best and the defaults with")
    add(
        "--jobs",
        type=count,
        metavar="N",
        help="number of processes for it; default: as the cores allow",
    )
    add("--output", type=Path, metavar="DIR", help="default: FILE's path with _report")
    add("--parquet", type=Path, metavar="FILE", help="also write all runs as Parquet")
    add("--json", action="store_true", help="print one JSON object instead")
    add_trust_option(parser)
    options = parser.parse_args(args)
    require_module("matplotlib", extra="train", purpose="drawing plots")
    results, plan = open_results(options.path, is_trusted=options.trust)
    try:
        return _report(results, plan, options)
    finally:
        results.close()


def _report(results: Results, plan: Plan, options: argparse.Namespace) -> int:
    """Print the best trial, test it on fresh seeds, and write the report."""
    from hotloop.experiments.plan import parse_seeds
    from hotloop.experiments.tables import table_of
    from hotloop.reports.sweep_report import SweepReport
    from hotloop.reports.sweep_table import print_best
    from hotloop.training.options import option_files

    report = SweepReport(results, plan)
    test_seeds = parse_seeds(options.test_seeds) if options.test_seeds else ()
    if overlap := sorted(set(plan.seeds) & set(test_seeds)):
        raise ConfigError(
            f"`--test-seeds` must be fresh, but trials used {', '.join(map(str, overlap))}: pass "
            "others, such as 101-110"
        )
    # Find the best trial, and test it.
    notes = [] if options.json else print_best(report.status, results.path)
    for note in notes:
        notify(note)
    winner, algorithm = report.winner, plan.algorithm
    if winner is None:
        raise ConfigError(f"{results.path} has no finished trial: continue the sweep first")
    if test_seeds:
        _test(results, plan, winner, test_seeds, options.jobs)
    # Write the report.
    directory = options.output or results.report_directory
    make_directory(directory, f"the report's directory {directory}", "pass another `--output`")
    best, preset = report.best_options(), directory / "best.toml"
    option_files.write(str(preset), best, algorithm)
    lines, importance = report.test_lines(), report.importances()
    page = report.write(directory, lines, importance)
    if options.parquet is not None:
        table_of(results).to_parquet(options.parquet)
    if options.json:
        files = {"page": str(page), "preset": str(preset)}
        return print_json(report.to_json() | {"importance": importance} | files)
    # Print the results.
    print("\n" + "\n".join(lines))
    if report.is_population:
        notify("a population changes its options: plots over options are omitted")
    elif importance is None:
        notify("importance is omitted: it needs Optuna, 'hotloop[sweep]', and four trials")
    else:
        listed = sorted(importance.items(), key=lambda item: -item[1])
        print("importance: " + ", ".join(f"{name} {share:.0%}" for name, share in listed))
    if options.parquet is not None:
        print(f"runs: {options.parquet}")
    trust = " --trust" if option_files.names_code(best) else ""
    command = f"hotloop train {algorithm} --config {shlex.quote(str(preset))}{trust}"
    print(f"page: {page}\nthe best options: {preset}\nnext: {command}")
    return 0


def _test(
    results: Results, plan: Plan, winner: Trial, test_seeds: Sequence[int], jobs: int | None
) -> None:
    """Train the defaults and the best trial with fresh seeds."""
    from hotloop.experiments import Trial
    from hotloop.experiments.launch import make_test_runner

    runner = make_test_runner(plan, results, len(test_seeds), jobs)
    results.add_trial(0, {}, {})
    notify(f"training the best options and the defaults with {len(test_seeds)} fresh seeds")
    runner.test([Trial(0, {}, {}), winner], test_seeds)
