"""Streams of fragments that are older than the policy, or uneven: kept back, weighed, scaled."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from hotloop.types import Array, Fragment

# Of what was counted before: over 50 batches, about.
_KEPT = 1.0 - 1.0 / 50


class HeldBack:
    """Keeps fragments back for some batches, so that they are older when they are learned from.

    Args:
        count: of batches.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: deque[list[Fragment]] = deque()

    def exchanged(self, collect: Callable[[], Sequence[Fragment]]) -> Sequence[Fragment]:
        """Collect, and return what was collected `count` batches ago."""
        if not self._count:
            return collect()
        while len(self._held) <= self._count:
            self._held.append([_copied(fragment) for fragment in collect()])
        return self._held.popleft()


def _copied(fragment: Fragment) -> Fragment:
    """Return a fragment that the next one does not overwrite."""
    arrays = {
        field.name: value.copy()
        for field in dataclasses.fields(fragment)
        if isinstance(value := getattr(fragment, field.name), np.ndarray)
    }
    return dataclasses.replace(fragment, **arrays)


class Stream:
    """A stream of fragments, of which each group of environments gets the same share.

    w_i = M / (G m_i), with m_i of the last M rows or so from group i, of G that have any. A single
    batch may hold none of a slow group, so that rows are counted over many: the weights of variable
    experience rollouts (`hotloop.rollouts.environment_weights`) for a stream. So are moments: those
    of a batch would scale each group by something else.
    """

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}
        self._moments = np.zeros(3)  # Σ w, Σ w x, Σ w x²

    def weights(self, fragments: Sequence[Fragment]) -> list[float]:
        """Count the rows of a batch, and return a weight for those of each fragment."""
        counts = {group: _KEPT * count for group, count in self._counts.items()}
        for fragment in fragments:
            group = fragment.first_env
            counts[group] = counts.get(group, 0.0) + fragment.num_steps
        self._counts = dict(counts)
        # Half of a batch counts as before it: at the times that a group is there, its count is
        # greater than on average by as much. With all of it, a group 20 times slower had 8 % less.
        for fragment in fragments:
            counts[fragment.first_env] -= 0.5 * fragment.num_steps
        mean = sum(counts.values()) / len(counts)
        return [mean / counts[fragment.first_env] for fragment in fragments]

    def normalized(self, values: Array, weight: Array) -> Array:
        """Count a batch's values, and return them with the stream's mean 0 and deviation 1.

        Args:
            values: float32, of any shape.
            weight: how much each counts, float32, likewise.

        Returns:
            float32, likewise.
        """
        exact, weighed = values.astype(np.float64), weight.astype(np.float64)
        sums = [weighed.sum(), (weighed * exact).sum(), (weighed * exact * exact).sum()]
        self._moments = _KEPT * self._moments + sums
        mean, square = self._moments[1:] / self._moments[0]
        std = math.sqrt(max(square - mean * mean, 0.0))
        return ((exact - mean) / (std + 1e-8)).astype(np.float32)


def ages(fragments: Sequence[Fragment], version: int) -> Array:
    """Return how many versions ago the policy acted, int64, (Σ T,).

    Args:
        fragments: of T steps each.
        version: of the newest policy.
    """
    return version - np.concatenate(
        [
            np.full(x.num_steps, x.policy_version) if x.versions is None else x.versions
            for x in fragments
        ]
    )
