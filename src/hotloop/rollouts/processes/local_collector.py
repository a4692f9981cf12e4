"""Collection in a worker with its own policy."""

from __future__ import annotations

from hotloop.envs import VectorEnv
from hotloop.policies import network_from_json
from hotloop.rollouts.collector import Collector, StepObserver
from hotloop.rollouts.processes.messages import Setup
from hotloop.rollouts.processes.shared_memory import ACTING, SharedMemory
from hotloop.rollouts.published_policy import PublishedPolicy
from hotloop.types import Array


class LocalCollector:
    """Steps environments with actions from the worker's own copy of the policy.

    `CentralCollector` has the same methods and attributes.

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

    def __init__(self, envs: VectorEnv, setup: Setup, shared: SharedMemory, worker: int) -> None:
        assert setup.network is not None
        self._weights = shared.weights
        self._memory = shared.workers[worker]
        network = network_from_json(dict(setup.network))
        self._published = PublishedPolicy(shared.weights, network, setup.exploration)
        first_env = worker * envs.num_envs
        self._policy = self._published.policy
        self.collector = Collector(envs, self._policy, seed=setup.seed, first_env=first_env)
        self.collector.vector_steps = setup.first_row
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
