"""The memory that a learner shares with its workers, and the words that they tell each other there.

One memory file, inherited by every worker: a row of counters and two slots for each of them, and
the published weights twice. Nobody takes a lock that could be held by who is killed: each word has
one writer, and what a counter promises was written before it.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hotloop.envs import ActionSpec, ObsSpec, Spaces
from hotloop.envs.numbers import MOST_NUMBERS, NAME_BYTES
from hotloop.errors import ConfigError
from hotloop.policies import Network, ObsScale, PolicySnapshot
from hotloop.rollouts.collector import Outline, Slot
from hotloop.system.memory import need_memory
from hotloop.types import PER_STEP, Array, Fragment

NUM_SLOTS = 2
"""Fragments that a worker has room for: one is read while it writes the other."""

# Words of a worker, a cache line for each writer. Rows are steps of its environments, counted from
# the start of the run; row r stands in slot (r // T) % 2, at r % T.
LIMIT = 0  # the learner's: rows from this one on must not be begun
GRANTS = 1  # and 2, the learner's: the publication to collect with, by the slot of the fragment
TAKEN = 3  # the learner's: rows before this one were taken
BEGUN = 8  # the worker's: rows that its environments were asked for
STEPPED = 9  # rows that they answered
DONE = 10  # rows that may be taken, evaluated too
STARTED = 11  # when the step or the reset in progress began, in ns; 0: none is
WAITING = 12  # whether it waits for a new limit
EPISODE = 13  # the greatest number of its environments' running episodes
ACTING = 14  # the version that it makes rows with; −1: it makes none
EVALUATING = 15  # whether it evaluates rows
_NUM_WORDS = 16
NOBODY_WAITS = 2**62

# Lines of a worker whose actions the inference process chooses: each is for a request at a time.
HALVES = 2  # the first two are of its environments' halves
EVALUATION = 2
_NUM_LINES = 3
# Words of a request, the worker's; the serial is written last.
SERIAL = 0  # of a request, and of the answer to it
FIRST = 1  # row of the observations to act on; of evaluation: the first of the rows
STOP = 2  # the row after the last one
FIRST_ENV = 3  # of the half, 0 … N − 1, and the one after its last
STOP_ENV = 4
PUBLICATION = 5  # to act by; −1: the newest
# And of an answer, the inference process's, beside `SERIAL`.
VERSION = 1  # of the policy that acted
NEWEST = -1

# What a row says of an episode that ended in it; no length: none did. And, where an episode ended
# or an environment failed in it, the number of the episode that runs after it.
EPISODE_DTYPE = np.dtype(
    [
        *(("undiscounted_return", "f8"), ("length", "i8"), ("episode", "i8"), ("following", "i8")),
        ("num_infos", "i8"),  # the environment's own numbers of it, which stand beside
    ]
)


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """How much a network gives, for who keeps it and needs not have the network; see `Outline`."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    head_size: int
    memory_size: int
    has_value: bool
    shapes: Mapping[str, tuple[int, ...]]

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `Outline`."""
        return self.shapes

    @staticmethod
    def to_json(network: Network) -> dict[str, Any]:
        """Of a network, but for its spaces."""
        shapes = {name: list(shape) for name, shape in network.parameter_shapes().items()}
        names = ("head_size", "memory_size", "has_value")
        return {"shapes": shapes, **{name: getattr(network, name) for name in names}}

    @classmethod
    def from_json(cls, spaces: Spaces, fields: Mapping[str, Any]) -> Outputs:
        """Of what `to_json` gave, and the spaces."""
        shapes = {name: tuple(shape) for name, shape in fields["shapes"].items()}
        return cls(
            obs_spec=spaces.obs_spec,
            action_spec=spaces.action_spec,
            **{**fields, "shapes": shapes},
        )


class Arena:
    """Hands out arrays in one piece of memory, in the same places to whoever asks for the same.

    Args:
        memory: None: nothing is kept, only counted.
    """

    def __init__(self, memory: mmap.mmap | None) -> None:
        self._memory = memory
        self.size = 0

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """The next array; zeros, if nobody has written to it."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        start = self.size
        self.size += -(-size // 64) * 64
        if self._memory is None:  # one number, seen everywhere
            return np.broadcast_to(np.zeros((), dtype), shape)
        return np.ndarray(shape, dtype, self._memory, start)


class Weights:
    """The published policy, twice: who reads the one is not disturbed by who writes the next."""

    def __init__(self, arena: Arena, network: Outline) -> None:
        # Where each parameter stands, worked out once: `np.prod` takes 3 µs.
        self._places: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        size = 0
        for name, shape in network.parameter_shapes().items():
            self._places[name] = size, size + math.prod(shape), shape
            size += math.prod(shape)
        self._obs_shape = network.obs_spec.shape
        self.words = arena.zeros((8,), np.int64)  # the number of the newest publication
        # Number of the publication that each holds, −1 while it is written; version; has a scale.
        self._heads = arena.zeros((2, 8), np.int64)
        self._size = size
        self._params = arena.zeros((2, size), np.float32)
        self._scales = arena.zeros((2, 2, *self._obs_shape), np.float32)
        self._clips = arena.zeros((2,), np.float64)

    @property
    def newest(self) -> int:
        """The number of the newest publication."""
        return int(self.words[0])

    @property
    def newest_version(self) -> int:
        """The version of the newest publication."""
        while True:
            newest = self.newest
            version = int(self._heads[newest % 2][1])
            if self.newest == newest:  # else it may be overwritten
                return version

    def write(self, snapshot: PolicySnapshot) -> None:
        """Publish; what was published before the last one is overwritten."""
        number = self.newest + 1
        which = number % 2
        head = self._heads[which]
        head[0] = -1
        params = self._params[which]
        for name, (start, stop, _) in self._places.items():
            params[start:stop] = snapshot.params[name].reshape(-1)
        scale = snapshot.obs_scale
        head[2] = scale is not None
        if scale is not None:
            self._scales[which, 0], self._scales[which, 1] = scale.mean, scale.std
            self._clips[which] = scale.clip
        head[1] = snapshot.version
        head[0] = number
        self.words[0] = number

    def read(self, number: int) -> tuple[int, PolicySnapshot]:
        """A copy of a publication, or of a newer one where it is overwritten already."""
        flat = np.empty(self._size, np.float32)
        number, version, scale = self.read_into(flat, number)
        named = {
            name: flat[start:stop].reshape(shape)
            for name, (start, stop, shape) in self._places.items()
        }
        return number, PolicySnapshot(version, named, scale)

    def read_into(self, flat: Array, number: int) -> tuple[int, int, ObsScale | None]:
        """The same, its parameters into the memory of a snapshot that was read before.

        Args:
            flat: float32, all parameters in a row: what those of that snapshot are views of.
            number: of the publication.

        Returns:
            The number that was read, its version and its scale.
        """
        while True:
            which = number % 2
            head = self._heads[which]
            if head[0] == number:
                np.copyto(flat, self._params[which])
                version, has_scale = int(head[1]), bool(head[2])
                mean, std = self._scales[which].copy()
                clip = float(self._clips[which])
                if head[0] == number:
                    break
            number = self.newest
        return number, version, ObsScale(mean, std, clip) if has_scale else None


class WorkerMemory:
    """What one worker and the learner share.

    Attributes:
        words: int64, see the names above; as a memoryview, four times as fast as an array.
        slots: two.
        versions: int64, (T,) for each slot: of the policy that acted.
        episodes: `EPISODE_DTYPE`, (T, N) for each slot.
        infos: float64, (T, N, K) for each slot, the environment's own numbers of episodes in the
            order of their names, NaN: none. Only what ends an episode is written and read.
        info_names: bytes, (K,), the names of these numbers as they came up; empty: not yet.
    """

    def __init__(
        self, arena: Arena, network: Outline, num_steps: int, num_envs: int, first_env: int
    ) -> None:
        self.num_steps = num_steps
        self._first_env = first_env
        self.words = arena.zeros((_NUM_WORDS,), np.int64).data
        self.slots = [
            Slot.allocate(num_steps, num_envs, network, first_env=first_env, zeros=arena.zeros)
            for _ in range(NUM_SLOTS)
        ]
        self.versions = [arena.zeros((num_steps,), np.int64) for _ in range(NUM_SLOTS)]
        self.episodes = [
            arena.zeros((num_steps, num_envs), EPISODE_DTYPE) for _ in range(NUM_SLOTS)
        ]
        self.infos = [
            arena.zeros((num_steps, num_envs, MOST_NUMBERS), np.float64) for _ in range(NUM_SLOTS)
        ]
        self.info_names = arena.zeros((MOST_NUMBERS,), f"S{NAME_BYTES}")
        self._columns = [
            (*(getattr(slot.fragment, name) for name in PER_STEP), versions, episodes)
            for slot, versions, episodes in zip(
                self.slots, self.versions, self.episodes, strict=True
            )
        ]

    def place(self, row: int) -> tuple[int, int]:
        """Slot and step of a row."""
        return (row // self.num_steps) % NUM_SLOTS, row % self.num_steps

    def write_info(self, row: int, i: int, info: Mapping[str, float]) -> None:
        """Note an environment's numbers of its episode that ended in a row."""
        which, t = self.place(row)
        numbers = self.infos[which][t, i]
        numbers.fill(np.nan)
        names = self.info_names.tolist()
        for name, value in info.items():
            encoded = name.encode()
            if encoded not in names:
                free = names.index(b"") if b"" in names else -1
                if free < 0:  # those that a process before this one has met
                    continue
                self.info_names[free] = names[free] = encoded
            numbers[names.index(encoded)] = value

    def read_info(self, row: int, i: int) -> dict[str, float]:
        """The same, by name; before the row's place is given free."""
        which, t = self.place(row)
        numbers, names = self.infos[which][t, i].tolist(), self.info_names.tolist()
        return {
            name.decode(): value
            for name, value in zip(names, numbers, strict=True)
            if name and value == value
        }

    def copy(self, start: int, stop: int) -> tuple[Fragment, Array, Array]:
        """Rows `start` … `stop` − 1, at most as many as both slots hold.

        Returns:
            The fragment; its rows' `versions`; what is noted of them in `episodes`.
        """
        parts: list[list[Array]] = []
        row = start
        while True:
            which, t = self.place(row)
            end = min(self.num_steps, t + stop - row)
            parts.append([column[t:end] for column in self._columns[which]])
            row += end - t
            if row >= stop:
                break
        if len(parts) == 1:
            columns = [column.copy() for column in parts[0]]
        else:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        last = self.slots[which].fragment
        last_obs, last_memory = last.last_obs, last.last_memory
        if end < self.num_steps:
            last_obs, last_memory = last.obs[end], last.memory[end]
        fields: dict[str, Any] = dict(zip(PER_STEP, columns[:-2], strict=True))
        versions, episodes = columns[-2:]
        fragment = Fragment(
            **fields,
            last_obs=last_obs.copy(),
            last_memory=last_memory.copy(),
            policy_version=int(versions.min()),
            first_env=self._first_env,
            versions=versions,
        )
        return fragment, versions, episodes


class SharedMemory:
    """All that is shared, laid out the same way in every process.

    Attributes:
        total_limit: int64, (1,), see above, of the schedule that shares out a total.
        wanted: int64, (1,), of the schedule that takes what there is.
        weights: the published policy.
        workers: each worker's part.
        words: of each worker.
        requests: int64, (W, 3, 8): what each worker's lines ask the inference process for.
        answers: int64, (W, 3, 8): what it has answered.
        progress: int64, (1,): answers of the inference process, all of this run's ones together.

    Args:
        fd: the memory file; −1: none, to learn how large it must be.
        network: whose weights and outputs there must be room for.
        num_steps: T, rows of a slot.
        num_workers: W.
        num_envs: environments of each worker.
    """

    def __init__(
        self, fd: int, network: Outline, *, num_steps: int, num_workers: int, num_envs: int
    ) -> None:
        arena = Arena(None if fd < 0 else mmap.mmap(fd, 0))
        # Rows of all workers together: from this one on none must be begun.
        self.total_limit = arena.zeros((1,), np.int64).data
        # And so many must be done for the learner to go on; where it doesn't wait, `NOBODY_WAITS`.
        self.wanted = arena.zeros((1,), np.int64).data
        self.weights = Weights(arena, network)
        self.workers = [
            WorkerMemory(arena, network, num_steps, num_envs, worker * num_envs)
            for worker in range(num_workers)
        ]
        self.words = [memory.words for memory in self.workers]
        lines = (num_workers, _NUM_LINES, 8)
        self.requests, self.answers = arena.zeros(lines, np.int64), arena.zeros(lines, np.int64)
        self.progress = arena.zeros((1,), np.int64).data
        self.size = arena.size

    def room(self, worker: int, *, is_shared_out: bool) -> int:
        """Rows that a worker may begin now.

        Args:
            worker: its number.
            is_shared_out: whether `total_limit` holds.
        """
        words = self.words[worker]
        room = words[LIMIT] - words[STEPPED]
        if is_shared_out:
            left = self.total_limit[0] - sum([others[STEPPED] for others in self.words])
            share = -(-left // len(self.words))  # the others take theirs too
            if words[STEPPED] == words[TAKEN]:
                share = max(share, 1)  # a row of every worker is waited for, however late it comes
            room = min(room, share)
        return room


def create(network: Outline, **sizes: Any) -> tuple[int, SharedMemory]:
    """A memory file of the right size, and what is in it.

    It has no name: it is gone with the last process that holds it.

    Raises:
        ConfigError: there is not enough memory.
    """
    size = SharedMemory(-1, network, **sizes).size
    advice = "use fewer workers or environments, or shorter fragments (`num_steps`)"
    if network.memory_size:
        advice += ", or a smaller `memory`"
    what = f"the fragments of {sizes['num_workers']} workers"
    least = SharedMemory(-1, network, num_steps=1, num_workers=1, num_envs=1).size
    if least > max(size // 2, 2**20):  # else it is not the weights
        what = f"{what} and the weights of the network, {least / 2**20:,.0f} MiB of it,"
        advice = "use a smaller network (`hidden_sizes`)"
    need_memory(size, what, advice)
    fd = os.memfd_create("hotloop-rollouts", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size)
        shared = SharedMemory(fd, network, **sizes)
        shared.wanted[0] = NOBODY_WAITS
        return fd, shared
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"{size / 2**20:,.0f} MiB of shared memory can't be had ({error}): {advice}"
        ) from error
