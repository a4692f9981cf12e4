"""Going on with a run: its directory reopened, checked against the configuration, cut back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from hotloop.errors import CheckpointError, ConfigError
from hotloop.policies import Network
from hotloop.rollouts import Accounting
from hotloop.runs import Checkpoint, RunDirectory
from hotloop.training.options import RunOptions, changed_fields, differing_defaults, to_json
from hotloop.training.position import Position
from hotloop.training.trained import located
from hotloop.types import Array

AnyConfig = TypeVar("AnyConfig", bound=RunOptions)


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that a run goes on from.

    Attributes:
        checkpoint: as it was read.
        position: what its state says.
    """

    checkpoint: Checkpoint
    position: Position

    @cached_property
    def arrays(self) -> Mapping[str, Array]:
        """What the learner, its normalizer and its rollout need to go on."""
        return self.checkpoint.arrays()


def reopen(
    config: AnyConfig, path: Path, *, algorithm: str, env: str
) -> tuple[RunDirectory, AnyConfig, Resumed | None]:
    """Open a run to go on with it.

    Args:
        config: the configuration to go on with.
        path: a run directory, or a checkpoint in one.
        algorithm: by its reference, see `hotloop.algorithms.find`.
        env: the environment's name.

    Returns:
        The directory, locked; the configuration with what was chosen for it; the checkpoint to go
        on from, None where the run was killed before it saved one.

    Raises:
        ConfigError: it is a run of another algorithm, is finished, or had another configuration.
        CheckpointError: it is a run in another environment, or its checkpoint is damaged.
        RunDirectoryError: there is none, or it is in use.
    """
    folder, given = located(path)
    name = given or "last"
    run = RunDirectory.open(folder)
    stored = run.config
    if stored["algorithm"] != algorithm:
        raise ConfigError(
            f"{folder} is a run of {stored['algorithm']}, got {algorithm}: resume it with "
            f"`hotloop resume {folder}`"
        )
    if stored["env_id"] != env:
        raise CheckpointError(
            f"{folder} is a run on '{stored['env_id']}', got '{env}': resume it with that "
            "environment, or train anew"
        )
    run.checkpoints.check_version(name)
    choice = run.choice
    if choice is not None:
        asked = choice["asked"]
        has_them = all(hasattr(config, name) for name in asked)
        if has_them and all(getattr(config, name) == value for name, value in asked.items()):
            config = dataclasses.replace(config, **choice["chosen"])
    changed = changed_fields(config, stored["config"])
    if changed:
        raise ConfigError(
            f"{folder} can only be resumed with the configuration that it was started with, got "
            f"{'; '.join(changed)}: leave these as they were, or train anew"
        )
    run.lock()
    try:
        resumed = None
        if name != "last" or run.checkpoints.has_any():  # else it was killed before it saved one
            checkpoint = run.checkpoints.load(name)
            resumed = Resumed(checkpoint, Position.from_json(checkpoint.state))
            if resumed.position.timesteps >= config.total_timesteps:
                raise ConfigError(
                    f"{folder} is finished: it has {resumed.position.timesteps:,} of "
                    f"{config.total_timesteps:,} steps; ask for more with a larger "
                    "`total_timesteps`, or train anew"
                )
    except BaseException:
        run.close()
        raise
    return run, config, resumed


def finished(run: RunDirectory, config: RunOptions) -> Checkpoint | None:
    """Return a run's last checkpoint if it has all the steps that are asked for; None if not.

    Raises:
        CheckpointError: the last checkpoint is damaged.
    """
    if not run.checkpoints.has_any():
        return None
    last = run.checkpoints.load()
    return last if Position.from_json(last.state).timesteps >= config.total_timesteps else None


def finish(run: RunDirectory, config: RunOptions, last: Checkpoint) -> None:
    """Write the accounting of a run that was killed after its last step, if it has none.

    Of a killed run's workers there is no more than what each iteration has logged.

    Args:
        run: its directory, locked.
        config: the configuration to go on with.
        last: its last checkpoint, as `finished` gives it.

    Raises:
        RunDirectoryError: it can't be written.
    """
    kept = run.path / "accounting.json"
    assert last.path is not None
    is_old = not kept.exists() or kept.stat().st_mtime < last.path.stat().st_mtime
    if config.workers and is_old:
        run.write_json("accounting.json", _accounting(run).to_json())


def _accounting(run: RunDirectory) -> Accounting:
    """What a process that is gone has logged of its transitions."""
    resumed = run.config["resumed"]
    began = resumed[-1]["timesteps"] if resumed else 0
    lines = [line for line in run.metrics() if line["timesteps"] > began]
    dropped = sum(line.get("dropped", 0) for line in lines)
    ages = [int(line["policy_age_max"]) for line in lines if "policy_age_max" in line]
    means = [line["policy_age_mean"] for line in lines if "policy_age_mean" in line]
    trained = lines[-1]["timesteps"] - began if lines else 0
    return Accounting(
        collected=trained + dropped,
        trained=trained,
        dropped={"before the run was killed": dropped} if dropped else {},
        policy_age=(fmean(means) if means else 0.0, max(ages, default=0)),
    )


def cut_back(run: RunDirectory, config: Any, resumed: Resumed | None, best: int | None) -> None:
    """Make the checkpoint that is gone on from the last thing that happened.

    Args:
        run: its directory.
        config: the new one.
        resumed: None where the run was killed before it saved a checkpoint.
        best: the step of the best checkpoint until then; None for none.
    """
    checkpoints, stored = run.checkpoints, to_json(config)
    defaults = differing_defaults(config, stored)
    if resumed is None:
        checkpoints.clear()
        run.resume(stored, timesteps=0, iteration=0, defaults=defaults)
        return
    # In this order, so that nothing is lost by what fails or kills in between.
    position, checkpoint = resumed.position, resumed.checkpoint
    checkpoints.rewind(checkpoint, best=best)
    at = {"timesteps": position.timesteps, "iteration": position.iteration}
    run.resume(stored, **at, defaults=defaults)
    checkpoints.remove_later(checkpoint)


def check_network(network: Network, resumed: Resumed, path: Path) -> None:
    """Make sure that a checkpoint is of this network.

    Raises:
        CheckpointError: it is of another one.
    """
    checkpoint = resumed.checkpoint

    def other(what: str, theirs: Any, ours: Any) -> CheckpointError:
        return CheckpointError(
            f"{path}: the checkpoint's {what} is {theirs}, the run's would be {ours}: resume with "
            "the environment and the network that it was trained with, or train anew"
        )

    for what, value in network.to_json().items():
        if value != checkpoint.network.get(what):
            raise other(what, checkpoint.network.get(what), value)
    stored = {name: array.shape for name, array in checkpoint.snapshot.params.items()}
    shapes = network.parameter_shapes()
    for name in sorted({*stored, *shapes}):
        if stored.get(name) != shapes.get(name):
            raise other(f"parameter `{name}`", stored.get(name), shapes.get(name))
