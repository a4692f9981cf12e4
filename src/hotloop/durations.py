"""Durations as people read them."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """1:05:09 or 5:09; a question mark where it is not known."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
