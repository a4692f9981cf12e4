"""The protocol of rollouts, whatever steps their environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from hotloop.envs import ActionSpec, ObsSpec
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.rollouts.accounting import Accounting
from hotloop.rollouts.state import RolloutPosition, RolloutState
from hotloop.types import Array, Episode, Fragment

Schedule = Literal["barrier", "variable", "async"]
"""Which fragments a learner waits for."""
Inference = Literal["worker", "central"]


@dataclass(frozen=True, kw_only=True)
class CollectionOptions:
    """How fragments are collected.

    Attributes:
        num_steps: T, rows of a fragment.
        seed: of the noise for acting.
        schedule: `barrier`: T steps of every environment. `variable`: as many transitions, in
            uneven shares. `async`: what there is, at least `minimum` transitions, or fragments.
        overlap: barrier, variable: collect the next fragments while the learner has these, with the
            policy that was published before them.
        minimum: async: transitions to wait for.
        in_fragments: async: take whole fragments alone, as many as there are workers.
        max_policy_age: async: see `Rollout.updates_allowed`.
        drops_too_old: async, in fragments: nothing is waited for because it would become too old;
            what is too old by the time that it could be taken is dropped.
    """

    num_steps: int
    seed: int
    schedule: Schedule = "barrier"
    overlap: bool = False
    minimum: int = 1
    in_fragments: bool = False
    max_policy_age: int = 1_000
    drops_too_old: bool = False


class Rollout(Protocol):
    """Collects fragments, one call after another."""

    num_transitions: int

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Act with these parameters from now on, at the latest from the next fragment on."""
        ...

    def collect(self) -> list[Fragment]:
        """The next fragments, one from each worker that has one, in the workers' order.

        They may be overwritten by the next call.

        Raises:
            EnvironmentFailure: an environment failed for good.
            NonFiniteError: the policy's outputs were NaN or infinite.
        """
        ...

    def updates_allowed(self) -> int | None:
        """How many versions the policy may advance before an experience would be too old; None: no
        bound. Where it is 0, the next `collect` waits for those experiences."""
        ...

    def watch(self) -> None:
        """Replace what has died or stands still: for a learner that is long at its updates.

        Raises:
            EnvironmentFailure: too much was replaced.
        """
        ...

    def pop_episodes(self) -> list[Episode]:
        """The episodes that ended in what `collect` gave since the last call."""
        ...

    def state(self) -> RolloutState:
        """Where it stands after what `collect` gave; later calls leave it alone."""
        ...

    def restore(self, arrays: Mapping[str, Array], position: RolloutPosition) -> list[int]:
        """Go on where another rollout stood, with fresh environments.

        Args:
            arrays: from `RolloutState.to_arrays`, perhaps among others.
            position: from `RolloutState.position`.

        Returns:
            The environments that could not be brought there, and began their next episode instead.

        Raises:
            EnvironmentFailure: an environment's `reset` failed.
        """
        ...

    def accounting(self, *, with_workers: bool = True) -> Accounting:
        """What became of every transition until now, and what each worker does.

        Args:
            with_workers: look into the workers' timing, some ms each.
        """
        ...

    def close(self) -> None:
        """End it, and close its environments; `accounting` still answers. May be repeated."""
        ...


class Environments(Protocol):
    """N environments in groups, which a rollout steps: here or in workers of their own."""

    @property
    def num_envs(self) -> int:
        """N, over all groups."""
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
    def can_replay(self) -> bool:
        """Whether `Rollout.restore` can bring environments into the middle of an episode."""
        ...

    def rollout(self, policy: ActingPolicy, plan: CollectionOptions) -> Rollout:
        """Begin to collect with them; once."""
        ...

    def close(self) -> None:
        """Close the environments, and end what steps them; harmless when repeated."""
        ...
