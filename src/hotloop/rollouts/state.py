"""A rollout's state between two fragments, and what of it a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hotloop.envs import obs_hash
from hotloop.types import Array, RunningEpisode

# Room for the actions of so many steps is made at once.
CHUNK_STEPS = 256


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """Where the environments stand that are stepped side by side by one worker.

    Attributes:
        vector_steps: steps of each of them so far.
        running: number and length of each environment's running episode.
        obs: (N, *obs_shape), what to act on next.
        memory: float32, (N, M), what the policy remembers before it.
        history: the actions of the last steps, in chunks of (L, N, *action_shape), which reach back
            to the start of every running episode; none where episodes can't be replayed.
    """

    vector_steps: int
    running: Sequence[tuple[int, int]]
    obs: Array = field(repr=False)
    memory: Array = field(repr=False)
    history: Sequence[Array] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class RolloutPosition:
    """The counters of a rollout, as JSON holds them.

    Attributes:
        num_transitions: transitions so far, over all environments.
        vector_steps: steps of each environment so far, by worker.
        episodes: of each environment, the number of its running episode and the hash of what it
            observes (`hotloop.envs.obs_hash`); none before the first fragment.
    """

    num_transitions: int = 0
    vector_steps: tuple[int, ...] = ()
    episodes: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class RolloutState:
    """A rollout's state between two fragments: what a checkpoint holds of it.

    Attributes:
        num_transitions: transitions so far, over all environments.
        groups: one for each worker; none before the first fragment.
    """

    num_transitions: int = 0
    groups: Sequence[GroupState] = ()

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint: each running episode's actions, (L, *action_shape), and its memory."""
        arrays: dict[str, Array] = {}
        env = 0
        for group in self.groups:
            actions = np.concatenate(group.history) if group.history else None
            for i, (_, length) in enumerate(group.running):
                arrays[f"actions.{env}"] = (
                    np.empty(0) if actions is None else actions[len(actions) - length :, i]
                )
                if group.memory.size:
                    arrays[f"memory.{env}"] = group.memory[i]
                env += 1
        return arrays

    def position(self) -> RolloutPosition:
        """All else, for a checkpoint."""
        return RolloutPosition(
            num_transitions=self.num_transitions,
            vector_steps=tuple(group.vector_steps for group in self.groups),
            episodes=tuple(
                (episode, obs_hash(group.obs[i]))
                for group in self.groups
                for i, (episode, _) in enumerate(group.running)
            ),
        )


def running_episodes(
    arrays: Mapping[str, Array], episodes: Sequence[tuple[int, str]]
) -> list[RunningEpisode]:
    """The running episodes of environments, from `RolloutState.to_arrays` and a position's."""
    return [
        RunningEpisode(episode, arrays[f"actions.{i}"], obs_hash)
        for i, (episode, obs_hash) in enumerate(episodes)
    ]


def memory_of(arrays: Mapping[str, Array], first_env: int, num_envs: int) -> Array | None:
    """What the policy remembered of environments, (N, M), from `RolloutState.to_arrays`.

    Returns:
        None where it had no memory.
    """
    names = [f"memory.{env}" for env in range(first_env, first_env + num_envs)]
    return np.stack([arrays[name] for name in names]) if names[0] in arrays else None


class History:
    """The actions of the running episodes, which a checkpoint holds."""

    def __init__(self, num_steps: int, like: Array) -> None:
        # Chunks of (L, N, *action_shape); the last one fills up.
        self._chunks: list[Array] = []
        self._used = 0
        self._shape, self._dtype = (max(num_steps, CHUNK_STEPS), *like.shape[1:]), like.dtype

    def begin(self, actions: Array) -> None:
        """Start from the actions of episodes that were begun elsewhere."""
        self._chunks, self._used = [actions], len(actions)

    def resume(
        self, episodes: Sequence[RunningEpisode], running: Sequence[tuple[int, int]]
    ) -> None:
        """Start from the actions of episodes that were replayed, or, of length 0, begun anew."""
        past = np.zeros((max(length for _, length in running), *self._shape[1:]), self._dtype)
        for i, (episode, (_, length)) in enumerate(zip(episodes, running, strict=True)):
            if length:
                past[-length:, i] = episode.actions
        self.begin(past)

    def add(self, actions: Array, running: Sequence[tuple[int, int]]) -> None:
        """Keep the actions of a fragment; what no running episode reaches back to may be dropped.

        Args:
            actions: (T, N, *action_shape).
            running: number and length of each environment's episode.
        """
        if not self._chunks or self._used + len(actions) > len(self._chunks[-1]):
            if self._chunks:
                self._chunks[-1] = self._chunks[-1][: self._used]
            longest = max(length for _, length in running)
            num_kept = sum(map(len, self._chunks)) + len(actions)
            while self._chunks and num_kept - len(self._chunks[0]) >= longest:
                num_kept -= len(self._chunks.pop(0))
            self._chunks.append(np.empty(self._shape, self._dtype))
            self._used = 0
        self._chunks[-1][self._used : self._used + len(actions)] = actions
        self._used += len(actions)

    def parts(self) -> tuple[Array, ...]:
        """All of them; what is added later leaves these alone."""
        if not self._chunks:
            return ()
        return (*self._chunks[:-1], self._chunks[-1][: self._used])
