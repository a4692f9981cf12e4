"""A replay buffer on a device: transitions in tensors on the device that learns from them.

The host never waits for the device. It writes new transitions to pinned memory, and the copy of the
next launch transfers them to the ring. Weighted samplers draw on the host, from a `ReplayBuffer`
that stores weights but no observations.

A buffer in host memory uses other, compiled code, since the same operations on tensors of the CPU
take too long: 70 µs of CPU time against 8 for a batch of 256 transitions of 17 numbers, drawn
uniformly, and 7 µs against 4 to store one transition.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from hotloop.base.transfer import ArraySpec, Downloads, Inbox, to_device, to_host, torch_dtype
from hotloop.errors import ConfigError, ReplayError
from hotloop.ops.tensor_draws import DrawTable
from hotloop.replay.storage.device_memory import (
    check_fields,
    need_device_memory,
    needed_bytes,
    stores_frames,
    unnested,
)
from hotloop.replay.storage.device_store import (
    ReplayTensors,
    RowFormat,
    gather_rows,
    row_fields,
    store_new,
)
from hotloop.replay.storage.frame_ring import FrameRing
from hotloop.replay.storage.n_step_windows import NStepWindows
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.replay.buffer import ReplayBuffer
    from hotloop.replay.samplers import Sampler

_EMPTY_OBS = ((1,), np.uint8)


class DeviceReplay:
    """A ring buffer of the last `capacity` transitions, in tensors on a device.

    It stores the same transitions under the same numbers as a `ReplayBuffer` with the same input,
    and uses the same file format.

    Args:
        capacity: number of transitions. In a full buffer, a new transition replaces the oldest.
        fields: shapes and dtypes, as in `ReplayBuffer`, of exactly `obs`, `action`, `reward`
            (float32), `next_obs`, `terminated` and `truncated` (bool). `obs` and `next_obs` may be
            dictionaries of `obs` and `mask`, an action mask.
        device: device of the tensors.
        sampler: None or `Uniform()`: draw on the device. Other samplers draw on the host and need
            Numba.
        seed: seed of the sampling; None: a random one.
        num_envs: number of environments.
        n_step: n, see `ReplayBuffer`.
        gamma: γ of `n_step` and of returns.
        weight_from: see `ReplayBuffer`.
        frame_stacks: `("obs",)`, or `("obs.obs",)` with masks, if its first axis is a stack of
            frames. Each is stored once.
        batch_size: B, transitions per batch.
        max_batches: maximum number of batches drawn at once.
        max_new: maximum number of transitions that wait on the host for the next launch. A further
            one causes an extra copy.
        extra: shape and dtype of further arrays that the caller sends in the inbox, by name.

    Attributes:
        stored: the tensors, at fixed addresses.
        inbox: the arrays of the next copy to the device.
        layout: format of the rows in `stored`.
        num_added: number of transitions stored so far.

    Raises:
        ConfigError: unsupported fields or sampler, or not enough memory.
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Any],
        *,
        device: torch.device | str = "cpu",
        sampler: Sampler | None = None,
        seed: int | None = None,
        num_envs: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        weight_from: Any = None,
        frame_stacks: tuple[str, ...] = (),
        batch_size: int = 256,
        max_batches: int = 1,
        max_new: int = 64,
        extra: Mapping[str, ArraySpec] | None = None,
    ) -> None:
        self.capacity, self.device = capacity, torch.device(device)
        self._host_fields, self.fields = fields, check_fields(fields)
        sampler = _host_sampler(sampler, weight_from)
        self.num_added = 0
        self._size = 0
        self._num_samples = 0
        self._options: dict[str, Any] = {
            "sampler": sampler,
            "seed": seed,
            "num_envs": num_envs,
            "n_step": n_step,
            "gamma": gamma,
            "weight_from": weight_from,
        }
        self._frame_stacks = frame_stacks
        self._num_envs = num_envs
        obs_shape, obs_dtype = self.fields["obs"]
        self.obs_shape = obs_shape
        frames_per_obs = obs_shape[0] if frame_stacks else 1
        self.frames: FrameRing | None = None
        if stores_frames(self.fields, frame_stacks):
            self.frames = FrameRing(capacity, num_envs, n_step, frames_per_obs)
        if self.frames is not None and sampler is not None:
            raise ConfigError(
                f"a replay of images on the device draws uniformly, got {sampler}: leave `sampler` "
                "out, or keep images on the host"
            )
        size = needed_bytes(capacity, fields, num_envs, n_step, frame_stacks)
        need_device_memory(size, capacity, self.device)

        # The ring, and the inbox of one launch, which has a fixed size.
        has_frames = self.frames is not None
        self.layout = RowFormat(row_fields(self.fields, frames_per_obs, has_frames=has_frames))
        self._max_new = min(max_new, capacity)
        int64, float32 = np.dtype(np.int64), np.dtype(np.float32)
        parts: dict[str, ArraySpec] = {
            "counts": ((2,), int64),
            "row_slots": ((self._max_new,), int64),
            "rows": ((self._max_new, self.layout.num_words), np.dtype(np.int32)),
            **(extra or {}),
        }
        frames: Tensor | None = None
        if self.frames is not None:
            frame_shape = obs_shape[1:] if frame_stacks else obs_shape
            self._max_frames = min(2 * (self._max_new + frames_per_obs), self.frames.size)
            parts["frame_slots"] = ((self._max_frames,), int64)
            parts["frames"] = ((self._max_frames, *frame_shape), obs_dtype)
            frames = self._zeros((self.frames.size + 1, *frame_shape), torch_dtype(obs_dtype))
        self._table: DrawTable | None = None
        self.index: ReplayBuffer | None = None
        if sampler is None:
            entropy = np.random.SeedSequence(seed).entropy
            assert isinstance(entropy, int)
            self._table = DrawTable([entropy], batch_size, "uniform", self.device, max_batches)
            parts["draws"] = ((max_batches,), int64)
        else:
            self.index = self.new_weight_index()
            parts["numbers"] = ((max_batches, batch_size), int64)
            if self.index.sampler.has_importance:
                parts["importance"] = ((max_batches, batch_size), float32)
        self.batch_size = batch_size
        self.inbox = Inbox(parts, self.device)
        rows = [block["rows"].view(self.layout.dtype)[:, 0] for block in self.inbox.blocks]
        self._inbox_columns = [{name: row[name] for name in row.dtype.names or ()} for row in rows]
        self.stored = ReplayTensors(
            rows=self._zeros((capacity + 1, self.layout.num_words), torch.int32),
            frames=frames,
            uniform=None if self._table is None else self._table.tensor,
            inbox=self.inbox.tensors,
        )
        self._begin_block()

        # State that only the host has: checkpoints need it, batches do not.
        self.windows = NStepWindows(num_envs, n_step, gamma)
        self.flags = {name: np.zeros(capacity, np.bool_) for name in ("terminated", "truncated")}
        self.random_state: Array | None = None  # random state of a restored buffer
        self._first_frame = np.zeros(capacity if self.frames is not None else 0, np.int64)
        self._downloads = Downloads(self.device)
        self._priorities: list[tuple[Array, Any]] = []

    def __len__(self) -> int:
        """Return the number of transitions that can be drawn."""
        return self._size

    @property
    def num_samples(self) -> int:
        """Number of batches drawn so far."""
        return self._num_samples if self.index is None else self.index.num_samples

    @num_samples.setter
    def num_samples(self, count: int) -> None:
        self._num_samples = count
        if self.index is not None:
            self.index.num_samples = count

    # Writing.

    def extend(
        self, *, env: ArrayLike | None = None, valid: ArrayLike | None = None, **steps: Array
    ) -> None:
        """Store B transitions in the order of time, see `ReplayBuffer.extend`.

        Raises:
            ReplayError: a reward can't be a weight.
        """
        envs, steps = None if env is None else np.asarray(env), unnested(steps)
        if valid is not None:
            rows = np.flatnonzero(valid)
            envs = rows % self._num_envs if envs is None else envs[rows]
            steps = {name: array[rows] for name, array in steps.items()}
        count = len(steps["reward"])
        if not count:
            return
        if self.index is not None:
            empty = np.zeros((count, 1), np.uint8)
            outcome = {name: steps[name] for name in ("reward", "terminated", "truncated")}
            self.index.extend(obs=empty, next_obs=empty, **outcome, env=envs)
        if self.frames is None:
            self.append(self.windows.add(steps, envs))
            return
        if envs is None:
            envs = np.arange(count) % self._num_envs
        for first in range(0, count, self.frames.max_steps):
            part = slice(first, first + self.frames.max_steps)
            batch = {name: array[part] for name, array in steps.items()}
            batch |= self._number_frames(batch, envs[part])
            self.append(self.windows.add(batch, envs[part]))

    def cut(self, env: int | None = None) -> None:
        """Start a new episode in an environment, or in all, though the last step ended none."""
        if self.index is not None:
            self.index.cut(env)
        for number in range(self._num_envs) if env is None else [env]:
            closed = self.windows.cut(number)
            if self.frames is not None:
                self.frames.cut(number)
            if closed is not None:
                self.append(closed)

    def update_weights(self, index: Array, weight: Tensor) -> None:
        """Start to copy new priorities from the device. `settle` writes them.

        Args:
            index: int64, (K, B), numbers of the transitions, as returned by `prepare`.
            weight: float32, (K, B), priorities on the device.
        """
        self._priorities.append((index.reshape(-1), self._downloads.start(weight)))

    def settle(self) -> None:
        """Write the priorities of all `update_weights` calls since the last `settle`.

        Raises:
            ReplayError: a priority is NaN or infinite.
        """
        updates, self._priorities = self._priorities, []
        for index, download in updates:
            assert self.index is not None
            self.index.update_weights(index, self._downloads.read(download).reshape(-1))

    # Reading.

    def prepare(self, count: int) -> Array | None:
        """Write random numbers or drawn numbers of `count` ≤ `max_batches` batches to the inbox.

        Returns:
            Numbers of the transitions, int64, (count, B), if the host draws, else None.

        Raises:
            ReplayError: the buffer is empty, or has fewer transitions than the sampler needs.
        """
        if self._size == 0:
            raise ReplayError("the buffer is empty: add transitions before sampling")
        arrays = self.inbox.arrays
        if self._table is not None:
            arrays["draws"][:count] = self._table.rows_of(self._num_samples, count)
            self._num_samples += count
            return None
        assert self.index is not None
        numbers = arrays["numbers"]
        for k in range(count):  # separate draws, since batches without replacement are independent
            batch = self.index.sample(self.batch_size)
            numbers[k] = batch.index
            if "importance" in arrays:
                arrays["importance"][k] = batch.importance
        return numbers[:count].copy()

    def send(self) -> None:
        """Start to copy the inbox to the device. There, `store_new` writes its rows to the ring."""
        counts = self.inbox.arrays["counts"]
        counts[0], counts[1] = self.num_added - self._size, self._size
        self.inbox.send()
        self._begin_block()

    def flush(self) -> None:
        """Write the waiting transitions to the ring."""
        if self._num_new or self._num_frames:
            self.send()
            store_new(self.stored)

    def gather(self, number: Tensor) -> dict[str, Tensor]:
        """Return stored transitions by number, int64, (B,), as tensors by field, (B, …).

        Batches have `discount`, but not `terminated` and `truncated`. See `get` for these.
        """
        self.flush()
        return gather_rows(self.stored, self.layout, number, self.obs_shape)

    def get(self, number: ArrayLike) -> dict[str, Array]:
        """Return transitions by number, as arrays on the host by field, (B, …).

        Raises:
            ReplayError: a transition is not stored.
        """
        numbers = np.asarray(number, np.int64)
        missing = numbers[(numbers < self.num_added - self._size) | (numbers >= self.num_added)]
        if len(missing):
            raise ReplayError(
                f"there is no transition {missing[0]}: they go from "
                f"{self.num_added - self._size} to {self.num_added - 1}"
            )
        rows = self.gather(to_device(numbers, self.device))
        slots = numbers % self.capacity
        arrays = {name: to_host(tensor) for name, tensor in rows.items()}
        return arrays | {name: array[slots] for name, array in self.flags.items()}

    # Files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save everything to one file, which an equivalent `ReplayBuffer` can read, too.

        Raises:
            OutputError: the file can't be written.
            ConfigError: the host has no memory for a copy.
        """
        from hotloop.replay import device_saving

        self.settle()
        self.flush()
        device_saving.save(self, Path(path))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Load a file of `save`, or of `ReplayBuffer.save`.

        Raises:
            CheckpointError: see `ReplayBuffer.restore`. This buffer is unchanged.
        """
        from hotloop.replay import device_saving

        device_saving.restore(self, Path(path))

    def new_host_buffer(self) -> ReplayBuffer:
        """Return an empty buffer on the host with the same settings."""
        from hotloop.replay.buffer import ReplayBuffer

        options = {"share_next_obs": True, "frame_stacks": self._frame_stacks, **self._options}
        return ReplayBuffer(self.capacity, self._host_fields, **options)

    # Internals.

    def new_weight_index(self) -> ReplayBuffer:
        """Return an empty buffer on the host that stores weights but no observations."""
        from hotloop.replay.buffer import ReplayBuffer

        outcome = {name: self.fields[name] for name in ("reward", "terminated", "truncated")}
        fields = {"obs": _EMPTY_OBS, "next_obs": _EMPTY_OBS, **outcome}
        return ReplayBuffer(self.capacity, fields, share_next_obs=True, **self._options)

    def restart_at(self, number: int, num_samples: int) -> None:
        """Clear the buffer. The next transition has this number."""
        self.num_added, self._size = number, 0
        self._begin_block()
        self.windows = NStepWindows(self._num_envs, self._options["n_step"], self._options["gamma"])
        self._priorities.clear()
        self.num_samples = num_samples
        if self.frames is not None:
            for env in range(self._num_envs):
                self.frames.cut(env)

    def append(self, rows: Mapping[str, Array]) -> None:
        """Append transitions whose windows are complete.

        Args:
            rows: arrays by field, (E, …), including `discount`. For images, `obs` and `next_obs`
                are frame numbers, int64, (E, S), and new frames wait in `frames`.

        Raises:
            ReplayError: frames of a window were overwritten.
        """
        if self.frames is not None:
            rows = self._send_frames(rows)
        count, num_done = len(rows["reward"]), 0
        while num_done < count:
            if self._num_new == self._max_new:
                self.flush()
            num_taken = min(count - num_done, self._max_new - self._num_new)
            source = slice(num_done, num_done + num_taken)
            inbox_slice = slice(self._num_new, self._num_new + num_taken)
            first = self.num_added % self.capacity
            slots, target = np.arange(first, first + num_taken), slice(first, first + num_taken)
            if first + num_taken > self.capacity:
                target = slots = slots % self.capacity
            self.inbox.arrays["row_slots"][inbox_slice] = slots
            for name, column in self._inbox_columns[self.inbox.turn].items():
                column[inbox_slice] = rows[name][source]
            for name, array in self.flags.items():
                array[target] = rows[name][source]
            if self.frames is not None:
                self._first_frame[target] = rows["first_frame"][source]
            self._num_new += num_taken
            self.num_added += num_taken
            self._size = min(self._size + num_taken, self.capacity)
            num_done += num_taken
        if self.frames is not None:
            # Drop transitions whose frames were overwritten. The ring has room for their rows.
            limit = self.frames.num_frames - self.frames.size + self.frames.margin
            while self._size:
                oldest = (self.num_added - self._size) % self.capacity
                if self._first_frame[oldest] >= limit:
                    break
                self._size -= 1

    def _begin_block(self) -> None:
        """Start the next block of the inbox. Unused entries write to the spare row and frame."""
        arrays = self.inbox.arrays
        self._num_new = self._num_frames = 0
        arrays["row_slots"].fill(self.capacity)
        if self.frames is not None:
            arrays["frame_slots"].fill(self.frames.size)

    def _send_frames(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Write the new frames to the inbox, and return rows with the slots of their frames."""
        frames = self.frames
        assert frames is not None
        number, new_frames = frames.take_new_frames()
        while new_frames:
            if self._num_frames == self._max_frames:
                self.flush()
            batch = new_frames[: self._max_frames - self._num_frames]
            inbox_slice = slice(self._num_frames, self._num_frames + len(batch))
            self.inbox.arrays["frames"][inbox_slice] = batch
            slots = np.arange(number, number + len(batch)) % frames.size
            self.inbox.arrays["frame_slots"][inbox_slice] = slots
            self._num_frames += len(batch)
            number, new_frames = number + len(batch), new_frames[len(batch) :]
        numbers = np.stack([rows["obs"], rows["next_obs"]], 1)
        oldest = numbers.reshape(len(numbers), -1).min(1) if len(numbers) else np.zeros(0, np.int64)
        if len(oldest) and oldest.min() < frames.num_frames - frames.margin:
            raise ReplayError(
                "a window of steps waited until its frames were overwritten: environments must "
                "step about equally often, or call `cut` for an environment that stops"
            )
        return {**rows, "places": numbers % frames.size, "first_frame": oldest}

    def _number_frames(self, steps: Mapping[str, Array], envs: Array) -> dict[str, Array]:
        """Return the frame numbers of `obs` and `next_obs`, (B, S)."""
        frames = self.frames
        assert frames is not None
        ends = (steps["terminated"] | steps["truncated"]).tolist()
        pairs = [
            frames.number_obs(obs, next_obs, is_end, env)
            for obs, next_obs, is_end, env in zip(
                steps["obs"], steps["next_obs"], ends, envs.tolist(), strict=True
            )
        ]
        numbers, next_numbers = zip(*pairs, strict=True)
        return {"obs": np.stack(numbers), "next_obs": np.stack(next_numbers)}

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)


def _host_sampler(sampler: Sampler | None, weight_from: Any) -> Sampler | None:
    """Return the host's sampler, None if the device draws, or raise ConfigError."""
    if sampler is None:
        return None
    from hotloop.replay.samplers import Proportional, Sequences, Uniform

    if isinstance(sampler, Sequences):
        raise ConfigError(
            "a replay on a device draws single transitions, got Sequences: use a `ReplayBuffer` "
            "for sequences"
        )
    if isinstance(sampler, Proportional) and weight_from is None:
        raise ConfigError(
            "a replay on a device has no `weight` argument, so Proportional needs `weight_from`: "
            "set it to 'episode_return', 'return_so_far' or 'return_to_go'"
        )
    return None if sampler == Uniform() else sampler
