"""The state of a recording: whether its process runs, has ended or was killed."""

from __future__ import annotations

import os
from typing import Literal

from hotloop.base.processes import boot_id, is_running

RecordingState = Literal["complete", "running", "killed", "unknown"]


def recording_state(pid: int, ticks: int, host: str, boot: str) -> RecordingState:
    """Return the state of an unclosed recording, whose process started `ticks` after boot."""
    if host != os.uname().nodename or boot != boot_id():
        return "unknown"
    return "running" if is_running(pid, ticks) else "killed"
