"""Parts of fragments, for transports that send copies of rows instead of sharing memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hotloop.envs import VectorEnv
from hotloop.policies import ActingPolicy
from hotloop.rollouts.collector import Collector, Slot
from hotloop.rollouts.fleet import WorkerRows, WorkerStart
from hotloop.rollouts.follower import Follower
from hotloop.rollouts.state import running_episodes, saved_hidden_states
from hotloop.rollouts.worker_group import EPISODE_DTYPE, record_episodes
from hotloop.types import AFTER_LAST_STEP, PER_STEP, Array, Fragment, RunningEpisode


class FragmentPart(NamedTuple):
    """Rows of a worker, and their episodes.

    Attributes:
        start: Number of the first row.
        fields: Arrays of a `Fragment` by name, not shared with later parts.
        version: Version of the acting policy.
        episodes: Records of the episodes that ended in the part, (T, N) of `EPISODE_DTYPE`.
        infos: Logged numbers of these episodes by last row and environment, 0 … N − 1.
        last_episode: Largest number of an episode that runs after the part.
    """

    start: int
    fields: dict[str, Array]
    version: int
    episodes: Array
    infos: dict[tuple[int, int], Mapping[str, float]]
    last_episode: int

    @property
    def stop(self) -> int:
        """Number after the last row."""
        return self.start + len(self.episodes)


class PartCollector:
    """Collects parts of up to `num_rows` rows; see `Collector`.

    Args:
        envs: Environments of the worker.
        policy: Acting policy.
        failures: Failures of environments that were replaced. The caller empties the list between
            parts.
        num_rows: Maximum number of rows of a part.
        seed: Seed of the action noise.
        first_env: Global index of the first environment.
        start: First row, and the episodes that run at this row.
        on_step_start: Called before the first reset, each step and each replayed step.
    """

    def __init__(
        self,
        envs: VectorEnv,
        policy: ActingPolicy,
        failures: Sequence[object],
        *,
        num_rows: int,
        seed: int,
        first_env: int,
        start: WorkerStart,
        on_step_start: Callable[[], None] = lambda: None,
    ) -> None:
        self._collector = Collector(envs, policy, seed=seed, first_env=first_env)
        self._collector.vector_steps = start.row
        self._start, self.on_step_start = start, on_step_start
        self._envs, self._policy, self._failures = envs, policy, failures
        self._first_env = first_env
        self._slot = Slot.allocate(num_rows, envs.num_envs, policy.network, first_env=first_env)
        self._follower: Follower | None = None

    def follow(self, name: str) -> Follower:
        """Return the collector of these rows for another policy's steps.

        Args:
            name: Name of the policy.
        """
        self._follower = Follower(name, self._collector, self._slot)
        self._follower.observer = self
        return self._follower

    @property
    def next_row(self) -> int:
        """Number of the next row."""
        return self._collector.vector_steps

    def resume(self) -> tuple[list[int], Array] | None:
        """Restore the episodes that run at the first row, or return None if there are none.

        Returns:
            The environments, 0 … N − 1, that could not be restored, and the next observations.

        Raises:
            EnvironmentFailure: An environment's `reset` failed.
        """
        if self._start.resume is None:
            return None
        arrays, collector = self._start.arrays, self._collector
        episodes = self.episodes()
        memory = saved_hidden_states(arrays, 0, self._envs.num_envs)
        self.on_step_start()
        restarted_envs = collector.resume(episodes, memory, self.on_step_start)
        assert collector.obs is not None
        return restarted_envs, collector.obs

    def episodes(self) -> list[RunningEpisode]:
        """Return the running episodes to resume."""
        assert self._start.resume is not None
        return running_episodes(self._start.arrays, self._start.resume)

    def collect(self, num_rows: int) -> None:
        """Collect the rows of a part, after a reset if nothing was resumed; see `Collector`.

        Raises:
            EnvironmentFailure: An environment raised, or returned NaN or a wrong shape.
            NonFiniteError: The policy's outputs were NaN or infinite.
        """
        if not self._collector.has_begun:
            self.on_step_start()
            self._collector.begin(first_episode=self._start.first_episode)
        self.prepare(num_rows)
        self._collector.collect(self._slot, 0, num_rows, self)

    def prepare(self, num_rows: int) -> None:
        """Prepare for the rows of a part, which another policy's steps collect if this follows."""
        self._first_row, self._num_recorded = self.next_row, 0
        self._episodes = np.zeros((num_rows, self._envs.num_envs), EPISODE_DTYPE)
        self._infos: dict[tuple[int, int], Mapping[str, float]] = {}
        if self._follower is not None:
            self._follower.next_row = 0

    def finish(self) -> FragmentPart:
        """Evaluate the rows, and return a copy of them."""
        num_rows = len(self._episodes)
        self._collector.evaluate(self._slot, 0, num_rows)
        rows = self._slot.fragment.rows(0, num_rows)
        return FragmentPart(
            start=self._first_row,
            fields={name: getattr(rows, name).copy() for name in (*PER_STEP, *AFTER_LAST_STEP)},
            version=self._policy.version,
            episodes=self._episodes,
            infos=self._infos,
            # The next step of a vector environment may begin its next episode.
            last_episode=max(self._running_episodes()) + (not self._envs.can_replay),
        )

    def on_step_end(self, t: int) -> None:
        """See `StepObserver`."""
        episodes = self._envs.pop_episodes()
        has_failures = len(self._failures) > self._num_recorded
        if episodes or has_failures:
            self._num_recorded, first_env = len(self._failures), self._first_env
            record_episodes(
                self._episodes[t],
                episodes,
                self._running_episodes(),
                first_env,
                has_failures=has_failures,
            )
            for ep in episodes:
                if ep.info:
                    self._infos[self._first_row + t, ep.env - first_env] = ep.info

    def _running_episodes(self) -> list[int]:
        return [number for number, _ in self._envs.running_episodes()]


class PartQueue:
    """The parts of a worker that have arrived and are not read entirely, in order.

    Args:
        first_env: Global index of the worker's first environment.
    """

    def __init__(self, first_env: int) -> None:
        self._first_env = first_env
        self._parts: deque[FragmentPart] = deque()

    def __len__(self) -> int:
        return len(self._parts)

    def append(self, part: FragmentPart) -> None:
        """Add the next part."""
        self._parts.append(part)

    def version(self, row: int) -> int | None:
        """Return the policy version of a row that was not read, None if it has not arrived."""
        return next((part.version for part in self._parts if row < part.stop), None)

    def read(self, start: int, stop: int) -> WorkerRows:
        """Return rows `start` … `stop` − 1, and forget the parts that were read entirely."""
        parts = [part for part in self._parts if part.start < stop]
        while self._parts and self._parts[0].stop <= stop:
            self._parts.popleft()
        spans = [(max(start, part.start), min(stop, part.stop)) for part in parts]

        def join(arrays: Sequence[Array]) -> Array:
            columns = [
                array[begin - part.start : end - part.start]
                for array, part, (begin, end) in zip(arrays, parts, spans, strict=True)
            ]
            return columns[0] if len(columns) == 1 else np.concatenate(columns)

        fields: dict[str, Any] = {
            name: join([part.fields[name] for part in parts]) for name in PER_STEP
        }
        fields["truncated"] = fields["truncated"].copy()  # the learner marks cuts in it
        last, num_rows = parts[-1], stop - parts[-1].start
        for last_name, name in AFTER_LAST_STEP.items():
            array = last.fields[last_name] if stop == last.stop else last.fields[name][num_rows]
            fields[last_name] = array.copy()  # lives long: a view would keep all rows
        versions = np.repeat(
            [part.version for part in parts], [end - begin for begin, end in spans]
        )
        fragment = Fragment(
            **fields,
            policy_version=int(versions.min()),
            versions=versions,
            first_env=self._first_env,
        )
        infos: dict[tuple[int, int], Mapping[str, float]] = {}
        for part in parts:
            infos |= part.infos
        episodes = join([part.episodes for part in parts])
        return WorkerRows(fragment, episodes, lambda row, i: infos[row, i])
