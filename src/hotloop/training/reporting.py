"""Reports of a training: metrics, trackers, progress, and what became of every transition."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hotloop import timing
from hotloop.errors import RunDirectoryError
from hotloop.learner import Execution
from hotloop.policies import ActingPolicy
from hotloop.rollouts import Accounting, CollectionOptions, Rollout
from hotloop.runs import (
    Evaluation,
    OnReport,
    Progress,
    ProgressPosition,
    Result,
    RunDirectory,
)
from hotloop.runs.report import episode_info
from hotloop.runs.tracking import Trackers, open_trackers
from hotloop.system.crowding import Crowding
from hotloop.timing import span
from hotloop.training.position import Position
from hotloop.types import Episode


class Reporter:
    """Writes metrics, tells trackers and whoever asked for reports, and keeps the accounts.

    Args:
        run: the run directory.
        on_report: is told of each iteration.
    """

    def __init__(self, run: RunDirectory, on_report: OnReport | None) -> None:
        self._run = run
        self._on_report = on_report
        self._rollout: Rollout | None = None
        self._options: CollectionOptions | None = None
        self._choice: dict[str, Any] | None = None
        self._progress = Progress(run.path, 0, None)
        self._trackers: Trackers | None = None
        self._num_dropped = self._num_too_old = 0
        self._status: Literal["finished", "stopped", "failed"] = "failed"
        self._has_workers = False
        # Of `log_info`: what no episode has had yet.
        self._unseen: set[str] = set()
        self._has_episodes = False

    @property
    def progress(self) -> ProgressPosition:
        """Episodes and time so far, for a checkpoint."""
        return self._progress.position()

    def watch(self, rollout: Rollout, options: CollectionOptions) -> None:
        """Keep the accounts of a rollout."""
        self._rollout, self._options = rollout, options
        self._choice = self._run.choice

    def begin(
        self,
        config: Any,
        *,
        execution: str,
        resumed: str,
        workers: str,
        position: Position | None,
        is_resumed: bool,
    ) -> bool:
        """Open trackers and make the first report; return whether it asks to stop.

        Args:
            config: the run's.
            execution: how the updates run, and why so.
            resumed: where the run was resumed and what could not be, a sentence.
            workers: what steps the environments.
            position: of the checkpoint that is gone on from.
            is_resumed: whether the run was begun before.
        """
        self._has_workers = bool(config.workers)
        self._unseen = set(config.log_info)
        if config.track:
            with span("open_trackers"):
                self._trackers = open_trackers(config.track, self._run, resumed=is_resumed)
        self._progress = Progress(
            self._run.path,
            config.total_timesteps,
            self._on_report,
            execution=execution,
            resumed=resumed,
            workers=workers,
        )
        if position is not None:
            self._progress.load(position.progress)
        return self._progress.report(0 if position is None else position.timesteps, {})

    def line(
        self, position: Position, episodes: Sequence[Episode], metrics: Mapping[str, float]
    ) -> dict[str, Any]:
        """Return what `metrics.jsonl` is to say of an iteration."""
        self._progress.add(episodes)
        line: dict[str, Any] = {
            "iteration": position.iteration,
            "timesteps": position.timesteps,
            "elapsed_s": round(self._progress.elapsed_s, 6),
            "episode_returns": [e.undiscounted_return for e in episodes],
            "episode_lengths": [e.length for e in episodes],
            **metrics,
            **self._accounts(),
        }
        if info := episode_info(episodes):
            line["episode_info"] = info
            self._unseen -= info.keys()
        self._has_episodes |= bool(episodes)
        return line

    def log(self, timesteps: int, line: dict[str, Any]) -> None:
        """Write such a line, and tell the trackers."""
        self._run.log(line)
        if self._trackers is not None:
            self._trackers.log(timesteps, line)

    def doing(self, what: str) -> None:
        """Tell what is done before the training goes on."""
        self._progress.doing(what)

    def report(
        self, timesteps: int, metrics: Mapping[str, float], evaluation: Evaluation | None
    ) -> bool:
        """Tell of an iteration; return whether to stop."""
        return self._progress.report(timesteps, dict(metrics), evaluation)

    def result(
        self,
        policy: ActingPolicy,
        executions: Sequence[Execution],
        *,
        timesteps: int,
        is_stopped: bool,
    ) -> Result:
        """Return what came of the training, which has ended."""
        assert self._rollout is not None
        self._status = "stopped" if is_stopped else "finished"
        return Result(
            policy=policy,
            run_dir=self._run.path,
            timesteps=timesteps,
            elapsed_s=self._progress.elapsed_s,
            mean_return=self._progress.mean_return,
            status=self._status,
            execution="\n".join(dict.fromkeys(one.summary() for one in executions)),
            compile_s=sum(one.compile_s for one in executions),
            accounting=self._rollout.accounting().to_json(),
        )

    def close(self, *, is_interrupted: bool) -> None:
        """Close the trackers; tell what was to be logged and never came."""
        if self._has_episodes and self._unseen and self._status != "failed":
            names = ", ".join(f"'{name}'" for name in sorted(self._unseen))
            warnings.warn(
                f"`log_info` must name keys of the environment's `info`, but no episode that ended "
                f"had {names}: look at what its `step` returns at an episode's last step",
                stacklevel=2,
            )
            self._unseen.clear()
        if self._trackers is not None:
            self._trackers.close("stopped" if is_interrupted else self._status)

    def keep_accounting(self) -> None:
        """Write what became of every transition, and what each worker did: `accounting.json`."""
        choice = self._choice
        if self._rollout is None or not (self._has_workers or choice):
            return
        accounting = self._rollout.accounting()
        told = {"collected_per_s": self._collected_per_s(accounting)}
        if choice is not None and "taken" in choice:
            told["forecast_per_s"] = choice["taken"]["steps_per_s"]
        self._run.write_json("accounting.json", {**accounting.to_json(), **told})

    def keep_cores(self, crowding: Crowding) -> None:
        """Write how long threads waited for cores: `cores.json`. Where it can't be, it is left."""
        if self._run.has_metrics:
            with contextlib.suppress(RunDirectoryError):
                self._run.write_json("cores.json", vars(crowding))

    def _accounts(self) -> dict[str, float]:
        """What a line of metrics says of collecting, where there is anything to say."""
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
        """Transitions for each second of collecting: of the learner's, or, where workers collect
        while it learns, of theirs."""
        assert self._options is not None
        if accounting.workers and (self._options.overlap or self._options.schedule == "async"):
            return sum(worker.active_steps_per_s for worker in accounting.workers)
        try:
            collect = timing.current().tree().find("collect")
        except KeyError:
            return None
        return accounting.trained / (collect.total_ns / 1e9) if collect.total_ns else None
