"""What policies that learn from replay are made of: one perceptron, and what its output means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.errors import ConfigError, SpaceError
from hotloop.policies.actor_critic import Activation
from hotloop.policies.protocol import check_not_empty
from hotloop.types import Array

ActorKind = Literal["squashed_gaussian", "deterministic", "action_values"]


@dataclass(frozen=True, kw_only=True)
class Actor:
    """A perceptron that acts, without a value function beside it.

    Its head, (B, H), is by `kind`

    - `squashed_gaussian`: mean and squashed log standard deviation of a Gaussian whose draws go
      through tanh, 2A numbers;
    - `deterministic`: the action before tanh, A numbers;
    - `action_values`: Q of each of A discrete actions, of which the greatest is taken.

    Continuous actions are c + h · tanh(…), c and h being the centre and half the width of their
    bounds.

    Attributes:
        kind: what the head means.
        obs_spec: what is observed; flattened to D numbers.
        action_spec: what is done.
        hidden_sizes: widths of the hidden layers.
        activation: after each hidden layer.

    Raises:
        SpaceError: actions are of the wrong kind, unbounded or of no width, or observations are
            images.
    """

    kind: ActorKind
    obs_spec: ObsSpec
    action_spec: ActionSpec
    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = "relu"

    def __post_init__(self) -> None:
        if self.kind not in ("squashed_gaussian", "deterministic", "action_values"):
            raise ConfigError(f"there is no actor of kind '{self.kind}'")
        check_not_empty(self.obs_spec, self.action_spec)
        spec = self.action_spec
        if self.kind == "action_values":
            if spec.kind != "discrete":
                raise SpaceError(
                    f"Q-learning takes the best of a number of discrete actions, got a {spec.kind} "
                    f"space of shape {spec.shape}: "
                    + ("use sac, td3 or ppo" if spec.kind == "box" else "use ppo")
                )
        elif spec.kind != "box":
            raise SpaceError(
                f"a continuous (box) action space is needed, got a {spec.kind} one: use "
                + ("dqn or ppo" if spec.kind == "discrete" else "ppo")
            )
        elif not np.isfinite([*spec.low, *spec.high]).all():
            raise SpaceError(
                "actions are squashed to their bounds, which must be finite, got "
                f"{list(spec.low)} to {list(spec.high)}: wrap the environment in Gymnasium's "
                "RescaleAction or give its space bounds, or use ppo"
            )
        elif not all(low < high for low, high in zip(spec.low, spec.high, strict=True)):
            raise SpaceError(
                "actions are squashed to their bounds, of which the upper must be greater, got "
                f"{list(spec.low)} to {list(spec.high)}: leave out what has but one value, or use "
                "ppo"
            )
        if self.obs_spec.dtype == "uint8" and len(self.obs_spec.shape) == 3:
            raise SpaceError(
                f"images of shape {self.obs_spec.shape} need a convolutional network, and these "
                "are perceptrons: choose an environment that observes features, or use ppo with a "
                "network of your own"
            )

    @property
    def obs_size(self) -> int:
        """D."""
        return math.prod(self.obs_spec.shape)

    @property
    def action_size(self) -> int:
        """A: numbers in an action, or discrete actions to choose from."""
        spec = self.action_spec
        return spec.num_actions if spec.kind == "discrete" else math.prod(spec.shape)

    @property
    def head_size(self) -> int:
        """H, width of the head."""
        return self.action_size * (2 if self.kind == "squashed_gaussian" else 1)

    @property
    def is_continuous(self) -> bool:
        """Whether actions are real numbers."""
        return self.kind != "action_values"

    @property
    def layer_names(self) -> list[str]:
        """Names of all layers from the observation to the head."""
        return [f"policy.{k}" for k in range(len(self.hidden_sizes) + 1)]

    @property
    def action_scale(self) -> tuple[Array, Array]:
        """c and h, float32, (A,): actions are c + h · u, u in [−1, 1]."""
        low, high = (
            np.asarray(x, np.float64) for x in (self.action_spec.low, self.action_spec.high)
        )
        return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes; weights are (inputs, outputs), so that `obs @ weight` is a layer."""
        shapes: dict[str, tuple[int, ...]] = {}
        widths = pairwise([self.obs_size, *self.hidden_sizes, self.head_size])
        for layer, (inputs, outputs) in zip(self.layer_names, widths, strict=True):
            shapes[f"{layer}.weight"] = (inputs, outputs)
            shapes[f"{layer}.bias"] = (outputs,)
        return shapes

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Weights and biases uniform in ±1/√inputs, as `torch.nn.Linear` draws them.

        Args:
            seed: of NumPy's generator.

        Returns:
            float32 arrays by name.
        """
        return uniform_parameters(self.parameter_shapes(), np.random.default_rng((seed, 0)))

    def to_json(self) -> dict[str, Any]:
        """As plain lists and numbers, for a run directory."""
        return {
            "actor": self.kind,
            "obs_spec": self.obs_spec.to_json(),
            "action_spec": self.action_spec.to_json(),
            "hidden_sizes": list(self.hidden_sizes),
            "activation": self.activation,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Actor:
        """The inverse of `to_json`."""
        return cls(
            kind=fields["actor"],
            obs_spec=ObsSpec.from_json(fields["obs_spec"]),
            action_spec=ActionSpec.from_json(fields["action_spec"]),
            hidden_sizes=tuple(fields["hidden_sizes"]),
            activation=fields["activation"],
        )


def uniform_parameters(
    shapes: dict[str, tuple[int, ...]], generator: np.random.Generator
) -> dict[str, Array]:
    """Layers drawn as `torch.nn.Linear` draws them: weight and bias uniform in ±1/√inputs.

    Args:
        shapes: `<layer>.weight`, (…, inputs, outputs), each before its `<layer>.bias`; what else
            there is starts at 1 if it is a `.scale` and at 0 otherwise.
        generator: drawn from.
    """
    params: dict[str, Array] = {}
    for name, shape in shapes.items():
        layer, _, part = name.rpartition(".")
        if part in ("weight", "bias"):
            bound = 1.0 / math.sqrt(shapes[f"{layer}.weight"][-2])
            params[name] = generator.uniform(-bound, bound, shape).astype(np.float32)
        else:
            params[name] = np.full(shape, 1.0 if part == "scale" else 0.0, np.float32)
    return params
