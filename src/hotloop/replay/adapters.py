"""The fields of a buffer, from what an environment says of itself. Only this module knows
Gymnasium."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hotloop.errors import ConfigError, MissingExtraError, SpaceError
from hotloop.stacks import num_stacked_frames


class Description(NamedTuple):
    """What a buffer needs to know of an environment.

    Attributes:
        fields: as `ReplayBuffer` takes them.
        num_envs: how many environments step together.
        frame_stacks: the fields that are stacks of frames.
        next_step_autoreset: whether a step after an episode's end is its reset.
    """

    fields: dict[str, Any]
    num_envs: int
    frame_stacks: tuple[str, ...]
    next_step_autoreset: bool = False


def describe(env: Any, memory_size: int = 0) -> Description:
    """Look at a Gymnasium environment or vector environment, or one that `make_vec` made.

    Args:
        env: the environment.
        memory_size: M of a field `memory`, float32, (M,); with 0 there is none.

    Raises:
        SpaceError: a space that arrays of one shape can't hold.
        ConfigError: it is no environment.
    """
    description = _described(env)
    if memory_size > 0:
        description.fields["memory"] = ((memory_size,), np.float32)
    return description


def _described(env: Any) -> Description:
    num_envs = int(getattr(env, "num_envs", 1))
    if hasattr(env, "obs_spec") and hasattr(env, "action_spec"):
        obs = env.obs_spec.shape, np.dtype(env.obs_spec.dtype)
        action = env.action_spec.shape, np.dtype(env.action_spec.dtype)
        is_stack = env.obs_spec.num_frames > 0
        return Description(_transition(obs, action), num_envs, ("obs",) if is_stack else ())
    observation_space = getattr(env, "single_observation_space", None)
    action_space = getattr(env, "single_action_space", None)
    if observation_space is None:
        observation_space = getattr(env, "observation_space", None)
        action_space = getattr(env, "action_space", None)
    if observation_space is None or action_space is None:
        raise ConfigError(
            f"`env` must be a Gymnasium environment or what `hotloop.make_vec` made, got "
            f"{type(env).__name__}"
        )
    fields = _transition(
        _of_space(observation_space, "observation"), _of_space(action_space, "action")
    )
    is_stack = num_stacked_frames(env, getattr(observation_space, "shape", None) or ()) > 0
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    mode = getattr(mode, "value", mode)
    resets = mode == "NextStep" or type(env).__module__.startswith("envpool")
    return Description(fields, num_envs, ("obs",) if is_stack else (), resets)


def _transition(obs: Any, action: Any) -> dict[str, Any]:
    return {
        "obs": obs,
        "action": action,
        "reward": ((), np.float32),
        "next_obs": obs,
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
    }


def _of_space(space: Any, what: str) -> Any:
    """A shape and a dtype, or a dictionary of such."""
    try:
        from gymnasium import spaces
    except ImportError as error:
        raise MissingExtraError(
            "`for_env` reads Gymnasium's spaces, which is not installed: pip install "
            "'hotloop[train]', or declare `fields`"
        ) from error
    if isinstance(space, spaces.Dict):
        return {str(key): _of_space(part, what) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(key): _of_space(part, what) for key, part in enumerate(space.spaces)}
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        return space.shape, np.dtype(np.float32) if dtype.kind == "f" else dtype
    if isinstance(space, spaces.Discrete):
        return (), np.dtype(np.int64)
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return space.shape, np.dtype(space.dtype)
    raise SpaceError(
        f"the {what} space {space} has no arrays of one shape: declare `fields` yourself, or turn "
        "it into a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
    )
