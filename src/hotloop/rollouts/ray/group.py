"""The environments of one actor, as the learner knows them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop.rollouts.state import History
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.rollouts.ray.actor import Part

# Parts of a worker that are made or wait to be taken, where it waits for nobody.
MOST_AHEAD = 2


class Asked(NamedTuple):
    """A part that was asked for.

    Attributes:
        ref: Ray's reference to it.
        version: that makes it.
        number: of the part, counted for each actor.
    """

    ref: Any
    version: int
    number: int


class Group:
    """What the learner knows of an actor.

    Attributes:
        making: parts that were asked for, in order.
        made: parts that have come, in order.
        next_part: number of the part to ask for next.
        unanswered: numbers of parts that are to be asked for again once the actor answers.
        is_cut: whether what is taken next follows on nothing.
        pid, node: of its process; None: no part has come yet.
        began_s, longest_s: when its oldest part that is in the making was begun, as far as the
            learner knows; how long one took at most.
        silent_s: since when it does not answer; None: it does.
        asked_s: when it was asked after.
    """

    def __init__(self, num_envs: int, first_episode: int, num_rows: int, action: Array) -> None:
        self.making: deque[Asked] = deque()
        self.made: deque[Part] = deque()
        self.next_part = 0
        self.unanswered: list[int] = []
        self.pid: int | None = None
        self.node = ""
        self.began_s = self.longest_s = self.asked_s = 0.0
        self.silent_s: float | None = None
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
        return len(self.making) + len(self.made) + len(self.unanswered)
