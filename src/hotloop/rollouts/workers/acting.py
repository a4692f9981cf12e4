"""Acting for a worker's environments: by the worker itself, unless an inference process does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hotloop.envs import VectorEnv
from hotloop.policies import Network
from hotloop.rollouts.collector import Collector, HalfWatch
from hotloop.rollouts.published import PublishedPolicy
from hotloop.rollouts.workers.shared_memory import ACTING, SharedMemory
from hotloop.types import Array, RunningEpisode


class Acting(Protocol):
    """Steps a worker's environments, with actions of its own or of somebody else.

    Attributes:
        chunk_s: how long a batch of rows that are evaluated together should take.
    """

    chunk_s: float

    @property
    def obs(self) -> Array | None:
        """What to act on next, (N, *obs_shape); None before the first reset."""
        ...

    @property
    def ahead(self) -> int:
        """The version that the next row is made with at least, where it was asked for; else −1."""
        ...

    def begin(self, *, first_episode: int | None = None) -> None:
        """See `Collector.begin`."""
        ...

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        memory: Array | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """See `Collector.resume`."""
        ...

    def load(self, number: int) -> None:
        """Act by a publication from now on."""
        ...

    def load_newest(self) -> None:
        """Act by what was published last, and let the learner know before it publishes more."""
        ...

    def collect(self, which: int, start: int, stop: int, watch: HalfWatch) -> None:
        """See `Collector.collect`, of a slot; the rows' versions are written too."""
        ...

    def evaluate(self, which: int, start: int, stop: int) -> None:
        """See `Collector.evaluate`, of a slot."""
        ...


class OwnActing:
    """Acts by the worker's own copy of the policy; see `Acting`.

    Args:
        envs: the worker's.
        network: what acts.
        exploration: fields of an `Exploration`.
        shared: where rows are written.
        worker: number of the worker.
        seed: of the noise.
        first_row: to begin with.
    """

    ahead = -1
    # A step's own evaluation would cost as much as acting.
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
        self._collector = Collector(envs, self._policy, seed=seed, first_env=first_env)
        self._collector.vector_steps = first_row
        self.begin, self.resume = self._collector.begin, self._collector.resume
        self.load = self._published.load

    @property
    def obs(self) -> Array | None:
        """See `Acting`."""
        return self._collector.obs

    def load_newest(self) -> None:
        """See `Acting`."""
        while True:
            self.load(self._weights.newest)
            self._memory.words[ACTING] = self._policy.version
            if self._weights.newest == self._published.number:
                return

    def collect(self, which: int, start: int, stop: int, watch: HalfWatch) -> None:
        """See `Acting`."""
        # Said of all rows beforehand: 2 µs less for each.
        self._memory.versions[which][start:stop] = self._policy.version
        self._collector.collect(self._memory.slots[which], start, stop, watch)

    def evaluate(self, which: int, start: int, stop: int) -> None:
        """See `Acting`."""
        self._collector.evaluate(self._memory.slots[which], start, stop)
