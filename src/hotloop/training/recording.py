"""Data sets of Minari from a trained policy."""

from __future__ import annotations

import inspect
import shutil
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base.importing import describe_exception
from hotloop.envs import kept_global_generators, make_env
from hotloop.envs.masks import MaskWriter
from hotloop.envs.seeding import episode_seed
from hotloop.errors import ConfigError, EnvironmentFailure, OutputError, requires_extra
from hotloop.rollouts.evaluation import MAX_STEPS
from hotloop.runs import RunDirectory
from hotloop.training.options.constraints import DATASET_NAME
from hotloop.training.recorded import datasets_path
from hotloop.training.trained_policy import load, run_spec


def record_episodes(
    run: str | Path,
    name: str,
    *,
    episodes: int = 100,
    checkpoint: str = "last",
    is_sampled: bool = False,
    seed: int | None = None,
    max_steps: int = MAX_STEPS,
    is_trusted: bool = False,
    on_episode: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Play episodes with the policy of a run, and write them as a data set of Minari.

    Args:
        run: the run directory.
        name: the data set, such as `pendulum/medium-v0`.
        episodes: number of episodes.
        checkpoint: `last`, `best` or another checkpoint.
        is_sampled: whether actions are sampled instead of the most probable ones.
        seed: seed of environments and actions; the run's by default.
        max_steps: maximum length of an episode. A longer one is cut, as a truncation.
        is_trusted: whether to import code that the run names, even if another user trained it.
        on_episode: called with the number of finished episodes.

    Returns:
        `dataset`, `path`, `episodes`, `steps`, `mean_return` and `std_return`.

    Raises:
        ConfigError: the name is invalid or in use.
        MissingExtraError: Minari is not installed.
        EnvironmentFailure: the environment raised.
        OutputError: the data set can't be written.
    """
    with requires_extra("data sets of Minari need it", "minari"):
        import h5py  # noqa: F401  (the library of Minari's default format)
        from minari.data_collector import EpisodeBuffer
    # Check the arguments before any step.
    path = datasets_path() / name
    if not DATASET_NAME.fullmatch(name):
        raise ConfigError(
            "a data set must be named like pendulum/medium-v0, with a version at its end and a "
            f"namespace of two characters or more, got '{name}'"
        )
    _require_new(name, path)
    directory = RunDirectory.open(run)
    directory.check_trusted(is_trusted=is_trusted, only_environment=True)
    policy = load(run, checkpoint, trust=is_trusted)
    spec = run_spec(directory)
    seed = spec.seed if seed is None else seed
    # Play the episodes.
    buffers: list[Any] = []
    with kept_global_generators(seed, "evaluation"):
        env = make_env(spec)
        try:
            rng = np.random.default_rng(seed)
            for number in range(episodes):
                start = episode_seed(seed, 0, number, "evaluation")
                fields = _play(env, policy, start, max_steps, rng if is_sampled else None)
                buffers.append(EpisodeBuffer(id=number, seed=start, **fields))
                on_episode(number + 1)
        except Exception as error:
            raise EnvironmentFailure(
                f"{spec.name} failed in episode {len(buffers)}: {describe_exception(error)}"
            ) from error
        finally:
            env.close()
    # Write the episodes. Another process may have made the data set in the meantime.
    _require_new(name, path)
    description = f"{episodes} episodes of a policy that hotloop trained on {spec.name}"
    algorithm_name = directory.config["algorithm"]
    _write(name, path, buffers, env, algorithm_name=algorithm_name, description=description)
    returns = [float(np.sum(buffer.rewards)) for buffer in buffers]
    return {
        "dataset": name,
        "path": str(path),
        "episodes": episodes,
        "steps": sum(map(len, buffers)),
        "mean_return": float(np.mean(returns)),
        "std_return": float(np.std(returns)),
    }


def _write(name: str, path: Path, buffers: list[Any], env: Any, **texts: str) -> None:
    """Write a data set, or remove its directory if that fails.

    Raises:
        OutputError: it can't be written.
    """
    import minari

    create = minari.create_dataset_from_buffers
    options: dict[str, Any] = {}
    if "jpeg_encoding" in inspect.signature(create).parameters:
        options["jpeg_encoding"] = False  # images without losses
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing authors
            create(
                name,
                buffers,
                env=env if env.spec is not None else None,
                observation_space=env.observation_space,
                action_space=env.action_space,
                **texts,
                **options,
            )
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        raise OutputError(
            f"the data set {path} can't be written ({describe_exception(error)}): free some space, "
            "or choose another MINARI_DATASETS_PATH"
        ) from error


def _require_new(name: str, path: Path) -> None:
    if path.exists():
        raise ConfigError(
            f"the data set '{name}' is there already, in {path}: choose another name or version"
        )


def _play(
    env: Any, policy: Any, seed: int, max_steps: int, rng: np.random.Generator | None
) -> dict[str, Any]:
    """Return the fields of one episode. `rng`: sample actions from it."""
    obs, info = env.reset(seed=seed)
    memory, spec = policy.new_memory(), policy.network.action_spec
    masks, mask = MaskWriter(spec) if spec.is_masked else None, None
    observations, steps = [deepcopy(obs)], []  # the environment may reuse its arrays
    is_running = True
    while is_running:
        if masks is not None:
            mask = np.empty(masks.size, np.bool_)
            masks.write_from(env, obs, info, mask)
        action = policy.act(obs, memory, action_mask=mask, deterministic=rng is None, rng=rng)
        obs, reward, terminated, truncated, info = env.step(action)
        truncated |= len(steps) + 1 == max_steps and not terminated
        observations.append(deepcopy(obs))
        steps.append((action, float(reward), bool(terminated), bool(truncated)))
        is_running = not (terminated or truncated)
    actions, rewards, terminations, truncations = zip(*steps, strict=True)
    return {
        "observations": _stacked(observations),
        "actions": _stacked(actions),
        "rewards": list(rewards),
        "terminations": list(terminations),
        "truncations": list(truncations),
    }


def _stacked(values: Any) -> Any:
    """Return values of a space as arrays over time, in dictionaries and tuples of that space."""
    first = values[0]
    if isinstance(first, dict):
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(parts) for parts in zip(*values, strict=True))
    return np.stack([np.asarray(value) for value in values])
