"""Networks and how they act: one description, a twin in torch that learns, another one that acts.

A `Network` is made of spaces, a body (perceptrons behind an encoder, or a module of the user's own)
and a head; `actor_critic`, `actor` and `critics` put them together. `ActingPolicy` acts with
published parameters, perceptrons on NumPy alone. `hotloop.policies.learned` (torch, imported by its
own name) is what a learner differentiates.
"""

from __future__ import annotations

from hotloop.policies.acting import ActingPolicy
from hotloop.policies.critics import Critics, critics
from hotloop.policies.encoders import ENCODERS, Encoder
from hotloop.policies.heads import HEADS, Exploration, Head
from hotloop.policies.network import Network, actor, actor_critic, network_from_json
from hotloop.policies.snapshot import ObsScale, PolicySnapshot

__all__ = [
    "ENCODERS",
    "HEADS",
    "ActingPolicy",
    "Critics",
    "Encoder",
    "Exploration",
    "Head",
    "Network",
    "ObsScale",
    "PolicySnapshot",
    "actor",
    "actor_critic",
    "critics",
    "network_from_json",
]
