"""The environments of one actor, as the learner knows them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from hotloop.rollouts.ray.actor import Part
from hotloop.rollouts.state import History
from hotloop.types import Array

# Parts of a worker that are made or wait to be taken, where it waits for nobody.
MOST_AHEAD = 2


class Group:
    """What the learner knows of an actor.

    Attributes:
        making: parts that were asked for, with the version that makes them, in order.
        made: parts that have come, in order.
        is_cut: whether what is taken next follows on nothing.
    """

    def __init__(self, num_envs: int, first_episode: int, num_rows: int, action: Array) -> None:
        self.making: deque[tuple[Any, int]] = deque()
        self.made: deque[Part] = deque()
        self.is_cut = False
        self.first_row = self.taken = 0
        self.next_episode = first_episode
        self.running: list[tuple[int, int]] = []
        self.has_ended = np.ones(num_envs, np.bool_)
        self.obs: Array | None = None
        self.memory = np.zeros((num_envs, 0), np.float32)
        self.history = History(MOST_AHEAD * num_rows, action)

    @property
    def num_ahead(self) -> int:
        """Parts that are made, or are in the making."""
        return len(self.making) + len(self.made)
