"""What a training says of itself while it runs, and when it has ended."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop.policies import ActingPolicy
from hotloop.types import Episode


@dataclass(frozen=True, kw_only=True)
class Report:
    """The state of a training after an iteration; the first one comes before any, at 0 steps.

    Attributes:
        run_dir: the run's directory.
        timesteps: transitions collected so far, over all environments.
        total_timesteps: how many there will be.
        elapsed_s: seconds since the first iteration began.
        mean_return: mean undiscounted return of the last 100 episodes, NaN before the first ends.
        num_episodes: episodes ended so far.
        metrics: losses and diagnostics of the iteration's updates, by name.
        execution: how the updates run, and why so.
    """

    run_dir: Path
    timesteps: int
    total_timesteps: int
    elapsed_s: float
    mean_return: float
    num_episodes: int
    metrics: dict[str, float]
    execution: str = ""

    @property
    def steps_per_s(self) -> float:
        """Transitions a second since the first iteration began; start-up is not in it."""
        return self.timesteps / self.elapsed_s if self.elapsed_s > 0 else 0.0


OnReport = Callable[[Report], "bool | None"]
"""Called before the first iteration and after each; returning True stops the run cleanly."""


class Progress:
    """Episodes and time of a training so far, and the one who is told of them.

    Args:
        run_dir: the run's directory.
        total_timesteps: transitions that the run will collect.
        on_report: is told; may be None.
        execution: how the updates run, and why so.
    """

    def __init__(
        self,
        run_dir: Path,
        total_timesteps: int,
        on_report: OnReport | None,
        *,
        execution: str = "",
    ) -> None:
        self._execution = execution
        self._run_dir = run_dir
        self._total_timesteps = total_timesteps
        self._on_report = on_report
        self._recent_returns: deque[float] = deque(maxlen=100)
        self._num_episodes = 0
        self._started_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this was made, just before the first iteration."""
        return time.perf_counter() - self._started_s

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return of the last 100 episodes; NaN before the first has ended."""
        recent = self._recent_returns
        return sum(recent) / len(recent) if recent else math.nan

    def add(self, episodes: Sequence[Episode]) -> None:
        """Count episodes that have ended."""
        self._num_episodes += len(episodes)
        self._recent_returns.extend(episode.undiscounted_return for episode in episodes)

    def report(self, timesteps: int, metrics: dict[str, float]) -> bool:
        """Tell where the run stands; True asks to stop it."""
        if self._on_report is None:
            return False
        return bool(
            self._on_report(
                Report(
                    run_dir=self._run_dir,
                    timesteps=timesteps,
                    total_timesteps=self._total_timesteps,
                    elapsed_s=self.elapsed_s,
                    mean_return=self.mean_return,
                    num_episodes=self._num_episodes,
                    metrics=metrics,
                    execution=self._execution,
                )
            )
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """A training that has ended.

    Attributes:
        policy: acts: `result.policy.act(obs)`.
        run_dir: the run's directory.
        timesteps: transitions collected.
        elapsed_s: seconds in the training loop.
        mean_return: mean undiscounted return of the last 100 training episodes.
        status: whether it ran to its end, or `on_report` stopped it.
        execution: how the updates ran, and what compiling them brought.
    """

    policy: ActingPolicy
    run_dir: Path
    timesteps: int
    elapsed_s: float
    mean_return: float
    status: Literal["finished", "stopped"]
    execution: str
