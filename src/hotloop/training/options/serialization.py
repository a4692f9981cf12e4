"""Conversion of configurations to and from `config.json`."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, TypeVar

from hotloop.base.importing import importable_name
from hotloop.errors import ConfigError
from hotloop.ops.schedules import as_schedule
from hotloop.training.options.base import Options
from hotloop.training.options.constraints import (
    changeable_options,
    is_data,
    scheduled_options,
    type_hints,
)

# Values of `execution` for values of its older name `compile`.
_EXECUTION_NAMES = {"on": "compile", "off": "eager"}

AnyConfig = TypeVar("AnyConfig", bound=Options)


def to_json(config: Options) -> dict[str, Any]:
    """Return a configuration as JSON values.

    Schedules become a number or a string, classes and functions `module:name`, and tuples lists.
    """
    options = {field.name: config.value_of(field.name) for field in fields(config)}
    for name in scheduled_options(type(config)):
        if options[name] is not None:
            schedule = as_schedule(options[name])
            options[name] = schedule(0.0) if schedule.is_constant else str(schedule)
    return json.loads(json.dumps(options, default=importable_name))


def differing_defaults(config: Options, stored: dict[str, Any]) -> dict[str, Any] | None:
    """Return the defaults of all options that differ from their default, as JSON values.

    Args:
        config: the configuration.
        stored: the configuration's output of `to_json`.

    Returns:
        Defaults by name, or None if a configuration class has options without a default.
    """
    try:
        defaults = to_json(type(config)())
    except (TypeError, ValueError):
        return None
    return {name: defaults[name] for name, value in stored.items() if value != defaults[name]}


def from_stored(config_class: type[AnyConfig], stored: dict[str, Any]) -> AnyConfig:
    """Return the configuration that `to_json` wrote.

    Raises:
        ConfigError: an option is unknown to this version, or a value is invalid.
        UnknownNameError: the function of a schedule can't be imported.
    """
    stored = _with_current_names(config_class, stored)
    known = {field.name for field in fields(config_class)}
    unknown = sorted(set(stored) - known)
    if unknown:
        raise ConfigError(
            f"config.json has options that are unknown to this version of hotloop "
            f"({', '.join(unknown)}): resume with the version that config.json names"
        )
    tuples = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
    config = config_class(**{**stored, **tuples})  # invalid values raise here
    schedules = {
        name: as_schedule(value)
        for name, value in stored.items()
        if name in scheduled_options(config_class) and isinstance(value, str)
    }
    return replace(config, **schedules)


def untrusted_options(config_class: type, stored: dict[str, Any]) -> list[str]:
    """Return the stored options that may run code or reach other machines or files.

    The environment is not included, and neither are unknown options, which `from_stored` rejects.

    Returns:
        A text "`option` value" for each option.
    """
    hints = type_hints(config_class)
    names = stored.keys() & hints.keys() - {"env_id", "env_kwargs", "track"}
    return [
        f"`{name}` {_short_text(stored[name])}"
        for name in hints
        if name in names and not is_data(hints[name], stored[name])
    ]


def _short_text(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def changed_fields(config: Options, stored: dict[str, Any]) -> list[str]:
    """Return the changed options that a resumed run must not change.

    Args:
        config: the configuration to resume with.
        stored: the run's original configuration from `to_json`.

    Returns:
        One `name: stored → new` for each option.
    """
    changeable, stored = changeable_options(type(config)), _with_current_names(type(config), stored)
    # An option that is newer than the run had its default's effect.
    stored = {**(differing_defaults(config, to_json(config)) or {}), **stored}
    return [
        f"{name}: {stored[name]} → {value}"
        for name, value in to_json(config).items()
        if name not in changeable and name in stored and stored[name] != value
    ]


def _with_current_names(config_class: type, stored: dict[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(config_class)}
    if "compile" not in stored or "compile" in known or "execution" in stored:
        return stored
    options = {name: value for name, value in stored.items() if name != "compile"}
    return {**options, "execution": _EXECUTION_NAMES.get(stored["compile"], stored["compile"])}
