"""Weights and policy ages of fragments from asynchronous workers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hotloop.ops.shares import equal_shares
from hotloop.types import Array, Fragment

# The decay of older counts for each batch: an average over about 50 batches.
_DECAY = 1.0 - 1.0 / 50


class FragmentStream:
    """Weights that give each group of environments the same share of a stream of fragments.

    They are the `equal_shares` of a stream. Rows are counted over many batches, since one batch may
    have no row of a slow group. Moments are averaged too: those of one batch would scale each group
    differently.
    """

    def __init__(self) -> None:
        self._counts: dict[int, float] = {}
        self._moments = np.zeros(3)  # Σ w, Σ w x, Σ w x²

    def weights(self, fragments: Sequence[Fragment]) -> list[float]:
        """Count the rows of a batch, and return one weight for each fragment."""
        counts = {group: _DECAY * count for group, count in self._counts.items()}
        for fragment in fragments:
            group = fragment.first_env
            counts[group] = counts.get(group, 0.0) + fragment.num_steps
        self._counts = dict(counts)
        # Subtract half of a batch: when a group has a fragment in the batch, its count exceeds its
        # average by that much. Without this, a group 20 times slower got 8 % less weight.
        for fragment in fragments:
            counts[fragment.first_env] -= 0.5 * fragment.num_steps
        shares = dict(zip(counts, equal_shares(np.array([*counts.values()])).tolist(), strict=True))
        return [shares[fragment.first_env] for fragment in fragments]

    def normalized(self, values: Array, weight: Array) -> Array:
        """Return a batch's values, normalized by the stream's mean and standard deviation.

        Args:
            values: float32, any shape.
            weight: the weight of each value, float32, same shape.

        Returns:
            Normalized values, float32, same shape.
        """
        exact, weights = values.astype(np.float64), weight.astype(np.float64)
        sums = [weights.sum(), (weights * exact).sum(), (weights * exact * exact).sum()]
        self._moments = _DECAY * self._moments + sums
        mean, square = self._moments[1:] / self._moments[0]
        std = math.sqrt(max(square - mean * mean, 0.0))
        return ((exact - mean) / (std + 1e-8)).astype(np.float32)


def ages(fragments: Sequence[Fragment], version: int) -> Array:
    """Return the versions between the acting policy and `version` at each step, int64, (Σ T,)."""
    return version - np.concatenate(
        [
            np.full(x.num_steps, x.policy_version) if x.versions is None else x.versions
            for x in fragments
        ]
    )
