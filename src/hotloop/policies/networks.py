"""What a learner differentiates, in torch: functions of tensors alone.

The twin of how an `ActingPolicy` acts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, softplus

from hotloop.ops import distributions
from hotloop.ops.activations import tanh
from hotloop.ops.products import Precision, product
from hotloop.policies.actor_critic import ActorCritic
from hotloop.policies.actors import Actor
from hotloop.policies.critics import Critics
from hotloop.policies.heads import LOG_STD_MAX, LOG_STD_MIN
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


def actor_head(
    actor: Actor, params: Mapping[str, Tensor], obs: Tensor, precision: Precision = "float32"
) -> Tensor:
    """The head of an actor: float32, (B, H), from (B, *obs_shape)."""
    activation = tanh if actor.activation == "tanh" else torch.relu
    hidden = obs.flatten(1).to(torch.float32)
    names = actor.layer_names
    for layer in names[:-1]:
        hidden = activation(_dense(params, layer, hidden, precision))
    return _dense(params, names[-1], hidden, precision)


def squashed_gaussian(head: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A draw from a Gaussian that goes through tanh, and its log-density.

    u = tanh(μ + σ ε),   log π(u) = log N(ε) − Σ log σ − Σ log(1 − u²)

    Haarnoja et al. 2018, arXiv:1812.05905, appendix C, eq. 26; the last term as
    2 (log 2 − x − softplus(−2 x)), x being what goes into tanh, which does not lose its digits
    where u is close to ±1. The density is that of u, whose bounds are ±1 whatever the action's are.

    Args:
        head: float32, (B, 2A), as `actor_head` gives it.
        noise: ε, standard normal, (B, A).

    Returns:
        u, (B, A), and log π(u), (B,).
    """
    mean, raw = head.chunk(2, dim=-1)
    log_std = LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (tanh(raw) + 1.0)
    before = mean + log_std.exp() * noise
    unit = tanh(before)
    log_slope = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
    per_dimension = 0.5 * noise.square() + log_std + distributions.LOG_SQRT_2PI + log_slope
    return unit, -per_dimension.sum(-1)


def unit_action(actor: Actor, action: Tensor) -> Tensor:
    """The environment's actions, (B, *action_shape), as what they are in [−1, 1], (B, A)."""
    flat = action.flatten(1)
    spec = actor.action_spec
    if set(spec.low) == {-1.0} and set(spec.high) == {1.0}:
        return flat
    bounds = list(zip(spec.low, spec.high, strict=True))
    centre = torch.tensor([(low + high) / 2 for low, high in bounds])
    half = torch.tensor([(high - low) / 2 for low, high in bounds])
    return (flat - centre) / half


def action_values(
    critics: Critics,
    params: Mapping[str, Tensor],
    inputs: Tensor,
    precision: Precision = "float32",
) -> Tensor:
    """Q of all critics.

    Args:
        critics: K of them.
        params: float32, by name.
        inputs: observations and actions side by side, (B, D + A).
        precision: of the matrix products.

    Returns:
        float32, (K, B).
    """
    count = critics.count
    wide = product(inputs, params["critic.0.weight"], precision)
    wide = _add(wide, params["critic.0.bias"])
    hidden = wide.view(len(inputs), count, -1).transpose(0, 1)
    for k in range(len(critics.hidden_sizes)):
        if k:
            hidden = product(hidden, params[f"critic.{k}.weight"], precision)
            hidden = hidden + params[f"critic.{k}.bias"]
        if critics.layer_norm:
            hidden = layer_norm(hidden, hidden.shape[-1:])
            hidden = hidden * params[f"critic.{k}.scale"] + params[f"critic.{k}.shift"]
        hidden = torch.relu(hidden)
    last = f"critic.{len(critics.hidden_sizes)}"
    # A product with one column is a sum that fuses with what stands around it.
    values = (hidden * params[f"{last}.weight"].transpose(1, 2)).sum(-1)
    return values + params[f"{last}.bias"][:, :, 0]


def first_critic(
    critics: Critics, params: Mapping[str, Tensor]
) -> tuple[Critics, dict[str, Tensor]]:
    """The first of several critics, alone."""
    alone = replace(critics, count=1)
    width = critics.hidden_sizes[0]
    first = {
        name: x[..., :width] if name in ("critic.0.weight", "critic.0.bias") else x[:1]
        for name, x in params.items()
    }
    return alone, first


def _dense(
    params: Mapping[str, Tensor], layer: str, inputs: Tensor, precision: Precision
) -> Tensor:
    return _add(product(inputs, params[f"{layer}.weight"], precision), params[f"{layer}.bias"])


def _add(products: Tensor, bias: Tensor) -> Tensor:
    """The sum, written so that a compiler does not make one call of both.

    `addmm` copies the bias for each row first: 10 µs of 90 for 256×256. Left alone, the sum fuses
    with the activation.
    """
    return products.sub(bias, alpha=-1)


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
