"""Durations as text."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """Return a duration such as 1:05:09 or 5:09, or a question mark if it is not finite."""
    if not math.isfinite(seconds):
        return "?"
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"
