"""Checks of what a user passes: options before anything is made, fields, weights, numbers."""

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
from hotloop.replay.storage.host import WEIGHT_FROM
from hotloop.replay.storage.layout import Field, Layout
from hotloop.types import Array


def whole(name: str, value: Any, error: type[HotloopError] = ConfigError) -> int:
    """A count, as a user gives it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise error(f"`{name}` must be a whole number from 1 on, got {value!r}")
    return int(value)


def exponent(beta: Any) -> float:
    """β, as a user gives it."""
    array = as_array("beta", beta)
    if array.shape != () or array.dtype.kind not in "iuf" or not 0 <= array < inf:
        raise ReplayError(f"`beta` must be a finite number from 0 on, got {beta!r:.60}")
    return float(array)


def check(settings: Mapping[str, Any], fields: Sequence[Field], sampler: Sampler) -> None:
    """Whether options make sense together."""
    if settings["capacity"] >= HEAD:
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
    needed, reason = {}, "`weight_from`"
    if isinstance(sampler, Sequences):
        needed, reason = {"terminated": np.bool_}, "Sequences"
        if sampler.steps > settings["capacity"]:
            raise ConfigError(
                f"`length` + `burn_in` must be at most `capacity`, {settings['capacity']:,}, got "
                f"{sampler.steps:,}"
            )
        if any(one.path[0] == "mask" for one in fields):
            raise ConfigError(
                "field `mask` must have another name: a batch of Sequences has a `mask` already"
            )
    if settings["n_step"] > 1 or weight_from is not None:
        needed = {"reward": np.float32, "terminated": np.bool_}
    by_name = {one.name: one for one in fields}
    if settings["n_step"] > 1:
        reason = "`n_step` > 1"
    for name, dtype in needed.items():
        one = by_name.get(name)
        if one is None or one.shape != () or one.dtype != dtype:
            got = "there is none" if one is None else f"it is {one.dtype}, shape {one.shape}"
            raise ConfigError(f"{reason} needs a field `{name}`, ((), np.{np.dtype(dtype)}); {got}")
    truncated = by_name.get("truncated")
    if needed and truncated and (truncated.shape, truncated.dtype) != ((), np.bool_):
        raise ConfigError(f"{reason} needs `truncated` to be ((), np.bool_), if it is there")
    for name in ("terminated", "truncated") if settings["next_step_autoreset"] else ():
        one = by_name.get(name)
        if one is None or (one.shape, one.dtype) != ((), np.bool_):
            raise ConfigError(f"`next_step_autoreset` needs a field `{name}`, ((), np.bool_)")


def as_array(name: str, value: Any) -> Array:
    """What a user passes, as an array.

    Raises:
        ShapeError: it can't be one.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"`{name}` must be an array, got {value!r:.60}: {error}") from error


def checked(one: Field, value: Any, leading: tuple[int, ...]) -> Array:
    """What a user passes for a field, as an array that can be copied into it.

    Raises:
        ShapeError: its shape, or its kind of numbers, is another.
    """
    array = as_array(one.name, value)
    if array.shape != (*leading, *one.shape):
        raise ShapeError(
            f"`{one.name}` must have shape {(*leading, *one.shape)}, got {array.shape}"
            + (": `extend` takes a batch" if array.shape[1:] == one.shape and not leading else "")
            + (": `add` takes one transition" if array.shape == one.shape and leading else "")
        )
    # Python's own numbers have no dtype that anybody chose.
    plain = isinstance(value, (bool, int, float, list, tuple))
    fits = plain or np.can_cast(array.dtype, one.dtype, "same_kind")
    if fits and (plain or one.dtype.kind in "iu") and array.dtype != one.dtype:
        fits = _fits(array, one.dtype)
    if not fits:
        raise ShapeError(
            f"`{one.name}` must be {one.dtype}, got {array.dtype}"
            + (f" {value!r:.60}" if plain else f": convert it with .astype(np.{one.dtype})")
        )
    return array


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether Python's numbers are representable: integers within range, 0 and 1 as bools."""
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and dtype.kind not in "fc"):
        return False
    return dtype.kind not in "biu" or bool((array.astype(dtype) == array).all())


def missing_fields(layout: Layout, given: Mapping[str, Any]) -> ShapeError:
    """What is wrong with the names that a user passes."""
    expected = [one.name for one in layout.given()]
    names = ", ".join(f"`{name}`" for name in expected)
    for name in given:
        if name not in expected:
            return ShapeError(
                f"there is no field `{name}`{nearest(name, expected)}; fields are {names}"
            )
    absent = next((name for name in expected if name not in given), "")
    return ShapeError(f"field `{absent}` is missing: a transition has {names}")


def one_each(name: str, values: ArrayLike, count: int) -> Array:
    """An array of real numbers, one for each of `count` transitions."""
    array = as_array(name, values)
    if array.shape != (count,) or array.dtype.kind not in "biuf":
        raise ShapeError(
            f"`{name}` must be numbers, shape ({count},), got {array.dtype} {array.shape}"
        )
    return array


# What is not there, in words.


def no_such_number(index: ArrayLike, place: int, added: int, size: int) -> ReplayError:
    """At a place of `index`, a number of none of the `size` entries left of those ever `added`."""
    number = int(np.asarray(index)[place])
    if 0 <= number < added:
        return ReplayError(f"entry {number} was overwritten: the oldest is number {added - size}")
    return ReplayError(
        f"no entry ever had number {number}: they go from 0 to {added - 1}; pass `batch.index`"
    )


def too_few(batch_size: int, found: int, size: int, replacement: bool) -> ReplayError:
    """A batch that `size` entries, of which `found` have weight, are too few for."""
    if size == 0:
        return ReplayError("the buffer is empty: add transitions before sampling")
    if batch_size > size and not replacement:
        return ReplayError(
            f"a batch of {batch_size} without replacement needs as many entries, and there are "
            f"{size}: add more, ask for fewer, or draw with replacement"
        )
    return ReplayError(
        f"a batch of {batch_size} needs as many entries with weight, and {found} of {size} "
        "have some: ask for fewer, or leave `strict` out to fill it uniformly"
    )
