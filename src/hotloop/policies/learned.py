"""Networks to differentiate, in torch: functions of one flat vector of parameters and of tensors.

They are the twins of how an `ActingPolicy` acts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.ops.products import Precision, warn_of_slow
from hotloop.policies.critics import Critics
from hotloop.policies.heads.base import MASKED
from hotloop.policies.network import Network
from hotloop.policies.parameters import ParameterLayout

_ABILITIES = ("evaluate", "sample", "act", "values", "draw")


class _Learned:
    def __init__(self, described: Network | Critics, device: torch.device | str) -> None:
        self.layout = ParameterLayout(described.parameter_shapes())
        self.num_params = sum(self.layout.sizes)
        self._described, self._device = described, device

    def initial(self, seed: int) -> Tensor:
        """Return first parameters: float32, (P,), on the device."""
        return self.layout.pack(self._described.initial_parameters(seed), self._device)


class LearnedNetwork(_Learned):
    """A network over one flat vector, (P,).

    A method that its head has nothing for raises `ConfigError`.

    Args:
        network: what is learned.
        precision: of the matrix products.
        device: where parameters and observations are.

    Attributes:
        network: the same.
        layout: where its parameters stand in the vector.
        num_params: P.

    Raises:
        ConfigError: the precision is not one of the user's module.
    """

    def __init__(
        self,
        network: Network,
        *,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(network, device)
        warn_of_slow(precision, torch.device(device))
        self.network = network
        self._head = network.make_head()
        self._mask_size = network.obs_spec.mask_size
        self._outputs = network.layers.learned(precision, device)
        self._scale: tuple[Tensor, Tensor] | None = None
        scale = self._head.action_scale
        if scale is not None and ((scale[0] != 0.0) | (scale[1] != 1.0)).any():
            centre, half = (torch.from_numpy(x).to(device) for x in scale)
            self._scale = centre, half

    def outputs(self, params: Tensor, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the head and the value.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape), as `ActingPolicy.scaled` gives them.

        Returns:
            float32, (B, H), and V(obs), (B,), or None.
        """
        return self._forward(self.layout.unpack(params), obs)

    def step(self, params: Tensor, obs: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the outputs of one step of acting: the head, the value, the new memory.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape), scaled, without an action mask.
            memory: of a network with memory, float32, (B, M), what it remembers.

        Returns:
            (B, H), (B,) and (B, M), without what the network does not have.
        """
        named = self._head.fold(self.layout.unpack(params))
        return tuple(self._outputs(named, obs, *(() if memory is None else (memory,))))

    def evaluate(
        self,
        params: Tensor,
        obs: Tensor,
        action: Tensor,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Any]:
        """Return log π(action), the entropy and the value, (B,) each.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape); of a network with memory the rows of S sequences of L steps, step
                by step.
            action: (B, *action_shape).
            memory: what a network with memory remembered before the first step, (S, M).
            begins: bool, (B,), where an episode begins.

        Returns:
            The value is None where the network has none.
        """
        evaluate = self._ability("evaluate")
        named = self.layout.unpack(params)
        head, value = self._forward(named, obs, memory, begins)
        return *evaluate(named, head, action), value

    def draw(self, params: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Draw actions as an `ActingPolicy` does.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape).
            noise: float32, (B, K), one step of `draw_noise`.

        Returns:
            The actions, (B, *action_shape), log π(action), (B,), and the value, (B,), or None.
        """
        draw, evaluate = self._ability("draw"), self._ability("evaluate")
        named = self.layout.unpack(params)
        head, value = self._forward(named, obs)
        action = draw(named, head, noise)
        return action, evaluate(named, head, action)[0], value

    def draw_noise(self, key: Tensor, first_step: Tensor, *, num_steps: int, num_envs: int) -> Any:
        """Return what actions are drawn with: float32, (T, N, K), see `ops.tensor_noise`."""
        noise = self._ability("device_noise")
        return noise(key, first_step, num_steps=num_steps, num_envs=num_envs)

    def sample(self, params: Tensor, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in [−1, 1], (B, A), drawn with standard normal noise, and log π, (B,)."""
        return self._ability("sample")(self.outputs(params, obs)[0], noise)

    def act(self, params: Tensor, obs: Tensor) -> Tensor:
        """Return actions in [−1, 1], (B, A)."""
        return self._ability("act")(self.outputs(params, obs)[0])

    def values(
        self,
        params: Tensor,
        obs: Tensor,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> Tensor:
        """Return the values of all actions, (B, A); of sequences as `evaluate` takes them."""
        head, _ = self._forward(self.layout.unpack(params), obs, memory, begins)
        return self._ability("values")(head)

    def unit_action(self, action: Tensor) -> Tensor:
        """Return the environment's actions, (B, *action_shape), as what they are in [−1, 1]."""
        if self._head.action_scale is None:
            raise self._cannot("unit_action")
        flat = action.flatten(1)
        if self._scale is None:
            return flat
        centre, half = self._scale
        return (flat - centre) / half

    def _forward(
        self,
        named: dict[str, Tensor],
        obs: Tensor,
        memory: Tensor | None = None,
        begins: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        sequences: tuple[Tensor, ...] = ()
        if memory is not None and begins is not None:
            sequences = memory, begins.view(-1, len(memory))
        elif self.network.memory_size:
            raise ConfigError(
                "a network with memory is asked with what it remembered and where episodes begin, "
                "got no `memory` or no `begins`: pass those of the batch"
            )
        mask = None
        if self._mask_size:
            obs, mask = obs[:, : -self._mask_size], obs[:, -self._mask_size :]
        head, *value = self._outputs(self._head.fold(named), obs, *sequences)
        if mask is not None:  # and no gradient reaches what is not allowed
            head = head.masked_fill(mask <= 0.0, MASKED)
        return head, value[0] if value else None

    def _ability(self, name: str) -> Callable[..., Any]:
        method = getattr(self._head, name, None)
        if method is None:
            raise self._cannot(name)
        return method

    def _cannot(self, name: str) -> ConfigError:
        can = ["outputs", *(ability for ability in _ABILITIES if hasattr(self._head, ability))]
        can += ["unit_action"] if self._head.action_scale is not None else []
        return ConfigError(
            f"a network with the head '{self.network.head}' can't `{name}`, it can "
            f"{', '.join(f'`{ability}`' for ability in can)}: choose another head"
        )


class LearnedCritics(_Learned):
    """K critics over one flat vector, (P,).

    Args:
        critics: what is learned.
        precision: of the matrix products.
        device: where parameters, observations and actions are.

    Attributes:
        critics: the same.
        layout: where their parameters stand in the vector.
        num_params: P.

    Raises:
        ConfigError: the precision is not one of the user's module.
    """

    def __init__(
        self,
        critics: Critics,
        *,
        precision: Precision = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(critics, device)
        self.critics = critics
        self._values = critics.learned(precision, device)

    def values(self, params: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Return Q of all critics.

        Args:
            params: float32, (P,).
            obs: (B, *obs_shape).
            action: in [−1, 1], (B, A).

        Returns:
            float32, (K, B).
        """
        return self._values(self.layout.unpack(params), obs, action, self.critics.count)

    def first(self, params: Tensor, obs: Tensor, action: Tensor) -> Tensor:
        """Return Q of the first critic, (B,); the others are not computed."""
        return self._values(self.layout.unpack(params), obs, action, 1)[0]
