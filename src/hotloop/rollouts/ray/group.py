"""The learner's record of one actor and its environments."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop.rollouts.state import ActionHistory
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.rollouts.ray.actor import FragmentPart

# Maximum number of parts of a worker that are requested or ready, if it need not wait.
MAX_AHEAD = 2


class PartRequest(NamedTuple):
    """A request for a part of a fragment.

    Attributes:
        ref: Ray's reference to the part.
        version: Version of the acting policy.
        number: Number of the part, counted for each actor.
    """

    ref: Any
    version: int
    number: int


class ActorGroup:
    """The environments of one actor, and the parts that it delivers.

    Attributes:
        requests: Open requests, in order.
        parts: Parts that have arrived, in order.
        next_part: Number of the next part to request.
        unanswered: Numbers of parts to request again once the actor answers.
        is_cut: Whether the next row's predecessor was lost.
        pid, node: Process and node of the actor. `pid` is None before its first part.
        started_at_s: Time at which the oldest open request probably started.
        max_part_s: Maximum duration of a part.
        silent_since_s: Time since which the actor does not answer. None: it answers.
        checked_at_s: Time of the last check of a silent actor.
    """

    def __init__(self, num_envs: int, first_episode: int, num_rows: int, action: Array) -> None:
        self.requests: deque[PartRequest] = deque()
        self.parts: deque[FragmentPart] = deque()
        self.next_part = 0
        self.unanswered: list[int] = []
        self.pid: int | None = None
        self.node = ""
        self.started_at_s = self.max_part_s = self.checked_at_s = 0.0
        self.silent_since_s: float | None = None
        self.is_cut = False
        self.first_row = self.next_row = 0
        self.next_episode = first_episode
        self.running: list[tuple[int, int]] = []
        self.has_ended = np.ones(num_envs, np.bool_)
        self.obs: Array | None = None
        self.memory = np.zeros((num_envs, 0), np.float32)
        self.history = ActionHistory(MAX_AHEAD * num_rows, action)

    @property
    def num_ahead(self) -> int:
        """Number of parts that have arrived or are requested."""
        return len(self.requests) + len(self.parts) + len(self.unanswered)
