"""The supervisor that starts, watches, replaces and ends the processes of workers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import selectors
import signal
import time
from typing import TYPE_CHECKING

from hotloop.base.memory import available_memory
from hotloop.base.processes import process_state
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.rollouts.failures import Failures, compare_spaces, traceback_cause, worker_error
from hotloop.rollouts.inference.wakeups import create_wakeup_fd
from hotloop.rollouts.processes.channel import ChannelClosed
from hotloop.rollouts.processes.guard import Guard, kill_marked
from hotloop.rollouts.processes.messages import (
    INFERENCE,
    CallResult,
    Failure,
    Greeting,
    Ready,
    WorkerResumed,
)
from hotloop.rollouts.processes.process import IN_A_STEP, Activity, WorkerProcess

if TYPE_CHECKING:
    from hotloop.rollouts.processes.transport import ProcessTransport

# Time for workers to close their environments and end, before they are killed.
_GRACE_S = 3.0
# Minimum time limit for starting Python and making environments.
_START_S = 60.0
# Number of attempts to start a process that is killed or hangs before the run begins.
_MAX_STARTS = 3
# Minimum interval between checks for stalled workers.
_CHECK_S = 0.2
_STARTING_UP = Activity((), "while it made its environments", may_take_long=True)


class WorkerSupervisor:
    """Starts the workers, and replaces those that die or stop making progress.

    Args:
        greeting: Greeting of worker 0.
        num_workers: W.
        central: Whether there is an inference process.
        step_timeout_s, max_failures: See `WorkerPool`.

    Attributes:
        greeting: Greeting of worker 0.
        ready: Description of worker 0's environments.
        workers: Processes of the workers.
        inference: The inference process. None if workers act by themselves.
        transport: The transport of a rollout, once the rollout has begun.
        failures: Failures of environments and processes.

    Raises:
        ConfigError: No more processes can be started.
    """

    def __init__(
        self,
        greeting: Greeting,
        num_workers: int,
        *,
        central: bool,
        step_timeout_s: float | None,
        max_failures: int,
    ) -> None:
        self.greeting = greeting
        self.ready: Ready
        self.transport: ProcessTransport | None = None
        self.workers: list[WorkerProcess] = []
        self.inference: WorkerProcess | None = None
        self.failures = Failures(max_failures)
        self._num_workers = num_workers
        self._step_timeout_s = step_timeout_s
        self._selector = selectors.DefaultSelector()
        self._checked_at_s = 0.0
        self._token = secrets.token_hex(8)
        try:
            self._guard = Guard(self._token)
        except OSError as error:
            raise ConfigError(
                f"/bin/sh can't be started ({error}), which ends workers whose learner is killed: "
                "raise the limit on processes (`ulimit -u`), or set `backend` 'inline'"
            ) from error
        # One for the inference process, then one for each worker.
        self._wakeup_fds: list[int] = []
        try:
            for _ in range(1 + num_workers if central else 0):
                self._wakeup_fds.append(create_wakeup_fd())
        except OSError as error:
            self.close()
            raise ConfigError(
                f"{1 + num_workers} event descriptors can't be created ({error}): use fewer "
                "workers, or raise the limit on open files (`ulimit -n`)"
            ) from error

    @property
    def start_timeout_s(self) -> float | None:
        """Time limit in seconds for an activity that may take long; see `Activity`."""
        return None if self._step_timeout_s is None else max(_START_S, self._step_timeout_s)

    def start(self) -> None:
        """Start the workers, and wait until their environments are made.

        Raises:
            HotloopError: See `WorkerPool`.
        """
        # Start the first worker alone, to report an environment's error once and to measure the
        # memory of a worker.
        self._start(0)
        if self._wakeup_fds:
            self._start(INFERENCE)
        self._wait_until_ready()
        assert self.workers[0].ready is not None
        self.ready = self.workers[0].ready
        self._check_memory()
        for number in range(1, self._num_workers):
            self._start(number)
        self._wait_until_ready()
        for worker in self.workers[1:]:
            assert worker.ready is not None
            compare_spaces(self.ready, worker.ready, worker.number)

    def poll(self, timeout_s: float) -> None:
        """Wait for messages of the workers, and replace dead and stalled workers.

        Raises:
            HotloopError: A worker's environments can't be made, or something failed too often.
        """
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            if not any(worker is process for process in self._processes()):
                continue  # an earlier iteration has replaced this process
            if self._drain(worker) and key.fileobj == worker.pidfd:
                self._replace(worker)
        self._replace_stalled()

    def nudge(self, number: int) -> None:
        """Wake a worker to read its words."""
        with contextlib.suppress(ChannelClosed):  # `poll` detects its end
            self.workers[number].channel.nudge()

    def close(self) -> None:
        """End the workers and their descendants, and kill those that still run after 3 s."""
        for worker in self._processes():
            worker.channel.close()
        deadline_s = time.monotonic() + _GRACE_S
        for worker in self._processes():
            if not worker.wait(max(0.0, deadline_s - time.monotonic())):
                worker.kill()
        for worker in self._processes():
            worker.reap()
        for fd in self._wakeup_fds:
            os.close(fd)
        self._wakeup_fds.clear()
        kill_marked(self._token, grace_until_s=deadline_s)
        self._guard.end()
        self._selector.close()

    def _processes(self) -> list[WorkerProcess]:
        return [*self.workers, *([] if self.inference is None else [self.inference])]

    def _start(self, number: int, first_episode: int | None = None) -> None:
        """Start a worker, or the inference process, and watch it. It may replace one that ended."""
        fds, extra = list(self._wakeup_fds), {"worker": number, "component": "inference-0"}
        if number != INFERENCE:
            fds = [fds[1 + number], fds[0]] if fds else []
            env = {**self.greeting.env, "first_env": number * self.greeting.num_envs}
            if first_episode is not None:  # EnvPool is seeded at its creation
                env["first_episode"] = first_episode
            extra |= {"component": f"worker-{number}", "env": env}
            extra["restarts"] = self.failures.restarts[number]
        greeting = dataclasses.replace(self.greeting, wakeup_fds=fds, **extra)
        try:
            token = f"{self._token}-{secrets.token_hex(4)}"
            worker = WorkerProcess(greeting, token)
        except OSError as error:
            name = "the inference process"
            if number != INFERENCE:
                name = f"worker {number} of {self._num_workers}"
            raise ConfigError(
                f"{name} can't be started ({error}): use fewer "
                "workers, or raise the limits on processes and open files (`ulimit -u`, `-n`)"
            ) from error
        self._guard.watch(worker.pid)
        if number == INFERENCE:
            self.inference = worker
        elif number < len(self.workers):
            self.workers[number] = worker
        else:
            self.workers.append(worker)
        self._selector.register(worker.channel.socket, selectors.EVENT_READ, worker)
        if worker.pidfd >= 0:
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
        if number == INFERENCE and self.transport is not None:
            self.transport.set_up(worker)

    def _wait_until_ready(self) -> None:
        while any(worker.ready is None for worker in self.workers):
            self.poll(_CHECK_S)

    def _drain(self, worker: WorkerProcess) -> bool:
        """Process the messages of a worker. Return False if its process was replaced."""
        while True:
            try:
                packet = worker.channel.receive(block=False)
            except ChannelClosed:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(worker.channel.socket)
                if worker.pidfd < 0:
                    self._replace(worker)
                    return False
                return True
            if packet is None:
                return True
            message = packet.message
            if isinstance(message, Ready):
                worker.ready = message
                if self.transport is not None:
                    compare_spaces(self.ready, message, worker.number)
                    self.transport.set_up(worker)
            elif isinstance(message, WorkerResumed):
                assert self.transport is not None
                envs, obs = message.restarted_envs, packet.arrays["obs"]
                self.transport.on_resumed(worker.number, envs, obs, message.policy)
            elif isinstance(message, CallResult):
                worker.call_result = message
            elif isinstance(message, Failure) and not message.is_final:
                self.failures.count_env(worker.number, message.message, message.traceback)
            elif isinstance(message, Failure):
                worker.error = message
                worker.kill()  # closing failed environments may hang

    def _replace_stalled(self) -> None:
        """Replace the busy processes that have made no progress for too long."""
        now = time.monotonic()
        elapsed_s, start_s = now - self._checked_at_s, self.start_timeout_s
        if self._step_timeout_s is None or start_s is None or elapsed_s < _CHECK_S:
            return
        self._checked_at_s = now
        row_s = self._step_timeout_s * self.greeting.num_envs  # one step of each in sequence
        for worker in self._processes():
            activity = _STARTING_UP
            if worker.ready is not None or worker.number == INFERENCE:
                activity = None if self.transport is None else self.transport.activity(worker)
            timeout_s = start_s if activity is not None and activity.may_take_long else row_s
            min_timeout_s = min(row_s, timeout_s)
            # A suspended machine, or a long update in this process, must not count in full.
            stalled_s = worker.update_stalled_s(activity, min(elapsed_s, min_timeout_s / 2))
            if activity is None or stalled_s < min_timeout_s:
                continue
            is_stopped = process_state(worker.pid) in ("T", "t")
            limit_s = min_timeout_s if is_stopped else timeout_s
            if stalled_s >= limit_s:
                worker.kill()
                self._replace(worker, self._describe_stall(activity, limit_s, is_stopped))

    def _describe_stall(self, activity: Activity, limit_s: float, is_stopped: bool) -> str:
        """Return the reason for replacing a stalled process."""
        hint = "a signal has stopped it" if is_stopped else "a deadlock?"
        text = f"it made no progress for {limit_s:g} s {activity.phase}"
        if activity.phase == IN_A_STEP:
            suffix = f" for each of {self.greeting.num_envs}" if self.greeting.num_envs > 1 else ""
            text = f"a step of its environments took more than {self._step_timeout_s:g} s{suffix}"
        return f"{text} (`step_timeout_s`); {hint}"

    def _replace(self, worker: WorkerProcess, reason: str | None = None) -> None:
        """Start a new process in place of one that ended."""
        # Raises HotloopError if environments can't be made, or something failed too often.
        for fileobj in (worker.channel.socket, worker.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(fileobj)
        code, number = worker.reap(), worker.number
        kill_marked(worker.token)
        self._guard.forget(worker.pid)
        if reason is None:
            end = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            reason = f"its process ended with {end}" + "; out of memory?" * (
                code == -signal.SIGKILL
            )
        has_begun = self.transport is not None
        error = worker.error or Failure(message=reason)
        # At the start only a process that was killed is replaced: other errors would repeat.
        if not error.is_recoverable or not (has_begun or (worker.error is None and code < 0)):
            raise worker_error(
                worker.name, error.type, error.message, is_starting=not has_begun
            ) from traceback_cause(error.traceback)
        if self.transport is not None and number != INFERENCE:
            self._start(
                number, self.transport.on_worker_lost(number, error.message, error.traceback)
            )
            return
        self.failures.restarts[number] += 1
        if not has_begun and self.failures.restarts[number] == _MAX_STARTS:
            task = "start" if number == INFERENCE else "make its environments"
            raise EnvironmentFailure(
                f"{worker.name} must {task} in one of {_MAX_STARTS} attempts, but all failed, the "
                f"last because {reason}: check what the environments wait for, use fewer workers "
                "if memory is short, or raise `step_timeout_s`"
            )
        self.failures.count(worker.name, error.message, error.traceback)
        self._start(number)

    def _check_memory(self) -> None:
        """Raise ConfigError if the workers do not fit into memory."""
        worker_bytes, free_bytes = self.ready.private_bytes, available_memory()
        if free_bytes is not None and worker_bytes * (self._num_workers - 1) > free_bytes:
            raise ConfigError(
                f"{self._num_workers} workers of {worker_bytes / 2**20:,.0f} MiB each don't fit "
                f"into the {free_bytes / 2**20:,.0f} MiB of free memory: use at most "
                f"{1 + int(free_bytes // worker_bytes)}"
            )
