"""Resuming a run: reopening its directory, checking its configuration, rewinding its files."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Generic

from hotloop.envs import ActionSpec, ObsSpec
from hotloop.errors import CheckpointError, ConfigError
from hotloop.policies import Network
from hotloop.rollouts import Accounting, Environments
from hotloop.runs import Checkpoint, RunDirectory
from hotloop.runs.new_directory import create_directory
from hotloop.runs.run_status import STATUS_FILE
from hotloop.training.checkpoint_state import BestEvaluation, CheckpointState
from hotloop.training.forking import fork
from hotloop.training.options import (
    AnyConfig,
    RunOptions,
    SaveOptions,
    changed_fields,
    differing_defaults,
    to_json,
    with_values,
)
from hotloop.training.trained_policy import split_run_path
from hotloop.types import Array


@dataclass(frozen=True)
class ResumedRun:
    """A checkpoint that a run resumes from.

    Attributes:
        checkpoint: the loaded checkpoint.
        position: its parsed state.
    """

    checkpoint: Checkpoint
    position: CheckpointState

    @cached_property
    def arrays(self) -> Mapping[str, Array]:
        """Return the arrays of the learner, its normalizer and its rollout."""
        return self.checkpoint.arrays()


@dataclass(frozen=True)
class OpenedRun(Generic[AnyConfig]):
    """A run directory that is new or was reopened.

    Attributes:
        directory: the locked directory.
        config: the configuration, with the automatic choices of a resumed run.
        is_resumed: whether the run was reopened.
        checkpoint: the checkpoint to resume from, None if the run is new, or if it was killed
            before it saved one.
        old_total: the run's `total_timesteps` before it was reopened, None if it is new.
        is_copy: whether the directory is a new copy of another run's.
    """

    directory: RunDirectory
    config: AnyConfig
    is_resumed: bool = False
    checkpoint: ResumedRun | None = None
    old_total: int | None = None
    is_copy: bool = False

    @property
    def best(self) -> BestEvaluation | None:
        """Return the best evaluation up to the checkpoint, if its own checkpoint still exists."""
        best = None if self.checkpoint is None else self.checkpoint.position.best
        # If the run resumes from before a later, better evaluation, that one has replaced it.
        has_best = best is not None and self.directory.checkpoints.has(best.timesteps)
        return best if has_best else None


def reopen(config: AnyConfig, path: Path, *, algorithm: str, env: str) -> OpenedRun[AnyConfig]:
    """Open a run to resume it. If `run_dir` is another directory, the run is copied there first.

    Args:
        config: the configuration to resume with.
        path: a run directory, or a checkpoint in one.
        algorithm: the algorithm's reference, see `hotloop.algorithms.find`.
        env: the environment's name.

    Raises:
        ConfigError: the run has another algorithm or configuration, or is finished.
        CheckpointError: the run has another environment, or its checkpoint is damaged.
        RunDirectoryError: there is no such run, or it is in use.
        UntrustedError: its `config.json` was changed after the user's training had signed it.
    """
    # Check the algorithm, the environment and the configuration.
    folder, checkpoint_name = split_run_path(path)
    name = checkpoint_name or "last"
    run = RunDirectory.open(folder)
    run.check_signature()
    stored = run.config
    if stored["algorithm"] != algorithm:
        raise ConfigError(
            f"{folder} is a run of {stored['algorithm']}, got {algorithm}: resume it with "
            f"`hotloop resume {shlex.quote(str(folder))}`"
        )
    if stored["env_id"] != env:
        raise CheckpointError(
            f"{folder} is a run on '{stored['env_id']}', got '{env}': resume it with that "
            "environment, or start a new run"
        )
    run.checkpoints.check_version(name)
    config = check_changes(config, run)
    is_copy = continues_elsewhere(config, run)
    if is_copy:
        target = Path(config.run_dir or folder)
        if not run.checkpoints.has_any():
            raise CheckpointError(f"{folder} has no checkpoint to copy: start a new run")
        _load_unfinished(run, name, config)  # before the copy, which a refusal would leave behind
        name = (folder / "checkpoints" / name).resolve().name
        run = _copied(folder, create_directory(target, may_rename=False), config, name)
    # Load the checkpoint.
    run.lock()
    try:
        resumed = None
        if name != "last" or run.checkpoints.has_any():  # else it was killed before it saved one
            resumed = _load_unfinished(run, name, config)
    except BaseException:
        run.close()
        raise
    old_total = stored["config"]["total_timesteps"]
    return OpenedRun(
        run, config, is_resumed=True, checkpoint=resumed, old_total=old_total, is_copy=is_copy
    )


def _load_unfinished(run: RunDirectory, name: str, config: RunOptions) -> ResumedRun:
    """Return a checkpoint of a run, if it has fewer than `total_timesteps` steps."""
    checkpoint = run.checkpoints.load(name)
    resumed = ResumedRun(checkpoint, CheckpointState.from_json(checkpoint.state))
    if resumed.position.timesteps >= config.total_timesteps:
        raise finished_error(run.path, resumed.position.timesteps, config.total_timesteps)
    return resumed


def finished_error(path: Path, timesteps: int, total_timesteps: int) -> ConfigError:
    """Return the error that a run which should resume has all its steps."""
    return ConfigError(
        f"{path} is finished: it has {timesteps:,} of {total_timesteps:,} steps; set a larger "
        "`total_timesteps`, or start a new run"
    )


def _copied(folder: Path, target: Path, config: RunOptions, checkpoint: str) -> RunDirectory:
    """Copy a run into a new directory, or remove that directory after an error."""
    try:
        fork(folder, target, config, checkpoint=checkpoint)
        return RunDirectory.open(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def check_changes(config: AnyConfig, run: RunDirectory) -> AnyConfig:
    """Return the configuration with the stored automatic choices, if a run can resume with it.

    Raises:
        ConfigError: an option differs that must not change.
    """
    stored, choice = run.config["config"], run.auto_choice
    _check_directory(config, stored, run.path)
    if choice is not None:
        requested = choice["asked"]
        is_known = all(hasattr(config, name) for name in requested)
        if is_known and all(config.value_of(name) == value for name, value in requested.items()):
            config = with_values(type(config), vars(config), choice["chosen"])
    changed = changed_fields(config, stored)
    if changed:
        raise ConfigError(
            f"{run.path} can only be resumed with the configuration that it was started with, got "
            f"{'; '.join(changed)}: restore these options, or start a new run"
        )
    return config


def _check_directory(config: SaveOptions, stored: Mapping[str, Any], folder: Path) -> None:
    """Check that `runs_dir` is the parent of the resumed run's directory, or was left out.

    Args:
        config: the configuration to resume with.
        stored: the run's original configuration from `to_json`. Its directories may be outdated,
            since a run can be moved.
        folder: the run directory.

    Raises:
        ConfigError: `runs_dir` names another directory.
    """
    parent = folder.resolve().parent
    if config.runs_dir in (SaveOptions.runs_dir, stored.get("runs_dir")):
        return
    if not _is_same(Path(config.runs_dir), parent):
        raise ConfigError(
            f"a resumed run continues in its own directory, expected `runs_dir` '{parent}', got "
            f"'{config.runs_dir}': leave `runs_dir` out, or pass a new `run_dir` to continue there"
        )


def continues_elsewhere(config: SaveOptions, run: RunDirectory) -> bool:
    """Return whether `run_dir` is a new directory, which receives a copy of the resumed run."""
    target = Path(config.run_dir or run.path)
    return config.run_dir != run.config["config"].get("run_dir") and not _is_same(target, run.path)


def _is_same(path: Path, other: Path) -> bool:
    """Return whether two paths lead to one directory."""
    return path.resolve() == other.resolve()


def finished_checkpoint(run: RunDirectory, total_timesteps: int) -> Checkpoint | None:
    """Return a run's last checkpoint if it has this number of steps, else None.

    Raises:
        CheckpointError: the last checkpoint is damaged.
    """
    if not run.checkpoints.has_any():
        return None
    last = run.checkpoints.load()
    return last if CheckpointState.from_json(last.state).timesteps >= total_timesteps else None


def write_missing_accounting(run: RunDirectory, config: RunOptions, last: Checkpoint) -> None:
    """Write the missing `accounting.json` of a run that was killed after its last step.

    The metrics of each iteration are the only data about a killed run's workers.

    Raises:
        RunDirectoryError: the file can't be written.
    """
    path = run.path / "accounting.json"
    assert last.path is not None
    is_old = not path.exists() or path.stat().st_mtime < last.path.stat().st_mtime
    if config.workers and is_old:
        run.write_json("accounting.json", _accounting_from_metrics(run).to_json())


def _accounting_from_metrics(run: RunDirectory) -> Accounting:
    """Return the accounting of transitions that a killed process logged in its metrics."""
    resumed = run.config["resumed"]
    start = resumed[-1]["timesteps"] if resumed else 0
    lines = [line for line in run.metrics() if line["timesteps"] > start]
    dropped = sum(line.get("dropped", 0) for line in lines)
    ages = [int(line["policy_age_max"]) for line in lines if "policy_age_max" in line]
    means = [line["policy_age_mean"] for line in lines if "policy_age_mean" in line]
    trained = lines[-1]["timesteps"] - start if lines else 0
    return Accounting(
        collected=trained + dropped,
        trained=trained,
        dropped={"before the run was killed": dropped} if dropped else {},
        policy_age=(fmean(means) if means else 0.0, max(ages, default=0)),
    )


def rewind_run(opened: OpenedRun, config: RunOptions, best: BestEvaluation | None) -> None:
    """Remove all checkpoints and metrics after the checkpoint that the run resumes from.

    Args:
        config: the configuration, with all automatic choices made.
        best: the best evaluation up to there, None if there is none.
    """
    run, resumed = opened.directory, opened.checkpoint
    with contextlib.suppress(OSError):
        (run.path / STATUS_FILE).unlink()  # of an earlier process
    checkpoints, stored = run.checkpoints, to_json(config)
    defaults = differing_defaults(config, stored)
    if resumed is None:
        checkpoints.clear()
        run.resume(stored, timesteps=0, iteration=0, defaults=defaults)
        return
    # Keep this order: a failure or a kill in between loses nothing.
    position, checkpoint = resumed.position, resumed.checkpoint
    checkpoints.rewind(checkpoint, best=None if best is None else best.timesteps)
    at = {"timesteps": position.timesteps, "iteration": position.iteration}
    run.resume(stored, **at, defaults=defaults)
    checkpoints.remove_later(checkpoint)


def describe_resume(
    opened: OpenedRun,
    config: RunOptions,
    device: str,
    envs: Environments,
    num_restarted: int,
    notes: Sequence[str],
) -> str:
    """Return where a run resumes, and what differs from the run before it was interrupted."""
    assert opened.checkpoint is not None
    position = opened.checkpoint.position
    parts = [f"resumed at {position.timesteps:,} steps"]
    if num_restarted:
        parts.append(_describe_restarts(num_restarted, envs))
    parts += notes
    if device != position.device:
        parts.append(
            f"updates now run on {device} instead of {position.device}, which changes the numbers"
        )
    old_total = opened.old_total
    if old_total is not None and old_total != config.total_timesteps:
        parts.append(
            f"the run now has {config.total_timesteps:,} steps instead of {old_total:,}, which "
            "stretches its schedules"
        )
    return "; ".join(parts)


def _describe_restarts(count: int, envs: Environments) -> str:
    """Return how many environments began new episodes on a resume, and why."""
    text = f"the episodes of {count} of {envs.num_envs} environments can't be replayed and restart"
    if not envs.can_replay:
        return text
    return (
        f"{text}: with the same seed and actions they differ, as if the environment drew from a "
        "global random generator instead of `self.np_random`, or depended on time"
    )


def check_network(network: Network, resumed: ResumedRun, path: Path) -> None:
    """Check that a checkpoint belongs to this network.

    Raises:
        CheckpointError: the checkpoint belongs to another network.
    """
    difference = network_difference(network, resumed.checkpoint)
    if difference is not None:
        part, stored_value, value = difference
        raise CheckpointError(
            f"{path}: the checkpoint's {part} is {stored_value}, the run's would be {value}: "
            "resume with the environment and the network of the original run, or start a new run"
        )


def network_difference(network: Network, checkpoint: Checkpoint) -> tuple[str, Any, Any] | None:
    """Return a part of a network, its value in a checkpoint and its value now, if they differ."""
    specs = {"obs_spec": ObsSpec, "action_spec": ActionSpec}
    for part, value in network.to_json().items():
        stored_value = checkpoint.network.get(part)
        if part in specs and stored_value is not None:
            # A run of an older version lacks fields that do not matter here.
            is_equal = False
            with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
                is_equal = specs[part].from_json(stored_value) == getattr(network, part)
        else:
            is_equal = value == stored_value
        if not is_equal:
            return part, stored_value, value
    stored = {name: array.shape for name, array in checkpoint.snapshot.params.items()}
    shapes = network.parameter_shapes()
    for name in sorted({*stored, *shapes}):
        if stored.get(name) != shapes.get(name):
            return f"parameter `{name}`", stored.get(name), shapes.get(name)
    return None
