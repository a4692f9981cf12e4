"""Options of the evaluations during a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from hotloop.base.memory import require_memory
from hotloop.rollouts.evaluation import EPISODE_BYTES, MAX_STEPS
from hotloop.training.options.base import SET, Options, RequirementTable
from hotloop.training.options.constraints import MAY_CHANGE, Count, Positive


@dataclass(frozen=True, kw_only=True)
class EvalOptions(Options):
    """Evaluations during the run."""

    eval_interval: Annotated[Count | None, MAY_CHANGE] = None
    """Transitions between evaluations, which also keep the best checkpoint. None: no evaluation."""
    eval_episodes: Annotated[Count, MAY_CHANGE] = 10
    """Episodes of an evaluation, the same ones each time, in separate environments."""
    eval_max_steps: Annotated[Count, MAY_CHANGE] = MAX_STEPS
    """Maximum steps of an evaluation episode. A longer one is cut, and counts with its return up to
    there. Raise it for longer tasks, lower it for tasks without an end."""
    eval_timeout_s: Annotated[Positive | None, MAY_CHANGE] = 60.0
    """Seconds without the end of an episode, after which an evaluation cuts the episodes that are
    longer than all training episodes so far. A step counts as a twentieth at most. Raise it for
    slow environments. None: no limit."""
    eval_videos: Annotated[bool, MAY_CHANGE] = False
    """Record a video of each evaluation's first episode in <run>/videos."""

    requires: ClassVar[RequirementTable] = {
        "eval_episodes": {"eval_interval": SET},
        "eval_max_steps": {"eval_interval": SET},
        "eval_timeout_s": {"eval_interval": SET},
        "eval_videos": {"eval_interval": SET},
    }

    def check(self) -> None:
        """Check that episodes fit into memory."""
        if self.eval_interval is not None:
            require_memory(
                EPISODE_BYTES * self.eval_episodes,
                f"{self.eval_episodes:,} episodes",
                "lower `eval_episodes`",
            )
