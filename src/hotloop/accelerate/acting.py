"""The twin of a policy of Stable-Baselines3: its forward pass, computed with NumPy.

The forward of a perceptron on one observation takes some 10 µs with NumPy, and 200 with torch.
Random numbers come from torch's generator in the order in which the original draws them, so that a
seed gives the original's actions, apart from rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import FlattenExtractor, MlpExtractor
from torch import Tensor, nn

from hotloop.accelerate.acceleration import Unsupported
from hotloop.policies.forward_numpy import Perceptron
from hotloop.types import Array

_VERSION = attrgetter("_version")
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_MINUS_HALF, _FORBIDDEN = np.float32(-0.5), np.float32(-1e8)
# Modules of the policies and distributions that the twin computes.
_ORIGINALS = (
    "stable_baselines3.common.policies",
    "stable_baselines3.common.distributions",
    "sb3_contrib.common.maskable.policies",
    "sb3_contrib.common.maskable.distributions",
    "sb3_contrib.common.recurrent.policies",
)


class ActingTwin:
    """The forward of a policy with a value, on NumPy.

    Calling it returns what the policy's `forward` returns: actions, values and log-probabilities,
    as tensors on new arrays.
    """

    def __init__(self, policy: Any, draw: ActionDraw) -> None:
        self._policy = policy
        self._forward = policy.forward
        self._draw = draw
        extractor = policy.mlp_extractor
        self._heads = [
            _LinearLayers([*linear_layers(extractor.policy_net)[0], policy.action_net]),
            _LinearLayers([*linear_layers(extractor.value_net)[0], policy.value_net]),
        ]
        activations = [linear_layers(x)[1] for x in (extractor.policy_net, extractor.value_net)]
        self._perceptrons = [
            head.perceptron(activation)
            for head, activation in zip(self._heads, activations, strict=True)
        ]
        self._shape = tuple(policy.action_space.shape)
        self._parameters = list(policy.parameters())
        self._versions: list[int] = []
        self._is_finite = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Put the policy's own forward into copies and files of the policy."""
        return getattr, (self._policy, "forward")

    def expire(self) -> None:
        """Read the policy's parameters at the next call."""
        self._versions = []

    def can_act(self) -> bool:
        """Read parameters that have changed, and return whether all of them are finite.

        A callback may change them within a rollout.
        """
        versions = list(map(_VERSION, self._parameters))
        if versions != self._versions:
            self._versions, self._is_finite = versions, self.refresh()
        return self._is_finite

    @np.errstate(all="ignore")  # torch ignores them
    def refresh(self) -> bool:
        """Read the policy's current parameters. Return whether all of them are finite."""
        are_finite = [self._draw.refresh(), *(head.copy() for head in self._heads)]
        for perceptron in self._perceptrons:
            perceptron.refresh()
        return all(are_finite)

    def __call__(
        self, obs: Tensor, deterministic: bool = False, action_masks: Array | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values and log-probabilities."""
        # A callback may call the policy for gradients.
        if deterministic or torch.is_grad_enabled() or not self.can_act():
            masks = {} if action_masks is None else {"action_masks": action_masks}
            return self._forward(obs, deterministic, **masks)
        rows = obs.numpy()
        return self.act(rows, rows, action_masks)

    @np.errstate(all="ignore")
    def act(
        self, policy_rows: Array, value_rows: Array, masks: Array | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the result of a call from the inputs of both perceptrons, (N, …)."""
        policy, value = self._perceptrons
        outputs = policy(policy_rows, None)
        actions, log_prob = self._draw(outputs, policy.latent(policy_rows), masks)
        return (
            torch.from_numpy(actions.reshape(-1, *self._shape)),
            torch.from_numpy(value(value_rows, None)),
            torch.from_numpy(log_prob),
        )


def acting_twin(policy: Any) -> ActingTwin:
    """Return the twin of a policy.

    Raises:
        Unsupported: the policy is not a perceptron on vectors, or overrides its forward.
    """
    check_acting(policy)
    return ActingTwin(policy, action_draw(policy))


def check_acting(policy: Any) -> None:
    """Check that a policy acts by the original's code, with perceptrons on vectors.

    Raises:
        Unsupported: the policy has its own methods, hooks, other layers or other observations.
    """
    _check_methods(policy)
    check_hooks(layer for part in policy.children() for layer in part.modules())
    names = ("features_extractor", "pi_features_extractor", "vf_features_extractor")
    check_vectors(policy, [getattr(policy, name) for name in names])
    if type(policy.mlp_extractor) is not MlpExtractor:
        name = type(policy.mlp_extractor).__name__
        raise Unsupported(f"its mlp_extractor is {name}, not MlpExtractor")


def check_vectors(policy: Any, extractors: Sequence[Any]) -> None:
    """Check that a policy reads vectors on the CPU.

    Raises:
        Unsupported: it reads images or dictionaries, runs on a GPU, or has its own extractor.
    """
    space = policy.observation_space
    if not isinstance(space, spaces.Box):
        raise Unsupported(f"its observation space is {type(space).__name__}, not Box")
    if is_image_space(space):
        raise Unsupported("its observations are images, not vectors")
    if policy.device.type != "cpu":
        raise Unsupported(f"its policy is on {policy.device}, not on the CPU")
    for extractor in extractors:
        if type(extractor) is not FlattenExtractor:
            name = type(extractor).__name__
            raise Unsupported(f"its features extractor is {name}, not FlattenExtractor")


def _check_methods(policy: Any) -> None:
    """Check that the policy's forward is the original one.

    Raises:
        Unsupported: a class or the user has replaced a method.
    """
    names = ("forward", "extract_features", "_get_action_dist_from_latent")
    changed = [
        name
        for name in names
        if getattr(type(policy), name).__module__ not in _ORIGINALS
        or getattr(getattr(policy, name), "__func__", None) is not getattr(type(policy), name)
    ]
    if changed:
        raise Unsupported(f"its {type(policy).__name__} has its own {', '.join(changed)}")


def check_hooks(layers: Iterable[nn.Module]) -> None:
    """Check that no layer has forward hooks, which a twin would not call.

    Raises:
        Unsupported: a layer has hooks.
    """
    for layer in layers:
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise Unsupported(f"its {type(layer).__name__} has forward hooks")


def check_linear(layers: Iterable[nn.Module]) -> None:
    """Check that layers are linear, with a bias.

    Raises:
        Unsupported: a layer is of another kind, or has no bias.
    """
    for layer in layers:
        name = type(layer).__name__
        if type(layer) is not nn.Linear:
            raise Unsupported(f"its layers include {name}, not only Linear")
        if layer.bias is None:
            raise Unsupported(f"its layers include {name} without bias")


class _LinearLayers:
    """Contiguous copies of the weights of linear layers, (inputs, outputs)."""

    def __init__(self, layers: list[Any]) -> None:
        check_linear(layers)
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


def linear_layers(net: nn.Sequential) -> tuple[list[nn.Module], str]:
    """Return the layers of a network, for `check_linear`, and the activation after each of them.

    Raises:
        Unsupported: a layer has no activation, or another one than Tanh and ReLU.
    """
    layers, activations = list(net)[::2], list(net)[1::2]
    if len(layers) != len(activations):
        raise Unsupported("its hidden layers are not linear layers with an activation after each")
    kinds = {type(x) for x in activations} or {nn.Tanh}
    if len(kinds) > 1 or not kinds <= set(_ACTIVATIONS):
        names = ", ".join(sorted(x.__name__ for x in kinds))
        raise Unsupported(f"its activations are {names}, not Tanh or ReLU")
    return layers, _ACTIVATIONS[kinds.pop()]


_ACTIVATIONS: dict[type, str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def action_draw(policy: Any) -> ActionDraw:
    """Return the sampling of actions from the head's outputs.

    Raises:
        Unsupported: the policy has another distribution of actions.
    """
    distribution = policy.action_dist
    name = type(distribution).__name__
    if type(distribution).__module__ not in _ORIGINALS:
        raise Unsupported(f"its distribution of actions is {name}")
    if name == "DiagGaussianDistribution":
        return _GaussianDraw(policy)
    if name == "StateDependentNoiseDistribution":
        return _StateDependentDraw(policy)
    if name in ("CategoricalDistribution", "MaskableCategoricalDistribution"):
        return _CategoryDraw([int(policy.action_space.n)])
    if name in ("MultiCategoricalDistribution", "MaskableMultiCategoricalDistribution"):
        return _CategoryDraw([int(n) for n in policy.action_space.nvec])
    raise Unsupported(f"its distribution of actions is {name}")


def forget_distribution(distribution: Any) -> None:
    """Remove the tensors of the last call from a distribution of actions.

    The original's acting replaces it. After the original's `train` it has gradients, and Python
    can't copy the policy.
    """
    attributes = vars(distribution)
    for name in ("distribution", "distributions", "gaussian_actions"):
        if attributes.get(name) is not None:
            attributes[name] = None


class _Noise:
    """Random numbers of torch's generator, in one array that the next draw overwrites."""

    def __init__(self) -> None:
        self._tensor = torch.empty(0)
        self._array = self._tensor.numpy()

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers."""
        self._allocate(shape)
        self._tensor.normal_()
        return self._array

    def exponential(self, shape: tuple[int, ...]) -> Array:
        """Return exponentially distributed numbers with mean 1."""
        self._allocate(shape)
        self._tensor.exponential_()
        return self._array

    def _allocate(self, shape: tuple[int, ...]) -> None:
        if self._array.shape != shape:
            self._tensor = torch.empty(shape)
            self._array = self._tensor.numpy()


class _GaussianDraw:
    """Draws from a Gaussian with a standard deviation for each dimension."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._noise = _Noise()

    def refresh(self) -> bool:
        """Read the standard deviation again, and return whether it is finite."""
        log_std = self._policy.log_std.detach().numpy()
        self._std = np.exp(log_std)
        self._constant = np.float32(log_std.sum() + _LOG_SQRT_2PI * len(log_std))
        return math.isfinite(self._constant)

    def __call__(self, mean: Array, latent: Array, masks: Array | None) -> tuple[Array, Array]:
        """Return actions, (N, A), and their log-probabilities, (N,)."""
        noise = self._noise.normal(mean.shape)
        actions = mean + self._std * noise
        return actions, _MINUS_HALF * np.add.reduce(noise * noise, 1) - self._constant


class _StateDependentDraw:
    """Draws from a Gaussian whose noise is linear in the last hidden layer's output (gSDE).

    Raffin et al. 2021, arXiv:2005.05719, as `StateDependentNoiseDistribution` computes it.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def refresh(self) -> bool:
        """Read the standard deviation again, and return whether it is finite."""
        policy = self._policy
        std = policy.action_dist.get_std(policy.log_std.detach()).numpy()
        self._variance = std * std
        return math.isfinite(self._variance.sum())

    def __call__(self, mean: Array, latent: Array, masks: Array | None) -> tuple[Array, Array]:
        """Return actions, (N, A), and their log-probabilities, (N,)."""
        distribution = self._policy.action_dist
        actions = mean + state_dependent_noise(distribution, latent)
        bijector = distribution.bijector
        correction = 0.0
        values = actions
        if bijector is not None:
            actions = np.tanh(actions)
            # The original computes the values before tanh from its results.
            limit = np.float32(1.0) - np.finfo(np.float32).eps
            values = np.arctanh(np.clip(actions, -limit, limit))
            derivative = np.float32(1.0) - np.square(np.tanh(values))
            correction = np.log(derivative + np.float32(bijector.epsilon)).sum(1)
        variance = np.dot(latent * latent, self._variance) + np.float32(distribution.epsilon)
        log_prob = np.square(values - mean) / variance + np.log(variance)
        constant = np.float32(_LOG_SQRT_2PI * mean.shape[1])
        return actions, _MINUS_HALF * log_prob.sum(1) - constant - correction


def state_dependent_noise(distribution: Any, latent: Array) -> Array:
    """Return the noise of a `StateDependentNoiseDistribution`, float32, (N, A).

    Args:
        distribution: the distribution, with one matrix for all rows or one for each row.
        latent: the last hidden layer's output, float32, (N, L).
    """
    matrices = distribution.exploration_matrices
    if len(latent) == 1 or len(latent) != len(matrices):
        return np.dot(latent, distribution.exploration_mat.detach().numpy())
    return np.matmul(latent[:, None], matrices.detach().numpy())[:, 0]


class _CategoryDraw:
    """Draws from one or several categorical distributions.

    Args:
        sizes: their numbers of categories.
    """

    def __init__(self, sizes: list[int]) -> None:
        ends = list(accumulate(sizes))
        parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._parts = [(part, _Noise()) for part in parts]

    def refresh(self) -> bool:
        """Return True, since there is nothing to read."""
        return True

    def __call__(self, logits: Array, latent: Array, masks: Array | None) -> tuple[Array, Array]:
        """Return actions, (N, distributions), and their log-probabilities, (N,)."""
        if masks is not None:
            # The number by which sb3-contrib replaces the logits of forbidden actions.
            logits = np.where(masks.reshape(logits.shape), logits, _FORBIDDEN)
        draws = [_draw_category(logits[:, part], noise) for part, noise in self._parts]
        if len(draws) == 1:
            return draws[0]
        actions, log_probs = zip(*draws, strict=True)
        return np.stack(actions, 1), np.sum(log_probs, 0)


ActionDraw: TypeAlias = _GaussianDraw | _StateDependentDraw | _CategoryDraw
"""`draw(head outputs, last hidden output, masks)` returns actions and log-probabilities."""


def _draw_category(logits: Array, noise: _Noise) -> tuple[Array, Array]:
    shifted = logits - np.maximum.reduce(logits, 1, keepdims=True)
    weights = np.exp(shifted)
    # As torch's multinomial: the largest of p / q, where q is exponentially distributed.
    actions = (weights / noise.exponential(weights.shape)).argmax(1)
    log_prob = shifted[np.arange(len(actions)), actions] - np.log(np.add.reduce(weights, 1))
    return actions, log_prob
