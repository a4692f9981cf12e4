"""Storage of transitions on a device: a ring of rows, one tensor a field.

Images are kept as frames, apart from the rows, which hold numbers of frames. A `next_obs` that is
not an image is kept beside its `obs`: a batch is then gathered without looking anything up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.types import Array


@dataclass(slots=True)
class Stored:
    """The tensors of all transitions, which a launch reads and does not write to.

    Attributes:
        counts: int64, (2,): the number of the oldest transition, and how many there are.
        action: (capacity, *action_shape).
        reward: float32, (capacity,).
        discount: float32, (capacity,).
        obs: (capacity, *obs_shape); None where there are frames.
        next_obs: the same.
        frames: (F, *frame_shape), of images; else None.
        places: int64, (capacity, 2, S): which frames make `obs` and `next_obs`; else None.
    """

    counts: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    obs: Tensor | None
    next_obs: Tensor | None
    frames: Tensor | None
    places: Tensor | None

    def __deepcopy__(self, memo: dict[int, Any]) -> Stored:
        """Itself: who tries an update on copies must not copy a buffer of some GiB."""
        return self


class Rows(NamedTuple):
    """Transitions of a batch, (B, …), as they were stored."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor


def rows_of(stored: Stored, number: Tensor, obs_shape: tuple[int, ...]) -> Rows:
    """Gather transitions.

    Args:
        stored: all of them.
        number: int64, (B,), numbers of transitions that are there.
        obs_shape: of one observation.
    """
    slot = number % stored.reward.shape[0]
    if stored.frames is None or stored.places is None:
        assert stored.obs is not None
        assert stored.next_obs is not None
        obs, next_obs = stored.obs.index_select(0, slot), stored.next_obs.index_select(0, slot)
    else:
        places = stored.places.index_select(0, slot).transpose(0, 1).reshape(-1)
        frames = stored.frames.index_select(0, places)
        both = frames.reshape(2, len(number), *obs_shape)
        obs, next_obs = both[0], both[1]
    return Rows(
        obs,
        stored.action.index_select(0, slot),
        stored.reward.index_select(0, slot),
        next_obs,
        stored.discount.index_select(0, slot),
    )


def numbers_of(counts: Tensor, uniform: Tensor) -> Tensor:
    """Return numbers of transitions, each as likely as any other.

    ⌊u · size⌋ is below `size` up to sizes of 2⁵³: a u below 1 is at most 1 − 2⁻⁵³.

    Args:
        counts: int64, (2,), as of `Stored`.
        uniform: float64, any shape, in [0, 1).

    Returns:
        int64, the same shape.
    """
    return counts[0] + (uniform * counts[1]).to(torch.int64)


def size_bytes(
    capacity: int,
    obs: tuple[tuple[int, ...], np.dtype[Any]],
    action: tuple[tuple[int, ...], np.dtype[Any]],
    num_frames: int,
    num_places: int,
) -> int:
    """Return what `make_stored` takes, in bytes; the arguments are its."""
    (obs_shape, obs_dtype), (action_shape, action_dtype) = obs, action
    row = math.prod(action_shape) * action_dtype.itemsize + 8
    each = math.prod(obs_shape) * obs_dtype.itemsize
    if not num_frames:
        return capacity * (row + 2 * each)
    return capacity * (row + 16 * num_places) + num_frames * (each // num_places)


def make_stored(
    capacity: int,
    obs: tuple[tuple[int, ...], np.dtype[Any]],
    action: tuple[tuple[int, ...], np.dtype[Any]],
    num_frames: int,
    num_places: int,
    device: torch.device,
) -> Stored:
    """Return the tensors of an empty ring.

    Args:
        capacity: transitions.
        obs: shape and dtype of an observation.
        action: the same of an action.
        num_frames: F, frames that there is room for; 0: observations are no images.
        num_places: S, frames that make an observation.
        device: where they lie.
    """

    def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
        like = torch.from_numpy(np.empty(0, dtype)).dtype
        return torch.zeros(shape, dtype=like, device=device)

    (obs_shape, obs_dtype), (action_shape, action_dtype) = obs, action
    real, whole = np.dtype(np.float32), np.dtype(np.int64)
    frame_shape = obs_shape if num_places == 1 else obs_shape[1:]
    has_frames = num_frames > 0
    return Stored(
        counts=zeros((2,), whole),
        action=zeros((capacity, *action_shape), action_dtype),
        reward=zeros((capacity,), real),
        discount=zeros((capacity,), real),
        obs=None if has_frames else zeros((capacity, *obs_shape), obs_dtype),
        next_obs=None if has_frames else zeros((capacity, *obs_shape), obs_dtype),
        frames=zeros((num_frames, *frame_shape), obs_dtype) if has_frames else None,
        places=zeros((capacity, 2, num_places), whole) if has_frames else None,
    )


def ring_parts(number: int, count: int, size: int) -> Iterator[tuple[slice, slice]]:
    """Yield where `count` things, from that number on, come from and go to in a ring."""
    done = 0
    while done < count:
        start = (number + done) % size
        length = min(count - done, size - start)
        yield slice(done, done + length), slice(start, start + length)
        done += length


class Uploads:
    """Host arrays on their way to a device.

    To a GPU they go through pinned memory: what is written there is copied while the host goes on.
    There are two pieces of it, so that one is written to while the other is read. On the CPU it is
    a plain copy.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_staged = device.type != "cpu"
        self._stages: list[dict[str, Tensor]] = [{}, {}]
        self._marks = [Mark(device), Mark(device)]
        self._turn = 0

    def __enter__(self) -> Uploads:
        """Begin to write: wait until what was written the time before last has been copied."""
        if self._is_staged:
            self._turn = 1 - self._turn
            self._marks[self._turn].wait()
        return self

    def __exit__(self, *error: object) -> None:
        """Mark where the device has copied it all."""
        if self._is_staged:
            self._marks[self._turn].set()

    def put(self, name: str, target: Tensor, array: Array) -> None:
        """Copy an array into a tensor of its shape.

        Args:
            name: of what is written once between `__enter__` and `__exit__`.
            target: the tensor, or a part of one.
            array: of its dtype.
        """
        source = torch.from_numpy(np.ascontiguousarray(array)).view(target.shape)
        if self._is_staged:
            stage = self._stages[self._turn]
            if name not in stage or stage[name].numel() < source.numel():
                stage[name] = pinned((source.numel(),), source.dtype)
            there = stage[name][: source.numel()].view(source.shape)
            there.copy_(source)
            source = there
        target.copy_(source, non_blocking=True)


class Downloads:
    """Tensors on their way to the host, read once the device has come so far.

    Args:
        device: where from.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[tuple[Tensor, Mark]] = []

    def take(self, tensor: Tensor) -> Any:
        """Begin to copy a tensor; return what `read` takes."""
        if self._device.type == "cpu":
            return tensor.clone(), None
        place = next((k for k, one in enumerate(self._free) if one[0].shape == tensor.shape), None)
        if place is None:
            host, mark = pinned(tuple(tensor.shape), tensor.dtype), Mark(self._device)
        else:
            host, mark = self._free.pop(place)
        host.copy_(tensor, non_blocking=True)
        mark.set()
        return host, mark

    def read(self, taken: Any) -> Array:
        """Return a copy of what was taken, once it is there."""
        host, mark = taken
        if mark is not None:
            mark.wait()
            self._free.append(taken)
        return host.numpy().copy()


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return host memory that a GPU copies from and to by itself."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class Mark:
    """A mark in the queue of a GPU's work.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._event: Any = None

    def set(self) -> None:
        """Have it stand behind what was asked for so far."""
        if self._event is None:
            self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Wait until the device has come to it; where it was never set, don't."""
        if self._event is not None:
            self._event.synchronize()
