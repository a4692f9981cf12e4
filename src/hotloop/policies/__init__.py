"""Networks and how they act: one definition, a twin in torch that learns, another one that acts.

`ActorCritic` says which parameters there are and makes them, `Actor` and `Critics` for what learns
from replay; `make_network` does the same for a module of the user's own. `ActingPolicy` acts with
published parameters, perceptrons on NumPy alone. `hotloop.policies.networks` (torch, imported by
its own name) is what a learner differentiates.
"""

from __future__ import annotations

from hotloop.policies.acting import ActingPolicy
from hotloop.policies.actor_critic import ActorCritic
from hotloop.policies.actors import Actor
from hotloop.policies.critics import Critics
from hotloop.policies.factory import make_network, network_from_json
from hotloop.policies.heads import Exploration
from hotloop.policies.protocol import Network
from hotloop.policies.snapshot import ObsScale, PolicySnapshot

__all__ = [
    "ActingPolicy",
    "Actor",
    "ActorCritic",
    "Critics",
    "Exploration",
    "Network",
    "ObsScale",
    "PolicySnapshot",
    "make_network",
    "network_from_json",
]
