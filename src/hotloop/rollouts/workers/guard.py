"""The end of what environments start: known by its process group, and by a mark that it inherits.

A worker's process leads a group, which is killed with it. What left that group, by `setsid` or a
double fork, still has the worker's token in its environment variable `HOTLOOP_POOL`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

MARK = "HOTLOOP_POOL"
# Killing what is marked ends after so long, whatever is left: a process may hang in the kernel.
_ENOUGH_S = 2.0
# How long the guard may take to end once it is told to.
_GUARD_S = 1.0


def mark_of(token: str) -> str:
    """The variable's value for a new process: a token, after those of the pools around it."""
    return " ".join(filter(None, (os.environ.get(MARK), token)))


def marked(token: str) -> list[int]:
    """The living processes, of those that may be looked into, whose environment has a token."""
    needle, found = token.encode(), list[int]()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if needle in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def end_marked(token: str, *, grace_until: float = 0.0) -> None:
    """Kill the processes that have a token, and those that they start meanwhile.

    Args:
        token: of a worker's process, or of all of a pool.
        grace_until: seconds of the monotonic clock; until then they may end by themselves.
    """
    enough = max(time.monotonic(), grace_until) + _ENOUGH_S
    while (found := marked(token)) and time.monotonic() < enough:
        if time.monotonic() >= grace_until:
            for pid in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


class Guard:
    """A tiny process that kills the workers, and what their environments started, if the learner
    dies: it reads their groups' numbers from a pipe, and acts when that ends without a word.

    Args:
        token: that all workers of the pool have.
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
        os.set_blocking(self._pipe.fileno(), False)  # nobody waits for a guard that is stopped

    def watch(self, pid: int) -> None:
        """Look after one more process group."""
        self._write(f"{pid}\n")

    def forget(self, pid: int) -> None:
        """A process group is gone: its number may become another's."""
        self._write(f"-{pid}\n")

    def end(self) -> None:
        """There is nobody left to look after."""
        self._write("end\n")
        self._pipe.close()
        try:
            self._process.wait(_GUARD_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError):  # it was killed, or is stopped and its pipe is full
            self._pipe.write(line.encode())
