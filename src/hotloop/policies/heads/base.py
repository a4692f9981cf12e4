"""The base class of all heads."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor

# The output of a forbidden action: its probability is exactly 0, and it is never the maximum. It is
# finite, since 0 · ∞ in the entropy is not a number: Huang & Ontañón 2020, "A Closer Look at
# Invalid Action Masking in Policy Gradient Algorithms", arXiv:2006.14171.
MASKED = -1e30


class Head(ABC):
    """A function from outputs, (B, H), and noise, (B, K), to actions, (B, *action_shape).

    The defaults fit a head without parameters of its own that takes one discrete action, the one
    with the greatest output. The following methods are optional and have no default.
    `LearnedNetwork` offers an operation if the head has its method:

    - `log_prob(outputs, noise, action)`, on NumPy: log π(action), (T, N), of a whole fragment.
    - `evaluate(params, outputs, action)`, in torch: log π(action) and the entropy, both (B,).
    - `sample(outputs, noise)`, in torch: an action in [−1, 1], (B, A), and its log π, (B,).
    - `act(outputs)`, in torch: the action in [−1, 1], (B, A).
    - `draw(params, outputs, noise)`, in torch: the action as `choose` writes it.
    - `values(outputs)`, in torch: the value of each action, (B, A).

    Only the methods in torch import torch.

    Args:
        spec: the actions.

    Attributes:
        spec: the actions.
        meaning: name of the outputs in exported files.
        description: phrase for the outputs in messages.
        needs_perceptrons: whether its learned layers differ from the layers that compute its
            outputs. A user's module has no such layers.
        acts_by_parameters: whether `choose` depends on learned parameters besides the outputs.
        size: H.
        action_scale: c and h, float32, (A,), of a head with actions c + h · u, u in [−1, 1]; else
            None.
        is_masked: whether the outputs of forbidden actions are `MASKED`, as the spec says.

    Raises:
        SpaceError: the head does not support the actions.
    """

    meaning: ClassVar[str]
    description: ClassVar[str]
    needs_perceptrons: ClassVar[bool] = False
    acts_by_parameters: ClassVar[bool] = False
    action_scale: tuple[Array, Array] | None = None

    def __init__(self, spec: ActionSpec) -> None:
        self.check(spec)
        self.spec = spec
        self.size = num_action_values(spec)
        self.is_masked = spec.is_masked

    @classmethod
    def check(cls, spec: ActionSpec) -> None:
        """Raise `SpaceError` if the head does not support the actions."""
        return

    # --- learned parameters ---------------------------------------------------------------------

    def hidden_sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the widths of its hidden layers for the configured `sizes`."""
        return sizes

    def learned_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the learned parameters' shapes for the shapes of the layers that it acts with."""
        return shapes

    def fold(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the layers that it acts with from the learned parameters: tensors or arrays."""
        return params

    # --- acting, on NumPy -----------------------------------------------------------------------

    def load(self, params: Mapping[str, Array]) -> None:
        """Replace the learned parameters."""
        return

    @abstractmethod
    def draw_noise(self, seed: int, **block: int) -> Array:
        """Return the noise of a block of steps, by (seed, step, environment): float32, (T, N, K).

        Args:
            seed: seed of the run. With a `device_seed`, a head with `draw` returns a tensor.
            **block: `first_step`, `num_steps`, `num_envs`, `first_env`, see `ops.noise`.
        """

    @abstractmethod
    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return noise, (B, K), for outputs of `shape`, (B, H), from the user's generator."""

    @abstractmethod
    def choose(self, outputs: Array, noise: Array, out: Array) -> None:
        """Write sampled actions into `out`."""

    def greedy(self, outputs: Array, out: Array) -> None:
        """Write the most probable actions into `out`."""
        outputs.argmax(axis=1, out=out)

    # --- torch ----------------------------------------------------------------------------------

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the most probable actions as `greedy` writes them, or u if there is a scale."""
        return outputs.argmax(1)


def action_limits(spec: ActionSpec) -> dict[str, Array]:
    """Return the arrays that map chosen actions to the environment's.

    Returns:
        `low` and `high`, action_shape, see `ActionSpec.bounds`, or `start`, see `action_offset`.
    """
    if spec.kind == "box":
        return dict(zip(("low", "high"), spec.bounds, strict=True))
    return {"start": action_offset(spec)}


def action_offset(spec: ActionSpec) -> Array:
    """Return the numbers to add to discrete actions, int64, () or (K,)."""
    start = spec.start if spec.kind == "discrete" else spec.starts or 0
    return np.asarray(start, np.int64)


def num_action_values(spec: ActionSpec) -> int:
    """Return the number of actions, of all choices together, or of numbers in a box action."""
    if spec.kind == "discrete":
        return spec.num_actions
    return sum(spec.nvec) if spec.kind == "multi_discrete" else math.prod(spec.shape)
