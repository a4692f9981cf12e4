"""A process that imports hotloop once and trains one run after another.

    python -m hotloop.experiments.worker

It reads lines of JSON: `{"algorithm": …, "configs": […], "metric": …, "runs": …}` starts a
training. Configurations are pickles in base64, several are trained as lanes of one update, and
`runs` is the number of runs that share it when compiled. `{"stop": true}` stops the training. The
process writes `{"report": [lane, transitions, score]}`, and at the end `{"done": […]}` with
[state, score, reason, seconds] for each lane. It exits at the end of its input.
"""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import queue
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, TextIO

from hotloop.base.cache import SHARING
from hotloop.base.signals import ignore_job_warnings, start_thread
from hotloop.errors import HotloopError, NonFiniteError
from hotloop.experiments.pruners import NUM_REPORTS

if TYPE_CHECKING:
    from hotloop.runs import Report, RunResult

METRICS = {
    "return": "mean return of the last 100 training episodes",
    "evaluation": "mean return of the last evaluation, which needs `--eval-interval`",
}


def main() -> int:
    """Train one run after another until the end of stdin."""
    ignore_job_warnings()
    # Output of environments goes to the log instead of the sweep.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    stopping = threading.Event()
    start_thread(_listen, requests, stopping)
    while True:
        request = requests.get()
        stopping.clear()
        try:
            outcomes = _TrainingJob(request, out, stopping).train()
        except Exception as error:  # the trial failed, the next one may not
            outcomes = [["failed", None, failure_reason(error), None]] * len(request["configs"])
        _write(out, {"done": outcomes})


def _listen(requests: queue.Queue[dict[str, Any]], stopping: threading.Event) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "stop" in message:
            stopping.set()
        else:
            requests.put(message)
    os._exit(0)  # the sweep has ended; processes of environments detect that themselves


def _write(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


class ScoreTracker:
    """A tracker of a training's score, which selects the reports to send and gives the outcome.

    Args:
        metric: a key of `METRICS`.
    """

    def __init__(self, metric: str) -> None:
        self._by_evaluation = metric == "evaluation"
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
        if score is None or not math.isfinite(score):
            reason = "no evaluation was due: train for longer"
            if not self._by_evaluation:
                reason = (
                    "no episode ended: train for longer, or pass `--metric evaluation` and "
                    "`--eval-interval` if episodes have no end"
                )
            return ["failed", None, reason, result.elapsed_s]
        state = "done" if result.status == "finished" else "pruned"
        return [state, score, "", result.elapsed_s]


class _TrainingJob:
    """A training with one lane or more."""

    def __init__(self, request: dict[str, Any], out: TextIO, stopping: threading.Event) -> None:
        from hotloop.algorithms import find

        SHARING.runs = request["runs"]
        self._algorithm = find(request["algorithm"])
        self._configs = [unpack(text) for text in request["configs"]]
        self._out, self._stopping = out, stopping
        self._trackers = [ScoreTracker(request["metric"]) for _ in self._configs]

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
        return [x.outcome(result) for x, result in zip(self._trackers, results, strict=True)]

    def _on_report(self, lane: int, report: Report) -> bool:
        tracker = self._trackers[lane]
        score = tracker.update(report)
        if tracker.should_report(report, score):
            _write(self._out, {"report": [lane, report.timesteps, score]})
        return self._stopping.is_set()


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
    traceback.print_exception(error)  # to the log
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
