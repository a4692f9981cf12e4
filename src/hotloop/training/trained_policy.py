"""Loading and evaluation of trained policies. Perceptrons need no torch.

policy = hotloop.load("runs/CartPole-v1__ppo__1__20260102-030405")
action = policy.act(obs)
print(hotloop.evaluate("runs/mine", episodes=20))
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hotloop.base.html_page import preformatted
from hotloop.base.rounding import format_mean
from hotloop.envs import EnvSpec, VectorEnv, kept_global_generators, make_vec
from hotloop.envs.closing import closing_environments
from hotloop.errors import CheckpointError, ConfigError
from hotloop.policies import ActingPolicy, TrainedPolicy
from hotloop.rollouts import evaluation
from hotloop.runs import RunDirectory
from hotloop.runs.hub import local_run
from hotloop.runs.policies import check_one_policy
from hotloop.runs.progress import episode_info
from hotloop.types import Episode

if TYPE_CHECKING:
    from hotloop.envs.spec import EnvFactory
    from hotloop.envs.turns import TurnGames


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes of an evaluation, ordered by environment and episode."""

    episodes: tuple[Episode, ...]

    @property
    def returns(self) -> list[float]:
        """Return the undiscounted return of each episode."""
        return [episode.undiscounted_return for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """Return the number of steps of each episode."""
        return [episode.length for episode in self.episodes]

    @property
    def num_cut(self) -> int:
        """Return the number of episodes that were cut before their end."""
        return sum(episode.is_cut for episode in self.episodes)

    @property
    def info(self) -> dict[str, list[float | None]]:
        """Return metrics from the environment's `info` by name, a number or None per episode."""
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
        episodes = f"{count} episode{'' if count == 1 else 's'}"
        cut = [episode.length for episode in self.episodes if episode.is_cut]
        if cut:
            episodes += f", {len(cut)} of them cut at {max(cut):,} steps"
        return f"mean return {format_mean(self.mean_return, self.std_return)} over {episodes}"

    def _repr_html_(self) -> str:
        return preformatted(self)


def load(path: str | Path, checkpoint: str | None = None, *, trust: bool = False) -> TrainedPolicy:
    """Load a trained policy.

    Args:
        path: a run directory, a checkpoint in one, or a model on the Hugging Face Hub:
            `hf://user/name` or `hf://user/name@REVISION`.
        checkpoint: `last`, `best` or another checkpoint of a run directory; `last` by default.
        trust: whether to import a custom network or head that the run names.

    Returns:
        The policy. `policy.act(obs)` takes an observation of the environment, or a batch of them,
        and returns an action, or a batch, for its `step`.

    Raises:
        RunDirectoryError: the run does not exist.
        HubError: the model can't be downloaded.
        CheckpointError: the checkpoint is missing or damaged.
        ConfigError: both `path` and `checkpoint` name a checkpoint.
        UntrustedError: the run names a custom network or head, and `trust` is False.
    """
    directory, name = _open_run(path, checkpoint)
    network, snapshot, _ = directory.load_policy(name, is_trusted=trust)
    return TrainedPolicy(ActingPolicy(network, snapshot))


def evaluate(
    run: str | Path,
    env: EnvSpec | str | EnvFactory | None = None,
    *,
    episodes: int = 100,
    checkpoint: str | None = None,
    seed: int | None = None,
    max_steps: int = evaluation.MAX_STEPS,
    opponent: str | None = None,
    on_note: Callable[[str], None] = lambda _: None,
    trust: bool = False,
) -> EvaluationResult:
    """Play a trained policy with its most probable actions.

    Args:
        run: a run directory, a checkpoint in one, or a model on the hub, see `load`.
        env: other environments with the same spaces, as an `EnvSpec`, an id or a factory; the run's
            by default.
        episodes: the number of episodes.
        checkpoint: `last`, `best` or another checkpoint of a run directory; `last` by default.
        seed: the environments' seed; by default that of an `EnvSpec`, otherwise the run's.
        max_steps: the maximum length of an episode. A longer one is cut, and counts with its return
            up to there.
        opponent: the opponent in a game: `random`, `module:function` or a run directory. A run of
            self-play plays against `random` by default.
        on_note: called with the state of a lengthy evaluation every 5 s.
        trust: whether to import custom code that the run names.

    Returns:
        The episodes, the same ones each time if the environments can be seeded.

    Raises:
        RunDirectoryError, CheckpointError, UntrustedError: see `load`.
        CheckpointError: the environment has other spaces than the policy.
        ConfigError: `episodes`, `seed` or `max_steps` is out of range.
        EnvironmentFailure: an environment raised.
    """
    # Check the arguments, and load the policy.
    if not isinstance(episodes, numbers.Integral) or episodes < 1:
        raise ConfigError(f"`episodes` must be a positive integer, got {episodes!r}")
    if max_steps < 1:
        raise ConfigError(f"`max_steps` must be positive, got {max_steps}")
    if seed is not None and seed < 0:
        raise ConfigError(f"`seed` must not be negative, got {seed}")
    directory, name = _open_run(run, checkpoint)
    if env is None:
        directory.check_trusted(is_trusted=trust, only_environment=True)
    network, snapshot, _ = directory.load_policy(name, is_trusted=trust)
    policy = ActingPolicy(network, snapshot)

    # Make the environments, and play in them.
    spec = run_spec(directory) if env is None else EnvSpec.of(env)
    config = {"num_envs": 1, **directory.config["config"]}
    if seed is None:
        seed = spec.seed if spec is env else config["seed"]
    has_masks = network.action_spec.is_masked
    spec = replace(spec, seed=seed, stream="evaluation", action_masks=has_masks)
    with kept_global_generators(seed, "evaluation"), closing_environments() as to_close:
        if opponent is not None or (env is None and config.get("self_play")):
            envs: VectorEnv = make_opposed(spec, config["num_envs"], opponent, is_trusted=trust)
        elif env is None and config.get("policies"):
            from hotloop.training.partners import evaluation_environments

            envs = evaluation_environments(directory, spec, config["num_envs"], is_trusted=trust)
        else:
            envs = make_vec(spec, config["num_envs"])
        to_close.append(envs)
        if envs.obs_spec != network.obs_spec or envs.action_spec != network.action_spec:
            raise CheckpointError(
                f"the policy of {directory.path} was trained on other spaces than "
                f"'{spec.name}' has now: evaluate it with the environment's "
                "original version, listed in config.json"
            )
        played = evaluation.evaluate(
            envs, policy, num_episodes=episodes, max_steps=max_steps, on_note=on_note
        )
        return EvaluationResult(tuple(played))


def make_opposed(
    spec: EnvSpec, num_envs: int, opponent: str | None, *, is_trusted: bool | None = None
) -> TurnGames:
    """Return games against an opponent, `random` by default; see `evaluate` and `make_player`."""
    from hotloop.envs.game_factory import make_turn_games
    from hotloop.training.opponents import RANDOM, FixedOpponent

    fixed = FixedOpponent(opponent or RANDOM, spec.seed, is_trusted=is_trusted)
    return make_turn_games(spec, num_envs, fixed)


def film_maker(
    directory: RunDirectory, opponent: str | None, *, trust: bool = False
) -> Callable[[EnvSpec], VectorEnv] | None:
    """Return the function that makes the game of a video, None for a run without other players."""
    config = directory.config["config"]
    has_opponent = opponent is not None or config.get("self_play")
    if not (has_opponent or config.get("policies")):
        return None

    def make(spec: EnvSpec) -> VectorEnv:
        if has_opponent:
            return make_opposed(spec, 1, opponent, is_trusted=trust)
        from hotloop.training.partners import evaluation_environments

        return evaluation_environments(directory, spec, None, is_trusted=trust)

    return make


def run_spec(directory: RunDirectory) -> EnvSpec:
    """Return a run's environments, without action masks."""
    config = {"env_kwargs": {}, "log_info": (), **directory.config["config"]}
    fields = {name: config[name] for name in ("env_kwargs", "seed", "log_info")}
    return EnvSpec(directory.config["env_id"], **fields)


def _open_run(path: str | Path, checkpoint: str | None) -> tuple[RunDirectory, str]:
    """Open a run, and return it with the name of the requested checkpoint."""
    folder, name = split_run_path(local_run(path))
    if name is not None and checkpoint is not None:
        raise ConfigError(
            f"`checkpoint` must be left out if the path names one, got '{checkpoint}' and {path}"
        )
    check_one_policy(folder)
    return RunDirectory.open(folder), name or checkpoint or "last"


def split_run_path(path: Path) -> tuple[Path, str | None]:
    """Return a path's run directory, and the checkpoint's name if the path is a checkpoint."""
    if path.parent.name == "checkpoints" and not (path / "config.json").is_file():
        return path.parent.parent, path.name
    return path, None
