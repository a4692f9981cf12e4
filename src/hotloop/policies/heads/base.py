"""The base class of all heads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hotloop.base.stored_values import check_storable
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import ConfigError, SpaceError
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor

# The output of a forbidden action: its probability is exactly 0, and it is never the maximum. It is
# finite, since 0 · ∞ in the entropy is not a number: Huang & Ontañón 2020, "A Closer Look at
# Invalid Action Masking in Policy Gradient Algorithms", arXiv:2006.14171.
MASKED = -1e30

Params = Mapping[str, Any]  # parameters by name: arrays for acting, tensors for learning


@dataclass(frozen=True)
class Head:
    """A function from outputs, (B, H), and noise, (B, K), to actions, (B, *action_shape).

    A head is a value: a frozen dataclass whose fields are its parameters, such as the atoms of a
    distribution of returns. `bind` returns the head for an action space. Whatever depends on the
    space is a cached property, and learned parameters are arguments.

    The defaults fit a head without learned parameters that chooses the discrete action with the
    greatest output. A subclass may add methods in torch for its algorithm, which calls them as
    `nets.head.…` with the outputs of the network. Only the methods in torch import torch.
    `log_prob`, `evaluate` and `draw` raise `ConfigError` unless the head defines them.

    Attributes:
        meaning: name of the outputs in exported files.
        description: noun phrase for the outputs. It ends the line `head` that `hotloop export`
            prints, and is part of errors about a user's module.
        kind: the kind of action space that the head supports; "": any.
        needs_perceptrons: whether its learned layers differ from the layers that compute its
            outputs. A user's module has no such layers.
        action_scale: c and h, float32, (A,), of a head with actions c + h · u, u in [−1, 1]; else
            None.
    """

    meaning: ClassVar[str] = "outputs"
    description: ClassVar[str] = "outputs"
    kind: ClassVar[str] = ""
    needs_perceptrons: ClassVar[bool] = False

    def bind(self, spec: ActionSpec) -> Head:
        """Return this head for an action space.

        Raises:
            SpaceError: the head does not support the actions.
            ConfigError: a parameter is not the same after it is stored as JSON.
        """
        check_storable(self, kind="head")
        bound = replace(self)
        vars(bound)["spec"] = spec
        bound.check()
        _ = bound.action_scale  # computed now, to raise early if bounds can't be scaled
        if spec.is_masked and spec.mask_size * bound.outputs_per_action != bound.num_logits:
            raise SpaceError(
                f"the head {self} has {bound.num_logits} outputs for {spec.mask_size} actions, so "
                "masks can't forbid actions: leave out `action_masks`, or choose another head"
            )
        if spec.kind == "discrete" and not type(self).__module__.startswith("hotloop."):
            bound._check_greedy()
        return bound

    def _check_greedy(self) -> None:
        """Raise `ConfigError` if `greedy` does not write discrete actions into `out`."""
        numbers = np.arange(self.size, dtype=np.float32)
        actions = np.full(2, -1, self.spec.dtype)
        self.greedy(np.stack([numbers, -numbers]), actions)
        if ((actions < 0) | (actions >= self.spec.num_actions)).any():
            raise ConfigError(
                f"`greedy` of the head {self} must write actions 0 … {self.spec.num_actions - 1} "
                f"into `out`, got {actions.tolist()} for outputs of shape (2, {self.size})"
            )

    @cached_property
    def spec(self) -> ActionSpec:
        """Return the actions of a bound head."""
        raise ConfigError(f"the head {self} has no action space: call `bind(action_spec)` first")

    @cached_property
    def size(self) -> int:
        """Return H."""
        return num_action_values(self.spec)

    @property
    def outputs_per_action(self) -> int:
        """Return the number of outputs, one after the other, that belong to a discrete action."""
        return 1

    @cached_property
    def num_logits(self) -> int:
        """Return M, the number of first outputs that masks may forbid."""
        return self.size

    @cached_property
    def action_scale(self) -> tuple[Array, Array] | None:
        return None

    def check(self) -> None:
        """Raise `SpaceError` if the head does not support its actions."""
        if self.kind not in ("", self.spec.kind):
            raise SpaceError(
                f"the head {self} takes {self.kind} actions, got a {self.spec.kind} space of shape "
                f"{self.spec.shape}: leave the choice of the head to `actor_critic`"
            )

    def describe_actions(self) -> str:
        """Return a sentence on actions that are scaled or have infinite bounds, or ""."""
        return ""

    # --- learned parameters ---------------------------------------------------------------------

    def hidden_sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the widths of its hidden layers for the configured `sizes`."""
        return sizes

    def learned_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the learned parameters, from those of the layers that act."""
        return shapes

    def fold(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the layers that act, computed from the learned parameters: tensors or arrays."""
        return params

    # --- acting, on NumPy -----------------------------------------------------------------------

    def acting_params(self, params: Params) -> dict[str, Array]:
        """Return the `params` of `choose` and `log_prob` for the learned parameters by name."""
        return {}

    def draw_noise(self, seed: int, **block: int) -> Array:
        """Return the noise of a block of steps, by (seed, step, environment): float32, (T, N, K).

        The default is none, K = 0.

        Args:
            seed: seed of the run. With a `device_seed`, a head with `draw` returns a tensor.
            **block: `first_step`, `num_steps`, `num_envs`, `first_env`, see `ops.noise`.
        """
        return np.empty((block["num_steps"], block["num_envs"], 0), np.float32)

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return noise, (B, K), from the user's generator, for outputs of `shape`, (B, H)."""
        return np.empty((shape[0], 0), np.float32)

    def choose(self, outputs: Array, noise: Array, out: Array, params: Params) -> None:
        """Write sampled actions into `out`. For `params`, see `acting_params`."""
        self.greedy(outputs, out)

    def greedy(self, outputs: Array, out: Array) -> None:
        """Write the most probable actions into `out`."""
        outputs.argmax(axis=1, out=out)

    def log_prob(self, outputs: Array, noise: Array, action: Array, params: Params) -> Array:
        """Return log π(action), (T, N), of a whole fragment."""
        raise self._unsupported("log-probabilities of a fragment")

    def forbid_array(self, outputs: Array, mask: Array) -> None:
        """Write `MASKED` into outputs, (B, H), for actions that `mask`, bool, (B, M), forbids."""
        mask = mask.repeat(self.outputs_per_action, axis=1)
        np.copyto(outputs[:, : mask.shape[1]], MASKED, where=~mask)

    # --- torch ----------------------------------------------------------------------------------

    def forbid(self, outputs: Tensor, mask: Tensor) -> Tensor:
        """Return the outputs, `MASKED` for actions that `mask`, bool, (B, M), does not allow.

        It also blocks the gradients of forbidden actions.
        """
        import torch

        if self.outputs_per_action > 1:
            mask = mask.repeat_interleave(self.outputs_per_action, 1)
        is_forbidden, num_others = ~mask, self.size - self.num_logits
        if num_others:
            is_forbidden = torch.nn.functional.pad(is_forbidden, (0, num_others))
        return outputs.masked_fill(is_forbidden, MASKED)

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the most probable actions as `greedy` writes them, or u if there is a scale."""
        return outputs.argmax(1)

    def evaluate(self, params: Params, outputs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log π(action) and the entropy, both (B,), for learned parameters by name."""
        raise self._unsupported("log-probabilities and entropies")

    def draw(self, params: Params, outputs: Tensor, noise: Tensor) -> Tensor:
        """Return the action as `choose` writes it, for learned parameters by name."""
        raise self._unsupported("actions on a device")

    def _unsupported(self, result: str) -> ConfigError:
        return ConfigError(f"the head {self} computes no {result}: choose another head")


def action_limits(spec: ActionSpec) -> dict[str, Array]:
    """Return the arrays that map chosen actions to the environment's.

    Returns:
        `low` and `high`, see `ActionSpec.bounds`, or `start`, see `ActionSpec.offset`. All three
        for hybrid actions.
    """
    if spec.kind == "hybrid":
        discrete, box = map(action_limits, spec.factors)
        return discrete | box
    if spec.kind == "box":
        return dict(zip(("low", "high"), spec.bounds, strict=True))
    return {"start": spec.offset}


def num_action_values(spec: ActionSpec) -> int:
    """Return the number of discrete actions, of all choices, and of numbers in a box action."""
    if spec.kind == "box":
        return math.prod(spec.shape)
    return sum(spec.num_choices) + len(spec.low)
