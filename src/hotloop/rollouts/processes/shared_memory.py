"""The memory that the learner shares with its workers, and the counters in it.

All processes map one memory file: counters and two slots for each worker, and two copies of the
published weights. There are no locks, which a killed process could hold. Each word has one writer,
and is updated after the data to which it refers.
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

from hotloop.base.memory import require_memory
from hotloop.envs import ActionSpec, ObsSpec, Spaces, VectorEnv
from hotloop.envs.episode_metrics import MAX_METRICS, MAX_NAME_BYTES
from hotloop.errors import ConfigError
from hotloop.policies import Network, ObsScale, PolicySnapshot
from hotloop.rollouts.collector import NetworkSizes, Slot
from hotloop.rollouts.processes.messages import Setup
from hotloop.rollouts.schedules import NUM_AHEAD
from hotloop.rollouts.worker_group import EPISODE_DTYPE
from hotloop.types import PER_STEP, Array, Fragment

NUM_SLOTS = NUM_AHEAD
"""Fragments of a worker in memory: the learner reads one while the worker writes the other."""

# Words of a worker: each writer, the learner and the worker, has its own cache line. Rows are steps
# of the worker's environments, counted from the start of the run. Row r is in slot (r // T) % 2, at
# step r % T.
LIMIT = 0  # written by the learner: first row that must not be begun
GRANTS = 1  # and 2, by the learner: publication to act with, for the fragment in each slot
TAKEN = 3  # by the learner: number of rows that it has taken
BEGUN = 8  # by the worker, like all that follow: number of rows begun
STEPPED = 9  # number of rows stepped
DONE = 10  # number of rows finished, evaluation included
STARTED = 11  # start time of the current step or reset in ns; 0: there is none
WAITING = 12  # whether the worker waits for a new limit
EPISODE = 13  # maximum number of the running episodes
ACTING = 14  # policy version of the rows in progress; −1: there are none
EVALUATING = 15  # whether the worker evaluates rows
_NUM_WORDS = 16
NO_WAKE_TARGET = 2**62

# Kinds of requests to the inference process. A worker has one request of each kind at a time.
EVALUATION = 2  # kinds 0 and 1 request actions for a half of the environments
_NUM_REQUEST_KINDS = 3
# Words of a request, written by the worker, the serial last.
SERIAL = 0  # serial of the request, repeated in its answer
FIRST = 1  # row of the observations to act on, or first row to evaluate
STOP = 2  # row after the last one
FIRST_ENV = 3  # first environment of the half, 0 … N − 1
STOP_ENV = 4  # environment after the last one of the half
PUBLICATION = 5  # publication to act with; −1: the newest
# Words of an answer beside `SERIAL`, written by the inference process.
VERSION = 1  # version of the acting policy
NEWEST = -1


@dataclass(frozen=True, kw_only=True)
class NetworkOutline:
    """The sizes of a network's outputs and parameters, without the network; see `NetworkSizes`."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    head_size: int
    memory_size: int
    has_value: bool
    shapes: Mapping[str, tuple[int, ...]]

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `NetworkSizes`."""
        return self.shapes

    @staticmethod
    def to_json(network: Network) -> dict[str, Any]:
        """Return the sizes of a network, without its spaces."""
        shapes = {name: list(shape) for name, shape in network.parameter_shapes().items()}
        names = ("head_size", "memory_size", "has_value")
        return {"shapes": shapes, **{name: getattr(network, name) for name in names}}

    @classmethod
    def from_json(cls, spaces: Spaces, fields: Mapping[str, Any]) -> NetworkOutline:
        """Return the outline for the spaces and the result of `to_json`."""
        shapes = {name: tuple(shape) for name, shape in fields["shapes"].items()}
        return cls(
            obs_spec=spaces.obs_spec,
            action_spec=spaces.action_spec,
            **{**fields, "shapes": shapes},
        )


class Arena:
    """Allocates arrays in one memory, at the same offsets for the same sequence of calls.

    Args:
        memory: The memory. None: only count the bytes.
    """

    def __init__(self, memory: mmap.mmap | None) -> None:
        self._memory = memory
        self.size_bytes = 0

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return the next array, which is zero unless some process has written to it."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        start = self.size_bytes
        self.size_bytes += -(-size // 64) * 64
        if self._memory is None:  # one element, broadcast
            return np.broadcast_to(np.zeros((), dtype), shape)
        return np.ndarray(shape, dtype, self._memory, start)


class WeightsBuffer:
    """The published policy in two buffers, so that a reader and the next write do not collide."""

    def __init__(self, arena: Arena, network: NetworkSizes) -> None:
        # Slices of the parameters, computed once: `np.prod` takes 3 µs.
        self._param_slices: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        size = 0
        for name, shape in network.parameter_shapes().items():
            self._param_slices[name] = size, size + math.prod(shape), shape
            size += math.prod(shape)
        self._obs_shape = network.obs_spec.shape
        self.words = arena.zeros((8,), np.int64)  # number of the newest publication
        # Publication in each buffer, −1 during a write; its version; whether it has a scale.
        self._headers = arena.zeros((2, 8), np.int64)
        self._size = size
        self._params = arena.zeros((2, size), np.float32)
        self._scales = arena.zeros((2, 2, *self._obs_shape), np.float32)
        self._clips = arena.zeros((2,), np.float64)

    @property
    def newest(self) -> int:
        """Number of the newest publication."""
        return int(self.words[0])

    @property
    def newest_version(self) -> int:
        """Policy version of the newest publication."""
        while True:
            newest = self.newest
            version = int(self._headers[newest % 2][1])
            if self.newest == newest:  # otherwise it may be overwritten
                return version

    def write(self, snapshot: PolicySnapshot) -> None:
        """Publish a snapshot into the older buffer."""
        number = self.newest + 1
        buffer_index = number % 2
        header = self._headers[buffer_index]
        header[0] = -1
        params = self._params[buffer_index]
        for name, (start, stop, _) in self._param_slices.items():
            params[start:stop] = snapshot.params[name].reshape(-1)
        scale = snapshot.obs_scale
        header[2] = scale is not None
        if scale is not None:
            self._scales[buffer_index, 0], self._scales[buffer_index, 1] = scale.mean, scale.std
            self._clips[buffer_index] = scale.clip
        header[1] = snapshot.version
        header[0] = number
        self.words[0] = number

    def read(self, number: int) -> tuple[int, PolicySnapshot]:
        """Return a copy of a publication, or of a newer one if it has been overwritten."""
        flat = np.empty(self._size, np.float32)
        number, version, scale = self.read_into(flat, number)
        params = {
            name: flat[start:stop].reshape(shape)
            for name, (start, stop, shape) in self._param_slices.items()
        }
        return number, PolicySnapshot(version, params, scale)

    def read_into(self, flat: Array, number: int) -> tuple[int, int, ObsScale | None]:
        """Read like `read`, with the parameters written into an earlier snapshot.

        Args:
            flat: Concatenated parameters of that snapshot, float32, of which its arrays are views.
            number: Number of the publication.

        Returns:
            The number of the publication that was read, its version and its scale.
        """
        while True:
            buffer_index = number % 2
            header = self._headers[buffer_index]
            if header[0] == number:
                np.copyto(flat, self._params[buffer_index])
                version, has_scale = int(header[1]), bool(header[2])
                mean, std = self._scales[buffer_index].copy()
                clip = float(self._clips[buffer_index])
                if header[0] == number:
                    break
            number = self.newest
        return number, version, ObsScale(mean, std, clip) if has_scale else None


class WorkerMemory:
    """The memory of one worker.

    Attributes:
        words: Counters, int64; see the constants above. A memoryview is 4 × as fast as an array.
        slots: The two slots.
        versions: Versions of the acting policy, int64, (T,) for each slot.
        episodes: Episode records, (T, N) of `EPISODE_DTYPE` for each slot.
        infos: Logged numbers of episodes, float64, (T, N, K) for each slot, in the order of
            `info_names`. NaN: missing. Only rows that end an episode are written and read.
        episode_starts: See `PolicyInputs`.
        info_names: Names of these numbers in the order of their first occurrence, bytes, (K,).
            Empty: unused.
    """

    def __init__(
        self, arena: Arena, network: NetworkSizes, num_steps: int, num_envs: int, first_env: int
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
            arena.zeros((num_steps, num_envs, MAX_METRICS), np.float64) for _ in range(NUM_SLOTS)
        ]
        self.info_names = arena.zeros((MAX_METRICS,), f"S{MAX_NAME_BYTES}")
        self.episode_starts = arena.zeros((num_envs,), np.int64)
        self._columns = [
            (*(getattr(slot.fragment, name) for name in PER_STEP), versions, episodes)
            for slot, versions, episodes in zip(
                self.slots, self.versions, self.episodes, strict=True
            )
        ]

    def slot_and_step(self, row: int) -> tuple[int, int]:
        """Return the slot and the step of a row."""
        return (row // self.num_steps) % NUM_SLOTS, row % self.num_steps

    def write_info(self, row: int, i: int, info: Mapping[str, float]) -> None:
        """Write the logged numbers of an episode that ended in a row."""
        slot_index, t = self.slot_and_step(row)
        values = self.infos[slot_index][t, i]
        values.fill(np.nan)
        names = self.info_names.tolist()
        for name, value in info.items():
            encoded = name.encode()
            if encoded not in names:
                free_index = names.index(b"") if b"" in names else -1
                if free_index < 0:  # earlier processes have used all columns
                    continue
                self.info_names[free_index] = names[free_index] = encoded
            values[names.index(encoded)] = value

    def read_info(self, row: int, i: int) -> dict[str, float]:
        """Return the logged numbers by name. The row must not be released yet."""
        slot_index, t = self.slot_and_step(row)
        values, names = self.infos[slot_index][t, i].tolist(), self.info_names.tolist()
        return {
            name.decode(): value
            for name, value in zip(names, values, strict=True)
            if name and value == value
        }

    def copy(self, start: int, stop: int) -> tuple[Fragment, Array]:
        """Copy rows `start` … `stop` − 1, which must fit into both slots.

        Returns:
            The fragment with its `versions`, and the rows' `episodes`.
        """
        slot_index, t = self.slot_and_step(start)
        end = t + stop - start
        if end <= self.num_steps:
            columns = [column[t:end].copy() for column in self._columns[slot_index]]
        else:
            chunks: list[list[Array]] = []
            row = start
            while row < stop:
                slot_index, t = self.slot_and_step(row)
                end = min(self.num_steps, t + stop - row)
                chunks.append([column[t:end] for column in self._columns[slot_index]])
                row += end - t
            columns = [np.concatenate(parts) for parts in zip(*chunks, strict=True)]
        after = self.slots[slot_index].fragment.after(end)
        fields: dict[str, Any] = dict(zip(PER_STEP, columns[:-2], strict=True))
        fields |= {name: array.copy() for name, array in after.items()}
        versions, episodes = columns[-2:]
        fragment = Fragment(
            **fields,
            policy_version=int(versions.min()),
            first_env=self._first_env,
            versions=versions,
        )
        return fragment, episodes


class SharedMemory:
    """The whole shared memory, with the same layout in every process.

    Args:
        fd: Descriptor of the memory file. −1: none, to compute the size.
        network: Network that determines the sizes of weights and outputs.
        num_steps: T, rows of a slot.
        num_workers: W.
        num_envs: Environments of each worker.

    Attributes:
        total_limit: First row over all workers that must not be begun, int64, (1,); for `variable`.
        wake_target: Finished rows for which the learner waits, int64, (1,), or `NO_WAKE_TARGET`.
        weights: The published policy.
        workers: Memory of each worker.
        words: Counters of each worker.
        requests: Requests to the inference process, int64, (W, 3, 8).
        answers: Answers to them, int64, (W, 3, 8).
        num_answers: Number of answers by all inference processes of this run, int64, (1,).
    """

    def __init__(
        self, fd: int, network: NetworkSizes, *, num_steps: int, num_workers: int, num_envs: int
    ) -> None:
        arena = Arena(None if fd < 0 else mmap.mmap(fd, 0))
        self.total_limit = arena.zeros((1,), np.int64).data
        self.wake_target = arena.zeros((1,), np.int64).data
        self.weights = WeightsBuffer(arena, network)
        self.workers = [
            WorkerMemory(arena, network, num_steps, num_envs, worker * num_envs)
            for worker in range(num_workers)
        ]
        self.words = [memory.words for memory in self.workers]
        shape = (num_workers, _NUM_REQUEST_KINDS, 8)
        self.requests, self.answers = arena.zeros(shape, np.int64), arena.zeros(shape, np.int64)
        self.num_answers = arena.zeros((1,), np.int64).data
        self.size_bytes = arena.size_bytes

    def rows_allowed(self, worker: int, *, has_total_limit: bool) -> int:
        """Return how many rows a worker may begin now.

        Args:
            worker: Number of the worker.
            has_total_limit: Whether `total_limit` applies.
        """
        words = self.words[worker]
        num_rows = words[LIMIT] - words[STEPPED]
        if has_total_limit:
            num_left = self.total_limit[0] - sum([w[STEPPED] for w in self.words])
            share = -(-num_left // len(self.words))  # the other workers take rows too
            if words[STEPPED] == words[TAKEN]:
                share = max(share, 1)  # the learner needs at least one row of each worker
            num_rows = min(num_rows, share)
        return num_rows


def map_memory(fd: int, envs: VectorEnv, setup: Setup) -> SharedMemory:
    """Map the shared memory of a descriptor, and close the descriptor."""
    outputs = NetworkOutline.from_json(envs, setup.outputs)
    shared = SharedMemory(
        fd,
        outputs,
        num_steps=setup.num_steps,
        num_workers=setup.num_workers,
        num_envs=envs.num_envs,
    )
    os.close(fd)
    return shared


def create_shared_memory(network: NetworkSizes, **sizes: Any) -> tuple[int, SharedMemory]:
    """Create a memory file of the right size, and return its descriptor and its contents.

    The file has no name, and is freed with the last process that has it open.

    Raises:
        ConfigError: There is not enough memory.
    """
    size_bytes = SharedMemory(-1, network, **sizes).size_bytes
    advice = "use fewer workers or environments, or shorter fragments (`num_steps`)"
    if network.memory_size:
        advice += ", or a smaller `memory`"
    contents = f"the fragments of {sizes['num_workers']} workers"
    net_bytes = SharedMemory(-1, network, num_steps=1, num_workers=1, num_envs=1).size_bytes
    if net_bytes > max(size_bytes // 2, 2**20):  # otherwise smaller weights would not help
        contents = f"{contents} and the weights of the network, {net_bytes / 2**20:,.0f} MiB of it,"
        advice = "use a smaller network (`hidden_sizes`)"
    require_memory(size_bytes, contents, advice)
    fd = os.memfd_create("hotloop-rollouts", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        shared = SharedMemory(fd, network, **sizes)
        shared.wake_target[0] = NO_WAKE_TARGET
        return fd, shared
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"{size_bytes / 2**20:,.0f} MiB of shared memory can't be allocated ({error}): {advice}"
        ) from error
