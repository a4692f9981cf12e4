"""Transitions on their way into a buffer: checked, and copied to where compiled code finds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hotloop.errors import ReplayError, ShapeError
from hotloop.replay.checks import as_array, checked, missing_fields, one_each
from hotloop.replay.native.calls import add_weights
from hotloop.replay.native.handle import MAX_WEIGHT
from hotloop.replay.resets import Resets
from hotloop.replay.samplers import Proportional, Sampler, Sequences
from hotloop.replay.storage.host import Store
from hotloop.replay.storage.layout import Field, Layout
from hotloop.types import Array

MAX_STAGE_BYTES = 1 << 22  # that are kept for the next batch that comes in
_FORMATS = "bBhHiIlLqQfd?"  # of arrays that a memoryview takes
# Numbers that a memoryview's item of this dtype takes as they are.
_REALS = frozenset((bool, int, float, np.float32, np.float64))
_INTEGERS = frozenset((int, np.int64, np.int32))
_KINDS = {
    "float32": _REALS,
    "float64": _REALS,
    "int32": _INTEGERS,
    "int64": _INTEGERS,
    "bool": frozenset((bool, np.bool_)),
}


class Rows:
    """Transitions side by side, small fields only.

    Attributes:
        memory: uint8, one transition after the other; `at`: its address.
        views: for each field its array, (size, *shape), within it.
    """

    def __init__(self, layout: Layout, size: int) -> None:
        self.size = size
        self.memory = np.zeros(max(size * layout.stage_bytes, 8), np.uint8)
        self.at: int = self.memory.ctypes.data
        self.views: dict[str, Array] = {}
        for one in layout.given():
            if one.place in ("row", "next"):
                offset = one.offset + (layout.stage_next if one.place == "next" else 0)
                strides = (layout.stage_bytes, *np.empty(one.shape, one.dtype).strides)
                self.views[one.name] = np.ndarray(
                    (size, *one.shape), one.dtype, self.memory.data, offset, strides
                )


class Staging:
    """The one place for what comes into a buffer.

    Args:
        layout: of the buffer.
        sampler: how its batches are drawn.
        settings: of the buffer.
        weights_given: whether weights are passed, where the sampler has some.

    Attributes:
        at, envs_at, weights_at: addresses of what `put` has staged.
        takes_weight, needs_weight: whether weights may, and must, be passed.
    """

    def __init__(
        self,
        layout: Layout,
        sampler: Sampler,
        settings: Mapping[str, Any],
        *,
        weights_given: bool,
    ) -> None:
        self._layout, self._sampler, self._num_envs = layout, sampler, settings["num_envs"]
        self._resets = Resets(self._num_envs) if settings["next_step_autoreset"] else None
        self._fields = {one.name: one for one in layout.given()}
        self.takes_weight = sampler.weighted and weights_given
        self.needs_weight = isinstance(sampler, Proportional) and weights_given
        self._in_sequences = isinstance(sampler, Sequences)
        self._lent: dict[str, Array] = {}  # values of fields that lie apart
        self._single = Rows(layout, 1)
        self._ones = {name: view[0, ...] for name, view in self._single.views.items()}
        self._ways = {name: _way(self._single, one) for name, one in self._fields.items()}
        self._make(64)

    def bind(self, store: Store) -> None:
        """Stage for these arrays."""
        self._store, self._handle_at = store, store.at
        store.handle["single"] = self._single.at

    def size_bytes(self) -> int:
        """What it takes for batches."""
        return self._rows.memory.nbytes + self._weights.nbytes + self._envs.nbytes

    def _make(self, size: int) -> None:
        self._rows = Rows(self._layout, size)
        self._weights, self._envs = np.zeros(size), np.zeros(size, np.int64)
        self.at, self.weights_at = self._rows.at, self._weights.ctypes.data
        self.envs_at: int = self._envs.ctypes.data
        self._open(size)

    def _open(self, count: int) -> None:
        """Have room for `count` transitions."""
        if count > self._rows.size:
            self._make(1 << (count - 1).bit_length())
        self._count = count
        self._targets = {name: view[:count] for name, view in self._rows.views.items()}

    def release(self) -> None:
        """Forget what was staged, and give back what is large."""
        self._lent.clear()
        if self._resets is not None:
            self._resets.take()
        if self._rows.memory.nbytes > MAX_STAGE_BYTES:
            self._make(64)

    def begin_anew(self, first: int, last: int) -> None:
        """Expect no reset of environments that begin anew, from one number to another."""
        if self._resets is not None:
            self._resets.clear(first, last)

    # One transition.

    def put_one(self, fields: Mapping[str, Any]) -> None:
        """Stage one transition, or say what is wrong with it."""
        ways = self._ways
        if fields.keys() != ways.keys():
            fields = self._named(fields)
        for name, value in fields.items():
            kinds, target, place = ways[name]
            if type(value) in kinds:
                try:
                    target[place] = value
                    continue
                except (TypeError, ValueError):
                    pass
            self._put(name, value, self._ones.get(name), ())

    def weight_of_one(self, weight: Any) -> float:
        """What a transition is given as its weight."""
        if weight is None:
            raise self._weight_missing()
        if not self.takes_weight:
            raise self._weight_unused()
        array = as_array("weight", weight)
        if array.shape != () or array.dtype.kind not in "biuf":
            raise ShapeError(f"`weight` must be a number, got {weight!r:.60}")
        weight = float(array) + 0.0
        if weight != weight:
            raise self.weight_refused(weight, 0)
        return weight

    def env_of_one(self, env: Any) -> int:
        """The number of an environment that there is."""
        self._put_envs(as_array("env", [env]), 1)
        return int(env)

    # Many.

    def put(
        self,
        fields: Mapping[str, Any],
        weight: ArrayLike | None,
        env: ArrayLike | None,
        valid: ArrayLike | None,
    ) -> tuple[int, int, int]:
        """Stage a batch, or say what is wrong with it.

        Returns:
            How many transitions it has, and the addresses of their environments and weights, 0
            where nothing is said. What is left out is there only where sequences end with it: its
            environment e is given as −1 − e.
        """
        if fields.keys() != self._fields.keys():
            fields = self._named(fields)
        name, value = next(iter(fields.items()))
        first = value.shape if type(value) is np.ndarray else as_array(name, value).shape
        if not first:
            raise ShapeError("`extend` takes a batch, (B, …) each: `add` takes one transition")
        count = first[0]
        if env is None and count % self._num_envs:
            raise ShapeError(
                f"{count} transitions are not a multiple of {self._num_envs} environments: pass "
                "`env`, the environment of each"
            )
        if self._resets is not None:
            found = self._resets.transitions(fields, env)
            valid = found if valid is None else valid
        left_out = None
        if valid is not None:
            chosen = checked(Field(("valid",), (), np.dtype(np.bool_)), valid, (count,))
            kept = np.flatnonzero(chosen)
            numbers = np.arange(count) % self._num_envs if env is None else env
            env = one_each("env", numbers, count)
            if self._in_sequences:
                kept, left_out = slice(None), ~chosen
            env = env[kept]
            if weight is not None:
                weight = one_each("weight", weight, count)[kept]
            fields = {
                name: checked(self._fields[name], value, (count,))[kept]
                for name, value in fields.items()
            }
            count = len(env)
        if count == 0:
            return 0, 0, 0
        if count != self._count:
            self._open(count)
        for name, value in fields.items():
            self._put(name, value, self._targets.get(name), (count,))
        if weight is not None:
            self._put_weights(weight, count)
        elif self.needs_weight:
            raise self._weight_missing()
        if env is not None:
            self._put_envs(as_array("env", env), count)
        if left_out is not None:
            self._envs[:count][left_out] = -1 - self._envs[:count][left_out]
        return count, 0 if env is None else self.envs_at, 0 if weight is None else self.weights_at

    def put_numbers(self, index: ArrayLike) -> int:
        """Copy entries' numbers into the work space, or say what is wrong with them; how many."""
        numbers = as_array("index", index)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
            raise ShapeError(
                f"`index` must be integers, (B,), as `batch.index` has them, got {numbers.dtype} "
                f"{numbers.shape}"
            )
        count = len(numbers)
        self._store.make_scratch(count)
        self._store.numbers[:count] = numbers
        return count

    def _put(self, name: str, value: Any, target: Array | None, leading: tuple[int, ...]) -> None:
        """Copy a field, or, where it lies apart, remember where its values are."""
        one = self._fields[name]
        if target is None:
            array = np.ascontiguousarray(checked(one, value, leading), one.dtype)
            self._lent[name] = array  # must outlive the call
            stage = "stage" if one.place == "apart" else "next_stage"
            self._store.aparts[stage][one.apart] = array.ctypes.data
        elif (
            type(value) is np.ndarray
            and value.shape == target.shape
            and (value.dtype is target.dtype or value.dtype.kind == one.dtype.kind == "f")
        ):
            target[...] = value
        else:
            target[...] = checked(one, value, leading)

    def _put_weights(self, weight: ArrayLike, count: int) -> None:
        if not self.takes_weight:
            raise self._weight_unused()
        weights = one_each("weight", weight, count)
        self._weights[:count] = weights
        wrong = add_weights(self._handle_at, self.weights_at, count)
        if wrong < count:
            raise self.weight_refused(weights[wrong], wrong)

    def _put_envs(self, env: Array, count: int) -> None:
        if env.shape != (count,) or env.dtype.kind not in "iu":
            raise ShapeError(
                f"`env` must be integers, shape ({count},), got {env.dtype} {env.shape}"
            )
        if env.min() < 0 or env.max() >= self._num_envs:
            wrong = env[(env < 0) | (env >= self._num_envs)][0]
            raise ReplayError(
                f"`env` must be from 0 to {self._num_envs - 1}, got {wrong}: say `num_envs` when "
                "the buffer is made"
            )
        self._envs[:count] = env

    def _named(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What a user passes, by the fields' names: all of them and no others."""
        given = dict(self._leaves("", fields))
        if given.keys() != self._fields.keys():
            raise missing_fields(self._layout, given)
        return given

    def _leaves(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Fields by name, from dictionaries, or from tuples where keys 0, 1, … were declared."""
        if name not in self._fields and isinstance(value, (Mapping, tuple)):
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, part in parts:
                yield from self._leaves(f"{name}.{key}" if name else str(key), part)
        else:
            yield name, value

    # What is wrong, in words.

    def _weight_missing(self) -> ReplayError:
        return ReplayError(
            f"{type(self._sampler).__name__} needs `weight`, or a buffer with `weight_from`: pass "
            "weight=… with the transition"
        )

    def _weight_unused(self) -> ReplayError:
        why = "come from returns" if self._sampler.weighted else f"are not used by {self._sampler}"
        return ReplayError(f"this buffer's weights {why}: leave `weight` out")

    def weight_refused(self, weight: Any, place: int) -> ReplayError:
        """A weight that is no finite number, or a negative priority."""
        expected = f"a finite number, of at most {MAX_WEIGHT:g}"
        if self._sampler.has_importance:
            expected = "a finite number from 0 on (a priority), "
            expected += f"whose power α is at most {MAX_WEIGHT:g}"
        return ReplayError(
            f"`weight` must be {expected}, got {weight} at position {place}; nothing was changed"
        )


def reward_refused(place: int) -> ReplayError:
    """A reward that can't be a weight."""
    return ReplayError(
        f"`reward` must be a finite number, as weights come from it; it is not at position "
        f"{place}; nothing was stored"
    )


def _way(rows: Rows, one: Field) -> tuple[frozenset[type], Any, Any]:
    """How one value is written at once: of these types, to this place of a memoryview.

    A memoryview takes arrays of its own format and shape only, and is twice as fast as an array.
    """
    if one.place in ("row", "next") and len(one.shape) < 2:
        view = (rows.views[one.name][0] if one.shape else rows.views[one.name]).data
        if view.format in _FORMATS:
            if one.shape:
                return frozenset((np.ndarray,)), view, slice(None)
            return _KINDS.get(str(one.dtype), frozenset()), view, 0
    return frozenset(), None, None
