"""Collection in a worker for several policies in the same games; see `hotloop.rollouts.joint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hotloop.envs.pettingzoo_envs import PettingZooEnvs, resume_views
from hotloop.rollouts.collector import StepObserver
from hotloop.rollouts.follower import Follower
from hotloop.rollouts.processes.channel import Channel
from hotloop.rollouts.processes.local_collector import LocalCollector
from hotloop.rollouts.processes.messages import Setup, WorkerResumed
from hotloop.rollouts.processes.row_counters import RowCounters
from hotloop.rollouts.processes.shared_memory import DONE, GRANTS, map_memory
from hotloop.rollouts.state import running_episodes, saved_hidden_states
from hotloop.types import Array, RunningEpisode


class FollowingRows:
    """The rows of a policy in a worker that acts within the steps of the previous one.

    Args:
        name: Name of the policy.
        view: Its agents in the worker's games.
        setup: Collection settings and first row.
        arrays: Actions and hidden states of the episodes to resume.
        fd: Descriptor of the policy's shared memory.
        worker: Number of the worker.
        previous: The view of the previous policy.

    Attributes:
        view: The same.
    """

    def __init__(
        self,
        name: str,
        view: PettingZooEnvs,
        setup: Setup,
        arrays: Mapping[str, Array],
        fd: int,
        worker: int,
        previous: PettingZooEnvs,
    ) -> None:
        self.view, self._setup, self._arrays = view, setup, arrays
        shared = map_memory(fd, view, setup)
        self._memory = shared.workers[worker]
        self._local = LocalCollector(view, setup, shared, worker)
        self._rows = RowCounters(self._memory, view, [], setup.first_row)
        self._follower = Follower(name, self._local.collector, self._memory.slots[0])
        self._follower.observer = self._rows
        previous.others = self._follower

    def episodes(self) -> list[RunningEpisode]:
        """Return the running episodes to resume."""
        assert self._setup.resume is not None
        return running_episodes(self._arrays, self._setup.resume)

    def resume(self) -> tuple[list[int], Array]:
        """Restore the episodes, which the games have replayed; see `PartCollector.resume`."""
        memory = saved_hidden_states(self._arrays, 0, self.view.num_envs)
        restarted_envs = self._local.resume(self.episodes(), memory)
        self._rows.record_max_episode()
        assert self._local.obs is not None
        return restarted_envs, self._local.obs

    def begin(self) -> None:
        """Record the first episodes. The first policy has reset the games."""
        self._rows.record_max_episode()

    def prepare(self, slot_index: int, start: int, stop: int) -> None:
        """Prepare for the next rows, which the previous policy's steps collect."""
        self._local.load(self._memory.words[GRANTS + slot_index])
        self._local.write_versions(slot_index, start, stop)
        self._rows.begin_rows(slot_index, start, stop)
        self._follower.slot, self._follower.next_row = self._memory.slots[slot_index], start

    def evaluate(self, slot_index: int, start: int, stop: int) -> None:
        """Evaluate rows of a slot, so that the learner may take them."""
        words = self._memory.words
        self._local.load(words[GRANTS + slot_index])
        self._local.evaluate(slot_index, start, stop)
        words[DONE] = self._rows.row


class JointCollector:
    """Collects the rows of several policies; see `LocalCollector`.

    Args:
        leader: Collector of the first policy, whose limits are those of all.
        view: Its agents.
        followers: The other policies.
        channel: Channel to the learner.
    """

    requested_version = LocalCollector.requested_version
    chunk_s = LocalCollector.chunk_s

    def __init__(
        self,
        leader: LocalCollector,
        view: PettingZooEnvs,
        followers: Sequence[FollowingRows],
        channel: Channel,
    ) -> None:
        self._leader, self._view, self._followers = leader, view, followers
        self._channel = channel
        self.load, self.load_newest = leader.load, leader.load_newest

    @property
    def obs(self) -> Array | None:
        """See `LocalCollector.obs`."""
        return self._leader.obs

    def begin(self, *, first_episode: int | None = None) -> None:
        """See `PolicyInputs.begin`."""
        self._leader.begin(first_episode=first_episode)
        for follower in self._followers:
            follower.begin()

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        memory: Array | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """See `PolicyInputs.resume`."""
        views = [self._view, *(follower.view for follower in self._followers)]
        rows = [episodes, *(follower.episodes() for follower in self._followers)]
        resume_views(views, rows, on_step)
        for number, follower in enumerate(self._followers, 1):
            restarted_envs, obs = follower.resume()
            message = WorkerResumed(restarted_envs=restarted_envs, policy=number)
            self._channel.send(message, arrays={"obs": obs})
        return self._leader.resume(episodes, memory)

    def collect(self, slot_index: int, start: int, stop: int, observer: StepObserver) -> None:
        """See `LocalCollector.collect`."""
        for follower in self._followers:
            follower.prepare(slot_index, start, stop)
        self._leader.collect(slot_index, start, stop, observer)

    def evaluate(self, slot_index: int, start: int, stop: int) -> None:
        """See `LocalCollector.evaluate`. The first policy is last: then all have been evaluated."""
        for follower in self._followers:
            follower.evaluate(slot_index, start, stop)
        self._leader.evaluate(slot_index, start, stop)
