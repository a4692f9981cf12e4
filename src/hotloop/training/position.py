"""The position of a run between two iterations: all counters and random states of a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotloop import documents
from hotloop.errors import CheckpointError
from hotloop.rollouts import RolloutPosition
from hotloop.runs import ProgressPosition


@dataclass(frozen=True, kw_only=True)
class ReplayPosition:
    """The counters of learning from a replay buffer.

    Attributes:
        began: transitions when learning began; −1: it has not yet.
        done: updates since then.
        empty_at: transitions when the buffer was empty.
        added: transitions that the buffer was ever given.
        sampled: batches that were ever drawn from it.
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
        timesteps: of its policy.
        mean_return: of its episodes.
    """

    timesteps: int
    mean_return: float


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of a run between two iterations.

    Attributes:
        timesteps: transitions collected.
        iteration: number of the last whole iteration.
        num_updates: batches learned from.
        num_moves: of target networks that move by transitions.
        device: where the updates ran.
        random: the learner's random states.
        executed: how its updates ran, by name.
        rollout: of the environments.
        replay: of an algorithm that learns from replay.
        progress: episodes and time.
        best: None before the first evaluation.
    """

    timesteps: int
    iteration: int
    num_updates: int
    num_moves: int = 0
    device: str
    random: dict[str, Any] = field(repr=False)
    executed: dict[str, str] = field(default_factory=dict, repr=False)
    rollout: RolloutPosition = field(repr=False)
    replay: ReplayPosition | None = None
    progress: ProgressPosition = field(default_factory=ProgressPosition, repr=False)
    best: BestEvaluation | None = None

    def to_json(self) -> dict[str, Any]:
        """As values that `json.dumps` takes."""
        parts = vars(self).items()  # asdict would copy all that is in them: 0.1 ms
        return {name: vars(x) if dataclasses.is_dataclass(x) else x for name, x in parts}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Position:
        """The inverse of `to_json`.

        Raises:
            CheckpointError: something is missing, or unknown.
        """
        try:
            return documents.record(cls, fields)
        except ValueError as error:
            raise CheckpointError(
                f"the checkpoint's state.json is of another shape ({error}): take another one, or "
                "train anew"
            ) from error
