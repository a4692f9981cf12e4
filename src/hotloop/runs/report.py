"""What a training says of itself while it runs, and when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotloop.policies import ActingPolicy


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
    """

    run_dir: Path
    timesteps: int
    total_timesteps: int
    elapsed_s: float
    mean_return: float
    num_episodes: int
    metrics: dict[str, float]

    @property
    def steps_per_s(self) -> float:
        """Transitions a second since the first iteration began; start-up is not in it."""
        return self.timesteps / self.elapsed_s if self.elapsed_s > 0 else 0.0


OnReport = Callable[[Report], "bool | None"]
"""Called before the first iteration and after each; returning True stops the run cleanly."""


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
    """

    policy: ActingPolicy
    run_dir: Path
    timesteps: int
    elapsed_s: float
    mean_return: float
    status: Literal["finished", "stopped"]
