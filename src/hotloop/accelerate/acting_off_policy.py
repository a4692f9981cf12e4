"""Twins of off-policy policies of Stable-Baselines3: functions that compute actions with NumPy.

They read the parameters from the policy's memory without a copy, since the parameters change before
almost every action. Random numbers come from the generators of the original, in its order, so that
a seed gives the original's actions, apart from rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hotloop.accelerate.acceleration import Unsupported, own_methods
from hotloop.accelerate.acting import (
    check_hooks,
    check_linear,
    check_vectors,
    forget_distribution,
    linear_layers,
    state_dependent_noise,
)
from hotloop.types import Array

# The limits of the logarithm of a standard deviation, as in `stable_baselines3.sac.policies`.
_MIN_LOG_STD, _MAX_LOG_STD = -20.0, 2.0


class LayerStack:
    """Linear layers with an activation between them, on NumPy.

    Args:
        layers: the layers.
        activation: the activation after each layer but the last, "tanh" or "relu".

    Raises:
        Unsupported: a layer is not linear.
    """

    def __init__(self, layers: Sequence[Any], activation: str) -> None:
        check_linear(layers)
        self._parameters = [x for layer in layers for x in (layer.weight, layer.bias)]
        self._is_relu = activation == "relu"
        self._addresses: list[int] = []
        self._arrays: list[tuple[Array, Array]] = []

    def __call__(self, rows: Array) -> tuple[Array, Array]:
        """Return the outputs, and the inputs of the last layer.

        Args:
            rows: float32, (N, inputs).

        Returns:
            float32, (N, outputs) and (N, inputs of the last layer).
        """
        addresses = list(map(torch.Tensor.data_ptr, self._parameters))
        if addresses != self._addresses:  # other code has replaced the tensors
            arrays = [x.detach().numpy() for x in self._parameters]
            self._arrays = [(x.T, bias) for x, bias in zip(arrays[::2], arrays[1::2], strict=True)]
            self._addresses = addresses
        *hidden_layers, (last_weight, last_bias) = self._arrays
        for weight, bias in hidden_layers:
            rows = np.dot(rows, weight)
            rows += bias
            if self._is_relu:
                np.maximum(rows, 0.0, out=rows)
            else:
                np.tanh(rows, out=rows)
        return np.dot(rows, last_weight) + last_bias, rows


def squashed_gaussian_twin(model: Any, actor_class: type) -> Callable[[Array], Array]:
    """Return a function of observations to sampled actions in [−1, 1], (N, *action shape).

    Raises:
        Unsupported: the actor is not a perceptron on vectors, or has methods of its own.
    """
    actor = model.policy.actor
    _check(model, actor, actor_class)
    hidden, activation = linear_layers(actor.latent_pi)
    shape = model.action_space.shape
    if model.use_sde:
        return _state_dependent_twin(model, hidden, activation, shape)
    mean_stack = LayerStack([*hidden, actor.mu], activation)
    std_stack = LayerStack([*hidden, actor.log_std], activation)

    def act(obs: Array) -> Array:
        forget_distribution(actor.action_dist)
        rows = _rows(obs)
        mean, _ = mean_stack(rows)
        if not math.isfinite(mean.sum()):
            return _original_actions(model, obs)
        log_std = np.clip(std_stack(rows)[0], _MIN_LOG_STD, _MAX_LOG_STD)
        noise = torch.empty(mean.shape).normal_().numpy()
        return np.tanh(mean + np.exp(log_std) * noise).reshape(-1, *shape)

    return act


def _original_actions(model: Any, obs: Array) -> Array:
    """Return the actions of the original, which raises an error if parameters are not finite."""
    return model.policy.scale_action(model.predict(obs)[0])


def _state_dependent_twin(
    model: Any, hidden: list[nn.Module], activation: str, shape: tuple[int, ...]
) -> Callable[[Array], Array]:
    """Return the function of `squashed_gaussian_twin` for state-dependent noise (gSDE)."""
    actor = model.policy.actor
    last, limit = actor.mu, np.inf
    if isinstance(last, nn.Sequential):  # a linear layer, and limits of its output
        limits: Any = last[1]
        last, limit = last[0], float(limits.max_val)
    stack = LayerStack([*hidden, last], activation)

    def act(obs: Array) -> Array:
        forget_distribution(actor.action_dist)
        mean, latent = stack(_rows(obs))
        if not math.isfinite(mean.sum()):
            return _original_actions(model, obs)
        noise = state_dependent_noise(actor.action_dist, latent)
        return np.tanh(np.clip(mean, -limit, limit) + noise).reshape(-1, *shape)

    return act


def deterministic_twin(model: Any, actor_class: type) -> Callable[[Array], Array]:
    """Return a function of observations to actions in [−1, 1], (N, *action shape).

    Raises:
        Unsupported: the actor is not a perceptron on vectors, or has methods of its own.
    """
    actor = model.policy.actor
    _check(model, actor, actor_class)
    *layers, last = list(actor.mu)
    if type(last) is not nn.Tanh:
        raise Unsupported(f"its actor ends in {type(last).__name__}, not in Tanh")
    hidden, activation = linear_layers(nn.Sequential(*layers[:-1]))
    stack = LayerStack([*hidden, layers[-1]], activation)
    shape = model.action_space.shape
    return lambda obs: np.tanh(stack(_rows(obs))[0]).reshape(-1, *shape)


def greedy_twin(
    model: Any, network: Any, network_class: type, layers: nn.Sequential
) -> Callable[[Array], Array]:
    """Return a function of observations to ε-greedy actions, int64, (N,).

    Args:
        model: the model.
        network: its network of action values or quantiles.
        network_class: the network's class in the library.
        layers: the network's layers, whose outputs are values, (N, A), or quantiles, (N, Q · A).

    Raises:
        Unsupported: the network is not a perceptron on vectors, or has methods of its own.
    """
    _check(model, network, network_class)
    *hidden_layers, last = list(layers)
    hidden, activation = linear_layers(nn.Sequential(*hidden_layers))
    stack = LayerStack([*hidden, last], activation)
    num_actions = int(model.action_space.n)

    def act(obs: Array) -> Array:
        # As `predict` of the original.
        if np.random.rand() < model.exploration_rate:
            return np.array([model.action_space.sample() for _ in range(len(obs))])
        values, _ = stack(_rows(obs))
        if values.shape[1] != num_actions:
            values = values.reshape(len(obs), -1, num_actions).mean(1)
        return values.argmax(1)

    return act


def _rows(obs: Array) -> Array:
    return obs.reshape(len(obs), -1).astype(np.float32, copy=False)


def _check(model: Any, network: Any, network_class: type) -> None:
    """Check that a model acts by a network of a known class, on vectors, as the original does."""
    if type(network) is not network_class:
        names = type(network).__name__, network_class.__name__
        raise Unsupported("its network is {}, not {}".format(*names))
    check_hooks(network.modules())
    check_vectors(model.policy, [network.features_extractor])
    names = ("forward", "_predict", "action_log_prob", "get_action_dist_params")
    methods = {
        model: ["predict"],
        model.policy: ["predict", "_predict"],
        network: [name for name in names if hasattr(network, name)],
    }
    for owner, names in methods.items():
        if changed := own_methods(owner, names):
            raise Unsupported(f"its {type(owner).__name__} has its own {', '.join(changed)}")
