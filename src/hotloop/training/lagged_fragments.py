"""The stage between collecting and `prepare`, for fragments of the newest or of older policies."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotloop.timing import span
from hotloop.training.fragment_streams import FragmentStream, ages
from hotloop.training.policy_reevaluation import PolicyReevaluation, reevaluate
from hotloop.types import Array, Fragment


@dataclass(kw_only=True)
class FreshFragments:
    """Fragments of the newest policy, which need no correction.

    Attributes:
        max_policy_age, drops_too_old: see `CollectionOptions`.
    """

    max_policy_age: int = 1
    drops_too_old: bool = False

    def collect(self, collect: Callable[[], Sequence[Fragment]]) -> Sequence[Fragment]:
        """Return the fragments to learn from next."""
        return collect()

    def reevaluate(self, *args: Any) -> Sequence[PolicyReevaluation]:
        """Return the last argument of `prepare` for each fragment, see `reevaluate`, or nothing."""
        return ()

    def weights(self, fragments: Sequence[Fragment]) -> Sequence[Array]:
        """Return the weights of each fragment's rows, float32, (T, N), or nothing."""
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
            self._pending.append([_copy_fragment(fragment) for fragment in collect()])
        return self._pending.popleft()

    def reevaluate(self, *args: Any) -> Sequence[PolicyReevaluation]:
        """See `FreshFragments`."""
        with span("look_again"):
            return reevaluate(*args)

    def weights(self, fragments: Sequence[Fragment]) -> Sequence[Array]:
        """See `FreshFragments`."""
        if self.stream is None:
            return ()
        weights = zip(fragments, self.stream.weights(fragments), strict=True)
        return [np.full(fragment.reward.shape, weight, np.float32) for fragment, weight in weights]

    def normalize(self, fields: dict[str, Any]) -> None:
        """See `FreshFragments`."""
        if self.stream is not None and self.normalizes:
            fields["advantages"] = self.stream.normalized(fields["advantages"], fields["weight"])

    def metrics(self, fragments: Sequence[Fragment], version: int) -> Mapping[str, float]:
        """See `FreshFragments`."""
        age = ages(fragments, version)
        return {"age_mean": float(age.mean()), "age_max": float(age.max())}


def _copy_fragment(fragment: Fragment) -> Fragment:
    arrays = {
        field.name: value.copy()
        for field in dataclasses.fields(fragment)
        if isinstance(value := getattr(fragment, field.name), np.ndarray)
    }
    return dataclasses.replace(fragment, **arrays)
