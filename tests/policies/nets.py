"""User-defined networks with names such as `tests.policies.nets:Net`, and their spaces."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from hotloop.envs.spaces import ActionSpec, ObsSpec


class Spaces(NamedTuple):
    """The observation and action spaces of a network."""

    obs_spec: ObsSpec
    action_spec: ActionSpec


class Net(nn.Module):
    """A trunk and two heads, for flat observations."""

    def __init__(self, obs_shape, head_size):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(obs_shape), 16), nn.SiLU(), nn.LayerNorm(16)
        )
        self.policy = nn.Linear(16, head_size)
        self.value = nn.Linear(16, 1)

    def forward(self, obs):
        features = self.trunk(obs)
        return self.policy(features), self.value(features)


class Images(nn.Module):
    """Convolutions on uint8 images with lazy layers. The value has shape (B,)."""

    def __init__(self, obs_shape, head_size):
        super().__init__()
        self.conv = nn.Conv2d(obs_shape[-1], 4, 3, stride=2)
        self.policy = nn.LazyLinear(head_size)
        self.value = nn.LazyLinear(1)

    def forward(self, obs):
        assert obs.dtype == torch.uint8
        features = self.conv(obs.permute(0, 3, 1, 2) / 255.0).relu().flatten(1)
        return self.policy(features), self.value(features)[:, 0]


class WithConstants(Net):
    """A network with a scale in a buffer and a frozen layer."""

    def __init__(self, obs_shape, head_size):
        super().__init__(obs_shape, head_size)
        self.register_buffer("scale", torch.randn(head_size))
        self.frozen = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, obs):
        features = self.frozen(self.trunk(obs))
        return self.policy(features) * self.scale, self.value(features)


def make_net(obs_shape, head_size):
    return Net(obs_shape, head_size)


class ActorNet(nn.Module):
    """A network with a policy head only."""

    def __init__(self, obs_shape, head_size):
        super().__init__()
        layers = nn.Linear(math.prod(obs_shape), 16), nn.SiLU(), nn.Linear(16, head_size)
        self.layers = nn.Sequential(nn.Flatten(), *layers)

    def forward(self, obs):
        return self.layers(obs)


class CriticNet(nn.Module):
    """The value of an action, scaled by a buffer."""

    def __init__(self, obs_shape, action_size):
        super().__init__()
        self.hidden = nn.Linear(math.prod(obs_shape) + action_size, 16)
        self.value = nn.Linear(16, 1)
        self.register_buffer("scale", torch.full((1,), 2.0))

    def forward(self, obs, action):
        hidden = self.hidden(torch.cat([obs.flatten(1), action], 1)).tanh()
        return self.value(hidden) * self.scale


no_factory = 3
