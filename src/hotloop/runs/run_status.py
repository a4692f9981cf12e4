"""The last process of a run: its recording, and `status.json`, how it ended and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hotloop.base import documents
from hotloop.timing import Recording

STATUS_FILE = "status.json"


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The end of a run's last process.

    Attributes:
        status: `finished`, `stopped` by a rule, a callback or a signal, or `failed`.
        reason: why it stopped or failed, "" if it is finished.
        ended_at: the time, ISO 8601.
    """

    status: str
    reason: str
    ended_at: str


def read_status(path: Path) -> RunStatus | None:
    """Return how the run in a directory ended. None if it runs, was killed, or is damaged."""
    try:
        return documents.record(RunStatus, documents.read(path / STATUS_FILE))
    except (OSError, ValueError):
        return None


def last_learner(recordings: Iterable[Recording]) -> Recording | None:
    """Return the recording of a run's last learner, None if there is none.

    A resumed run has one for each of its processes. `start_ns` restarts at 0 with each boot.
    """
    learners = [recording for recording in recordings if recording.component == "learner"]
    return max(learners, key=lambda x: x.start_ns + x.wall_offset_ns, default=None)
