"""Collection in a worker with its own policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotloop.envs import VectorEnv
from hotloop.policies import Network
from hotloop.rollouts.collector import Collector, StepObserver
from hotloop.rollouts.processes.shared_memory import ACTING, SharedMemory
from hotloop.rollouts.published_policy import PublishedPolicy
from hotloop.types import Array


class LocalCollector:
    """Steps environments with actions from the worker's own copy of the policy.

    `CentralCollector` has the same methods and attributes.

    Args:
        envs: Environments of the worker.
        network: Network of the policy.
        exploration: How the policy explores, as JSON.
        shared: Shared memory that receives the rows.
        worker: Number of the worker.
        seed: Seed of the action noise.
        first_row: Number of the first row.

    Attributes:
        requested_version: Lower bound on the version of the next row. −1 if its actions are not
            requested yet.
        chunk_s: Target time in seconds for a batch of rows that are evaluated together.
        collector: Collector of the rows.
        load: Function that makes the collector act with the publication of this number.
    """

    requested_version = -1
    # Evaluating every step by itself would cost as much as acting.
    chunk_s = 0.002

    def __init__(
        self,
        envs: VectorEnv,
        network: Network,
        exploration: Mapping[str, Any] | None,
        shared: SharedMemory,
        worker: int,
        *,
        seed: int,
        first_row: int,
    ) -> None:
        self._weights = shared.weights
        self._memory = shared.workers[worker]
        self._published = PublishedPolicy(shared.weights, network, exploration)
        first_env = worker * envs.num_envs
        self._policy = self._published.policy
        self.collector = Collector(envs, self._policy, seed=seed, first_env=first_env)
        self.collector.vector_steps = first_row
        self.begin, self.resume = self.collector.begin, self.collector.resume
        self.load = self._published.load

    @property
    def obs(self) -> Array | None:
        """The next observations to act on, (N, *obs_shape). None before the first reset."""
        return self.collector.obs

    def load_newest(self) -> None:
        """Load the newest publication, and store its version where the learner reads it."""
        while True:
            self.load(self._weights.newest)
            self._memory.words[ACTING] = self._policy.version
            if self._weights.newest == self._published.number:
                return

    def collect(self, slot_index: int, start: int, stop: int, observer: StepObserver) -> None:
        """Fill rows of a slot and their versions; see `Collector.collect`."""
        # Write the version for all rows at once, which saves 2 µs per row.
        self.write_versions(slot_index, start, stop)
        self.collector.collect(self._memory.slots[slot_index], start, stop, observer)

    def write_versions(self, slot_index: int, start: int, stop: int) -> None:
        """Write the policy's version for rows of a slot."""
        self._memory.versions[slot_index][start:stop] = self._policy.version

    def evaluate(self, slot_index: int, start: int, stop: int) -> None:
        """Evaluate rows of a slot; see `Collector.evaluate`."""
        self.collector.evaluate(self._memory.slots[slot_index], start, stop)
