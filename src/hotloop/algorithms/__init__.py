"""Algorithms, one file each: configuration, loss, update, declaration."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hotloop.base.importing import import_object
from hotloop.base.registries import ALGORITHM_FINDERS, OPTION_OWNERS
from hotloop.errors import ConfigError, UnknownNameError, nearest

if TYPE_CHECKING:
    from hotloop.runs import RunResult
    from hotloop.training.algorithm import Algorithm
    from hotloop.training.options import Factory

# Name → description in `hotloop train --help`, listed here so that help does not import torch.
ALGORITHMS = {
    "ppo": "Proximal policy optimization: on-policy, all kinds of actions.",
    "appo": "Asynchronous PPO, which learns while environments step.",
    "sac": "Soft actor-critic: off-policy, continuous actions.",
    "tqc": "SAC with truncated quantile critics: continuous actions.",
    "crossq": "SAC with batch normalization: continuous actions.",
    "sac_discrete": "Soft actor-critic: off-policy, discrete actions.",
    "td3": "Twin delayed DDPG: off-policy, continuous actions.",
    "td3_bc": "TD3 with behaviour cloning, from a data set: continuous actions.",
    "dqn": "Deep Q-learning: off-policy, discrete actions.",
}


def find(name: str) -> Algorithm:
    """Return an algorithm by its name.

    Args:
        name: a key of `ALGORITHMS`, or `module:attribute` for a custom algorithm.

    Raises:
        UnknownNameError: there is no such algorithm, module or attribute.
        ConfigError: importing the module fails, or the attribute is not an algorithm.
    """
    if name in ALGORITHMS:
        return importlib.import_module(f"hotloop.algorithms.{name}").algorithm
    if ":" not in name:
        raise UnknownNameError(
            f"expected an algorithm ({', '.join(ALGORITHMS)}), got '{name}'"
            + (nearest(name, ALGORITHMS) or "; name a custom algorithm as `my_module:algorithm`")
        )
    value = import_object(name, kind="algorithm", example="my_reinforce:algorithm")
    missing = [f"`{x}`" for x in ("name", "config", "presets", "train") if not hasattr(value, x)]
    if missing:
        raise ConfigError(
            f"'{name}' must be an algorithm, got a {type(value).__name__} without "
            f"{', '.join(missing)}: name the result of `OnPolicy(…)` or `OffPolicy(…)`"
        )
    return value


def train(algorithm: str | Algorithm, env_id: Factory, **options: Any) -> RunResult:
    """Train one run, and write its directory.

    ```python
    result = hotloop.train("ppo", "CartPole-v1", total_timesteps=1e5, seed=2)
    ```

    Args:
        algorithm: `ppo` for example, `module:attribute` of your own, or the algorithm itself.
        env_id: id of the environment, or a class or function that makes it.
        options: options of the training, such as `total_timesteps=1e5`, and arguments of
            `Algorithm.train`, such as `callbacks`. Others have the value of the environment's
            preset, or their default.

    Returns:
        The policy and where everything was written.

    Raises:
        ConfigError, UnknownNameError: an option is invalid. For others, see `Algorithm.train`.
    """
    definition = find(algorithm) if isinstance(algorithm, str) else algorithm
    if not hasattr(definition, "presets"):
        raise ConfigError(
            f"`algorithm` must be a name, such as 'ppo', or an algorithm, got {algorithm!r}"
        )
    return definition.train(env_id, **options)


def _owners(option: str) -> list[str]:
    """Return the names of the algorithms that have an option."""
    return [name for name in ALGORITHMS if option in find(name).config.__dataclass_fields__]


OPTION_OWNERS.append(_owners)
ALGORITHM_FINDERS.append(find)
