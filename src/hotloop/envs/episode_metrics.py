"""Custom metrics of episodes, read from `info` at the last step of an episode.

    info["episode"] = {"x_position": 3.2}       all numbers in it, under any name
    info["is_success"] = True                   the keys that the option `log_info` names

Gymnasium's `RecordEpisodeStatistics` puts `r`, `l` and `t` into `info["episode"]`: returns, lengths
and times. These are no metrics, see `hotloop.envs.episode_totals`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotloop.envs.checks import describe_value
from hotloop.errors import ConfigError
from hotloop.types import NO_INFO

# Maximum number of metrics of an episode: the workers' shared memory has a fixed size.
MAX_METRICS = 16
# Maximum length of a metric's name, in bytes, for the same reason.
MAX_NAME_BYTES = 64
_STANDARD_KEYS = frozenset("rlt")
_EPISODE = "episode"
_MISSING = object()


def is_metric_name(name: object) -> bool:
    """Return whether `name` is a valid metric name: printable, at most 64 bytes."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= MAX_NAME_BYTES


class EpisodeMetrics:
    """Reader of episode metrics in `info`.

    Args:
        names: keys of `info` that are metrics, besides those in `info["episode"]`.
        env_id: name of the environment in messages.
    """

    def __init__(self, names: Sequence[str], env_id: str) -> None:
        self._names = tuple(names)
        self._env_id = env_id
        self._accepted_names = dict.fromkeys(names)
        self._has_warned = False

    def from_info(self, info: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the finite metrics of a single environment's `info` at an episode's last step.

        Raises:
            ConfigError: a key of `names` has a value that is not a number.
        """
        if not (_EPISODE in info or self._names):
            return NO_INFO
        metrics: dict[str, float] = {}
        for name in self._names:
            if name in info:
                value = _to_float(info[name])
                if value is None:
                    raise ConfigError(
                        f"{self._env_id}: `log_info` must name numbers, but `info['{name}']` is "
                        f"{describe_value(info[name])}: name another key, or have the environment "
                        "put a number there"
                    )
                metrics[name] = value
        if isinstance(episode := info.get(_EPISODE), Mapping):
            for name, item in episode.items():
                if name in _STANDARD_KEYS or name in metrics or not is_metric_name(name):
                    continue
                value = _to_float(item)
                if value is not None and self._accept_name(name):
                    metrics[name] = value
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def values_of_env(self, info: Mapping[str, Any], i: int) -> dict[str, Any]:
        """Return the keys of `info` for environment `i` that `from_info` needs.

        Args:
            info: `info` of a vector environment, a dictionary of arrays.
            i: index of the environment.
        """
        # Same-step mode: `info` itself belongs to the next episode's first observation.
        final = _value_of_env(info, "final_info", i) if "final_info" in info else None
        if final is None:
            names = [*self._names, _EPISODE]
            return {
                name: x for name in names if (x := _value_of_env(info, name, i)) is not _MISSING
            }
        values = dict(final) if isinstance(final, Mapping) else {}
        if _EPISODE not in values and _EPISODE in info:
            values[_EPISODE] = _value_of_env(info, _EPISODE, i)
        return values

    def _accept_name(self, name: str) -> bool:
        """Return whether a name is among the first `MAX_METRICS`, and store a new one."""
        if name in self._accepted_names:
            return True
        if len(self._accepted_names) < MAX_METRICS:
            self._accepted_names[name] = None
            return True
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._env_id}: `info['episode']` must have {MAX_METRICS} numbers at most, but "
                f"{name!r} is one more: it is left out, and so are any others. Name the important "
                "ones in `log_info`",
                RuntimeWarning,
                stacklevel=4,
            )
        return False


def _value_of_env(info: Mapping[str, Any], name: str, i: int) -> Any:
    """Return a key's value for environment `i` in a vector `info`, or `_MISSING`."""
    # Gymnasium's `_name` is a mask of the environments that have the key `name`.
    mask = info.get(f"_{name}")
    if name not in info or (mask is not None and not mask[i]):
        return _MISSING
    value = info[name]
    if isinstance(value, Mapping):
        names = [key for key in value if f"_{key}" in value or not str(key).startswith("_")]
        return {key: x for key in names if (x := _value_of_env(value, key, i)) is not _MISSING}
    try:
        return value[i]
    except (TypeError, IndexError, KeyError):
        return value


def _to_float(value: Any) -> float | None:
    """Return a Python or NumPy bool, integer or float as a float, None for any other value."""
    if isinstance(value, (bool, int, float, np.number, np.bool_)) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "biuf"
    ):
        try:
            return float(value)  # pyright: ignore[reportArgumentType]
        except (OverflowError, TypeError):  # an integer too large for a float, or a complex number
            return None
    return None
