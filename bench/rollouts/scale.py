"""Sizes of the rollout measurements, and their alternation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench import storage
from bench.measuring import spread


class RolloutScale(NamedTuple):
    """Sizes of the measurements."""

    seconds: float = 20.0
    """Duration of a measurement with sleeping environments, 1.5 times longer with resets."""
    workers: int = 24
    num_steps: int = 128
    iterations: int = 10
    lockstep_iterations: int = 3
    cheap_seconds: float = 5.0
    num_fragments: int = 300
    """Random fragments for the arithmetic."""
    points: int = 21
    timesteps: int = 102_400


QUICK = RolloutScale(1.0, 3, 8, 3, 2, 0.5, 20, 3, 4_096)

OURS = {
    "variable": "hotloop, `variable`",
    "variable overlap": "hotloop, `variable`, overlapped",
    "async": "hotloop, `async`",
    "barrier": "hotloop, `barrier`",
    "barrier overlap": "hotloop, `barrier`, overlapped",
}
PEERS = {
    "sb3": "Stable-Baselines3, SubprocVecEnv",
    "gymnasium": "Gymnasium, AsyncVectorEnv",
}
LAWS = {"barrier": "barrier", "barrier overlap": "overlap", "sb3": "lockstep"}
LAWS["gymnasium"] = "lockstep"


def alternate(
    measures: Mapping[str, Callable[[], dict[str, Any]]], rounds: int
) -> dict[str, dict[str, Any]]:
    """Take all measurements in turn, in reverse order every other round.

    Returns:
        By name the spread of each figure over the rounds, or `missing`.
    """
    series: dict[str, dict[str, list[float]]] = {name: {} for name in measures}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name in list(measures)[:: 1 if number % 2 == 0 else -1]:
            if name in missing:
                continue
            figures = measures[name]()
            if "missing" in figures:
                missing[name] = figures["missing"]
                print(f"  {name}: {figures['missing']}")
                continue
            for figure, value in figures.items():
                series[name].setdefault(figure, []).append(value)
            print(".", end="", flush=True)
    print()
    return {
        name: {"missing": missing[name]}
        if name in missing
        else {figure: spread(values) for figure, values in figures.items()}
        for name, figures in series.items()
    }


def store(part: str, result: dict[str, Any]) -> None:
    """Store the result of a part."""
    path = storage.save(f"rollouts_{part}", result, peers=("envpool",))
    print(f"stored: {path.parent.name}/{path.name}")


def figure_path(name: str, scale: RolloutScale) -> Path:
    """Return the path of a plot."""
    return (storage.RESULTS if scale is QUICK else storage.DOCS) / name
