"""The state of a recording: whether its process runs, has ended or was killed."""

from __future__ import annotations

import os
from typing import Literal

from hotloop.system.processes import boot_id, process_start, process_state

RecordingState = Literal["complete", "running", "killed", "unknown"]


def recording_state(pid: int, ticks: int, host: str, boot: str) -> RecordingState:
    """Return the state of an unclosed recording. `ticks` is the process's start since boot."""
    if host != os.uname().nodename or boot != boot_id():
        return "unknown"
    return "running" if _is_running(pid, ticks) else "killed"


def _is_running(pid: int, ticks: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    # A zombie has ended, but its parent has not waited for it.
    return process_start(pid) == ticks and process_state(pid) not in ("Z", "X")
