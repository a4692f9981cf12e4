"""Scale of the measurements of bandits, and how they take turns."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench import storage
from bench.measuring import repeated

PEERS = (
    *("numba", "llvmlite", "scipy", "omegaconf", "pymab", "mabwiser", "SMPyBandits"),
    "EpsilonGreedy",
)


class Scale(NamedTuple):
    """How much is measured."""

    runs: int = 2000
    steps: int = 1000
    seconds: float = 0.6
    """Calls of one contender in a round go on for this long, or for one call."""
    many_runs: int = 65_536
    """Of the scaling."""
    story_runs: int = 200
    """Of the scaling of the post's program."""
    most_runs: int = 1_000_000
    """Of the memory."""
    starts: int = 3
    exercise: tuple[int | None, int | None] = (None, None)
    """Runs and steps; the book's."""
    grid: tuple[int, int] = (20, 10)


QUICK = Scale(256, 40, 0.01, 1024, 4, 4096, 1, (64, 400), (2, 2))


def alternate(
    measures: Mapping[str, Callable[[], Any]], rounds: int
) -> dict[str, list[Any] | dict[str, str]]:
    """Call all of them in turn, in another order each round.

    Returns:
        What each gave, a list over rounds, or `missing`.
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
                    results[name] = {"missing": f"failed: {why(error)}"}
        print(".", end="", flush=True)
    print()
    return results


def why(error: Exception) -> str:
    """An error in a line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def store(part: str, result: dict[str, Any]) -> None:
    """Write one part's result."""
    path = storage.save(f"bandit_{part}", result, peers=PEERS)
    print(f"stored: {path.parent.name}/{path.name}")


def scaled(figures: Mapping[str, float], factor: float) -> dict[str, float]:
    """A spread in another unit."""
    return {name: value * factor for name, value in figures.items()}


def per_call(once: Callable[[], tuple[float, ...]], seconds: float) -> float:
    """The median of calls that go on for this long, or of the one that takes longer."""
    return repeated(once, ("call",), seconds, 1)["call"]
