"""Checks of user input: options, fields, weights and entry numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hotloop.errors import ConfigError, HotloopError, ReplayError, ShapeError, nearest
from hotloop.replay.native.handle import MAX_WEIGHT
from hotloop.replay.native.rows import HEAD
from hotloop.replay.samplers import Proportional, Sampler, Sequences
from hotloop.replay.storage.host_store import WEIGHT_FROM
from hotloop.replay.storage.layout import Field, RowLayout
from hotloop.types import Array


def positive_int(name: str, value: Any, error: type[HotloopError] = ConfigError) -> int:
    """Return a value as a positive integer, or raise `error` if it is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise error(f"`{name}` must be a whole number from 1 on, got {value!r}")
    return int(value)


def valid_beta(beta: Any) -> float:
    """Return β as a float. Raise ReplayError unless it is a finite number of at least 0."""
    array = as_array("beta", beta)
    if array.shape != () or array.dtype.kind not in "iuf" or not 0 <= array < inf:
        raise ReplayError(f"`beta` must be a finite number from 0 on, got {beta!r:.60}")
    return float(array)


def check_options(settings: Mapping[str, Any], fields: Sequence[Field], sampler: Sampler) -> None:
    """Raise ConfigError if options are invalid or incompatible."""
    if settings["capacity"] >= HEAD:
        # Check the numbers and the weights.
        raise ConfigError(f"`capacity` must be below {HEAD:,}, got {settings['capacity']:,}")
    gamma = settings["gamma"]
    if not (isinstance(gamma, (int, float)) and 0 <= gamma <= 1):
        raise ConfigError(f"`gamma` must be a number from 0 to 1, got {gamma!r}")
    weight_from, running = settings["weight_from"], settings["running_weight"]
    if weight_from is not None and weight_from not in list(WEIGHT_FROM):
        raise ConfigError(
            f"`weight_from` must be one of {', '.join(WEIGHT_FROM)}, got {weight_from!r}"
        )
    if running != "mean" and not (isinstance(running, (int, float)) and abs(running) <= MAX_WEIGHT):
        raise ConfigError(
            f"`running_weight` must be 'mean' or a finite number, of at most "
            f"{MAX_WEIGHT:g}, got {running!r}"
        )
    if weight_from is not None and not isinstance(sampler, Proportional):
        raise ConfigError(
            f"`weight_from` gives weights to Proportional, not to {type(sampler).__name__}"
        )
    # Fields that the sampler and the options require.
    required, reason = {}, "`weight_from`"
    if isinstance(sampler, Sequences):
        required, reason = {"terminated": np.bool_}, "Sequences"
        if sampler.steps > settings["capacity"]:
            raise ConfigError(
                f"`length` + `burn_in` must be at most `capacity`, {settings['capacity']:,}, got "
                f"{sampler.steps:,}"
            )
        if any(field.path[0] == "mask" for field in fields):
            raise ConfigError(
                "field `mask` must have another name: a batch of Sequences has a `mask` already"
            )
    if settings["n_step"] > 1 or weight_from is not None:
        required = {"reward": np.float32, "terminated": np.bool_}
    # Check that these fields exist with the right type.
    by_name = {field.name: field for field in fields}
    if settings["n_step"] > 1:
        reason = "`n_step` > 1"
    for name, dtype in required.items():
        field = by_name.get(name)
        if field is None or field.shape != () or field.dtype != dtype:
            got = "there is none" if field is None else f"it is {field.dtype}, shape {field.shape}"
            raise ConfigError(f"{reason} needs a field `{name}`, ((), np.{np.dtype(dtype)}); {got}")
    truncated = by_name.get("truncated")
    if required and truncated and (truncated.shape, truncated.dtype) != ((), np.bool_):
        raise ConfigError(f"{reason} needs `truncated` to be ((), np.bool_), if it is there")
    for name in ("terminated", "truncated") if settings["next_step_autoreset"] else ():
        field = by_name.get(name)
        if field is None or (field.shape, field.dtype) != ((), np.bool_):
            raise ConfigError(f"`next_step_autoreset` needs a field `{name}`, ((), np.bool_)")


def as_array(name: str, value: Any) -> Array:
    """Return a value as an array.

    Raises:
        ShapeError: it can't be converted.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"`{name}` must be an array, got {value!r:.60}: {error}") from error


def as_field_array(field: Field, value: Any, leading: tuple[int, ...]) -> Array:
    """Return a field's value as an array that can be copied into the field.

    Raises:
        ShapeError: its shape or kind of numbers differs from the field's.
    """
    array = as_array(field.name, value)
    if array.shape != (*leading, *field.shape):
        raise ShapeError(
            f"`{field.name}` must have shape {(*leading, *field.shape)}, got {array.shape}"
            + (": `extend` takes a batch" if array.shape[1:] == field.shape and not leading else "")
            + (": `add` takes one transition" if array.shape == field.shape and leading else "")
        )
    # Python numbers have no dtype that the user chose.
    is_plain = isinstance(value, (bool, int, float, list, tuple))
    fits = is_plain or np.can_cast(array.dtype, field.dtype, "same_kind")
    if fits and (is_plain or field.dtype.kind in "iu") and array.dtype != field.dtype:
        fits = _is_representable(array, field.dtype)
    if not fits:
        raise ShapeError(
            f"`{field.name}` must be {field.dtype}, got {array.dtype}"
            + (f" {value!r:.60}" if is_plain else f": convert it with .astype(np.{field.dtype})")
        )
    return array


def _is_representable(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype represents Python numbers: integers within range, 0 and 1 as bools."""
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and dtype.kind not in "fc"):
        return False
    return dtype.kind not in "biu" or bool((array.astype(dtype) == array).all())


def field_names_error(layout: RowLayout, fields: Mapping[str, Any]) -> ShapeError:
    """Return the error for unknown or missing field names."""
    expected = [field.name for field in layout.user_fields()]
    names = ", ".join(f"`{name}`" for name in expected)
    for name in fields:
        if name not in expected:
            return ShapeError(
                f"there is no field `{name}`{nearest(name, expected)}; fields are {names}"
            )
    missing = next((name for name in expected if name not in fields), "")
    return ShapeError(f"field `{missing}` is missing: a transition has {names}")


def as_column(name: str, values: ArrayLike, count: int) -> Array:
    """Return an array of real numbers, (count,), or raise ShapeError."""
    array = as_array(name, values)
    if array.shape != (count,) or array.dtype.kind not in "biuf":
        raise ShapeError(
            f"`{name}` must be numbers, shape ({count},), got {array.dtype} {array.shape}"
        )
    return array


# Errors about missing entries.


def missing_entry_error(index: ArrayLike, position: int, added: int, size: int) -> ReplayError:
    """Return the error for the entry number at `position` of `index`, which is not stored."""
    number = int(np.asarray(index)[position])
    if 0 <= number < added:
        return ReplayError(f"entry {number} was overwritten: the oldest is number {added - size}")
    return ReplayError(
        f"no entry ever had number {number}: they go from 0 to {added - 1}; pass `batch.index`"
    )


def too_few_error(batch_size: int, num_weighted: int, size: int, replacement: bool) -> ReplayError:
    """Return the error for a batch that needs more entries, or more entries with weight."""
    if size == 0:
        return ReplayError("the buffer is empty: add transitions before sampling")
    if batch_size > size and not replacement:
        return ReplayError(
            f"a batch of {batch_size} without replacement needs {batch_size} entries, but the "
            f"buffer has {size}: add more, request a smaller batch, or draw with replacement"
        )
    return ReplayError(
        f"a batch of {batch_size} needs {batch_size} entries with weight, but {num_weighted} of "
        f"{size} have some: request a smaller batch, or leave `strict` out to fill it uniformly"
    )
