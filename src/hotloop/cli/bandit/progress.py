"""The progress line of a computation."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from hotloop.base.durations import duration
from hotloop.base.importing import require_module
from hotloop.base.streams import is_redrawable, make_console
from hotloop.cli.bandit.options import run_sizes

if TYPE_CHECKING:
    from rich.live import Live

    from hotloop.bandits.results import BanditComparison


class ProgressLine:
    """A line on stderr, redrawn in place in a terminal and printed every five seconds in a log.

    Args:
        after_s: seconds before the first line in a terminal.
    """

    def __init__(self, *, after_s: float = 1.0) -> None:
        self._console = make_console(sys.stderr)
        self._is_live = is_redrawable(sys.stderr)
        self._interval_s = 0.1 if self._is_live else 5.0
        self._started_at = time.monotonic()
        self._next_at = self._started_at + (after_s if self._is_live else self._interval_s)
        self._live: Live | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, text: Callable[[], str]) -> None:
        """Draw the text that a function returns, unless the last drawing is too recent."""
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + self._interval_s
        if not self._is_live:
            print(text(), file=sys.stderr, flush=True)
            return
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            # Start no refresh thread, which would compete with the threads that compute.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Text(text(), no_wrap=True, overflow="ellipsis"), refresh=True)

    def show_steps(self, finished: int, total: int) -> None:
        """Draw the numbers of finished and of all run·steps, their time and the time left."""
        elapsed_s = time.monotonic() - self._started_at
        left_s = elapsed_s * (total / max(finished, 1) - 1)
        self.show(
            lambda: (
                f"{finished / total:.0%} of {format_count(total)} run·steps · "
                f"{elapsed_s * 1e9 / max(finished, 1):,.1f} ns a step · {duration(left_s)} left"
            )
        )

    def close(self) -> None:
        """Remove the line."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def play(
    agents: Sequence[Any], environment: Any, options: argparse.Namespace, plots: Collection[str]
) -> BanditComparison:
    """Play agents with a progress line, with the sizes of the options and for kinds of plots."""
    require_module("numba", extra="bandit", purpose="playing bandits")

    from hotloop.bandits.running import compare

    with ProgressLine() as progress:
        return compare(
            agents,
            environment,
            **run_sizes(options),
            arm_shares="shares" in plots,
            on_progress=progress.show_steps,
        )


def format_count(number: float) -> str:
    """Return a number as text such as 12.3 M or 1.2 G."""
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.0f}"
