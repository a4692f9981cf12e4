"""The lifecycle of a run: open or reopen its directory, assemble its loop, and clean up."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from hotloop.base.importing import check_not_imported
from hotloop.base.redaction import without_secrets
from hotloop.base.signals import delayed_interrupt, immediate_interrupt
from hotloop.envs import EnvSpec
from hotloop.errors import NonFiniteError, RunDirectoryError
from hotloop.learner import choose_device
from hotloop.runs import OnReport, RunDirectory, RunResult
from hotloop.runs.run_status import STATUS_FILE, RunStatus
from hotloop.timing import span
from hotloop.timing.gpu_window import GpuWindows
from hotloop.training.algorithm import Algorithm
from hotloop.training.callbacks import Callback, CallbackList, stopping_rules
from hotloop.training.evaluation import Evaluator
from hotloop.training.loop import Stages, training_loop
from hotloop.training.observers import Observers
from hotloop.training.options import (
    AnyConfig,
    RunOptions,
    changeable_options,
    differing_defaults,
    to_json,
)
from hotloop.training.process import TrainingProcess
from hotloop.training.reporting import Reporter
from hotloop.training.resume import OpenedRun, check_network, describe_resume, reopen, rewind_run
from hotloop.training.run_updates import Run
from hotloop.training.self_play import makers_of
from hotloop.training.sources import Makers, make_sources


def run_training(
    algorithm: Algorithm[AnyConfig],
    config: AnyConfig,
    environment: str | Callable[..., Any],
    on_report: OnReport | None,
    on_end: Callable[[RunResult | None], None] | None,
    resume_from: str | Path | None,
    *,
    callbacks: Sequence[Callback] = (),
    envs_to_close: list[Any],
    process: TrainingProcess | None = None,
    makers: Makers | None = None,
) -> Run[RunResult]:
    """Train as a generator of update requests, and save the last iteration however it ends.

    Args:
        algorithm, config, on_report, on_end, resume_from, callbacks: see `Algorithm.train`.
        envs_to_close: a list that receives the environments of this process.
        process: the process of several runs, None for a single run.
        makers: the functions that make its environments, None for those of a single policy.
    """
    check_not_imported()
    run: OpenedRun[AnyConfig] | None = None
    is_assembled = False
    exits = contextlib.ExitStack()
    rules = stopping_rules(config, has_evaluations=config.eval_interval is not None)
    makers = makers_of(config) if makers is None else makers
    callback_list = CallbackList(callbacks, rules=(*rules, *makers.callbacks))

    # Open the run, train, and save the last iteration.
    try:
        with delayed_interrupt():  # files exist from here on, and need cleanup
            run = _open_run(algorithm, config, EnvSpec(environment).name, resume_from)
        if process is None:
            process = TrainingProcess(run.config, exits, is_resumed=run.is_resumed)
        process.add(run.directory)
        stages, observers = yield from _assemble(
            algorithm,
            environment,
            run,
            on_report,
            callback_list,
            process,
            exits,
            envs_to_close,
            makers,
        )
        is_assembled = True
        if process.num_runs > 1:  # the loops of several runs overlap in time
            stages.interrupts = immediate_interrupt
        with observers.closing():
            yield from makers.wait(stages)
            yield from training_loop(stages, observers)
            result = observers.result()
        callback_list.end(result)
    except BaseException as error:
        # Clean up after a failure or a signal.
        with contextlib.suppress(Exception):  # the first error is the one to raise
            exits.close()
        with contextlib.suppress(Exception):
            callback_list.end(None)
        if run is not None:
            _close_failed(run, error, is_assembled=is_assembled)
        if on_end is not None:
            with contextlib.suppress(Exception):
                on_end(None)
        raise

    # Clean up after a complete run.
    try:
        _write_status(run.directory, result.status, result.stop_reason)
        try:
            exits.close()
        except Exception as error:  # a failed cleanup must not discard the result
            warnings.warn(f"ending the run raised {error!r}", stacklevel=3)
        if on_end is not None:
            on_end(result)
    finally:
        run.directory.close()
    return result


def _open_run(
    algorithm: Algorithm[AnyConfig], config: AnyConfig, env: str, resume_from: str | Path | None
) -> OpenedRun[AnyConfig]:
    """Create a run directory, or reopen one."""
    if resume_from is not None:
        return reopen(config, Path(resume_from), algorithm=algorithm.reference, env=env)
    return OpenedRun(create_directory(algorithm, config, env), config)


def create_directory(algorithm: Algorithm[Any], config: RunOptions, env: str) -> RunDirectory:
    """Create the directory of a training."""
    stored = to_json(config)
    return RunDirectory.create(
        config.run_dir,
        runs_dir=config.runs_dir,
        env_id=env,
        algorithm=algorithm.name,
        reference=algorithm.reference,
        seed=config.seed,
        config=stored,
        may_change=changeable_options(type(config)),
        defaults=differing_defaults(config, stored),
        network=stored.get("network"),
    )


def _assemble(
    algorithm: Algorithm[AnyConfig],
    environment: str | Callable[..., Any],
    run: OpenedRun[AnyConfig],
    on_report: OnReport | None,
    callbacks: CallbackList,
    process: TrainingProcess,
    exits: contextlib.ExitStack,
    envs_to_close: list[Any],
    makers: Makers,
) -> Run[tuple[Stages, Observers]]:
    """Make the environments, the stages and the observers of a run, and restore its checkpoint.

    Yield the requests of `makers.wait` before the checkpoint is restored. Everything that must be
    closed goes to `exits` or to `envs_to_close`, in the order of its creation.
    """
    # Make the environments.
    resumed = run.checkpoint
    _record_gpu(run, exits)
    reporter = Reporter(run.directory, on_report)
    exits.callback(reporter.write_accounting)  # after the workers have stopped
    with span("make_envs"):
        sources = make_sources(algorithm, environment, run, makers, envs_to_close)
        config = sources.config
        if config.has_workers:
            exits.callback(sources.envs.close)  # workers have their own time limit
        else:
            envs_to_close.append(sources.envs)
        make, make_game = makers.evaluation, makers.film
        evaluator = Evaluator(run, config, sources.spec, envs_to_close, reporter, make, make_game)

    # Make the stages.
    stages = makers.adapt(algorithm.make_stages(sources))
    yield from makers.wait(stages)
    options = algorithm.collection_options(config)
    reporter.attach_rollout(stages.rollout, options, stages.policy.network)
    callbacks.connect(stages.rollout)

    # Restore the checkpoint.
    summary = ""
    if resumed is not None:
        callbacks.load(resumed.position.callbacks)  # may set attributes, which a replay needs
        check_network(stages.policy.network, resumed, run.directory.path)
        restarted_envs, notes = stages.restore(resumed)
        notes += callbacks.describe_missing(resumed.position.callbacks)
        device, num_restarted = str(stages.learner.device), len(restarted_envs)
        summary = describe_resume(run, config, device, sources.envs, num_restarted, notes)
    if run.is_resumed:
        with delayed_interrupt():
            rewind_run(run, config, evaluator.best)
    stages.collect = callbacks.observe_rollouts(stages.collect)
    return stages, Observers(run, config, process, stages, evaluator, reporter, callbacks, summary)


def _record_gpu(run: OpenedRun, exits: contextlib.ExitStack) -> None:
    """Start to record windows of the GPU's work, if the configuration requests it."""
    window_ms, device = run.config.gpu_window_ms, choose_device(run.config.device)
    if window_ms and device.type == "cuda":
        path = run.directory.path / "timing"
        windows = GpuWindows(path, "learner", length_s=window_ms / 1e3)
        exits.callback(windows.stop)
        windows.start()


def _write_status(
    run: RunDirectory, status: Literal["finished", "stopped", "failed"], reason: str
) -> None:
    """Write how the run ended. A failure is ignored, since it would hide the cause of the end."""
    ended_at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with contextlib.suppress(RunDirectoryError):
        status_file = RunStatus(status=status, reason=without_secrets(reason), ended_at=ended_at)
        run.write_json(STATUS_FILE, vars(status_file))


def _close_failed(run: OpenedRun, error: BaseException, *, is_assembled: bool) -> None:
    """Close the directory of a failed run, and remove a new one without a complete iteration."""
    is_interrupted = isinstance(error, KeyboardInterrupt)
    reason = str(error) or ("SIGINT" if is_interrupted else type(error).__name__)
    _write_status(run.directory, "stopped" if is_interrupted else "failed", reason)
    run.directory.close()
    is_empty = not run.directory.has_metrics and not isinstance(error, NonFiniteError)
    is_unused_copy = run.is_copy and not is_assembled
    if is_unused_copy or (not run.is_resumed and is_empty):
        run.directory.remove()
