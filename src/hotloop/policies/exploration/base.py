"""The base class of all kinds of exploration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hotloop.base.stored_values import value_from_json, value_to_json
from hotloop.errors import ConfigError
from hotloop.ops.noise import counter_uniform
from hotloop.policies.heads import Categorical, Head
from hotloop.policies.heads.base import Params
from hotloop.policies.heads.bounded import Bounded
from hotloop.types import Array

EXPLORATION_STREAM = 1  # noise stream for the choice to explore and for uniform actions


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Uniform actions in the first steps, and then the actions that the head samples.

    A subclass overrides `action_noise` to add noise of its own to bounded actions. Its fields are
    numbers, texts, booleans, or tuples of these, since acting processes receive them as JSON.

    The last number of the noise is 1 in steps with uniform actions, which do not need the network.

    Attributes:
        heads: the supported classes of heads.
        random_steps: number of initial steps of each environment with uniform actions.
    """

    heads: ClassVar[tuple[type[Head], ...]] = (Bounded, Categorical)
    random_steps: int = 0

    def __post_init__(self) -> None:
        self.require("random_steps", self.random_steps >= 0, "at least 0")

    def require(self, name: str, is_valid: bool, expected: str) -> None:
        """Raise `ConfigError` with the expected value of a field, unless the field is valid."""
        if not is_valid:
            kind, value = type(self).__name__, getattr(self, name)
            raise ConfigError(f"`{name}` of {kind} must be {expected}, got {value!r}")

    def check(self, head: Head) -> None:
        """Raise `ConfigError` if this kind does not support the head."""
        name = type(self).__name__
        if not isinstance(head, self.heads):
            logits = ", or Categorical()" if Categorical in self.heads else ""
            raise ConfigError(
                f"{name} needs a head for actions within bounds{logits}, got "
                f"{type(head).__name__}: use the head Deterministic() or SquashedGaussian(), or "
                "EpsilonGreedy for discrete actions"
            )
        if head.spec.is_masked:
            raise ConfigError(
                f"{name} takes uniform actions, which masks can't restrict: leave out "
                "`action_masks`, or use EpsilonGreedy"
            )

    def action_noise(self, head: Head, seed: int, **block: int) -> Array:
        """Return the noise that the head receives, by (seed, step, environment).

        Args:
            head: the head.
            seed: seed of the run.
            **block: `first_step`, `num_steps`, `num_envs`, `first_env`, see `ops.noise`.

        Returns:
            float32, (T, N, A). The head `Deterministic` adds it to actions in [−1, 1].
        """
        return head.draw_noise(seed, **block)

    def draw_noise(self, head: Head, seed: int, **block: int) -> Array:
        """Return the noise of a block of steps for `choose`: float32, (T, N, K)."""
        numbers = self.action_noise(head, seed, **block)
        size = numbers.shape[-1]
        noise = np.zeros((*numbers.shape[:-1], size + 1), np.float32)
        noise[..., :-1] = numbers
        num_random = min(max(self.random_steps - block["first_step"], 0), len(noise))
        if num_random:
            uniform = counter_uniform(seed, size=size, stream=EXPLORATION_STREAM, **block)
            noise[:num_random, :, :-1] = 2.0 * uniform[:num_random] - 1.0
            noise[:num_random, :, -1] = 1.0
        return noise

    def is_needed(self, head: Head, noise: Array) -> bool:
        """Return whether the actions of this noise, (N, K), depend on the network's outputs."""
        return not noise[0, -1]

    def choose(self, head: Any, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        """Write the actions of a step into `out`, (N, *action_shape), as `Head.choose` does."""
        if noise[0, -1]:
            head.write(noise[:, :-1], out)
        else:
            head.choose(outputs, noise[:, :-1], out, params)

    def to_json(self) -> dict[str, Any]:
        """Return values for `json.dumps`. `exploration_from_json` is the inverse."""
        return value_to_json(self)


def exploration_from_json(fields: Mapping[str, Any] | None) -> Exploration | None:
    """Return the exploration that `Exploration.to_json` wrote, or None if there is none.

    It imports the class, so `fields` must come from this run's own process, never from a file.

    Raises:
        UnknownNameError, ConfigError: the class can't be imported.
    """
    if fields is None:
        return None
    return value_from_json(fields, Exploration, {}, kind="exploration")
