"""A process that imports once and takes one training after another.

    python -m hotloop.sweeps.worker

It reads lines of JSON: `{"algorithm": …, "configs": […], "metric": …, "runs": …}`, configurations
as pickles in base64, which are lanes of one update where there are several, and how many runs share
it compiled; and `{"stop": true}` while they train. It writes `{"report": [lane, transitions,
score]}` and in the end `{"done": […]}`, a list [state, score, reason, seconds] for each. When
nobody is there to write to it, it ends.
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

from hotloop.cache import SHARED
from hotloop.errors import HotloopError, NonFiniteError
from hotloop.sweeps.pruners import NUM_REPORTS

if TYPE_CHECKING:
    from hotloop.runs import Report, Result

METRICS = {
    "return": "mean return of the last 100 training episodes",
    "evaluation": "mean return of the last evaluation, of runs with `--eval-interval`",
}


def main() -> int:
    """Take one training after another until stdin ends."""
    # What environments print is not for the sweep: it goes to the log.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked: queue.Queue[dict[str, Any]] = queue.Queue()
    stopping = threading.Event()
    threading.Thread(target=_listen, args=(asked, stopping), daemon=True).start()
    while True:
        work = asked.get()
        stopping.clear()
        try:
            done = _Work(work, out, stopping).train()
        except Exception as error:  # of the trial: the next one may do better
            done = [["failed", None, reason_of(error), None]] * len(work["configs"])
        _write(out, {"done": done})


def _listen(asked: queue.Queue[dict[str, Any]], stopping: threading.Event) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "stop" in message:
            stopping.set()
        else:
            asked.put(message)
    os._exit(0)  # the sweep is gone; processes of environments notice that themselves


def _write(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


class Scored:
    """What a sweep hears of a training: its score, at some of its reports and at the end.

    Args:
        metric: of `METRICS`.
    """

    def __init__(self, metric: str) -> None:
        self._by_evaluation = metric == "evaluation"
        self._evaluation: float | None = None
        self._rung = -1

    def of(self, report: Report) -> float:
        """Return the score so far; NaN: it is not known yet."""
        if report.evaluation is not None:
            self._evaluation = report.evaluation.mean_return
        if self._by_evaluation:
            return math.nan if self._evaluation is None else self._evaluation
        return report.mean_return

    def is_kept(self, report: Report, score: float) -> bool:
        """Whether this report is one of the `NUM_REPORTS` that are kept."""
        rung = report.timesteps * NUM_REPORTS // report.total_timesteps
        if rung <= self._rung or not math.isfinite(score):
            return False
        self._rung = rung
        return True

    def ended(self, result: Result | Exception) -> list[Any]:
        """Return state, score, reason and seconds of the training."""
        if isinstance(result, Exception):
            return ["failed", None, reason_of(result), None]
        score = self._evaluation if self._by_evaluation else result.mean_return
        if score is None or not math.isfinite(score):
            what = "evaluation was due" if self._by_evaluation else "episode ended"
            return ["failed", None, f"no {what}: train for longer", result.elapsed_s]
        state = "done" if result.status == "finished" else "pruned"
        return [state, score, "", result.elapsed_s]


class _Work:
    """One training, or lanes of one."""

    def __init__(self, work: dict[str, Any], out: TextIO, stopping: threading.Event) -> None:
        from hotloop.algorithms import find

        SHARED.runs = work["runs"]
        self._algorithm = find(work["algorithm"])
        self._configs = [unpacked(text) for text in work["configs"]]
        self._out, self._stopping = out, stopping
        self._scored = [Scored(work["metric"]) for _ in self._configs]

    def train(self) -> list[list[Any]]:
        """Train; return state, score, reason and seconds of each."""
        results: list[Result | Exception]
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
        return [one.ended(result) for one, result in zip(self._scored, results, strict=True)]

    def _on_report(self, lane: int, report: Report) -> bool:
        scored = self._scored[lane]
        score = scored.of(report)
        if scored.is_kept(report, score):
            _write(self._out, {"report": [lane, report.timesteps, score]})
        return self._stopping.is_set()


def packed(config: Any) -> str:
    """Return a configuration as a text, for another process of the same user."""
    return base64.b64encode(pickle.dumps(config)).decode()


def unpacked(text: str) -> Any:
    """Return the configuration of such a text."""
    return pickle.loads(base64.b64decode(text))


def reason_of(error: BaseException) -> str:
    """Return why a trial failed; what is no error of a user's goes to the log whole."""
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
