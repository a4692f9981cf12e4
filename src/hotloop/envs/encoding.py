"""Conversion of observations to array rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.stacks import num_stacked_frames
from hotloop.envs.checks import describe_range, describe_value
from hotloop.envs.spaces import FLOAT_BYTES, Encoding, ObsField, ObsSpec
from hotloop.errors import EnvironmentFailure, NonFiniteStep, ShapeError, SpaceError
from hotloop.types import Array

if TYPE_CHECKING:
    from gymnasium import Space

MASK_KEY = "action_mask"
"""Key of action masks in `info` and in dict observations, see `hotloop.envs.masks`."""


Write = Callable[[Any, Array], None]
"""Writes an observation into an array (*shape), or a batch of them into (B, *shape)."""


class MismatchError(ValueError):
    """An observation outside its space. The caller raises `failure_class`, with the place.

    Attributes:
        row: index of the environment in a batch, if it is known.
    """

    failure_class: type[EnvironmentFailure] = EnvironmentFailure
    row: int | None = None


class RangeError(MismatchError):
    """An observation with a finite number that float32 does not hold."""

    failure_class = NonFiniteStep


def _check_range(value: Any, out: Array) -> None:
    """Raise RangeError if a finite number became infinite in the float32 array `out`."""
    numbers = np.asarray(value).reshape(out.shape)
    is_lost = ~np.isfinite(out) & np.isfinite(numbers)
    if is_lost.any():
        raise RangeError(describe_range("the observation", float(numbers[is_lost][0])))


class RowWriter:
    """Writes raw observations of an environment into rows of an array, in place.

    Args:
        spec: spec of the rows.
        keys: keys of the parts, if they are not the spec's names.

    Raises:
        SpaceError: the spec lacks the raw shape of an observation.
    """

    def __init__(self, spec: ObsSpec, keys: Sequence[Any] | None = None) -> None:
        self._spec = spec
        self._writers: list[tuple[Any, slice, Write]] = []
        if not spec.is_composite:
            self.write: Write = _part_writer(spec.layout[0], is_flat=False)
            return
        names = [part.name for part in spec.layout]
        keys = keys or (range(len(names)) if spec.is_tuple else names)
        for key, part in zip(keys, spec.layout, strict=True):
            write = _packed_writer(_part_writer(part, is_flat=True), part.dtype, spec.is_packed)
            self._writers.append((key, slice(part.start, part.stop), write))
        self.write = self._write_tuple if spec.is_tuple else self._write_dict

    def check_range(self, obs: Any, out: Array) -> None:
        """Check that float32 holds the numbers of observations that `write` wrote to `out`.

        Raises:
            RangeError: a number is finite and beyond the range of float32.
        """
        if out.dtype != np.float32:
            return
        if not self._writers:
            _check_range(obs, out)
        for (key, columns, _), part in zip(self._writers, self._spec.layout, strict=False):
            if part.encoding == "box":
                self._write_part(key, _check_range, obs[key], out[..., columns])

    def rows(self, obs: Any) -> tuple[Array, bool]:
        """Return observations as rows, and whether `obs` was a single observation.

        Args:
            obs: one raw observation, or one whose parts are batches (B, ...).

        Raises:
            ShapeError: `obs` does not match the environment's observation space.
        """
        try:
            first, part = self._first_part(obs), self._spec.layout[0]
            num_axes = np.ndim(first) - len(part.raw_shape or ())
            num_rows = len(first) if num_axes == 1 else 1
            rows = np.zeros((num_rows, *self._spec.shape), self._spec.dtype)
            self.write(obs, rows if num_axes == 1 else rows[0])
        except MismatchError as error:
            raise ShapeError(f"`obs`: {error}") from None
        return rows, num_axes != 1

    def _first_part(self, obs: Any) -> Any:
        """Return an observation's first part without checks, which `write` does."""
        if not self._writers:
            return obs
        key = self._writers[0][0]
        if isinstance(obs, Mapping):
            return obs.get(key, ())
        return obs[0] if isinstance(obs, tuple) and obs else ()

    def _write_dict(self, observation: Any, out: Array) -> None:
        if not isinstance(observation, Mapping):
            raise MismatchError(
                f"the observation must be a dict with the keys {self._names()}, "
                f"got {describe_value(observation)}"
            )
        for key, columns, write in self._writers:
            if key not in observation:
                raise MismatchError(
                    f"the observation must have the keys {self._names()}, got {list(observation)}"
                )
            self._write_part(key, write, observation[key], out[..., columns])

    def _write_tuple(self, observation: Any, out: Array) -> None:
        if not isinstance(observation, (tuple, list)) or len(observation) != len(self._writers):
            raise MismatchError(
                f"the observation must be a tuple of length {len(self._writers)}, "
                f"got {describe_value(observation)}"
            )
        for key, columns, write in self._writers:
            self._write_part(key, write, observation[key], out[..., columns])

    def _names(self) -> list[str]:
        return [str(key) for key, _, _ in self._writers]

    @staticmethod
    def _write_part(key: object, write: Write, part: Any, out: Array) -> None:
        try:
            write(part, out)
        except MismatchError as error:
            raise type(error)(f"part {key!r}: {error}") from None


class ObsEncoder:
    """Writes the observations of one space into rows of an array, in place.

    Boxes become float32 or uint8 arrays, and categories become one-hot vectors. A Dict or Tuple
    becomes one flat float32 vector, in the space's own order (that of `gymnasium.spaces.flatten`).
    If it contains images, the row is a vector of bytes: an image takes one byte per value instead
    of four, and float32 values are aligned to four bytes.

    Args:
        space: observation space of one environment.
        has_masks: whether an entry `action_mask` of a Dict is a mask and no observation.

    Attributes:
        spec: shape, dtype and layout of a row.
        box_shape: shape of raw observations that can be assigned to a row unchanged, None for
            observations that must be encoded.
        box_dtype: dtype of such observations, None if `box_shape` is None.
        write: function that writes an observation into a row, or a batch of them into rows.
        check_range: `RowWriter.check_range`.

    Raises:
        SpaceError: the space is not supported.
    """

    def __init__(self, space: Space[Any], *, has_masks: bool = False) -> None:
        from gymnasium import spaces

        self.box_shape: tuple[int, ...] | None = None
        self.box_dtype: np.dtype[Any] | None = None
        keys: list[Any] | None = None
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            is_tuple = isinstance(space, spaces.Tuple)
            parts = dict(enumerate(space.spaces)) if is_tuple else dict(space.spaces)
            if has_masks:
                parts = {key: part for key, part in parts.items() if key != MASK_KEY}
            keys = list(parts)
            self.spec = _composite_spec(parts, is_tuple=is_tuple)
        else:
            part = _make_field(space, str(space), name="")
            self.spec = ObsSpec(shape=part.shape, dtype=part.dtype, layout=(part,))
            if isinstance(space, spaces.Box) and space.shape == part.shape:
                self.box_shape, self.box_dtype = part.shape, space.dtype
        if math.prod(self.spec.shape) == 0:
            raise SpaceError(
                f"the observation space {space} holds no numbers: give the environment at least one"
            )
        writer = RowWriter(self.spec, keys)
        self.write: Write = writer.write
        self.check_range: Write = writer.check_range

    def spec_for(self, env: Any) -> ObsSpec:
        """Return the spec with the number of frames that `env` stacks."""
        shape = self.box_shape or ()
        return dataclasses.replace(self.spec, num_frames=num_stacked_frames(env, shape))


def _composite_spec(parts: Mapping[Any, Any], *, is_tuple: bool) -> ObsSpec:
    """Return the spec of a row that is the concatenation of several spaces."""
    fields = [
        _make_field(space, f"its part {key!r}, {space}", name=str(key))
        for key, space in parts.items()
    ]
    is_packed = any(part.is_image for part in fields)
    layout, start = [], 0
    for part in fields:
        is_bytes = part.is_image
        if is_packed and not is_bytes:
            start += -start % FLOAT_BYTES
        size = part.stop * (FLOAT_BYTES if is_packed and not is_bytes else 1)
        dtype = "uint8" if is_bytes else "float32"
        layout.append(dataclasses.replace(part, start=start, stop=start + size, dtype=dtype))
        start += size
    if is_packed:
        start += -start % FLOAT_BYTES  # aligns all rows of a batch
    dtype = "uint8" if is_packed else "float32"
    return ObsSpec(shape=(start,), dtype=dtype, layout=tuple(layout), is_tuple=is_tuple)


def _make_field(space: Any, description: str, *, name: str) -> ObsField:
    """Return the field of a space on its own, or raise SpaceError if unsupported."""
    from gymnasium import spaces

    # Choose the encoding by the kind of space.
    bounds: dict[str, Any] = {}
    is_bytes = isinstance(space, spaces.Box) and space.dtype == np.uint8
    counts, starts = np.empty((2, 0), np.int64)
    encoding: Encoding
    if isinstance(space, spaces.Box):
        encoding, raw_shape, shape = "box", space.shape, space.shape or (1,)
        if space.low.size:
            low, high = float(space.low.min()), float(space.high.max())
            bounds = {
                "low": low if math.isfinite(low) else None,
                "high": high if math.isfinite(high) else None,
                "byte_bounds": (low, high) if is_bytes else None,
            }
    elif isinstance(space, spaces.MultiBinary):
        encoding, raw_shape, shape = "binary", space.shape, space.shape
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        is_discrete = isinstance(space, spaces.Discrete)
        counts = np.atleast_1d(space.n if is_discrete else space.nvec.reshape(-1))
        starts = np.atleast_1d(np.asarray(space.start).reshape(-1))
        encoding, raw_shape = "one_hot", () if is_discrete else space.nvec.shape
        shape = (int(counts.sum()),)
    else:
        raise SpaceError(
            "observation spaces may be Box, Discrete, MultiDiscrete, MultiBinary, or one Dict or "
            f"Tuple of these, got {description}: {_obs_hint(space)}"
        )
    return ObsField(
        name=name,
        start=0,
        stop=math.prod(shape),
        shape=shape,
        encoding=encoding,
        dtype="uint8" if is_bytes else "float32",
        raw_shape=raw_shape,
        counts=tuple(counts.tolist()),
        starts=tuple(starts.tolist()),
        **bounds,
    )


def _obs_hint(space: Any) -> str:
    from gymnasium import spaces

    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return "flatten it first with `gymnasium.wrappers.FlattenObservation`"
    return "turn it into a Box with a `gymnasium.ObservationWrapper`"


def _packed_writer(write: Write, dtype: str, is_packed: bool) -> Write:
    """Return a function that writes a part into a row, as bytes if the row `is_packed`."""
    if not is_packed or dtype == "uint8":
        return write

    def write_numbers(value: Any, out: Array) -> None:
        numbers = out.view(np.float32)
        write(value, numbers)
        # Check now, since later checks see only bytes.
        if not np.isfinite(numbers).all():
            _check_range(value, numbers)
            raise MismatchError(
                f"the observation must be finite, got {describe_value(value)}: find the "
                "computation that yields NaN or infinity"
            )

    return write_numbers


def _part_writer(part: ObsField, *, is_flat: bool) -> Write:
    """Return a function that writes a part, or raise SpaceError if its raw shape is unknown."""
    if part.raw_shape is None or (part.encoding == "one_hot" and not part.counts):
        raise SpaceError(
            f"the raw shape of observation {part.name or 'itself'!r} was not stored when this "
            "policy was trained: pass rows as `make_vec` returns them"
        )
    if part.encoding == "one_hot":
        return _one_hot_writer(part.raw_shape, np.array(part.counts), np.array(part.starts))
    kind = "uint8" if part.dtype == "uint8" else "numbers"
    return _array_writer(part.raw_shape, kind, is_flat=is_flat)


def _array_writer(shape: tuple[int, ...], kind: str, *, is_flat: bool) -> Write:
    """Return a function that checks an array and copies it into a row."""
    allowed = "u" if kind == "uint8" else "fiub"
    row_axes = 1 if is_flat else max(len(shape), 1)

    def write(value: Any, out: Array) -> None:
        array = _as_array(value)
        expected = out.shape[: out.ndim - row_axes] + shape
        if array.shape != expected:
            raise MismatchError(
                f"the observation must have shape {expected}, got {describe_value(value)}: "
                "return an observation of its space"
            )
        if array.dtype.kind not in allowed or (kind == "uint8" and array.itemsize != 1):
            raise MismatchError(
                f"the observation must hold {kind}, got {describe_value(value)}: "
                "return the dtype of the observation space"
            )
        out[...] = array.reshape(out.shape)

    return write


def _one_hot_writer(shape: tuple[int, ...], counts: Array, starts: Array) -> Write:
    """Return a function that checks integers and writes them into a row as one-hot vectors."""
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])

    def write(value: Any, out: Array) -> None:
        array = _as_array(value)
        expected = out.shape[:-1] + shape
        if array.shape != expected or array.dtype.kind not in "iu":
            raise MismatchError(
                f"the observation must be integers of shape {expected}, "
                f"got {describe_value(value)}: return an observation of its space"
            )
        # uint64 − int64 would be float64.
        index = array.astype(np.int64, copy=False).reshape(*out.shape[:-1], len(counts)) - starts
        if (index < 0).any() or (index >= counts).any():
            raise MismatchError(
                f"the observation must lie in {starts.tolist()} … "
                f"{(starts + counts - 1).tolist()}, got {array.tolist()}: correct the space or the "
                "observation"
            )
        positions = index + offsets
        out[...] = 0.0
        if out.ndim == 1:
            out[positions] = 1.0
        else:
            out[np.arange(len(out))[:, None], positions] = 1.0

    return write


def _as_array(value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError:  # a ragged list
        raise MismatchError(
            f"the observation must be an array, got {describe_value(value)}: return a NumPy array"
        ) from None
