"""The learner's handle on the process of a worker or of the inference process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import NamedTuple

from hotloop.base.children import python_command, search_path
from hotloop.rollouts.processes.channel import Channel, ChannelClosed
from hotloop.rollouts.processes.guard import MARK, mark_value
from hotloop.rollouts.processes.messages import INFERENCE, CallResult, Failure, Greeting, Ready

IN_A_STEP = "in a step"
# The modules that the processes run.
WORKER_PROGRAM = "hotloop.rollouts.processes.worker"
INFERENCE_PROGRAM = "hotloop.rollouts.inference.server"
# One thread per process unless set by the user: more threads are no faster on one core.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Activity(NamedTuple):
    """The current work of a process that is not idle.

    Attributes:
        progress: Counters of the process, which change as long as it makes progress.
        phase: Description of the work, for messages.
        may_take_long: Whether the process may import, build or compile something meanwhile.
    """

    progress: tuple[int, ...]
    phase: str
    may_take_long: bool = False


class WorkerProcess:
    """One worker process.

    Attributes:
        number: Number of the worker, or `INFERENCE`.
        name: Name in messages.
        channel: Channel to the process.
        pid: Number of the process and of its process group.
        token: Token in the environment of the process and of its descendants.
        ready: Description of its environments. None until it arrives.
        is_set_up: Whether the process has received its setup.
        first_row: First row of this process. For the inference process, the number of answers by
            earlier processes.
        error: Final error of the process.
        is_called: Whether the process has received the current call of its environments.
        call_result: Result of this call. None until it arrives.
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
        self.is_called = False
        self.call_result: CallResult | None = None
        self._activity: Activity | None = None
        self._stalled_s = 0.0
        self.channel, remote_end = Channel.pair()
        environment = {
            **dict.fromkeys(_THREADS, "1"),
            **os.environ,
            "PYTHONPATH": search_path(),
            **({"HOTLOOP_WORKER": str(self.number)} if is_worker else {}),
            MARK: mark_value(token),
        }
        # Start the process.
        command = python_command(WORKER_PROGRAM if is_worker else INFERENCE_PROGRAM)
        try:
            self._process = subprocess.Popen(
                [*command, str(remote_end.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[remote_end.fileno(), *greeting.wakeup_fds],
                start_new_session=True,  # only the learner handles Ctrl-C
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            remote_end.close()
        self.pid = self._process.pid
        # Detects its end even if a process that it started keeps the channel open.
        self.pidfd = -1
        with contextlib.suppress(OSError, AttributeError):  # an old kernel or a strict sandbox
            self.pidfd = os.pidfd_open(self.pid)
        with contextlib.suppress(ChannelClosed):  # the next read reports it
            self.channel.send(greeting)

    def kill(self) -> None:
        """Kill the process and its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the process, and return its exit code, or minus the signal that ended it."""
        exit_code = self._process.wait()
        self.kill()  # its environments may have left processes
        self.channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        return exit_code

    def wait(self, timeout_s: float) -> bool:
        """Return whether the process ends within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def update_stalled_s(self, activity: Activity | None, elapsed_s: float) -> float:
        """Return the seconds for which a busy process has made no progress.

        Args:
            activity: Current activity. None if the process is idle.
            elapsed_s: Time since the last call.
        """
        is_stalled = activity is not None and activity == self._activity
        self._activity = activity
        self._stalled_s = self._stalled_s + elapsed_s if is_stalled else 0.0
        return self._stalled_s
