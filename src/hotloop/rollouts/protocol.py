"""The protocols of rollouts and of the environments that they step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from hotloop.envs import Spaces
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting
from hotloop.rollouts.env_calls import EnvCall
from hotloop.rollouts.state import RolloutPosition, RolloutState
from hotloop.types import Array, Episode, Fragment

Schedule = Literal["barrier", "variable", "async"]
"""The rule for the fragments that a learner waits for."""
Inference = Literal["worker", "central"]


@dataclass(frozen=True, kw_only=True)
class CollectionOptions:
    """Options for collecting fragments.

    Attributes:
        num_steps: T, rows of a fragment.
        seed: Seed of the action noise.
        schedule: `barrier`: T steps of every environment. `variable`: the same number of
            transitions, in unequal shares. `async`: all finished transitions, at least
            `min_transitions`, or fragments.
        overlap: barrier, variable: collect the next fragments while the learner uses these, with
            the policy that was published before them.
        min_transitions: async: number of transitions to wait for.
        in_fragments: async: take only whole fragments, one for each worker.
        max_policy_age: async: maximum policy lag of experience, see `Rollout.updates_allowed`.
        drops_too_old: async, in fragments: instead of waiting for experience that would become too
            old, drop what is too old once it is finished.
    """

    num_steps: int
    seed: int
    schedule: Schedule = "barrier"
    overlap: bool = False
    min_transitions: int = 1
    in_fragments: bool = False
    max_policy_age: int = 1_000
    drops_too_old: bool = False


class Rollout(Protocol):
    """Collects fragments, one call after another.

    Attributes:
        num_transitions: Transitions returned so far, over all environments.
    """

    num_transitions: int

    @property
    def group_sizes(self) -> Sequence[int]:
        """Number of environments in each group. Empty if there are no single environments."""
        ...

    def call_groups(self, calls: Sequence[EnvCall]) -> list[Any]:
        """Make a call in each group, between two of its rows, and return the results in order.

        Raises:
            HotloopError: A call failed, or workers failed too often.
        """
        ...

    @property
    def last_failure(self) -> str:
        """Text of the last failure that was replaced, empty if there was none."""
        ...

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Act with these parameters, at the latest from the next fragment on."""
        ...

    def collect(self) -> list[Fragment]:
        """Return the next fragments, at most one from each worker, in the workers' order.

        The next call may overwrite them.

        Raises:
            EnvironmentFailure: An environment failed and can't be replaced.
            NonFiniteError: The policy's outputs were NaN or infinite.
        """
        ...

    def updates_allowed(self) -> int | None:
        """Return the number of updates until collected experience is too old, None if unlimited.

        If it returns 0, the next `collect` waits for those experiences.
        """
        ...

    def watch(self) -> None:
        """Replace dead and stalled processes. Call it during long updates.

        Raises:
            EnvironmentFailure: Too many processes were replaced.
        """
        ...

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended in the collected fragments since the last call."""
        ...

    def state(self) -> RolloutState:
        """Return a copy of the state after the last `collect`. Later calls do not change it."""
        ...

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """Continue from another rollout's state, with fresh environments.

        Args:
            arrays: Result of `RolloutState.to_arrays`. Further arrays are ignored.
            position: Result of `RolloutState.position`.

        Returns:
            Environments that could not be restored and began their next episode instead.

        Raises:
            EnvironmentFailure: An environment's `reset` failed.
        """
        ...

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """Return the number of transitions by outcome, and the time use of each worker.

        Args:
            with_workers: Whether to read the workers' timing, which takes some ms each.
        """
        ...

    def close(self) -> None:
        """Stop, and close the environments. `accounting` still works. Further calls do nothing."""
        ...


class Environments(Spaces, Protocol):
    """N environments in groups, which a rollout steps in this process or in workers."""

    @property
    def num_envs(self) -> int:
        """N, over all groups."""
        ...

    @property
    def can_replay(self) -> bool:
        """Whether `Rollout.restore` can continue an episode in the middle."""
        ...

    def rollout(self, policy: ActingPolicy, options: CollectionOptions) -> Rollout:
        """Return a rollout that collects with these environments. May be called once."""
        ...

    def close(self) -> None:
        """Close the environments and end their processes. Further calls do nothing."""
        ...
