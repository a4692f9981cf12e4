"""Actions of a policy as actions of Gymnasium's spaces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.envs.spaces import ActionSpec, round_inwards
from hotloop.errors import ShapeError, SpaceError
from hotloop.types import Array

if TYPE_CHECKING:
    from gymnasium import Space


class ActionDecoder:
    """Converts a policy's actions to actions of the environments, see `ActionSpec.decode`.

    Attributes:
        spec: kind, shape and bounds of one action.

    Raises:
        SpaceError: the space is not supported.
    """

    def __init__(self, space: Space[Any]) -> None:
        from gymnasium import spaces

        if not isinstance(space, spaces.Dict | spaces.Tuple):
            self.spec = _spec(space, str(space))
            return
        is_tuple = isinstance(space, spaces.Tuple)
        items = enumerate(space.spaces) if is_tuple else space.spaces.items()
        if not is_tuple and (others := [key for key in space.spaces if not isinstance(key, str)]):
            raise SpaceError(
                f"keys of a Dict action space must be strings, got {others[0]!r} in {space}: name "
                "the parts with strings"
            )
        parts = tuple(
            _spec(part, f"its part {key!r}, {part}", name=str(key)) for key, part in items
        )
        if not parts:
            raise SpaceError(f"the action space {space} has no parts: give it at least one")
        self.spec = ActionSpec.join(parts, is_tuple=is_tuple)

    def batch(self, action: Array) -> Any:
        """Return the actions for a vector environment.

        Returns:
            A fresh array, (N, *shape), or a dict or tuple of arrays, (N, *part.shape).

        Raises:
            ShapeError: `action` is not (N, *shape).
        """
        self._check(action)
        return self.spec.decode(action)

    def rows(self, action: Array) -> list[Any]:
        """Return one action per environment: Python ints, rows of a fresh array, dicts or tuples.

        Python ints are faster than NumPy integers for an environment's indexing and comparisons.

        Raises:
            ShapeError: `action` is not (N, *shape).
        """
        spec = self.spec
        if spec.kind == "discrete":
            self._check(action)
            return (action + spec.start).tolist() if spec.start else action.tolist()
        if not spec.parts:
            return list(self.batch(action))
        values = self.batch(action)
        columns = [
            value.tolist() if part.kind == "discrete" else [row[...] for row in value]
            for part, value in zip(
                spec.parts, values if spec.is_tuple else values.values(), strict=True
            )
        ]
        rows = zip(*columns, strict=True)
        return (
            list(rows) if spec.is_tuple else [dict(zip(values, row, strict=True)) for row in rows]
        )

    def _check(self, action: Array) -> None:
        if action.shape[1:] != self.spec.shape:
            raise ShapeError(
                f"`action` must have shape (N, {', '.join(map(str, self.spec.shape))}), "
                f"got {action.shape}: pass one action for each environment"
            )


def _spec(space: Space[Any], description: str, name: str = "") -> ActionSpec:
    """Return the spec of a space without parts, or raise SpaceError if unsupported."""
    from gymnasium import spaces

    dtype = np.dtype(space.dtype)
    names = {"name": name, "space_dtype": "" if dtype == np.int64 else dtype.name}
    if isinstance(space, spaces.Discrete):
        return ActionSpec(
            kind="discrete",
            shape=(),
            dtype="int64",
            num_actions=int(space.n),
            start=int(space.start),
            **names,
        )
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return ActionSpec(
            kind="multi_discrete",
            shape=(len(space.nvec),),
            dtype="int64",
            nvec=tuple(space.nvec.tolist()),
            starts=tuple(np.asarray(space.start).tolist()),
            **names,
        )
    if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
        (size,) = space.shape
        return ActionSpec(
            kind="multi_discrete",
            shape=(size,),
            dtype="int64",
            nvec=(2,) * size,
            starts=(0,) * size,
            **names,
        )
    is_array = name or space.shape  # a number that is not a part of a row has no axis
    if isinstance(space, spaces.Box) and dtype.kind in "fiu" and is_array:
        # Only Python compares integers with floats exactly.
        low, high = (x.ravel().astype(object) for x in (space.low, space.high))
        low, high = round_inwards(low, high, np.float64)
        return ActionSpec(
            kind="box",
            shape=space.shape,
            dtype="float32",
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
            name=name,
            space_dtype=dtype.name,
        )
    raise SpaceError(
        "action spaces may be Discrete, MultiDiscrete or MultiBinary with one axis, Box with at "
        f"least one axis, or one Dict or Tuple of these, got {description}: {_action_hint(space)}"
    )


def _action_hint(space: Any) -> str:
    from gymnasium import spaces

    if isinstance(space, (spaces.MultiBinary, spaces.MultiDiscrete)):
        return f"wrap it into one axis of {math.prod(space.shape)} components"
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return "turn it into one Dict or Tuple with a `gymnasium.ActionWrapper`"
    if isinstance(space, spaces.Box):
        return "wrap it with a `gymnasium.ActionWrapper` into a Box of float32 with one axis"
    return "wrap it with a `gymnasium.ActionWrapper`"
