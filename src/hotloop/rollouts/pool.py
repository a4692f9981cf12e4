"""Workers as processes: started, greeted, watched, replaced, ended."""

from __future__ import annotations

import contextlib
import json
import os
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
from hotloop.policies import ActingPolicy
from hotloop.rollouts.channel import Channel, Closed
from hotloop.rollouts.processes import ProcessRollout
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.shared import available_memory
from hotloop.timing import span

# How long workers may take to end by themselves, closing environments, before they are killed.
_GRACE_S = 3.0
# Starting Python and making environments may take longer than a step.
_START_S = 60.0
# One core each, unless the user has said otherwise: on a core of its own none is faster with two.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class WorkerProcess:
    """One process.

    Attributes:
        number: of the worker that it is.
        channel: to it.
        pid: its process and its process group.
        ready: what it said of its environments; None: nothing yet.
        is_set_up: whether it was told what to collect.
        error: the message that it ended with.
        began_ns: when it was started, on the monotonic clock.
    """

    def __init__(self, number: int, timing_dir: Path, greeting: Mapping[str, Any]) -> None:
        self.number = number
        self.ready: dict[str, Any] | None = None
        self.is_set_up = False
        self.error: dict[str, Any] | None = None
        self.began_ns = time.monotonic_ns()
        self.channel, theirs = Channel.pair()
        # What is first for programs started from here, a profiler's own modules, stays first.
        paths = [os.environ.get("PYTHONPATH", ""), *(path or os.getcwd() for path in sys.path)]
        environment = {
            **dict.fromkeys(_THREADS, "1"),
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "HOTLOOP_WORKER": str(number),
        }
        program = [sys.executable, "-m", "hotloop.rollouts.worker"]
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
        """End it at once, and the processes that its environments started."""
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


class _Guard:
    """A tiny process that kills the workers, and what their environments started, if the learner
    dies: it reads their groups' numbers from a pipe, and acts when that ends without a word."""

    _SCRIPT = """
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
[ -z "$groups" ] || kill -9 $groups 2>/dev/null
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, pid: int) -> None:
        """Look after one more process group."""
        self._write(f"{pid}\n")

    def forget(self, pid: int) -> None:
        """A process group is gone: its number may become another's."""
        self._write(f"-{pid}\n")

    def end(self) -> None:
        """There is nobody left to look after."""
        self._write("end\n")
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody killed it
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


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
        step_timeout_s: how long a step or a reset may take before the worker is replaced.
        max_failures: how often in all an environment or a worker is replaced.

    Attributes:
        num_failures: how often one was.

    Raises:
        ConfigError: a factory can't be imported; there is no room for so many workers.
        SpaceError: the workers' spaces differ.
        UnknownNameError, MissingExtraError, EnvironmentFailure: an environment can't be made, with
            the worker's number and its traceback.
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
        self._guard = _Guard()
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
        """Seconds that a worker may take until its environments are made."""
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
        """End all workers; those that don't close their environments within 3 s are killed."""
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
        self._guard.end()
        self._selector.close()
        if self._rollout is not None:
            self._rollout.keep_account()
        if self._own_dir is not None:
            self._own_dir.cleanup()

    # --- what the rollout calls -------------------------------------------------------------------

    def look(self, timeout_s: float) -> None:
        """Wait for a message of any worker, and answer what needs an answer.

        Raises:
            HotloopError: a worker's environments can't be made, or something failed too often.
        """
        for key, _ in self._selector.select(timeout_s):
            worker: WorkerProcess = key.data
            if self.workers[worker.number] is not worker:
                continue  # replaced by what came before in this list
            if self._drain(worker) and key.fileobj == worker.pidfd:
                self._replace(worker)

    def replace(self, number: int, why: str) -> None:
        """Kill a worker and start another in its place.

        Raises:
            EnvironmentFailure: something failed too often.
        """
        worker = self.workers[number]
        worker.error = {"message": why, "traceback": "", "can_be_mended": True}
        worker.kill()
        self._replace(worker)

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
            worker = WorkerProcess(number, self.timing_dir, greeting)
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
            self.look(1.0)
            for worker in self.workers:
                limit = self.start_timeout_s
                age_s = (time.monotonic_ns() - worker.began_ns) / 1e9
                if worker.ready is None and limit is not None and age_s > limit:
                    raise EnvironmentFailure(
                        f"worker {worker.number}: making its environments must take no more than "
                        f"{limit:g} s (`step_timeout_s`, {_START_S:g} at least), and has not: "
                        "raise it, or look for what they wait for"
                    )

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

    def _replace(self, worker: WorkerProcess) -> None:
        """A worker has ended, or is about to: say why, and start another in its place."""
        for one in (worker.channel.socket, worker.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one)
        code = worker.reap()
        self._guard.forget(worker.pid)
        error = worker.error
        if error is None:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            hint = "; out of memory?" if code == -signal.SIGKILL else ""
            error = {
                "message": f"its process ended with {how}{hint}",
                "traceback": "",
                "can_be_mended": True,
            }
        if self._rollout is None or not error["can_be_mended"]:
            self._raise(worker.number, error)
        self._count_failure(worker.number, error)
        self.restarts[worker.number] += 1
        self._rollout.lost(worker.number)
        self._start(worker.number)

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
