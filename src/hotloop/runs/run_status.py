"""`status.json` of a run: how its last process ended, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hotloop.base import documents

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
