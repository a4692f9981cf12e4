"""The state of a rollout between two fragments, and its form in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hotloop.envs import obs_hash
from hotloop.errors import CheckpointError
from hotloop.types import Array, RunningEpisode

# Minimum number of steps in an allocated chunk of actions.
CHUNK_STEPS = 256


@dataclass(frozen=True, kw_only=True)
class GroupState:
    """State of the environments of one worker.

    Attributes:
        vector_steps: Steps of each environment so far.
        running: Number and length of each environment's running episode.
        obs: Next observations to act on, (N, *obs_shape).
        memory: Hidden state before these observations, float32, (N, M).
        history: Actions of the last steps, in chunks of (L, N, *action_shape), back to the start of
            every running episode. Empty if episodes can't be replayed.
    """

    vector_steps: int
    running: Sequence[tuple[int, int]]
    obs: Array = field(repr=False)
    memory: Array = field(repr=False)
    history: Sequence[Array] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class RolloutPosition:
    """The counters of a rollout, for JSON.

    Attributes:
        num_transitions: Transitions so far, over all environments.
        vector_steps: Steps of each environment so far, by worker.
        episodes: Number of each environment's running episode, and the hash of its next
            observation (`hotloop.envs.obs_hash`). Empty before the first fragment.
    """

    num_transitions: int = 0
    vector_steps: tuple[int, ...] = ()
    episodes: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class RolloutState:
    """The state of a rollout between two fragments.

    Attributes:
        num_transitions: Transitions so far, over all environments.
        groups: State of each worker's environments. Empty before the first fragment.
    """

    num_transitions: int = 0
    groups: Sequence[GroupState] = ()

    def to_arrays(self) -> dict[str, Array]:
        """Return each running episode's actions, (L, *action_shape), and hidden state, by name."""
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
        """Return the counters for a checkpoint, everything that `to_arrays` does not contain."""
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
    """Return the running episodes, from `RolloutState.to_arrays` and `RolloutPosition.episodes`.

    Raises:
        CheckpointError: the actions of an episode have no rows.
    """
    for i in range(len(episodes)):
        if not arrays[f"actions.{i}"].ndim:
            raise CheckpointError(
                f"the checkpoint's `actions.{i}` must have a row for each step of the running "
                "episode, got a single number: choose another checkpoint"
            )
    return [
        RunningEpisode(episode, arrays[f"actions.{i}"], obs_hash)
        for i, (episode, obs_hash) in enumerate(episodes)
    ]


def saved_hidden_states(arrays: Mapping[str, Array], first_env: int, num_envs: int) -> Array | None:
    """Return the hidden states of environments, from `RolloutState.to_arrays`.

    Returns:
        float32, (N, M). None if the network was not recurrent.
    """
    names = [f"memory.{env}" for env in range(first_env, first_env + num_envs)]
    return np.stack([arrays[name] for name in names]) if names[0] in arrays else None


class ActionHistory:
    """The actions of the running episodes, for checkpoints.

    Args:
        num_steps: Maximum number of steps added at once.
        example: Actions with the dtype and shape of those to store, (T, N, *action_shape).
    """

    def __init__(self, num_steps: int, example: Array) -> None:
        # Chunks of (L, N, *action_shape). Only the last one has unused steps.
        self._chunks: list[Array] = []
        self._num_used = 0
        self._shape, self._dtype = (max(num_steps, CHUNK_STEPS), *example.shape[1:]), example.dtype

    def begin(self, actions: Array) -> None:
        """Start with the actions of episodes that began elsewhere."""
        self._chunks, self._num_used = [actions], len(actions)

    def resume(
        self, episodes: Sequence[RunningEpisode], running: Sequence[tuple[int, int]]
    ) -> None:
        """Start with the actions of replayed episodes. Those of length 0 were restarted."""
        past = np.zeros((max(length for _, length in running), *self._shape[1:]), self._dtype)
        for i, (episode, (_, length)) in enumerate(zip(episodes, running, strict=True)):
            if length:
                past[-length:, i] = episode.actions
        self.begin(past)

    def add(self, actions: Array, running: Sequence[tuple[int, int]]) -> None:
        """Add the actions of a fragment, and drop chunks before all running episodes.

        Args:
            actions: (T, N, *action_shape).
            running: Number and length of each environment's episode.
        """
        if not self._chunks or self._num_used + len(actions) > len(self._chunks[-1]):
            if self._chunks:
                self._chunks[-1] = self._chunks[-1][: self._num_used]
            longest = max(length for _, length in running)
            num_stored = sum(map(len, self._chunks)) + len(actions)
            while self._chunks and num_stored - len(self._chunks[0]) >= longest:
                num_stored -= len(self._chunks.pop(0))
            self._chunks.append(np.empty(self._shape, self._dtype))
            self._num_used = 0
        self._chunks[-1][self._num_used : self._num_used + len(actions)] = actions
        self._num_used += len(actions)

    def chunks(self) -> tuple[Array, ...]:
        """Return all actions as chunks. Later additions do not change them."""
        if not self._chunks:
            return ()
        return (*self._chunks[:-1], self._chunks[-1][: self._num_used])
