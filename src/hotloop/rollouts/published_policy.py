"""The published policy in an acting process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotloop.policies import ActingPolicy, Network
from hotloop.policies.exploration import exploration_from_json
from hotloop.rollouts.processes.shared_memory import WeightsBuffer
from hotloop.timing import span
from hotloop.types import Array


class PublishedPolicy:
    """A policy that loads published weights.

    Attributes:
        policy: Acting policy with the loaded weights.
        number: Number of the loaded publication.
    """

    def __init__(
        self, weights: WeightsBuffer, network: Network, exploration: Mapping[str, Any] | None
    ) -> None:
        self._weights = weights
        self.number, snapshot = weights.read(weights.newest)
        # All parameters are views of one array.
        flat_params = next(iter(snapshot.params.values())).base
        assert flat_params is not None
        self._flat_params: Array = flat_params
        self.policy = ActingPolicy(
            network, snapshot, exploration=exploration_from_json(exploration)
        )

    def load(self, number: int) -> None:
        """Load a publication, or a newer one if it was overwritten."""
        if number == self.number:
            return
        with span("load_weights", kind="transfer"):
            self.number, version, scale = self._weights.read_into(self._flat_params, number)
            self.policy.load(replace(self.policy.snapshot, version=version, obs_scale=scale))
