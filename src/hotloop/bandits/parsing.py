"""Creation of agents and environments from names and field values in text."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.bandits.agents import AGENTS, Agent
from hotloop.bandits.environments import ENVIRONMENTS, Environment
from hotloop.base.files import open_regular
from hotloop.base.space_syntax import parse_value
from hotloop.errors import ConfigError, UnknownNameError, nearest


def make_agent(name: str, settings: Mapping[str, Any]) -> Agent:
    """Return the agent with this name and these settings, which may be text or values.

    Raises:
        UnknownNameError: There is no such agent or field.
        ConfigError: A value is invalid.
    """
    return _make(AGENTS, "agent", name, settings)


def make_environment(name: str, settings: Mapping[str, Any]) -> Environment:
    """Return the environment with this name and settings. `rewards` may be a .npy or .csv path.

    Raises:
        UnknownNameError: There is no such environment or field.
        ConfigError: A value is invalid.
    """
    return _make(ENVIRONMENTS, "environment", name, settings)


def _make(classes: Mapping[str, Any], kind: str, name: str, settings: Mapping[str, Any]) -> Any:
    if name not in classes:
        raise UnknownNameError(
            f"there is no {kind} '{name}'"
            + (nearest(name, classes) or f"; there are {', '.join(classes)}")
        )
    names = [field.name for field in fields(classes[name])]
    values = {}
    for field, value in settings.items():
        if field.replace("-", "_") not in names:
            raise UnknownNameError(
                f"{kind} {name} has no field '{field}'"
                + (nearest(field, names) or f"; it has {', '.join(names) or 'none'}")
            )
        values[field.replace("-", "_")] = _parse_field(field, value)
    missing = [field for field in ("rewards",) if field in names and field not in values]
    if missing:
        raise ConfigError(f"{kind} {name} needs `rewards`: a .npy or .csv file, one row per step")
    return classes[name](**values)


def _parse_field(field: str, value: Any) -> Any:
    if field == "rewards" and isinstance(value, str):
        return _load_matrix(Path(value))
    if isinstance(value, list) and field == "means":
        return tuple(value)
    if not isinstance(value, str):
        return value
    try:
        if field == "means" and value.lower() != "none":
            return tuple(parse_value(part) for part in value.split(","))
        return parse_value(value)
    except ConfigError as error:
        raise ConfigError(f"`{field}`: {error}") from None


def _load_matrix(path: Path) -> Any:
    try:
        with open_regular(path) as file:
            if path.suffix == ".npy":
                return np.lib.format.read_array(file, allow_pickle=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # an empty file raises below
                matrix = np.loadtxt(file, delimiter=",", ndmin=2)
        if not matrix.size:
            raise ValueError("it contains no numbers")
        return matrix
    except Exception as error:  # NumPy's reader of headers raises those of a parser, too
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise ConfigError(
            f"`rewards` must be a .npy or .csv file of numbers, one row per step; {path}: {reason}"
        ) from None
