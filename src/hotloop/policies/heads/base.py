"""The base class of all heads."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.types import Array

if TYPE_CHECKING:
    from torch import Tensor

# The output of an action that is not allowed: its probability is exactly 0, and it is never the
# greatest. It is finite, since 0 · ∞ in the entropy is not a number: Huang & Ontañón 2020, "A
# Closer Look at Invalid Action Masking in Policy Gradient Algorithms", arXiv:2006.14171.
MASKED = -1e30
EXPLORING = 1  # the stream of noise that decides whether to explore, and of uniform actions


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """How a policy departs from what it thinks best while it collects.

    Attributes:
        random_steps: steps of each environment, from the first on, with uniform actions.
        noise_std: standard deviation of the Gaussian added to deterministic actions, in halves of
            the bounds' width.
        epsilon: probability of a uniform action, among discrete ones, at the first step and from
            `epsilon_steps` on; linear between.
        epsilon_steps: steps of each environment.
    """

    random_steps: int = 0
    noise_std: float = 0.0
    epsilon: tuple[float, float] = (0.0, 0.0)
    epsilon_steps: int = 1


class Head(ABC):
    """What turns outputs, (B, H), and noise, (B, K), into actions, (B, *action_shape).

    It is a base class for its defaults: most heads learn, load and leave out nothing, and those of
    one discrete action take the greatest output. What only some heads can do has no default, and
    `LearnedNetwork` can do it where the head has the method:

    - `log_prob(outputs, noise, action)`, on NumPy: log π(action), (T, N), of a whole fragment;
    - `evaluate(params, outputs, action)`, in torch: log π(action) and the entropy, both (B,);
    - `sample(outputs, noise)`, in torch: an action in [−1, 1], (B, A), and its log π, (B,);
    - `act(outputs)`, in torch: the action in [−1, 1], (B, A);
    - `device_noise(key, first_step, **block)`, in torch: what `draw_noise` gives, on the device;
    - `draw(params, outputs, noise)`, in torch: the action as `choose` writes it;
    - `values(outputs)`, in torch: the value of each action, (B, A).

    Nothing outside the methods in torch imports it.

    Args:
        spec: of the actions.
        exploration: how the policy explores; None: not at all.

    Attributes:
        meaning: of the outputs, as exported files call it.
        description: of the outputs, as people are told it.
        needs_perceptrons: whether it learns other layers than those that give its outputs, which a
            user's module does not have.
        acts_by_parameters: whether `choose` depends on learned parameters besides the outputs.
        size: H.
        action_scale: c and h, float32, (A,), where actions are learned in [−1, 1]: they are
            c + h · u.

        is_masked: whether outputs of actions that are not allowed are `MASKED`.

    Raises:
        SpaceError: it can't give such actions.
    """

    is_masked: bool = False
    meaning: ClassVar[str]
    description: ClassVar[str]
    needs_perceptrons: ClassVar[bool] = False
    acts_by_parameters: ClassVar[bool] = False
    action_scale: tuple[Array, Array] | None = None

    def __init__(self, spec: ActionSpec, exploration: Exploration | None = None) -> None:
        self.check(spec)
        self._spec = spec
        self._exploration = exploration or Exploration()
        self.size = num_action_values(spec)

    @classmethod
    def check(cls, spec: ActionSpec) -> None:
        """Raise `SpaceError` where it can't give such actions."""
        return

    # --- learned parameters ---------------------------------------------------------------------

    def hidden_sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the hidden layers' widths that it needs for those that were asked for."""
        return sizes

    def learned_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return what is learned, for layers of these shapes by name that give its outputs."""
        return shapes

    def fold(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return those layers, from what is learned: torch tensors or NumPy arrays by name."""
        return params

    # --- acting, on NumPy -----------------------------------------------------------------------

    def load(self, params: Mapping[str, Array]) -> None:
        """Act with these learned parameters from now on."""
        return

    @abstractmethod
    def draw_noise(self, seed: int, **block: int) -> Array:
        """Return the noise of a block of steps, by (seed, step, environment): float32, (T, N, K).

        Args:
            seed: of the run.
            **block: `first_step`, `num_steps`, `num_envs`, `first_env`, see `ops.noise`.
        """

    @abstractmethod
    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Return noise, (B, K), for outputs of `shape`, (B, H), from a generator of the user's."""

    def is_needed(self, noise: Array) -> bool:
        """Return whether the network's outputs make a difference to these actions."""
        return True

    @abstractmethod
    def choose(self, outputs: Array, noise: Array, out: Array) -> None:
        """Draw actions into `out`."""

    def greedy(self, outputs: Array, out: Array) -> None:
        """Write the most probable actions into `out`."""
        outputs.argmax(axis=1, out=out)

    # --- torch ----------------------------------------------------------------------------------

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the most probable actions as `greedy` writes them; u where there is a scale."""
        return outputs.argmax(1)


def action_limits(spec: ActionSpec) -> dict[str, Array]:
    """Return what turns chosen actions into the environment's.

    Returns:
        `low` and `high`, float32, action_shape, of continuous actions, which are clipped to them;
        of discrete ones `start`, int64, () or (K,), which is added.
    """
    if spec.kind == "box":
        bounds = {"low": spec.low, "high": spec.high}
        return {name: np.asarray(x, np.float32).reshape(spec.shape) for name, x in bounds.items()}
    start = spec.start if spec.kind == "discrete" else spec.starts or 0
    return {"start": np.asarray(start, np.int64)}


def num_action_values(spec: ActionSpec) -> int:
    """Return the number of actions, or of all choices, or of numbers in a continuous action."""
    if spec.kind == "discrete":
        return spec.num_actions
    return sum(spec.nvec) if spec.kind == "multi_discrete" else math.prod(spec.shape)
