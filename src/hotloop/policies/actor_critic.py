"""What an actor-critic of multilayer perceptrons is made of: shapes and first values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.errors import ConfigError, SpaceError
from hotloop.policies.protocol import check_not_empty, head_size
from hotloop.types import Array

Activation = Literal["tanh", "relu"]


@dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """A policy and a value function: perceptrons that share the observation or all hidden layers.

    The policy's head gives logits for discrete actions, and the mean of a diagonal Gaussian for
    continuous ones, whose log standard deviation is a parameter of its own, the same in all states.

    Attributes:
        obs_spec: what is observed; flattened to D numbers.
        action_spec: what is done.
        hidden_sizes: widths of the hidden layers.
        activation: after each hidden layer.
        shared_trunk: one set of hidden layers for both, and not one for each.
    """

    obs_spec: ObsSpec
    action_spec: ActionSpec
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = "tanh"
    shared_trunk: bool = False

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.hidden_sizes):
            raise ConfigError(f"`hidden_sizes` must be positive, got {self.hidden_sizes}")
        if self.activation not in ("tanh", "relu"):
            raise ConfigError(f"`activation` must be 'tanh' or 'relu', got '{self.activation}'")
        check_not_empty(self.obs_spec, self.action_spec)
        if self.obs_spec.dtype == "uint8" and len(self.obs_spec.shape) == 3:
            raise SpaceError(
                f"images of shape {self.obs_spec.shape} need a convolutional policy, and these "
                "networks are perceptrons: give a network of your own (`network`), or choose an "
                "environment that observes features"
            )

    @property
    def obs_size(self) -> int:
        """D."""
        return math.prod(self.obs_spec.shape)

    @property
    def head_size(self) -> int:
        """Width of the policy's head: Σ choices, or the action's dimension."""
        return head_size(self.action_spec)

    @property
    def is_continuous(self) -> bool:
        """Whether actions are drawn from a Gaussian."""
        return self.action_spec.kind == "box"

    @property
    def num_layers(self) -> int:
        """Linear layers from an observation to a head."""
        return len(self.hidden_sizes) + 1

    @property
    def trunk(self) -> list[str]:
        """Names of the hidden layers that policy and value share, in order."""
        return [f"trunk.{k}" for k in range(len(self.hidden_sizes))] if self.shared_trunk else []

    def branch(self, name: str) -> list[str]:
        """Names of the layers that only the `policy` or the `value` has, the head's last."""
        return [f"{name}.{k}" for k in range(self.num_layers - len(self.trunk))]

    def layers(self, name: str) -> list[str]:
        """Names of all layers from the observation to the head of the `policy` or the `value`."""
        return self.trunk + self.branch(name)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes; weights are (inputs, outputs), so that `obs @ weight` is a layer."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, head in (("policy", self.head_size), ("value", 1)):
            widths = pairwise([self.obs_size, *self.hidden_sizes, head])
            for layer, (inputs, outputs) in zip(self.layers(name), widths, strict=True):
                shapes[f"{layer}.weight"] = (inputs, outputs)  # a trunk's are written twice
                shapes[f"{layer}.bias"] = (outputs,)
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
        gains = {f"{self.layers('policy')[-1]}.weight": 0.01}
        gains[f"{self.layers('value')[-1]}.weight"] = 1.0
        params: dict[str, Array] = {}
        for name, shape in self.parameter_shapes().items():
            if not name.endswith("weight"):
                params[name] = np.zeros(shape, np.float32)
                continue
            gain = gains.get(name, math.sqrt(2.0))
            params[name] = (gain * orthogonal(shape, generator)).astype(np.float32, order="C")
        return params

    def to_json(self) -> dict[str, Any]:
        """As plain lists and numbers, for a run directory."""
        return {
            "obs_spec": self.obs_spec.to_json(),
            "action_spec": self.action_spec.to_json(),
            "hidden_sizes": list(self.hidden_sizes),
            "activation": self.activation,
            "shared_trunk": self.shared_trunk,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ActorCritic:
        """The inverse of `to_json`."""
        return cls(
            obs_spec=ObsSpec.from_json(fields["obs_spec"]),
            action_spec=ActionSpec.from_json(fields["action_spec"]),
            hidden_sizes=tuple(fields["hidden_sizes"]),
            activation=fields["activation"],
            shared_trunk=fields.get("shared_trunk", False),  # unknown to older checkpoints
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
