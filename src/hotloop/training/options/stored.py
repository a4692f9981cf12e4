"""Configurations as `config.json` holds them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, TypeVar

from hotloop.errors import ConfigError
from hotloop.importing import importable, name_of
from hotloop.ops.schedules import as_schedule
from hotloop.training.options.base import Options
from hotloop.training.options.constraints import may_change, scheduled

# What `execution` is called for what `compile` was, which it was called before.
_EXECUTIONS = {"on": "compile", "off": "eager"}

AnyConfig = TypeVar("AnyConfig", bound=Options)


def to_json(config: Any) -> dict[str, Any]:
    """Return a configuration as JSON holds it.

    Schedules are a number or a text, classes and functions `module:name`, tuples lists.
    """
    options = {field.name: getattr(config, field.name) for field in fields(config)}
    for name in scheduled(type(config)):
        if options[name] is not None:
            schedule = as_schedule(options[name])
            options[name] = schedule(0.0) if schedule.is_constant else str(schedule)
    return json.loads(json.dumps(options, default=_importable_name))


def differing_defaults(config: Any, stored: dict[str, Any]) -> dict[str, Any] | None:
    """Return the defaults of those options that have another value, as JSON holds them.

    Args:
        config: the configuration.
        stored: the same, from `to_json`.

    Returns:
        By name; None where a configuration of one's own can't be made of defaults alone.
    """
    try:
        defaults = to_json(type(config)())
    except (TypeError, ValueError):
        return None
    return {name: defaults[name] for name, value in stored.items() if value != defaults[name]}


def _importable_name(named: Any) -> str:
    """Return a name that a class or function of a script is found by, too."""
    module, _, name = name_of(named).partition(":")
    return f"{importable(module)}:{name}"


def from_stored(config_class: type[AnyConfig], stored: dict[str, Any]) -> AnyConfig:
    """Return the configuration that `to_json` wrote.

    Raises:
        ConfigError: it has an option that this version does not know, or a value that is wrong.
        UnknownNameError: a schedule is a function that can't be imported by its name.
    """
    stored = _renamed(config_class, stored)
    known = {field.name for field in fields(config_class)}  # pyright: ignore[reportArgumentType]
    unknown = sorted(set(stored) - known)
    if unknown:
        raise ConfigError(
            f"config.json has options that this version of hotloop does not know "
            f"({', '.join(unknown)}): resume with the version that it names"
        )
    tuples = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
    config = config_class(**{**stored, **tuples})  # what is wrong is told by its option
    schedules = {
        name: as_schedule(value)
        for name, value in stored.items()
        if name in scheduled(config_class) and isinstance(value, str)
    }
    return replace(config, **schedules)  # pyright: ignore[reportArgumentType]


def changed_fields(config: Any, stored: dict[str, Any]) -> list[str]:
    """Return the options that a resumed run may not change, and that differ.

    Args:
        config: the configuration to go on with.
        stored: the one that the run was started with, from `to_json`.

    Returns:
        One `name: stored → new` for each.
    """
    may, stored = may_change(type(config)), _renamed(type(config), stored)
    return [
        f"{name}: {stored[name]} → {value}"
        for name, value in to_json(config).items()
        if name not in may and name in stored and stored[name] != value
    ]


def _renamed(config_class: type, stored: dict[str, Any]) -> dict[str, Any]:
    """Return stored options by the names that they have now."""
    known = {field.name for field in fields(config_class)}
    if "compile" not in stored or "compile" in known or "execution" in stored:
        return stored
    rest = {name: value for name, value in stored.items() if name != "compile"}
    return {**rest, "execution": _EXECUTIONS.get(stored["compile"], stored["compile"])}
