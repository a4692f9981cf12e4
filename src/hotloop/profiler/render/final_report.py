"""The report that `hotloop profile` prints and writes after a recording."""

from __future__ import annotations

import sys
from pathlib import Path

from hotloop.errors import HotloopError, ProfileError
from hotloop.profiler.render import html, text
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.session.reading import read


def print_and_write(directory: Path) -> None:
    """Print the report of a profile on standard error, and write its page.

    Errors are printed too: the results of the profiled program must not depend on them.
    """
    try:
        findings = Findings(read(directory))
        text.print_findings(findings, file=sys.stderr)
    except ProfileError as error:
        print(f"hotloop profile: {error}", file=sys.stderr)
        return
    except Exception as error:
        reason = f"{type(error).__name__}: {error}; the profile is in {directory}"
        print(f"hotloop profile: no report: {reason}", file=sys.stderr)
        return
    try:
        html.write(findings, directory / "report.html")
    except Exception as error:
        name = "" if isinstance(error, HotloopError) else f"{type(error).__name__}: "
        print(f"hotloop profile: no page was written: {name}{error}", file=sys.stderr)
    else:
        print(f"report: {directory / 'report.html'}", file=sys.stderr)
