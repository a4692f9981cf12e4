"""Sizes of the bandit measurements, and their alternation."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench import storage
from bench.measuring import repeat_medians

PEERS = (
    *("numba", "llvmlite", "scipy", "omegaconf", "pymab", "mabwiser", "SMPyBandits"),
    "EpsilonGreedy",
)


class BanditScale(NamedTuple):
    """Sizes of the measurements."""

    runs: int = 2000
    steps: int = 1000
    seconds: float = 0.6
    """Duration of one contender's calls in a round. There is at least one call."""
    many_runs: int = 65_536
    """Runs in the scaling measurement."""
    story_runs: int = 200
    """Runs in the scaling measurement of the post's program."""
    most_runs: int = 1_000_000
    """Runs in the memory measurement."""
    starts: int = 3
    exercise: tuple[int | None, int | None] = (None, None)
    """Runs and steps. None means those of the book."""
    grid: tuple[int, int] = (20, 10)


QUICK = BanditScale(256, 40, 0.01, 1024, 4, 4096, 1, (64, 400), (2, 2))


def alternate(
    measures: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, list[Any] | dict[str, str]]:
    """Call all measures in turn, in a new order each round.

    Returns:
        The results by name, a list over rounds or `missing`.
    """
    results: dict[str, Any] = {name: [] for name in measures}
    for number in range(rounds):
        order = list(measures)
        random.Random(number).shuffle(order)
        for name in order:
            if isinstance(results[name], list):
                try:
                    results[name].append(measures[name]())
                except Exception as error:
                    results[name] = {"missing": f"failed: {first_line(error)}"}
        print(".", end="", flush=True)
    print()
    return results


def first_line(error: Exception) -> str:
    """Return the first line of an error message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def store(part: str, result: dict[str, Any]) -> None:
    """Store the result of a part."""
    path = storage.save(f"bandit_{part}", result, peers=PEERS)
    print(f"stored: {path.parent.name}/{path.name}")


def scale_spread(figures: Mapping[str, float], factor: float) -> dict[str, float]:
    """Multiply a spread by a factor."""
    return {name: value * factor for name, value in figures.items()}


def median_call_s(once: Callable[[], tuple[float, ...]], seconds: float) -> float:
    """Return the median seconds of a call, over calls for some seconds (at least one)."""
    return repeat_medians(once, ("call",), seconds, 1)["call"]
