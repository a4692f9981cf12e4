"""Trained policies: loaded from a run, and evaluated. Needs no torch for perceptrons.

policy = hotloop.load("runs/CartPole-v1__ppo__1__20260102-030405")
action = policy.act(obs)
print(hotloop.evaluate("runs/mine", episodes=20))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.envs import environment_name, make_vec
from hotloop.envs.closing import closed_in_time
from hotloop.errors import CheckpointError, ConfigError
from hotloop.policies import ActingPolicy
from hotloop.rollouts import evaluation
from hotloop.runs import RunDirectory
from hotloop.runs.report import episode_info
from hotloop.types import Episode


@dataclass(frozen=True)
class Played:
    """Episodes of an evaluation.

    Attributes:
        episodes: by environment and episode.
    """

    episodes: tuple[Episode, ...]

    @property
    def returns(self) -> list[float]:
        """Return the undiscounted return of each episode."""
        return [episode.undiscounted_return for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """Return the steps of each episode."""
        return [episode.length for episode in self.episodes]

    @property
    def info(self) -> dict[str, list[float | None]]:
        """Return the environment's own numbers: by name, one for each episode, or None."""
        return episode_info(self.episodes)

    @property
    def mean_return(self) -> float:
        """Return the mean of the returns."""
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """Return the standard deviation of the returns."""
        return float(np.std(self.returns))

    def __str__(self) -> str:
        count = len(self.episodes)
        counted = f"{count} episode{'' if count == 1 else 's'}"
        return f"mean return {self.mean_return:.1f} ± {self.std_return:.1f} over {counted}"


def load(path: str | Path, checkpoint: str | None = None, *, trust: bool = False) -> ActingPolicy:
    """Load a trained policy.

    Args:
        path: a run directory, or a checkpoint in one.
        checkpoint: `last`, `best` or another one of a run directory; `last` by default.
        trust: import a network of somebody else's, where the run names one.

    Returns:
        What acts: `policy.act(obs)` takes observations as the environment gives them, one or a
        batch, and returns what its `step` takes.

    Raises:
        RunDirectoryError: there is no run.
        CheckpointError: its checkpoint is missing or damaged.
        ConfigError: both `path` and `checkpoint` name one.
        UntrustedError: it names a network of somebody else's.
    """
    directory, name = _opened(path, checkpoint)
    network, snapshot, _ = directory.load_policy(name, is_trusted=trust)
    return ActingPolicy(network, snapshot)


def evaluate(
    run: str | Path,
    env: str | Callable[..., Any] | None = None,
    *,
    episodes: int = 100,
    checkpoint: str | None = None,
    seed: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Played:
    """Play a trained policy with its most probable actions.

    Args:
        run: a run directory, or a checkpoint in one.
        env: an id or a factory of other environments with the same spaces; the run's by default.
        episodes: how many to play.
        checkpoint: `last`, `best` or another one of a run directory; `last` by default.
        seed: of the environments; the run's by default.
        env_kwargs: what environments are made with; the run's by default, of another `env` none.
        trust: import what somebody else's run names.

    Returns:
        The episodes: the same ones each time, where environments take seeds.

    Raises:
        RunDirectoryError, CheckpointError, UntrustedError: see `load`.
        CheckpointError: the environment has other spaces than the policy.
        ConfigError: `episodes` or `seed` can't be.
        EnvironmentFailure: an environment raised, or an episode does not end.
    """
    if episodes < 1:
        raise ConfigError(f"`episodes` must be positive, got {episodes}")
    if seed is not None and seed < 0:
        raise ConfigError(f"`seed` must not be negative, got {seed}")
    directory, name = _opened(run, checkpoint)
    if env is None:
        directory.check_trusted(is_trusted=trust, only_environment=True)
    network, snapshot, _ = directory.load_policy(name, is_trusted=trust)
    policy = ActingPolicy(network, snapshot)
    config = {"num_envs": 1, "env_kwargs": {}, "log_info": (), **directory.config["config"]}
    own_kwargs = config["env_kwargs"] if env is None else {}
    environment = directory.config["env_id"] if env is None else env
    with closed_in_time() as to_close:
        envs = make_vec(
            environment,
            config["num_envs"],
            seed=config["seed"] if seed is None else seed,
            env_kwargs=own_kwargs if env_kwargs is None else env_kwargs,
            stream="evaluation",
            action_masks=network.obs_spec.mask_size > 0,
            log_info=config["log_info"] if env is None else (),
        )
        to_close.append(envs)
        if envs.obs_spec != network.obs_spec or envs.action_spec != network.action_spec:
            raise CheckpointError(
                f"the policy of {directory.path} was trained on other spaces than "
                f"'{environment_name(environment)}' has now: evaluate it with the environment's "
                "version of that time (config.json has it)"
            )
        return Played(tuple(evaluation.evaluate(envs, policy, num_episodes=episodes)))


def _opened(path: str | Path, checkpoint: str | None) -> tuple[RunDirectory, str]:
    """Open a run, and return which checkpoint of it is meant."""
    folder, name = located(Path(path))
    if name is not None and checkpoint is not None:
        raise ConfigError(
            f"`checkpoint` must be left out where the path names one, got '{checkpoint}' and {path}"
        )
    return RunDirectory.open(folder), name or checkpoint or "last"


def located(path: Path) -> tuple[Path, str | None]:
    """Return the run directory of a path, and the checkpoint if it is of one."""
    if path.parent.name == "checkpoints" and not (path / "config.json").is_file():
        return path.parent.parent, path.name
    return path, None
