"""Training: the run directory, the environments and all else around an algorithm's loop."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hotloop import timing
from hotloop.envs import environment_name
from hotloop.envs.closing import closed_in_time
from hotloop.errors import ConfigError, NonFiniteError, NonFiniteUpdate
from hotloop.learner import Learner, choose_device, torch_threads
from hotloop.learner.threads import FreeThreads, available_threads
from hotloop.ops.products import Precision, gpu_arithmetic
from hotloop.policies import ActingPolicy, Network, PolicySnapshot
from hotloop.policies.device_acting import DevicePolicy
from hotloop.rollouts import Rollout
from hotloop.runs import Checkpoint, OnReport, Result, RunDirectory
from hotloop.system.crowding import CoreTimes
from hotloop.system.signals import Pending, delayed_interrupt, pending_interrupt
from hotloop.timing import span
from hotloop.timing.gpu_window import GpuWindows
from hotloop.training.algorithm import Algorithm
from hotloop.training.environments import (
    choose_inference,
    choose_workers,
    describe_workers,
    make_device_environments,
    make_environments,
    on_device,
)
from hotloop.training.evaluation import Evaluator
from hotloop.training.learning import Run, drive
from hotloop.training.options import differing_defaults, may_change, to_json
from hotloop.training.position import Position
from hotloop.training.reporting import Reporter
from hotloop.training.resume import Resumed, check_network, cut_back, reopen
from hotloop.training.saving import Saver
from hotloop.types import Array


def train(
    algorithm: Algorithm,
    config: Any,
    *,
    env: str | Callable[..., Any] | None = None,
    network: str | Callable[..., Any] | None = None,
    on_report: OnReport | None = None,
    on_end: Callable[[Result | None], None] | None = None,
    resume_from: str | Path | None = None,
) -> Result:
    """Train, and leave a run directory behind.

    Args:
        algorithm: one of hotloop's, or your own.
        config: what to do, of the algorithm's `config` class.
        env: a factory of environments, called with `config.env_kwargs`; used instead of
            `config.env_id`.
        network: a class or function that makes a torch module; used instead of `config.network`.
        on_report: called before the first iteration and after each; returning True stops the run.
        on_end: called with the result, or with None where an error or Ctrl-C ends the run, before
            environments of this process are closed: all that the run leaves is written, and what
            they still do, raise or hang, takes nothing away.
        resume_from: a run directory, or a checkpoint in one, to go on from. The rest is as it was,
            but for `total_timesteps`, which may grow, and what changes nothing that is learned.

    Returns:
        The policy and where everything was written.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError: before anything starts.
        CheckpointError: the checkpoint to go on from is damaged or of another run.
        EnvironmentFailure: an environment raised or gave what its spaces rule out.
        NonFiniteError: a loss was NaN or infinite.
        RunDirectoryError: the run directory exists, is missing, is in use, or can't be written.
        KeyboardInterrupt: after metrics, timing and the last checkpoint were written.

    The process's timing goes to the run directory from here to the end; a recording that the caller
    started ends, and `timing.start` begins a new one afterwards.

    However the run ends, environments of this process have 10 s to close; where they take longer or
    raise, that is a warning. Outside the main thread they may take any time.
    """
    if not isinstance(config, algorithm.config):
        raise ConfigError(
            f"the configuration of '{algorithm.name}' must be a {algorithm.config.__module__}."
            f"{algorithm.config.__qualname__}, got a {type(config).__module__}."
            f"{type(config).__qualname__}: make one of that class"
        )
    if network is not None:
        config = dataclasses.replace(config, network=network)
    environment = config.env_id if env is None else env
    with closed_in_time() as envs:
        return drive(
            trained(
                algorithm, config, environment, on_report, on_end, resume_from, envs_to_close=envs
            )
        )


class Shared:
    """The parts of a process that several runs in it share.

    Args:
        threads: of the update, which come and go; None: a fixed number.
        gpu: settings of the GPU, for the runs' records.
        num_runs: that are trained.

    Attributes:
        run_dirs: of the runs; timing is recorded in the first one's.
    """

    def __init__(self, threads: FreeThreads | None, gpu: Mapping[str, str], num_runs: int) -> None:
        self.threads, self.gpu, self.num_runs = threads, gpu, num_runs
        self.run_dirs: list[Path] = []

    def add(self, run_dir: Path) -> None:
        """Take in another run."""
        self.run_dirs.append(run_dir)
        if len(self.run_dirs) == 1:
            timing.start(run_dir / "timing", component="learner")


class Training:
    """A training's surroundings: what its loop works with, and tells of each iteration.

    Attributes:
        config: the algorithm's configuration; what it left to be chosen is.
        device: where the update runs.
        is_on_device: whether the training environments step on that device.
        envs: the training environments.
        environment: what makes them, an id or a factory.
        resumed: what the run goes on from; None for a run that begins.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        config: Any,
        environment: str | Callable[..., Any],
        run: RunDirectory,
        *,
        is_resumed: bool,
        resumed: Resumed | None,
        on_report: OnReport | None,
        threads: FreeThreads | None,
        exits: contextlib.ExitStack,
        envs_to_close: list[Any],
        shared: Shared | None,
    ) -> None:
        self._shared = shared
        self.resumed, self.environment = resumed, environment
        self._threads = threads
        self.device = choose_device(config.device)
        if config.gpu_window_ms and self.device.type == "cuda":
            length_s = config.gpu_window_ms / 1e3
            windows = GpuWindows(run.path / "timing", "learner", length_s=length_s)
            exits.callback(windows.stop)
            windows.start()
        self._reporter = Reporter(run, on_report)
        exits.callback(self._reporter.keep_accounting)
        asked = config.torch_threads
        self._cores = CoreTimes(asked if isinstance(asked, int) else 0)
        with span("make_envs"):
            self.is_on_device = on_device(environment, config, is_able=algorithm.learns_on_device)
            if config.workers == "auto":
                config = choose_workers(
                    config,
                    environment,
                    run,
                    options=algorithm.collection_options(config),
                    make_network=partial(algorithm.acting_network, config),
                    uneven=algorithm.uneven(config),
                )
            if config.inference == "auto":
                config = choose_inference(
                    config,
                    environment,
                    run,
                    options=algorithm.collection_options(config),
                    make_network=partial(algorithm.acting_network, config),
                )
            self.config = config
            self.envs: Any = (
                make_device_environments(config, environment, self.device)
                if self.is_on_device
                else make_environments(config, environment, run, resumed)
            )
            if config.has_workers:
                exits.callback(self.envs.close)  # they have a limit of their own
            else:
                envs_to_close.append(self.envs)
            best = None if resumed is None else resumed.position.best
            if best is not None and not run.checkpoints.has(best.timesteps):
                best = None  # it gave way to a better one, after which this run goes back
            self._evaluator = Evaluator(config, environment, run, best, envs_to_close)
        self._saver = Saver(run, config.keep_checkpoints, resumed)
        self._run = run
        self._is_resumed = is_resumed
        self._options = algorithm.collection_options(config)

    def rollout(self, policy: ActingPolicy | DevicePolicy) -> Rollout:
        """Begin to collect with the training environments.

        Args:
            policy: acts; on the device where the environments are there.

        Raises:
            CheckpointError: the checkpoint to go on from is of another network.
        """
        rollout = self.envs.rollout(policy, self._options)
        self._reporter.watch(rollout, self._options)
        if self.resumed is not None:
            check_network(policy.network, self.resumed, self._run.path)
        return rollout

    def begin(
        self, learner: Learner, restarted_envs: Sequence[int] = (), notes: Sequence[str] = ()
    ) -> bool:
        """Make the first report; return whether it asks to stop.

        From here on the checkpoints and metrics of what is not gone on from are gone.

        Args:
            learner: whose updates are told of.
            restarted_envs: environments whose episodes could not be brought back.
            notes: what else is not as it was, in sentences.

        Raises:
            ConfigError, MissingExtraError: a tracker can't be opened.
        """
        config, resumed, told = self.config, self.resumed, ""
        if resumed is not None:
            told = f"resumed at {resumed.position.timesteps:,} steps"
            if restarted_envs:
                told += (
                    f"; the episodes of {len(restarted_envs)} of {self.envs.num_envs} environments "
                    "can't be replayed, and new ones began"
                )
            told += "".join(f"; {note}" for note in notes)
            if str(learner.device) != resumed.position.device:
                told += (
                    f"; updates run on {learner.device} now and not on {resumed.position.device}, "
                    "which gives other numbers"
                )
            old_total = self._run.config["config"]["total_timesteps"]
            if old_total != config.total_timesteps:
                told += (
                    f"; the run is {config.total_timesteps:,} steps long now and not "
                    f"{old_total:,}, and so is all that is annealed over it"
                )
        if self._is_resumed:
            best = self._evaluator.best
            with delayed_interrupt():
                cut_back(self._run, config, resumed, None if best is None else best.timesteps)
        for one in learner.executions:
            one.tell = self._reporter.doing
        self._cores.begin()
        execution = (
            learner.executions[0].choice.reason
            if self._shared is None
            else learner.choose(num_lanes=self._shared.num_runs).reason
        )
        return self._reporter.begin(
            config,
            execution=execution,
            resumed=told,
            workers=describe_workers(config, self._options, self._run),
            position=None if resumed is None else resumed.position,
            is_resumed=self._is_resumed,
        )

    def end_iteration(
        self,
        position: Position,
        *,
        network: Network,
        snapshot: PolicySnapshot,
        arrays: Callable[[], Mapping[str, Array]],
        metrics: Mapping[str, float],
        rollout: Rollout,
        files: Mapping[str, Callable[[Path], None]] | None = None,
    ) -> bool:
        """Evaluate, log, save and report, as far as they are due; return whether to stop.

        Args:
            position: of the run, which later iterations leave alone.
            network: what acts.
            snapshot: its parameters, which later iterations leave alone.
            arrays: gives what else a checkpoint holds, if it is saved.
            metrics: of the iteration's updates.
            rollout: whose episodes have ended.
            files: what a checkpoint holds besides, see `Checkpoint`.
        """
        timesteps, before = position.timesteps, self._saver.timesteps
        episodes = rollout.pop_episodes()
        line = self._reporter.line(position, episodes, metrics)
        if self._threads is not None:
            line["torch_threads"] = self._threads.count
            if told := self._threads.look():
                self._reporter.doing(told)
        self._cores.look()
        checkpoint = Checkpoint(
            network=network.to_json(),
            snapshot=snapshot,
            arrays=arrays,
            state={},
            files=files or {},
        )

        def keep() -> None:
            """Log the iteration, which from here on is what is saved if the run ends."""
            with span("report"), delayed_interrupt():
                self._reporter.log(timesteps, line)
                whole = dataclasses.replace(
                    position, progress=self._reporter.progress, best=self._evaluator.best
                )
                self._saver.keep(dataclasses.replace(checkpoint, state=whole.to_json()))

        evaluation = None
        if self._evaluator.is_due(before, timesteps):
            try:
                evaluation = self._evaluator.evaluate(network, snapshot, timesteps)
            except Exception:  # what was learned is not the evaluation's to lose
                keep()
                raise
            line["evaluation"] = evaluation.to_json()
        keep()
        interval = self.config.checkpoint_interval
        if timesteps // interval > before // interval or (evaluation and evaluation.is_best):
            self._saver.save(self._evaluator.best)
        with span("report"):
            return self._reporter.report(timesteps, metrics, evaluation)

    def result(self, policy: ActingPolicy, learner: Learner, *, is_stopped: bool) -> Result:
        """Return what came of it: the training has ended."""
        return self._reporter.result(
            policy.on_host(),
            learner.executions,
            timesteps=self._saver.timesteps,
            is_stopped=is_stopped,
        )

    def pending_interrupt(self) -> contextlib.AbstractContextManager[Pending]:
        """Tell the body of signals, which are acted on when it has ended.

        Where several runs share a process, one's body ends while another's goes on: signals are
        acted on at once.
        """
        return pending_interrupt() if self._shared is None else contextlib.nullcontext(Pending())

    def explain(self, error: NonFiniteUpdate) -> NonFiniteError:
        """Keep what the update learned from, and return an error that says which it was."""
        where = "its batch was overwritten since"
        if error.batch:
            where = f"its batch is kept in {self._run.save_arrays('nonfinite_batch', error.batch)}"
        return NonFiniteError(
            f"losses and parameters must be finite, but update {error.update} of iteration "
            f"{self._saver.iteration + 1} gave NaN or infinity in {', '.join(error.names)}: lower "
            f"the learning rate, and check the scale of the rewards; {where}"
        )

    def close(self, *, is_interrupted: bool) -> None:
        """Save the last whole iteration, wherever the loop ended."""
        try:
            self._saver.close(self._evaluator.best)
            self._cores.look(is_last=True)  # while there are workers
            self._reporter.keep_cores(self._cores.crowding())
        finally:
            self._reporter.close(is_interrupted=is_interrupted)


def set_up_torch(
    config: Any, exits: contextlib.ExitStack, *, is_resumed: bool = False
) -> tuple[FreeThreads | None, dict[str, str]]:
    """Set torch's threads and the GPU's arithmetic until `exits` close.

    Args:
        config: of the run, or of one of several that share the process.
        is_resumed: whether the run began before, possibly on a GPU that is not there now.

    Returns:
        The threads, if their number changes with the load; the GPU's settings, for the record.

    Raises:
        ConfigError: there is no such device, or it can't multiply in this precision.
    """
    device = choose_device(config.device)
    precision: Precision = getattr(config, "precision", "float32")
    if is_resumed and device.type == "cpu" and precision == "tf32":
        precision = "float32"  # the first report says that the device is another one
    gpu = exits.enter_context(gpu_arithmetic(precision, device))
    if isinstance(config.torch_threads, int):
        exits.enter_context(torch_threads(config.torch_threads))
        return None, gpu
    return exits.enter_context(FreeThreads(available_threads()).taken()), gpu


def trained(
    algorithm: Algorithm,
    config: Any,
    environment: str | Callable[..., Any],
    on_report: OnReport | None,
    on_end: Callable[[Result | None], None] | None,
    resume_from: str | Path | None,
    *,
    envs_to_close: list[Any],
    shared: Shared | None = None,
) -> Run[Result]:
    """Train; whatever ends it, what was learned is kept.

    Args:
        algorithm, config, on_report, on_end, resume_from: see `train`.
        environment: an id or a factory.
        envs_to_close: takes the environments of this process.
        shared: of a process that trains several; None: it trains this one alone.
    """
    name = environment_name(environment)
    run, resumed = None, None
    is_new = resume_from is None
    exits = contextlib.ExitStack()
    try:
        with delayed_interrupt():  # from here on there is something to tidy up
            if resume_from is None:
                stored = to_json(config)
                run = RunDirectory.create(
                    config.run_dir,
                    runs_dir=config.runs_dir,
                    env_id=name,
                    algorithm=algorithm.name,
                    reference=algorithm.reference,
                    seed=config.seed,
                    config=stored,
                    may_change=may_change(type(config)),
                    defaults=differing_defaults(config, stored),
                    network=stored.get("network"),
                )
            else:
                run, config, resumed = reopen(
                    config, Path(resume_from), algorithm=algorithm.reference, env=name
                )
        if shared is None:
            threads, gpu = set_up_torch(config, exits, is_resumed=not is_new)
            exits.callback(timing.stop)
            timing.start(run.path / "timing", component="learner")
        else:
            threads, gpu = shared.threads, shared.gpu
            shared.add(run.path)
        if gpu:
            run.add_versions(gpu)
        training = Training(
            algorithm,
            config,
            environment,
            run,
            is_resumed=not is_new,
            resumed=resumed,
            on_report=on_report,
            threads=threads,
            exits=exits,
            envs_to_close=envs_to_close,
            shared=shared,
        )
        is_interrupted = False
        try:
            result = yield from algorithm.run(training)
        except NonFiniteUpdate as error:
            raise training.explain(error) from None
        except KeyboardInterrupt:
            is_interrupted = True
            raise
        finally:
            training.close(is_interrupted=is_interrupted)
    except BaseException as error:
        with contextlib.suppress(Exception):  # what went wrong first is what should be seen
            exits.close()
        if run is not None:
            run.close()
            is_empty = not run.has_metrics and not isinstance(error, NonFiniteError)
            if is_new and is_empty:  # it ended before its first iteration did
                run.remove()
        if on_end is not None:
            with contextlib.suppress(Exception):
                on_end(None)
        raise
    try:
        try:
            exits.close()
        except Exception as error:  # the run is done, and its result should not be lost
            warnings.warn(f"ending the run raised {error!r}", stacklevel=3)
        if on_end is not None:
            on_end(result)
    finally:
        run.close()
    return result
