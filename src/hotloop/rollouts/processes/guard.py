"""Termination of the processes that environments start, found by process group and inherited mark.

A worker leads a process group, which is killed with it. A process that has left the group, by
`setsid` or a double fork, still has the worker's token in its environment variable `HOTLOOP_POOL`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

MARK = "HOTLOOP_POOL"
# Time limit for killing marked processes: one may hang in the kernel.
_KILL_S = 2.0
# Time limit for the guard to end after the line `end`.
_GUARD_S = 1.0


def mark_value(token: str) -> str:
    """Return the variable's value for a new process: the enclosing pools' tokens, then `token`."""
    return " ".join(filter(None, (os.environ.get(MARK), token)))


def marked_pids(token: str) -> list[int]:
    """Return the readable processes whose environment contains a token."""
    needle, pids = token.encode(), list[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if needle in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids


def kill_marked(token: str, *, grace_until_s: float = 0.0) -> None:
    """Kill the processes that have a token, and those that they start in the meantime.

    Args:
        token: Token of one worker process, or of a whole pool.
        grace_until_s: Time of the monotonic clock, in seconds, until which they may end by
            themselves.
    """
    deadline_s = max(time.monotonic(), grace_until_s) + _KILL_S
    while (pids := marked_pids(token)) and time.monotonic() < deadline_s:
        if time.monotonic() >= grace_until_s:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


class Guard:
    """A small process that kills the workers and their descendants if the learner dies: it reads
    process groups from a pipe, and kills them if the pipe closes without the line `end`.

    Args:
        token: Token that all workers of the pool have.
    """

    # The guard's own processes do not have the token in their environment.
    _SCRIPT = r"""
groups=
while read -r word; do
    case "$word" in
    end) exit ;;
    -*)
        others=
        for group in $groups; do [ "$group" = "$word" ] || others="$others $group"; done
        groups=$others
        ;;
    *) groups="$groups -$word" ;;
    esac
done
[ -z "$groups" ] || kill -9 $groups
for again in 1 2 3 4 5 6 7 8 9; do
    found=
    for process in /proc/[0-9]*; do
        [ -r "$process/environ" ] && tr '\0' '\n' <"$process/environ" |
            grep -q "^HOTLOOP_POOL=.*$0" && found="$found ${process#/proc/}"
    done
    [ -n "$found" ] || exit
    kill -9 $found
done
"""

    def __init__(self, token: str) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT, token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin
        os.set_blocking(self._pipe.fileno(), False)  # a suspended guard must not block the learner

    def watch(self, pid: int) -> None:
        """Add a process group."""
        self._write(f"{pid}\n")

    def forget(self, pid: int) -> None:
        """Remove a process group that has ended, whose number may be reused."""
        self._write(f"-{pid}\n")

    def end(self) -> None:
        """End the guard without killing anything."""
        self._write("end\n")
        self._pipe.close()
        try:
            self._process.wait(_GUARD_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the guard was killed, or suspended with a full pipe
            self._pipe.write(line.encode())
