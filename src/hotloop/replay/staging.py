"""Checks of transitions, and copies of them into the staging area for compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hotloop.errors import ReplayError, ShapeError
from hotloop.replay.checks import as_array, as_column, as_field_array, field_names_error
from hotloop.replay.native.entry_points import convert_weights
from hotloop.replay.native.handle import MAX_WEIGHT
from hotloop.replay.resets import ResetFilter
from hotloop.replay.samplers import Proportional, Sampler, Sequences
from hotloop.replay.storage.host_store import HostStore
from hotloop.replay.storage.layout import Field, RowLayout
from hotloop.types import Array

MAX_STAGE_BYTES = 1 << 22  # largest staging area that is kept for the next batch
_FORMATS = "bBhHiIlLqQfd?"  # formats of arrays that a memoryview can be assigned
# Types of numbers that an item of a memoryview of this dtype can be assigned.
_REALS = frozenset((bool, int, float, np.float32, np.float64))
_INTEGERS = frozenset((int, np.int64, np.int32))
_KINDS = {
    "float32": _REALS,
    "float64": _REALS,
    "int32": _INTEGERS,
    "int64": _INTEGERS,
    "bool": frozenset((bool, np.bool_)),
}


class StagedRows:
    """Staged transitions, one row after the other, small fields only.

    Attributes:
        memory: uint8, the rows. `address`: its address.
        views: array of each field within `memory`, (size, *shape).
        weights, envs: weight, float64, and environment, int64, of each row, (size,).
        weights_address, envs_address: their addresses.
    """

    def __init__(self, layout: RowLayout, size: int) -> None:
        self.size = size
        self.memory = np.zeros(max(size * layout.stage_bytes, 8), np.uint8)
        self.address: int = self.memory.ctypes.data
        self.weights, self.envs = np.zeros(size), np.zeros(size, np.int64)
        self.weights_address: int = self.weights.ctypes.data
        self.envs_address: int = self.envs.ctypes.data
        self.views: dict[str, Array] = {}
        for field in layout.user_fields():
            if field.place in ("row", "next"):
                offset = field.offset + (layout.stage_next if field.place == "next" else 0)
                strides = (layout.stage_bytes, *np.empty(field.shape, field.dtype).strides)
                self.views[field.name] = np.ndarray(
                    (size, *field.shape), field.dtype, self.memory.data, offset, strides
                )


class Staging:
    """The staging area for input of a buffer.

    Args:
        layout: layout of the buffer.
        sampler: sampler of the buffer.
        settings: settings of the buffer.
        accepts_weights: whether users pass the weights, if the sampler has weights.

    Attributes:
        takes_weight, needs_weight: whether users may pass weights, and whether they must.
    """

    def __init__(
        self,
        layout: RowLayout,
        sampler: Sampler,
        settings: Mapping[str, Any],
        *,
        accepts_weights: bool,
    ) -> None:
        self._layout, self._sampler, self._num_envs = layout, sampler, settings["num_envs"]
        self._resets = ResetFilter(self._num_envs) if settings["next_step_autoreset"] else None
        self._fields = {field.name: field for field in layout.user_fields()}
        self.takes_weight = sampler.weighted and accepts_weights
        self.needs_weight = isinstance(sampler, Proportional) and accepts_weights
        self._in_sequences = isinstance(sampler, Sequences)
        self._pool_arrays: dict[str, Array] = {}  # values of fields in frame pools
        self._single = StagedRows(layout, 1)
        self._single_views = {name: view[0, ...] for name, view in self._single.views.items()}
        self._writers = {name: _writer(self._single, field) for name, field in self._fields.items()}
        self._allocate(64)

    def bind(self, store: HostStore) -> None:
        """Stage for the arrays of this store."""
        self._store, self._handle_address = store, store.address
        store.handle["staged_row"] = self._single.address

    def size_bytes(self) -> int:
        """Return the size in bytes of the staging area for batches."""
        return self._rows.memory.nbytes + self._rows.weights.nbytes + self._rows.envs.nbytes

    def _allocate(self, size: int) -> None:
        self._count = 0  # until there are targets, also after Ctrl-C
        self._rows = StagedRows(self._layout, size)
        self._reserve(size)

    def _reserve(self, count: int) -> None:
        if count > self._rows.size:
            self._allocate(1 << (count - 1).bit_length())
        self._targets = {name: view[:count] for name, view in self._rows.views.items()}
        self._count = count

    def release(self) -> None:
        """Clear the staging area after its contents were stored, and free large memory."""
        self._pool_arrays.clear()
        if self._resets is not None:
            self._resets.commit()
        if self._rows.memory.nbytes > MAX_STAGE_BYTES:
            self._allocate(64)

    def clear_resets(self, first: int, last: int) -> None:
        """Expect no reset step of environments `first` … `last`."""
        if self._resets is not None:
            self._resets.clear(first, last)

    # One transition.

    def put_one(self, fields: Mapping[str, Any]) -> None:
        """Stage one transition, or raise an error."""
        writers = self._writers
        if fields.keys() != writers.keys():
            fields = self._by_field_name(fields)
        for name, value in fields.items():
            kinds, target, index = writers[name]
            if type(value) in kinds:
                try:
                    target[index] = value
                    continue
                except (TypeError, ValueError, OverflowError):
                    pass
            self._put(name, value, self._single_views.get(name), ())

    def check_weight(self, weight: Any) -> float:
        """Return the weight of one transition as a float, or raise an error."""
        if weight is None:
            raise self._missing_weight_error()
        if not self.takes_weight:
            raise self._unused_weight_error()
        array = as_array("weight", weight)
        if array.shape != () or array.dtype.kind not in "biuf":
            raise ShapeError(f"`weight` must be a number, got {weight!r:.60}")
        weight = float(array) + 0.0
        if weight != weight:
            raise self.weight_error(weight, 0)
        return weight

    def check_env(self, env: Any) -> int:
        """Return the number of an environment, or raise an error if it is invalid."""
        self._put_envs(as_array("env", [env]), 1)
        return int(env)

    # Batches.

    def put(
        self,
        fields: Mapping[str, Any],
        weight: ArrayLike | None,
        env: ArrayLike | None,
        valid: ArrayLike | None,
    ) -> tuple[int, int, int, int]:
        """Stage a batch, or raise an error.

        Returns:
            The number of transitions, and the addresses of their rows, environments and weights, 0
            if there are none. With sequences, invalid rows are included to end the sequence. For
            them the environment e is stored as −1 − e.
        """
        if fields.keys() != self._fields.keys():
            fields = self._by_field_name(fields)
        name, value = next(iter(fields.items()))
        shape = value.shape if type(value) is np.ndarray else as_array(name, value).shape
        if not shape:
            raise ShapeError("`extend` takes a batch, (B, …) each: `add` takes one transition")
        count = shape[0]
        if env is None and count % self._num_envs:
            raise ShapeError(
                f"{count} transitions are not a multiple of {self._num_envs} environments: pass "
                "`env`, the environment of each"
            )
        if self._resets is not None:
            is_transition = self._resets.find_transitions(fields, env)
            valid = is_transition if valid is None else valid
        # Select the valid rows.
        is_invalid = None
        if valid is not None:
            is_valid = as_field_array(Field(("valid",), (), np.dtype(np.bool_)), valid, (count,))
            rows = np.flatnonzero(is_valid)
            numbers = np.arange(count) % self._num_envs if env is None else env
            env = as_column("env", numbers, count)
            if self._in_sequences:
                rows, is_invalid = slice(None), ~is_valid
            env = env[rows]
            if weight is not None:
                weight = as_column("weight", weight, count)[rows]
            fields = {
                name: as_field_array(self._fields[name], value, (count,))[rows]
                for name, value in fields.items()
            }
            count = len(env)
        if count == 0:
            return 0, 0, 0, 0
        # Copy all values into the staging area.
        if count != self._count:
            self._reserve(count)
        for name, value in fields.items():
            self._put(name, value, self._targets.get(name), (count,))
        if weight is not None:
            self._put_weights(weight, count)
        elif self.needs_weight:
            raise self._missing_weight_error()
        if env is not None:
            self._put_envs(as_array("env", env), count)
        if is_invalid is not None:
            envs = self._rows.envs[:count]
            envs[is_invalid] = -1 - envs[is_invalid]
        staged = self._rows
        envs_address = 0 if env is None else staged.envs_address
        return count, staged.address, envs_address, 0 if weight is None else staged.weights_address

    def put_numbers(self, index: ArrayLike) -> int:
        """Copy entry numbers into the work space, and return their count, or raise an error."""
        numbers = as_array("index", index)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
            raise ShapeError(
                f"`index` must be integers, (B,), as `batch.index` has them, got {numbers.dtype} "
                f"{numbers.shape}"
            )
        count = len(numbers)
        self._store.reserve_scratch(count)
        self._store.numbers[:count] = numbers
        return count

    def _put(self, name: str, value: Any, target: Array | None, leading: tuple[int, ...]) -> None:
        """Copy a field, or store the address of its values if it belongs to a frame pool."""
        field = self._fields[name]
        if target is None:
            array = np.ascontiguousarray(as_field_array(field, value, leading), field.dtype)
            self._pool_arrays[name] = array  # keep it alive during the compiled call
            stage = "stage" if field.place == "pool" else "next_stage"
            self._store.pool_records[stage][field.pool_index] = array.ctypes.data
        elif (
            type(value) is np.ndarray
            and value.shape == target.shape
            and (value.dtype is target.dtype or value.dtype.kind == field.dtype.kind == "f")
        ):
            target[...] = value
        else:
            target[...] = as_field_array(field, value, leading)

    def _put_weights(self, weight: ArrayLike, count: int) -> None:
        if not self.takes_weight:
            raise self._unused_weight_error()
        weights = as_column("weight", weight, count)
        self._rows.weights[:count] = weights
        num_valid = convert_weights(self._handle_address, self._rows.weights_address, count)
        if num_valid < count:
            raise self.weight_error(weights[num_valid], num_valid)

    def _put_envs(self, env: Array, count: int) -> None:
        if env.shape != (count,) or env.dtype.kind not in "iu":
            raise ShapeError(
                f"`env` must be integers, shape ({count},), got {env.dtype} {env.shape}"
            )
        if env.min() < 0 or env.max() >= self._num_envs:
            wrong = env[(env < 0) | (env >= self._num_envs)][0]
            raise ReplayError(
                f"`env` must be from 0 to {self._num_envs - 1}, got {wrong}: set `num_envs` when "
                "you create the buffer"
            )
        self._rows.envs[:count] = env

    def _by_field_name(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by field name, or raise an error if names are unknown or missing."""
        values = dict(self._leaves("", fields))
        if values.keys() != self._fields.keys():
            raise field_names_error(self._layout, values)
        return values

    def _leaves(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield names and values from nested dictionaries, or tuples with declared keys 0, 1, …"""
        if name not in self._fields and isinstance(value, (Mapping, tuple)):
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, part in parts:
                yield from self._leaves(f"{name}.{key}" if name else str(key), part)
        else:
            yield name, value

    # Errors.

    def _missing_weight_error(self) -> ReplayError:
        return ReplayError(
            f"{type(self._sampler).__name__} needs `weight`, or a buffer with `weight_from`: pass "
            "weight=… with the transition"
        )

    def _unused_weight_error(self) -> ReplayError:
        cause = (
            "come from returns" if self._sampler.weighted else f"are not used by {self._sampler}"
        )
        return ReplayError(f"this buffer's weights {cause}: leave `weight` out")

    def weight_error(self, weight: Any, position: int) -> ReplayError:
        """Return the error for a weight that is not finite, or for a negative priority."""
        expected = f"a finite number, of at most {MAX_WEIGHT:g}"
        if self._sampler.has_importance:
            expected = "a finite number from 0 on (a priority), "
            expected += f"whose power α is at most {MAX_WEIGHT:g}"
        return ReplayError(
            f"`weight` must be {expected}, got {weight} at position {position}; nothing was changed"
        )


def reward_error(position: int) -> ReplayError:
    """Return the error for a reward that can't be a weight."""
    return ReplayError(
        f"`reward` must be a finite number, as weights come from it; it is not at position "
        f"{position}; nothing was stored"
    )


def _writer(rows: StagedRows, field: Field) -> tuple[frozenset[type], Any, Any]:
    """Return the types that can be assigned directly, a memoryview and the index in it."""
    # A memoryview accepts only arrays of its own format and shape, but takes half the time.
    if field.place in ("row", "next") and len(field.shape) < 2:
        view = (rows.views[field.name][0] if field.shape else rows.views[field.name]).data
        if view.format in _FORMATS:
            if field.shape:
                return frozenset((np.ndarray,)), view, slice(None)
            return _KINDS.get(str(field.dtype), frozenset()), view, 0
    return frozenset(), None, None
