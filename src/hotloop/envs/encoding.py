"""Conversion of spaces to arrays and back: observations into rows, actions out of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.envs.checks import describe_value
from hotloop.envs.spaces import ActionSpec, Encoding, ObsField, ObsSpec, is_image_shape
from hotloop.errors import ShapeError, SpaceError
from hotloop.stacks import num_stacked_frames
from hotloop.types import Array

if TYPE_CHECKING:
    from gymnasium import Space

_FLOAT_BYTES = 4

Write = Callable[[Any, Array], None]
"""Writes what an environment gave into (…, *shape); with one leading axis it gave a batch."""


class MismatchError(ValueError):
    """An observation that its space rules out; whoever knows the place turns it into a failure."""


class ObsEncoder:
    """Writes the observations of one space into rows of an array, in place.

    Boxes are kept, as float32 or uint8; categories become one-hot vectors; a Dict or Tuple of these
    becomes one flat float32 vector, in the space's own order (that of `gymnasium.spaces.flatten`).
    With images among them it is a vector of bytes: an image takes as many as it has, and not four
    times as many, and what is float32 stands at multiples of four.

    Args:
        space: of one environment's observations.

    Attributes:
        spec: shape, dtype and layout of a row.
        box_shape: shape of the environment's own array where it can be assigned to a row as it is,
            None where it must be encoded.
        box_dtype: its dtype, where `box_shape` is not None.

    Raises:
        SpaceError: the space is not supported.
    """

    def __init__(self, space: Space[Any]) -> None:
        from gymnasium import spaces

        self.box_shape: tuple[int, ...] | None = None
        self.box_dtype: np.dtype[Any] | None = None
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            if isinstance(space, spaces.Dict):
                parts: list[tuple[Any, Space[Any]]] = list(space.spaces.items())
            else:
                parts = list(enumerate(space.spaces))
            self._writers: list[tuple[Any, slice, Write]] = []
            self._is_packed = any(is_image(part) for _, part in parts)
            layout, start = [], 0
            for key, part in parts:
                shape, encoding, write = _encode_part(
                    part, f"its part {key!r}, {part}", is_flat=True
                )
                dtype = "uint8" if is_image(part) else "float32"
                if self._is_packed and dtype == "float32":
                    start += -start % _FLOAT_BYTES
                    stop = start + _FLOAT_BYTES * math.prod(shape)
                else:
                    stop = start + math.prod(shape)
                place = slice(start, stop)
                self._writers.append((key, place, _in_bytes(write, dtype, self._is_packed)))
                field = _field(part, str(key), place, shape, encoding, dtype)
                layout.append(field)
                start = stop
            if self._is_packed:
                start += -start % _FLOAT_BYTES  # so that rows of a batch are as well aligned
            dtype = "uint8" if self._is_packed else "float32"
            self.spec = ObsSpec(shape=(start,), dtype=dtype, layout=tuple(layout))
            self.write: Write = (
                self._write_dict if isinstance(space, spaces.Dict) else self._write_tuple
            )
        else:
            shape, encoding, self.write = _encode_part(space, str(space), is_flat=False)
            is_bytes = isinstance(space, spaces.Box) and space.dtype == np.uint8
            dtype = "uint8" if is_bytes else "float32"
            place = slice(0, math.prod(shape))
            field = _field(space, "", place, shape, encoding, dtype)
            self.spec = ObsSpec(shape=shape, dtype=dtype, layout=(field,))
            if isinstance(space, spaces.Box) and space.shape == shape:
                self.box_shape, self.box_dtype = shape, space.dtype
        if math.prod(self.spec.shape) == 0:
            raise SpaceError(
                f"the observation space {space} holds no numbers: give the environment at least one"
            )

    def spec_of(self, env: Any) -> ObsSpec:
        """Return the spec, with what is known of an environment that observes so."""
        shape = self.box_shape or ()
        return dataclasses.replace(self.spec, num_frames=num_stacked_frames(env, shape))

    def _write_dict(self, observation: Any, out: Array) -> None:
        if not isinstance(observation, Mapping):
            raise MismatchError(
                f"the observation must be a dict with the keys {self._names()}, "
                f"got {describe_value(observation)}"
            )
        for key, place, write in self._writers:
            if key not in observation:
                raise MismatchError(
                    f"the observation must have the keys {self._names()}, got {list(observation)}"
                )
            self._write_part(key, write, observation[key], out[..., place])

    def _write_tuple(self, observation: Any, out: Array) -> None:
        if not isinstance(observation, (tuple, list)) or len(observation) != len(self._writers):
            raise MismatchError(
                f"the observation must be a tuple of length {len(self._writers)}, "
                f"got {describe_value(observation)}"
            )
        for key, place, write in self._writers:
            self._write_part(key, write, observation[key], out[..., place])

    def _names(self) -> list[str]:
        return [str(key) for key, _, _ in self._writers]

    @staticmethod
    def _write_part(key: object, write: Write, part: Any, out: Array) -> None:
        try:
            write(part, out)
        except MismatchError as error:
            raise MismatchError(f"part {key!r}: {error}") from None


def is_image(space: Any) -> bool:
    """Whether a space is of images: bytes of two axes or three, none of them tiny but channels."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return False
    return is_image_shape(space.shape)


def _field(
    space: Any, name: str, place: slice, shape: tuple[int, ...], encoding: Encoding, dtype: str
) -> ObsField:
    """Describe a part of an observation that stands in `place`."""
    bounds: dict[str, float | None] = {}
    if encoding == "box" and space.low.size:
        low, high = float(space.low.min()), float(space.high.max())
        bounds = {
            "low": low if math.isfinite(low) else None,
            "high": high if math.isfinite(high) else None,
        }
    return ObsField(
        name=name,
        start=place.start,
        stop=place.stop,
        shape=shape,
        encoding=encoding,
        dtype=dtype,
        **bounds,
    )


def _in_bytes(write: Write, dtype: str, is_packed: bool) -> Write:
    """Return what writes a part into a row, which holds bytes where it `is_packed`."""
    if not is_packed or dtype == "uint8":
        return write

    def write_numbers(value: Any, out: Array) -> None:
        numbers = out.view(np.float32)
        write(value, numbers)
        # Here, since nobody else sees numbers in these bytes.
        if not np.isfinite(numbers).all():
            raise MismatchError(
                f"the observation must be finite, got {describe_value(value)}: find out where NaN "
                "or infinity comes from"
            )

    return write_numbers


def _encode_part(
    space: Any, description: str, *, is_flat: bool
) -> tuple[tuple[int, ...], Encoding, Write]:
    """Shape once encoded, how it is encoded, and what writes it (flat, inside a composite)."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        kind = "uint8" if space.dtype == np.uint8 else "numbers"
        return space.shape or (1,), "box", _array_writer(space.shape, kind, is_flat=is_flat)
    if isinstance(space, spaces.MultiBinary):
        return space.shape, "binary", _array_writer(space.shape, "numbers", is_flat=is_flat)
    if isinstance(space, spaces.Discrete):
        counts, starts = np.array([space.n]), np.array([space.start])
        return (int(space.n),), "one_hot", _one_hot_writer((), counts, starts)
    if isinstance(space, spaces.MultiDiscrete):
        counts, starts = space.nvec.reshape(-1), np.asarray(space.start).reshape(-1)
        return (int(counts.sum()),), "one_hot", _one_hot_writer(space.nvec.shape, counts, starts)
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        hint = "flatten it first with `gymnasium.wrappers.FlattenObservation`"
    else:
        hint = "turn it into a Box with a `gymnasium.ObservationWrapper`"
    raise SpaceError(
        "observation spaces may be Box, Discrete, MultiDiscrete, MultiBinary, or one Dict or Tuple "
        f"of these, got {description}: {hint}"
    )


def _array_writer(shape: tuple[int, ...], kind: str, *, is_flat: bool) -> Write:
    allowed = "u" if kind == "uint8" else "fiub"
    row_axes = 1 if is_flat else max(len(shape), 1)

    def write(value: Any, out: Array) -> None:
        array = _as_array(value)
        expected = out.shape[: out.ndim - row_axes] + shape
        if array.shape != expected:
            raise MismatchError(
                f"the observation must have shape {expected}, got {describe_value(value)}: "
                "return what the observation space says"
            )
        if array.dtype.kind not in allowed or (kind == "uint8" and array.itemsize != 1):
            raise MismatchError(
                f"the observation must hold {kind}, got {describe_value(value)}: "
                "return the dtype that the observation space says"
            )
        out[...] = array.reshape(out.shape)

    return write


def _one_hot_writer(shape: tuple[int, ...], counts: Array, starts: Array) -> Write:
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])

    def write(value: Any, out: Array) -> None:
        array = _as_array(value)
        expected = out.shape[:-1] + shape
        if array.shape != expected or array.dtype.kind not in "iu":
            raise MismatchError(
                f"the observation must be integers of shape {expected}, "
                f"got {describe_value(value)}: return what the observation space says"
            )
        index = array.reshape(*out.shape[:-1], len(counts)) - starts
        if (index < 0).any() or (index >= counts).any():
            raise MismatchError(
                f"the observation must lie in {starts.tolist()} … "
                f"{(starts + counts - 1).tolist()}, got {array.tolist()}: correct the space or it"
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


class ActionDecoder:
    """Turns a policy's actions into what the environments take.

    Adds the offset of discrete actions, clips box actions to their bounds, and casts to the space's
    own dtype, for all environments at once.

    Args:
        space: of one environment's actions.

    Attributes:
        spec: kind, shape and bounds of one action.

    Raises:
        SpaceError: the space is not supported.
    """

    def __init__(self, space: Space[Any]) -> None:
        from gymnasium import spaces

        self._offset: Array | int = 0
        self._dtype: Any = space.dtype
        if isinstance(space, spaces.Discrete):
            self._offset = int(space.start)
            self.spec = ActionSpec(
                kind="discrete",
                shape=(),
                dtype="int64",
                num_actions=int(space.n),
                start=self._offset,
            )
        elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            self._offset = np.array(space.start, np.int64)
            self.spec = ActionSpec(
                kind="multi_discrete",
                shape=(len(space.nvec),),
                dtype="int64",
                nvec=tuple(space.nvec.tolist()),
                starts=tuple(self._offset.tolist()),
            )
        elif isinstance(space, spaces.Box) and space.dtype.kind == "f" and space.shape:
            self._low, self._high = space.low, space.high
            self.spec = ActionSpec(
                kind="box",
                shape=space.shape,
                dtype="float32",
                low=tuple(space.low.astype(np.float64).ravel().tolist()),
                high=tuple(space.high.astype(np.float64).ravel().tolist()),
            )
        else:
            raise SpaceError(
                "action spaces may be Discrete, MultiDiscrete with one axis, or Box of floats with "
                f"at least one axis, got {space}: {_action_hint(space)}"
            )

    def batch(self, action: Array) -> Array:
        """Actions for a vector environment: (N, *shape), a fresh array.

        Raises:
            ShapeError: `action` is not (N, *shape).
        """
        self._check(action)
        if self.spec.kind == "box":
            clipped = action.clip(self._low, self._high)
            return clipped if clipped.dtype is self._dtype else clipped.astype(self._dtype)
        return (action + self._offset).astype(self._dtype, copy=False)

    def rows(self, action: Array) -> list[Any]:
        """One action per environment: Python ints, or rows of a fresh array.

        Python ints, because indexing with and testing a NumPy integer takes an environment longer.

        Raises:
            ShapeError: `action` is not (N, *shape).
        """
        if self.spec.kind == "discrete":
            self._check(action)
            return (action + self._offset).tolist() if self._offset else action.tolist()
        return list(self.batch(action))

    def _check(self, action: Array) -> None:
        if action.shape[1:] != self.spec.shape:
            raise ShapeError(
                f"`action` must have shape (N, {', '.join(map(str, self.spec.shape))}), "
                f"got {action.shape}: pass one action for each environment"
            )


def _action_hint(space: Any) -> str:
    from gymnasium import spaces

    if isinstance(space, spaces.MultiBinary):
        return f"wrap it into MultiDiscrete([2] * {math.prod(space.shape)})"
    if isinstance(space, spaces.MultiDiscrete):
        return f"wrap it into one axis of {space.nvec.size} components"
    if isinstance(space, spaces.Box):
        return "wrap it with a `gymnasium.ActionWrapper` into a Box of float32 with one axis"
    return "wrap it with a `gymnasium.ActionWrapper`"
