"""State and score of each trial of a sweep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from hotloop.base.statistics import interquartile_mean
from hotloop.experiments.results import Run, Trial


class SweepStatus:
    """State and score of each trial, from its runs with one number of steps.

    Args:
        trials: all trials. The base configuration is left out.
        runs: all runs. Only runs for tuning with this number of steps count.
        seeds: seeds that a complete trial has.
        steps: number of steps of a run.
        rejected: trial → the reason why it gets no more seeds.

    Attributes:
        trials: the trials, by number.
        steps: number of steps of a run.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        runs: Sequence[Run],
        seeds: Sequence[int],
        steps: int,
        rejected: Mapping[int, str],
    ) -> None:
        self.trials = [trial for trial in trials if trial.number]
        self.steps = steps
        self._runs: dict[int, list[Run]] = defaultdict(list)
        self._seeds, self._rejected = seeds, rejected
        for run in runs:
            if run.purpose == "tune" and run.steps == steps:
                self._runs[run.trial].append(run)

    def runs(self, trial: int) -> list[Run]:
        """Return the runs of a trial."""
        return self._runs[trial]

    def scores(self, trial: int) -> dict[int, float]:
        """Return seed → score of a trial's finished runs."""
        return {
            run.seed: run.score
            for run in self._runs[trial]
            if run.state == "done" and run.score is not None
        }

    def score(self, trial: int) -> float | None:
        """Return the interquartile mean over a trial's runs, stopped ones too, None if unknown."""
        scores = [run.score for run in self._runs[trial] if run.score is not None]
        return float(interquartile_mean(np.array(scores))) if scores else None

    def state(self, trial: int) -> str:
        """Return `running`, `done`, `pruned` or `failed`."""
        states = [run.state for run in self._runs[trial]]
        if "failed" in states:
            return "failed"
        if "pruned" in states or trial in self._rejected:
            return "pruned"
        if states.count("done") < len(self._seeds):
            return "running"
        return "done"

    def best(self) -> int | None:
        """Return the number of the best finished trial, None if there is none."""
        finished = [trial for trial in self._runs if trial and self.state(trial) == "done"]
        scored = [trial for trial in finished if self.score(trial) is not None]
        return max(scored, key=lambda trial: (self.score(trial), -trial), default=None)

    def ranked(self) -> list[Trial]:
        """Return all trials by score, best first, and trials without a score last."""

        def place(trial: Trial) -> tuple[bool, float]:
            score = self.score(trial.number)
            return score is None, -(score or 0.0)

        return sorted(self.trials, key=place)

    def failed_run(self, trial: int) -> Run:
        """Return the first failed run of a failed trial."""
        return next(run for run in self._runs[trial] if run.state == "failed")
