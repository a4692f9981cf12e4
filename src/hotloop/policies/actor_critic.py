"""What an actor-critic of two multilayer perceptrons is made of: shapes and first values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.errors import ConfigError, SpaceError
from hotloop.types import Array

Activation = Literal["tanh", "relu"]


@dataclass(frozen=True)
class PolicySnapshot:
    """A published policy: what acting needs, and nothing that learns.

    Attributes:
        version: number of iterations that the learner had done, from 0.
        params: float32 arrays by name, as `ActorCritic.parameter_shapes` lists them.
    """

    version: int
    params: dict[str, Array] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """A policy and a value function, two perceptrons with nothing in common but the observation.

    The policy's head gives logits for discrete actions, and the mean of a diagonal Gaussian for
    continuous ones, whose log standard deviation is a parameter of its own, the same in all states.

    Attributes:
        obs_spec: what is observed; flattened to D numbers.
        action_spec: what is done.
        hidden_sizes: widths of the hidden layers, of both networks.
        activation: after each hidden layer.
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.hidden_sizes):
            raise ConfigError(f"`hidden_sizes` must be positive, got {self.hidden_sizes}")
        if self.activation not in ("tanh", "relu"):
            raise ConfigError(f"`activation` must be 'tanh' or 'relu', got '{self.activation}'")
        for what, size in (("observations", self.obs_size), ("actions", self.head_size)):
            if size == 0:
                raise SpaceError(f"{what} must hold a number, got a space of none: widen it")
        if self.obs_spec.dtype == "uint8" and len(self.obs_spec.shape) == 3:
            raise SpaceError(
                f"images of shape {self.obs_spec.shape} need a convolutional policy, which hotloop "
                "does not have yet: choose an environment that observes features"
            )

    @property
    def obs_size(self) -> int:
        """D."""
        return math.prod(self.obs_spec.shape)

    @property
    def head_size(self) -> int:
        """Width of the policy's head: Σ choices, or the action's dimension."""
        if self.action_spec.kind == "discrete":
            return self.action_spec.num_actions
        if self.action_spec.kind == "multi_discrete":
            return sum(self.action_spec.nvec)
        return math.prod(self.action_spec.shape)

    @property
    def is_continuous(self) -> bool:
        """Whether actions are drawn from a Gaussian."""
        return self.action_spec.kind == "box"

    @property
    def num_layers(self) -> int:
        """Linear layers of each network."""
        return len(self.hidden_sizes) + 1

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes; weights are (inputs, outputs), so that `obs @ weight` is a layer."""
        shapes: dict[str, tuple[int, ...]] = {}
        for network, head_size in (("policy", self.head_size), ("value", 1)):
            widths = [self.obs_size, *self.hidden_sizes, head_size]
            for layer, (inputs, outputs) in enumerate(pairwise(widths)):
                shapes[f"{network}.{layer}.weight"] = (inputs, outputs)
                shapes[f"{network}.{layer}.bias"] = (outputs,)
        if self.is_continuous:
            shapes["policy.log_std"] = (self.head_size,)
        return shapes

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """Orthogonal weights, zero biases and zero log standard deviations.

        Gains are √2 for hidden layers, 0.01 for the policy's head, 1 for the value's: Huang et al.
        2022, "The 37 Implementation Details of Proximal Policy Optimization", the detail
        "orthogonal initialization of weights and constant initialization of biases".

        Args:
            seed: of NumPy's generator.

        Returns:
            float32 arrays by name.
        """
        generator = np.random.default_rng(seed)
        params: dict[str, Array] = {}
        for name, shape in self.parameter_shapes().items():
            if not name.endswith("weight"):
                params[name] = np.zeros(shape, np.float32)
                continue
            is_head = name.split(".")[1] == str(self.num_layers - 1)
            gain = math.sqrt(2.0) if not is_head else 0.01 if name.startswith("policy") else 1.0
            params[name] = (gain * orthogonal(shape, generator)).astype(np.float32, order="C")
        return params

    def to_json(self) -> dict[str, Any]:
        """As plain lists and numbers, for a run directory."""
        return {
            "obs_spec": self.obs_spec.to_json(),
            "action_spec": self.action_spec.to_json(),
            "hidden_sizes": list(self.hidden_sizes),
            "activation": self.activation,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ActorCritic:
        """The inverse of `to_json`."""
        return cls(
            obs_spec=ObsSpec.from_json(fields["obs_spec"]),
            action_spec=ActionSpec.from_json(fields["action_spec"]),
            hidden_sizes=tuple(fields["hidden_sizes"]),
            activation=fields["activation"],
        )


def orthogonal(shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """A matrix with orthonormal rows or columns, uniform over all of them.

    Saxe et al. 2014, arXiv:1312.6120: the Q of a Gaussian matrix, signs fixed by R's diagonal.

    Args:
        shape: (inputs, outputs).
        generator: drawn from.

    Returns:
        float64, `shape`.
    """
    inputs, outputs = shape
    gaussian = generator.standard_normal((max(inputs, outputs), min(inputs, outputs)))
    q, r = np.linalg.qr(gaussian)
    q = q * np.sign(np.diag(r))
    return q if inputs >= outputs else q.T
