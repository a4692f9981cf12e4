"""Reports of a run: metrics, trackers, progress, and the accounting of transitions."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hotloop import timing
from hotloop.base.crowding import Crowding
from hotloop.base.redaction import secret_variable, without_secrets
from hotloop.errors import RunDirectoryError
from hotloop.learner import Execution
from hotloop.policies import Network, TrainedPolicy
from hotloop.rollouts import Accounting, CollectionOptions, Rollout
from hotloop.runs import (
    Evaluation,
    OnReport,
    ProgressState,
    Report,
    RunDirectory,
    RunProgress,
    RunResult,
)
from hotloop.runs.progress import episode_info
from hotloop.runs.tracking import Trackers, open_trackers
from hotloop.timing import span
from hotloop.training.checkpoint_state import CheckpointState
from hotloop.training.options import RunOptions
from hotloop.types import Episode


class Reporter:
    """A writer of a run's metrics, reports, tracker logs and accounting."""

    def __init__(self, run: RunDirectory, on_report: OnReport | None) -> None:
        self._run = run
        self._on_report = on_report
        self._rollout: Rollout | None = None
        self._options: CollectionOptions | None = None
        self._interface = ""
        self._choice: dict[str, Any] | None = None
        self._progress = RunProgress(run.path, 0, None)
        self._trackers: Trackers | None = None
        self._num_dropped = self._num_too_old = 0
        self._status: Literal["finished", "stopped", "failed"] = "failed"
        self._has_workers = False
        # Names in `log_info` that no episode has reported yet.
        self._missing_info: set[str] = set()
        self._has_episodes = False

    @property
    def progress(self) -> ProgressState:
        """Return the episodes and the time so far, for a checkpoint."""
        return self._progress.state()

    @property
    def longest_episode(self) -> int:
        """Return the steps of the longest episode that finished in this process."""
        return self._progress.longest_episode

    def attach_rollout(
        self, rollout: Rollout, options: CollectionOptions, network: Network
    ) -> None:
        """Set the rollout whose transitions are accounted for, and its network."""
        self._rollout, self._options = rollout, options
        self._interface = network.describe_interface()
        self._choice = self._run.auto_choice

    def begin(
        self,
        config: RunOptions,
        *,
        execution: str,
        resumed: str,
        workers: str,
        position: CheckpointState | None,
        is_resumed: bool,
    ) -> bool:
        """Open trackers and make the first report, and return whether it requests a stop.

        Args:
            execution: how the updates run, with the reason.
            resumed: a sentence on where the run resumed and what could not be restored.
            workers: a description of the workers.
            position: the state of the checkpoint that the run resumes from.
            is_resumed: whether the run is a resumed one.
        """
        self._has_workers = bool(config.workers)
        self._missing_info = set(config.log_info)
        if config.track:
            with span("open_trackers"):
                self._trackers = open_trackers(config.track, self._run, resumed=is_resumed)
        self._progress = RunProgress(
            self._run.path,
            config.total_timesteps,
            self._on_report,
            execution=execution,
            resumed=resumed,
            workers=workers,
            interface=self._interface,
        )
        if position is not None:
            self._progress.load(position.progress)
        return self.send(self.describe(0 if position is None else position.timesteps, {}))

    def metrics_line(
        self, position: CheckpointState, episodes: Sequence[Episode], metrics: Mapping[str, float]
    ) -> dict[str, Any]:
        """Return an iteration's line of `metrics.jsonl`."""
        self._progress.add(episodes)
        line: dict[str, Any] = {
            "iteration": position.iteration,
            "timesteps": position.timesteps,
            "elapsed_s": round(self._progress.elapsed_s, 6),
            "episode_returns": [e.undiscounted_return for e in episodes],
            "episode_lengths": [e.length for e in episodes],
            **metrics,
            **self._collection_metrics(),
        }
        if info := episode_info(episodes):
            line["episode_info"] = info
            self._missing_info -= info.keys()
        self._has_episodes |= bool(episodes)
        return line

    def log(self, timesteps: int, line: dict[str, Any]) -> None:
        """Write a line of metrics, and send it to the trackers.

        Secrets in the names of metrics are masked.
        """
        if secret_variable("\n".join(line)) is not None:
            line = {without_secrets(name): value for name, value in line.items()}
        self._run.log(line)
        if self._trackers is not None:
            self._trackers.log(timesteps, line)

    def show_activity(self, activity: str) -> None:
        """Show a lengthy activity in the progress line."""
        self._progress.announce(activity)

    def describe(
        self, timesteps: int, metrics: Mapping[str, float], evaluation: Evaluation | None = None
    ) -> Report:
        """Return the report of an iteration."""
        return self._progress.describe(timesteps, metrics, evaluation)

    def send(self, report: Report) -> bool:
        """Send a report, and return whether to stop."""
        return self._progress.send(report)

    def result(
        self,
        policy: TrainedPolicy,
        executions: Sequence[Execution],
        *,
        timesteps: int,
        stop_reason: str,
    ) -> RunResult:
        """Return the result of the finished run."""
        assert self._rollout is not None
        self._status = "stopped" if stop_reason else "finished"
        return RunResult(
            policy=policy,
            run_dir=self._run.path,
            timesteps=timesteps,
            elapsed_s=self._progress.elapsed_s,
            mean_return=self._progress.mean_return,
            status=self._status,
            stop_reason=stop_reason,
            execution="\n".join(dict.fromkeys(execution.summary() for execution in executions)),
            compile_s=sum(execution.compile_s for execution in executions),
            accounting=self._rollout.accounting().to_json(),
        )

    def close(self, *, is_interrupted: bool) -> None:
        """Close the trackers, and warn about `log_info` names that no episode reported."""
        if self._has_episodes and self._missing_info and self._status != "failed":
            names = ", ".join(f"'{name}'" for name in sorted(self._missing_info))
            warnings.warn(
                f"`log_info` must name keys of the environment's `info`, but no finished episode "
                f"had {names}: check what `step` returns at an episode's last step",
                stacklevel=2,
            )
            self._missing_info.clear()
        if self._trackers is not None:
            self._trackers.close("stopped" if is_interrupted else self._status)

    def write_accounting(self) -> None:
        """Write `accounting.json`: transitions by outcome, and each worker's activity."""
        choice = self._choice
        if self._rollout is None or not (self._has_workers or choice):
            return
        accounting = self._rollout.accounting()
        rates = {"collected_per_s": self._collected_per_s(accounting)}
        if choice is not None and "taken" in choice:
            rates["forecast_per_s"] = choice["taken"]["steps_per_s"]
        self._run.write_json("accounting.json", {**accounting.to_json(), **rates})

    def write_core_waits(self, crowding: Crowding) -> None:
        """Write how long threads waited for cores to `cores.json`, and ignore a failure."""
        if self._run.has_metrics:
            with contextlib.suppress(RunDirectoryError):
                self._run.write_json("cores.json", vars(crowding))

    def _collection_metrics(self) -> dict[str, float]:
        """Return the metrics of collecting: newly dropped transitions, and policy ages."""
        assert self._rollout is not None
        assert self._options is not None
        accounting = self._rollout.accounting(with_workers=False)
        line: dict[str, float] = {}
        dropped = sum(accounting.dropped.values())
        if dropped > self._num_dropped:
            line["dropped"], self._num_dropped = dropped - self._num_dropped, dropped
        too_old = accounting.dropped.get("too old", 0)
        if too_old > self._num_too_old:
            line["dropped_too_old"] = too_old - self._num_too_old
            self._num_too_old = too_old
        if self._options.schedule != "barrier" or self._options.overlap:
            line["policy_age_mean"], line["policy_age_max"] = accounting.policy_age
        return line

    def _collected_per_s(self, accounting: Accounting) -> float | None:
        """Return transitions collected per second, measured in the workers if they collect while
        the learner updates, else in the learner."""
        assert self._options is not None
        if accounting.workers and (self._options.overlap or self._options.schedule == "async"):
            return sum(worker.active_steps_per_s for worker in accounting.workers)
        try:
            collect = timing.current().tree().find("collect")
        except KeyError:
            return None
        return accounting.trained / (collect.total_ns / 1e9) if collect.total_ns else None
