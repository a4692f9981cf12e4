"""The state of a run between two iterations: all counters and random states of a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base import documents
from hotloop.errors import CheckpointError
from hotloop.policies import PolicySnapshot
from hotloop.rollouts import RolloutPosition
from hotloop.runs import ProgressState
from hotloop.types import Array

if TYPE_CHECKING:
    from hotloop.learner import Learner
    from hotloop.rollouts import RolloutState


@dataclass(kw_only=True)
class ReplayCounters:
    """The counters of learning from a replay buffer.

    Attributes:
        began: transitions collected before learning began, −1 before that.
        done: updates since learning began.
        empty_at: transitions collected when the buffer was last empty.
        added: all transitions added to the buffer so far.
        sampled: all batches drawn from the buffer so far.
    """

    began: int = -1
    done: int = 0
    empty_at: int = 0
    added: int = 0
    sampled: int = 0


@dataclass(frozen=True, kw_only=True)
class BestEvaluation:
    """The best evaluation of a run so far.

    Attributes:
        timesteps: transitions collected when the policy was evaluated.
        mean_return: the mean return of the evaluation's episodes.
    """

    timesteps: int
    mean_return: float


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """The state of a run between two iterations, stored as `state.json`.

    Attributes:
        timesteps: transitions collected.
        iteration: the number of the last complete iteration.
        num_updates: the number of batches learned from.
        num_moves: the number of target network updates that are scheduled by transitions.
        device: the device of the updates.
        random: the learner's random states.
        executed: the execution mode of each update, by name.
        rollout: the state of the environments.
        replay: the replay counters of an off-policy algorithm.
        progress: episode counts and elapsed time.
        best: the best evaluation, None before the first.
        callbacks: the states of the callbacks, by name.
    """

    timesteps: int
    iteration: int
    num_updates: int
    num_moves: int = 0
    device: str
    random: dict[str, Any] = field(repr=False)
    executed: dict[str, str] = field(default_factory=dict, repr=False)
    rollout: RolloutPosition = field(repr=False)
    replay: ReplayCounters | None = None
    progress: ProgressState = field(default_factory=ProgressState, repr=False)
    best: BestEvaluation | None = None
    callbacks: dict[str, Any] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values for `json.dumps`."""
        parts = vars(self).items()  # asdict would copy all contents, which takes 0.1 ms
        return {name: vars(x) if dataclasses.is_dataclass(x) else x for name, x in parts}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> CheckpointState:
        """Return the state from the output of `to_json`.

        Raises:
            CheckpointError: a field is missing or unknown.
        """
        try:
            return documents.record(cls, fields)
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint's state.json has another format ({error}): choose another "
                "checkpoint, or start a new run"
            ) from error


@dataclass(frozen=True, kw_only=True)
class CompletedIteration:
    """The results of an iteration, which later iterations do not modify.

    Attributes:
        position: the counters and random states.
        snapshot: the policy.
        parts: functions that return the checkpoint's arrays, called only on saving.
        metrics: the metrics by name.
        files: further files of a checkpoint, see `Checkpoint`.
    """

    position: CheckpointState
    snapshot: PolicySnapshot
    parts: Sequence[Callable[[], Mapping[str, Array]]]
    metrics: Mapping[str, float]
    files: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """Return all arrays of the checkpoint."""
        return {name: array for part in self.parts for name, array in part().items()}


def checkpoint_state(
    learner: Learner, rollout: RolloutState, iteration: int, **counters: Any
) -> CheckpointState:
    """Return the state after an iteration. `counters` are the fields of one kind of algorithm."""
    return CheckpointState(
        timesteps=rollout.num_transitions,
        iteration=iteration,
        num_updates=learner.num_updates,
        device=str(learner.device),
        random=learner.random_state(),
        executed=learner.modes_used(),
        rollout=rollout.position(),
        **counters,
    )
