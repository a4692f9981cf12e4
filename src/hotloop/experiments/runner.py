"""The runner of a sweep, which trains several trials at a time."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.experiments.pool import Pool, PoolProcess
from hotloop.experiments.pruners import Pruner
from hotloop.experiments.results import MAX_TRIES, Results, Run, Trial
from hotloop.experiments.samplers import SearchSampler
from hotloop.experiments.spaces import from_json
from hotloop.experiments.status import SweepStatus

_POLL_S = 0.25
# With `--lanes auto`, a process uses either one lane or this number, which was the fastest one for
# two processes on two cores.
AUTO_LANES = 4
# Number of batches that are measured each way. The first of a process is not measured, since it
# imports and may compile.
_MEASURED_BATCHES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The plan of a sweep.

    Attributes:
        algorithm: name of the algorithm on the command line.
        config: base configuration of all trials.
        seeds: seeds of each trial.
        trials: number of trials. None: all points of a grid, or no limit but `hours`.
        hours: time limit after which no run starts, or None.
        jobs: number of processes.
        lanes: number of runs that a process trains in one update. None: one or `AUTO_LANES`,
            whichever is measured to be faster.
        metric: a key of `worker.METRICS`.
        version: version of hotloop.
        runs_per_update: number of runs that share a compiled update, to decide about compiling.
    """

    algorithm: str
    config: Any
    seeds: tuple[int, ...]
    trials: int | None
    hours: float | None
    jobs: int
    lanes: int | None
    metric: str
    version: str
    runs_per_update: int = 1


class RunSpec(NamedTuple):
    """A run to train: a trial, a seed and a purpose, `tune` or `test`."""

    trial: Trial
    seed: int
    purpose: str

    @property
    def key(self) -> tuple[int, int, str]:
        """The key among runs with the same number of steps."""
        return self.trial.number, self.seed, self.purpose

    def primary_key(self, steps: int) -> tuple[int, int, int, str]:
        """Return the key among all runs in the file."""
        return self.trial.number, self.seed, steps, self.purpose


class Runner:
    """A runner of trials in a pool of processes.

    Args:
        plan: the plan of the sweep.
        results: the file of results.
        sampler: suggests new trials. None: run stored trials only.
        pruner: stops bad runs and trials.
        on_change: function called after each message, and some times a second.
    """

    def __init__(
        self,
        plan: SweepPlan,
        results: Results,
        sampler: SearchSampler | None,
        pruner: Pruner,
        on_change: Callable[[Runner], None],
    ) -> None:
        self.plan, self.results = plan, results
        self._sampler, self._pruner, self._on_change = sampler, pruner, on_change
        self.directory = results.directory
        self._curves: dict[tuple[int, int, str], list[tuple[int, float]]] = {}
        self._stop_reasons: dict[tuple[int, int, str], str] = {}
        self._rejected: dict[int, str] = {}
        self._deferred: RunSpec | None = None
        self._rates: dict[int, list[float]] = {1: [], AUTO_LANES: []}
        self._started: dict[int, tuple[float, int]] = {}
        self.start_s = time.monotonic()
        self.num_finished = 0
        self._load()

    @property
    def steps(self) -> int:
        """Number of steps of a run."""
        return self.plan.config.total_timesteps

    def remaining_s(self, trials: int | None) -> float | None:
        """Return the estimated time until this number of trials is finished, None if unknown."""
        elapsed_s, hours = time.monotonic() - self.start_s, self.plan.hours
        limits = [] if hours is None else [max(0.0, 3600 * hours - elapsed_s)]
        num_finished = self.num_finished
        if trials is not None and num_finished:
            num_missing = trials * len(self.plan.seeds) - sum(
                run.state != "running" and run.purpose == "tune" for run in self._runs.values()
            )
            limits.append(max(0.0, num_missing * elapsed_s / num_finished))
        return min(limits, default=None)

    def _load(self) -> None:
        self._trials = self.results.trials()
        runs = [run for run in self.results.runs() if run.steps == self.steps]
        self._runs = {(run.trial, run.seed, run.purpose): run for run in runs}
        self.status = SweepStatus(self._trials, runs, self.plan.seeds, self.steps, self._rejected)

    # --- choice of runs ---------------------------------------------------------------------------

    def tune(self) -> None:
        """Run trials until the plan is complete or the time is over."""
        self._run(self._missing_specs())

    def test(self, trials: Sequence[Trial], seeds: Sequence[int]) -> None:
        """Run these trials with fresh seeds, which no choice depends on."""
        self._run(RunSpec(trial, seed, "test") for seed in seeds for trial in trials)

    def _missing_specs(self) -> Iterator[RunSpec]:
        """Yield missing runs trial by trial, and suggest new trials when none are missing."""
        number = 1
        while True:
            trial = next((x for x in self._trials if x.number == number), None)
            if trial is None:
                max_trials = self._sampler.max_trials if self._sampler else 0
                limits = [x for x in (self.plan.trials, max_trials) if x is not None]
                if self._sampler is None or (limits and number > min(limits)):
                    return
                earlier_trials = [x for x in self._trials if x.number]
                params, attrs = self._sampler.suggest(number, earlier_trials, self.status)
                self.results.add_trial(number, params, attrs)
                self._load()
                continue  # another process may have added the trial first
            for seed in self.plan.seeds:
                run = self._runs.get((number, seed, "tune"))
                if run is not None and run.state != "running":
                    continue
                if self.status.state(number) in ("pruned", "failed"):
                    break
                reason = self._pruner.reject_reason(self.status.scores(number), self._best_scores())
                if reason:
                    self._rejected[number] = reason
                    break
                yield RunSpec(trial, seed, "tune")
            number += 1

    def _best_scores(self) -> dict[int, float]:
        best = self.status.best()
        return {} if best is None else self.status.scores(best)

    def _is_out_of_time(self) -> bool:
        hours = self.plan.hours
        return hours is not None and time.monotonic() - self.start_s > 3600 * hours

    # --- running ----------------------------------------------------------------------------------

    def _run(self, specs: Iterator[RunSpec]) -> None:
        has_more = True
        self._pool = Pool(self.plan.jobs, self.directory / "output.log")
        try:
            while has_more or self._pool.is_busy:
                while has_more and not self._is_out_of_time():
                    process = self._pool.idle()
                    if process is None:
                        break
                    has_more = self._start(process, specs)
                if self._is_out_of_time():
                    has_more = False
                if self._pool.is_busy:
                    for process, messages in self._pool.wait(_POLL_S):
                        self._handle_messages(process, messages)
                self._on_change(self)
        finally:
            self._pool.end()
        self._load()
        self._on_change(self)

    def _start(self, process: PoolProcess, specs: Iterator[RunSpec]) -> bool:
        """Start the next run, or several as lanes. Return False if there are none."""
        chosen: list[tuple[RunSpec, Any]] = []
        num_lanes = self._next_num_lanes()
        while len(chosen) < num_lanes:
            spec, self._deferred = self._deferred or next(specs, None), None
            if spec is None:
                break
            config = self._config(spec)
            if config is None:
                continue
            if chosen and not self._can_share_update([*(x for _, x in chosen), config]):
                self._deferred = spec
                break
            claimed_config = self._claim(spec, config)
            if claimed_config is not None:
                chosen.append((spec, claimed_config))
        if not chosen:
            return False
        self._load()
        self._started[process.pid] = time.monotonic(), len(chosen)
        self._send(process, [spec for spec, _ in chosen], [config for _, config in chosen])
        return True

    def _send(self, process: PoolProcess, specs: Sequence[RunSpec], configs: Sequence[Any]) -> None:
        plan = self.plan
        process.train(specs, plan.algorithm, configs, plan.metric, plan.runs_per_update)

    def _claim(self, spec: RunSpec, config: Any) -> Any:
        """Claim a run. Return its configuration, None if it is finished or already claimed."""
        directory = str(self.run_directory(spec))
        if not self.results.claim(*spec.primary_key(self.steps), self.plan.version, directory):
            return None
        shutil.rmtree(directory, ignore_errors=True)
        self._curves[spec.key] = []
        return dataclasses.replace(config, run_dir=directory)

    def _next_num_lanes(self) -> int:
        if self.plan.lanes is not None:
            return self.plan.lanes
        if self._pruner.name in ("median", "asha"):
            return 1
        for lanes, rates in self._rates.items():
            if len(rates) < _MEASURED_BATCHES:
                return lanes
        return max(self._rates, key=lambda lanes: statistics.median(self._rates[lanes]))

    def _measure(self, process: PoolProcess, is_complete: bool) -> None:
        start_s, lanes = self._started.pop(process.pid, (0.0, 0))
        if is_complete and lanes in self._rates and lanes in process.trained_lanes:
            self._rates[lanes].append(lanes / (time.monotonic() - start_s))
        process.trained_lanes.add(lanes)

    def _can_share_update(self, configs: Sequence[Any]) -> bool:
        from hotloop.algorithms import find
        from hotloop.errors import ConfigError
        from hotloop.training.lanes import check_lanes

        try:
            check_lanes(find(self.plan.algorithm), configs)
        except ConfigError:
            return False
        return True

    def _config(self, spec: RunSpec) -> Any:
        """Return the configuration of a run. If it is invalid, store that and return None."""
        trial = spec.trial
        params = from_json(trial.options(self.steps) if spec.purpose == "test" else trial.params)
        try:
            return dataclasses.replace(self.plan.config, **params, seed=spec.seed)
        except ValueError as error:  # options contradict each other
            if self.results.claim(*spec.primary_key(self.steps), self.plan.version, ""):
                self._finish(spec, "failed", None, str(error), None)
            return None

    def run_directory(self, spec: RunSpec) -> Path:
        """Return the directory of a run."""
        name = f"trial_{spec.trial.number:04}__seed_{spec.seed}__{self.steps}"
        return self.directory / (name if spec.purpose == "tune" else f"{name}__test")

    def _handle_messages(self, process: PoolProcess, messages: list[dict[str, Any]] | None) -> None:
        specs: list[RunSpec] = process.work or []
        if messages is None:
            self._retry_lost(process, specs)
            return
        for message in messages:
            if "report" in message:
                lane, timesteps, score = message["report"]
                self._add_report(process, specs, lane, timesteps, score)
            else:
                for spec, outcome in zip(specs, message["done"], strict=True):
                    state, score, reason, seconds = outcome
                    reason = reason or self._stop_reasons.pop(spec.key, "")
                    self._finish(spec, state, score, reason, seconds)
                self._measure(process, all(outcome[0] == "done" for outcome in message["done"]))
                process.work = None

    def _add_report(
        self, process: PoolProcess, specs: Sequence[RunSpec], lane: int, steps: int, score: float
    ) -> None:
        spec = specs[lane]
        key = spec.key
        curve = self._curves[key]
        curve.append((steps, score))
        if len(specs) > 1 or spec.purpose != "tune" or key in self._stop_reasons:
            return
        other_runs = [
            run._replace(curve=self._curves.get(run_key, run.curve))
            for run_key, run in self._runs.items()
            if run_key[0] != spec.trial.number and run.purpose == "tune"
        ]
        reason = self._pruner.stop_reason(curve, other_runs)
        if reason:
            self._stop_reasons[key] = reason
            process.stop()

    def _retry_lost(self, process: PoolProcess, specs: Sequence[RunSpec]) -> None:
        """Retry the runs of a dead process up to `MAX_TRIES` times, then store them as failed."""
        code = process.exit_code()
        cause = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        hint = "; out of memory?" if code == -signal.SIGKILL else ""
        retries: list[RunSpec] = []
        for spec in specs:
            if self.results.tries(*spec.primary_key(self.steps)) < MAX_TRIES:
                retries.append(spec)
            else:
                self._finish(spec, "failed", None, f"its process ended {cause}{hint}", None)
        for spec in retries:
            new_process = self._pool.idle() or self._pool.start()
            config = self._claim(spec, self._config(spec))
            if config is not None:
                self._send(new_process, [spec], [config])

    def _finish(
        self, spec: RunSpec, state: str, score: float | None, reason: str, seconds: float | None
    ) -> None:
        run = Run(
            *(*spec.primary_key(self.steps), state, score, reason),
            *(seconds, self._curves.pop(spec.key, []), str(self.run_directory(spec))),
        )
        self.results.finish(run)
        self.num_finished += 1
        self._load()
