"""A policy of Stable-Baselines3 that acts on NumPy.

The forward of a perceptron on one observation takes some 10 µs on NumPy, not 200 on torch. Random
numbers come from torch's generator in the order in which the original draws them, so that a seed
gives the original's actions, apart from rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import distributions
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import Tensor, nn

from hotloop.accelerate.acceleration import Unsupported
from hotloop.policies.forward_numpy import Perceptron
from hotloop.types import Array

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class ActingTwin:
    """The forward of a policy with a value, on NumPy.

    Calling it returns what the policy's `forward` returns: actions, values and log-probabilities,
    as tensors on new arrays.

    Args:
        policy: the policy.
        draw: samples actions from the head's outputs, see `_draws`.
    """

    def __init__(self, policy: Any, draw: Callable[[Array], tuple[Array, Array]]) -> None:
        self._policy = policy
        self._forward = policy.forward
        self._draw = draw
        extractor = policy.mlp_extractor
        self._heads = [
            _LinearLayers([*_linear_layers(extractor.policy_net)[0], policy.action_net]),
            _LinearLayers([*_linear_layers(extractor.value_net)[0], policy.value_net]),
        ]
        activations = [_linear_layers(x)[1] for x in (extractor.policy_net, extractor.value_net)]
        self._perceptrons = [
            head.perceptron(activation)
            for head, activation in zip(self._heads, activations, strict=True)
        ]
        self._shape = tuple(policy.action_space.shape)

    def refresh(self) -> bool:
        """Read the policy's current parameters. Return whether all of them are finite."""
        copies = [head.copy() for head in self._heads]
        for perceptron in self._perceptrons:
            perceptron.refresh()
        return all(copies)

    def __call__(self, obs: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values and log-probabilities."""
        if deterministic:
            return self._forward(obs, deterministic)
        rows = obs.numpy()
        policy, value = self._perceptrons
        actions, log_prob = self._draw(policy(rows, None))
        return (
            torch.from_numpy(actions.reshape(-1, *self._shape)),
            torch.from_numpy(value(rows, None)),
            torch.from_numpy(log_prob),
        )


def acting_twin(policy: Any) -> ActingTwin:
    """Return the twin of a policy.

    Raises:
        Unsupported: the policy is not a perceptron on vectors, or overrides its forward.
    """
    _check_methods(policy)
    space = policy.observation_space
    if not isinstance(space, spaces.Box) or is_image_space(space):
        raise Unsupported(f"its observations are {type(space).__name__}, not vectors")
    if policy.device.type != "cpu":
        raise Unsupported(f"its policy is on {policy.device}, not the CPU")
    for extractor in (policy.pi_features_extractor, policy.vf_features_extractor):
        if type(extractor) is not FlattenExtractor:
            raise Unsupported(f"its features extractor is {type(extractor).__name__}")
    if type(policy.mlp_extractor) is not MlpExtractor:
        raise Unsupported(f"its hidden layers are {type(policy.mlp_extractor).__name__}")
    return ActingTwin(policy, _draw_function(policy))


def _check_methods(policy: Any) -> None:
    """Check that the policy's forward is the original one.

    Raises:
        Unsupported: a class or the user has replaced a method.
    """
    names = ("forward", "extract_features", "_get_action_dist_from_latent")
    changed = [x for x in names if getattr(type(policy), x) is not getattr(ActorCriticPolicy, x)]
    changed += [x for x in names if x in vars(policy)]
    if changed:
        raise Unsupported(f"its {type(policy).__name__} has its own {', '.join(changed)}")


class _LinearLayers:
    """Contiguous copies of the weights of linear layers, (inputs, outputs)."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        self._layers = layers
        self._copies = {
            name: np.zeros(tuple(reversed(x.shape)), np.float32)
            for k, layer in enumerate(layers)
            for name, x in ((f"{k}.weight", layer.weight), (f"{k}.bias", layer.bias))
        }

    def perceptron(self, activation: Any) -> Perceptron:
        """Return a perceptron that reads the copies."""
        perceptron = Perceptron(activation, [str(k) for k in range(len(self._layers))])
        perceptron.load(self._copies)
        return perceptron

    def copy(self) -> bool:
        """Copy the current weights, and return whether all are finite."""
        is_finite = True
        for k, layer in enumerate(self._layers):
            for name, x in ((f"{k}.weight", layer.weight), (f"{k}.bias", layer.bias)):
                copy = self._copies[name]
                copy[:] = x.detach().numpy().T
                is_finite &= math.isfinite(copy.sum())
        return is_finite


def _linear_layers(net: nn.Sequential) -> tuple[list[nn.Linear], str]:
    """Return the linear layers of a network and the activation after each of them.

    Raises:
        Unsupported: there are other layers, or other activations than Tanh and ReLU.
    """
    layers, activations = list(net)[::2], list(net)[1::2]
    kinds = {type(x) for x in activations} or {nn.Tanh}
    if any(type(x) is not nn.Linear or x.bias is None for x in layers):
        raise Unsupported("its hidden layers are not linear layers with an activation after each")
    if len(kinds) > 1 or len(layers) != len(activations) or not kinds <= set(_ACTIVATIONS):
        names = ", ".join(sorted(x.__name__ for x in kinds))
        raise Unsupported(f"its activations are {names}, not Tanh or ReLU")
    return [x for x in layers if isinstance(x, nn.Linear)], _ACTIVATIONS[kinds.pop()]


_ACTIVATIONS: dict[type, str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def _draw_function(policy: Any) -> Callable[[Array], tuple[Array, Array]]:
    """Return a function of the head's outputs, (N, H), to actions and log-probabilities, (N,)."""
    kind = type(policy.action_dist)
    if kind is distributions.DiagGaussianDistribution:
        return _GaussianDraw(policy.log_std)
    if kind is distributions.CategoricalDistribution:
        return _draw_category
    raise Unsupported(f"its distribution of actions is {kind.__name__}")


class _GaussianDraw:
    """Draws from a Gaussian with a standard deviation for each dimension."""

    def __init__(self, log_std: nn.Parameter) -> None:
        self._log_std = log_std

    def __call__(self, mean: Array) -> tuple[Array, Array]:
        log_std = self._log_std.detach().numpy()
        noise = torch.empty(mean.shape).normal_().numpy()
        actions = mean + np.exp(log_std) * noise
        constant = log_std.sum() + _LOG_SQRT_2PI * len(log_std)
        return actions, -0.5 * np.square(noise).sum(1) - np.float32(constant)


def _draw_category(logits: Array) -> tuple[Array, Array]:
    shifted = logits - logits.max(1, keepdims=True)
    weights = np.exp(shifted)
    # As torch's multinomial: the largest of p / q, where q is exponentially distributed.
    noise = torch.empty(weights.shape).exponential_().numpy()
    actions = (weights / noise).argmax(1)
    log_prob = shifted[np.arange(len(actions)), actions] - np.log(weights.sum(1))
    return actions, log_prob
