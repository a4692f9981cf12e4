"""The report of a program that still runs, on the screen of a terminal.

    with LiveReport(directory):
        ...  # the program runs

The report is computed from the files that the program's processes write about once a second. The
screen shows the last lines of the report, which are the most important ones, and is restored at the
end.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hotloop.base.signals import start_thread
from hotloop.base.streams import is_redrawable
from hotloop.errors import ConfigError, ProfileError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_REFRESH_S = 1.0
# Share of a core that reading and printing may take: a long profile is read less often.
_CPU_SHARE = 0.05


def check_terminal() -> None:
    """Check that standard error is a terminal that can be redrawn.

    Raises:
        ConfigError: it is not.
    """
    if not is_redrawable(sys.stderr):
        raise ConfigError(
            "`--live` needs a terminal for standard error, got a file, a pipe or a terminal that "
            "can't be redrawn: leave it out, and run `hotloop report DIR` on the profile's "
            "directory while the program runs"
        )


class LiveReport:
    """A thread that prints the report of a profile while its program runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._has_ended = threading.Event()

    def __enter__(self) -> LiveReport:
        self._thread = start_thread(self._run, name="hotloop-live")
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _run(self) -> None:
        # Imports take a third of a second, which must not delay the program.
        from rich.live import Live

        from hotloop.base.streams import make_console
        from hotloop.profiler.render import text  # noqa: F401 (its imports are not a refresh)

        with suppress(OSError, AttributeError):  # the program matters more than the report
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        console = make_console(file=sys.stderr)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                before_s = time.thread_time()
                live.update(LastLines(live_report(self._directory, console.width)), refresh=True)
                cpu_s = time.thread_time() - before_s
                if self._has_ended.wait(max(_REFRESH_S, cpu_s / _CPU_SHARE)):
                    return


def live_report(directory: Path, width: int) -> str:
    """Return the report of a profile so far, for a terminal of some width."""
    from hotloop.profiler.render import text
    from hotloop.profiler.render.findings import Findings
    from hotloop.profiler.session.reading import read

    try:
        return text.render(Findings(read(directory)), max_width=width)
    except ProfileError:
        return "waiting for the first samples"
    except Exception as error:  # a file may be written just now
        return f"no report at the moment: {type(error).__name__}: {error}"


class LastLines:
    """The last lines of a text that fit on the screen, for a rich console."""

    def __init__(self, content: str) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines, see rich's protocol."""
        from rich.segment import Segment
        from rich.text import Text

        lines = console.render_lines(Text(self._content), options.update(height=None), pad=False)
        for line in lines[-max(1, console.size.height - 1) :]:
            yield from line
            yield Segment.line()
