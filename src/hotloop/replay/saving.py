"""A buffer as one file: a zip archive, not compressed, of a header and the arrays as they lie.

It is written and read in pieces, so it takes no second buffer's memory. Nothing in it is pickled,
and what is read is checked before it is used: sizes, checksums, and that no link leads outside.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.errors import CheckpointError, ConfigError, HotloopError
from hotloop.replay.native.calls import rebuild_weights
from hotloop.replay.native.handle import MAX_WEIGHT
from hotloop.replay.native.rows import HEAD
from hotloop.replay.samplers import sampler_from_json, sampler_to_json
from hotloop.system.files import written_whole
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.replay.buffer import ReplayBuffer
    from hotloop.replay.storage.host import Store

FORMAT, VERSION = "hotloop replay", 1
# What zipfile and json raise where bytes are not what they were.
_DAMAGES = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    IndexError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)
_PIECE = 1 << 24  # bytes at a time
_COUNTS = ("random", "added", "base", "filled", "stale", "finals_free")
# What is known of each environment: names in the handle, and of parts of the file.
_PER_ENV = {
    "open": "env_39",
    "head_weights": "env_40",
    "env_steps": "env_41",
    "env_waiting": "env_42",
    "env_pending": "env_43",
    "env_return": "env_44",
    "env_first": "env_45",
    "env_last": "env_49",
}


def save(buffer: ReplayBuffer, path: Path) -> None:
    """Write the file; what was there before stays until it is whole."""
    arrays, store = _arrays(buffer), buffer._store
    header = {
        "format": FORMAT,
        "version": VERSION,
        "byte_order": sys.byteorder,
        **_identity(buffer),
        "num_samples": buffer.num_samples,
        "words": {name: _bits(store, name).tolist() for name in _COUNTS},
        "pools": [[pool.num_used, pool.num_free] for pool in store.pools],
        "sizes": {name: sum(piece.nbytes for piece in pieces) for name, pieces in arrays.items()},
    }
    with written_whole(path) as aside, zipfile.ZipFile(aside, "w") as archive:
        archive.writestr("header.json", json.dumps(header))
        for name, pieces in arrays.items():
            with archive.open(name, "w", force_zip64=True) as file:
                for piece in _cut(pieces):
                    file.write(piece)


def load(
    kind: type[ReplayBuffer],
    path: Path,
    memory_map: str | os.PathLike[str] | None,
    like: ReplayBuffer | None = None,
) -> ReplayBuffer:
    """A new buffer, of what the file holds, if that is of the make of another one."""
    with _opened(path) as (archive, header):
        for name, own in (_identity(like) if like is not None else {}).items():
            if _without_schedule(header.get(name)) != _without_schedule(own):
                raise CheckpointError(
                    f"{path} is of a buffer with other {name}: {header.get(name)}, and this one "
                    f"has {own}: `ReplayBuffer.load` makes a buffer like the saved one"
                )
        for name, size in header["sizes"].items():
            if archive.getinfo(name).file_size != size:
                raise CheckpointError(f"{path} is cut short, in its part {name}")
        try:
            buffer = kind(
                fields=_nested(header["fields"]),
                sampler=sampler_from_json(header["sampler"]),
                memory_map=memory_map,
                **header["settings"],
            )
        except ConfigError as error:
            raise CheckpointError(f"{path} describes no buffer: {error}") from error
        _fill(buffer, archive, header, path)
    return buffer


def _identity(buffer: ReplayBuffer) -> dict[str, Any]:
    """What two buffers must share for one to take over the other's content."""
    fields = [[one.path, one.shape, one.dtype.name] for one in buffer.fields]
    identity = {
        "settings": buffer.settings,
        "fields": fields,
        "sampler": sampler_to_json(buffer.sampler),
    }
    return json.loads(json.dumps(identity))


def _without_schedule(value: Any) -> Any:
    """A sampler's settings but for what a longer run changes; anything else as it is."""
    if isinstance(value, dict):
        return {name: x for name, x in value.items() if name != "beta_samples"}
    return value


def _nested(fields: list[Any]) -> dict[str, Any]:
    """Fields as a user declares them."""
    found: dict[str, Any] = {}
    for path, shape, dtype in fields:
        inside = found
        for key in path[:-1]:
            inside = inside.setdefault(key, {})
        inside[path[-1]] = (tuple(shape), np.dtype(dtype))
    return found


def _bits(store: Store, name: str) -> Array:
    """A number of the handle, or several, as int64."""
    field = "finals_num_free" if name == "finals_free" else name
    return store.handles[field].view(np.int64).reshape(-1)


def _arrays(buffer: ReplayBuffer) -> dict[str, list[Array]]:
    """What a buffer consists of besides its header, each in pieces, in the order of the file."""
    size, store = len(buffer), buffer._store
    arrays = {
        "rows": [store.rows[: size * buffer.layout.row_bytes]],
        "heads": [store.heads],
        "finals": [store.finals],
        "finals_free": [store.finals_free],
        **{part: [store.per_env[name]] for name, part in _PER_ENV.items()},
    }
    if buffer.sampler.weighted:
        arrays["weights"] = [store.weights["leaves"][:size]]
    for number, pool in enumerate(store.pools):
        arrays[f"pool_{number}_counts"] = [pool.counts[: pool.num_used]]
        arrays[f"pool_{number}_free"] = [pool.free[: pool.num_free]]
        arrays[f"pool_{number}_frames"] = pool.pieces()
    return arrays


def _cut(pieces: list[Array]) -> Iterator[memoryview]:
    """The same as bytes, a limited number at a time."""
    for piece in pieces:
        view = piece.data.cast("B") if piece.nbytes else memoryview(b"")
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]


@contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
    """The archive and its header; whatever is wrong with the file becomes one kind of error."""
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read("header.json"))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise CheckpointError(f"{path} is no saved replay buffer: pass what `save` wrote")
            if header.get("version") != VERSION:
                raise CheckpointError(
                    f"{path} is of version {header.get('version')}, and this hotloop reads "
                    f"{VERSION}: load it with the one that wrote it"
                )
            if header.get("byte_order") != sys.byteorder:
                raise CheckpointError(f"{path} was written on a machine of the other byte order")
            header["settings"] = {  # older files lack what was added since
                "next_step_autoreset": False,
                **dict(header["settings"]),
            }
            yield archive, header
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {path}: pass what `save` wrote") from error
    except HotloopError:
        raise
    except _DAMAGES as error:
        raise CheckpointError(
            f"{path} is cut short or damaged ({error}), or no saved replay buffer: take another "
            "copy"
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} can't be read ({error.strerror or error})") from error


def _fill(
    buffer: ReplayBuffer, archive: zipfile.ZipFile, header: dict[str, Any], path: Path
) -> None:
    """Read everything into a buffer that was just built."""
    words, pools, store = header["words"], header["pools"], buffer._store
    for name in _COUNTS[:-1]:
        _bits(store, name)[:] = words[name]
    added = int(store.handle["added"])
    store.handle["size"] = min(added, buffer.capacity)
    buffer.num_samples = int(header["num_samples"])
    num_finals = header["sizes"]["finals_free"] // 4
    store.more_finals(max(num_finals - len(store.finals_free), 0))
    _bits(store, "finals_free")[:] = words["finals_free"]
    for pool, (num_used, num_free) in zip(store.pools, pools, strict=True):
        pool.reopen(num_used, num_free)
    arrays = _arrays(buffer)
    sizes = {name: sum(piece.nbytes for piece in pieces) for name, pieces in arrays.items()}
    random, base = store.handle["random"], store.handle["base"]
    if sizes != header["sizes"] or added < 0 or not random.any() or not np.isfinite(base):
        raise CheckpointError(f"{path} does not hold what its header says: take another copy")
    for name, pieces in arrays.items():
        with archive.open(name) as file:
            for piece in _cut(pieces):
                if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                    raise CheckpointError(f"{path} is cut short, in its part {name}")
            if file.read(1):  # its end is where the checksum is compared
                raise CheckpointError(f"{path} is damaged, in its part {name}")
    _check_references(buffer, path)
    rebuild_weights(store.at)


def _check_references(buffer: ReplayBuffer, path: Path) -> None:
    """That no link leads outside, no frame is counted wrongly, no weight is out of range."""
    size, layout, store = len(buffer), buffer.layout, buffer._store
    per_env = store.per_env
    num_envs, n_step = buffer.settings["num_envs"], buffer.settings["n_step"]
    num_finals, added = len(store.finals_free), buffer.num_added
    num_free = int(store.handle["finals_num_free"])
    waiting, steps = per_env["env_waiting"], per_env["env_steps"]
    good = [
        _inside(per_env["open"], -1, max(size, 1)),
        _inside(waiting, 0, n_step),
        _inside(steps, 0, 1 << 62),
        _inside(per_env["env_first"], -1, added),
        _inside(per_env["env_last"], -1, added),
        bool((abs(per_env["env_return"]) <= MAX_WEIGHT).all()),
        0 <= num_free <= num_finals,
        _inside(store.finals_free[: max(num_free, 0)], 0, num_finals),
    ]
    if layout.link >= 0:
        links = words_of(store.rows, size, layout.row_bytes, layout.link)
        heads = links >= HEAD
        heads_exist = _inside(links[heads], HEAD, HEAD + num_envs * n_step)
        good.append(heads_exist)
        good.append(_inside(links[~heads], -num_finals, max(size, 1)))
        finals = np.concatenate([store.finals_free[: max(num_free, 0)], -1 - links[links < 0]])
        good.append(np.array_equal(np.sort(finals), np.arange(num_finals)))
        # A head and the row that leads to it know of each other.
        leading, led_to = np.flatnonzero(heads), links[heads] - HEAD
        expected = np.full(num_envs * n_step, -1, np.int64)
        if heads_exist:
            expected[led_to] = leading
        good.append(np.array_equal(per_env["open"], expected))
    if layout.previous >= 0:
        previous = words_of(store.rows, size, layout.row_bytes, layout.previous)[:, 0]
        good.append(_inside(previous, 0, 1 << 31))
        if layout.following >= 0:
            following = words_of(store.rows, size, layout.row_bytes, layout.following)[:, 0]
            later = (added - 1 - np.arange(size)) % max(size, 1)  # entries after each slot's
            good.append(bool(((following >= 0) & (following <= later)).all()))
            if good[-1]:  # and what an entry leads to leads back
                leading = np.flatnonzero(following)
                on = following[leading]
                good.append(np.array_equal(previous[(leading + on) % max(size, 1)], on))
    # The heads that hold frames: of steps that wait, and of the observation after the last one.
    ages = np.arange(n_step + 1)
    pending = per_env["env_pending"] != 0
    holds = np.where(ages == 0, pending[:, None], ages <= waiting[:, None])
    heads_at = np.arange(num_envs)[:, None] * n_step + (steps[:, None] - ages) % n_step
    for pool in store.pools:
        apart, used = pool.apart, pool.num_used
        num_heads = num_envs * n_step
        in_heads = words_of(store.heads, num_heads, layout.row_bytes, apart.refs, apart.stack)
        holders = heads_at[holds if apart.shared else holds & (ages > 0)]
        found = [in_heads[holders].reshape(-1)]
        for offset in (apart.refs, apart.next_refs)[: 1 + apart.shared]:
            words = words_of(store.rows, size, layout.row_bytes, offset, apart.stack)
            found.append(words.reshape(-1))
        refs = np.concatenate(found)
        good.append(_inside(refs, 0, used))
        good.append(_inside(pool.free[: pool.num_free], 0, used))
        if all(good):
            counts = np.bincount(refs, minlength=used)
            good.append(bool((pool.counts[:used] == counts).all()))
            free = np.sort(pool.free[: pool.num_free])
            good.append(bool(np.array_equal(free, np.flatnonzero(counts == 0))))
    if buffer.sampler.weighted:
        least = 0.0 if store.handle["priorities"] else -MAX_WEIGHT
        weights = store.weights["leaves"][:size]
        good.append(bool(((weights >= least) & (weights <= MAX_WEIGHT)).all()))
    if not all(good):
        raise CheckpointError(f"{path} is damaged: some of it leads nowhere; take another copy")


def words_of(memory: Array, size: int, stride: int, offset: int, count: int = 1) -> Array:
    """int32 words of rows, (size, count)."""
    if size == 0:
        return np.zeros((0, count), np.int32)
    return np.ndarray((size, count), np.int32, memory.data, offset, (stride, 4))


def _inside(values: Array, least: int, below: int) -> bool:
    return bool(((values >= least) & (values < below)).all())
