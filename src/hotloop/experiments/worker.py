"""A process that imports hotloop once and trains one run after another.

    python -m hotloop.experiments.worker

It reads lines of JSON: `{"algorithm": …, "configs": […], "metric": …, "runs": …, "lines": …,
"is_group": …}` starts a training. Configurations are pickles in base64, several are trained as
lanes of one update, and `runs` is the number of runs that share it when compiled. A group needs no
score, and gets learning curves. `{"stop": true}` stops the training. The process writes `{"report":
[lane, transitions, score]}`, with `lines` also `{"line": progress}`, and at the end `{"done": […]}`
with [state, score, reason, seconds] for each lane. It exits at the end of its input.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import math
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from hotloop.base.cache import SHARING
from hotloop.base.importing import long_imports
from hotloop.base.redaction import without_secrets
from hotloop.base.signals import ignore_job_warnings, start_thread
from hotloop.base.statistics import interquartile_mean
from hotloop.errors import HotloopError, NonFiniteError
from hotloop.experiments.pruners import NUM_REPORTS

if TYPE_CHECKING:
    from hotloop.runs import Report, RunResult


def main() -> int:
    """Train one run after another until the end of stdin."""
    ignore_job_warnings()
    # Output of environments goes to the log instead of the sweep.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    stopping = threading.Event()
    start_thread(_listen, requests, stopping)
    with contextlib.suppress(KeyboardInterrupt):  # a group is interrupted after its last checkpoint
        while True:
            request = requests.get()
            stopping.clear()
            try:
                outcomes = _TrainingJob(request, out, stopping).train()
            except Exception as error:  # this trial failed, but the next one may succeed
                outcomes = [["failed", None, failure_reason(error), None]] * len(request["configs"])
            _write(out, {"done": outcomes})
    return 0


def _listen(requests: queue.Queue[dict[str, Any]], stopping: threading.Event) -> None:
    is_group = False
    for line in sys.stdin:
        message = json.loads(line)
        if "stop" in message:
            stopping.set()
        else:
            is_group = message["is_group"]
            requests.put(message)
    # The sweep has ended, or was killed. Processes of environments detect that themselves.
    if is_group:
        os.kill(os.getpid(), signal.SIGINT)
    else:
        os._exit(0)


def _write(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


class ScoreTracker:
    """A tracker of a training's score, which selects the reports to send and gives the outcome.

    Args:
        metric: a key of `plan.METRICS`.
        is_required: whether a training without a score has failed.
    """

    def __init__(self, metric: str, *, is_required: bool = True) -> None:
        self._by_evaluation = metric == "evaluation"
        self._is_required = is_required
        self._evaluation: float | None = None
        self._rung = -1

    def update(self, report: Report) -> float:
        """Return the score after this report, NaN if it is not known yet."""
        if report.evaluation is not None:
            self._evaluation = report.evaluation.mean_return
        if self._by_evaluation:
            return math.nan if self._evaluation is None else self._evaluation
        return report.mean_return

    def should_report(self, report: Report, score: float) -> bool:
        """Return whether this report is one of the `NUM_REPORTS` to send."""
        rung = report.timesteps * NUM_REPORTS // report.total_timesteps
        if rung <= self._rung or not math.isfinite(score):
            return False
        self._rung = rung
        return True

    def outcome(self, result: RunResult | Exception) -> list[Any]:
        """Return state, score, reason and seconds of the training."""
        if isinstance(result, Exception):
            return ["failed", None, failure_reason(result), None]
        score = self._evaluation if self._by_evaluation else result.mean_return
        from hotloop.runs import ON_REPORT  # after the imports of the first training

        state = "pruned" if result.stop_reason == ON_REPORT else "done"
        if score is None or not math.isfinite(score):
            if not self._is_required:
                return [state, None, "", result.elapsed_s]
            reason = "no evaluation was due: train for longer"
            if not self._by_evaluation:
                reason = (
                    "no episode ended: train for longer, or pass `--metric evaluation` and "
                    "`--eval-interval` if episodes have no end"
                )
            return ["failed", None, reason, result.elapsed_s]
        return [state, score, "", result.elapsed_s]


class _TrainingJob:
    """A training with one lane or more."""

    def __init__(self, request: dict[str, Any], out: TextIO, stopping: threading.Event) -> None:
        from hotloop.algorithms import find

        SHARING.runs = request["runs"]
        with long_imports():
            self._algorithm = find(request["algorithm"])
        self._configs = [unpack(text) for text in request["configs"]]
        self._out, self._stopping, self._should_draw = out, stopping, request["is_group"]
        self._display = _ProgressLines(out, len(self._configs)) if request["lines"] else None
        self._trackers = [
            ScoreTracker(request["metric"], is_required=not request["is_group"])
            for _ in self._configs
        ]

    def train(self) -> list[list[Any]]:
        """Train, and return state, score, reason and seconds of each lane."""
        results: list[RunResult | Exception]
        if len(self._configs) == 1:
            results = [
                self._algorithm.train(
                    self._configs[0],
                    on_report=lambda report: self._on_report(0, report),
                    progress=False,
                )
            ]
        else:
            from hotloop.training.lanes import train_lanes

            results = train_lanes(self._algorithm, self._configs, on_report=self._on_report)
        if self._display is not None:
            self._display.close(results)
        if self._should_draw:
            _draw_curves([x.run_dir for x in results if not isinstance(x, Exception)])
        return [x.outcome(result) for x, result in zip(self._trackers, results, strict=True)]

    def _on_report(self, lane: int, report: Report) -> bool:
        if self._display is not None:
            self._display.show(lane, report)
        tracker = self._trackers[lane]
        score = tracker.update(report)
        if tracker.should_report(report, score):
            _write(self._out, {"report": [lane, report.timesteps, score]})
        return self._stopping.is_set()


class _ProgressLines:
    """The progress of a training as lines, or of all its lanes together."""

    def __init__(self, out: TextIO, num_lanes: int) -> None:
        from hotloop.training.live_line import LiveLine

        self._out, start_s = out, time.monotonic()
        self._live = LiveLine(
            write=lambda text: _write(out, {"line": text}),
            age_s=lambda: time.monotonic() - start_s,
        )
        self._num_lanes = num_lanes
        self._reports: dict[int, Report] = {}

    def show(self, lane: int, report: Report) -> None:
        """Write a line, unless the last one was written too recently."""
        if self._num_lanes == 1 or report.activity:
            self._live.show(report)
            return
        self._reports[lane] = report
        reports = self._reports.values()
        returns = [x.mean_return for x in reports if not math.isnan(x.mean_return)]
        mean = float(interquartile_mean(np.array(returns))) if returns else math.nan
        total = dataclasses.replace(
            report,
            timesteps=sum(x.timesteps for x in reports),
            total_timesteps=self._num_lanes * report.total_timesteps,
            elapsed_s=max(x.elapsed_s for x in reports),
            mean_return=mean,
            num_episodes=sum(x.num_episodes for x in reports),
        )
        self._live.show(total)

    def close(self, results: Sequence[RunResult | Exception]) -> None:
        """Write the last line, and how lanes were updated."""
        self._live.close()
        finished = [result for result in results if not isinstance(result, Exception)]
        if self._num_lanes > 1 and finished:
            _write(self._out, {"line": finished[0].execution})


def _draw_curves(paths: Sequence[Path]) -> None:
    """Draw the learning curves of finished runs."""
    from hotloop.runs import RunDirectory
    from hotloop.runs.learning_curve import learning_curve

    for path in paths:
        with contextlib.suppress(Exception):  # the run is complete without its plot
            learning_curve(RunDirectory.open(path))


def pack(config: Any) -> str:
    """Return a configuration as text, for another process of the same user."""
    return base64.b64encode(pickle.dumps(config)).decode()


def unpack(text: str) -> Any:
    """Return a configuration from the text of `pack`."""
    return pickle.loads(base64.b64decode(text))


def failure_reason(error: BaseException) -> str:
    """Return why a trial failed, and print the traceback of an unexpected error to the log."""
    if isinstance(error, NonFiniteError):
        return f"NaN: {error}"
    if isinstance(error, MemoryError):
        return f"out of memory: {error}"
    if isinstance(error, HotloopError):
        return str(error)
    text = "".join(traceback.format_exception(error))
    print(without_secrets(text), file=sys.stderr, end="")  # to the log
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
