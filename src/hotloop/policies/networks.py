"""The torch twin of `ActingPolicy`: what a learner differentiates. Functions of tensors alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hotloop.ops import distributions
from hotloop.ops.activations import tanh
from hotloop.policies.actor_critic import ActorCritic

# A product with few columns costs BLAS 21 µs, transposed 6 (256×64 by 64×2, one core).
_NARROW = 8


def forward(
    network: ActorCritic, params: Mapping[str, Tensor], obs: Tensor
) -> tuple[Tensor, Tensor]:
    """The policy's head and the value.

    Args:
        network: which networks.
        params: float32, by name.
        obs: (B, *obs_shape).

    Returns:
        Logits or means, (B, H), and V(obs), (B,).
    """
    obs = obs.flatten(1).to(torch.float32)
    head = _perceptron(network, params, "policy", obs)
    value = _perceptron(network, params, "value", obs)
    return head, value.squeeze(-1)


def log_prob_and_entropy(
    network: ActorCritic, params: Mapping[str, Tensor], head: Tensor, action: Tensor
) -> tuple[Tensor, Tensor]:
    """log π(action) and the entropy, both (B,), from `head`, (B, H), and (B, *action_shape)."""
    spec = network.action_spec
    if spec.kind == "discrete":
        return distributions.categorical(head, action)
    if spec.kind == "multi_discrete":
        return distributions.multi_categorical(head, action, spec.nvec)
    return distributions.diagonal_gaussian(head, params["policy.log_std"], action.flatten(1))


def _perceptron(
    network: ActorCritic, params: Mapping[str, Tensor], name: str, hidden: Tensor
) -> Tensor:
    activation = tanh if network.activation == "tanh" else torch.relu
    for layer in range(network.num_layers):
        weight, bias = params[f"{name}.{layer}.weight"], params[f"{name}.{layer}.bias"]
        if weight.shape[1] <= _NARROW:
            hidden = torch.mm(weight.t(), hidden.t()).t() + bias
        else:
            hidden = torch.addmm(bias, hidden, weight)
        if layer < network.num_layers - 1:
            hidden = activation(hidden)
    return hidden
