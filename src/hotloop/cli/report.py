"""`hotloop report`: results of a run, and where the time of a run or a profile went."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.text_tables import print_json
from hotloop.cli import viewer_files
from hotloop.cli.command_parser import CommandParser
from hotloop.errors import ProfileError, RunDirectoryError, UntrustedError

if TYPE_CHECKING:
    from hotloop.profiler.render.findings import Findings
    from hotloop.reports.learning_curves import LearningCurves


def run(args: list[str]) -> int:
    """Run the command. See `hotloop report --help`."""
    parser = CommandParser(
        prog="hotloop report",
        description="Print the results of a run, and where the time of a run or a profile went, "
        "over all processes. Recordings of other profilers get a diagnosis, too.",
    )
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="a profile's or a run's directory, a saved session, or a recording of py-spy (raw or "
        "speedscope), austin, profiling.sampling (collapsed, gecko or pstats), cProfile or "
        "torch.profiler (Chrome trace)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="also write one HTML page; for a run it includes curves of returns, evaluations and "
        "metrics, the options and the videos; .html",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    viewer_files.add_options(parser)
    options = parser.parse_args(args)
    viewer_files.check_options(options)
    from hotloop.profiler.render.findings import Findings
    from hotloop.profiler.session.reading import read
    from hotloop.reports import learning_curves
    from hotloop.runs import RunDirectory
    from hotloop.runs.policies import policy_runs

    # Read the run and the profile.
    directory = Path(options.directory)
    results: dict[Path, LearningCurves] = {}
    run_error = profile_error = ""
    if learning_curves.is_run(directory):
        try:
            for path in policy_runs(directory) or [directory]:
                results[path] = learning_curves.read(path)
            RunDirectory.open(directory).check_signature()
        except (RunDirectoryError, UntrustedError) as error:
            run_error = str(error)
    findings = None
    try:
        findings = Findings(read(directory))
    except ProfileError as error:
        if run_error:
            raise RunDirectoryError(run_error) from error
        if not results or viewer_files.has_outputs(options):
            raise
        profile_error = f"timing is unknown: {error}"
    # Print the results and the findings, and write the requested files.
    problems = [problem for problem in (run_error, profile_error) if problem]
    if options.json:
        summaries = {path.name: curves.summary.to_json() for path, curves in results.items()}
        run_values: Any = summaries
        if len(summaries) < 2:
            run_values = next(iter(summaries.values()), None)
        profile = None if findings is None else findings.to_json()
        problems += [curves.problem for curves in results.values() if curves.problem]
        print_json({"run": run_values, "profile": profile, "problems": problems})
    else:
        _print_text(results, problems, findings, directory)
    if options.html:
        from hotloop.reports.run_page import run_page

        page = Path(options.html)
        run_page(results, page, problems=problems, findings=findings).write(page)
        print(f"wrote {options.html}", file=sys.stderr)
    if findings is not None:
        viewer_files.write_files(findings.session, options)
    return 0


def _print_text(
    results: Mapping[Path, LearningCurves],
    problems: Sequence[str],
    findings: Findings | None,
    directory: Path,
) -> None:
    from hotloop.profiler.render import text
    from hotloop.reports import bottleneck, learning_curves
    from hotloop.reports.workers import print_nodes

    for path, curves in results.items():
        policy = f"policy {path.name}: " if len(results) > 1 else ""
        print(policy + learning_curves.summary_text(curves), end="\n\n", flush=True)
    for problem in problems:
        print(problem, end="\n\n", flush=True)
    if findings is not None:
        text.print_findings(findings, file=sys.stdout)
        if results:
            bottleneck.print_bottleneck(directory)
            print_nodes(directory)
