"""The process of a worker, or of the inference process, as the learner sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import NamedTuple

from hotloop.rollouts.workers.channel import Channel, Closed
from hotloop.rollouts.workers.guard import MARK, mark_of
from hotloop.rollouts.workers.messages import INFERENCE, Failure, Greeting, Ready

IN_A_STEP = "in a step"
# One core each, unless the user has said otherwise: on a core of its own none is faster with two.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")

# Not `-m`, which searches the current directory first: where the learner does, PYTHONPATH says so.
_PROGRAM = """
import sys
sys.path.remove("")
from runpy import run_module
run_module("hotloop.rollouts.{}", run_name="__main__", alter_sys=True)
"""


class Standing(NamedTuple):
    """Where a worker stands that has something to do.

    Attributes:
        progress: what it has written into its words: as long as it goes on, they change.
        where: for messages.
        may_be_long: it may be importing, building or compiling something.
    """

    progress: tuple[int, ...]
    where: str
    may_be_long: bool = False


class WorkerProcess:
    """One process.

    Attributes:
        number: of the worker that it is, or `INFERENCE`.
        name: what messages call it.
        channel: to it.
        pid: its process and its process group.
        token: in its environment, and in that of the processes that its environments start.
        ready: what it said of its environments; None: nothing yet.
        is_set_up: whether it was told what to collect.
        first_row: from where on; of the inference process, answers that others gave before it.
        error: the message that it ended with.
    """

    def __init__(self, greeting: Greeting, token: str) -> None:
        self.number = greeting.worker
        is_worker = self.number != INFERENCE
        self.name = f"worker {self.number}" if is_worker else "the inference process"
        self.token = token
        self.ready: Ready | None = None
        self.is_set_up = False
        self.first_row = 0
        self.error: Failure | None = None
        self._standing: Standing | None = None
        self._stood_s = 0.0
        self.channel, theirs = Channel.pair()
        # What is first for programs started from here, a profiler's own modules, stays first.
        paths = [os.environ.get("PYTHONPATH", ""), *(path or os.getcwd() for path in sys.path)]
        environment = {
            **dict.fromkeys(_THREADS, "1"),
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **({"HOTLOOP_WORKER": str(self.number)} if is_worker else {}),
            MARK: mark_of(token),
        }
        module = "workers.worker" if is_worker else "inference.program"
        program = [sys.executable, "-c", _PROGRAM.format(module)]
        try:
            self._process = subprocess.Popen(
                [*program, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno(), *greeting.bells],
                start_new_session=True,  # Ctrl-C is the learner's to answer
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        # Told of its end even where a process that it started holds its channel open.
        self.pidfd = -1
        with contextlib.suppress(OSError, AttributeError):  # an old kernel, or a strict sandbox
            self.pidfd = os.pidfd_open(self.pid)
        with contextlib.suppress(Closed):  # who reads will hear of it
            self.channel.send(greeting)

    def kill(self) -> None:
        """End it at once, and the processes of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for its end; negative: the signal that ended it."""
        code = self._process.wait()
        self.kill()  # what its environments left behind
        self.channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return code

    def wait(self, timeout_s: float) -> bool:
        """Whether it ends within so many seconds."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stood_s(self, standing: Standing | None, passed_s: float) -> float:
        """Seconds that it has not gone on for although it has something to do.

        Args:
            standing: where it stands now; None: it has nothing to do.
            passed_s: since this was asked for the last time.
        """
        has_stood = standing is not None and standing == self._standing
        self._standing = standing
        self._stood_s = self._stood_s + passed_s if has_stood else 0.0
        return self._stood_s
