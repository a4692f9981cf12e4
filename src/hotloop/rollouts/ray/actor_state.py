"""The learner's record of an actor: its requests and its answers."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any, NamedTuple

from hotloop.rollouts.parts import PartQueue


class PartRequest(NamedTuple):
    """A request for rows `start` … `stop` − 1.

    Attributes:
        ref: Ray's reference to the part.
        version: Version of the acting policy.
        start: Number of the first row.
        stop: Number after the last row.
    """

    ref: Any
    version: int
    start: int
    stop: int


@dataclasses.dataclass(kw_only=True)
class ActorState:
    """The requests to an actor, and its answers.

    Attributes:
        next_row: First row that was not read.
        finished_row: Row after the last one that has arrived.
        requested_row: Row after the last one that was requested.
        parts: Parts that have arrived.
        limit: First row that must not be requested.
        last_episode: Maximum number of the episodes that run after the last row that has arrived.
        requests: Open requests, in order.
        unanswered: First and last row of parts to request again once the actor answers.
        setup: Reference to the answer to its setup. None: it has arrived.
        setup_timeout_s: Time limit of the setup. None: no limit.
        pid, node: Process and node of the actor, once it has answered to the setup.
        started_at_s: Time at which the setup or the oldest open request probably started.
        max_part_s: Maximum duration of a part.
        silent_since_s: Time since which the actor does not answer. None: it answers.
        checked_at_s: Time of the last check of a silent actor, or of the warning of a slow setup.
    """

    next_row: int
    finished_row: int
    requested_row: int
    parts: PartQueue
    limit: int = 0
    last_episode: int = -1
    requests: deque[PartRequest] = dataclasses.field(default_factory=deque)
    unanswered: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    setup: Any = None
    setup_timeout_s: float | None = None
    pid: int = 0
    node: str = ""
    started_at_s: float = 0.0
    max_part_s: float = 0.0
    silent_since_s: float | None = None
    checked_at_s: float = 0.0
