"""The stage between collecting and `prepare`: delays, weights and ages of fragments."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotloop.ops.shares import equal_shares
from hotloop.timing import span
from hotloop.training.policy_reevaluation import PolicyReevaluation, ages, reevaluate
from hotloop.types import Array, Fragment

# The decay of older counts for each batch: an average over about 50 batches.
_DECAY = 1.0 - 1.0 / 50


class FragmentStream:
    """Weights that give each group of environments the same share of a stream of fragments.

    They are the `equal_shares` of a stream. Rows are counted over many batches, since one batch may
    have no row of a slow group. The moments of values are averaged too: with the moments of single
    batches, each group would be scaled differently.
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
        # average by half a batch. Without this, a group 20 times slower got 8 % less weight.
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


@dataclass(kw_only=True)
class FreshFragments:
    """Fragments of the newest policy, which need no correction.

    Attributes:
        collects_ahead: whether the next fragments of a barrier are collected during the updates.
        max_policy_age, drops_too_old: see `CollectionOptions`.
    """

    collects_ahead: bool = False
    max_policy_age: int = 1
    drops_too_old: bool = False

    def collect(self, collect: Callable[[], Sequence[Fragment]]) -> Sequence[Fragment]:
        """Return the fragments to learn from next."""
        return collect()

    def reevaluate(self, *args: Any) -> Sequence[PolicyReevaluation]:
        """Return the last argument of `prepare` for each fragment (`reevaluate`), or nothing."""
        return ()

    def weights(self, fragments: Sequence[Fragment]) -> Sequence[Array]:
        """Return the weights of each fragment's rows, float32, (T, N), or an empty list."""
        return ()

    def normalize(self, fields: dict[str, Any]) -> None:
        """Normalize the advantages of a batch, if that needs more than one batch."""

    def metrics(self, fragments: Sequence[Fragment], version: int) -> Mapping[str, float]:
        """Return metrics of fragments from which a policy of this version learned."""
        return {}


@dataclass(kw_only=True)
class LaggedFragments(FreshFragments):
    """Fragments of older policies, which the newest policy reevaluates.

    Attributes:
        delay: number of batches by which learning is delayed, to study the effect of policy lag.
        stream: weights of the rows of workers that send fragments at any time, or None.
        normalizes: whether to normalize advantages by the statistics of `stream`.
    """

    delay: int = 0
    stream: FragmentStream | None = None
    normalizes: bool = False
    _pending: deque[list[Fragment]] = field(default_factory=deque)

    def collect(self, collect: Callable[[], Sequence[Fragment]]) -> Sequence[Fragment]:
        """Collect fragments, and return those collected `delay` batches ago."""
        if not self.delay:
            return collect()
        while len(self._pending) <= self.delay:
            self._pending.append(copy.deepcopy(list(collect())))
        return self._pending.popleft()

    def reevaluate(self, *args: Any) -> Sequence[PolicyReevaluation]:
        with span("reevaluate"):
            return reevaluate(*args)

    def weights(self, fragments: Sequence[Fragment]) -> Sequence[Array]:
        if self.stream is None:
            return ()
        weights = zip(fragments, self.stream.weights(fragments), strict=True)
        return [np.full(fragment.reward.shape, weight, np.float32) for fragment, weight in weights]

    def normalize(self, fields: dict[str, Any]) -> None:
        if self.stream is not None and self.normalizes:
            fields["advantages"] = self.stream.normalized(fields["advantages"], fields["weight"])

    def metrics(self, fragments: Sequence[Fragment], version: int) -> Mapping[str, float]:
        age = ages(fragments, version)
        return {"age_mean": float(age.mean()), "age_max": float(age.max())}
