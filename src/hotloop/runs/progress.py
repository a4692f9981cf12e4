"""Reports of a running training, and its result."""

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

import numpy as np

from hotloop import timing
from hotloop.policies import TrainedPolicy
from hotloop.runs.run_status import last_learner
from hotloop.timing import Node
from hotloop.types import Episode


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation of a policy in separate environments, with the most probable actions.

    Attributes:
        timesteps: transitions that the policy has learned from.
        returns: undiscounted return of each episode.
        lengths: steps of each episode.
        is_best: whether the mean return is higher than in all earlier evaluations.
        num_cut: number of episodes that were cut before their end.
        info: the environment's own metrics, see `episode_info`.
    """

    timesteps: int
    returns: list[float]
    lengths: list[int]
    is_best: bool
    num_cut: int = 0
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
        """Return plain lists and numbers for `metrics.jsonl`."""
        values = dataclasses.asdict(self)
        for name in ("num_cut", "info"):
            if not values[name]:
                del values[name]
        return {**values, "mean_return": self.mean_return, "std_return": self.std_return}


def episode_info(episodes: Sequence[Episode]) -> dict[str, list[float | None]]:
    """Return the environment's own metrics of episodes.

    Returns:
        For each name, a number per episode, or None for an episode that lacks it.
    """
    names = dict.fromkeys(name for episode in episodes for name in episode.info)
    return {name: [episode.info.get(name) for episode in episodes] for name in names}


@dataclass(frozen=True, kw_only=True)
class Report:
    """The state of a training after an iteration. The first report comes before all iterations.

    Attributes:
        run_dir: the run directory.
        timesteps: transitions collected so far, over all environments.
        total_timesteps: transitions that the run will collect.
        elapsed_s: seconds since the first iteration started.
        mean_return: mean undiscounted return of the last 100 episodes, NaN before the first ends.
        std_return: standard deviation of these returns.
        num_episodes: number of finished episodes.
        metrics: losses and diagnostics of the iteration's updates, by name.
        execution: execution of the updates and its reason, as text. Empty if it depends on whether
            the cache has a compiled update, which the first update shows.
        evaluation: evaluation of this iteration's policy, if there was one.
        resumed: a sentence on the checkpoint and on what could not be restored, "" for a new run.
        workers: processes that step the environments, with the reason, "" for the default.
        interface: how the network reads bytes and scales actions, in a sentence each, "" if it
            changes neither.
        activity: current activity that delays the training, such as the first compilation of an
            update on a machine. Empty in the reports of iterations.
    """

    run_dir: Path
    timesteps: int
    total_timesteps: int
    elapsed_s: float
    mean_return: float
    num_episodes: int
    metrics: dict[str, float]
    std_return: float = math.nan
    execution: str = ""
    evaluation: Evaluation | None = None
    resumed: str = ""
    workers: str = ""
    interface: str = ""
    activity: str = ""

    @property
    def steps_per_s(self) -> float:
        """Transitions per second since the first iteration started, without start-up."""
        return self.timesteps / self.elapsed_s if self.elapsed_s > 0 else 0.0


ON_REPORT = "`on_report` returned True"
"""Reason of a run that `on_report` has stopped."""
OnReport = Callable[[Report], "bool | None"]
"""Function called before the first iteration and after each. Return True to stop the run.

It is also called with an `activity` and the latest numbers when an update is compiled for the first
time.
"""


@dataclass(frozen=True, kw_only=True)
class ProgressState:
    """Progress of a training in a checkpoint.

    Attributes:
        elapsed_s: seconds in the training loop.
        num_episodes: number of finished episodes.
        recent_returns: undiscounted returns of the last 100 episodes.
    """

    elapsed_s: float = 0.0
    num_episodes: int = 0
    recent_returns: Sequence[float] = ()


class RunProgress:
    """Episodes and elapsed time of a training, and the sender of its reports.

    Args:
        run_dir: the run directory.
        total_timesteps: transitions that the run will collect.
        on_report: function that receives the reports, if any.
        execution: text for `Report.execution`.
        resumed: text for `Report.resumed`.
        workers: text for `Report.workers`.
        interface: text for `Report.interface`.

    Attributes:
        longest_episode: steps of the longest episode that finished in this process.
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
        interface: str = "",
    ) -> None:
        self._execution = execution
        self._resumed = resumed
        self._workers = workers
        self._interface = interface
        self._run_dir = run_dir
        self._total_timesteps = total_timesteps
        self._on_report = on_report
        self._recent_returns: deque[float] = deque(maxlen=100)
        self._num_episodes = 0
        self.longest_episode = 0
        self._timesteps = 0
        self._started_s = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Seconds since just before the first iteration, earlier processes of the run included."""
        return time.perf_counter() - self._started_s

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return of the last 100 episodes, NaN before the first ends."""
        recent = self._recent_returns
        return sum(recent) / len(recent) if recent else math.nan

    @property
    def _std_return(self) -> float:
        with np.errstate(all="ignore"):  # returns may be infinite
            return float(np.std(self._recent_returns)) if self._recent_returns else math.nan

    def state(self) -> ProgressState:
        """Return the state for a checkpoint."""
        return ProgressState(
            elapsed_s=self.elapsed_s,
            num_episodes=self._num_episodes,
            recent_returns=list(self._recent_returns),
        )

    def load(self, state: ProgressState) -> None:
        """Continue from the state in a checkpoint."""
        self._started_s = time.perf_counter() - state.elapsed_s
        self._num_episodes = state.num_episodes
        self._recent_returns.extend(state.recent_returns)

    def add(self, episodes: Sequence[Episode]) -> None:
        """Add finished episodes."""
        self._num_episodes += len(episodes)
        self._recent_returns.extend(episode.undiscounted_return for episode in episodes)
        lengths = (episode.length for episode in episodes)
        self.longest_episode = max(self.longest_episode, *lengths, 0)

    def describe(
        self,
        timesteps: int,
        metrics: Mapping[str, float],
        evaluation: Evaluation | None = None,
        *,
        activity: str = "",
    ) -> Report:
        """Return the report of an iteration."""
        self._timesteps = timesteps
        return Report(
            run_dir=self._run_dir,
            timesteps=timesteps,
            total_timesteps=self._total_timesteps,
            elapsed_s=self.elapsed_s,
            mean_return=self.mean_return,
            std_return=self._std_return,
            num_episodes=self._num_episodes,
            metrics=dict(metrics),
            execution=self._execution,
            evaluation=evaluation,
            resumed=self._resumed,
            workers=self._workers,
            interface=self._interface,
            activity=activity,
        )

    def send(self, report: Report) -> bool:
        """Send a report. Return True if the run should stop."""
        return self._on_report is not None and bool(self._on_report(report))

    def announce(self, activity: str) -> None:
        """Send a report with an activity that delays the training."""
        self.send(self.describe(self._timesteps, {}, activity=activity))


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a training.

    Attributes:
        policy: the trained policy. `result.policy.act(obs)` returns an action.
        run_dir: the run directory.
        timesteps: transitions collected.
        elapsed_s: seconds in the training loop.
        mean_return: mean undiscounted return of the last 100 training episodes.
        status: "finished", or "stopped" if a callback or `on_report` stopped the run.
        stop_reason: why it stopped, "" if it is finished.
        execution: execution of the updates and the benefit of compiling them, as text.
        compile_s: seconds of `elapsed_s` spent on compilation.
        accounting: outcome of every transition and time of each worker, in the format of
            `hotloop.rollouts.Accounting.to_json`.
    """

    policy: TrainedPolicy
    run_dir: Path
    timesteps: int
    elapsed_s: float
    mean_return: float
    status: Literal["finished", "stopped"]
    execution: str
    stop_reason: str = ""
    compile_s: float = 0.0
    accounting: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def timing(self) -> Node:
        """Time spent in each part of the training's process, as a tree that can be printed.

        Raises:
            RecordingError: the recording does not exist.
        """
        recordings, problems = timing.read_directory(self.run_dir / "timing")
        learner = last_learner(recordings)
        if learner is None:
            raise timing.RecordingError(
                str(problems[0])
                if problems
                else f"expected a recording in {self.run_dir / 'timing'}, got none: keep the files "
                "that a training writes there"
            )
        return learner.tree()

    def __str__(self) -> str:
        text = f"{self.run_dir}: {self.status} after {self.timesteps:,} steps"
        text += f" ({self.stop_reason})" if self.stop_reason else ""
        return f"{text}, mean return {self.mean_return:.1f}"

    def _repr_html_(self) -> str:
        """Return the run as HTML for notebooks."""
        from hotloop.runs.notebook import run_html

        summary_html = run_html(self.run_dir, {"updates": self.execution})
        try:
            tree = self.timing._repr_html_()
        except timing.RecordingError:
            return summary_html
        return f"{summary_html}<details><summary>time by part</summary>{tree}</details>"
