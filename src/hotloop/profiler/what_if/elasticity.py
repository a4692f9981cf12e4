"""The arithmetic of the experiment: from windows to elasticities.

The program needs a time P per unit of progress. A place takes the part T of it, in one or several
threads. The elasticity is the relative change of P over the relative change of T:

    E = (dP / P) / (dT / T)

In windows in which the place is delayed, T grows by the delay D. Each window is compared with the
undelayed windows beside it: with x = mean of ln(P delayed / P undelayed), E = (eˣ − 1) / (D / T).
E is 1 for a place that is the whole program, and 0 for a place whose speed does not matter. If the
program remains as it is otherwise, a place that is faster by a factor of f makes it faster by
1 / (1 − E (1 − 1 / f)).

The idea of measuring by delays is that of Curtsinger & Berger 2015, "Coz: Finding code that counts
with causal profiling" (SOSP, https://doi.org/10.1145/2815400.2815409). Coz delays all other threads
whenever the place runs, which has the effect of a faster place. Here, the place itself is delayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hotloop.base.statistics import student_t

# Share of the windows to trim at each end, because a busy machine causes outliers.
_TRIMMED = 0.1
LEAST_PAIRS = 6


class Window(NamedTuple):
    """A part of the run in which one place was delayed, or none.

    Attributes:
        candidate: index of the delayed candidate, −1 for none.
        progress: units of progress.
        duration_ns: time from the last unit before the window to its last unit.
        delay_ns: sum of the inserted delays, over all threads and processes.
    """

    candidate: int
    progress: int
    duration_ns: int
    delay_ns: int


class Elasticity(NamedTuple):
    """The measured effect of one candidate.

    Attributes:
        value: relative change of the period over the relative change of the place's time.
        error: half the width of the 95 % interval.
        delay: length of the delays relative to the place's time.
        pairs: number of delayed windows.
    """

    value: float
    error: float
    delay: float
    pairs: int


def log_ratios(windows: Sequence[Window], candidate: int) -> np.ndarray:
    """Return ln(P delayed / P undelayed) of each delayed window, by the windows beside it."""
    ratios: list[float] = []
    for index, window in enumerate(windows):
        if window.candidate != candidate or window.progress <= 0:
            continue
        beside = [
            math.log(other.duration_ns / other.progress)
            for other in (*windows[max(0, index - 1) : index], *windows[index + 1 : index + 2])
            if other.candidate < 0 and other.progress > 0 and other.duration_ns > 0
        ]
        if beside and window.duration_ns > 0:
            period = math.log(window.duration_ns / window.progress)
            ratios.append(period - sum(beside) / len(beside))
    return np.array(ratios)


def relative_delay(windows: Sequence[Window], candidate: int, busy_ns: float) -> float:
    """Return the delay relative to the place's time.

    Args:
        windows: all windows.
        candidate: index of the candidate.
        busy_ns: time of the place per unit of progress, without delays.
    """
    delayed = [window for window in windows if window.candidate == candidate]
    units = sum(window.progress for window in delayed)
    if not units or busy_ns <= 0:
        return 0.0
    return sum(window.delay_ns for window in delayed) / units / busy_ns


def elasticity(ratios: np.ndarray, delay: float, time_error: float = 0.0) -> Elasticity:
    """Return the elasticity with its 95 % interval, from a trimmed mean of the log ratios.

    Args:
        ratios: see `log_ratios`, at least `LEAST_PAIRS`.
        delay: see `relative_delay`, positive.
        time_error: standard error of the place's sampled time, relative to it.
    """
    count = len(ratios)
    cut = int(_TRIMMED * count)
    ordered = np.sort(ratios)
    middle = ordered[cut : count - cut]
    # The standard error of a trimmed mean is that of the winsorized values (Tukey & McLaughlin).
    winsorized = np.clip(ratios, middle[0], middle[-1])
    deviation = float(winsorized.std(ddof=1)) / ((1 - 2 * cut / count) * math.sqrt(count))
    growth = math.exp(float(middle.mean()))
    value = (growth - 1) / delay
    error = student_t(len(middle) - 1) * math.hypot(growth * deviation / delay, value * time_error)
    return Elasticity(value, error, delay, count)


def speed_up(value: float, factor: float) -> float:
    """Return how much faster the program is if the place is faster by a factor."""
    return 1.0 / max(1e-3, 1.0 - min(1.0, max(0.0, value)) * (1.0 - 1.0 / factor))
