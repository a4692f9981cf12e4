"""The points of a grid: every agent that ranges stand for, in every environment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hotloop.bandits.agents import AGENTS, Agent
from hotloop.bandits.environments import ENVIRONMENTS, Environment
from hotloop.bandits.options import agent_from, environment_from, value_of
from hotloop.errors import ConfigError
from hotloop.sweeps.bandits.notation import ENV, canonical, described, key_of, text_of
from hotloop.sweeps.grammar import FORMS, MAX_POINTS, parsed, wrong


@dataclass(frozen=True, kw_only=True)
class Point:
    """An agent in an environment.

    Attributes:
        agent: who plays.
        environment: where; one object for all points of this environment.
        settings: the fields that were given, an environment's as "env.walk"; JSON values.
        config: the point in full, as the file has it; JSON values.
    """

    agent: Agent
    environment: Environment
    settings: dict[str, Any]
    config: dict[str, Any]


def points_of(
    agent_name: str,
    agent_fields: Mapping[str, Any],
    environment_name: str,
    environment_fields: Mapping[str, Any],
    steps: Mapping[str, int],
) -> dict[str, Point]:
    """All points, in order, by their configuration as text: the last range changes fastest.

    Raises:
        ConfigError: a range is written wrongly, or a point makes no sense; it is named.
        UnknownNameError: there is no such agent, environment or field.
    """
    agents = _all_of(agent_from, AGENTS, agent_name, agent_fields, "")
    environments = _all_of(
        environment_from, ENVIRONMENTS, environment_name, environment_fields, ENV
    )
    _check_num_points(len(agents) * len(environments))
    points: dict[str, Point] = {}
    for environment, outer in environments:
        environment.plan(steps["num_steps"])  # raises if it has fewer steps
        place = described(environment)
        for agent, inner in agents:
            agent.plan(environment, steps["num_steps"])  # raises if it can't play there
            config = {"agent": described(agent), "environment": place, **steps}
            point = Point(
                agent=agent, environment=environment, settings=inner | outer, config=config
            )
            points.setdefault(key_of(config), point)  # two spellings of one point are one point
    return points


def varied(points: Sequence[Point]) -> dict[str, list[Any]]:
    """The fields with several values, and these in order."""
    ranges = {}
    for name in points[0].settings:
        values = {key_of(point.settings[name]): point.settings[name] for point in points}
        if len(values) > 1:
            ranges[name] = list(values.values())
    return ranges


def _all_of(
    make: Callable[[str, Mapping[str, Any]], Any],
    known: Mapping[str, Any],
    kind_name: str,
    given: Mapping[str, Any],
    prefix: str,
) -> list[tuple[Any, dict[str, Any]]]:
    """Every agent or environment that the ranges stand for, with the settings that were given."""
    has_tuples = {}
    if kind_name in known:
        for one in fields(known[kind_name]):
            has_tuples[one.name] = any(kind in str(one.type) for kind in ("tuple", "Array"))
    ranges: dict[str, list[Any]] = {}
    for written, values in given.items():
        name = written.replace("-", "_")
        if has_tuples and name not in has_tuples:
            make(kind_name, {written: None})  # says so, and which is nearest
        if name in ranges:
            raise ConfigError(f"`{prefix}{name}` is given twice: give all its values at once")
        ranges[name] = values_of_field(name, values, of_tuples=has_tuples.get(name, False))
    _check_num_points(math.prod(map(len, ranges.values())))
    made = []
    for combination in itertools.product(*ranges.values()):
        settings = dict(zip(ranges, combination, strict=True))
        try:
            thing = make(kind_name, settings)
        except ConfigError as error:
            # A matrix is not told; what is wrong with it stands in the message.
            told = {name: one for name, one in settings.items() if name != "rewards"}
            where = ", ".join(f"{name} = {text_of(value)}" for name, value in told.items())
            raise ConfigError(f"{error} (the point {where})" if where else str(error)) from None
        shown = {
            prefix + name: value if _is_path(name, value) else canonical(getattr(thing, name))
            for name, value in settings.items()
        }
        made.append((thing, shown))
    return made


def _check_num_points(num: int) -> None:
    if num > MAX_POINTS:
        raise ConfigError(
            f"a grid has at most {MAX_POINTS:,} points, these ranges give {num:,}: "
            "take fewer values"
        )


def _is_path(name: str, value: Any) -> bool:
    return name == "rewards" and isinstance(value, str)


def values_of_field(name: str, given: Any, *, of_tuples: bool) -> list[Any]:
    """All values that were given for a field: as a range, as a sequence, or a single one.

    Args:
        name: of the field.
        given: as a user wrote it.
        of_tuples: whether one value is a sequence, or a matrix, itself. As text, several have
            semicolons between them ("0.9,0.8;0.5,0.4").

    Raises:
        ConfigError: there are no values, or their range is written wrongly.
    """
    if of_tuples:
        if isinstance(given, str):
            return [part.strip() for part in given.split(";")]
        if not isinstance(given, (list, tuple)):
            return [given]
        # A value is a row of numbers, or a matrix; several are a list of those, files or None.
        depth = 2 if name == "rewards" else 1
        are_several = any(
            isinstance(one, (str, type(None))) or np.ndim(one) == depth for one in given
        )
        return list(given) if are_several else [given]
    if isinstance(given, str):
        return values_from(name, given)
    if isinstance(given, Iterable):
        values = list(given)
        if not values:
            raise ConfigError(f"`{name}` needs one value or more, got none; {FORMS}")
        return [one.item() if isinstance(one, np.generic) else one for one in values]
    return [given]


def values_from(name: str, text: str) -> list[int | float | bool | None]:
    """The values that a space stands for.

    Raises:
        ConfigError: it is written wrongly, or has no points of a grid.
    """

    def value(part: str) -> Any:
        try:
            return value_of(part)
        except ConfigError as error:
            raise wrong(name, text, error) from None

    return list(parsed(name, text, value).points(name))
