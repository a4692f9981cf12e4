"""Recording of a program that already runs, with py-spy."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from hotloop.base import documents
from hotloop.base.redaction import redacted
from hotloop.errors import ConfigError, ProfileError
from hotloop.profiler.collect import pyspy

# The recording in the directory of such a profile.
ATTACHED_FILE = "py-spy.json"
MISSING = (
    "attached to a running program with py-spy: spans, causes of waits, memory and the time before "
    "are unknown, and waiting counts as on a core; `hotloop profile SCRIPT` records them"
)
_POLL_S = 0.1


def record_process(pid: int, directory: Path, *, seconds: float | None = None) -> None:
    """Record a process and its children until it ends, the time is over, or Ctrl-C.

    Args:
        pid: the process.
        directory: an empty directory for the profile.
        seconds: maximum time; None for no limit.

    Raises:
        ConfigError: there is no such process.
        ProfileError: py-spy is missing, may not trace the process, or has failed.
    """
    command = check_process(pid)
    start = time.monotonic()
    metadata = {
        "command": redacted(command),
        "problems": [MISSING],
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "start_ns": time.monotonic_ns(),
    }
    spy = pyspy.attach(pid, directory / ATTACHED_FILE, with_waits=True)
    if spy.is_running:
        limit = "" if seconds is None else f" for {seconds:g} s"
        print(f"hotloop profile: {MISSING}. Recording{limit}, Ctrl-C ends it", file=sys.stderr)
    try:
        while spy.is_running and (seconds is None or time.monotonic() - start < seconds):
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        pass
    spy.interrupt()
    problem = spy.stop()
    if problem is not None:
        with suppress(OSError):  # the directory is not empty
            directory.rmdir()
        raise ProfileError(f"process {pid} was not recorded: {problem}")
    metadata["end_ns"] = time.monotonic_ns()
    text = json.dumps(documents.sealed(metadata), indent=1)
    (directory / "profile.json").write_text(text, encoding="utf-8")


def check_process(pid: int) -> list[str]:
    """Return the command of a process, as far as the system reports it.

    Raises:
        ConfigError: there is no such process.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise ConfigError(
            f"expected the id of a running process, got `--pid {pid}`: `pgrep -fa python` lists "
            "the running ones"
        ) from None
    except PermissionError:
        pass  # py-spy's own error names what is needed
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ["process", str(pid)]
    arguments = content.decode("utf-8", "replace").rstrip("\0").split("\0")
    return ["python", *arguments[1:]] if len(arguments) > 1 else ["process", str(pid)]
