"""What a learner and a rollout ask of a network, whoever wrote it."""

from __future__ import annotations

import math
from typing import Any, Protocol

from hotloop.envs.spaces import ActionSpec, ObsSpec
from hotloop.errors import SpaceError
from hotloop.types import Array


class Network(Protocol):
    """What acts: hotloop's perceptrons, or a module of the user's own.

    An `ActorCritic` or a module is a policy and a value function. The policy's head, (B, H), holds
    logits for discrete actions, and the mean of a diagonal Gaussian for continuous ones, whose log
    standard deviation is the parameter `policy.log_std`, the same in all states. An `Actor` is a
    policy alone, and says itself what its head means.
    """

    @property
    def obs_spec(self) -> ObsSpec:
        """What is observed."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """What is done."""
        ...

    @property
    def head_size(self) -> int:
        """H, width of the policy's head."""
        ...

    @property
    def is_continuous(self) -> bool:
        """Whether actions are drawn from a Gaussian."""
        ...

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters by name, in order."""
        ...

    def initial_parameters(self, seed: int) -> dict[str, Array]:
        """float32 arrays by name; the same seed gives the same ones."""
        ...

    def to_json(self) -> dict[str, Any]:
        """As plain lists and numbers; `network_from_json` is the inverse."""
        ...


def head_size(action_spec: ActionSpec) -> int:
    """H, width of the policy's head: Σ choices, or the action's dimension."""
    if action_spec.kind == "discrete":
        return action_spec.num_actions
    if action_spec.kind == "multi_discrete":
        return sum(action_spec.nvec)
    return math.prod(action_spec.shape)


def check_not_empty(obs_spec: ObsSpec, action_spec: ActionSpec) -> None:
    """Refuse spaces without a number in them.

    Raises:
        SpaceError: observations or actions are empty.
    """
    sizes = {"observations": math.prod(obs_spec.shape), "actions": head_size(action_spec)}
    for what, size in sizes.items():
        if size == 0:
            raise SpaceError(f"{what} must hold a number, got a space of none: widen it")
