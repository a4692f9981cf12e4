"""Options of the evaluations during a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hotloop.base.memory import require_memory
from hotloop.errors import ConfigError
from hotloop.rollouts.evaluation import EPISODE_BYTES, MAX_STEPS
from hotloop.training.options.base import Options
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
    longer than all training episodes so far. Raise it for slow environments. None: no limit."""
    eval_videos: Annotated[bool, MAY_CHANGE] = False
    """Record a video of each evaluation's first episode in <run>/videos."""

    def check(self) -> None:
        """Check that videos have evaluations, and that episodes fit into memory."""
        if self.eval_videos and self.eval_interval is None:
            raise ConfigError("`eval_videos` needs evaluations: set `eval_interval` too")
        if self.eval_interval is not None:
            require_memory(
                EPISODE_BYTES * self.eval_episodes,
                f"{self.eval_episodes:,} episodes",
                "lower `eval_episodes`",
            )
