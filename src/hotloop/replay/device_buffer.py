"""The replay buffer of a device: transitions in tensors, drawn and gathered where they are learned
from.

Nothing waits for the device: what comes in is copied while the host goes on, and what is drawn by
weights is drawn by a `ReplayBuffer` on the host that holds weights and no observations.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from hotloop.errors import ConfigError, ReplayError, ShapeError
from hotloop.replay.storage.device import (
    Downloads,
    Uploads,
    make_stored,
    numbers_of,
    ring_parts,
    rows_of,
)
from hotloop.replay.storage.device_frames import FrameRing
from hotloop.replay.storage.device_room import (
    FIELDS,
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

MAX_CHUNK = 1024  # transitions that are copied to the device at once
_NO_OBS = ((1,), np.uint8)


class Drawn(NamedTuple):
    """What K batches are drawn by: uniform numbers, or numbers of transitions.

    Attributes:
        uniform: float64, (K, B), in [0, 1); or None.
        number: int64, (K, B), on the device; or None.
        on_host: the same on the host.
        importance: float32, (K, B), importance weights; or None.
    """

    uniform: Tensor | None = None
    number: Tensor | None = None
    on_host: Array | None = None
    importance: Tensor | None = None


class DeviceReplay:
    """The last `capacity` transitions, in tensors on a device.

    It holds the same transitions under the same numbers as a `ReplayBuffer` that is given the same,
    and writes and reads the same files.

    Args:
        capacity: transitions; when it is full, each new one replaces the oldest.
        fields: as of `ReplayBuffer`: `obs`, `action`, `reward` (float32), `next_obs`, `terminated`
            and `truncated` (bool), and no others.
        device: where the tensors lie.
        sampler: how batches are drawn; None or `Uniform()`: by random numbers that are made on the
            device. Others need Numba.
        seed: of the draws; None: another one each time.
        num_envs: environments that write.
        n_step: n, as of `ReplayBuffer`.
        gamma: γ of `n_step` and of returns.
        weight_from: as of `ReplayBuffer`.
        frame_stacks: `("obs",)` where its first axis is a stack of frames, each of which is kept
            once.

    Attributes:
        stored: the tensors, always the same ones.
        uploads: what brings arrays to the device.
        num_added: how many transitions it has ever held.
        random: the generator of the uniform draws, on the device.

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
        self.obs_shape = self.fields["obs"][0]
        num_places = self.obs_shape[0] if frame_stacks else 1
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
        num_frames = 0 if self.frames is None else self.frames.size
        makes = self.fields["obs"], self.fields["action"], num_frames, num_places
        self.stored = make_stored(capacity, *makes, self.device)
        self.index: ReplayBuffer | None = None if sampler is None else self.make_index()
        self.windows = Windows(num_envs, n_step, gamma)
        # Known on the host alone: what a checkpoint needs besides, and no batch does.
        self.flags = {name: np.zeros(capacity, np.bool_) for name in ("terminated", "truncated")}
        self.words: Array | None = None  # the random state of a buffer that this one goes on from
        self._first_frame = np.zeros(capacity if self.frames is not None else 0, np.int64)
        self._num_envs = num_envs
        self.uploads, self._downloads = Uploads(self.device), Downloads(self.device)
        self._priorities: list[tuple[Array, Any]] = []
        self.random = torch.Generator(self.device)
        self.random.seed() if seed is None else self.random.manual_seed(seed)

    def __len__(self) -> int:
        """How many transitions can be drawn."""
        return self._size

    @property
    def num_samples(self) -> int:
        """How often batches were drawn."""
        return self._num_samples if self.index is None else self.index.num_samples

    @num_samples.setter
    def num_samples(self, count: int) -> None:
        self._num_samples = count
        if self.index is not None:
            self.index.num_samples = count

    # Writing.

    def extend(
        self, *, env: ArrayLike | None = None, valid: ArrayLike | None = None, **fields: Any
    ) -> None:
        """Store B transitions, in the order of time, as `ReplayBuffer.extend` does.

        Args:
            env: int, (B,), the environment of each; None: 0, 1, … N − 1, 0, 1, …
            valid: bool, (B,); where it is False nothing is stored.
            fields: each field's array, (B, *shape).

        Raises:
            ShapeError: a field is missing, unknown, or of another shape or kind of numbers.
            ReplayError: no such environment, or a reward that can't be a weight.
        """
        steps, envs = self._checked(fields, env)
        if valid is not None:
            kept = np.flatnonzero(valid)
            steps, envs = {name: array[kept] for name, array in steps.items()}, envs[kept]
        if not len(envs):
            return
        if self.index is not None:
            nothing = np.zeros((len(envs), 1), np.uint8)
            rest = {name: steps[name] for name in ("reward", "terminated", "truncated")}
            self.index.extend(obs=nothing, next_obs=nothing, **rest, env=envs)
        most = MAX_CHUNK if self.frames is None else self.frames.most_steps
        for first in range(0, len(envs), most):
            part = slice(first, first + most)
            some = {name: array[part] for name, array in steps.items()}
            if self.frames is not None:
                some |= self._placed(some, envs[part])
            self.store_rows(self.windows.add(some, envs[part]))

    def cut(self, env: int | None = None) -> None:
        """Say that an environment, or all, begins anew though its last step ended no episode.

        Raises:
            ReplayError: there is no such environment.
        """
        if env is not None:
            self._check_envs(np.array([env]))
        if self.index is not None:
            self.index.cut(env)
        for one in range(self._num_envs) if env is None else [env]:
            closed = self.windows.cut(one)
            if self.frames is not None:
                self.frames.cut(one)
            if closed is not None:
                self.store_rows(closed)

    def update_weights(self, index: Array, weight: Tensor) -> None:
        """Give transitions new priorities, once the device has come so far: see `settle`.

        Args:
            index: int64, (K, B), their numbers, as `Drawn.on_host` has them.
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

    def draw(self, count: int, batch_size: int) -> Drawn:
        """Draw K batches: uniform numbers on the device, or by the sampler on the host.

        Raises:
            ReplayError: the buffer is empty, or has fewer transitions than the sampler asks for.
        """
        if self._size == 0:
            raise ReplayError("the buffer is empty: add transitions before sampling")
        if self.index is None:
            self._num_samples += 1
            uniform = torch.empty((count, batch_size), dtype=torch.float64, device=self.device)
            return Drawn(uniform=uniform.uniform_(generator=self.random))
        number = np.empty((count, batch_size), np.int64)
        importance = np.empty((count, batch_size), np.float32)
        has_importance = self.index.sampler.has_importance
        for k in range(count):  # one by one: without replacement each is drawn for itself
            batch = self.index.sample(batch_size)
            number[k] = batch.index
            if has_importance:
                importance[k] = batch.importance
        with self.uploads:
            return Drawn(
                number=self._sent("number", number),
                on_host=number,
                importance=self._sent("importance", importance) if has_importance else None,
            )

    def numbers(self, drawn: Drawn) -> Tensor:
        """Return the numbers of the transitions that were drawn, int64, (K, B), on the device."""
        if drawn.number is not None:
            return drawn.number
        assert drawn.uniform is not None
        return numbers_of(self.stored.counts, drawn.uniform)

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
        rows = rows_of(self.stored, torch.from_numpy(chosen).to(self.device), self.obs_shape)
        found = {name: getattr(rows, name).cpu().numpy() for name in rows._fields}
        slots = chosen % self.capacity
        return found | {name: array[slots] for name, array in self.flags.items()}

    # Keeping.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, which a `ReplayBuffer` like this one reads too.

        The state of the uniform draws, which no such buffer has, is not in it: see `random`.

        Raises:
            OutputError: it can't be written.
            ConfigError: there is no memory for a copy on the host.
        """
        from hotloop.replay import device_saving

        self.settle()
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
        """Be empty, and give the next transition this number."""
        self.num_added, self._size = number, 0
        self.windows = Windows(self._num_envs, self._like["n_step"], self._like["gamma"])
        self._priorities.clear()
        self.num_samples = num_samples
        if self.frames is not None:
            for env in range(self._num_envs):
                self.frames.cut(env)

    def store_rows(self, rows: Mapping[str, Array]) -> None:
        """Append transitions whose windows are complete.

        Args:
            rows: by field, (E, …), and `discount`; of images `obs` and `next_obs` are the numbers
                of their frames, int64, (E, S), and new frames wait in `frames`.

        Raises:
            ReplayError: of the frames of a window some are no longer there.
        """
        with self.uploads:
            if self.frames is not None:
                rows = self._with_places(rows)
            for number, first in enumerate(range(0, len(rows["reward"]), self.capacity)):
                part = slice(first, first + self.capacity)
                self._append({name: array[part] for name, array in rows.items()}, number)
            oldest = self.num_added - self._size
            self.uploads.put("counts", self.stored.counts, np.array([oldest, self._size]))

    def _append(self, rows: Mapping[str, Array], turn: int) -> None:
        """Write rows to the ring, no more than it has; `turn` counts the calls of one upload."""
        stored, count = self.stored, len(rows["reward"])
        targets = {
            name: getattr(stored, name)
            for name in ("action", "reward", "discount", "obs", "next_obs", "places")
            if getattr(stored, name) is not None
        }
        parts = ring_parts(self.num_added, count, self.capacity)
        for number, (source, target) in enumerate(parts, 2 * turn):
            for name, tensor in targets.items():
                self.uploads.put(f"{name} {number}", tensor[target], rows[name][source])
            for name, array in self.flags.items():
                array[target] = rows[name][source]
            if self.frames is not None:
                self._first_frame[target] = rows["first_frame"][source]
        self.num_added += count
        self._size = min(self._size + count, self.capacity)
        if self.frames is not None:
            # What was overwritten is forgotten, though the ring of rows has room for it.
            limit = self.frames.total - self.frames.size + self.frames.margin
            while self._size:
                oldest = (self.num_added - self._size) % self.capacity
                if self._first_frame[oldest] >= limit:
                    break
                self._size -= 1

    def _with_places(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Send the frames that are new, and say where those of each transition lie."""
        frames, stored = self.frames, self.stored
        assert frames is not None
        assert stored.frames is not None
        number, fresh = frames.take()
        dropped = max(0, len(fresh) - frames.size)
        if fresh[dropped:]:
            new = np.stack(fresh[dropped:])
            parts = enumerate(ring_parts(number + dropped, len(new), frames.size))
            for k, (source, target) in parts:
                self.uploads.put(f"frames {k}", stored.frames[target], new[source])
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

    def _sent(self, name: str, array: Array) -> Tensor:
        """Return an array's copy on the device."""
        like = torch.from_numpy(array)
        there = torch.empty(like.shape, dtype=like.dtype, device=self.device)
        self.uploads.put(name, there, array)
        return there

    def _checked(
        self, fields: Mapping[str, Any], env: ArrayLike | None
    ) -> tuple[dict[str, Array], Array]:
        """What a user passes, as arrays of the declared make, and each row's environment."""
        if fields.keys() != self.fields.keys():
            raise ShapeError(
                f"a transition has {', '.join(f'`{name}`' for name in FIELDS)}, got "
                f"{', '.join(fields) or 'nothing'}"
            )
        count = len(np.atleast_1d(fields["reward"]))
        steps: dict[str, Array] = {}
        for name, (shape, dtype) in self.fields.items():
            array = np.asarray(fields[name])
            if array.shape != (count, *shape) or not np.can_cast(array.dtype, dtype, "same_kind"):
                raise ShapeError(
                    f"`{name}` must be {dtype}, shape {(count, *shape)}, got {array.dtype} "
                    f"{array.shape}"
                )
            steps[name] = array.astype(dtype, copy=False)
        if env is None and count % self._num_envs:
            raise ShapeError(
                f"{count} transitions are not a multiple of {self._num_envs} environments: pass "
                "`env`, the environment of each"
            )
        envs = np.arange(count) % self._num_envs if env is None else np.asarray(env)
        if envs.shape != (count,):
            raise ShapeError(f"`env` must have shape ({count},), got {envs.shape}")
        self._check_envs(envs)
        return steps, envs

    def _check_envs(self, envs: Array) -> None:
        wrong = envs[(envs < 0) | (envs >= self._num_envs)]
        if len(wrong):
            raise ReplayError(
                f"`env` must be from 0 to {self._num_envs - 1}, got {wrong[0]}: say `num_envs` "
                "when the buffer is made"
            )


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
