"""Reports of a training while it runs, and its result."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hotloop import timing
from hotloop.policies import ActingPolicy
from hotloop.timing import Node
from hotloop.types import Episode


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Episodes played with the most probable actions, in environments of their own.

    Attributes:
        timesteps: transitions that the policy has learned from.
        returns: undiscounted, of each episode.
        lengths: of each episode.
        is_best: whether no evaluation before had as high a mean.
        info: the environment's own numbers, see `episode_info`.
    """

    timesteps: int
    returns: list[float]
    lengths: list[int]
    is_best: bool
    info: Mapping[str, Sequence[float | None]] = field(default_factory=dict)

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return."""
        return statistics.fmean(self.returns)

    @property
    def std_return(self) -> float:
        """Standard deviation of the undiscounted returns."""
        return statistics.pstdev(self.returns)

    def to_json(self) -> dict[str, Any]:
        """As plain lists and numbers, for `metrics.jsonl`."""
        own = dataclasses.asdict(self)
        if not own["info"]:
            del own["info"]
        return {**own, "mean_return": self.mean_return, "std_return": self.std_return}


def episode_info(episodes: Sequence[Episode]) -> dict[str, list[float | None]]:
    """Return the environment's own numbers of episodes.

    Returns:
        By name, a number for each episode; None where it has none. Empty where none has any.
    """
    names = dict.fromkeys(name for episode in episodes for name in episode.info)
    return {name: [episode.info.get(name) for episode in episodes] for name in names}


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
        evaluation: of this iteration's policy; None where none was due.
        resumed: where the run was resumed and what could not be, a sentence; empty if it was not.
        workers: what steps the environments, and why so; empty if it is the learner's process as
            by default.
        doing: what the training does before it goes on, as compiling an update for the first time
            on a machine; empty in the reports of iterations.
    """

    run_dir: Path
    timesteps: int
    total_timesteps: int
    elapsed_s: float
    mean_return: float
    num_episodes: int
    metrics: dict[str, float]
    execution: str = ""
    evaluation: Evaluation | None = None
    resumed: str = ""
    workers: str = ""
    doing: str = ""

    @property
    def steps_per_s(self) -> float:
        """Transitions a second since the first iteration began; start-up is not in it."""
        return self.timesteps / self.elapsed_s if self.elapsed_s > 0 else 0.0


OnReport = Callable[[Report], "bool | None"]
"""Called before the first iteration and after each; returning True stops the run cleanly.

Also called, with `doing` and the last numbers, while an update is compiled for the first time.
"""


@dataclass(frozen=True, kw_only=True)
class ProgressPosition:
    """Episodes and time of a training so far, as a checkpoint holds them.

    Attributes:
        elapsed_s: seconds in the training loop.
        num_episodes: episodes ended.
        recent_returns: of the last 100 of them.
    """

    elapsed_s: float = 0.0
    num_episodes: int = 0
    recent_returns: Sequence[float] = ()


class Progress:
    """Episodes and time of a training so far, and the one who is told of them.

    Args:
        run_dir: the run's directory.
        total_timesteps: transitions that the run will collect.
        on_report: is told; may be None.
        execution: how the updates run, and why so.
        resumed: where the run was resumed.
        workers: what steps the environments.
    """

    def __init__(
        self,
        run_dir: Path,
        total_timesteps: int,
        on_report: OnReport | None,
        *,
        execution: str = "",
        resumed: str = "",
        workers: str = "",
    ) -> None:
        self._execution = execution
        self._resumed = resumed
        self._workers = workers
        self._run_dir = run_dir
        self._total_timesteps = total_timesteps
        self._on_report = on_report
        self._recent_returns: deque[float] = deque(maxlen=100)
        self._num_episodes = 0
        self._timesteps = 0
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

    def position(self) -> ProgressPosition:
        """Return what a checkpoint holds."""
        return ProgressPosition(
            elapsed_s=self.elapsed_s,
            num_episodes=self._num_episodes,
            recent_returns=list(self._recent_returns),
        )

    def load(self, position: ProgressPosition) -> None:
        """Go on from a checkpoint."""
        self._started_s = time.perf_counter() - position.elapsed_s
        self._num_episodes = position.num_episodes
        self._recent_returns.extend(position.recent_returns)

    def add(self, episodes: Sequence[Episode]) -> None:
        """Count episodes that have ended."""
        self._num_episodes += len(episodes)
        self._recent_returns.extend(episode.undiscounted_return for episode in episodes)

    def report(
        self, timesteps: int, metrics: dict[str, float], evaluation: Evaluation | None = None
    ) -> bool:
        """Tell where the run stands; True asks to stop it."""
        self._timesteps = timesteps
        return self._told(metrics, evaluation)

    def doing(self, what: str) -> None:
        """Tell what is done before the training goes on."""
        self._told({}, None, doing=what)

    def _told(
        self, metrics: dict[str, float], evaluation: Evaluation | None, *, doing: str = ""
    ) -> bool:
        if self._on_report is None:
            return False
        return bool(
            self._on_report(
                Report(
                    run_dir=self._run_dir,
                    timesteps=self._timesteps,
                    total_timesteps=self._total_timesteps,
                    elapsed_s=self.elapsed_s,
                    mean_return=self.mean_return,
                    num_episodes=self._num_episodes,
                    metrics=metrics,
                    execution=self._execution,
                    evaluation=evaluation,
                    resumed=self._resumed,
                    workers=self._workers,
                    doing=doing,
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
        compile_s: seconds of `elapsed_s` that compiling took.
        accounting: what became of every transition, and what each worker did with its time, until
            then, as `hotloop.rollouts.Accounting.to_json` gives it.
    """

    policy: ActingPolicy
    run_dir: Path
    timesteps: int
    elapsed_s: float
    mean_return: float
    status: Literal["finished", "stopped"]
    execution: str
    compile_s: float = 0.0
    accounting: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def timing(self) -> Node:
        """Return where the training's time went, of its own process: `print(result.timing)`.

        Raises:
            RecordingError: its recording is gone, or was not written.
        """
        recordings, problems = timing.read_directory(self.run_dir / "timing")
        own = [one for one in recordings if one.component == "learner"]
        if not own:
            raise timing.RecordingError(
                str(problems[0])
                if problems
                else f"expected a recording in {self.run_dir / 'timing'}, got none: keep what a "
                "training writes there"
            )
        # A resumed run has one of each of its processes.
        return max(own, key=lambda one: one.start_ns + one.wall_offset_ns).tree()

    def _repr_html_(self) -> str:
        """Return the run as HTML, for notebooks."""
        from hotloop.runs.notebook import run_html

        shown = run_html(self.run_dir, {"updates": self.execution})
        try:
            tree = self.timing._repr_html_()
        except timing.RecordingError:
            return shown
        return f"{shown}<details><summary>where the time went</summary>{tree}</details>"
