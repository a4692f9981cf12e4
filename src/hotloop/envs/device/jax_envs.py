"""Vector environments from JAX functions, which share their arrays with torch through DLPack.

They vectorize the functions of one environment. A library's own vector environments are unsuitable:
they reset automatically, and hide the last observation of an episode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np
import torch
from torch import Tensor

from hotloop.base.transfer import to_host
from hotloop.envs.device.protocol import DeviceStep, Tensors
from hotloop.envs.device.specs import box_observations
from hotloop.envs.spaces import ActionSpec
from hotloop.errors import CheckpointError, ConfigError, SpaceError

_LEAF = "jax."  # prefix of the index of a state array


@dataclass(frozen=True, kw_only=True)
class JaxEnvironment:
    """One environment as functions of JAX arrays.

    Attributes:
        name: name of the environment in messages.
        reset: `reset(key)`, which returns a state and the first observation.
        step: `step(key, state, action)`, returns state, observation, reward, terminated, truncated.
        obs_shape: shape of one observation.
        action_spec: spec of one action.
        max_episode_steps: maximum length of an episode, None if `step` truncates episodes.
        initial_state_interval: number of steps for which the initial states of all environments
            are reused, since a reset of a physics engine costs more than a step.
    """

    name: str
    reset: Callable[[Any], tuple[Any, Any]]
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any]]
    obs_shape: tuple[int, ...]
    action_spec: ActionSpec
    max_episode_steps: int | None = None
    initial_state_interval: int = 1


class JaxVectorEnv:
    """N environments of one kind. See `DeviceVectorEnv`.

    Args:
        environment: functions of one environment.
        num_envs: N.
        device: device of the tensors.

    Raises:
        ConfigError: JAX does not support the device.
    """

    def __init__(self, environment: JaxEnvironment, num_envs: int, device: torch.device) -> None:
        self._environment, self.num_envs, self.device = environment, num_envs, device
        self._jax_device = jax_device(environment.name, device)
        self.obs_spec = box_observations(*environment.obs_shape)
        self.action_spec = spec = environment.action_spec
        self._bounds: tuple[Any, Any] | None = None
        if spec.kind == "box":
            low, high = (np.reshape(x, spec.shape) for x in (spec.low, spec.high))
            self._bounds = low.astype(np.float32), high.astype(np.float32)
        self._jitted_begin, self._jitted_advance = jax.jit(self._begin), jax.jit(self._advance)
        self._carry: Any = None

    def reset(self, seed: int) -> Tensor:
        """See `DeviceVectorEnv`."""
        with jax.default_device(self._jax_device):
            self._carry, obs = self._jitted_begin(jax.random.PRNGKey(seed % 2**32))
        return to_torch(obs)

    def step(self, action: Tensor) -> DeviceStep:
        """See `DeviceVectorEnv`."""
        if not action.is_floating_point():
            action = action.to(torch.int32)  # by default JAX has no 64-bit integers
        with jax.default_device(self._jax_device):
            self._carry, arrays = self._jitted_advance(self._carry, to_jax(action))
        return DeviceStep(*map(to_torch, arrays))

    def state(self) -> Tensors:
        """See `DeviceVectorEnv`."""
        # Store bytes, since a state may have dtypes that torch lacks.
        leaves = jax.tree.leaves(self._carry)
        return {
            f"{_LEAF}{k}": torch.from_numpy(np.frombuffer(np.asarray(x).tobytes(), np.uint8).copy())
            for k, x in enumerate(leaves)
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """See `DeviceVectorEnv`.

        Raises:
            CheckpointError: the state belongs to another environment or library version.
        """
        if self._carry is None:
            self.reset(0)  # determines the structure of a state
        leaves, tree = jax.tree.flatten(self._carry)
        loaded: list[Any] = []
        for k, like in enumerate(leaves):
            stored = state.get(f"{_LEAF}{k}")
            if stored is None or stored.numel() != like.nbytes or len(state) != len(leaves):
                raise CheckpointError(
                    f"the checkpoint's state of '{self._environment.name}' does not match this "
                    "version of the library: resume with the version of the run, or start a new run"
                )
            array = np.frombuffer(to_host(stored).tobytes(), like.dtype).reshape(like.shape)
            loaded.append(jax.device_put(array, self._jax_device))
        self._carry = jax.tree.unflatten(tree, loaded)

    def close(self) -> None:
        """Release the state."""
        self._carry = None

    def _initial_states(self, key: Any) -> tuple[Any, Any]:
        return jax.vmap(self._environment.reset)(jax.random.split(key, self.num_envs))

    def _begin(self, key: Any) -> tuple[Any, Any]:
        key, first_key, next_key = jax.random.split(key, 3)
        state, obs = self._initial_states(first_key)
        length = jnp.zeros(self.num_envs, jnp.int32)
        carry = (state, self._initial_states(next_key), length, jnp.zeros((), jnp.int32), key)
        return carry, obs.astype(jnp.float32)

    def _advance(self, carry: Any, action: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return the new state and the arrays of a step, which resets environments at their end."""
        state, initial, length, clock, key = carry
        key, step_key, reset_key = jax.random.split(key, 3)
        if self._bounds is not None:
            action = jnp.clip(action, *self._bounds)
        keys = jax.random.split(step_key, self.num_envs)
        state, next_obs, reward, terminated, truncated = jax.vmap(self._environment.step)(
            keys, state, action
        )
        length, clock = length + 1, clock + 1
        if self._environment.max_episode_steps is not None:
            truncated = truncated | (length >= self._environment.max_episode_steps)
        is_ended = terminated | truncated
        first_state, first_obs = initial

        def select(new: Any, old: Any) -> Any:
            if old.shape[:1] != is_ended.shape:  # an array that all environments share
                return old
            return jnp.where(is_ended.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        obs = select(first_obs, next_obs)
        state = jax.tree.map(select, first_state, state)
        interval = self._environment.initial_state_interval
        if interval == 1:
            initial = self._initial_states(reset_key)
        else:
            initial = jax.lax.cond(
                clock % interval == 0,
                lambda: self._initial_states(reset_key),
                lambda: (first_state, first_obs),
            )
        arrays = (
            next_obs.astype(jnp.float32),
            reward.astype(jnp.float32),
            terminated,
            truncated,
            obs.astype(jnp.float32),
        )
        return (state, initial, jnp.where(is_ended, 0, length), clock, key), arrays


def jax_device(name: str, device: torch.device) -> Any:
    """Return the JAX device of a torch device.

    Raises:
        ConfigError: JAX does not have the device.
    """
    # By default JAX allocates three quarters of the accelerator's memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    platform = "cpu" if device.type == "cpu" else "gpu"
    try:
        return jax.devices(platform)[device.index or 0]
    except (RuntimeError, IndexError) as error:
        known = ", ".join(map(str, jax.devices()))
        raise ConfigError(
            f"{name}: environments must be on the learner's device, {device}, but JAX sees "
            f"only {known}: install JAX for that device (`jax[cuda12]`), or train with `device` "
            "'cpu'"
        ) from error


def to_torch(x: Any) -> Tensor:
    """Return a read-only tensor that shares the memory of a JAX array."""
    return torch.from_dlpack(x)


def to_jax(x: Tensor) -> Any:
    """Return a JAX array that shares the memory of a tensor, which must not change afterwards."""
    return jax.dlpack.from_dlpack(x.contiguous())


def unsupported_space(name: str, problem: str) -> SpaceError:
    """Return the error for unsupported spaces."""
    return SpaceError(
        f"{name}: {problem}, but environments on the device need one array of numbers as "
        "observation, and discrete or continuous actions: wrap it in a custom factory"
    )
