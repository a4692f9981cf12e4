"""The result of an experiment, as stored in the profile's directory."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hotloop.base import documents
from hotloop.profiler.what_if import elasticity as arithmetic
from hotloop.profiler.what_if.elasticity import LEAST_PAIRS, Window
from hotloop.profiler.what_if.places import Place, PlaceTimes, time_in

RESULT_FILE = "what-if.json"
VERSION = 1
# Part of a place's time that may be blocked for an unknown reason.
_MAX_UNKNOWN = 0.1


@dataclass
class Effect:
    """The effect of one place on the throughput.

    Attributes:
        place: the place as text.
        elasticity: relative change of the program's time over that of the place's time.
        error: half the width of the 95 % interval.
        share: estimate from samples: the place's time as a share of the elapsed time. The sum over
            several threads may exceed 1.
        delay: length of the delays relative to the place's time.
        pairs: number of delayed windows.
    """

    place: str
    elasticity: float
    error: float
    share: float
    delay: float
    pairs: int

    @property
    def twice_as_fast(self) -> float:
        """The speed-up of the program if the place is twice as fast."""
        return arithmetic.speed_up(self.elasticity, 2.0)


@dataclass
class WhatIf:
    """The result of an experiment.

    Attributes:
        progress: measure of the throughput as text.
        rate: undelayed units of progress per second.
        window_s: length of a window.
        slowdown: time that the delays added, relative to the time of the experiment.
        effects: effects by candidate, largest first.
        problem: why there are no effects, empty if there are some.
        notes: sentences on candidates that were left out.
    """

    progress: str = ""
    rate: float = 0.0
    window_s: float = 0.0
    slowdown: float = 0.0
    effects: list[Effect] = field(default_factory=list)
    problem: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def bottleneck(self) -> Effect | None:
        """The place with the largest effect, if it differs from 0."""
        largest = max(self.effects, key=lambda effect: effect.elasticity, default=None)
        return None if largest is None or largest.elasticity <= largest.error else largest

    @property
    def busiest(self) -> Effect | None:
        """The place with the largest share of the samples."""
        return max(self.effects, key=lambda effect: effect.share, default=None)

    def write(self, directory: Path) -> None:
        """Write the result into the profile's directory."""
        document = {"version": VERSION, **asdict(self)}
        text = json.dumps(documents.sealed(documents.finite(document)), indent=1)
        (directory / RESULT_FILE).write_text(text + "\n", encoding="utf-8")


def read_result(directory: Path) -> WhatIf | None:
    """Return the result in a profile's directory; None if there was no experiment.

    Raises:
        ValueError: The file is damaged, or of a newer version.
    """
    try:
        document = documents.read(directory / RESULT_FILE)
    except (FileNotFoundError, NotADirectoryError):  # no experiment, or another profiler's file
        return None
    if not isinstance(document, dict) or document.pop("version", None) != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    return documents.record(WhatIf, document)


def measured(
    candidates: Sequence[Place],
    windows: Sequence[Window],
    times: PlaceTimes,
    duration_ns: float,
    progress_rate: float,
    progress_place: Place,
    window_s: float,
    *,
    excludes_queues: bool,
) -> WhatIf:
    """Return the result of windows.

    Args:
        candidates: places by the index in the windows.
        windows: all windows, in order.
        times: sampled times during the windows, without the delays.
        duration_ns: duration of the part of the run that was sampled for `times`.
        progress_rate: units of progress per second during the windows.
        progress_place: place whose passes are the units.
        window_s: length of a window.
        excludes_queues: whether the windows exclude the time in which threads queued for a core.
    """
    undelayed = [window for window in windows if window.candidate < 0]
    delayed_ns = sum(w.duration_ns for w in windows if w.candidate >= 0)
    rate = _rate(undelayed)
    result = WhatIf(progress_place.label, rate, window_s)
    if not rate:
        result.problem = "nothing progressed in a window without delays"
        return result
    expected_ns = sum(window.progress for window in windows if window.candidate >= 0) / rate * 1e9
    result.slowdown = (delayed_ns - expected_ns) / max(1.0, sum(w.duration_ns for w in windows))
    most_pairs, unknown = 0, []
    for index, place in enumerate(candidates):
        ratios = arithmetic.log_ratios(windows, index)
        most_pairs = max(most_pairs, len(ratios))
        time = time_in(place, times)
        units = max(1e-9, duration_ns * progress_rate / 1e9)
        busy_ns = time.busy_ns / units
        delay = arithmetic.relative_delay(windows, index, busy_ns)
        if len(ratios) < LEAST_PAIRS:
            continue
        if time.unknown_ns > _MAX_UNKNOWN * time.elapsed_ns:
            unknown.append(place.label)
            continue
        if delay <= 0:
            result.notes.append(f"{place.label} did not run in the windows")
            continue
        time_error = 1 / math.sqrt(max(1.0, time.count))
        effect = arithmetic.elasticity(ratios, delay, time_error)
        queued_ns = 0.0 if excludes_queues else time.queued_ns / units
        share = (busy_ns + queued_ns) * rate / 1e9
        result.effects.append(Effect(place.label, effect.value, effect.error, share, *effect[2:]))
    if unknown:
        result.notes.append(
            f"{', '.join(unknown)} can't be delayed: samples show what blocks them only with "
            "the profiler's C extension, on Linux and Python 3.11 or later"
        )
    result.effects.sort(key=lambda effect: -effect.elasticity)
    if not result.effects and result.notes:
        result.problem = "; ".join(result.notes)
    elif not result.effects:
        more_s = (LEAST_PAIRS - most_pairs + 1) * 2.4 * window_s * len(candidates)
        result.problem = (
            f"it ended too early: {most_pairs} of at least {LEAST_PAIRS} pairs of windows per "
            f"candidate; let it run for {max(1, math.ceil(more_s))} s more"
        )
    return result


def _rate(windows: Sequence[Window]) -> float:
    duration_ns = sum(window.duration_ns for window in windows)
    return sum(window.progress for window in windows) / duration_ns * 1e9 if duration_ns else 0.0
