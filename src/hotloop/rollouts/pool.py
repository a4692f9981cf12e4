"""Workers as processes: started, greeted, watched, replaced, ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from hotloop import errors
from hotloop.envs import ActionSpec, ObsSpec, environment_name
from hotloop.errors import ConfigError, EnvironmentFailure, HotloopError, SpaceError
from hotloop.kernel import available_memory
from hotloop.policies import ActingPolicy
from hotloop.rollouts.channel import Channel, Closed
from hotloop.rollouts.guard import MARK, Guard, end_marked, mark_of
from hotloop.rollouts.processes import IN_A_STEP, ProcessRollout, Standing
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.timing import span

# How long workers may take to end by themselves, closing environments, before they are killed.
_GRACE_S = 3.0
# Starting Python and making environments may take longer than a step.
_START_S = 60.0
# A process that is killed or hangs before the run has begun is started so often in all.
_MAX_STARTS = 3
# Where workers stand is looked at so often.
_CHECK_S = 0.2
_STARTING = Standing((), "while it made its environments", may_be_long=True)
# One core each, unless the user has said otherwise: on a core of its own none is faster with two.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


# Not `-m`, which searches the current directory first: where the learner does, PYTHONPATH says so.
_PROGRAM = """
import sys
sys.path.remove("")
from runpy import run_module
run_module("hotloop.rollouts.worker", run_name="__main__", alter_sys=True)
"""


class WorkerProcess:
    """One process.

    Attributes:
        number: of the worker that it is.
        channel: to it.
        pid: its process and its process group.
        token: in its environment, and in that of the processes that its environments start.
        ready: what it said of its environments; None: nothing yet.
        is_set_up: whether it was told what to collect.
        first_row: from where on.
        error: the message that it ended with.
    """

    def __init__(
        self, number: int, timing_dir: Path, greeting: Mapping[str, Any], token: str
    ) -> None:
        self.number = number
        self.token = token
        self.ready: dict[str, Any] | None = None
        self.is_set_up = False
        self.first_row = 0
        self.error: dict[str, Any] | None = None
        self._standing: Standing | None = None
        self._stood_s = 0.0
        self.channel, theirs = Channel.pair()
        # What is first for programs started from here, a profiler's own modules, stays first.
        paths = [os.environ.get("PYTHONPATH", ""), *(path or os.getcwd() for path in sys.path)]
        environment = {
            **dict.fromkeys(_THREADS, "1"),
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "HOTLOOP_WORKER": str(number),
            MARK: mark_of(token),
        }
        program = [sys.executable, "-c", _PROGRAM]
        try:
            self._process = subprocess.Popen(
                [*program, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
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
            self.channel.send({**greeting, "worker": number, "timing_dir": str(timing_dir)})

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

    def is_stopped(self) -> bool:
        """Whether a signal or a debugger keeps it from running."""
        with contextlib.suppress(OSError, IndexError):
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
            return stat.rpartition(")")[2].split()[0] in ("T", "t")
        return False


class WorkerPool:
    """Environments in worker processes: W workers with the same number of environments each.

    All workers are started, and their environments made, before this returns. A worker's process
    has its number in the environment variable `HOTLOOP_WORKER`.

    Args:
        env: a Gymnasium id, `module:Id`, `envpool:Id`, or a factory that can be imported.
        num_workers: W.
        envs_per_worker: environments of each.
        seed: of the run.
        env_kwargs: for the environment's constructor or the factory.
        first_episode: see `make_vec`.
        stagger: see `make_vec`.
        timing_dir: where workers record; None: in a directory that is removed with the pool.
        step_timeout_s: how long a step or a reset may take, or a worker stand still between two,
            before it is replaced; None: for ever. Making environments, a process's first row and
            evaluating may take a minute at least.
        max_failures: how often in all an environment or a worker is replaced.

    Attributes:
        num_failures: how often one was.

    Raises:
        ConfigError: a factory can't be imported; there is no room for so many workers.
        SpaceError: the workers' spaces differ.
        UnknownNameError, MissingExtraError, EnvironmentFailure: an environment can't be made, with
            the worker's number and its traceback; or its process was killed or hung three times.
    """

    def __init__(
        self,
        env: str | Callable[..., Any],
        *,
        num_workers: int,
        envs_per_worker: int = 1,
        seed: int = 0,
        env_kwargs: Mapping[str, Any] | None = None,
        first_episode: int = 0,
        stagger: int = 0,
        timing_dir: str | Path | None = None,
        step_timeout_s: float | None = 300.0,
        max_failures: int = 100,
    ) -> None:
        for name, value in (("num_workers", num_workers), ("envs_per_worker", envs_per_worker)):
            if value < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {value}")
        if not hasattr(os, "memfd_create"):
            raise ConfigError("workers need Linux: leave `workers` out, or set `backend` 'inline'")
        self.num_workers = num_workers
        self.envs_per_worker = envs_per_worker
        self.step_timeout_s = step_timeout_s
        self.max_failures = max_failures
        self.num_failures = 0
        self.restarts = Counter[int]()
        self.env_failures = Counter[int]()
        self._own_dir = None
        if timing_dir is None:
            self._own_dir = tempfile.TemporaryDirectory(prefix="hotloop-timing-")
            timing_dir = self._own_dir.name
        self.timing_dir = Path(timing_dir)
        with contextlib.suppress(OSError):  # there will be no timing
            self.timing_dir.mkdir(parents=True, exist_ok=True)
        self._seen: set[str] = set()
        try:
            json.dumps(dict(env_kwargs or {}))
        except TypeError as error:
            raise ConfigError(
                f"`env_kwargs` go to workers as JSON, which can't hold them ({error}): pass plain "
                "numbers, strings, lists and dictionaries"
            ) from error
        self._greeting = {
            "env": _importable(env),
            "num_envs": envs_per_worker,
            "seed": seed,
            "env_kwargs": dict(env_kwargs or {}),
            "first_episode": first_episode,
            "stagger": stagger,
        }
        self.workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._rollout: ProcessRollout | None = None
        self._is_closed = False
        self._looked_at = 0.0
        self._token = secrets.token_hex(8)
        try:
            self._guard = Guard(self._token)
        except OSError as error:
            raise ConfigError(
                f"/bin/sh can't be started ({error}), which ends workers whose learner is killed: "
                "raise the limit on processes (`ulimit -u`), or set `backend` 'inline'"
            ) from error
        try:
            with span("start_workers"):
                self._start_all()
        except BaseException:
            self.close()
            raise
        first = self.workers[0].ready
        assert first is not None
        self._obs_spec = ObsSpec.from_json(first["obs_spec"])
        self._action_spec = ActionSpec.from_json(first["action_spec"])
        self._can_replay = bool(first["can_replay"])

    @property
    def num_envs(self) -> int:
        """N, over all workers."""
        return self.num_workers * self.envs_per_worker

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        return self._obs_spec

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        return self._action_spec

    @property
    def can_replay(self) -> bool:
        """Whether `Rollout.restore` can bring environments into the middle of an episode."""
        return self._can_replay

    @property
    def start_timeout_s(self) -> float | None:
        """Seconds that a worker may take for what may be long: see `Standing`."""
        return None if self.step_timeout_s is None else max(_START_S, self.step_timeout_s)

    def rollout(self, policy: ActingPolicy, plan: CollectionOptions) -> ProcessRollout:
        """Begin to collect with them.

        Raises:
            ConfigError: there is not enough memory for the fragments.
        """
        assert self._rollout is None
        self._rollout = ProcessRollout(self, policy, plan)
        return self._rollout

    def close(self) -> None:
        """End all workers, and what their environments started; what lives after 3 s is killed."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._rollout is not None:
            self._rollout.end()
        for worker in self.workers:
            worker.channel.close()
        until = time.monotonic() + _GRACE_S
        for worker in self.workers:
            if not worker.wait(max(0.0, until - time.monotonic())):
                worker.kill()
        for worker in self.workers:
            worker.reap()
        end_marked(self._token, grace_until=until)
        self._guard.end()
        self._selector.close()
        if self._rollout is not None:
            self._rollout.keep_account()
        if self._own_dir is not None:
            self._own_dir.cleanup()

    # --- what the rollout calls -------------------------------------------------------------------

    def look(self, timeout_s: float) -> None:
        """Wait for a message of any worker, and replace those that have died or stand still.

        Raises:
            HotloopError: a worker's environments can't be made, or something failed too often.
        """
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            if self.workers[worker.number] is not worker:
                continue  # replaced by what came before in this list
            if self._drain(worker) and key.fileobj == worker.pidfd:
                self._replace(worker)
        self._replace_frozen()

    # --- inside -----------------------------------------------------------------------------------

    def _start_all(self) -> None:
        # The first one alone: what is wrong with the environment is said once, and how much memory
        # a worker takes is known.
        self._start(0)
        self._wait_until_ready()
        self._check_memory()
        for number in range(1, self.num_workers):
            self._start(number)
        self._wait_until_ready()
        first = self.workers[0].ready
        for worker in self.workers[1:]:
            self._check_same(worker, first)

    def _start(self, number: int) -> WorkerProcess:
        greeting = {**self._greeting, "first_env": number * self.envs_per_worker}
        try:
            token = f"{self._token}-{secrets.token_hex(4)}"
            worker = WorkerProcess(number, self.timing_dir, greeting, token)
        except OSError as error:
            raise ConfigError(
                f"worker {number} of {self.num_workers} can't be started ({error}): use fewer "
                "workers, or raise the limits on processes and open files (`ulimit -u`, `-n`)"
            ) from error
        self._guard.watch(worker.pid)
        if number < len(self.workers):
            self.workers[number] = worker
        else:
            self.workers.append(worker)
        self._selector.register(worker.channel.socket, selectors.EVENT_READ, worker)
        if worker.pidfd >= 0:
            self._selector.register(worker.pidfd, selectors.EVENT_READ, worker)
        return worker

    def _wait_until_ready(self) -> None:
        while any(worker.ready is None for worker in self.workers):
            self.look(_CHECK_S)

    def _drain(self, worker: WorkerProcess) -> bool:
        """Take in all that a worker has said; True: it says nothing more."""
        while True:
            try:
                received = worker.channel.receive(block=False)
            except Closed:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(worker.channel.socket)
                if worker.pidfd < 0:
                    self._replace(worker)
                    return False
                return True
            if received is None:
                return True
            message, arrays, _ = received
            kind = message.get("kind")
            if kind == "ready":
                worker.ready = message
                if self._rollout is not None:
                    self._check_same(worker, self.workers[0].ready or message)
                    self._rollout.set_up(worker)
            elif kind == "resumed":
                assert self._rollout is not None
                self._rollout.restarted_envs(
                    worker.number, message["restarted_envs"], arrays["obs"]
                )
            elif kind == "failure":
                self.env_failures[worker.number] += 1
                self._count_failure(worker.number, message)
            elif kind == "error":
                worker.error = message
                worker.kill()  # closing what failed may hang

    def _replace_frozen(self) -> None:
        """Replace the workers that have something to do, and have stood still for too long."""
        now = time.monotonic()
        passed_s, start_s = now - self._looked_at, self.start_timeout_s
        if self.step_timeout_s is None or start_s is None or passed_s < _CHECK_S:
            return
        self._looked_at = now
        row_s = self.step_timeout_s * self.envs_per_worker  # they are stepped one after another
        for worker in self.workers:
            standing = _STARTING
            if worker.ready is not None:
                standing = None if self._rollout is None else self._rollout.standing(worker)
            longest_s = start_s if standing is not None and standing.may_be_long else row_s
            least_s = min(row_s, longest_s)
            # A pause of the whole machine, or a long update here, is no worker's fault.
            stood_s = worker.stood_s(standing, min(passed_s, least_s / 2))
            if standing is None or stood_s < least_s:
                continue
            is_stopped = worker.is_stopped()
            limit_s = least_s if is_stopped else longest_s
            if stood_s >= limit_s:
                worker.kill()
                self._replace(worker, self._describe(standing, limit_s, is_stopped))

    def _describe(self, standing: Standing, limit_s: float, is_stopped: bool) -> str:
        """Why a worker is replaced that stands still."""
        hint = "a signal has stopped it" if is_stopped else "a deadlock?"
        what = f"it stood still for {limit_s:g} s {standing.where}"
        if standing.where == IN_A_STEP:
            each = f" for each of {self.envs_per_worker}" if self.envs_per_worker > 1 else ""
            what = f"a step of its environments took more than {self.step_timeout_s:g} s{each}"
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
        has_begun = self._rollout is not None
        error = worker.error or {"message": why, "traceback": "", "can_be_mended": True}
        # At the start nothing is known of what it says, or ends by itself for, but that it is so.
        if not error["can_be_mended"] or not (has_begun or (worker.error is None and code < 0)):
            self._raise(number, error)
        self.restarts[number] += 1
        if not has_begun and self.restarts[number] == _MAX_STARTS:
            raise EnvironmentFailure(
                f"worker {number} must make its environments in one of {_MAX_STARTS} attempts, and "
                f"did not; in the last one {why}: look for what they wait for, use fewer workers "
                "if memory is short, or raise `step_timeout_s`"
            )
        self._count_failure(number, error)
        if self._rollout is not None:
            self._rollout.lost(number)
        self._start(number)

    def _count_failure(self, number: int, error: Mapping[str, Any]) -> None:
        """Tell of each kind of failure once, and give up after too many.

        Raises:
            EnvironmentFailure: these were too many.
        """
        self.num_failures += 1
        text = f"worker {number}: {error['message']}"
        if self.num_failures > self.max_failures:
            raise EnvironmentFailure(
                f"environments and workers failed {self.num_failures} times, and no more than "
                f"{self.max_failures} are made good (`max_failures`); the last was {text}"
                f"{_indented(error['traceback'])}"
            )
        # Numbers differ from one time to the next: what it is, is the rest.
        kind = "".join(x for x in error["traceback"] or error["message"] if not x.isdigit())
        if kind not in self._seen:
            self._seen.add(kind)
            warnings.warn(
                f"{text}: replaced; others like it are only counted{_indented(error['traceback'])}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _raise(self, number: int, error: Mapping[str, Any]) -> NoReturn:
        kind = getattr(errors, error.get("type", ""), None)
        if not (isinstance(kind, type) and issubclass(kind, HotloopError)):
            kind = EnvironmentFailure
        hint = ""
        if self._rollout is None and kind is errors.UnknownNameError:
            hint = (
                " (a worker does not run your script: what it registers must be in a module, "
                "`module:Id`)"
            )
        raise kind(
            f"worker {number}: {error['message']}{hint}{_indented(error['traceback'])}"
        ) from None

    def _check_same(self, worker: WorkerProcess, first: Mapping[str, Any] | None) -> None:
        """Refuse a worker whose environments are of another kind.

        Raises:
            SpaceError: they are.
        """
        assert first is not None
        assert worker.ready is not None
        for what in ("obs_spec", "action_spec"):
            if worker.ready[what] != first[what]:
                name = "observation" if what == "obs_spec" else "action"
                raise SpaceError(
                    f"all workers must have the same {name} space, but worker 0 has {first[what]} "
                    f"and worker {worker.number} has {worker.ready[what]}: make the environment "
                    "independent of the process that it is made in"
                )

    def _check_memory(self) -> None:
        """Refuse more workers than there is memory for.

        Raises:
            ConfigError: they are.
        """
        first = self.workers[0].ready
        assert first is not None
        each, free = first["memory"], available_memory()
        if free is not None and each * (self.num_workers - 1) > free:
            raise ConfigError(
                f"{self.num_workers} workers of {each / 2**20:,.0f} MiB each need more than the "
                f"{free / 2**20:,.0f} MiB that are free: {1 + int(free // each)} fit"
            )


def _importable(env: str | Callable[..., Any]) -> str:
    """The name by which a worker makes an environment.

    Raises:
        ConfigError: it can't be imported by its name.
    """
    name = environment_name(env)
    module, _, attribute = name.rpartition(":")
    if isinstance(env, str):
        return name
    advice = (
        "put it at the top level of a module, such as my_envs.py, and pass `my_envs.make` or "
        "'my_envs:make', with its arguments as `env_kwargs`"
    )
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is None:
            raise ConfigError(
                f"the factory {attribute} is defined in the script that runs, which workers don't "
                f"import: {advice}"
            )
        return f"{spec.name}:{attribute}"
    if "<" in attribute or "." in attribute:
        raise ConfigError(f"a worker can't import the factory {name}: {advice}")
    return name


def _indented(text: str) -> str:
    """A traceback below a message."""
    return "".join(f"\n    {line}" for line in text.rstrip().splitlines())
