"""What a learner differentiates, in torch: functions of tensors alone.

The twin of how an `ActingPolicy` acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hotloop.ops import distributions
from hotloop.ops.activations import tanh
from hotloop.policies.actor_critic import ActorCritic
from hotloop.policies.modules import ModuleActorCritic
from hotloop.policies.protocol import Network

# A product with few columns costs BLAS 21 µs, transposed 6 (256×64 by 64×2, one core).
_NARROW = 8


def forward(network: Network, params: Mapping[str, Tensor], obs: Tensor) -> tuple[Tensor, Tensor]:
    """The policy's head and the value.

    Args:
        network: which networks.
        params: float32, by name.
        obs: (B, *obs_shape), as `ActingPolicy.scaled` gives them.

    Returns:
        Logits or means, (B, H), and V(obs), (B,).
    """
    if isinstance(network, ModuleActorCritic):
        return network.forward(params, obs)
    assert isinstance(network, ActorCritic)
    activation = tanh if network.activation == "tanh" else torch.relu
    hidden = obs.flatten(1).to(torch.float32)
    for layer in network.trunk:
        hidden = activation(_linear(params, layer, hidden))
    head = _perceptron(params, network.branch("policy"), hidden, activation)
    value = _perceptron(params, network.branch("value"), hidden, activation)
    return head, value.squeeze(-1)


def log_prob_and_entropy(
    network: Network, params: Mapping[str, Tensor], head: Tensor, action: Tensor
) -> tuple[Tensor, Tensor]:
    """log π(action) and the entropy, both (B,), from `head`, (B, H), and (B, *action_shape)."""
    spec = network.action_spec
    if spec.kind == "discrete":
        return distributions.categorical(head, action)
    if spec.kind == "multi_discrete":
        return distributions.multi_categorical(head, action, spec.nvec)
    return distributions.diagonal_gaussian(head, params["policy.log_std"], action.flatten(1))


def _perceptron(
    params: Mapping[str, Tensor],
    layers: list[str],
    hidden: Tensor,
    activation: Callable[[Tensor], Tensor],
) -> Tensor:
    for layer in layers[:-1]:
        hidden = activation(_linear(params, layer, hidden))
    return _linear(params, layers[-1], hidden)


def _linear(params: Mapping[str, Tensor], layer: str, inputs: Tensor) -> Tensor:
    weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
    if weight.shape[1] <= _NARROW:
        return torch.mm(weight.t(), inputs.t()).t() + bias
    return torch.addmm(bias, inputs, weight)
