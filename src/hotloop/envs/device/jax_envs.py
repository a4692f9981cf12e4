"""Environments written in JAX, stepped side by side, whose arrays are passed on by DLPack.

The bare functions of one environment are wrapped here, and not a library's own vector of
environments: those reset by themselves, and hide the last observation of an episode.
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

from hotloop.envs.device.protocol import DeviceStep, Tensors
from hotloop.envs.device.specs import numbers
from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.errors import CheckpointError, ConfigError, SpaceError

_LEAF = "jax."  # before the numbers of a state's arrays


@dataclass(frozen=True, kw_only=True)
class JaxEnvironment:
    """One environment as functions of JAX's arrays.

    Attributes:
        name: what messages call it.
        reset: `reset(key)` gives a state and the first observation.
        step: `step(key, state, action)` gives state, observation, reward, terminated, truncated.
        obs_shape: of one observation.
        action_spec: of one action.
        max_episode_steps: after which an episode is truncated; None: `step` says when.
        steps_of_first: first states are made anew for all environments after so many steps, and
            kept until then: a reset of a physics engine costs more than a step.
    """

    name: str
    reset: Callable[[Any], tuple[Any, Any]]
    step: Callable[[Any, Any, Any], tuple[Any, Any, Any, Any, Any]]
    obs_shape: tuple[int, ...]
    action_spec: ActionSpec
    max_episode_steps: int | None = None
    steps_of_first: int = 1


class JaxVectorEnv:
    """N environments of one kind; see `DeviceVectorEnv`.

    Args:
        kind: the environment.
        num_envs: N.
        device: where the tensors are.

    Raises:
        ConfigError: JAX does not know the device.
    """

    def __init__(self, kind: JaxEnvironment, num_envs: int, device: torch.device) -> None:
        self._kind, self._num_envs, self._device = kind, num_envs, device
        self._jax_device = jax_device(kind.name, device)
        self._obs_spec = numbers(*kind.obs_shape)
        self._bounds: tuple[Any, Any] | None = None
        spec = kind.action_spec
        if spec.kind == "box":
            low, high = (np.reshape(x, spec.shape) for x in (spec.low, spec.high))
            self._bounds = low.astype(np.float32), high.astype(np.float32)
        self._begin, self._advance = jax.jit(self._begun), jax.jit(self._advanced)
        self._carry: Any = None

    @property
    def num_envs(self) -> int:
        """N."""
        return self._num_envs

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        return self._obs_spec

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        return self._kind.action_spec

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self._device

    def reset(self, seed: int) -> Tensor:
        """See `DeviceVectorEnv`."""
        with jax.default_device(self._jax_device):
            self._carry, obs = self._begin(jax.random.PRNGKey(seed % 2**32))
        return to_torch(obs)

    def step(self, action: Tensor) -> DeviceStep:
        """See `DeviceVectorEnv`."""
        if not action.is_floating_point():
            action = action.to(torch.int32)  # JAX has no 64 bits unless it is told to
        with jax.default_device(self._jax_device):
            self._carry, told = self._advance(self._carry, to_jax(action))
        return DeviceStep(*map(to_torch, told))

    def state(self) -> Tensors:
        """See `DeviceVectorEnv`."""
        # By way of bytes: a state may hold numbers that torch has no type for.
        leaves = jax.tree.leaves(self._carry)
        return {
            f"{_LEAF}{k}": torch.from_numpy(np.frombuffer(np.asarray(x).tobytes(), np.uint8).copy())
            for k, x in enumerate(leaves)
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """See `DeviceVectorEnv`.

        Raises:
            CheckpointError: it is the state of another environment, or of another version.
        """
        if self._carry is None:
            self.reset(0)  # what a state looks like
        leaves, tree = jax.tree.flatten(self._carry)
        loaded: list[Any] = []
        for k, like in enumerate(leaves):
            kept = state.get(f"{_LEAF}{k}")
            if kept is None or kept.numel() != like.nbytes or len(state) != len(leaves):
                raise CheckpointError(
                    f"the checkpoint's state of '{self._kind.name}' is not as this version of the "
                    "library has it: resume with the version that it was trained with, or train "
                    "anew"
                )
            array = np.frombuffer(kept.cpu().numpy().tobytes(), like.dtype).reshape(like.shape)
            loaded.append(jax.device_put(array, self._jax_device))
        self._carry = jax.tree.unflatten(tree, loaded)

    def close(self) -> None:
        """Let go of the state."""
        self._carry = None

    # --- JAX ------------------------------------------------------------------------------------

    def _first(self, key: Any) -> tuple[Any, Any]:
        return jax.vmap(self._kind.reset)(jax.random.split(key, self._num_envs))

    def _begun(self, key: Any) -> tuple[Any, Any]:
        key, now, later = jax.random.split(key, 3)
        state, obs = self._first(now)
        length = jnp.zeros(self._num_envs, jnp.int32)
        carry = (state, self._first(later), length, jnp.zeros((), jnp.int32), key)
        return carry, obs.astype(jnp.float32)

    def _advanced(self, carry: Any, action: Any) -> tuple[Any, tuple[Any, ...]]:
        state, first, length, clock, key = carry
        key, stepping, resetting = jax.random.split(key, 3)
        if self._bounds is not None:
            action = jnp.clip(action, *self._bounds)
        keys = jax.random.split(stepping, self._num_envs)
        state, next_obs, reward, terminated, truncated = jax.vmap(self._kind.step)(
            keys, state, action
        )
        length, clock = length + 1, clock + 1
        if self._kind.max_episode_steps is not None:
            truncated = truncated | (length >= self._kind.max_episode_steps)
        ended = terminated | truncated
        first_state, first_obs = first

        def chosen(new: Any, old: Any) -> Any:
            if old.shape[:1] != ended.shape:  # what all environments share
                return old
            return jnp.where(ended.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        obs = chosen(first_obs, next_obs)
        state = jax.tree.map(chosen, first_state, state)
        every = self._kind.steps_of_first
        if every == 1:
            first = self._first(resetting)
        else:
            first = jax.lax.cond(
                clock % every == 0, lambda: self._first(resetting), lambda: (first_state, first_obs)
            )
        told = (
            next_obs.astype(jnp.float32),
            reward.astype(jnp.float32),
            terminated,
            truncated,
            obs.astype(jnp.float32),
        )
        return (state, first, jnp.where(ended, 0, length), clock, key), told


def jax_device(name: str, device: torch.device) -> Any:
    """Return JAX's device for one of torch's.

    Raises:
        ConfigError: it has none.
    """
    # Else it takes three quarters of the accelerator's memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    platform = "cpu" if device.type == "cpu" else "gpu"
    try:
        return jax.devices(platform)[device.index or 0]
    except (RuntimeError, IndexError) as error:
        known = ", ".join(map(str, jax.devices()))
        raise ConfigError(
            f"{name}: environments must be on the learner's device, {device}, but JAX sees "
            f"{known} alone: install JAX for that device (`jax[cuda12]`), or train with `device` "
            "'cpu'"
        ) from error


def to_torch(x: Any) -> Tensor:
    """Return a tensor in the memory of one of JAX's arrays; it must not be written to."""
    return torch.from_dlpack(x)


def to_jax(x: Tensor) -> Any:
    """Return one of JAX's arrays in the memory of a tensor, which is not to change any more."""
    return jax.dlpack.from_dlpack(x.contiguous())


def unsupported(name: str, what: str) -> SpaceError:
    """What to raise of spaces that are not supported."""
    return SpaceError(
        f"{name}: {what}, and environments on the device have observations that are one array of "
        "numbers, and discrete or continuous actions: wrap it in a factory of your own"
    )
