"""The lifecycle of a run: its directory, environments, reports, checkpoints and cleanup."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hotloop import timing
from hotloop.base.crowding import CrowdingMonitor
from hotloop.base.signals import PendingInterrupt, delayed_interrupt, pending_interrupt
from hotloop.envs import EnvSpec, advice_for_non_finite, kept_global_generators
from hotloop.envs.closing import closing_environments
from hotloop.errors import ConfigError, NonFiniteError, NonFiniteUpdate
from hotloop.learner import Learner, choose_device, torch_threads
from hotloop.learner.threads import ThreadLimiter, available_threads
from hotloop.ops.products import Precision, gpu_arithmetic
from hotloop.policies import ActingPolicy, Network, PolicySnapshot
from hotloop.policies.device_acting import DevicePolicy
from hotloop.rollouts import Rollout
from hotloop.runs import Checkpoint, OnReport, RunDirectory, RunResult
from hotloop.timing import span
from hotloop.timing.gpu_window import GpuWindows
from hotloop.training.algorithm import Algorithm
from hotloop.training.checkpoint_state import CheckpointState
from hotloop.training.evaluation import Evaluator
from hotloop.training.options import changeable_options, differing_defaults, to_json
from hotloop.training.reporting import Reporter
from hotloop.training.resume import ResumedRun, check_network, describe_restarts, reopen, rewind_run
from hotloop.training.saving import Saver
from hotloop.training.sources import (
    choose_inference,
    choose_workers,
    describe_workers,
    make_device_environments,
    make_environments,
    steps_on_device,
    training_spec,
)
from hotloop.training.update_requests import Run, drive
from hotloop.types import Array


def train(
    algorithm: Algorithm,
    config: Any,
    *,
    env: str | Callable[..., Any] | None = None,
    network: str | Callable[..., Any] | None = None,
    on_report: OnReport | None = None,
    on_end: Callable[[RunResult | None], None] | None = None,
    resume_from: str | Path | None = None,
) -> RunResult:
    """Train, and write a run directory.

    Args:
        algorithm: one of hotloop's, or your own.
        config: the configuration, of the algorithm's `config` class.
        env: a factory of environments, called with `config.env_kwargs`; replaces `config.env_id`.
        network: a class or function that makes a torch module; replaces `config.network`.
        on_report: called before the first iteration and after each; returning True stops the run.
        on_end: called with the result, or with None after an error or Ctrl-C. The run's files are
            written by then, and environments are closed later, so a failing `close` loses nothing.
        resume_from: a run directory, or a checkpoint in one, to resume. Options must be unchanged,
            except `total_timesteps`, which may grow, and options that do not change the weights.

    Returns:
        The policy and where everything was written.

    Raises:
        ConfigError, UnknownNameError, SpaceError, MissingExtraError: before the run starts.
        CheckpointError: the checkpoint is damaged or belongs to another run.
        EnvironmentFailure: an environment raised, or returned values outside its spaces.
        NonFiniteError: a loss was NaN or infinite.
        RunDirectoryError: the run directory exists, is missing, is in use, or can't be written.
        KeyboardInterrupt: after metrics, timing and the last checkpoint were written.

    The process records its timing into the run directory, which ends a recording of the caller. To
    record again afterwards, call `timing.start`. Environments of this process have 10 s to close at
    the end, and a slower or failing `close` causes a warning. There is no
    limit outside the main thread.
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
    with kept_global_generators(), closing_environments() as envs:
        return drive(
            run_training(
                algorithm, config, environment, on_report, on_end, resume_from, envs_to_close=envs
            )
        )


class SharedProcess:
    """The process-wide settings and timing of several runs in one process.

    Args:
        threads: the update's threads if their number adapts, None if it is fixed.
        gpu: settings of the GPU, for the runs' records.

    Attributes:
        run_dirs: the run directories. Timing is recorded in the first.
    """

    def __init__(
        self, threads: ThreadLimiter | None, gpu: Mapping[str, str], num_runs: int
    ) -> None:
        self.threads, self.gpu, self.num_runs = threads, gpu, num_runs
        self.run_dirs: list[Path] = []

    def add(self, run_dir: Path) -> None:
        """Add the directory of another run."""
        self.run_dirs.append(run_dir)
        if len(self.run_dirs) == 1:
            timing.start(run_dir / "timing", component="learner")


class Training:
    """The environments, reports and checkpoints of a run, for an algorithm's loop.

    Attributes:
        config: the algorithm's configuration, with all automatic choices made.
        device: the device of the updates.
        is_on_device: whether the training environments step on that device.
        envs: the training environments.
        env_spec: the training environments' specification.
        resumed: the checkpoint that the run resumes from, None for a new run.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        config: Any,
        environment: str | Callable[..., Any],
        run: RunDirectory,
        *,
        is_resumed: bool,
        resumed: ResumedRun | None,
        on_report: OnReport | None,
        threads: ThreadLimiter | None,
        exits: contextlib.ExitStack,
        envs_to_close: list[Any],
        shared: SharedProcess | None,
    ) -> None:
        # Set up the device and the recorders.
        self._shared = shared
        self.resumed, self.env_spec = resumed, training_spec(environment, config)
        self._threads = threads
        self.device = choose_device(config.device)
        if config.gpu_window_ms and self.device.type == "cuda":
            length_s = config.gpu_window_ms / 1e3
            windows = GpuWindows(run.path / "timing", "learner", length_s=length_s)
            exits.callback(windows.stop)
            windows.start()
        self._reporter = Reporter(run, on_report)
        exits.callback(self._reporter.write_accounting)
        num_threads = config.torch_threads
        self._cores = CrowdingMonitor(num_threads if isinstance(num_threads, int) else 0)
        # Make automatic choices, which may need measurements, and the environments.
        with span("make_envs"):
            self.is_on_device = steps_on_device(
                self.env_spec, config, is_able=algorithm.learns_on_device
            )
            if config.workers == "auto":
                config = choose_workers(
                    config,
                    self.env_spec,
                    run,
                    options=algorithm.collection_options(config),
                    make_network=partial(algorithm.acting_network, config),
                    nonblocking_schedule=algorithm.nonblocking_schedule(config),
                )
            if config.inference == "auto":
                config = choose_inference(
                    config, self.env_spec, run, partial(algorithm.acting_network, config)
                )
            self.config = config
            self.envs: Any = (
                make_device_environments(config, self.env_spec, self.device)
                if self.is_on_device
                else make_environments(config, self.env_spec, run, resumed)
            )
            if config.has_workers:
                exits.callback(self.envs.close)  # workers have their own time limit
            else:
                envs_to_close.append(self.envs)
            best = None if resumed is None else resumed.position.best
            if best is not None and not run.checkpoints.has(best.timesteps):
                best = None  # a later, better one replaced it, and the run resumes before that
            self._evaluator = Evaluator(
                *(config, self.env_spec, run, best, envs_to_close, self._reporter),
                is_resumed=is_resumed,
            )
        self._saver = Saver(run, config.keep_checkpoints, resumed)
        self._run = run
        self._is_resumed = is_resumed
        self._options = algorithm.collection_options(config)

    def make_rollout(self, policy: ActingPolicy | DevicePolicy) -> Rollout:
        """Return a rollout with a policy, on the device if the environments step there.
        Raises:
            CheckpointError: the checkpoint belongs to another network.
        """
        rollout = self.envs.rollout(policy, self._options)
        self._reporter.attach_rollout(rollout, self._options, policy.network)
        if self.resumed is not None:
            check_network(policy.network, self.resumed, self._run.path)
        return rollout

    def begin(
        self, learner: Learner, restarted_envs: Sequence[int] = (), notes: Sequence[str] = ()
    ) -> bool:
        """Make the first report, and return whether it requests a stop.

        This removes checkpoints and metrics after the checkpoint that the run resumes from.

        Args:
            learner: the learner, whose execution is reported.
            restarted_envs: environments whose episodes could not be restored.
            notes: other differences from the original run, in sentences.

        Raises:
            ConfigError, MissingExtraError: a tracker can't be opened.
        """
        # Describe what differs from the run before it was interrupted.
        config, resumed, summary = self.config, self.resumed, ""
        if resumed is not None:
            summary = f"resumed at {resumed.position.timesteps:,} steps"
            if restarted_envs:
                summary += f"; {describe_restarts(len(restarted_envs), self.envs)}"
            summary += "".join(f"; {note}" for note in notes)
            if str(learner.device) != resumed.position.device:
                summary += (
                    f"; updates now run on {learner.device} instead of {resumed.position.device}, "
                    "which changes the numbers"
                )
            old_total = self._run.config["config"]["total_timesteps"]
            if old_total != config.total_timesteps:
                summary += (
                    f"; the run now has {config.total_timesteps:,} steps instead of {old_total:,}, "
                    "which stretches its schedules"
                )
        # Rewind the files, and start reporting.
        if self._is_resumed:
            best = self._evaluator.best
            with delayed_interrupt():
                rewind_run(self._run, config, resumed, None if best is None else best.timesteps)
        for update in learner.executions:
            update.on_progress = self._reporter.show_activity
        self._cores.start()
        choice = (
            learner.executions[0].choice
            if self._shared is None
            else learner.choose(num_lanes=self._shared.num_runs)
        )
        return self._reporter.begin(
            config,
            execution="" if choice.may_use_cached else choice.reason,  # the first update decides
            resumed=summary,
            workers=describe_workers(config, self._run),
            position=None if resumed is None else resumed.position,
            is_resumed=self._is_resumed,
        )

    def end_iteration(
        self,
        position: CheckpointState,
        *,
        network: Network,
        snapshot: PolicySnapshot,
        arrays: Callable[[], Mapping[str, Array]],
        metrics: Mapping[str, float],
        rollout: Rollout,
        files: Mapping[str, Callable[[Path], None]] | None = None,
    ) -> bool:
        """Log and report, evaluate and save if due, and return whether to stop.

        Args:
            position: the run's state, not modified by later iterations.
            snapshot: the network's parameters, not modified by later iterations.
            arrays: a function that returns the checkpoint's other arrays, called only on saving.
            rollout: the rollout, for its finished episodes.
            files: further files of a checkpoint, see `Checkpoint`.
        """
        timesteps, old_timesteps = position.timesteps, self._saver.timesteps
        episodes = rollout.pop_episodes()
        line = self._reporter.metrics_line(position, episodes, metrics)
        if self._threads is not None:
            line["torch_threads"] = self._threads.count
            if note := self._threads.adjust():
                self._reporter.show_activity(note)
        self._cores.update()
        checkpoint = Checkpoint(
            network=network.to_json(), snapshot=snapshot, arrays=arrays, state={}, files=files or {}
        )

        def complete() -> None:
            """Log the iteration, and set its checkpoint, which the next save writes."""
            with span("report"), delayed_interrupt():
                self._reporter.log(timesteps, line)
                state = dataclasses.replace(
                    position, progress=self._reporter.progress, best=self._evaluator.best
                )
                self._saver.set_latest(dataclasses.replace(checkpoint, state=state.to_json()))

        # Evaluate if due, then complete, save and report the iteration.
        evaluation = None
        if self._evaluator.is_due(old_timesteps, timesteps):
            try:
                evaluation = self._evaluator.evaluate(network, snapshot, timesteps)
            except Exception:  # a failed evaluation must not lose the iteration
                complete()
                raise
            line["evaluation"] = evaluation.to_json()
        complete()
        interval = self.config.checkpoint_interval
        if timesteps // interval > old_timesteps // interval or (evaluation and evaluation.is_best):
            self._saver.save(self._evaluator.best)
        with span("report"):
            return self._reporter.report(timesteps, metrics, evaluation)

    def result(self, policy: ActingPolicy, learner: Learner, *, is_stopped: bool) -> RunResult:
        """Return the result of the finished run."""
        return self._reporter.result(
            policy.on_host(),
            learner.executions,
            timesteps=self._saver.timesteps,
            is_stopped=is_stopped,
        )

    def pending_interrupt(self) -> contextlib.AbstractContextManager[PendingInterrupt]:
        """Defer interrupts to the end of the body, unless the bodies of several runs overlap."""
        return (
            pending_interrupt()
            if self._shared is None
            else contextlib.nullcontext(PendingInterrupt())
        )

    def non_finite_error(self, error: NonFiniteUpdate) -> NonFiniteError:
        """Save the update's batch, and return an error that names the update and the file."""
        note = "its batch was overwritten since"
        if error.batch:
            note = f"its batch is saved in {self._run.save_arrays('nonfinite_batch', error.batch)}"
        return NonFiniteError(
            f"losses and parameters must be finite, but update {error.update} of iteration "
            f"{self._saver.iteration + 1} gave NaN or infinity in {', '.join(error.names)}: "
            f"{advice_for_non_finite(error.batch)}; {note}"
        )

    def close(self, *, is_interrupted: bool) -> None:
        """Save the last complete iteration, wherever the loop ended."""
        try:
            self._saver.close(self._evaluator.best)
            self._cores.update(is_final=True)  # while there are workers
            self._reporter.write_core_waits(self._cores.crowding())
        finally:
            self._reporter.close(is_interrupted=is_interrupted)


def set_up_torch(
    config: Any, exits: contextlib.ExitStack, *, is_resumed: bool = False
) -> tuple[ThreadLimiter | None, dict[str, str]]:
    """Set torch's threads and the GPU's arithmetic until `exits` closes.

    Args:
        is_resumed: whether the run is resumed, possibly without its original GPU.

    Returns:
        The threads if their number adapts to the load, else None; and the GPU's settings.

    Raises:
        ConfigError: the device does not exist, or does not support the precision.
    """
    device = choose_device(config.device)
    precision: Precision = getattr(config, "precision", "float32")
    if is_resumed and device.type == "cpu" and precision == "tf32":
        precision = "float32"  # the first report names the changed device
    gpu = exits.enter_context(gpu_arithmetic(precision, device))
    if isinstance(config.torch_threads, int):
        exits.enter_context(torch_threads(config.torch_threads))
        return None, gpu
    return exits.enter_context(ThreadLimiter(available_threads()).limiting()), gpu


def run_training(
    algorithm: Algorithm,
    config: Any,
    environment: str | Callable[..., Any],
    on_report: OnReport | None,
    on_end: Callable[[RunResult | None], None] | None,
    resume_from: str | Path | None,
    *,
    envs_to_close: list[Any],
    shared: SharedProcess | None = None,
) -> Run[RunResult]:
    """Train as a generator of update requests, and save the last iteration however it ends.

    Args:
        algorithm, config, on_report, on_end, resume_from: see `train`.
        envs_to_close: a list that receives the environments of this process.
        shared: the settings of a process with several runs, None for a single run.
    """
    # Create or reopen the run directory.
    name = EnvSpec(environment).name
    run, resumed = None, None
    is_new = resume_from is None
    exits = contextlib.ExitStack()
    try:
        with delayed_interrupt():  # files exist from here on, and need cleanup
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
                    may_change=changeable_options(type(config)),
                    defaults=differing_defaults(config, stored),
                    network=stored.get("network"),
                )
            else:
                run, config, resumed = reopen(
                    config, Path(resume_from), algorithm=algorithm.reference, env=name
                )
        # Set up torch and timing, then train.
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
            raise training.non_finite_error(error) from None
        except KeyboardInterrupt:
            is_interrupted = True
            raise
        finally:
            training.close(is_interrupted=is_interrupted)
    # Clean up after an error.
    except BaseException as error:
        with contextlib.suppress(Exception):  # the first error is the one to raise
            exits.close()
        if run is not None:
            run.close()
            is_empty = not run.has_metrics and not isinstance(error, NonFiniteError)
            if is_new and is_empty:  # no iteration was completed
                run.remove()
        if on_end is not None:
            with contextlib.suppress(Exception):
                on_end(None)
        raise
    # Clean up after a complete run.
    try:
        try:
            exits.close()
        except Exception as error:  # a failed cleanup must not lose the result
            warnings.warn(f"ending the run raised {error!r}", stacklevel=3)
        if on_end is not None:
            on_end(result)
    finally:
        run.close()
    return result
