"""Specifications of observations and actions: shapes, dtypes, layout and bounds.

The specs need no Gymnasium: a checkpoint holds them as JSON, and a policy is evaluated from them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from hotloop.errors import ShapeError
from hotloop.types import Array

Encoding = Literal["box", "one_hot", "binary"]

_LEAST_SIDE = 8  # of an image


@dataclass(frozen=True, kw_only=True)
class ObsField:
    """Where one part of a composite observation lies in the flat vector."""

    name: str
    """The key in a Dict space, "0", "1", … in a Tuple, and "" where the space is not composite."""
    start: int
    """First position in the flat vector; in bytes, where it is a vector of bytes."""
    stop: int
    """One past the last position."""
    shape: tuple[int, ...]
    """Shape of the part once it is encoded: (n,) for n categories."""
    encoding: Encoding
    """`box`: the numbers themselves; `one_hot`: categories; `binary`: zeros and ones."""
    dtype: str = "float32"
    """`float32`, or `uint8` of images."""
    low: float | None = field(default=None, compare=False)
    """`box`: the least of its lower bounds; None: there is none, or it is not known."""
    high: float | None = field(default=None, compare=False)
    """`box`: the largest of its upper bounds."""
    raw_shape: tuple[int, ...] | None = field(default=None, compare=False)
    """Shape as the environment gives it: () for one number or category; None: not known."""
    counts: tuple[int, ...] = field(default=(), compare=False)
    """`one_hot`: how many categories each integer has."""
    starts: tuple[int, ...] = field(default=(), compare=False)
    """`one_hot`: the first category of each."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ObsField:
        """The field of which a spec's `to_json` has the values."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        """As values that `json.dumps` takes."""
        values = asdict(self)
        return {name: list(x) if isinstance(x, tuple) else x for name, x in values.items()}


@dataclass(frozen=True, kw_only=True)
class ObsSpec:
    """Observations of one environment, as hotloop stores them."""

    shape: tuple[int, ...]
    """Of one observation."""
    dtype: str
    """`float32`, or `uint8` where the environment gives bytes (images). A Dict or Tuple with images
    is a vector of bytes, in which numbers take four each."""
    layout: tuple[ObsField, ...]
    """The parts, in the order in which they lie in the observation."""
    num_frames: int = field(default=0, compare=False)
    """Frames that the first axis stacks, each new one beside the last ones; 0: it is no stack."""
    is_tuple: bool = field(default=False, compare=False)
    """Whether the parts are those of a Tuple, and not of a Dict."""
    mask_size: int = 0
    """Numbers behind the parts that say which actions are allowed, see `hotloop.envs.masks`."""

    @property
    def unmasked(self) -> ObsSpec:
        """What the networks see: the same without a mask."""
        if not self.mask_size:
            return self
        return replace(self, shape=(self.shape[0] - self.mask_size,), mask_size=0)

    @property
    def is_composite(self) -> bool:
        """Whether the environment gives a dict or a tuple."""
        return any(part.name for part in self.layout)

    @property
    def is_packed(self) -> bool:
        """Whether it is a vector of bytes that holds numbers of several kinds."""
        return len(self.layout) > 1 and self.dtype == "uint8"

    def unflatten(self, obs: Array) -> dict[str, Array]:
        """The parts of flat observations, by name.

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
                "pass observations as this environment's `ObsSpec` lays them out"
            )
        leading = obs.shape[:num_leading]
        if self.mask_size:
            obs = obs[..., : -self.mask_size]
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
        """As values that `json.dumps` takes."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "num_frames": self.num_frames,
            "is_tuple": self.is_tuple,
            "layout": [part.to_json() for part in self.layout],
            **({"mask_size": self.mask_size} if self.mask_size else {}),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ObsSpec:
        """The spec that `to_json` wrote."""
        return cls(
            shape=tuple(values["shape"]),
            dtype=values["dtype"],
            num_frames=values.get("num_frames", 0),
            is_tuple=values.get("is_tuple", False),
            mask_size=values.get("mask_size", 0),
            layout=tuple(
                ObsField.from_json({"dtype": values["dtype"], **part}) for part in values["layout"]
            ),
        )


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """Actions of one environment, as a policy draws them."""

    kind: Literal["discrete", "multi_discrete", "box"]
    """Which of the fields below say something."""
    shape: tuple[int, ...]
    """Of one action: () for `discrete`."""
    dtype: str
    """`int64`, or `float32` for `box`."""
    num_actions: int = 0
    """`discrete`: a policy draws 0 … num_actions − 1."""
    start: int = 0
    """`discrete`: what the environment calls action 0; `step` adds it."""
    nvec: tuple[int, ...] = ()
    """`multi_discrete`: how many actions each component has; a policy draws each from 0."""
    starts: tuple[int, ...] = ()
    """`multi_discrete`: what the environment calls action 0 of each component; `step` adds it."""
    low: tuple[float, ...] = ()
    """`box`: lower bounds, flattened; −inf where there is none. `step` clips to them."""
    high: tuple[float, ...] = ()
    """`box`: upper bounds, flattened."""

    def to_json(self) -> dict[str, Any]:
        """As values that `json.dumps` takes; infinite bounds, which JSON lacks, become text."""
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "num_actions": self.num_actions,
            "start": self.start,
            "nvec": list(self.nvec),
            "starts": list(self.starts),
            "low": [_bound_to_json(bound) for bound in self.low],
            "high": [_bound_to_json(bound) for bound in self.high],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ActionSpec:
        """The spec that `to_json` wrote."""
        return cls(
            kind=values["kind"],
            shape=tuple(values["shape"]),
            dtype=values["dtype"],
            num_actions=values["num_actions"],
            start=values["start"],
            nvec=tuple(values["nvec"]),
            starts=tuple(values["starts"]),
            low=tuple(float(bound) for bound in values["low"]),
            high=tuple(float(bound) for bound in values["high"]),
        )


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Whether bytes of such a shape are an image: (H, W), (C, H, W) or (H, W, C).

    Not where a side is tiny: such bytes are a table of numbers.
    """
    sides = sorted(shape)[-2:]
    return len(shape) in (2, 3) and sides[0] >= _LEAST_SIDE


class Spaces(Protocol):
    """Whatever has spaces: environments, a worker pool, a network."""

    @property
    def obs_spec(self) -> ObsSpec:
        """What is observed."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """What is done."""
        ...


def _bound_to_json(bound: float) -> float | str:
    return bound if abs(bound) < float("inf") else str(bound)
