"""The rollout of a training without environment steps: it counts rounds only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting
from hotloop.rollouts.env_calls import EnvCall
from hotloop.rollouts.state import RolloutPosition, RolloutState
from hotloop.types import Array, Episode, Fragment


class OfflineRollout:
    """Collects nothing. Each call counts as `num_steps` transitions, for which updates are due.

    Attributes:
        num_transitions: transitions counted so far.
    """

    last_failure = ""  # nothing can fail
    group_sizes: Sequence[int] = ()

    def __init__(self, policy: ActingPolicy, num_steps: int) -> None:
        self.policy = policy
        self.num_transitions = 0
        self._num_steps = num_steps

    def publish(self, snapshot: PolicySnapshot) -> None:
        """See `Rollout.publish`."""
        self.policy.load(snapshot)

    def collect(self) -> list[Fragment]:
        """Return no fragment."""
        self.num_transitions += self._num_steps
        return []

    def call_groups(self, calls: Sequence[EnvCall]) -> list[Any]:
        """Return no results, as there are no single environments."""
        return []

    def updates_allowed(self) -> None:
        """Return None: no experience can be too old."""

    def watch(self) -> None:
        """Do nothing: there are no other processes."""

    def pop_episodes(self) -> list[Episode]:
        """Return no episode."""
        return []

    def state(self) -> RolloutState:
        """See `Rollout.state`."""
        return RolloutState(num_transitions=self.num_transitions)

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """See `Rollout.restore`."""
        self.num_transitions = position.num_transitions
        return []

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """Return that nothing was collected."""
        return Accounting(collected=0, trained=0)

    def close(self) -> None:
        """Do nothing."""
