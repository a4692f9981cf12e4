"""The published policy, as a process acts by it that does not learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotloop.policies import ActingPolicy, Exploration, Network
from hotloop.rollouts.workers.shared_memory import Weights
from hotloop.timing import span
from hotloop.types import Array


class PublishedPolicy:
    """Acts by one publication after another.

    Args:
        weights: what is published.
        network: what acts.
        exploration: fields of an `Exploration`.

    Attributes:
        policy: acts by the publication that was loaded last.
        number: of that publication.
    """

    def __init__(
        self, weights: Weights, network: Network, exploration: Mapping[str, Any] | None
    ) -> None:
        self._weights = weights
        self.number, snapshot = weights.read(weights.newest)
        # What all of its parameters lie in.
        flat = next(iter(snapshot.params.values())).base
        assert flat is not None
        self._flat: Array = flat
        explores = None
        if exploration is not None:
            fields = {**exploration, "epsilon": tuple(exploration["epsilon"])}
            explores = Exploration(**fields)
        self.policy = ActingPolicy(network, snapshot, exploration=explores)

    def load(self, number: int) -> None:
        """Act by a publication from now on, or by a newer one where it is overwritten already."""
        if number == self.number:
            return
        with span("load_weights", kind="transfer"):
            self.number, version, scale = self._weights.read_into(self._flat, number)
            if scale is None:
                self.policy.refresh(version)
            else:
                self.policy.load(replace(self.policy.snapshot, version=version, obs_scale=scale))
