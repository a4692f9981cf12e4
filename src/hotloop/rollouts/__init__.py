"""Collection of experience: environments stepped by a published policy, fragment by fragment.

`InlineEnvironments` steps them in the learner's process, `WorkerPool` in worker processes. Both
return a `Rollout`.
"""

from __future__ import annotations

from hotloop.rollouts.accounting import Accounting, WorkerAccount
from hotloop.rollouts.batch import environment_weights, to_batch, to_sequences
from hotloop.rollouts.inline import InlineEnvironments, InlineRollout
from hotloop.rollouts.planning.forecast import CollectionChoice
from hotloop.rollouts.processes.shared_memory import NUM_SLOTS
from hotloop.rollouts.protocol import CollectionOptions, Environments, Rollout, Schedule
from hotloop.rollouts.state import RolloutPosition, RolloutState

__all__ = [
    "NUM_SLOTS",
    "Accounting",
    "CollectionChoice",
    "CollectionOptions",
    "Environments",
    "InlineEnvironments",
    "InlineRollout",
    "Rollout",
    "RolloutPosition",
    "RolloutState",
    "Schedule",
    "WorkerAccount",
    "environment_weights",
    "to_batch",
    "to_sequences",
]
