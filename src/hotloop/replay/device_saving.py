"""Saving and loading of a device's replay, in the file format of `ReplayBuffer`.

`save` copies the replay into an equivalent `ReplayBuffer` on the host, and `restore` reads a file
into one, which checks it. The host's memory must have room for this copy.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hotloop.base.transfer import to_device, to_host
from hotloop.replay.native.entry_points import rebuild_weights
from hotloop.replay.saving import row_words
from hotloop.replay.storage.device_memory import unnested
from hotloop.replay.storage.frame_ring import FrameRing
from hotloop.replay.storage.layout import Field, RowLayout
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.replay.buffer import ReplayBuffer
    from hotloop.replay.device_buffer import DeviceReplay
    from hotloop.replay.storage.n_step_windows import NStepWindows

# State of a weighted buffer besides its fields: in the handle, by environment, and by row.
_HANDLE_FIELDS = ("random", "base", "filled", "stale")
_PER_ENV_FIELDS = ("head_weights", "env_return", "env_first", "env_last")
_ROW_WORDS = ("previous", "raw_reward")
_MAX_BATCH = 1024  # transitions copied at once


def save(replay: DeviceReplay, path: Path) -> None:
    """Save a device's replay, see `DeviceReplay.save`."""
    host, stored = replay.new_host_buffer(), replay.stored
    size = min(replay.num_added, replay.capacity)
    columns = to_host(stored.rows[:size]).view(replay.layout.dtype)[:, 0]
    rows: dict[str, Array] = {name: columns[name] for name in replay.layout.dtype.names or ()}
    rows |= {name: array[:size] for name, array in replay.flags.items()}
    if len(replay) < size:  # frames were overwritten: repeat the oldest complete row
        oldest = replay.num_added - len(replay)
        overwritten = np.arange(replay.num_added - size, oldest) % replay.capacity
        rows = {name: array.copy() for name, array in rows.items()}
        for array in rows.values():
            array[overwritten] = array[oldest % replay.capacity]
    if replay.frames is not None:
        _fill_frames(host, rows.pop("places"), replay)
    fill(host, replay.num_added, rows, replay.windows)
    if replay.random_state is not None:
        host._store.handle["random"] = replay.random_state
    if replay.index is not None:
        _copy_weights(host, replay.index)
    host.num_samples = replay.num_samples
    host.save(path)


def restore(replay: DeviceReplay, path: Path) -> None:
    """Load a file into a device's replay, see `DeviceReplay.restore`."""
    host = replay.new_host_buffer()
    host.restore(path)
    added, size = host.num_added, len(host)
    rows = {
        field.path[-1]: _column(host._store.rows, size, host.layout, field)
        for field in host.layout.fields
        if field.place == "row" and field.path[-1] != "obs"
    }
    if "discount" not in rows:
        rows["discount"] = np.logical_not(rows["terminated"]).astype(np.float32)
    replay.restart_at(added - size, host.num_samples)
    replay.random_state = host._store.handle["random"].copy()
    frames = None if replay.frames is None else _Uploader(host, replay.frames)
    max_batch = _MAX_BATCH if replay.frames is None else replay.frames.max_steps
    for first in range(added - size, added, max_batch):
        number = np.arange(first, min(first + max_batch, added))
        slots = number % replay.capacity
        batch_rows = {name: column[slots] for name, column in rows.items()}
        if frames is None or "mask" in rows:
            batch = host.get(number)
            batch_rows |= unnested({"obs": batch.obs, "next_obs": batch.next_obs})
        if frames is not None:
            batch_rows |= frames.row_frames(slots)
        replay.append(batch_rows)
    _restore_windows(host, replay.windows, frames)
    if replay.index is not None:
        outcomes = {name: rows[name] for name in ("reward", "discount", "terminated", "truncated")}
        empty = dict.fromkeys(("obs", "next_obs"), np.zeros((size, 1), np.uint8))
        replay.index = replay.new_weight_index()
        fill(replay.index, added, {**outcomes, **empty}, without_obs(replay.windows))
        _copy_weights(replay.index, host)
        replay.index.num_samples = host.num_samples


def fill(host: ReplayBuffer, added: int, rows: Mapping[str, Array], windows: NStepWindows) -> None:
    """Fill an empty buffer with transitions and waiting steps.

    Args:
        host: the buffer.
        added: number of transitions stored so far.
        rows: arrays by field, (size, …), in the order of slots, without frames.
        windows: the waiting steps.
    """
    store, layout, size = host._store, host.layout, len(rows["reward"])
    store.handle["added"], store.handle["size"] = added, size
    for field in layout.fields if size else ():
        if field.place == "row":
            _column(store.rows, size, layout, field)[:] = rows[field.path[-1]]
    if layout.link >= 0 and size:
        _link_rows(host, added, *(_shared_bytes(layout, rows, prefix) for prefix in ("", "next_")))
    n_step, per_env = host.settings["n_step"], store.per_env
    per_env["env_steps"][:] = windows.num_steps
    per_env["env_waiting"][:] = [len(window) for window in windows.waiting]
    per_env["env_pending"][:] = per_env["env_waiting"] > 0
    num_heads = len(windows.waiting) * n_step
    columns = {
        field.path[-1]: _column(store.heads, num_heads, layout, field)
        for field in layout.fields
        if field.place == "row"
    }
    for env, window in enumerate(windows.waiting):
        following = int(windows.num_steps[env])
        for step, fields in enumerate(window, following - len(window)):
            for name in columns.keys() & fields.keys():
                columns[name][env * n_step + step % n_step] = fields[name][0]
        for name in columns.keys() & {"obs", "mask"} if window else ():
            columns[name][env * n_step + following % n_step] = window[-1][f"next_{name}"][0]


def _shared_bytes(layout: RowLayout, rows: Mapping[str, Array], prefix: str) -> Array:
    """Return the parts of an observation that rows share, as bytes, (size, obs_bytes)."""
    size = len(rows["reward"])
    shared = np.zeros((size, layout.obs_bytes), np.uint8)
    for field in layout.fields:
        if field.place == "row" and field.path[0] == "obs":
            part = np.ascontiguousarray(rows[f"{prefix}{field.path[-1]}"]).reshape(size, -1)
            shared[:, field.offset : field.offset + field.size_bytes] = part.view(np.uint8)
    return shared


def _link_rows(buffer: ReplayBuffer, added: int, obs: Array, next_obs: Array) -> None:
    """Link each row with its next observation: the one of a later row, or a final observation.

    `obs` and `next_obs` are those of `_shared_bytes`.
    """
    store, settings, size = buffer._store, buffer.settings, len(obs)
    slots, capacity = np.arange(size), settings["capacity"]
    oldest = added - size
    later = oldest + (slots - oldest) % capacity + settings["num_envs"] * settings["n_step"]
    following = np.where(later < added, later % capacity, 0)
    is_same = (next_obs == obs[following]).all(1) & (later < added)
    unshared = np.flatnonzero(~is_same)
    links = np.where(is_same, following, 0)
    links[unshared] = -1 - np.arange(len(unshared))
    row_words(store.rows, size, buffer.layout.row_bytes, buffer.layout.link)[:, 0] = links
    num_finals = len(store.finals_free)
    store.add_finals(max(0, len(unshared) + settings["n_step"] + 1 - num_finals))
    finals = next_obs[unshared]
    store.finals[: finals.nbytes] = finals.reshape(-1)
    free = np.arange(len(unshared), len(store.finals_free))
    store.finals_free[: len(free)] = free
    store.handle["finals_num_free"] = len(free)


def _fill_frames(buffer: ReplayBuffer, places: Array, replay: DeviceReplay) -> None:
    """Copy a device's frames into an empty buffer. `places` are slots, int32, (size, 2, S)."""
    store, windows = buffer._store, replay.windows
    (field,), (pool,) = buffer.layout.frame_fields, store.pools
    assert replay.frames is not None
    assert replay.stored.frames is not None
    n_step, frame_slots, heads = buffer.settings["n_step"], [places.reshape(-1, field.stack)], []
    for env, window in enumerate(windows.waiting):
        following = int(windows.num_steps[env])
        for step, fields in enumerate(window, following - len(window)):
            heads.append(env * n_step + step % n_step)
            frame_slots.append(fields["obs"] % replay.frames.size)
        if window:
            heads.append(env * n_step + following % n_step)
            frame_slots.append(window[-1]["next_obs"] % replay.frames.size)
    # Number the frames in use without gaps, and copy them.
    joined = np.concatenate(frame_slots)
    used, numbers, counts = np.unique(joined, return_inverse=True, return_counts=True)
    numbers = numbers.reshape(joined.shape)
    pool.restore_counts(len(used), 0)
    pool.counts[: len(used)] = counts
    num_done = 0
    for chunk in pool.chunks:
        chunk_slots = used[num_done : num_done + len(chunk) // field.frame_bytes]
        frames = to_host(replay.stored.frames[to_device(chunk_slots, replay.device)])
        chunk[: frames.nbytes] = frames.reshape(-1).view(np.uint8)
        num_done += len(chunk_slots)
    # Write the new numbers into rows and heads.
    size, stride = len(places), buffer.layout.row_bytes
    row_numbers = numbers[: 2 * size].reshape(size, 2, field.stack)
    for k, offset in enumerate((field.refs, field.next_refs)):
        row_words(store.rows, size, stride, offset, field.stack)[:] = row_numbers[:, k]
    num_heads = buffer.settings["num_envs"] * n_step
    row_words(store.heads, num_heads, stride, field.refs, field.stack)[heads] = numbers[2 * size :]


class _Uploader:
    """Copies a buffer's frames to a device's ring, each frame once."""

    def __init__(self, buffer: ReplayBuffer, ring: FrameRing) -> None:
        self._buffer, self._ring = buffer, ring
        (self._field,), (self._pool,) = buffer.layout.frame_fields, buffer._store.pools
        # Numbers in the ring, by number in the buffer.
        self._numbers = np.full(self._pool.num_used, -1, np.int64)

    def row_frames(self, slots: Array) -> dict[str, Array]:
        """Return the ring's frame numbers of rows, by field, (E, S)."""
        layout, field = self._buffer.layout, self._field
        size, rows = len(self._buffer), self._buffer._store.rows
        words = [
            row_words(rows, size, layout.row_bytes, offset, field.stack)[slots]
            for offset in (field.refs, field.next_refs)
        ]
        both = self._append_frames(np.stack(words, 1))
        return {"obs": both[:, 0], "next_obs": both[:, 1]}

    def head_frames(self, head: int) -> Array:
        """Return the ring's frame numbers of a head, (1, S)."""
        store, field = self._buffer._store, self._field
        size = self._buffer.settings["num_envs"] * self._buffer.settings["n_step"]
        refs = row_words(store.heads, size, self._buffer.layout.row_bytes, field.refs, field.stack)
        return self._append_frames(refs[head : head + 1])

    def _append_frames(self, words: Array) -> Array:
        flat = words.reshape(-1)
        _, first_positions = np.unique(flat, return_index=True)
        for number in flat[np.sort(first_positions)].tolist():
            if self._numbers[number] < 0:
                self._numbers[number] = self._ring.append(self._frame(number))
        return self._numbers[words]

    def _frame(self, number: int) -> Array:
        obs = next(field for field in self._buffer.fields if field.path in (("obs",), ("obs",) * 2))
        size = self._field.frame_bytes
        per_chunk = len(self._pool.chunks[0]) // size
        chunk = self._pool.chunks[number // per_chunk]
        frame = chunk[number % per_chunk * size : (number % per_chunk + 1) * size].view(obs.dtype)
        return frame.reshape(obs.shape if self._field.stack == 1 else obs.shape[1:])


def _restore_windows(buffer: ReplayBuffer, windows: NStepWindows, frames: _Uploader | None) -> None:
    """Read the waiting steps of a buffer."""
    store, n_step = buffer._store, buffer.settings["n_step"]
    num_envs = buffer.settings["num_envs"]
    columns = {
        field.path[-1]: _column(store.heads, num_envs * n_step, buffer.layout, field)
        for field in buffer.layout.fields
        if field.place == "row" and field.name != "discount"
    }
    windows.num_steps[:] = store.per_env["env_steps"]

    def obs_of(head: int) -> Array:
        return columns["obs"][head : head + 1] if frames is None else frames.head_frames(head)

    for env in range(num_envs):
        following, count = int(windows.num_steps[env]), int(store.per_env["env_waiting"][env])
        for step in range(following - count, following):
            head, after = (env * n_step + k % n_step for k in (step, step + 1))
            fields = {name: column[head : head + 1].copy() for name, column in columns.items()}
            both = {"obs": obs_of(head).copy(), "next_obs": obs_of(after).copy()}
            if "mask" in columns:
                both["next_mask"] = columns["mask"][after : after + 1].copy()
            windows.waiting[env].append({**fields, **both})


def without_obs(windows: NStepWindows) -> NStepWindows:
    """Return windows with empty observations, as for a buffer that stores weights only."""
    empty = {name: np.zeros((1, 1), np.uint8) for name in ("obs", "next_obs")}
    copied = copy.copy(windows)
    copied.waiting = [[{**step, **empty} for step in window] for window in windows.waiting]
    return copied


def _copy_weights(target: ReplayBuffer, source: ReplayBuffer) -> None:
    """Copy weights and random state between two buffers of the same transitions."""
    size, target_store, source_store = len(source), target._store, source._store
    for name in _HANDLE_FIELDS:
        target_store.handle[name] = source_store.handle[name]
    for name in _PER_ENV_FIELDS:
        target_store.per_env[name][:] = source_store.per_env[name]
    for name in _ROW_WORDS:
        offset = getattr(source.layout, name)
        if offset >= 0 and size:
            column = row_words(source_store.rows, size, source.layout.row_bytes, offset)
            target_offset = getattr(target.layout, name)
            row_words(target_store.rows, size, target.layout.row_bytes, target_offset)[:] = column
    if source.sampler.weighted:
        target_store.weights["leaves"][:size] = source_store.weights["leaves"][:size]
    rebuild_weights(target_store.address)


def _column(memory: Array, size: int, layout: RowLayout, field: Field) -> Array:
    """Return a field of rows as a view, (size, *shape)."""
    inner = np.empty(field.shape, field.dtype).strides
    if size == 0:
        return np.zeros((0, *field.shape), field.dtype)
    strides = (layout.row_bytes, *inner)
    return np.ndarray((size, *field.shape), field.dtype, memory.data, field.offset, strides)
