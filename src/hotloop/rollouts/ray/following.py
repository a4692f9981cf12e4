"""The rows of a policy that acts within the steps of another one, in the same Ray actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotloop.policies import ActingPolicy
from hotloop.rollouts.fleet import FleetRollout
from hotloop.rollouts.protocol import CollectionOptions
from hotloop.rollouts.ray.transport import ActorTransport
from hotloop.rollouts.schedules import RowLimits

if TYPE_CHECKING:
    from hotloop.rollouts.ray.environments import RayEnvironments


class FollowingActors(ActorTransport):
    """The parts of a policy whose actors are those of another one, the leader.

    The leader requests the parts of all policies at once, fetches them, and replaces lost actors.
    """

    def __init__(
        self,
        leader: ActorTransport,
        envs: RayEnvironments,
        policy: ActingPolicy,
        options: CollectionOptions,
        num_envs: int | None,
    ) -> None:
        super().__init__(envs, policy, options, num_envs)
        self._leader = leader

    def start(self, fleet: FleetRollout, first_rows: Sequence[int]) -> None:
        """Set the first rows. The leader then sends the settings."""
        self.begin(fleet, first_rows)

    def grant(self, limits: RowLimits) -> None:
        """Do nothing: the leader's limits are those of all policies."""

    def poll(self) -> None:
        """See `Transport.poll`."""
        self._leader.poll()

    def wait(self, num_rows: int) -> None:
        """See `Transport.wait`."""
        self._leader.wait(num_rows)

    def node(self, worker: int) -> str:
        """See `Transport.node`."""
        return self._leader.node(worker)
