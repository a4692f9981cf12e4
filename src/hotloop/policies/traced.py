"""A policy as one torch module, from raw observations to the environment's actions, for tracing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from hotloop.policies.actor_critic import ActorCritic
from hotloop.policies.actors import Actor
from hotloop.policies.modules import ModuleActorCritic
from hotloop.policies.protocol import Network
from hotloop.policies.snapshot import PolicySnapshot
from hotloop.types import Array


class TracedPolicy(nn.Module):
    """The twin of `ActingPolicy.act` and `ActingPolicy.head`.

    Args:
        network: which networks.
        snapshot: their parameters, and how observations are scaled.
    """

    def __init__(self, network: Network, snapshot: PolicySnapshot) -> None:
        super().__init__()
        self._network = _with_parameters(network, snapshot)
        self._is_scaled = snapshot.obs_scale is not None
        if snapshot.obs_scale is not None:
            self._clip = float(snapshot.obs_scale.clip)
            self.register_buffer("mean", torch.from_numpy(snapshot.obs_scale.mean.copy()))
            self.register_buffer("std", torch.from_numpy(snapshot.obs_scale.std.copy()))
        self._spec = spec = network.action_spec
        if spec.kind == "box":
            for name in ("low", "high"):
                bound = np.asarray(getattr(spec, name), np.float32).reshape(spec.shape)
                self.register_buffer(name, torch.from_numpy(bound))
        self._is_squashed = False
        if isinstance(network, Actor) and network.is_continuous:
            self._is_squashed = True
            centre, half = network.action_scale
            self.register_buffer("action_centre", torch.from_numpy(centre))
            self.register_buffer("action_half", torch.from_numpy(half))  # `half` is a method

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        """Greedy action, head and, but for an actor, value.

        Args:
            obs: (B, *obs_shape), float32, or uint8 where the environment gives bytes.

        Returns:
            The action as the environment takes it, int64 or float32, (B, *action_shape); logits or
            means, or what an actor gives, float32, (B, H); the value, float32, (B,).
        """
        if self._is_scaled:
            mean, std = self.get_buffer("mean"), self.get_buffer("std")
            obs = ((obs.to(torch.float32) - mean) / std).clamp(-self._clip, self._clip)
        head, *value = self._network(obs)
        return self._action(head), head, *(x.reshape(-1) for x in value)

    def _action(self, head: Tensor) -> Tensor:
        spec = self._spec
        if spec.kind == "box":
            if self._is_squashed:
                half = self.get_buffer("action_half")
                head = torch.tanh(head[:, : len(half)]) * half + self.get_buffer("action_centre")
            means = head.reshape(-1, *spec.shape)
            return torch.clamp(means, self.get_buffer("low"), self.get_buffer("high"))
        if spec.kind == "discrete":
            return head.argmax(1) + spec.start
        starts = spec.starts or (0,) * len(spec.nvec)
        parts = zip(head.split(spec.nvec, 1), starts, strict=True)
        return torch.stack([part.argmax(1) + start for part, start in parts], 1)


class _Perceptron(nn.Module):
    """An `Actor` of torch's own layers."""

    def __init__(self, network: Actor, params: dict[str, Array]) -> None:
        super().__init__()
        self._policy = _layers(network, params, network.layer_names, ends_in_head=True)

    def forward(self, obs: Tensor) -> tuple[Tensor]:
        return (self._policy(obs.flatten(1).to(torch.float32)),)


class _Perceptrons(nn.Module):
    """An `ActorCritic` of torch's own layers, which every exporter knows."""

    def __init__(self, network: ActorCritic, params: dict[str, Array]) -> None:
        super().__init__()
        self._trunk = _layers(network, params, network.trunk, ends_in_head=False)
        self._policy = _layers(network, params, network.branch("policy"), ends_in_head=True)
        self._value = _layers(network, params, network.branch("value"), ends_in_head=True)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self._trunk(obs.flatten(1).to(torch.float32))
        return self._policy(hidden), self._value(hidden)


def _layers(
    network: ActorCritic | Actor,
    params: dict[str, Array],
    names: list[str],
    *,
    ends_in_head: bool,
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for name in names:
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        linear = nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T.copy()))
            linear.bias.copy_(torch.from_numpy(bias.copy()))
        layers += [linear, nn.Tanh() if network.activation == "tanh" else nn.ReLU()]
    return nn.Sequential(*(layers[:-1] if ends_in_head else layers))


def _with_parameters(network: Network, snapshot: PolicySnapshot) -> nn.Module:
    if isinstance(network, Actor):
        return _Perceptron(network, snapshot.params)
    if isinstance(network, ActorCritic):
        return _Perceptrons(network, snapshot.params)
    assert isinstance(network, ModuleActorCritic)
    module = network.construct(0)
    with torch.no_grad():
        for name, param in module.named_parameters():
            if param.requires_grad:
                param.copy_(torch.from_numpy(snapshot.params[name].copy()))
    return module
