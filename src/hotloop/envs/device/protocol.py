"""The interface of environments whose arrays are torch tensors on the learner's device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from hotloop.envs.spaces import ActionSpec, ObsSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# A state by name: what a checkpoint holds of environments.
Tensors = dict[str, "Tensor"]


class DeviceStep(NamedTuple):
    """What a step of N environments leads to: tensors on the device.

    Attributes:
        next_obs: (N, *obs_shape), the true successor of what was acted on.
        reward: float32, (N,).
        terminated: bool, (N,).
        truncated: bool, (N,).
        obs: (N, *obs_shape), what to act on next: `next_obs`, or the first observation of the next
            episode where this one ended.
    """

    next_obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    obs: Tensor


@runtime_checkable
class DeviceVectorEnv(Protocol):
    """N environments that step on a device. A factory makes them: `make(num_envs, device)`.

    None of them waits for the host: no `.item()`, no branch on a tensor's value.
    """

    @property
    def num_envs(self) -> int:
        """N."""
        ...

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        ...

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        ...

    def reset(self, seed: int) -> Tensor:
        """Start a new episode everywhere; what follows depends on the seed and the actions alone.

        Returns:
            First observations, (N, *obs_shape).
        """
        ...

    def step(self, action: Tensor) -> DeviceStep:
        """One step of every environment; those whose episode ends begin another one.

        Args:
            action: (N, *action_shape), as the policy drew it: box actions are clipped here.

        Returns:
            Tensors that later steps leave alone.
        """
        ...

    def state(self) -> Tensors | None:
        """Return copies of all that later steps depend on; None: it can't be had.

        Where there is none, a run that is resumed begins new episodes.
        """
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, in environments made alike; tensors may be on the host."""
        ...

    def close(self) -> None:
        """Give up what is held; harmless when repeated."""
        ...


class TensorEnvironment(Protocol):
    """One kind of environment as functions of tensors, N environments at once.

    `TensorVectorEnv` makes environments of it, which reset as all others do. The functions change
    nothing that they are given, and look at no tensor's value: so a whole rollout is compiled, or
    captured as one CUDA graph.
    """

    @property
    def obs_spec(self) -> ObsSpec:
        """Shape, dtype and layout of one observation."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """Kind, shape and bounds of one action."""
        ...

    @property
    def num_uniform(self) -> int:
        """U, how many random numbers the first state of an episode is made of."""
        ...

    @property
    def max_episode_steps(self) -> int | None:
        """Steps after which an episode is truncated; None: it never is."""
        ...

    def initial(self, uniform: Tensor) -> Tensors:
        """Return first states, tensors of (N, …), from uniform numbers in (0, 1), (N, U)."""
        ...

    def observation(self, state: Tensors) -> Tensor:
        """Return what is observed, (N, *obs_shape)."""
        ...

    def step(self, state: Tensors, action: Tensor) -> tuple[Tensors, Tensor, Tensor]:
        """Return the next states, the reward, float32, (N,), and `terminated`, bool, (N,).

        Args:
            state: what `initial` or `step` gave.
            action: (N, *action_shape), box actions clipped to their bounds.
        """
        ...
