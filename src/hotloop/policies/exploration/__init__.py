"""Exploration during collection: it changes the actions that a head samples.

To add a kind, write a frozen dataclass that derives from `Exploration`, or from `EpisodeNoise` if
its noise is correlated within an episode, in any module that can be imported. Return an instance
from the `exploration` of an algorithm. Acting processes receive its name and its fields.
"""

from __future__ import annotations

from hotloop.policies.exploration.base import Exploration, exploration_from_json
from hotloop.policies.exploration.episode_noise import EpisodeNoise
from hotloop.policies.exploration.epsilon_greedy import EpsilonGreedy
from hotloop.policies.exploration.gaussian import GaussianNoise
from hotloop.policies.exploration.ornstein_uhlenbeck import OrnsteinUhlenbeckNoise
from hotloop.policies.exploration.pink import PinkNoise

__all__ = [
    "EpisodeNoise",
    "EpsilonGreedy",
    "Exploration",
    "GaussianNoise",
    "OrnsteinUhlenbeckNoise",
    "PinkNoise",
    "exploration_from_json",
]
