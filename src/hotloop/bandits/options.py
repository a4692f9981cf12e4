"""Agents and environments from text: names and `field=value`, as a command line has them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.bandits.agents import AGENTS, Agent
from hotloop.bandits.environments import ENVIRONMENTS, Environment
from hotloop.errors import ConfigError, UnknownNameError, nearest

_WORDS = {"none": None, "true": True, "false": False}
_RATIO = re.compile(r"([^/]+)/([^/]+)")
_POWER = re.compile(r"([^*]+)\*\*([^*]+)")


def value_of(text: str) -> int | float | bool | None:
    """A number ("0.1", "1/128", "2**-7"), "none", "true" or "false".

    Raises:
        ConfigError: it is none of these.
    """
    stripped = text.strip()
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    try:
        if match := _POWER.fullmatch(stripped):
            return math.pow(float(match[1]), float(match[2]))
        if match := _RATIO.fullmatch(stripped):
            return float(match[1]) / float(match[2])
        try:
            return int(stripped)
        except ValueError:
            return float(stripped)
    except (ValueError, ArithmeticError):
        raise ConfigError(
            "a value must be a number such as 0.1, 1/128 or 2**-7, or none, true, false; got "
            f"'{text}'"
        ) from None


def agent_from(name: str, given: Mapping[str, Any]) -> Agent:
    """The agent of that name, with settings as text or as values.

    Raises:
        UnknownNameError: there is no such agent, or it has no such field.
        ConfigError: a value makes no sense.
    """
    return _made(AGENTS, "agent", name, given)


def environment_from(name: str, given: Mapping[str, Any]) -> Environment:
    """The environment of that name; `rewards` may be the path of a .npy or .csv file.

    Raises:
        UnknownNameError: there is no such environment, or it has no such field.
        ConfigError: a value makes no sense.
    """
    return _made(ENVIRONMENTS, "environment", name, given)


def _made(known: Mapping[str, Any], kind: str, name: str, given: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UnknownNameError(
            f"there is no {kind} '{name}'"
            + (nearest(name, known) or f"; there are {', '.join(known)}")
        )
    names = [one.name for one in fields(known[name])]
    values = {}
    for field, value in given.items():
        if field.replace("-", "_") not in names:
            raise UnknownNameError(
                f"{kind} {name} has no field '{field}'"
                + (nearest(field, names) or f"; it has {', '.join(names) or 'none'}")
            )
        values[field.replace("-", "_")] = _value(field, value)
    missing = [field for field in ("rewards",) if field in names and field not in values]
    if missing:
        raise ConfigError(f"{kind} {name} needs `rewards`: a .npy or .csv file, a row a step")
    return known[name](**values)


def _value(field: str, value: Any) -> Any:
    if field == "rewards" and isinstance(value, str):
        return _matrix(Path(value))
    if isinstance(value, list) and field == "means":
        return tuple(value)
    if not isinstance(value, str):
        return value
    try:
        if field == "means" and value.lower() != "none":
            return tuple(value_of(part) for part in value.split(","))
        return value_of(value)
    except ConfigError as error:
        raise ConfigError(f"`{field}`: {error}") from None


def _matrix(path: Path) -> Any:
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return np.lib.format.read_array(file, allow_pickle=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file; said below
            matrix = np.loadtxt(path, delimiter=",", ndmin=2)
        if not matrix.size:
            raise ValueError("it holds no number")
        return matrix
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(
            f"`rewards` must be a .npy or .csv file of numbers, a row a step; {path}: {error}"
        ) from None
