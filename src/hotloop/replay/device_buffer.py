"""The replay buffer of a device: transitions in tensors where they are learned from.

Nothing waits for the device. New transitions are written to pinned memory and reach the ring with
the next launch, in the copy that it needs anyway. Weighted samplers draw on the host, from a
`ReplayBuffer` that holds weights and no observations.
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

from hotloop.errors import ConfigError, ReplayError
from hotloop.ops.tensor_draws import DrawTable
from hotloop.replay.storage.device import (
    Downloads,
    Inbox,
    Make,
    RowFormat,
    Stored,
    gathered,
    row_fields,
    store_new,
    torch_dtype,
)
from hotloop.replay.storage.device_frames import FrameRing
from hotloop.replay.storage.device_room import (
    checked_fields,
    is_apart,
    need_device_memory,
    needed_bytes,
)
from hotloop.replay.storage.windows import Windows
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.replay.buffer import ReplayBuffer
    from hotloop.replay.samplers import Sampler

_NO_OBS = ((1,), np.uint8)


class DeviceReplay:
    """The last `capacity` transitions, in tensors on a device.

    It holds the same transitions under the same numbers as a `ReplayBuffer` with the same input,
    and writes and reads the same files.

    Args:
        capacity: transitions; when it is full, each new one replaces the oldest.
        fields: as of `ReplayBuffer`: `obs`, `action`, `reward` (float32), `next_obs`, `terminated`
            and `truncated` (bool), and no others.
        device: where the tensors lie.
        sampler: how batches are drawn; None or `Uniform()`: on the device. Others need Numba.
        seed: of the draws; None: another one each time.
        num_envs: environments that write.
        n_step: n, as of `ReplayBuffer`.
        gamma: γ of `n_step` and of returns.
        weight_from: as of `ReplayBuffer`.
        frame_stacks: `("obs",)` where its first axis is a stack of frames, each of which is kept
            once.
        batch_size: B, transitions of a batch.
        max_batches: batches that are drawn at once, at most.
        max_new: transitions that wait on the host for the next launch, at most; when more come,
            those that wait are sent by themselves.
        extra: shape and dtype of arrays that the caller sends along, by name.

    Attributes:
        stored: the tensors, always the same ones.
        inbox: what is sent to the device next.
        layout: of the rows in `stored`.
        num_added: how many transitions it has ever held.

    Raises:
        ConfigError: other fields, a sampler that can't draw here, or too little memory.
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
        extra: Mapping[str, Make] | None = None,
    ) -> None:
        self.capacity, self.device = capacity, torch.device(device)
        self.fields = checked_fields(fields)
        sampler = _drawn_on_host(sampler, weight_from)
        self.num_added = 0
        self._size = 0
        self._num_samples = 0
        self._like: dict[str, Any] = {
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
        num_places = obs_shape[0] if frame_stacks else 1
        self.frames: FrameRing | None = None
        if is_apart(self.fields, frame_stacks):
            self.frames = FrameRing(capacity, num_envs, n_step, num_places)
        if self.frames is not None and sampler is not None:
            raise ConfigError(
                f"a replay of images on the device draws uniformly, got {sampler}: leave `sampler` "
                "out, or keep these on the host"
            )
        size = needed_bytes(capacity, fields, num_envs, n_step, frame_stacks)
        need_device_memory(size, capacity, self.device)

        # The ring, and the inbox of one launch: a static size, whatever has come.
        has_frames, action = self.frames is not None, self.fields["action"]
        kept = row_fields(self.fields["obs"], action, num_places, has_frames=has_frames)
        self.layout = RowFormat(kept)
        self._max_new = min(max_new, capacity)
        number, real = np.dtype(np.int64), np.dtype(np.float32)
        parts: dict[str, Make] = {
            "counts": ((2,), number),
            "row_slots": ((self._max_new,), number),
            "rows": ((self._max_new, self.layout.num_words), np.dtype(np.int32)),
            **(extra or {}),
        }
        frames: Tensor | None = None
        if self.frames is not None:
            frame_shape = obs_shape[1:] if frame_stacks else obs_shape
            self._max_frames = min(2 * (self._max_new + num_places), self.frames.size)
            parts["frame_slots"] = ((self._max_frames,), number)
            parts["frames"] = ((self._max_frames, *frame_shape), obs_dtype)
            frames = self._zeros((self.frames.size + 1, *frame_shape), torch_dtype(obs_dtype))
        self._table: DrawTable | None = None
        self.index: ReplayBuffer | None = None
        if sampler is None:
            entropy = np.random.SeedSequence(seed).entropy
            assert isinstance(entropy, int)
            self._table = DrawTable([entropy], batch_size, "uniform", self.device, max_batches)
            parts["draws"] = ((max_batches,), number)
        else:
            self.index = self.make_index()
            parts["numbers"] = ((max_batches, batch_size), number)
            if self.index.sampler.has_importance:
                parts["importance"] = ((max_batches, batch_size), real)
        self.batch_size, self.max_batches = batch_size, max_batches
        self.inbox = Inbox(parts, self.device)
        rows = [block["rows"].view(self.layout.dtype)[:, 0] for block in self.inbox.blocks]
        self._columns = [{name: each[name] for name in each.dtype.names or ()} for each in rows]
        self.stored = Stored(
            rows=self._zeros((capacity + 1, self.layout.num_words), torch.int32),
            frames=frames,
            uniform=None if self._table is None else self._table.tensor,
            inbox=self.inbox.tensors,
        )
        self._begin_block()

        # Known on the host alone: what a checkpoint needs besides, and no batch does.
        self.windows = Windows(num_envs, n_step, gamma)
        self.flags = {name: np.zeros(capacity, np.bool_) for name in ("terminated", "truncated")}
        self.words: Array | None = None  # the random state of a buffer that this one goes on from
        self._first_frame = np.zeros(capacity if self.frames is not None else 0, np.int64)
        self._downloads = Downloads(self.device)
        self._priorities: list[tuple[Array, Any]] = []

    def __len__(self) -> int:
        """How many transitions can be drawn."""
        return self._size

    @property
    def num_samples(self) -> int:
        """How many batches were drawn."""
        return self._num_samples if self.index is None else self.index.num_samples

    @num_samples.setter
    def num_samples(self, count: int) -> None:
        self._num_samples = count
        if self.index is not None:
            self.index.num_samples = count

    # Writing.

    def add_steps(self, steps: Mapping[str, Array], envs: Array | None = None) -> None:
        """Store B transitions, in the order of time.

        Args:
            steps: each field's array, (B, *shape).
            envs: int, (B,), the environment of each; None: 0, 1, … N − 1, 0, 1, …

        Raises:
            ReplayError: a reward that can't be a weight.
        """
        count = len(steps["reward"])
        if self.index is not None:
            nothing = np.zeros((count, 1), np.uint8)
            rest = {name: steps[name] for name in ("reward", "terminated", "truncated")}
            self.index.extend(obs=nothing, next_obs=nothing, **rest, env=envs)
        if self.frames is None:
            self.append(self.windows.add(steps, envs))
            return
        if envs is None:
            envs = np.arange(count) % self._num_envs
        for first in range(0, count, self.frames.most_steps):
            part = slice(first, first + self.frames.most_steps)
            some = {name: array[part] for name, array in steps.items()}
            some |= self._placed(some, envs[part])
            self.append(self.windows.add(some, envs[part]))

    def cut(self, env: int | None = None) -> None:
        """Start a new episode in an environment, or in all, though the last step ended none."""
        if self.index is not None:
            self.index.cut(env)
        for one in range(self._num_envs) if env is None else [env]:
            closed = self.windows.cut(one)
            if self.frames is not None:
                self.frames.cut(one)
            if closed is not None:
                self.append(closed)

    def update_weights(self, index: Array, weight: Tensor) -> None:
        """Give transitions new priorities, once the device has computed them: see `settle`.

        Args:
            index: int64, (K, B), their numbers, as `prepare` returned them.
            weight: float32, (K, B), on the device.
        """
        self._priorities.append((index.reshape(-1), self._downloads.take(weight)))

    def settle(self) -> None:
        """Write the priorities that `update_weights` was given since the last call.

        Raises:
            ReplayError: one is NaN or infinite.
        """
        waiting, self._priorities = self._priorities, []
        for index, taken in waiting:
            assert self.index is not None
            self.index.update_weights(index, self._downloads.read(taken).reshape(-1))

    # Reading.

    def prepare(self, count: int) -> Array | None:
        """Write to the inbox what `count` batches are drawn by, up to `max_batches`.

        Returns:
            Their numbers, int64, (count, B), where a sampler draws on the host; else None.

        Raises:
            ReplayError: the buffer is empty, or has fewer transitions than the sampler needs.
        """
        if self._size == 0:
            raise ReplayError("the buffer is empty: add transitions before sampling")
        arrays = self.inbox.arrays
        if self._table is not None:
            arrays["draws"][:count] = self._table.places(self._num_samples, count)
            self._num_samples += count
            return None
        assert self.index is not None
        number = arrays["numbers"]
        for k in range(count):  # one by one: without replacement each is drawn for itself
            batch = self.index.sample(self.batch_size)
            number[k] = batch.index
            if "importance" in arrays:
                arrays["importance"][k] = batch.importance
        return number[:count].copy()

    def send(self) -> None:
        """Begin to copy the inbox to the device, where `store_new` writes its rows to the ring."""
        counts = self.inbox.arrays["counts"]
        counts[0], counts[1] = self.num_added - self._size, self._size
        self.inbox.send()
        self._begin_block()

    def flush(self) -> None:
        """Write the transitions that wait on the host to the ring."""
        if self._num_new or self._num_frames:
            self.send()
            store_new(self.stored)

    def gather(self, number: Tensor) -> dict[str, Tensor]:
        """Return transitions by their numbers, int64, (B,), on the device, by field: (B, …).

        They must be there. `terminated` and `truncated` are on the host, see `get`; what a batch
        needs is `discount`.
        """
        self.flush()
        return gathered(self.stored, self.layout, number, self.obs_shape)

    def get(self, number: ArrayLike) -> dict[str, Array]:
        """Return transitions by their numbers, on the host: by field, (B, …).

        Raises:
            ReplayError: one of them is not there.
        """
        chosen = np.asarray(number, np.int64)
        wrong = chosen[(chosen < self.num_added - self._size) | (chosen >= self.num_added)]
        if len(wrong):
            raise ReplayError(
                f"there is no transition {wrong[0]}: they go from {self.num_added - self._size} to "
                f"{self.num_added - 1}"
            )
        rows = self.gather(torch.from_numpy(chosen).to(self.device))
        slots = chosen % self.capacity
        found = {name: tensor.cpu().numpy() for name, tensor in rows.items()}
        return found | {name: array[slots] for name, array in self.flags.items()}

    # Keeping.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, which a `ReplayBuffer` like this one reads too.

        Raises:
            OutputError: it can't be written.
            ConfigError: there is no memory for a copy on the host.
        """
        from hotloop.replay import device_saving

        self.settle()
        self.flush()
        device_saving.save(self, Path(path))

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take over what `save` of this class or of `ReplayBuffer` wrote.

        Raises:
            CheckpointError: as of `ReplayBuffer.restore`; this buffer is as it was.
        """
        from hotloop.replay import device_saving

        device_saving.restore(self, Path(path))

    def host_like(self) -> ReplayBuffer:
        """Return an empty buffer on the host that is like this one."""
        from hotloop.replay.buffer import ReplayBuffer

        options = {"share_next_obs": True, "frame_stacks": self._frame_stacks, **self._like}
        return ReplayBuffer(self.capacity, self.fields, **options)

    # What the public methods stand on.

    def make_index(self) -> ReplayBuffer:
        """Return an empty buffer on the host that holds weights and no observations."""
        from hotloop.replay.buffer import ReplayBuffer

        kept = {name: self.fields[name] for name in ("reward", "terminated", "truncated")}
        declared = {"obs": _NO_OBS, "next_obs": _NO_OBS, **kept}
        return ReplayBuffer(self.capacity, declared, share_next_obs=True, **self._like)

    def begin_at(self, number: int, num_samples: int) -> None:
        """Empty the buffer, and give the next transition this number."""
        self.num_added, self._size = number, 0
        self._begin_block()
        self.windows = Windows(self._num_envs, self._like["n_step"], self._like["gamma"])
        self._priorities.clear()
        self.num_samples = num_samples
        if self.frames is not None:
            for env in range(self._num_envs):
                self.frames.cut(env)

    def append(self, rows: Mapping[str, Array]) -> None:
        """Append transitions whose windows are complete.

        Args:
            rows: by field, (E, …), and `discount`; of images `obs` and `next_obs` are the numbers
                of their frames, int64, (E, S), and new frames wait in `frames`.

        Raises:
            ReplayError: of the frames of a window some are no longer there.
        """
        if self.frames is not None:
            rows = self._with_places(rows)
        count, done = len(rows["reward"]), 0
        while done < count:
            if self._num_new == self._max_new:
                self.flush()
            taken = min(count - done, self._max_new - self._num_new)
            source = slice(done, done + taken)
            here = slice(self._num_new, self._num_new + taken)
            first = self.num_added % self.capacity
            slots, there = np.arange(first, first + taken), slice(first, first + taken)
            if first + taken > self.capacity:
                there = slots = slots % self.capacity
            self.inbox.arrays["row_slots"][here] = slots
            for name, column in self._columns[self.inbox.turn].items():
                column[here] = rows[name][source]
            for name, array in self.flags.items():
                array[there] = rows[name][source]
            if self.frames is not None:
                self._first_frame[there] = rows["first_frame"][source]
            self._num_new += taken
            self.num_added += taken
            self._size = min(self._size + taken, self.capacity)
            done += taken
        if self.frames is not None:
            # What was overwritten is forgotten, though the ring of rows has room for it.
            limit = self.frames.total - self.frames.size + self.frames.margin
            while self._size:
                oldest = (self.num_added - self._size) % self.capacity
                if self._first_frame[oldest] >= limit:
                    break
                self._size -= 1

    def _begin_block(self) -> None:
        """Begin to write the next block of the inbox: every place in it writes to a spare row."""
        arrays = self.inbox.arrays
        self._num_new = self._num_frames = 0
        arrays["row_slots"].fill(self.capacity)
        if self.frames is not None:
            arrays["frame_slots"].fill(self.frames.size)

    def _with_places(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Write the new frames to the inbox, and return rows with the places of their frames."""
        frames = self.frames
        assert frames is not None
        number, fresh = frames.take()
        while fresh:
            if self._num_frames == self._max_frames:
                self.flush()
            some = fresh[: self._max_frames - self._num_frames]
            here = slice(self._num_frames, self._num_frames + len(some))
            self.inbox.arrays["frames"][here] = some
            slots = np.arange(number, number + len(some)) % frames.size
            self.inbox.arrays["frame_slots"][here] = slots
            self._num_frames += len(some)
            number, fresh = number + len(some), fresh[len(some) :]
        both = np.stack([rows["obs"], rows["next_obs"]], 1)
        first = both.reshape(len(both), -1).min(1) if len(both) else np.zeros(0, np.int64)
        if len(first) and first.min() < frames.total - frames.margin:
            raise ReplayError(
                "a window of steps waited until its frames were overwritten: environments must "
                "step about as often as each other, or call `cut` for one that does not go on"
            )
        return {**rows, "places": both % frames.size, "first_frame": first}

    def _placed(self, steps: Mapping[str, Array], envs: Array) -> dict[str, Array]:
        """The numbers of frames in place of observations, (B, S)."""
        frames = self.frames
        assert frames is not None
        ended = (steps["terminated"] | steps["truncated"]).tolist()
        pairs = [
            frames.place(obs, next_obs, is_end, env)
            for obs, next_obs, is_end, env in zip(
                steps["obs"], steps["next_obs"], ended, envs.tolist(), strict=True
            )
        ]
        now, later = zip(*pairs, strict=True)
        return {"obs": np.stack(now), "next_obs": np.stack(later)}

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)


def _drawn_on_host(sampler: Sampler | None, weight_from: Any) -> Sampler | None:
    """Return a sampler that draws on the host; None: the device draws by itself.

    Raises:
        ConfigError: it draws sequences, or by weights that nobody gives.
    """
    if sampler is None:
        return None
    from hotloop.replay.samplers import Proportional, Sequences, Uniform

    if isinstance(sampler, Sequences):
        raise ConfigError(
            "a replay on a device draws single transitions, got Sequences: keep these in a "
            "`ReplayBuffer`"
        )
    if isinstance(sampler, Proportional) and weight_from is None:
        raise ConfigError(
            "a replay on a device is given no weights, so Proportional needs `weight_from`: name "
            "the return that transitions weigh"
        )
    return None if sampler == Uniform() else sampler
