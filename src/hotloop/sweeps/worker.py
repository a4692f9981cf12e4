"""A process that imports once and takes one training after another.

    python -m hotloop.sweeps.worker

It reads lines of JSON: `{"algorithm": …, "configs": […], "metric": …}`, configurations as pickles
in base64, which are lanes of one update where there are several; and `{"stop": true}` while they
train. It writes `{"report": [lane, transitions, score]}` and in the end `{"done": […]}`, a list
[state, score, reason, seconds] for each. When nobody is there to write to it, it ends.
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
            done = [["failed", None, _reason(error), None]] * len(work["configs"])
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


class _Work:
    """One training, or lanes of one."""

    def __init__(self, work: dict[str, Any], out: TextIO, stopping: threading.Event) -> None:
        from hotloop.algorithms import find

        self._algorithm = find(work["algorithm"])
        self._configs = [pickle.loads(base64.b64decode(text)) for text in work["configs"]]
        self._metric, self._out, self._stopping = work["metric"], out, stopping
        self._told = [-1] * len(self._configs)
        self._evaluations: list[float | None] = [None] * len(self._configs)

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
        return [self._told_of(lane, result) for lane, result in enumerate(results)]

    def _on_report(self, lane: int, report: Report) -> bool:
        score = report.mean_return
        if report.evaluation is not None:
            self._evaluations[lane] = report.evaluation.mean_return
        if self._metric == "evaluation":
            found = self._evaluations[lane]
            score = math.nan if found is None else found
        rung = report.timesteps * NUM_REPORTS // report.total_timesteps
        if rung > self._told[lane] and math.isfinite(score):
            self._told[lane] = rung
            _write(self._out, {"report": [lane, report.timesteps, score]})
        return self._stopping.is_set()

    def _told_of(self, lane: int, result: Result | Exception) -> list[Any]:
        if isinstance(result, Exception):
            return ["failed", None, _reason(result), None]
        score = result.mean_return
        if self._metric == "evaluation":
            score = self._evaluations[lane]
        if score is None or not math.isfinite(score):
            what = "evaluation was due" if self._metric == "evaluation" else "episode ended"
            return ["failed", None, f"no {what}: train for longer", result.elapsed_s]
        state = "done" if result.status == "finished" else "pruned"
        return [state, score, "", result.elapsed_s]


def _reason(error: BaseException) -> str:
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
