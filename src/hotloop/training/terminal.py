"""A training in a terminal: its live line, what a signal does, its exit code."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hotloop.base.signals import Interrupted, interrupt_once, start_thread
from hotloop.base.streams import notify
from hotloop.envs.closing import CLOSE_S
from hotloop.runs import Report, RunResult
from hotloop.runs.policies import policy_runs
from hotloop.training.algorithm import Algorithm
from hotloop.training.background_plot import BackgroundPlot
from hotloop.training.live_line import LiveLine
from hotloop.training.options import AnyConfig
from hotloop.training.progress_display import describe_stop

Conclude = Callable[[Path, Callable[[], Path]], None]


def train_in_terminal(
    algorithm: Algorithm[AnyConfig], config: AnyConfig, conclude: Conclude, **options: Any
) -> int:
    """Train with a live progress line, then print a summary.

    Args:
        algorithm: A built-in or custom algorithm.
        config: Its configuration.
        conclude: Prints the summary of a run directory. Its second argument draws the learning
            curve and returns its path.
        **options: More arguments of `Algorithm.train`.

    Returns:
        The exit code.
    """
    live, drawing = LiveLine(), BackgroundPlot()
    with interrupt_once() as guard, contextlib.ExitStack() as exits:
        exits.callback(drawing.finish)
        drawing.prepare_short(config.total_timesteps)

        def on_report(report: Report) -> None:
            live.show(report)
            drawing.prepare(report)
            guard.check()

        def on_end(result: RunResult | None) -> None:
            guard.ignore()
            live.close()
            code = 1
            if result is not None:
                code = 0
                conclude(result.run_dir, lambda: drawing.draw(result.run_dir))
                print(result.execution, flush=True)
                if result.stop_reason:
                    print(describe_stop(result), flush=True)
                played = [*policy_runs(result.run_dir), result.run_dir][0]
                print(f"next: hotloop eval {shlex.quote(str(played))}", flush=True)
            elif guard.number is not None:
                code = 128 + guard.number
                _conclude_interrupted(live.run_dir, drawing, conclude)
            guard.restore_defaults()
            if threading.current_thread() is threading.main_thread():
                exits.callback(_exit_if_close_hangs(code, sys.exc_info()[1]))

        try:
            train = _training_function(algorithm, config)
            train(config, on_report=on_report, on_end=on_end, **options)
        except Interrupted as interrupt:
            return interrupt.exit_code
        except BaseException:
            if live.run_dir is not None and live.run_dir.exists():
                print(f"the run directory is kept: {live.run_dir}", file=sys.stderr)
            raise
    return 0


def _training_function(algorithm: Algorithm[AnyConfig], config: AnyConfig) -> Callable[..., object]:
    """Return the function that trains one policy, or several."""
    if not config.has_policies:
        return partial(algorithm.train, progress=False)
    from hotloop.training.several_policies import train_policies

    return partial(train_policies, algorithm)


def _conclude_interrupted(
    run_dir: Path | None, drawing: BackgroundPlot, conclude: Conclude
) -> None:
    """Print the summary of a training that a signal has stopped."""
    if run_dir is None or not run_dir.exists():
        notify("interrupted before the first iteration ended")
        return
    conclude(run_dir, lambda: drawing.draw(run_dir))
    notify(
        "interrupted; metrics, timing and the last checkpoint are kept: "
        f"continue with hotloop resume {shlex.quote(str(run_dir))}"
    )


def _exit_if_close_hangs(code: int, error: BaseException | None) -> Callable[[], None]:
    """Exit if closing the environments hangs. Return the function to call after it."""

    # `error`, which stopped the training, is printed before the exit.
    def leave() -> None:
        if has_closed.wait(2 * CLOSE_S):
            return
        notify("warning: closing the environments did not finish")
        if error is not None and not isinstance(error, Interrupted):
            notify(str(error))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)

    def end() -> None:
        has_closed.set()
        watcher.join()

    has_closed = threading.Event()
    watcher = start_thread(leave, name="closing")
    return end
