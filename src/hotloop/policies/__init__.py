"""Networks and how they act: one definition, a torch twin that learns, a torch-free twin that acts.

`ActorCritic` says which parameters there are and makes them; `ActingPolicy` acts with published
ones on NumPy alone; `hotloop.policies.networks` (torch, imported by its own name) is what a learner
differentiates.
"""

from __future__ import annotations

from hotloop.policies.acting import ActingPolicy
from hotloop.policies.actor_critic import ActorCritic, PolicySnapshot

__all__ = ["ActingPolicy", "ActorCritic", "PolicySnapshot"]
