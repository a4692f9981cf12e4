"""The summary that a training prints at its end: timing, workers, cores, returns."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hotloop import timing
from hotloop.base import documents
from hotloop.base.crowding import Crowding
from hotloop.base.processes import process_age_s
from hotloop.base.rounding import format_number
from hotloop.base.sparkline import sparkline
from hotloop.base.streams import notify
from hotloop.base.text_tables import aligned, terminal_width
from hotloop.errors import HotloopError
from hotloop.reports.workers import print_workers
from hotloop.runs import RunDirectory
from hotloop.runs.episodes import episodes_from_metrics
from hotloop.runs.learning_curve import learning_curve
from hotloop.runs.policies import policy_runs
from hotloop.timing.policy_shares import HEADINGS, share_rows


class TrainingSummary:
    """The summary of the training of this process. Create it before the training starts."""

    def __init__(self) -> None:
        self._start = _read_startup()

    def print(self, run_dir: Path, draw_curve: Callable[[], Path]) -> None:
        """Print the parts of the summary. A part that fails prints its error instead.

        Args:
            run_dir: The run directory.
            draw_curve: Draws the learning curve, and returns its path.
        """
        runs = policy_runs(run_dir) or [run_dir]
        if runs != [run_dir]:
            draw_curve = partial(_draw_curves, runs)
        _run_part(lambda: _print_timing(run_dir, self._start), "no timing")
        _run_part(lambda: print_workers(run_dir), "no table of the workers")
        _run_part(lambda: print_crowding(run_dir), "no check of the cores")
        for run in runs:
            if run != run_dir:
                print(f"\npolicy {run.name}:", end="")
            _run_part(partial(_print_returns, run), "no returns")
        # The other parts are printed while another process draws.
        curve = _run_part(draw_curve, "no learning curve was drawn")
        if curve is not None:
            print(f"learning curve: {curve}")


def _draw_curves(runs: Sequence[Path]) -> Path:
    """Draw the learning curve of each policy, and return the path of the first one."""
    first, *_ = [learning_curve(RunDirectory.open(run)) for run in runs]
    return first


def _run_part(part: Callable[[], Any], failure: str) -> Any:
    """Return the result of a part of the summary. If it fails, print the error and return None."""
    try:
        return part()
    except Exception as error:
        text = str(error) if isinstance(error, HotloopError) else f"{type(error).__name__}: {error}"
        notify(f"{failure}: {text}")
        return None


def _read_startup() -> timing.Node | None:
    """Return the timing of the process start, or None if it was not recorded."""
    recording = timing.current()
    try:
        start = recording.tree().find("start")
    except KeyError:
        return None
    if start.count > 1:  # this program has trained several times
        return None
    # The time before: the start of Python and of this command.
    before_ns = round(process_age_s() * 1e9) - start.total_ns
    start.total_ns += before_ns
    start.min_ns = start.max_ns = start.total_ns
    start.child("begin Python").add(
        timing.Node("", count=1, total_ns=before_ns, min_ns=before_ns, max_ns=before_ns)
    )
    return start


def _print_timing(run_dir: Path, start: timing.Node | None) -> None:
    recordings, problems = timing.read_directory(run_dir / "timing")
    for problem in problems:
        print(f"timing: {problem}", file=sys.stderr)
    for recording in recordings:
        if recording.pid != os.getpid():  # it is from an earlier process of a resumed run
            continue
        tree = recording.tree()
        if start is not None and tree.children:
            tree.total_ns += start.total_ns
            tree.child("start").add(start)
        cost = timing.costliest(tree)
        if cost is None:
            print("\nno timing: its file could not be written")
            continue
        print(f"\n{timing.render(tree, max_width=terminal_width())}")
        if rows := share_rows(tree):
            print(f"\n{aligned([HEADINGS, *rows], num_texts=0, max_width=terminal_width())}")
        print(f"\nThe largest cost is {cost}.")
        print(f"Recording this took {timing.cost_share(recording):.2%} of it.")


def print_crowding(run_dir: Path) -> None:
    """Print a warning if the threads of a run waited for cores."""
    with contextlib.suppress(FileNotFoundError):
        crowding = Crowding.from_json(documents.read(run_dir / "cores.json"))
        if crowding is not None and crowding.is_crowded:
            print(f"\n{crowding.summary()}")


def _print_returns(run_dir: Path) -> None:
    steps, returns = episodes_from_metrics(RunDirectory.open(run_dir).metrics())
    if not len(returns):
        print("\nno episode ended")
        return
    print(f"\nreturn over steps: {sparkline(steps, returns)}")
    last = min(len(returns), 100)
    recent = returns[-last:]
    mean = format_number(float(recent.mean()), float(recent.std()))
    print(f"mean return of the last {last} training episodes: {mean}")
