"""`hotloop sweep … --policies … --sampler pbt`: a population of several policies."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from statistics import pstdev
from typing import TYPE_CHECKING, Any

from hotloop.base.rounding import format_number
from hotloop.base.signals import Interrupted, interrupt_once
from hotloop.base.streams import notify
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.experiments.policy_population import Generation
    from hotloop.training.algorithm import Algorithm

_SETTINGS = ("sampler", "trials", "generations")


def run_population(
    algorithm: Algorithm[Any],
    config: Any,
    texts: Mapping[str, Any],
    settings: Mapping[str, Any],
    directory: Any,
) -> int:
    """Train a population, print each generation and the best members, and return the exit code.

    Args:
        algorithm: the algorithm.
        config: the configuration of all members.
        texts: option → its space.
        settings: settings of the sweep that were set.
        directory: the directory, None for the default.

    Raises:
        ConfigError: a setting does not suit a population of several policies.
    """
    from hotloop.envs import EnvSpec
    from hotloop.experiments.launch import GENERATIONS, sweep_path
    from hotloop.experiments.policy_population import Population
    from hotloop.experiments.spaces import parse

    surplus = [name for name in settings if name not in _SETTINGS]
    if surplus or settings.get("sampler") != "pbt":
        problem = f"`--{surplus[0].replace('_', '-')}`" if surplus else "no `--sampler pbt`"
        raise ConfigError(
            f"several policies can be a population, with `--sampler pbt`, `--trials`, "
            f"`--generations` and `--file`, got {problem}"
        )
    if directory is None:
        name = sweep_path(EnvSpec(config.env_id).name, algorithm.name).stem
        directory = f"{config.runs_dir}/{name}__population"
    population = Population(
        algorithm,
        dataclasses.replace(config, run_dir=str(directory)),
        parse(texts, type(config)),
        members=settings.get("trials", 8),
        generations=settings.get("generations", GENERATIONS),
    )
    with interrupt_once() as guard:

        def on_generation(generation: Generation) -> None:
            print("\n".join(describe(generation)), flush=True)

        try:
            *_, last = population.train(on_generation, lambda _: guard.check())
        except Interrupted as interrupt:
            notify("interrupted: the same command continues it")
            return interrupt.exit_code
    for name, path in population.best(last).items():
        print(f"best {name}: {shlex.quote(str(path))}")
    return 0


def describe(generation: Generation) -> list[str]:
    """Return lines on a generation: the mean returns in matches, and the exploits."""
    lines = [f"generation {generation.number}, {generation.timesteps:,} steps of each member"]
    for name, values in generation.fitness.items():
        texts = ", ".join(format_number(value, pstdev(values)) for value in values)
        lines.append(f"  {name}: mean return of members in matches {texts}")
    for exploit in generation.exploits:
        options = ", ".join(
            f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}"
            for key, value in exploit.options.items()
        )
        lines.append(
            f"  {exploit.policy}: member {exploit.member} continues from member "
            f"{exploit.source} with {options}"
        )
    return lines
