"""The forward passes of networks in torch, and networks and critics over one flat vector.

They are the differentiable counterparts of `forward_numpy` and `ActingPolicy`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from hotloop.base.transfer import to_device
from hotloop.errors import ConfigError
from hotloop.ops.activations import tanh
from hotloop.ops.products import Precision, convolution, product, warn_if_slow
from hotloop.policies import recurrence
from hotloop.policies.critics import Critics
from hotloop.policies.encoders.base import Operations
from hotloop.policies.layers import Layers
from hotloop.policies.noisy_layers import NOISE
from hotloop.policies.parameters import ParameterLayout
from hotloop.policies.spec import Network

# BLAS takes 21 µs for a product with few columns, 6 if it is transposed (256×64 by 64×2, one core).
_NARROW_INPUTS, _NARROW_OUTPUTS = 64, 8


def linear(inputs: Tensor, weight: Tensor, bias: Tensor, precision: Precision) -> Tensor:
    """Return inputs · weight + bias, float32, (B, H), or (K, B, H) for a stack of K layers."""
    is_narrow = weight.shape[-2] <= _NARROW_INPUTS and weight.shape[-1] <= _NARROW_OUTPUTS
    if is_narrow and weight.ndim == 2:
        products = product(weight.t(), inputs.t(), precision).t()
    else:
        products = product(inputs, weight, precision)
    # The subtraction prevents a compiler from merging sum and product into `addmm`, which first
    # copies the bias for each row, 10 µs of 90 for 256×256. The sum then fuses with the activation.
    # Eager code uses the sum, since the gradient of the difference takes two more calls.
    return products.sub(bias, alpha=-1) if torch.compiler.is_compiling() else products + bias


def differentiable_operations(precision: Precision) -> Operations:
    """Return the operations for gradients and compilation in a precision."""
    return Operations(
        linear=partial(linear, precision=precision),
        convolve=partial(convolution, precision=precision),
        tanh=tanh,
    )


def network_outputs(
    layers: Layers,
    operations: Operations,
    params: Mapping[str, Tensor],
    obs: Tensor,
    memory: Tensor | None = None,
    begins: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return the head, (B, H), and, if any, the value, (B,), and the hidden state after a step.

    Args:
        layers: the layers.
        operations: their operations.
        params: float32, by name, with the shapes of the layers.
        obs: (B, *obs_shape).
        memory: hidden state of a recurrent network before the first step of S sequences,
            float32, (S, M).
        begins: whether an episode starts, bool, (L, S), for L steps of each sequence. B is
            L · S, and rows are step by step. None: one step of each sequence, so B is S, and
            the last output is the hidden state after it, (S, M).
    """
    activation = operations.tanh if layers.activation == "tanh" else torch.relu

    def layer(name: str, inputs: Tensor) -> Tensor:
        return operations.linear(inputs, params[f"{name}.weight"], params[f"{name}.bias"])

    # Compute the features and the recurrent layer.
    recurrent_layer, num_features = layers.recurrent_layer, layers.num_features
    features = layers.encoder.features(params, obs, operations)
    next_memory: tuple[Tensor, ...] = ()
    if recurrent_layer is not None:
        assert memory is not None
        if begins is None:
            weight = params["memory.weight"]
            inputs = operations.linear(features, weight[:num_features], params["memory.bias"])
            recurrent = weight[num_features:]
            next_memory = (recurrence.step(recurrent_layer.kind, inputs, recurrent, memory),)
            features = next_memory[0][:, : recurrent_layer.num_units]
        else:
            features = recurrence.unroll_features(
                recurrent_layer, operations, params, features, memory, begins
            )
    # Compute the perceptrons.
    for name in layers.trunk:
        features = activation(layer(name, features))
    outputs: list[Tensor] = []
    for names in layers.names.values():
        hidden = features
        for name in names[len(layers.trunk) : -1]:
            hidden = activation(layer(name, hidden))
        outputs.append(layer(names[-1], hidden))
    return outputs[0], *(value.squeeze(-1) for value in outputs[1:]), *next_memory


class LayersModule(nn.Module):
    """Layers with their own parameters, for acting through torch or for export."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self._layers = layers
        # Use a list, since names of torch parameters must not contain a dot.
        self._values = nn.ParameterList(torch.zeros(shape) for shape in layers.shapes.values())

    @property
    def by_name(self) -> dict[str, Tensor]:
        """Return the parameters of the layers that act (`Head.fold`)."""
        return dict(zip(self._layers.shapes, self._values, strict=True))

    def forward(self, obs: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the head, (B, H), and, if any, the value, (B,), and the new hidden state, (B, M).

        Args:
            obs: (B, *obs_shape).
            memory: hidden state of a recurrent network, (B, M).
        """
        return network_outputs(self._layers, _PLAIN, self.by_name, obs, memory)


# Use only operations that every exporter supports.
_PLAIN = Operations(
    linear=lambda inputs, weight, bias: torch.addmm(bias, inputs, weight),
    convolve=nn.functional.conv2d,
    tanh=torch.tanh,
)


class _FlatNetwork:
    def __init__(self, network: Network | Critics, device: torch.device | str) -> None:
        self.layout = ParameterLayout(network.parameter_shapes())
        self.num_params = sum(self.layout.sizes)
        self._network, self._device = network, device

    def initial(self, seed: int) -> Tensor:
        """Return initial parameters: float32, (P,), on the device."""
        return self.layout.pack(self._network.initial_parameters(seed), self._device)

    def _sequences(self, memory: Tensor | None, begins: Tensor | None) -> tuple[Tensor, ...]:
        """Return the hidden state, (S, M), and episode starts, (L, S); () without recurrence."""
        if memory is not None and begins is not None:
            return memory, begins.view(-1, len(memory))
        if self._network.memory_size:
            raise ConfigError(
                "a network with memory needs the hidden state and the starts of episodes, got no "
                "`memory` or no `begins`: pass those of the batch"
            )
        return ()


class LearnedNetwork(_FlatNetwork):
    """A network over one flat vector, (P,).

    An algorithm passes `outputs` to the methods of its `head`.

    Args:
        network: the network to learn.
        precision: precision of the matrix products.
        device: device of parameters and observations.

    Attributes:
        layout: positions of its parameters in the vector.
        num_params: P.
        num_noise: K, the number of random numbers of its noisy layers; 0 without them.
        head: the network's head, with methods of its own kind.

    Raises:
        ConfigError: the user's module does not support the precision.
    """

    def __init__(
        self,
        network: Network,
        *,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(network, device)
        warn_if_slow(precision, torch.device(device))
        self.network = network
        self.head: Any = network.head
        self._outputs = network.layers.make_forward(precision, device)
        self.num_noise = math.prod(self.layout.shapes.get(NOISE, (0,)))
        self._scale: tuple[Tensor, Tensor] | None = None
        scale = network.head.action_scale
        if scale is not None and ((scale[0] != 0.0) | (scale[1] != 1.0)).any():
            center, half_width = (to_device(x, device) for x in scale)
            self._scale = center, half_width

    @cached_property
    def value_layer(self) -> Tensor:
        """Return whether a parameter belongs to the value's last layer, bool, (P,)."""
        return torch.cat([is_part for _, is_part in self._value_parts()])

    @cached_property
    def value_bias(self) -> Tensor:
        """Return whether a parameter is the bias of the value's last layer, bool, (P,)."""
        return torch.cat([is_part & (name[-4:] == "bias") for name, is_part in self._value_parts()])

    def _value_parts(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter's name, and whether it belongs to the value's last layer."""
        layers = self.network.layers
        if not isinstance(layers, Layers):
            raise ConfigError(
                "the value of a custom `network` can't be normalized, since its last layer is "
                "unknown: leave out `normalize_value`, or `network`"
            )
        last = layers.names["value"][-1]
        for name, size in zip(self.layout.shapes, self.layout.sizes, strict=True):
            is_part = name in (f"{last}.weight", f"{last}.bias")
            yield name, torch.full((size,), is_part, device=self._device)

    def outputs(
        self,
        params: Tensor,
        obs: Tensor,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the network's outputs, from which the head makes actions, and the value.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape), scaled as by `ActingPolicy.scaled`. For sequences, see `evaluate`.
            memory: see `evaluate`.
            begins: see `evaluate`.
            noise: standard normal noise of noisy layers, (K,). None: their means.

        Returns:
            The outputs, float32, (B, H), including forbidden actions, and V(obs), (B,), or None.
        """
        return self._forward(self.layout.unpack(params), obs, memory, begins, noise)

    def set_noise(self, params: Tensor, noise: Tensor) -> None:
        """Replace the noise with which noisy layers act, (K,), within the parameters, (P,)."""
        params[-self.num_noise :].copy_(noise)  # the last parameter

    def step(self, params: Tensor, obs: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the outputs of one step that explores: the head, the value, the hidden state.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape), scaled.
            memory: hidden state of a recurrent network, float32, (B, M).

        Returns:
            (B, H), (B,) and (B, M). The last two are missing if the network lacks them.
        """
        named = self.layout.unpack(params)
        named = self.network.fold(named, named.get(NOISE))
        return tuple(self._outputs(named, obs, *(() if memory is None else (memory,))))

    def evaluate(
        self,
        params: Tensor,
        obs: Tensor,
        action: Tensor,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Any]:
        """Return log π(action), the entropy and the value, (B,) each.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape). For a recurrent network, the rows of S sequences of L steps, step
                by step.
            action: (B, *action_shape).
            memory: hidden state of a recurrent network before the first step, (S, M).
            begins: whether an episode starts, bool, (B,).
            mask: the allowed actions of a policy with action masks, bool, (B, M).

        Returns:
            The value is None if the network has none.
        """
        named = self.layout.unpack(params)
        head, value = self._forward(named, obs, memory, begins)
        if self.network.action_spec.is_masked:
            if mask is None:
                raise ConfigError(
                    "a network with action masks needs `mask`, got none: pass the batch's `mask`"
                )
            head = self.head.forbid(head, mask)
        if self._scale is not None:
            action = self.unit_action(action)
        return *self.head.evaluate(named, head, action), value

    def draw(self, params: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Sample actions like an `ActingPolicy`.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape).
            noise: float32, (B, K), one step of `ActingPolicy.draw_noise`.

        Returns:
            The actions, (B, *action_shape), log π(action), (B,), and the value, (B,), or None.
        """
        named = self.layout.unpack(params)
        head, value = self._forward(named, obs)
        action = self.head.draw(named, head, noise)
        log_prob = self.head.evaluate(named, head, action)[0]
        if self._scale is not None:
            center, half_width = self._scale
            action = (action.flatten(1) * half_width + center).view_as(action)
        return action, log_prob, value

    def unit_action(self, action: Tensor) -> Tensor:
        """Return the environment's actions, (B, *action_shape), scaled to [−1, 1], (B, A)."""
        if self.head.action_scale is None:
            raise ConfigError(f"the head {self.head} has no bounds of actions: use those of sac")
        flat = action.flatten(1)
        if self._scale is None:
            return flat
        center, half_width = self._scale
        return (flat - center) / half_width

    def _forward(
        self,
        named: dict[str, Tensor],
        obs: Tensor,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        head, *value = self._outputs(
            self.network.fold(named, noise), obs, *self._sequences(memory, begins)
        )
        return head, value[0] if value else None


class LearnedCritics(_FlatNetwork):
    """K critics over one flat vector, (P,).

    Attributes:
        layout: positions of their parameters in the vector.
        num_params: P.

    Raises:
        ConfigError: the user's module does not support the precision.
    """

    def __init__(
        self,
        critics: Critics,
        *,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(critics, device)
        self.critics = critics
        self._values = critics.make_forward(precision, device)

    def values(
        self,
        params: Tensor,
        obs: Tensor,
        action: Tensor,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> Tensor:
        """Return the values of all critics.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape). For recurrent critics, the rows of S sequences, step by step. They
                may begin with more steps than there are actions.
            action: in [−1, 1], (B, A).
            memory: hidden state of recurrent critics before the first step, float32, (S, M).
            begins: whether an episode starts, bool, one for each row of `obs`.

        Returns:
            float32, (K, B), or (K, B, M) for critics with several outputs.
        """
        named, sequences = self.layout.unpack(params), self._sequences(memory, begins)
        return self._values(named, obs, action, self.critics.count, *sequences)

    def first_values(
        self,
        params: Tensor,
        obs: Tensor,
        action: Tensor,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> Tensor:
        """Return the values of the first critic alone, (B,) or (B, M), see `values`."""
        sequences = self._sequences(memory, begins)
        return self._values(self.layout.unpack(params), obs, action, 1, *sequences)[0]
