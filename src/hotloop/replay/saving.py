"""Files of buffers: an uncompressed zip archive with a header and the raw arrays.

Files are written and read in chunks, which avoids a second copy in memory. Nothing is pickled, and
all contents are checked before use: sizes, checksums, and the ranges of links.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.files import atomic_write, open_regular
from hotloop.errors import CheckpointError, ConfigError, HotloopError, shortened
from hotloop.replay.native.entry_points import rebuild_weights
from hotloop.replay.native.handle import MAX_WEIGHT
from hotloop.replay.native.rows import HEAD
from hotloop.replay.samplers import sampler_from_json, sampler_to_json
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.replay.buffer import ReplayBuffer
    from hotloop.replay.storage.host_store import HostStore

FORMAT, VERSION = "hotloop replay", 1
_CHUNK_BYTES = 1 << 24
_HANDLE_FIELDS = ("random", "added", "base", "filled", "stale", "finals_free")
# State of each environment: fields of the handle, and the names of their parts of the file.
_PER_ENV_PARTS = {
    "linking_slots": "env_39",
    "head_weights": "env_40",
    "env_steps": "env_41",
    "env_waiting": "env_42",
    "env_pending": "env_43",
    "env_return": "env_44",
    "env_first": "env_45",
    "env_last": "env_49",
}


def save(buffer: ReplayBuffer, path: Path) -> None:
    """Save a buffer. The new file replaces an existing one only when it is complete."""
    arrays, store = _arrays_by_part(buffer), buffer._store
    header = {
        "format": FORMAT,
        "version": VERSION,
        "byte_order": sys.byteorder,
        **_identity(buffer),
        "num_samples": buffer.num_samples,
        "words": {name: _handle_words(store, name).tolist() for name in _HANDLE_FIELDS},
        "pools": [[pool.num_used, pool.num_free] for pool in store.pools],
        "sizes": {name: sum(piece.nbytes for piece in pieces) for name, pieces in arrays.items()},
    }
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("header.json", json.dumps(header))
        for name, pieces in arrays.items():
            with archive.open(name, "w", force_zip64=True) as file:
                for piece in _as_chunks(pieces):
                    file.write(piece)


def load(
    kind: type[ReplayBuffer],
    path: Path,
    memory_map: str | os.PathLike[str] | None,
    like: ReplayBuffer | None = None,
) -> ReplayBuffer:
    """Return a new buffer with a file's contents. Its settings must match those of `like`."""
    with _open_archive(path) as (archive, header):
        for name, expected in (_identity(like) if like is not None else {}).items():
            if _without_schedule(header.get(name)) != _without_schedule(expected):
                raise CheckpointError(
                    f"{path} is of a buffer with other {name}: {header.get(name)}, and this one "
                    f"has {expected}: `ReplayBuffer.load` returns a buffer like the saved one"
                )
        for name, size in header["sizes"].items():
            if archive.getinfo(name).file_size != size:
                raise CheckpointError(f"{path} is cut short, in its part {name}")
        try:
            buffer = kind(
                fields=_nested_fields(header["fields"]),
                sampler=sampler_from_json(header["sampler"]),
                memory_map=memory_map,
                **header["settings"],
            )
        except ConfigError as error:
            raise CheckpointError(f"{path} describes no buffer: {error}") from error
        _read_arrays(buffer, archive, header, path)
    return buffer


def _identity(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return the settings that two buffers must share for `restore`."""
    fields = [[field.path, field.shape, field.dtype.name] for field in buffer.fields]
    identity = {
        "settings": buffer.settings,
        "fields": fields,
        "sampler": sampler_to_json(buffer.sampler),
    }
    return json.loads(json.dumps(identity))


def _without_schedule(value: Any) -> Any:
    """Return a sampler's settings without `beta_samples`, and other values unchanged."""
    if isinstance(value, dict):
        return {name: setting for name, setting in value.items() if name != "beta_samples"}
    return value


def _nested_fields(fields: list[Any]) -> dict[str, Any]:
    """Return saved fields as a declaration for `ReplayBuffer`."""
    nested: dict[str, Any] = {}
    for path, shape, dtype in fields:
        parent = nested
        for key in path[:-1]:
            parent = parent.setdefault(key, {})
        parent[path[-1]] = (tuple(shape), np.dtype(dtype))
    return nested


def _handle_words(store: HostStore, name: str) -> Array:
    """Return a field of the handle as a view of int64 words."""
    field = "finals_num_free" if name == "finals_free" else name
    return store.handles[field].view(np.int64).reshape(-1)


def _arrays_by_part(buffer: ReplayBuffer) -> dict[str, list[Array]]:
    """Return the arrays of a buffer, each in pieces, by part of the file and in its order."""
    size, store = len(buffer), buffer._store
    arrays = {
        "rows": [store.rows[: size * buffer.layout.row_bytes]],
        "heads": [store.heads],
        "finals": [store.finals],
        "finals_free": [store.finals_free],
        **{part: [store.per_env[name]] for name, part in _PER_ENV_PARTS.items()},
    }
    if buffer.sampler.weighted:
        arrays["weights"] = [store.weights["leaves"][:size]]
    for number, pool in enumerate(store.pools):
        arrays[f"pool_{number}_counts"] = [pool.counts[: pool.num_used]]
        arrays[f"pool_{number}_free"] = [pool.free[: pool.num_free]]
        arrays[f"pool_{number}_frames"] = pool.pieces()
    return arrays


def _as_chunks(pieces: list[Array]) -> Iterator[memoryview]:
    for piece in pieces:
        view = piece.data.cast("B") if piece.nbytes else memoryview(b"")
        for start in range(0, len(view), _CHUNK_BYTES):
            yield view[start : start + _CHUNK_BYTES]


@contextmanager
def _open_archive(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
    """Yield the archive and its header. Convert errors of the body into CheckpointError."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            header = json.loads(archive.read("header.json"))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise CheckpointError(f"{path} is no saved replay buffer: pass a file of `save`")
            if header.get("version") != VERSION:
                raise CheckpointError(
                    f"{path} is of version {header.get('version')}, and this hotloop reads "
                    f"{VERSION}: load it with the version that wrote it"
                )
            if header.get("byte_order") != sys.byteorder:
                raise CheckpointError(f"{path} was written on a machine of the other byte order")
            header["settings"] = {  # defaults of options that older files lack
                "next_step_autoreset": False,
                **dict(header["settings"]),
            }
            yield archive, header
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {path}: pass a file of `save`") from error
    except HotloopError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} can't be read ({error.strerror or error})") from error
    except Exception as error:  # the file may have any content
        reason = shortened(str(error))
        raise CheckpointError(
            f"{path} is cut short or damaged ({reason}), or no saved replay buffer: use another "
            "copy"
        ) from error


def _read_arrays(
    buffer: ReplayBuffer, archive: zipfile.ZipFile, header: dict[str, Any], path: Path
) -> None:
    """Read the content of a file into a buffer, and check it.

    Raises:
        CheckpointError: the file is damaged, or does not match its header.
    """
    words, pools, store = header["words"], header["pools"], buffer._store
    for name in _HANDLE_FIELDS[:-1]:
        _handle_words(store, name)[:] = words[name]
    added = int(store.handle["added"])
    store.handle["size"] = min(added, buffer.capacity)
    buffer.num_samples = int(header["num_samples"])
    num_finals = header["sizes"]["finals_free"] // 4
    store.add_finals(max(num_finals - len(store.finals_free), 0))
    _handle_words(store, "finals_free")[:] = words["finals_free"]
    for pool, (num_used, num_free) in zip(store.pools, pools, strict=True):
        pool.restore_counts(num_used, num_free)
    arrays = _arrays_by_part(buffer)
    sizes = {name: sum(piece.nbytes for piece in pieces) for name, pieces in arrays.items()}
    random, base = store.handle["random"], store.handle["base"]
    if sizes != header["sizes"] or added < 0 or not random.any() or not np.isfinite(base):
        raise CheckpointError(f"{path} does not match its header: use another copy")
    for name, pieces in arrays.items():
        with archive.open(name) as file:
            for piece in _as_chunks(pieces):
                if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                    raise CheckpointError(f"{path} is cut short, in its part {name}")
            if file.read(1):  # zipfile compares the checksum at the end
                raise CheckpointError(f"{path} is damaged, in its part {name}")
    _check_references(buffer, path)
    rebuild_weights(store.address)


def _check_references(buffer: ReplayBuffer, path: Path) -> None:
    """Raise CheckpointError if links, frame counts or weights are out of range."""
    size, layout, store = len(buffer), buffer.layout, buffer._store
    per_env = store.per_env
    num_envs, n_step = buffer.settings["num_envs"], buffer.settings["n_step"]
    num_finals, added = len(store.finals_free), buffer.num_added
    num_free = int(store.handle["finals_num_free"])
    waiting, steps = per_env["env_waiting"], per_env["env_steps"]
    # State of the environments.
    checks = [
        _is_inside(per_env["linking_slots"], -1, max(size, 1)),
        _is_inside(waiting, 0, n_step),
        _is_inside(steps, 0, 1 << 62),
        _is_inside(per_env["env_first"], -1, added),
        _is_inside(per_env["env_last"], -1, added),
        bool((abs(per_env["env_return"]) <= MAX_WEIGHT).all()),
        0 <= num_free <= num_finals,
        _is_inside(store.finals_free[: max(num_free, 0)], 0, num_finals),
    ]
    # Links to next observations.
    if layout.link >= 0:
        links = row_words(store.rows, size, layout.row_bytes, layout.link)
        heads = links >= HEAD
        heads_exist = _is_inside(links[heads], HEAD, HEAD + num_envs * n_step)
        checks.append(heads_exist)
        checks.append(_is_inside(links[~heads], -num_finals, max(size, 1)))
        finals = np.concatenate([store.finals_free[: max(num_free, 0)], -1 - links[links < 0]])
        checks.append(np.array_equal(np.sort(finals), np.arange(num_finals)))
        # Heads and the rows that link to them must match.
        linking, linked_heads = np.flatnonzero(heads), links[heads] - HEAD
        expected = np.full(num_envs * n_step, -1, np.int64)
        if heads_exist:
            expected[linked_heads] = linking
        checks.append(np.array_equal(per_env["linking_slots"], expected))
    # Distances between entries of an environment.
    if layout.previous >= 0:
        previous = row_words(store.rows, size, layout.row_bytes, layout.previous)[:, 0]
        checks.append(_is_inside(previous, 0, 1 << 31))
        if layout.following >= 0:
            following = row_words(store.rows, size, layout.row_bytes, layout.following)[:, 0]
            later = (added - 1 - np.arange(size)) % max(size, 1)  # number of later entries, by slot
            checks.append(bool(((following >= 0) & (following <= later)).all()))
            if checks[-1]:  # the next entry must link back
                linking = np.flatnonzero(following)
                step = following[linking]
                checks.append(np.array_equal(previous[(linking + step) % max(size, 1)], step))
    # Frame counts. Waiting steps and the observation after the last step have frames in heads.
    ages = np.arange(n_step + 1)
    pending = per_env["env_pending"] != 0
    holds = np.where(ages == 0, pending[:, None], ages <= waiting[:, None])
    heads_at = np.arange(num_envs)[:, None] * n_step + (steps[:, None] - ages) % n_step
    for pool in store.pools:
        field, num_used = pool.field, pool.num_used
        num_heads = num_envs * n_step
        in_heads = row_words(store.heads, num_heads, layout.row_bytes, field.refs, field.stack)
        holders = heads_at[holds if field.is_shared else holds & (ages > 0)]
        ref_arrays = [in_heads[holders].reshape(-1)]
        for offset in (field.refs, field.next_refs)[: 1 + field.is_shared]:
            words = row_words(store.rows, size, layout.row_bytes, offset, field.stack)
            ref_arrays.append(words.reshape(-1))
        refs = np.concatenate(ref_arrays)
        checks.append(_is_inside(refs, 0, num_used))
        checks.append(_is_inside(pool.free[: pool.num_free], 0, num_used))
        if all(checks):
            counts = np.bincount(refs, minlength=num_used)
            checks.append(bool((pool.counts[:num_used] == counts).all()))
            free = np.sort(pool.free[: pool.num_free])
            checks.append(bool(np.array_equal(free, np.flatnonzero(counts == 0))))
    if buffer.sampler.weighted:
        minimum = 0.0 if store.handle["has_priorities"] else -MAX_WEIGHT
        weights = store.weights["leaves"][:size]
        checks.append(bool(((weights >= minimum) & (weights <= MAX_WEIGHT)).all()))
    if not all(checks):
        raise CheckpointError(f"{path} is damaged: it has invalid references; use another copy")


def row_words(memory: Array, size: int, stride: int, offset: int, count: int = 1) -> Array:
    """Return int32 words of rows as a view, (size, count)."""
    if size == 0:
        return np.zeros((0, count), np.int32)
    return np.ndarray((size, count), np.int32, memory.data, offset, (stride, 4))


def _is_inside(values: Array, lower: int, upper: int) -> bool:
    return bool(((values >= lower) & (values < upper)).all())
