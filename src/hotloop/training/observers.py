"""The observers of a run: evaluations, checkpoints and reports after each iteration."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator

from hotloop.base.crowding import CrowdingMonitor
from hotloop.base.signals import PendingInterrupt, delayed_interrupt
from hotloop.envs import advice_for_non_finite
from hotloop.errors import CallbackError, NonFiniteError, NonFiniteUpdate
from hotloop.policies import TrainedPolicy
from hotloop.rollouts.processes.process import INFERENCE_PROGRAM, WORKER_PROGRAM
from hotloop.runs import ON_REPORT, Checkpoint, RunResult
from hotloop.timing import span
from hotloop.training.callbacks import CallbackList
from hotloop.training.checkpoint_state import CompletedIteration
from hotloop.training.evaluation import Evaluator
from hotloop.training.loop import Stages
from hotloop.training.options import AlgorithmOptions
from hotloop.training.process import TrainingProcess
from hotloop.training.reporting import Reporter
from hotloop.training.resume import OpenedRun
from hotloop.training.sources import describe_workers


class Observers:
    """The evaluations, the checkpoints and the reports of a run.

    Args:
        run: the run, whose directory receives everything.
        config: its configuration, with all automatic choices made.
        process: the process of the run.
        stages: the stages that are observed.
        evaluator: the evaluator.
        reporter: the reporter.
        callbacks: the callbacks.
        resumed: a sentence on where the run resumes, empty for a new run.
    """

    def __init__(
        self,
        run: OpenedRun,
        config: AlgorithmOptions,
        process: TrainingProcess,
        stages: Stages,
        evaluator: Evaluator,
        reporter: Reporter,
        callbacks: CallbackList,
        resumed: str,
    ) -> None:
        self._run, self._config, self._process, self._stages = run, config, process, stages
        self._evaluator, self._reporter, self._resumed = evaluator, reporter, resumed
        self._callbacks = callbacks
        # The checkpoint of the last complete iteration, and the step of the last written one.
        self._latest = None if run.checkpoint is None else run.checkpoint.checkpoint
        self._saved_at = self._timesteps
        num_threads = config.torch_threads
        self._cores = CrowdingMonitor(
            num_threads if isinstance(num_threads, int) else 0,
            worker_program=WORKER_PROGRAM,
            inference_program=INFERENCE_PROGRAM,
        )
        self._stop_reason = ""

    def begin(self) -> bool:
        """Make the first report, and return whether to continue.

        Raises:
            ConfigError, MissingExtraError: a tracker can't be opened.
        """
        learner, num_runs = self._stages.learner, self._process.num_runs
        for update in learner.executions:
            update.on_progress = self._reporter.show_activity
        self._cores.start()
        choice = learner.executions[0].choice
        if num_runs > 1:
            choice = learner.choose(num_lanes=num_runs)
        checkpoint = self._run.checkpoint
        is_stopped = self._reporter.begin(
            self._config,
            execution="" if choice.may_use_cached else choice.reason,  # known after an update
            resumed=self._resumed,
            workers=describe_workers(self._config, self._run.directory),
            position=None if checkpoint is None else checkpoint.position,
            is_resumed=self._run.is_resumed,
        )
        self._stop_reason = self._callbacks.start(self._reporter.describe(self._timesteps, {}))
        if is_stopped:
            self._stop_reason = ON_REPORT
        return not self._stop_reason

    def end_iteration(self, iteration: CompletedIteration, interrupt: PendingInterrupt) -> bool:
        """Log and report, evaluate and save if due, and return whether to continue.

        Args:
            iteration: the results of the iteration.
            interrupt: the signals that have arrived, which end an evaluation without a result.
        """
        # Collect the iteration's metrics.
        timesteps, old_timesteps = iteration.position.timesteps, self._timesteps
        episodes = self._stages.rollout.pop_episodes()
        line = self._reporter.metrics_line(iteration.position, episodes, iteration.metrics)
        if self._process.threads is not None:
            line["torch_threads"] = self._process.threads.count
            if note := self._process.threads.adjust():
                self._reporter.show_activity(note)
        self._cores.update()

        network, evaluation = self._stages.policy.network, None
        # Keep the states of callbacks that were not passed to this resumed run.
        states = {} if self._latest is None else self._latest.state.get("callbacks", {})

        def complete() -> None:
            """Log the iteration, and set its checkpoint, which the next save writes."""
            with span("report"), delayed_interrupt():
                self._reporter.log(timesteps, line)
                state = dataclasses.replace(
                    iteration.position,
                    progress=self._reporter.progress,
                    best=self._evaluator.best,
                    callbacks=states,
                )
                self._latest = Checkpoint(
                    network=network.to_json(),
                    snapshot=iteration.snapshot,
                    arrays=iteration.arrays,
                    state=state.to_json(),
                    files=iteration.files,
                )

        # Call the callbacks, evaluate if due, then complete, save and report the iteration.
        try:
            report = self._reporter.describe(timesteps, iteration.metrics)
            self._stop_reason = self._callbacks.notify("on_update", report)
            if self._evaluator.is_due(old_timesteps, timesteps):
                evaluation = self._evaluator.evaluate(
                    network, iteration.snapshot, timesteps, interrupt
                )
            if evaluation is not None:
                line["evaluation"] = evaluation.to_json()
                report = self._reporter.describe(timesteps, iteration.metrics, evaluation)
                self._stop_reason = (
                    self._callbacks.notify("on_evaluation", report) or self._stop_reason
                )
            states = {**states, **self._callbacks.states()}
        except BaseException:  # a failed evaluation, or a signal, must not lose the iteration
            with contextlib.suppress(CallbackError):
                states = {**states, **self._callbacks.states()}
            complete()
            raise
        complete()
        interval = self._config.checkpoint_interval
        if timesteps // interval > old_timesteps // interval or (evaluation and evaluation.is_best):
            self._save()
        with span("report"):
            if self._reporter.send(report):
                self._stop_reason = ON_REPORT
        if timesteps >= self._config.total_timesteps:
            self._stop_reason = ""
            return False
        return not self._stop_reason

    def result(self) -> RunResult:
        """Return the result of the finished run."""
        return self._reporter.result(
            TrainedPolicy(self._stages.policy.on_host()),
            self._stages.learner.executions,
            timesteps=self._timesteps,
            stop_reason=self._stop_reason,
        )

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Save the last complete iteration, even if the body raises.

        Raises:
            NonFiniteError: an update in the body was not finite.
        """
        is_complete = is_interrupted = False
        try:
            yield
            is_complete = True
        except NonFiniteUpdate as error:
            raise self._non_finite_error(error) from None
        except KeyboardInterrupt:
            is_interrupted = True
            raise
        finally:
            try:
                self._save_latest(is_complete=is_complete)
                self._cores.update(is_final=True)  # while the workers still run
                self._reporter.write_core_waits(self._cores.crowding())
            finally:
                self._reporter.close(is_interrupted=is_interrupted)

    @property
    def _timesteps(self) -> int:
        """Return the transitions after the last complete iteration, 0 before the first."""
        return 0 if self._latest is None else self._latest.state["timesteps"]

    def _save_latest(self, *, is_complete: bool) -> None:
        """Save the last complete iteration at the end, if it is not saved yet."""
        if self._saved_at == self._timesteps:
            return
        try:
            self._save()
        except CallbackError as error:
            if is_complete:
                raise
            warnings.warn(str(error), stacklevel=2)  # the error that ended the run comes first

    def _save(self) -> None:
        """Write the last complete iteration's checkpoint, and link it if it is the best.

        Raises:
            RunDirectoryError: the checkpoint can't be written, or the directory no longer exists.
            CallbackError: a callback raised, after the checkpoint was written.
        """
        assert self._latest is not None
        directory, best = self._run.directory, self._evaluator.best
        is_best = best is not None and best.timesteps == self._timesteps
        with span("save"), delayed_interrupt():
            directory.check_present()
            directory.sync_metrics()  # a resumed run continues the metrics
            # Link `best` first: if the process is killed in between, the checkpoint that `last`
            # names as the best still exists.
            names = ("best", "last") if is_best else ("last",)
            keep = self._config.keep_checkpoints
            path = directory.checkpoints.save(self._latest, names=names, keep=keep)
            self._saved_at = self._timesteps
        self._callbacks.notify("on_checkpoint", path)

    def _non_finite_error(self, error: NonFiniteUpdate) -> NonFiniteError:
        """Save the update's batch, and return an error that names the update and the file."""
        iteration = 1 if self._latest is None else self._latest.state["iteration"] + 1
        note = "its batch was overwritten since"
        if error.batch:
            path = self._run.directory.save_arrays("nonfinite_batch", error.batch)
            note = f"its batch is saved in {path}"
        is_scaled = self._stages.policy.snapshot.obs_scale is not None
        advice = advice_for_non_finite(error.batch, stored=error.stored, is_scaled=is_scaled)
        return NonFiniteError(
            f"losses and parameters must be finite, but update {error.update} of iteration "
            f"{iteration} gave NaN or infinity in {', '.join(error.names)}: {advice}; {note}"
        )
