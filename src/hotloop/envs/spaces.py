"""Specifications of observations and actions: shapes, dtypes, layout and bounds.

The specs do not need Gymnasium. A checkpoint stores them as JSON, to rebuild the policy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Protocol, get_args, get_type_hints

import numpy as np

from hotloop.errors import ShapeError, SpaceError
from hotloop.types import Array

Encoding = Literal["box", "one_hot", "binary"]

_MIN_IMAGE_SIDE = 8  # pixels
_BYTE_RANGE = (0.0, 255.0)
FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class ObsField:
    """The position and encoding of one part of a composite observation in the flat vector."""

    name: str
    """The key in a Dict space, "0", "1", … in a Tuple, and "" if the space is not composite."""
    start: int
    """First position in the flat vector, in bytes if the vector is packed."""
    stop: int
    """One past the last position."""
    shape: tuple[int, ...]
    """Shape of the encoded part: (n,) for n categories."""
    encoding: Encoding
    """`box` for numbers, `one_hot` for categories, `binary` for zeros and ones."""
    dtype: str = "float32"
    """`float32`, or `uint8` for images."""
    low: float | None = field(default=None, compare=False)
    """`box`: the least of its lower bounds, None if infinite or unknown."""
    high: float | None = field(default=None, compare=False)
    """`box`: the largest of its upper bounds, None if infinite or unknown."""
    byte_bounds: tuple[float, float] | None = field(default=None, compare=False)
    """`box` of bytes: the bounds by which networks scale them to 0 … 1. None: other numbers, or a
    policy of a version that scaled images by 255 and no other bytes."""
    raw_shape: tuple[int, ...] | None = field(default=None, compare=False)
    """Shape of the environment's own value: () for one number or category. None if unknown."""
    counts: tuple[int, ...] = field(default=(), compare=False)
    """`one_hot`: number of categories of each integer."""
    starts: tuple[int, ...] = field(default=(), compare=False)
    """`one_hot`: the first category of each integer."""

    @property
    def is_image(self) -> bool:
        """Whether the part is an image by its shape and its bounds, which are 0 … 255."""
        is_full_range = self.byte_bounds in (None, _BYTE_RANGE)
        return self.dtype == "uint8" and is_full_range and is_image_shape(self.shape)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ObsField:
        """Return the field for one entry of a spec's JSON layout."""
        return cls(**_fields_from_json(cls, values))

    def decode(self, values: Array) -> Array:
        """Return encoded values, (B, *shape), as numbers of the environment, (B, *raw_shape)."""
        if self.encoding == "one_hot":
            stops = np.cumsum(self.counts)
            numbers = [part.argmax(-1) for part in np.split(values, stops[:-1], axis=-1)]
            values = np.stack(numbers, axis=-1) + np.array(self.starts)
        assert self.raw_shape is not None
        return values.reshape(len(values), *self.raw_shape)

    def to_json(self) -> dict[str, Any]:
        """Return the field as JSON values."""
        return _fields_to_json(self)


@dataclass(frozen=True, kw_only=True)
class ObsSpec:
    """The shape, dtype and layout of an environment's encoded observations."""

    shape: tuple[int, ...]
    """Shape of one observation."""
    dtype: str
    """`float32`, or `uint8` if the environment returns bytes (images). A Dict or Tuple with images
    is a vector of bytes, in which each number takes four."""
    layout: tuple[ObsField, ...]
    """The parts, in the order of the flat vector."""
    num_frames: int = field(default=0, compare=False)
    """Number of stacked frames along the first axis, 0 without frame stacking."""
    is_tuple: bool = field(default=False, compare=False)
    """Whether the parts come from a Tuple instead of a Dict."""

    @property
    def is_composite(self) -> bool:
        """Whether raw observations are dicts or tuples."""
        return any(part.name for part in self.layout)

    @property
    def is_packed(self) -> bool:
        """Whether a row is a vector of bytes with numbers of several dtypes."""
        return len(self.layout) > 1 and self.dtype == "uint8"

    def element_name(self, position: Sequence[int]) -> str:
        """Return the place of a number in raw observations, such as `['speed'][1]`."""
        if not self.is_composite:
            return f"[{', '.join(map(str, position))}]"
        (index,) = position
        part = next(part for part in self.layout if index < part.stop)
        width = (part.stop - part.start) // math.prod(part.shape)  # bytes if it is packed
        place = np.unravel_index((index - part.start) // width, part.shape)
        return f"[{part.name!r}][{', '.join(map(str, place))}]"

    def byte_scale(self) -> tuple[Array, Array] | None:
        """Return the offset and the divisor that map bytes to 0 … 1 by their bounds.

        Returns:
            float32, `shape`, each: 0 and 1 for other numbers. None if there are no bytes.
        """
        if all(part.byte_bounds is None for part in self.layout):
            return None
        offset, divisor = np.zeros(self.shape, np.float32), np.ones(self.shape, np.float32)
        for part in self.layout:
            if part.byte_bounds is not None:
                low, high = part.byte_bounds
                offset.reshape(-1)[part.start : part.stop] = low
                divisor.reshape(-1)[part.start : part.stop] = high - low or 1.0
        return offset, divisor

    def unflatten(self, obs: Array) -> dict[str, Array]:
        """Return the parts of flat observations, by name.

        Args:
            obs: (…, *shape), any leading axes.

        Returns:
            Views of `obs`, (…, *field.shape) each.

        Raises:
            ShapeError: `obs` does not end in `shape`.
        """
        num_leading = obs.ndim - len(self.shape)
        if num_leading < 0 or obs.shape[num_leading:] != self.shape:
            raise ShapeError(
                f"`obs` must have shape (…, {', '.join(map(str, self.shape))}), got {obs.shape}: "
                "pass observations in the layout of this environment's `ObsSpec`"
            )
        leading = obs.shape[:num_leading]
        if len(self.layout) == 1:
            (part,) = self.layout
            return {part.name: obs.reshape(*leading, *part.shape)}
        return {
            part.name: obs[..., part.start : part.stop]
            .view(part.dtype if self.is_packed else obs.dtype)
            .reshape(*leading, *part.shape)
            for part in self.layout
        }

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        return {**_fields_to_json(self), "layout": [part.to_json() for part in self.layout]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ObsSpec:
        """Return the spec from the values of `to_json`. Raise ValueError if they do not fit."""
        parts = [{"dtype": values["dtype"], **part} for part in values["layout"]]
        layout = tuple(map(ObsField.from_json, parts))
        spec = cls(**{**_fields_from_json(cls, values), "layout": layout})
        if {spec.dtype, *(part.dtype for part in layout)} - {"float32", "uint8"}:
            raise ValueError(f"observations are float32 or uint8, got {spec.dtype!r}")
        if len(layout) > 1 and not spec._fits():
            raise ValueError(f"the parts of observations do not fit into {spec.shape}")
        return spec

    def _fits(self) -> bool:
        """Return whether the parts follow each other in the vector. Floats in bytes are aligned."""
        end, most = 0, FLOAT_BYTES if self.is_packed else 1
        for part in self.layout:
            width = FLOAT_BYTES if self.is_packed and part.dtype != "uint8" else 1
            size = part.stop - part.start
            if size != width * math.prod(part.shape) or not 0 <= part.start - end < most:
                return False
            end = part.stop
        return 0 <= math.prod(self.shape) - end < most


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """The kind, shape and bounds of the actions that a policy samples for one environment.

    An action of a Dict or Tuple space is one row of numbers: the components of all discrete parts,
    then the numbers of all boxes. `decode` returns the action of the space.
    """

    kind: Literal["discrete", "multi_discrete", "box", "hybrid"]
    """Kind of action, which determines the fields below that apply. `hybrid` has the fields of
    `multi_discrete` for the first columns of a row, and those of `box` for the others."""
    shape: tuple[int, ...]
    """Shape of one action: () for `discrete`."""
    dtype: str
    """`int64`, or `float32` for `box` and `hybrid`."""
    num_actions: int = 0
    """`discrete`: number of actions. A policy samples 0 … num_actions − 1."""
    start: int = 0
    """`discrete`: the environment's first action, which `step` adds."""
    nvec: tuple[int, ...] = ()
    """`multi_discrete`: number of actions of each component. A policy samples each from 0."""
    starts: tuple[int, ...] = ()
    """`multi_discrete`: the environment's first action of each component, which `step` adds."""
    low: tuple[float, ...] = ()
    """`box`: lower bounds, flattened, −inf if unbounded. `step` clips to them."""
    high: tuple[float, ...] = ()
    """`box`: upper bounds, flattened, inf if unbounded."""
    space_dtype: str = field(default="", compare=False)
    """dtype of the environment's actions. "": `dtype`, or unknown for an older version's box."""
    is_masked: bool = False
    """Whether the environment forbids some of the discrete actions, see `hotloop.envs.masks`."""
    parts: tuple[ActionSpec, ...] = ()
    """The parts of a Dict or Tuple space, in the order of the space. (): no such space."""
    name: str = ""
    """The key of a part in a Dict space, or "0", "1", … in a Tuple."""
    is_tuple: bool = False
    """Whether the parts come from a Tuple instead of a Dict."""

    def __post_init__(self) -> None:
        """Raise `SpaceError` if a lower bound is not a number or above the upper one."""
        if not all(low <= high for low, high in zip(self.low, self.high, strict=True)):
            raise SpaceError(
                "the lower bounds of actions must not exceed the upper ones, got "
                f"{list(self.low)} to {list(self.high)}: correct the action space"
            )

    @classmethod
    def join(cls, parts: tuple[ActionSpec, ...], *, is_tuple: bool) -> ActionSpec:
        """Return the spec of a Dict or Tuple space with these parts."""
        nvec, starts, low, high = (
            tuple(itertools.chain.from_iterable(values))
            for values in zip(
                *((x.num_choices, np.atleast_1d(x.offset).tolist(), x.low, x.high) for x in parts),
                strict=True,
            )
        )
        if nvec and low:
            kind = "hybrid"
        elif low:
            kind = "box"
        else:
            kind = "multi_discrete"
        return cls(
            kind=kind,
            shape=(len(nvec) + len(low),),
            dtype="float32" if low else "int64",
            nvec=nvec,
            starts=starts if nvec else (),
            low=low,
            high=high,
            space_dtype="float64" if low else "",  # so that the bounds of all parts are exact
            parts=parts,
            is_tuple=is_tuple,
        )

    @property
    def num_choices(self) -> tuple[int, ...]:
        """The number of choices of each component of a discrete action."""
        return (self.num_actions,) if self.kind == "discrete" else self.nvec

    @property
    def mask_size(self) -> int:
        """M, the size of an action mask: the choices of all components. 0 without masks."""
        return sum(self.num_choices) if self.is_masked else 0

    @cached_property
    def factors(self) -> tuple[ActionSpec, ActionSpec]:
        """The specs of the discrete and of the continuous columns of a `hybrid` action."""
        num_components, num_numbers = len(self.nvec), len(self.low)
        discrete = ActionSpec(
            kind="multi_discrete",
            shape=(num_components,),
            dtype="int64",
            nvec=self.nvec,
            starts=self.starts,
        )
        box = ActionSpec(
            kind="box",
            shape=(num_numbers,),
            dtype="float32",
            low=self.low,
            high=self.high,
            space_dtype=self.space_dtype,
        )
        return discrete, box

    @cached_property
    def columns(self) -> tuple[slice, ...]:
        """The columns of each part in a row."""
        first = {True: len(self.nvec), False: 0}  # the next column of boxes and of discrete parts
        columns: list[slice] = []
        for part in self.parts:
            is_box, size = part.kind == "box", math.prod(part.shape)
            columns.append(slice(first[is_box], first[is_box] + size))
            first[is_box] += size
        return tuple(columns)

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """The bounds of box actions, action_shape: float64, or float32 if the space is.

        If the dtype of the space is unknown, the bounds are float32 numbers within them.
        """
        low, high = (np.array(x, np.float64).reshape(self.shape) for x in (self.low, self.high))
        if self.space_dtype not in ("", "float32"):
            return low, high
        return round_inwards(low, high, np.float32)

    @cached_property
    def offset(self) -> Array:
        """The numbers to add to discrete actions, int64, () or (K,)."""
        starts = self.starts or (0,) * len(self.nvec)
        return np.asarray(self.start if self.kind == "discrete" else starts, np.int64)

    def decode(self, action: Array) -> Any:
        """Return actions of the space, with any leading axes, from those that a policy chooses.

        Box actions are clipped to their bounds, and rounded if the space holds integers. Discrete
        ones get their offset.

        Args:
            action: (…, *shape).

        Returns:
            A fresh array, (…, *shape), in the dtype of the space. A dict or a tuple of arrays,
            (…, *part.shape), for a space with parts.
        """
        if self.parts:
            leading = action.shape[:-1]
            values = [
                part.decode(action[..., columns].reshape((*leading, *part.shape)))
                for part, columns in zip(self.parts, self.columns, strict=True)
            ]
            names = (part.name for part in self.parts)
            return tuple(values) if self.is_tuple else dict(zip(names, values, strict=True))
        dtype = np.dtype(self.space_dtype or self.dtype)
        if self.kind != "box":
            return (action + self.offset).astype(dtype, copy=False)
        clipped = np.asarray(np.clip(action, *self.bounds))
        return (np.rint(clipped) if dtype.kind in "iu" else clipped).astype(dtype, copy=False)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values. Infinite bounds, which JSON lacks, become strings."""
        bounds = {"low": self.low, "high": self.high}
        texts = {
            name: [x if math.isfinite(x) else str(x) for x in bound]
            for name, bound in bounds.items()
        }
        parts = {"parts": [part.to_json() for part in self.parts]}
        return _fields_to_json(self) | texts | parts

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ActionSpec:
        """Return the spec from the values of `to_json`. Raise ValueError if they do not fit."""
        bounds: dict[str, Any] = {name: tuple(map(float, values[name])) for name in ("low", "high")}
        bounds["parts"] = tuple(map(ActionSpec.from_json, values.get("parts", ())))
        spec = cls(**_fields_from_json(cls, values) | bounds)
        if not spec._fits():
            raise ValueError(f"the parts of a {spec.kind} action of shape {spec.shape} do not fit")
        return spec

    def _fits(self) -> bool:
        """Return whether the fields describe actions of one kind."""
        counts = {
            "discrete": (1, 0),
            "multi_discrete": (len(self.nvec), 0),
            "box": (0, len(self.low)),
            "hybrid": (len(self.nvec), len(self.low)),
        }
        try:
            num_components, num_numbers = counts[self.kind]
            is_numeric = np.dtype(self.space_dtype or self.dtype).kind in "biuf"
        except (KeyError, TypeError):
            return False
        sizes = [0, 0]  # of the discrete parts and of the boxes
        for part in self.parts:
            sizes[part.kind == "box"] += math.prod(part.shape)
        return (
            is_numeric
            and self.dtype == ("float32" if num_numbers else "int64")
            and min(self.shape, default=1) > 0
            and math.prod(self.shape) == num_components + num_numbers
            and len(self.starts) in (0, len(self.nvec))
            and all(0 < count < 2**31 for count in self.num_choices)
            and all(abs(start) < 2**62 for start in (self.start, *self.starts))
            and (not self.parts or sizes == [num_components, num_numbers])
        )


def round_inwards(low: Array, high: Array, dtype: Any) -> tuple[Array, Array]:
    """Return the nearest bounds in a float dtype that lie within `low` and `high`."""
    infinity = np.array(np.inf, dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # bounds may be huge or NaN
        inner_low, inner_high = low.astype(dtype), high.astype(dtype)
        inner_low = np.where(inner_low < low, np.nextafter(inner_low, infinity), inner_low)
        inner_high = np.where(inner_high > high, np.nextafter(inner_high, -infinity), inner_high)
    return inner_low, inner_high


def image_axes(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axes of frames, channels, height and width, without those that an image lacks.

    Images are (H, W), (C, H, W) or (H, W, C), or a stack of frames with three axes along the first
    axis. The channel axis is shorter than both others, or the others are equal. Returns None if the
    axis is ambiguous or the shape is no image.
    """
    if len(shape) == 2:
        return (0, 1)
    if len(shape) not in (3, 4):
        return None
    first, middle, last = shape[-3:]
    if first < min(middle, last) or middle == last != first:
        axes = (0, 1, 2)
    elif last < min(first, middle) or first == middle != last:
        axes = (2, 0, 1)
    else:
        return None
    return axes if len(shape) == 3 else (0, *(axis + 1 for axis in axes))


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Return whether uint8 arrays of a shape are images by default, see `image_axes`.

    Arrays with a side below 8, or with more channels or frames than pixels along a side, are tables
    of numbers.
    """
    axes = image_axes(shape)
    if axes is None:
        return False
    *counts, height, width = (shape[axis] for axis in axes)
    return min(height, width) >= max([_MIN_IMAGE_SIDE, *(count + 1 for count in counts)])


class Spaces(Protocol):
    """An object with spaces: environments, a worker pool, a network."""

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        ...


def _fields_to_json(spec: Any) -> dict[str, Any]:
    """Return the fields of a spec, with lists in place of tuples."""
    values = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= 1e308


def _fields_from_json(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a kind of spec. Fields that only other versions store are left out.

    Raises:
        ValueError: a field has another type.
    """
    hints = get_type_hints(kind)
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            continue
        hint = hints[name]
        is_valid = True
        if hint in (int, bool, str):
            is_valid = type(value) is hint
        elif tuple[int, ...] in (hint, *get_args(hint)):
            is_valid = isinstance(value, list | tuple) and all(type(x) is int for x in value)
            is_valid |= value is None and hint != tuple[int, ...]
        elif type(None) in get_args(hint):  # bounds of observations
            is_pair = tuple[float, float] in get_args(hint)
            numbers = value if is_pair and isinstance(value, list | tuple) else [value]
            is_valid = len(numbers) == 1 + is_pair and all(map(_is_finite, numbers))
            is_valid |= value is None
        if not is_valid:
            raise ValueError(f"`{name}` must be {hint}, got {value!r:.80}")
        checked[name] = tuple(value) if isinstance(value, list) else value
    return checked
