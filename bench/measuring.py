"""Repeating a measurement, and what is told of it: medians, spread, what is missing."""

from __future__ import annotations

import importlib
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Spread = dict[str, float]


class Missing(Exception):
    """What is to be measured is not there; the message says what."""


def imported(name: str) -> Any:
    """A library.

    Raises:
        Missing: it is not installed, or does not load; the message says which.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise Missing("not installed") from None
    except (ImportError, OSError, RuntimeError) as error:
        # The first line, without the folders in it.
        line = re.sub(r"\S*/", "", str(error).splitlines()[0])
        raise Missing(f"does not load: {line[:120]}") from None


def spread(values: Sequence[float]) -> Spread:
    """Median and range over rounds."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def repeated(
    once: Callable[[], tuple[float, ...]], names: Sequence[str], seconds: float, at_least: int = 5
) -> dict[str, float]:
    """Medians of what `once` returns, over some time."""
    series = []
    until = time.perf_counter() + seconds
    while len(series) < at_least or time.perf_counter() < until:
        series.append(once())
    return {
        name: statistics.median(column)
        for name, column in zip(names, zip(*series, strict=True), strict=True)
    }
