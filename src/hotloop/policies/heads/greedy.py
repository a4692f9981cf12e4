"""A head for discrete actions: the one with the greatest value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotloop.errors import SpaceError
from hotloop.policies.heads.base import Head

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Greedy(Head):
    """Outputs are Q of each of A discrete actions. The action with the greatest Q is chosen."""

    meaning = "action_values"
    description = "the value of each action"

    def values(self, outputs: Tensor) -> Tensor:
        """Return Q of all actions, (B, A), from the outputs of the network, (B, H)."""
        return outputs

    def check(self) -> None:
        spec = self.spec
        if spec.kind != "discrete":
            raise SpaceError(
                f"one discrete action is needed, got a {spec.kind} space of shape {spec.shape}: "
                "use ppo, which supports all action spaces"
            )
