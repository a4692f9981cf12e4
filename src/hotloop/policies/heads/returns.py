"""Heads for discrete actions with a distribution of returns for each action (C51)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hotloop.errors import ConfigError
from hotloop.policies.heads.base import MASKED
from hotloop.policies.heads.dueling import Dueling
from hotloop.policies.heads.greedy import Greedy
from hotloop.types import Array

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class ReturnDistribution(Greedy):
    """Outputs are N logits for each of A actions: probabilities of the returns z_1 … z_N.

    The action with the greatest mean is chosen. Bellemare et al. 2017, arXiv:1707.06887, section 4.

    Attributes:
        value_min: z_1, the least return.
        value_max: z_N, the greatest return.
        num_atoms: N.
    """

    value_min: float = -10.0
    value_max: float = 10.0
    num_atoms: int = 51

    meaning: ClassVar[str] = "return_logits"
    description: ClassVar[str] = "logits of the atoms of the return, for each action"

    def check(self) -> None:
        super().check()
        if not (self.value_min < self.value_max and self.num_atoms > 1):
            raise ConfigError(
                f"the head {self} must have at least 2 atoms, and `value_min` below `value_max`"
            )

    @cached_property
    def size(self) -> int:
        return self.spec.num_actions * self.num_atoms

    @property
    def outputs_per_action(self) -> int:
        return self.num_atoms

    @property  # not cached, since Dynamo can't trace that
    def spacing(self) -> float:
        """Return Δz."""
        return (self.value_max - self.value_min) / (self.num_atoms - 1)

    @cached_property
    def atoms(self) -> Array:
        """Return z, float32, (N,)."""
        numbers = np.linspace(self.value_min, self.value_max, self.num_atoms)
        return numbers.astype(np.float32)

    def greedy(self, outputs: Array, out: Array) -> None:
        """Write the actions with the greatest means."""
        logits = outputs.reshape(len(outputs), -1, self.num_atoms)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        means = weights @ self.atoms / weights.sum(axis=2)
        if self.spec.is_masked:
            np.copyto(means, MASKED, where=logits[:, :, 0] <= MASKED)
        means.argmax(axis=1, out=out)

    # --- torch ----------------------------------------------------------------------------------

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Return the logarithms of the probabilities, (B, A, N)."""
        return outputs.unflatten(1, (-1, self.num_atoms)).log_softmax(2)

    def values(self, outputs: Tensor) -> Tensor:
        """Return the means of the returns, (B, A)."""
        return self.log_probs(outputs).exp() @ self._torch_atoms(outputs.device)

    def mode(self, outputs: Tensor) -> Tensor:
        values = self.values(outputs)
        if self.spec.is_masked:
            is_allowed = outputs.unflatten(1, (-1, self.num_atoms))[:, :, 0] > MASKED
            values = values.masked_fill(~is_allowed, MASKED)
        return values.argmax(1)

    def project(self, probs: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """Return the distribution of r + γ Z, projected onto the atoms, (B, N).

        m_i = Σ_j p_j [1 − |[r + γ z_j] − z_i| / Δz],   with […] clipped to z_1 … z_N and to 0 … 1

        Bellemare et al. 2017, arXiv:1707.06887, eq. 7.

        Args:
            probs: p, (B, N).
            reward: r, (B,).
            discount: γ, 0 after a terminal transition, (B,).
        """
        atoms = self._torch_atoms(probs.device)
        returns = reward[:, None] + discount[:, None] * atoms
        returns = returns.clamp(self.value_min, self.value_max)
        distance = (returns[:, :, None] - atoms).abs() / self.spacing
        return (probs[:, :, None] * (1.0 - distance).clamp(min=0.0)).sum(1)

    def _torch_atoms(self, device: torch.device) -> Tensor:
        import torch

        # Computed on the device, since an update must not copy from the host.
        steps = torch.arange(self.num_atoms, dtype=torch.float32, device=device)
        return self.value_min + self.spacing * steps


@dataclass(frozen=True)
class DuelingReturnDistribution(Dueling, ReturnDistribution):
    """A value stream of N logits, and an advantage stream of N logits for each action.

    The logits of an action are V_i(s) + A_i(s, a) − mean_a' A_i(s, a'), i = 1 … N: Hessel et al.
    2018, "Rainbow", arXiv:1710.02298.
    """

    def repeat(self, value: Any, advantage: Any) -> Any:
        # The atoms are adjacent, so the value's logits are repeated as a whole for each action.
        by_action = value[..., None, :]
        shape = (*value.shape[:-1], self.spec.num_actions, self.num_atoms)
        if isinstance(value, np.ndarray):
            return np.broadcast_to(by_action, shape).reshape(advantage.shape)
        return by_action.expand(shape).reshape(advantage.shape)

    def center(self, advantage: Any) -> Any:
        by_action = advantage.reshape(*advantage.shape[:-1], -1, self.num_atoms)
        return (by_action - by_action.mean(-2)[..., None, :]).reshape(advantage.shape)
