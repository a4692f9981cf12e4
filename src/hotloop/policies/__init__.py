"""Policies: descriptions of networks, each with one implementation to learn and one to act.

A `Network` consists of spaces, layers (an encoder with perceptrons, or the user's module) and a
head. `actor_critic`, `actor` and `critics` build networks. `ActingPolicy` acts with published
parameters, and needs only NumPy for perceptrons. `TrainedPolicy` acts on observations of users.
`hotloop.policies.forward` has the differentiable networks. Import it by name, since it imports
torch.
"""

from __future__ import annotations

from hotloop.policies.acting import ActingPolicy
from hotloop.policies.critics import Critics, critics
from hotloop.policies.encoders import ENCODERS, Encoder
from hotloop.policies.exploration import (
    EpisodeNoise,
    EpsilonGreedy,
    Exploration,
    GaussianNoise,
    OrnsteinUhlenbeckNoise,
    PinkNoise,
)
from hotloop.policies.heads import Head
from hotloop.policies.policy import TrainedPolicy
from hotloop.policies.snapshot import ObsScale, PolicySnapshot
from hotloop.policies.spec import Network, actor, actor_critic, network_from_json

__all__ = [
    "ENCODERS",
    "ActingPolicy",
    "Critics",
    "Encoder",
    "EpisodeNoise",
    "EpsilonGreedy",
    "Exploration",
    "GaussianNoise",
    "Head",
    "Network",
    "ObsScale",
    "OrnsteinUhlenbeckNoise",
    "PinkNoise",
    "PolicySnapshot",
    "TrainedPolicy",
    "actor",
    "actor_critic",
    "critics",
    "network_from_json",
]
