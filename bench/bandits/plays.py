"""Interface of a contender, and moments of its rewards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ARMS, EPSILON = 10, 0.1


class Moments(NamedTuple):
    """Additive moments of the runs' mean rewards."""

    runs: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, means: Sequence[float] | Floats) -> Moments:
        """Return the moments of the runs' means."""
        values = np.asarray(means, np.float64)
        return cls(len(values), float(values.sum()), float(np.square(values).sum()))

    @classmethod
    def of_estimate(cls, runs: int, mean: float, se: float) -> Moments:
        """Return the moments from the mean over runs and its standard error."""
        return cls(runs, runs * mean, runs * (mean * mean + (runs - 1) * se * se))

    def plus(self, other: Moments) -> Moments:
        """Return the moments of both."""
        return Moments(
            self.runs + other.runs, self.total + other.total, self.squares + other.squares
        )

    def estimate(self) -> dict[str, float]:
        """Return the mean, its standard error (infinite for one run) and the number of runs."""
        mean = self.total / self.runs
        se = math.inf
        if self.runs > 1:
            variance = max(self.squares - self.runs * mean * mean, 0.0) / (self.runs - 1)
            se = math.sqrt(variance / self.runs)
        return {"mean": mean, "se": se, "runs": self.runs}


Play = Callable[[int, int, int], Moments]
"""(num_runs, num_steps, seed) -> moments of the rewards."""
