"""Repeated measurements: medians, spread, missing libraries."""

from __future__ import annotations

import importlib
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Spread = dict[str, float]


class Missing(Exception):
    """Something that the measurement needs is missing. The message names it."""


def import_library(name: str) -> Any:
    """Import a library.

    Raises:
        Missing: the library is not installed or does not load.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise Missing("not installed") from None
    except (ImportError, OSError, RuntimeError) as error:
        # The first line, without directory names.
        line = re.sub(r"\S*/", "", str(error).splitlines()[0])
        raise Missing(f"does not load: {line[:120]}") from None


def spread(values: Sequence[float]) -> Spread:
    """Return median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def repeat_medians(
    once: Callable[[], tuple[float, ...]], names: Sequence[str], seconds: float, at_least: int = 5
) -> dict[str, float]:
    """Call `once` for some seconds; return the medians of its figures by name."""
    series = []
    until = time.perf_counter() + seconds
    while len(series) < at_least or time.perf_counter() < until:
        series.append(once())
    return {
        name: statistics.median(column)
        for name, column in zip(names, zip(*series, strict=True), strict=True)
    }
