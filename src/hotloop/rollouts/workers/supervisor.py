"""Workers' processes, and the inference process: started, greeted, watched, replaced, ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import selectors
import signal
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import NoReturn, Protocol

from hotloop import errors
from hotloop.errors import ConfigError, EnvironmentFailure, HotloopError, SpaceError
from hotloop.rollouts.inference.bells import new_bell
from hotloop.rollouts.workers.channel import Closed
from hotloop.rollouts.workers.guard import Guard, end_marked
from hotloop.rollouts.workers.messages import INFERENCE, Failure, Greeting, Ready, Resumed
from hotloop.rollouts.workers.process import IN_A_STEP, Standing, WorkerProcess
from hotloop.system.memory import available_memory
from hotloop.system.processes import process_state
from hotloop.types import Array

# How long workers may take to end by themselves, closing environments, before they are killed.
_GRACE_S = 3.0
# Starting Python and making environments may take longer than a step.
_START_S = 60.0
# A process that is killed or hangs before the run has begun is started so often in all.
_MAX_STARTS = 3
# Where workers stand is looked at so often.
_CHECK_S = 0.2
_STARTING = Standing((), "while it made its environments", may_be_long=True)


class Collecting(Protocol):
    """The rollout, as far as the supervisor must know it."""

    def set_up(self, worker: WorkerProcess) -> None:
        """Tell a process that is ready what to collect, and from which row on."""
        ...

    def restarted_envs(self, number: int, envs: Sequence[int], obs: Array) -> None:
        """Know that a worker was brought to where another run stood, but for these environments."""
        ...

    def lost(self, number: int) -> None:
        """Drop what a worker had not finished: its process is gone."""
        ...

    def standing(self, worker: WorkerProcess) -> Standing | None:
        """Where a process stands that is ready; None: it waits, and has nothing to do."""
        ...


class Supervisor:
    """Starts the workers and waits until they are ready; replaces those that die or stand still.

    Args:
        greeting: of worker 0.
        num_workers: W.
        central: whether there is an inference process.
        step_timeout_s, max_failures: see `WorkerPool`.

    Attributes:
        greeting: of worker 0.
        ready: what it said when it was started.
        workers: their processes.
        inference: the process that acts for them; None: they act by themselves.
        rollout: what collects by them, once it does.
        restarts, env_failures: of each worker.
        num_failures: how often an environment or a worker was replaced.

    Raises:
        ConfigError: no more processes can be started.
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
        self.rollout: Collecting | None = None
        self.workers: list[WorkerProcess] = []
        self.inference: WorkerProcess | None = None
        self.restarts = Counter[int]()
        self.env_failures = Counter[int]()
        self._num_workers = num_workers
        self._step_timeout_s = step_timeout_s
        self._max_failures = max_failures
        self.num_failures = 0
        self._seen: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._looked_at = 0.0
        self._token = secrets.token_hex(8)
        try:
            self._guard = Guard(self._token)
        except OSError as error:
            raise ConfigError(
                f"/bin/sh can't be started ({error}), which ends workers whose learner is killed: "
                "raise the limit on processes (`ulimit -u`), or set `backend` 'inline'"
            ) from error
        # The inference process's, and one of each worker.
        self._bells: list[int] = []
        try:
            for _ in range(1 + num_workers if central else 0):
                self._bells.append(new_bell())
        except OSError as error:
            self.close()
            raise ConfigError(
                f"{1 + num_workers} descriptors to wake processes by can't be had ({error}): use "
                "fewer workers, or raise the limit on open files (`ulimit -n`)"
            ) from error

    @property
    def start_timeout_s(self) -> float | None:
        """Seconds that a worker may take for what may be long: see `Standing`."""
        return None if self._step_timeout_s is None else max(_START_S, self._step_timeout_s)

    def start(self) -> None:
        """Start the workers; return when their environments are made.

        Raises:
            HotloopError: see `WorkerPool`.
        """
        # The first one alone: what is wrong with the environment is said once, and how much memory
        # a worker takes is known.
        self._start(0)
        if self._bells:
            self._start(INFERENCE)
        self._wait_until_ready()
        assert self.workers[0].ready is not None
        self.ready = self.workers[0].ready
        self._check_memory()
        for number in range(1, self._num_workers):
            self._start(number)
        self._wait_until_ready()
        for worker in self.workers[1:]:
            self._check_same(worker)

    def look(self, timeout_s: float) -> None:
        """Wait for a message of any worker, and replace those that have died or stand still.

        Raises:
            HotloopError: a worker's environments can't be made, or something failed too often.
        """
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            if not any(worker is one for one in self._processes()):
                continue  # replaced by what came before in this list
            if self._drain(worker) and key.fileobj == worker.pidfd:
                self._replace(worker)
        self._replace_frozen()

    def nudge(self, number: int) -> None:
        """Have a worker look at its words."""
        with contextlib.suppress(Closed):  # its end is heard of elsewhere
            self.workers[number].channel.nudge()

    def close(self) -> None:
        """End all workers, and what their environments started; what lives after 3 s is killed."""
        for worker in self._processes():
            worker.channel.close()
        until = time.monotonic() + _GRACE_S
        for worker in self._processes():
            if not worker.wait(max(0.0, until - time.monotonic())):
                worker.kill()
        for worker in self._processes():
            worker.reap()
        for bell in self._bells:
            os.close(bell)
        self._bells.clear()
        end_marked(self._token, grace_until=until)
        self._guard.end()
        self._selector.close()

    # --- inside -----------------------------------------------------------------------------------

    def _processes(self) -> list[WorkerProcess]:
        return [*self.workers, *([] if self.inference is None else [self.inference])]

    def _start(self, number: int) -> WorkerProcess:
        """Start a worker, or the inference process."""
        bells, own = list(self._bells), {"worker": number, "component": "inference-0"}
        if number != INFERENCE:
            bells = [bells[1 + number], bells[0]] if bells else []
            own |= {"component": f"worker-{number}", "first_env": number * self.greeting.num_envs}
        greeting = dataclasses.replace(self.greeting, bells=bells, **own)
        try:
            token = f"{self._token}-{secrets.token_hex(4)}"
            worker = WorkerProcess(greeting, token)
        except OSError as error:
            what = "the inference process"
            if number != INFERENCE:
                what = f"worker {number} of {self._num_workers}"
            raise ConfigError(
                f"{what} can't be started ({error}): use fewer "
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
        if number == INFERENCE and self.rollout is not None:
            self.rollout.set_up(worker)
        return worker

    def _wait_until_ready(self) -> None:
        while any(worker.ready is None for worker in self.workers):
            self.look(_CHECK_S)

    def _drain(self, worker: WorkerProcess) -> bool:
        """Take in all that a worker has said; True: it says nothing more."""
        while True:
            try:
                packet = worker.channel.receive(block=False)
            except Closed:
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
                if self.rollout is not None:
                    self._check_same(worker)
                    self.rollout.set_up(worker)
            elif isinstance(message, Resumed):
                assert self.rollout is not None
                envs, obs = message.restarted_envs, packet.arrays["obs"]
                self.rollout.restarted_envs(worker.number, envs, obs)
            elif isinstance(message, Failure) and not message.is_final:
                self.env_failures[worker.number] += 1
                self._count_failure(worker.name, message)
            elif isinstance(message, Failure):
                worker.error = message
                worker.kill()  # closing what failed may hang

    def _replace_frozen(self) -> None:
        """Replace the workers that have something to do, and have stood still for too long."""
        now = time.monotonic()
        passed_s, start_s = now - self._looked_at, self.start_timeout_s
        if self._step_timeout_s is None or start_s is None or passed_s < _CHECK_S:
            return
        self._looked_at = now
        row_s = self._step_timeout_s * self.greeting.num_envs  # they are stepped one after another
        for worker in self._processes():
            standing = _STARTING
            if worker.ready is not None or worker.number == INFERENCE:
                standing = None if self.rollout is None else self.rollout.standing(worker)
            longest_s = start_s if standing is not None and standing.may_be_long else row_s
            least_s = min(row_s, longest_s)
            # A pause of the whole machine, or a long update here, is no worker's fault.
            stood_s = worker.stood_s(standing, min(passed_s, least_s / 2))
            if standing is None or stood_s < least_s:
                continue
            is_stopped = process_state(worker.pid) in ("T", "t")
            limit_s = least_s if is_stopped else longest_s
            if stood_s >= limit_s:
                worker.kill()
                self._replace(worker, self._describe(standing, limit_s, is_stopped))

    def _describe(self, standing: Standing, limit_s: float, is_stopped: bool) -> str:
        """Why a worker is replaced that stands still."""
        hint = "a signal has stopped it" if is_stopped else "a deadlock?"
        what = f"it stood still for {limit_s:g} s {standing.where}"
        if standing.where == IN_A_STEP:
            each = f" for each of {self.greeting.num_envs}" if self.greeting.num_envs > 1 else ""
            what = f"a step of its environments took more than {self._step_timeout_s:g} s{each}"
        return f"{what} (`step_timeout_s`); {hint}"

    def _replace(self, worker: WorkerProcess, why: str | None = None) -> None:
        """A worker has ended, or is about to: say why, and start another in its place.

        Raises:
            HotloopError: its environments can't be made, or something failed too often.
        """
        for one in (worker.channel.socket, worker.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one)
        code, number = worker.reap(), worker.number
        end_marked(worker.token)
        self._guard.forget(worker.pid)
        if why is None:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            why = f"its process ended with {how}" + "; out of memory?" * (code == -signal.SIGKILL)
        has_begun = self.rollout is not None
        error = worker.error or Failure(message=why)
        # At the start nothing is known of what it says, or ends by itself for, but that it is so.
        if not error.can_be_mended or not (has_begun or (worker.error is None and code < 0)):
            self._raise(worker.name, error)
        self.restarts[number] += 1
        if not has_begun and self.restarts[number] == _MAX_STARTS:
            what = "start" if number == INFERENCE else "make its environments"
            raise EnvironmentFailure(
                f"{worker.name} must {what} in one of {_MAX_STARTS} attempts, and did not; in the "
                f"last one {why}: look for what they wait for, use fewer workers if memory is "
                "short, or raise `step_timeout_s`"
            )
        self._count_failure(worker.name, error)
        if self.rollout is not None and number != INFERENCE:
            self.rollout.lost(number)
        self._start(number)

    def _count_failure(self, name: str, error: Failure) -> None:
        """Tell of each kind of failure once, and give up after too many.

        Raises:
            EnvironmentFailure: these were too many.
        """
        self.num_failures += 1
        text = f"{name}: {error.message}"
        if self.num_failures > self._max_failures:
            raise EnvironmentFailure(
                f"environments and workers failed {self.num_failures} times, and no more than "
                f"{self._max_failures} are made good (`max_failures`); the last was {text}"
                f"{_indented(error.traceback)}"
            )
        # Numbers differ from one time to the next: what it is, is the rest.
        kind = "".join(x for x in error.traceback or error.message if not x.isdigit())
        if kind not in self._seen:
            self._seen.add(kind)
            warnings.warn(
                f"{text}: replaced; others like it are only counted{_indented(error.traceback)}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _raise(self, name: str, error: Failure) -> NoReturn:
        kind = getattr(errors, error.type, None)
        if not (isinstance(kind, type) and issubclass(kind, HotloopError)):
            kind = EnvironmentFailure
        hint = ""
        if self.rollout is None and kind is errors.UnknownNameError:
            hint = (
                " (a worker does not run your script: what it registers must be in a module, "
                "`module:Id`)"
            )
        raise kind(f"{name}: {error.message}{hint}{_indented(error.traceback)}") from None

    def _check_same(self, worker: WorkerProcess) -> None:
        """Refuse a worker whose environments are of another kind.

        Raises:
            SpaceError: they are.
        """
        first, ready = self.ready, worker.ready
        assert ready is not None
        for name, expected, spec in (
            ("observation", first.obs_spec, ready.obs_spec),
            ("action", first.action_spec, ready.action_spec),
        ):
            if spec != expected:
                raise SpaceError(
                    f"all workers must have the same {name} space, but worker 0 has {expected} "
                    f"and worker {worker.number} has {spec}: make the environment independent of "
                    "the process that it is made in"
                )

    def _check_memory(self) -> None:
        """Refuse more workers than there is memory for.

        Raises:
            ConfigError: they are.
        """
        each, free = self.ready.private_bytes, available_memory()
        if free is not None and each * (self._num_workers - 1) > free:
            raise ConfigError(
                f"{self._num_workers} workers of {each / 2**20:,.0f} MiB each need more than the "
                f"{free / 2**20:,.0f} MiB that are free: {1 + int(free // each)} fit"
            )


def _indented(text: str) -> str:
    """A traceback below a message."""
    return "".join(f"\n    {line}" for line in text.rstrip().splitlines())
