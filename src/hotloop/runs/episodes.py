"""Training episodes in the lines of a `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotloop.types import Array

# Metrics of training episodes, with the keys of their lists.
EPISODE_LISTS = {"return": "episode_returns", "length": "episode_lengths"}


def episodes_from_metrics(lines: Sequence[Mapping[str, Any]]) -> tuple[Array, Array]:
    """Return the training episodes in the lines of a `metrics.jsonl`.

    Returns:
        Step of the end of each episode, ascending, int64, (E,), and its undiscounted return,
        float64, (E,). The episodes of an iteration are spread evenly over its steps, in order.
    """
    ends = [float(line["timesteps"]) for line in lines]
    steps, returns = spread_episodes(lines, EPISODE_LISTS["return"], ends)
    return np.ceil(steps).astype(np.int64), returns


def info_names(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the environment's own metrics, by first appearance."""
    return [*dict.fromkeys(name for line in lines for name in line.get("episode_info") or ())]


def spread_episodes(
    lines: Sequence[Mapping[str, Any]],
    name: str,
    ends: Sequence[float],
    info_name: str | None = None,
) -> tuple[Array, Array]:
    """Return the approximate end of each episode, and its value of a metric, both float64, (E,).

    Args:
        lines: lines of `metrics.jsonl`.
        name: key of the lists of values, or `episode_info`.
        ends: steps, seconds or updates at the end of each iteration.
        info_name: key within `episode_info`. Episodes without it are left out.
    """
    values: list[float | None] = []
    counts = np.zeros(len(lines), np.int64)
    for k, line in enumerate(lines):
        episode_values: Any = line.get(name) or []
        if info_name is not None and episode_values:
            episode_values = episode_values.get(info_name) or []
        counts[k] = len(episode_values)
        values += episode_values
    stops = np.asarray(ends, np.float64)
    starts = np.concatenate([[0.0], stops])[: len(stops)]
    # Rank of each episode within its iteration, from 1.
    rank = np.arange(1, len(values) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.repeat(stops - starts, counts) * rank / np.repeat(counts, counts)
    positions += np.repeat(starts, counts)
    numeric = np.asarray(values, np.float64)  # None becomes NaN
    if info_name is None:
        return positions, numeric
    return positions[~np.isnan(numeric)], numeric[~np.isnan(numeric)]
