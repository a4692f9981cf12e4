"""Whether what a user asks a buffer for makes sense, before anything is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, HotloopError, ReplayError
from hotloop.replay import native, rows
from hotloop.replay.layout import Field, as_array
from hotloop.replay.samplers import Proportional, Sampler

WEIGHT_FROM = {
    "episode_return": native.WEIGHT_EPISODE_RETURN,
    "return_so_far": native.WEIGHT_RETURN_SO_FAR,
    "return_to_go": native.WEIGHT_RETURN_TO_GO,
}


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
    if settings["capacity"] >= rows.HEAD:
        raise ConfigError(f"`capacity` must be below {rows.HEAD:,}, got {settings['capacity']:,}")
    gamma = settings["gamma"]
    if not (isinstance(gamma, (int, float)) and 0 <= gamma <= 1):
        raise ConfigError(f"`gamma` must be a number from 0 to 1, got {gamma!r}")
    weight_from, running = settings["weight_from"], settings["running_weight"]
    if weight_from is not None and weight_from not in list(WEIGHT_FROM):
        raise ConfigError(
            f"`weight_from` must be one of {', '.join(WEIGHT_FROM)}, got {weight_from!r}"
        )
    if running != "mean" and not (
        isinstance(running, (int, float)) and abs(running) <= native.MAX_WEIGHT
    ):
        raise ConfigError(
            f"`running_weight` must be 'mean' or a finite number, of at most "
            f"{native.MAX_WEIGHT:g}, got {running!r}"
        )
    if weight_from is not None and not isinstance(sampler, Proportional):
        raise ConfigError(
            f"`weight_from` gives weights to Proportional, not to {type(sampler).__name__}"
        )
    needed = {}
    if settings["n_step"] > 1 or weight_from is not None:
        needed = {"reward": np.float32, "terminated": np.bool_}
    by_name = {one.name: one for one in fields}
    reason = "`n_step` > 1" if settings["n_step"] > 1 else "`weight_from`"
    for name, dtype in needed.items():
        one = by_name.get(name)
        if one is None or one.shape != () or one.dtype != dtype:
            got = "there is none" if one is None else f"it is {one.dtype}, shape {one.shape}"
            raise ConfigError(f"{reason} needs a field `{name}`, ((), np.{np.dtype(dtype)}); {got}")
    truncated = by_name.get("truncated")
    if needed and truncated and (truncated.shape, truncated.dtype) != ((), np.bool_):
        raise ConfigError(f"{reason} needs `truncated` to be ((), np.bool_), if it is there")
