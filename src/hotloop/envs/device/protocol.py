"""The interface of environments whose arrays are torch tensors on the learner's device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hotloop.envs.spaces import Spaces

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Tensors by name, the state of environments in a checkpoint.
Tensors = dict[str, "Tensor"]


class DeviceStep(NamedTuple):
    """The results of a step of N environments, as tensors on the device.

    Attributes:
        next_obs: true successors of the previous observations, (N, *obs_shape).
        reward: float32, (N,).
        terminated: bool, (N,).
        truncated: bool, (N,).
        obs: input of the next action, (N, *obs_shape). It is the first observation of the next
            episode if this one ended, otherwise `next_obs`.
    """

    next_obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    obs: Tensor


@runtime_checkable
class DeviceVectorEnv(Spaces, Protocol):
    """N environments that step on a device. A factory `make(num_envs, device)` creates them.

    They do not wait for the host: no `.item()`, no branch on a tensor's value.
    """

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        ...

    def reset(self, seed: int) -> Tensor:
        """Start a new episode in every environment. The seed and the actions determine all results.

        Returns:
            First observations, (N, *obs_shape).
        """
        ...

    def step(self, action: Tensor) -> DeviceStep:
        """Step every environment, and begin the next episode of those whose episode ends.

        Args:
            action: (N, *action_shape), as sampled by the policy. Box actions are clipped here.

        Returns:
            Tensors that later steps do not change.
        """
        ...

    def state(self) -> Tensors | None:
        """Return a copy of the complete state, None if it is unavailable.

        Without a state, a resumed run begins new episodes.
        """
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state` of equal environments. Tensors may be on the host."""
        ...

    def close(self) -> None:
        """Release all resources. Further calls do nothing."""
        ...


class TensorEnvironment(Spaces, Protocol):
    """One kind of environment as functions of tensors, for N environments at once.

    `TensorVectorEnv` adds resets. The functions must not change their arguments or branch on a
    tensor's value, so that a whole rollout can be compiled, or captured as one CUDA graph.
    """

    @property
    def num_uniform(self) -> int:
        """U, the number of random numbers for an initial state."""
        ...

    @property
    def max_episode_steps(self) -> int | None:
        """Maximum length of an episode, None if episodes are never truncated."""
        ...

    def initial(self, uniform: Tensor) -> Tensors:
        """Return initial states, tensors of (N, …), from uniform numbers in (0, 1), (N, U)."""
        ...

    def observation(self, state: Tensors) -> Tensor:
        """Return the observations, (N, *obs_shape)."""
        ...

    def step(self, state: Tensors, action: Tensor) -> tuple[Tensors, Tensor, Tensor]:
        """Return the next states, the reward, float32, (N,), and `terminated`, bool, (N,).

        Args:
            state: states from `initial` or `step`.
            action: (N, *action_shape). Box actions are clipped to their bounds.
        """
        ...
