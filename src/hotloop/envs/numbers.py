"""Numbers of an environment's own about its episodes, taken from `info` where an episode ends.

    info["episode"] = {"x_position": 3.2}       all numbers in it, whatever they are called
    info["is_success"] = True                   those that were asked for by name: `log_info`

Gymnasium's `RecordEpisodeStatistics` puts `r`, `l` and `t` into `info["episode"]`: returns, lengths
and times, which are known anyway and are left out.
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

# Numbers of an episode that are kept: memory that workers share has room for so many.
MOST_NUMBERS = 16
# Bytes of a number's name, there too.
NAME_BYTES = 64
_KNOWN_ANYWAY = frozenset("rlt")
_EPISODE = "episode"
_MISSING = object()


def is_name(name: object) -> bool:
    """Whether a number may be called so: a text that can be shown, of 64 bytes at most."""
    return isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= NAME_BYTES


class EpisodeNumbers:
    """Takes the numbers of episodes out of `info`.

    Args:
        names: keys of `info` whose values are taken besides.
        env_id: what messages call the environment.
    """

    def __init__(self, names: Sequence[str], env_id: str) -> None:
        self._names = tuple(names)
        self._env_id = env_id
        self._known = dict.fromkeys(names)
        self._has_warned = False

    def of(self, info: Any) -> Mapping[str, float]:
        """Of a single environment's `info`, at an episode's last step.

        Numbers that are not finite are left out.

        Raises:
            ConfigError: what was asked for by name is no number.
        """
        if not isinstance(info, Mapping) or not (_EPISODE in info or self._names):
            return NO_INFO
        return self._taken(info, info.get(_EPISODE))

    def of_row(self, info: Any, i: int) -> Mapping[str, float]:
        """Of environment `i` of a vector environment, whose `info` has an array for each key.

        Raises:
            ConfigError: what was asked for by name is no number.
        """
        if not isinstance(info, Mapping):
            return NO_INFO
        # Same-step mode: `info` itself is of the next episode's first observation.
        final = _in_row(info, "final_info", i) if "final_info" in info else None
        if final is None:
            names = [*self._names, _EPISODE]
            own = {name: x for name in names if (x := _in_row(info, name, i)) is not _MISSING}
        else:
            own = dict(final) if isinstance(final, Mapping) else {}
            if _EPISODE not in own and _EPISODE in info:
                own[_EPISODE] = _in_row(info, _EPISODE, i)
        return self._taken(own, own.get(_EPISODE))

    def _taken(self, info: Mapping[str, Any], episode: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        for name in self._names:
            if name in info:
                value = _number(info[name])
                if value is None:
                    raise ConfigError(
                        f"{self._env_id}: `log_info` must name numbers, but `info['{name}']` is "
                        f"{describe_value(info[name])}: name another key, or have the environment "
                        "put a number there"
                    )
                found[name] = value
        if isinstance(episode, Mapping):
            for name, one in episode.items():
                if name in _KNOWN_ANYWAY or name in found or not is_name(name):
                    continue
                value = _number(one)
                if value is not None and self._has_room(name):
                    found[name] = value
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _has_room(self, name: str) -> bool:
        """Whether a number is one of the first that there were."""
        if name in self._known:
            return True
        if len(self._known) < MOST_NUMBERS:
            self._known[name] = None
            return True
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._env_id}: `info['episode']` must have {MOST_NUMBERS} numbers at most, but "
                f"{name!r} is one more: it is left out, and so are others; `log_info` says which "
                "to keep first",
                RuntimeWarning,
                stacklevel=4,
            )
        return False


def _in_row(info: Mapping[str, Any], name: str, i: int) -> Any:
    """What a vector environment's `info` has of environment `i`; `_MISSING`: nothing.

    Gymnasium says in `_name` which environments a key is of.
    """
    mask = info.get(f"_{name}")
    if name not in info or (mask is not None and not mask[i]):
        return _MISSING
    value = info[name]
    if isinstance(value, Mapping):
        names = [key for key in value if f"_{key}" in value or not str(key).startswith("_")]
        return {key: x for key in names if (x := _in_row(value, key, i)) is not _MISSING}
    try:
        return value[i]
    except (TypeError, IndexError, KeyError):
        return value


def _number(value: Any) -> float | None:
    """A bool, an integer or a float, of NumPy's too; None: it is something else."""
    if isinstance(value, (bool, int, float, np.number, np.bool_)) or (
        isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "biuf"
    ):
        try:
            return float(value)  # pyright: ignore[reportArgumentType]
        except (OverflowError, TypeError):  # an integer that no float can hold; complex
            return None
    return None
