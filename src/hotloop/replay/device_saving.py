"""A device's replay as the file of a buffer on the host, and back.

To be saved it is copied into a `ReplayBuffer` that is like it; a file is read into one first, which
checks it. The host's memory must have room for that.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from hotloop.replay.native.calls import rebuild_weights
from hotloop.replay.saving import words_of
from hotloop.replay.storage.device_frames import FrameRing
from hotloop.replay.storage.layout import Field, Layout
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.replay.buffer import ReplayBuffer
    from hotloop.replay.device_buffer import DeviceReplay
    from hotloop.replay.storage.windows import Windows

# What a buffer that has weights knows besides its rows: of all, of each environment, of each row.
_COUNTS = ("random", "base", "filled", "stale")
_OF_RETURNS = ("head_weights", "env_return", "env_first", "env_last")
_WORDS = ("previous", "raw_reward")
_MOST = 1024  # transitions at a time


def save(replay: DeviceReplay, path: Path) -> None:
    """Write what `DeviceReplay.save` does."""
    host, stored = replay.host_like(), replay.stored
    size = min(replay.num_added, replay.capacity)
    columns = stored.rows[:size].cpu().numpy().view(replay.layout.dtype)[:, 0]
    rows: dict[str, Array] = {name: columns[name] for name in replay.layout.dtype.names or ()}
    rows |= {name: array[:size] for name, array in replay.flags.items()}
    if len(replay) < size:  # frames of the oldest are gone: the oldest that is whole stands there
        oldest = replay.num_added - len(replay)
        gone = np.arange(replay.num_added - size, oldest) % replay.capacity
        rows = {name: array.copy() for name, array in rows.items()}
        for array in rows.values():
            array[gone] = array[oldest % replay.capacity]
    if replay.frames is not None:
        _fill_frames(host, rows.pop("places"), replay)
    fill(host, replay.num_added, rows, replay.windows)
    if replay.words is not None:
        host._store.handle["random"] = replay.words
    if replay.index is not None:
        _take_weights(host, replay.index)
    host.num_samples = replay.num_samples
    host.save(path)


def restore(replay: DeviceReplay, path: Path) -> None:
    """Read what `DeviceReplay.restore` does."""
    host = replay.host_like()
    host.restore(path)
    added, size = host.num_added, len(host)
    rows = {
        one.name: _column(host._store.rows, size, host.layout, one)
        for one in host.layout.fields
        if one.place == "row" and one.name != "obs"
    }
    if "discount" not in rows:
        rows["discount"] = np.logical_not(rows["terminated"]).astype(np.float32)
    replay.begin_at(added - size, host.num_samples)
    replay.words = host._store.handle["random"].copy()
    frames = None if replay.frames is None else _Frames(host, replay.frames)
    most = _MOST if replay.frames is None else replay.frames.most_steps
    for first in range(added - size, added, most):
        number = np.arange(first, min(first + most, added))
        slots = number % replay.capacity
        some = {name: column[slots] for name, column in rows.items()}
        if frames is None:
            batch = host.get(number)
            some |= {"obs": batch.obs, "next_obs": batch.next_obs}
        else:
            some |= frames.of_rows(slots)
        replay.append(some)
    _restore_windows(host, replay.windows, frames)
    if replay.index is not None:
        kept = {name: rows[name] for name in ("reward", "discount", "terminated", "truncated")}
        nothing = dict.fromkeys(("obs", "next_obs"), np.zeros((size, 1), np.uint8))
        replay.index = replay.make_index()
        fill(replay.index, added, {**kept, **nothing}, without_obs(replay.windows))
        _take_weights(replay.index, host)
        replay.index.num_samples = host.num_samples


def fill(buffer: ReplayBuffer, added: int, rows: Mapping[str, Array], windows: Windows) -> None:
    """Put transitions into an empty buffer, slot by slot, and the steps that wait.

    Args:
        buffer: the buffer.
        added: how many it would have held.
        rows: by field, (size, …), in the order of slots; frames are there already.
        windows: the steps.
    """
    store, layout, size = buffer._store, buffer.layout, len(rows["reward"])
    store.handle["added"], store.handle["size"] = added, size
    for one in layout.fields if size else ():
        if one.place == "row":
            _column(store.rows, size, layout, one)[:] = rows[one.name]
    if layout.link >= 0 and size:
        _link(buffer, added, rows["obs"], rows["next_obs"])
    n_step, known = buffer.settings["n_step"], store.per_env
    known["env_steps"][:] = windows.num_steps
    known["env_waiting"][:] = [len(window) for window in windows.waiting]
    known["env_pending"][:] = known["env_waiting"] > 0
    num_heads = len(windows.waiting) * n_step
    columns = {
        one.name: _column(store.heads, num_heads, layout, one)
        for one in layout.fields
        if one.place == "row"
    }
    for env, window in enumerate(windows.waiting):
        following = int(windows.num_steps[env])
        for step, fields in enumerate(window, following - len(window)):
            for name in columns.keys() & fields.keys():
                columns[name][env * n_step + step % n_step] = fields[name][0]
        if window and "obs" in columns:
            columns["obs"][env * n_step + following % n_step] = window[-1]["next_obs"][0]


def _link(buffer: ReplayBuffer, added: int, obs: Array, next_obs: Array) -> None:
    """Say where the observation lies that follows each row: in a later one, or apart."""
    store, settings, size = buffer._store, buffer.settings, len(obs)
    slots, capacity = np.arange(size), settings["capacity"]
    oldest = added - size
    later = oldest + (slots - oldest) % capacity + settings["num_envs"] * settings["n_step"]
    following = np.where(later < added, later % capacity, 0)
    here, there = (np.ascontiguousarray(x).reshape(size, -1) for x in (next_obs, obs[following]))
    is_same = (here.view(np.uint8) == there.view(np.uint8)).all(1) & (later < added)
    apart = np.flatnonzero(~is_same)
    links = np.where(is_same, following, 0)
    links[apart] = -1 - np.arange(len(apart))
    words_of(store.rows, size, buffer.layout.row_bytes, buffer.layout.link)[:, 0] = links
    there_are = len(store.finals_free)
    store.more_finals(max(0, len(apart) + settings["n_step"] + 1 - there_are))
    finals = next_obs[apart]
    store.finals[: finals.nbytes] = np.ascontiguousarray(finals).reshape(-1).view(np.uint8)
    free = np.arange(len(apart), len(store.finals_free))
    store.finals_free[: len(free)] = free
    store.handle["finals_num_free"] = len(free)


def _fill_frames(buffer: ReplayBuffer, places: Array, replay: DeviceReplay) -> None:
    """Put a device's frames into the pool of an empty buffer, and their numbers where they belong.

    Args:
        buffer: the buffer.
        places: int32, (size, 2, S), of the frames of each transition, by slots.
        replay: the device's.
    """
    store, windows = buffer._store, replay.windows
    (apart,), (pool,) = buffer.layout.aparts, store.pools
    assert replay.frames is not None
    assert replay.stored.frames is not None
    n_step, held, heads = buffer.settings["n_step"], [places.reshape(-1, apart.stack)], []
    for env, window in enumerate(windows.waiting):
        following = int(windows.num_steps[env])
        for step, fields in enumerate(window, following - len(window)):
            heads.append(env * n_step + step % n_step)
            held.append(fields["obs"] % replay.frames.size)
        if window:
            heads.append(env * n_step + following % n_step)
            held.append(window[-1]["next_obs"] % replay.frames.size)
    joined = np.concatenate(held)
    used, numbers, counts = np.unique(joined, return_inverse=True, return_counts=True)
    numbers = numbers.reshape(joined.shape)
    pool.reopen(len(used), 0)
    pool.counts[: len(used)] = counts
    done = 0
    for chunk in pool.chunks:
        some = used[done : done + len(chunk) // apart.frame_bytes]
        frames = replay.stored.frames[torch.from_numpy(some).to(replay.device)].cpu().numpy()
        chunk[: frames.nbytes] = frames.reshape(-1).view(np.uint8)
        done += len(some)
    size, stride = len(places), buffer.layout.row_bytes
    of_rows = numbers[: 2 * size].reshape(size, 2, apart.stack)
    for k, offset in enumerate((apart.refs, apart.next_refs)):
        words_of(store.rows, size, stride, offset, apart.stack)[:] = of_rows[:, k]
    num_heads = buffer.settings["num_envs"] * n_step
    words_of(store.heads, num_heads, stride, apart.refs, apart.stack)[heads] = numbers[2 * size :]


class _Frames:
    """A buffer's frames on their way to a device, each once."""

    def __init__(self, buffer: ReplayBuffer, ring: FrameRing) -> None:
        self._buffer, self._ring = buffer, ring
        (self._apart,), (self._pool,) = buffer.layout.aparts, buffer._store.pools
        self._numbers = np.full(self._pool.num_used, -1, np.int64)  # there, by those here

    def of_rows(self, slots: Array) -> dict[str, Array]:
        """The numbers of the frames of some rows, (E, S) each."""
        layout, apart = self._buffer.layout, self._apart
        size, rows = len(self._buffer), self._buffer._store.rows
        words = [
            words_of(rows, size, layout.row_bytes, offset, apart.stack)[slots]
            for offset in (apart.refs, apart.next_refs)
        ]
        both = self._sent(np.stack(words, 1))
        return {"obs": both[:, 0], "next_obs": both[:, 1]}

    def of_head(self, head: int) -> Array:
        """The same of one that waits, (1, S)."""
        store, apart = self._buffer._store, self._apart
        count = self._buffer.settings["num_envs"] * self._buffer.settings["n_step"]
        words = words_of(store.heads, count, self._buffer.layout.row_bytes, apart.refs, apart.stack)
        return self._sent(words[head : head + 1])

    def _sent(self, words: Array) -> Array:
        flat = words.reshape(-1)
        _, places = np.unique(flat, return_index=True)
        for number in flat[np.sort(places)].tolist():
            if self._numbers[number] < 0:
                self._numbers[number] = self._ring.append(self._frame(number))
        return self._numbers[words]

    def _frame(self, number: int) -> Array:
        obs = next(one for one in self._buffer.fields if one.name == "obs")
        size = self._apart.frame_bytes
        each = len(self._pool.chunks[0]) // size
        chunk = self._pool.chunks[number // each]
        frame = chunk[number % each * size : (number % each + 1) * size].view(obs.dtype)
        return frame.reshape(obs.shape if self._apart.stack == 1 else obs.shape[1:])


def _restore_windows(buffer: ReplayBuffer, windows: Windows, frames: _Frames | None) -> None:
    """Read the steps that wait in a buffer."""
    store, n_step = buffer._store, buffer.settings["n_step"]
    num_envs = buffer.settings["num_envs"]
    columns = {
        one.name: _column(store.heads, num_envs * n_step, buffer.layout, one)
        for one in buffer.layout.fields
        if one.place == "row" and one.name != "discount"
    }
    windows.num_steps[:] = store.per_env["env_steps"]

    def obs_of(head: int) -> Array:
        return columns["obs"][head : head + 1] if frames is None else frames.of_head(head)

    for env in range(num_envs):
        following, count = int(windows.num_steps[env]), int(store.per_env["env_waiting"][env])
        for step in range(following - count, following):
            head, after = (env * n_step + k % n_step for k in (step, step + 1))
            fields = {name: column[head : head + 1].copy() for name, column in columns.items()}
            both = {"obs": obs_of(head).copy(), "next_obs": obs_of(after).copy()}
            windows.waiting[env].append({**fields, **both})


def without_obs(windows: Windows) -> Windows:
    """Return windows as a buffer has them that holds weights and no observations."""
    nothing = {name: np.zeros((1, 1), np.uint8) for name in ("obs", "next_obs")}
    found = copy.copy(windows)
    found.waiting = [[{**step, **nothing} for step in window] for window in windows.waiting]
    return found


def _take_weights(into: ReplayBuffer, of: ReplayBuffer) -> None:
    """Copy what two buffers of the same transitions know of weights and of their draws."""
    size, there, here = len(of), into._store, of._store
    for name in _COUNTS:
        there.handle[name] = here.handle[name]
    for name in _OF_RETURNS:
        there.per_env[name][:] = here.per_env[name]
    for name in _WORDS:
        offset = getattr(of.layout, name)
        if offset >= 0 and size:
            column = words_of(here.rows, size, of.layout.row_bytes, offset)
            into_at = getattr(into.layout, name)
            words_of(there.rows, size, into.layout.row_bytes, into_at)[:] = column
    if of.sampler.weighted:
        there.weights["leaves"][:size] = here.weights["leaves"][:size]
    rebuild_weights(there.at)


def _column(memory: Array, size: int, layout: Layout, one: Field) -> Array:
    """A field of rows, (size, *shape)."""
    inner = np.empty(one.shape, one.dtype).strides
    if size == 0:
        return np.zeros((0, *one.shape), one.dtype)
    strides = (layout.row_bytes, *inner)
    return np.ndarray((size, *one.shape), one.dtype, memory.data, one.offset, strides)
