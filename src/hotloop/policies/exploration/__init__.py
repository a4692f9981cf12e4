"""Exploration during collection: it changes the actions that a head samples.

To add a kind, write a frozen dataclass that derives from `Exploration`, in any module that can be
imported, and return an instance from the `exploration` of an algorithm. Acting processes receive
its name and its fields.
"""

from __future__ import annotations

from hotloop.policies.exploration.base import Exploration, exploration_from_json
from hotloop.policies.exploration.epsilon_greedy import EpsilonGreedy
from hotloop.policies.exploration.gaussian import GaussianNoise

__all__ = ["EpsilonGreedy", "Exploration", "GaussianNoise", "exploration_from_json"]
