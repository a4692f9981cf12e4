"""Buffer fields from an environment's spaces. The only module of `replay` that uses Gymnasium."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hotloop.base.stacks import num_stacked_frames
from hotloop.errors import ConfigError, SpaceError, requires_extra


class EnvDescription(NamedTuple):
    """The properties of an environment that a buffer depends on.

    Attributes:
        fields: fields for `ReplayBuffer`.
        num_envs: number of environments that step together.
        frame_stacks: names of the fields that are stacks of frames.
        next_step_autoreset: whether the step after an episode's end is a reset.
    """

    fields: dict[str, Any]
    num_envs: int
    frame_stacks: tuple[str, ...]
    next_step_autoreset: bool = False


def describe_env(env: Any, memory_size: int = 0) -> EnvDescription:
    """Return the properties of an environment.

    Args:
        env: a Gymnasium environment or vector environment, or the result of `make_vec`.
        memory_size: M of a field `memory`, float32, (M,); 0: no such field.

    Raises:
        SpaceError: arrays of a fixed shape can't represent a space.
        ConfigError: `env` is not an environment.
    """
    description = _read_env(env)
    if memory_size > 0:
        description.fields["memory"] = ((memory_size,), np.float32)
    return description


def _read_env(env: Any) -> EnvDescription:
    """Return the fields and properties of an environment."""
    num_envs = int(getattr(env, "num_envs", 1))
    if hasattr(env, "obs_spec") and hasattr(env, "action_spec"):
        obs = env.obs_spec.shape, np.dtype(env.obs_spec.dtype)
        action = env.action_spec.shape, np.dtype(env.action_spec.dtype)
        is_stack = env.obs_spec.num_frames > 0
        if not env.action_spec.mask_size:
            fields = _transition_fields(obs, action)
            return EnvDescription(fields, num_envs, ("obs",) if is_stack else ())
        # A mask belongs to its observation, so both are stored once.
        parts = {"obs": obs, "mask": ((env.action_spec.mask_size,), np.dtype(np.bool_))}
        fields = _transition_fields(parts, action)
        return EnvDescription(fields, num_envs, ("obs.obs",) if is_stack else ())
    observation_space = getattr(env, "single_observation_space", None)
    action_space = getattr(env, "single_action_space", None)
    if observation_space is None:
        observation_space = getattr(env, "observation_space", None)
        action_space = getattr(env, "action_space", None)
    if observation_space is None or action_space is None:
        raise ConfigError(
            f"`env` must be a Gymnasium environment or a result of `hotloop.make_vec`, got "
            f"{type(env).__name__}"
        )
    fields = _transition_fields(
        _space_fields(observation_space, "observation"), _space_fields(action_space, "action")
    )
    is_stack = num_stacked_frames(env, getattr(observation_space, "shape", None) or ()) > 0
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    mode = getattr(mode, "value", mode)
    resets = mode == "NextStep" or type(env).__module__.startswith("envpool")
    return EnvDescription(fields, num_envs, ("obs",) if is_stack else (), resets)


def _transition_fields(obs: Any, action: Any) -> dict[str, Any]:
    return {
        "obs": obs,
        "action": action,
        "reward": ((), np.float32),
        "next_obs": obs,
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
    }


def _space_fields(space: Any, label: str) -> Any:
    """Return the shape and dtype of a space, or a dictionary of these."""
    with requires_extra("`for_env` needs Gymnasium", "train", note=", or declare `fields`"):
        from gymnasium import spaces
    if isinstance(space, spaces.Dict):
        return {str(key): _space_fields(part, label) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(key): _space_fields(part, label) for key, part in enumerate(space.spaces)}
    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        return space.shape, np.dtype(np.float32) if dtype.kind == "f" else dtype
    if isinstance(space, spaces.Discrete):
        return (), np.dtype(np.int64)
    if isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        return space.shape, np.dtype(space.dtype)
    raise SpaceError(
        f"the {label} space {space} has no arrays of one shape: declare `fields` yourself, or "
        "convert it to a Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
    )
