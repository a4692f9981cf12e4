"""The points of a grid: every agent of the ranges in every environment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hotloop.bandits.agents import AGENTS, Agent
from hotloop.bandits.environments import ENVIRONMENTS, Environment
from hotloop.bandits.grids.notation import ENV, canonical, setting_key, setting_text, to_config
from hotloop.bandits.parsing import make_agent, make_environment
from hotloop.base.space_syntax import MAX_POINTS, SYNTAX, parse_domain, parse_value, range_error
from hotloop.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Point:
    """An agent in an environment.

    Attributes:
        agent: the agent.
        environment: the environment, one object for all points with equal settings.
        settings: explicit fields as JSON values, those of the environment named like "env.walk".
        config: the complete point as JSON values, as stored in the file.
    """

    agent: Agent
    environment: Environment
    settings: dict[str, Any]
    config: dict[str, Any]


def make_points(
    agent_name: str,
    agent_fields: Mapping[str, Any],
    environment_name: str,
    environment_fields: Mapping[str, Any],
    steps: Mapping[str, int],
) -> dict[str, Point]:
    """Return all points by their configuration as text, with the last range changing fastest.

    Raises:
        ConfigError: a range has wrong syntax, or a point is invalid. The message names it.
        UnknownNameError: there is no such agent, environment or field.
    """
    agents = _expand(make_agent, AGENTS, agent_name, agent_fields, "")
    environments = _expand(
        make_environment, ENVIRONMENTS, environment_name, environment_fields, ENV
    )
    _check_num_points(len(agents) * len(environments))
    points: dict[str, Point] = {}
    for environment, outer in environments:
        environment.plan(steps["num_steps"])  # raises if the environment has fewer steps
        environment_config = to_config(environment)
        for agent, inner in agents:
            agent.plan(environment, steps["num_steps"])  # raises if the agent can't play in it
            config = {"agent": to_config(agent), "environment": environment_config, **steps}
            point = Point(
                agent=agent, environment=environment, settings=inner | outer, config=config
            )
            points.setdefault(setting_key(config), point)  # merges equal points
    return points


def varied_fields(points: Sequence[Point]) -> dict[str, list[Any]]:
    """Return the fields with several values, each with its values in order."""
    ranges = {}
    for name in points[0].settings:
        values = {setting_key(point.settings[name]): point.settings[name] for point in points}
        if len(values) > 1:
            ranges[name] = list(values.values())
    return ranges


def _expand(
    make: Callable[[str, Mapping[str, Any]], Any],
    classes: Mapping[str, Any],
    kind_name: str,
    field_ranges: Mapping[str, Any],
    prefix: str,
) -> list[tuple[Any, dict[str, Any]]]:
    """Return every agent or environment of the ranges, each with its explicit settings."""
    has_tuples = {}
    if kind_name in classes:
        for field in fields(classes[kind_name]):
            has_tuples[field.name] = any(kind in str(field.type) for kind in ("tuple", "Array"))
    ranges: dict[str, list[Any]] = {}
    for option, values in field_ranges.items():
        name = option.replace("-", "_")
        if has_tuples and name not in has_tuples:
            make(kind_name, {option: None})  # raises an error with the nearest name
        if name in ranges:
            raise ConfigError(f"`{prefix}{name}` is given twice: give all its values in one range")
        ranges[name] = field_values(name, values, has_tuples=has_tuples.get(name, False))
    _check_num_points(math.prod(map(len, ranges.values())))
    instances = []
    for combination in itertools.product(*ranges.values()):
        settings = dict(zip(ranges, combination, strict=True))
        try:
            instance = make(kind_name, settings)
        except ConfigError as error:
            # The message omits a matrix. The error describes what is wrong with it.
            printed = {name: value for name, value in settings.items() if name != "rewards"}
            point = ", ".join(f"{name} = {setting_text(value)}" for name, value in printed.items())
            raise ConfigError(f"{error} (the point {point})" if point else str(error)) from None
        explicit = {
            prefix + name: value if _is_path(name, value) else canonical(getattr(instance, name))
            for name, value in settings.items()
        }
        instances.append((instance, explicit))
    return instances


def _check_num_points(num: int) -> None:
    if num > MAX_POINTS:
        raise ConfigError(
            f"a grid has at most {MAX_POINTS:,} points, these ranges give {num:,}: use fewer values"
        )


def _is_path(name: str, value: Any) -> bool:
    return name == "rewards" and isinstance(value, str)


def field_values(name: str, setting: Any, *, has_tuples: bool) -> list[Any]:
    """Return all values of a field from a range, a sequence, or a single value.

    Args:
        name: name of the field.
        setting: the user's setting.
        has_tuples: whether each value is itself a sequence or a matrix. In text, semicolons
            separate these values ("0.9,0.8;0.5,0.4").

    Raises:
        ConfigError: there are no values, or their range has wrong syntax.
    """
    if has_tuples:
        if isinstance(setting, str):
            return [part.strip() for part in setting.split(";")]
        if not isinstance(setting, (list, tuple)):
            return [setting]
        # A value is a row of numbers or a matrix. Several are a list of these, files or None.
        depth = 2 if name == "rewards" else 1
        has_several = any(
            isinstance(item, (str, type(None))) or np.ndim(item) == depth for item in setting
        )
        return list(setting) if has_several else [setting]
    if isinstance(setting, str):
        return range_values(name, setting)
    if isinstance(setting, Iterable):
        values = list(setting)
        if not values:
            raise ConfigError(f"`{name}` needs one value or more, got none; {SYNTAX}")
        return [value.item() if isinstance(value, np.generic) else value for value in values]
    return [setting]


def range_values(name: str, text: str) -> list[int | float | bool | None]:
    """Return the values of a range or list in text.

    Raises:
        ConfigError: the text has wrong syntax, or a range has no number of points.
    """

    def parse_part(part: str) -> Any:
        try:
            return parse_value(part)
        except ConfigError as error:
            raise range_error(name, text, error) from None

    return list(parse_domain(name, text, parse_part).points(name))
