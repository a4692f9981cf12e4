"""The runner: trials of a sweep, some at a time, until there are enough."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hotloop.statistics import interquartile_mean
from hotloop.sweeps.pool import Pool, Process
from hotloop.sweeps.pruners import Pruner
from hotloop.sweeps.results import MAX_TRIES, Results, Run, Trial
from hotloop.sweeps.samplers import Sampler
from hotloop.sweeps.spaces import from_json

_LOOK_S = 0.25
# Lanes `auto`: so many, which two processes on two cores were fastest with; they are taken where
# they were faster in as many batches of each, but the first of each process, which imports and may
# compile.
AUTO_LANES = 4
_MEASURED = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a sweep does.

    Attributes:
        algorithm: by its name on the command line.
        config: that trials change.
        seeds: of each trial.
        trials: how many; None: all points of a grid, or as many as there is time for.
        hours: after which nothing new is begun; None: any.
        jobs: processes.
        lanes: trainings of one process at a time, in one update; None: what is measured to be
            faster, one or `AUTO_LANES`.
        metric: see `worker.METRICS`.
        version: of hotloop.
        runs_alike: runs that share a compiled update, so that it pays to compile it.
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
    runs_alike: int = 1


class Standing:
    """What has come of each trial so far, of runs of a budget.

    Args:
        runs: of tuning.
        seeds: that a trial needs.
        no_more: trials that get no more seeds, and why.
    """

    def __init__(
        self, runs: Sequence[Run], seeds: Sequence[int], no_more: Mapping[int, str]
    ) -> None:
        self._runs: dict[int, list[Run]] = defaultdict(list)
        self._seeds, self._no_more = seeds, no_more
        for one in runs:
            self._runs[one.trial].append(one)

    def runs(self, trial: int) -> list[Run]:
        """Of a trial."""
        return self._runs[trial]

    def scores(self, trial: int) -> dict[int, float]:
        """Of its runs that are done, by seed."""
        return {
            one.seed: one.score
            for one in self._runs[trial]
            if one.state == "done" and one.score is not None
        }

    def score(self, trial: int) -> float | None:
        """Interquartile mean over its runs, also of those that were stopped; None: not known."""
        found = [one.score for one in self._runs[trial] if one.score is not None]
        return float(interquartile_mean(np.array(found))) if found else None

    def state(self, trial: int) -> str:
        """`running`, `done`, `pruned` or `failed`."""
        states = [one.state for one in self._runs[trial]]
        if "failed" in states:
            return "failed"
        if "pruned" in states or trial in self._no_more:
            return "pruned"
        if len(self.scores(trial)) < len(self._seeds):
            return "running"
        return "done"

    def best(self) -> int | None:
        """Number of the best trial that is done; None: there is none."""
        done = [trial for trial in self._runs if trial and self.state(trial) == "done"]
        return max(done, key=lambda trial: (self.score(trial), -trial), default=None)


class Unit(NamedTuple):
    """A run that is to be made."""

    trial: Trial
    seed: int
    purpose: str

    @property
    def key(self) -> tuple[int, int, str]:
        """Which it is, among runs of a budget."""
        return self.trial.number, self.seed, self.purpose

    def where(self, steps: int) -> tuple[int, int, int, str]:
        """Which it is among all runs."""
        return self.trial.number, self.seed, steps, self.purpose


class Runner:
    """Runs trials.

    Args:
        plan: what is to be done.
        results: where it is kept.
        sampler: gives options; None: only what is asked for is run.
        pruner: stops runs.
        on_change: called whenever something has come, and now and then.
    """

    def __init__(
        self,
        plan: Plan,
        results: Results,
        sampler: Sampler | None,
        pruner: Pruner,
        on_change: Callable[[Runner], None],
    ) -> None:
        self.plan, self.results = plan, results
        self._sampler, self._pruner, self._on_change = sampler, pruner, on_change
        self.directory = results.path.with_suffix("")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._curves: dict[tuple[int, int, str], list[tuple[int, float]]] = {}
        self._stopped: dict[tuple[int, int, str], str] = {}
        self._no_more: dict[int, str] = {}
        self._held: Unit | None = None
        self._rates: dict[int, list[float]] = {1: [], AUTO_LANES: []}
        self._begun: dict[int, tuple[float, int]] = {}
        self.began_s = time.monotonic()
        self.num_ended = 0
        self._load()

    @property
    def steps(self) -> int:
        """Budget of a run."""
        return self.plan.config.total_timesteps

    @property
    def trials(self) -> list[Trial]:
        """All that there are."""
        return self._trials

    def seconds_left(self, trials: int | None) -> float | None:
        """Return how long it takes to have so many trials, by those so far; None: not known."""
        passed_s, hours = time.monotonic() - self.began_s, self.plan.hours
        left = [] if hours is None else [max(0.0, 3600 * hours - passed_s)]
        ended = self.num_ended
        if trials is not None and ended:
            missing = trials * len(self.plan.seeds) - sum(
                one.state != "running" and one.purpose == "tune" for one in self._runs.values()
            )
            left.append(max(0.0, missing * passed_s / ended))
        return min(left, default=None)

    def _load(self) -> None:
        runs = [one for one in self.results.runs() if one.steps == self.steps]
        self._runs = {(one.trial, one.seed, one.purpose): one for one in runs}
        self._trials = self.results.trials()
        tuned = [one for one in self._runs.values() if one.purpose == "tune"]
        self.standing = Standing(tuned, self.plan.seeds, self._no_more)

    # --- what is next -----------------------------------------------------------------------------

    def tune(self) -> None:
        """Run trials until there are enough, or the time is over."""
        self._run(self._units())

    def test(self, trials: Sequence[Trial], seeds: Sequence[int]) -> None:
        """Run these trials with fresh seeds, by which nothing is chosen."""
        self._run(Unit(trial, seed, "test") for seed in seeds for trial in trials)

    def _units(self) -> Iterator[Unit]:
        """Runs that are missing, trial by trial; a new trial where none is."""
        number = 1
        while True:
            trial = next((one for one in self._trials if one.number == number), None)
            if trial is None:
                most = self._sampler.most if self._sampler else 0
                limits = [x for x in (self.plan.trials, most) if x is not None]
                if self._sampler is None or (limits and number > min(limits)):
                    return
                before = [one for one in self._trials if one.number]
                params, attrs = self._sampler.ask(number, before, self.standing)
                self.results.add_trial(number, params, attrs)
                self._load()
                continue  # another process may have been first
            for seed in self.plan.seeds:
                run = self._runs.get((number, seed, "tune"))
                if run is not None and run.state != "running":
                    continue
                if self.standing.state(number) in ("pruned", "failed"):
                    break
                why = self._pruner.why_no_more(self.standing.scores(number), self._best_scores())
                if why:
                    self._no_more[number] = why
                    break
                yield Unit(trial, seed, "tune")
            number += 1

    def _best_scores(self) -> dict[int, float]:
        best = self.standing.best()
        return {} if best is None else self.standing.scores(best)

    def _is_over(self) -> bool:
        hours = self.plan.hours
        return hours is not None and time.monotonic() - self.began_s > 3600 * hours

    # --- running ----------------------------------------------------------------------------------

    def _run(self, units: Iterator[Unit]) -> None:
        has_more = True
        self._pool = Pool(self.plan.jobs, self.directory / "output.log")
        try:
            while has_more or self._pool.is_at_work:
                while has_more and not self._is_over():
                    process = self._pool.idle()
                    if process is None:
                        break
                    has_more = self._begin(process, units)
                if self._is_over():
                    has_more = False
                if self._pool.is_at_work:
                    for process, messages in self._pool.wait(_LOOK_S):
                        self._hear(process, messages)
                self._on_change(self)
        finally:
            self._pool.end()
        self._load()
        self._on_change(self)

    def _begin(self, process: Process, units: Iterator[Unit]) -> bool:
        """Give a process the next run, or lanes; False: there are no more."""
        chosen: list[tuple[Unit, Any]] = []
        lanes = self._lanes_now()
        while len(chosen) < lanes:
            unit, self._held = self._held or next(units, None), None
            if unit is None:
                break
            config = self._config(unit)
            if config is None:
                continue
            if chosen and not self._fit([*(one for _, one in chosen), config]):
                self._held = unit
                break
            taken = self._take(unit, config)
            if taken is not None:
                chosen.append((unit, taken))
        if not chosen:
            return False
        self._load()
        self._begun[process.pid] = time.monotonic(), len(chosen)
        self._hand_to(process, [unit for unit, _ in chosen], [config for _, config in chosen])
        return True

    def _hand_to(self, process: Process, units: Sequence[Unit], configs: Sequence[Any]) -> None:
        plan = self.plan
        process.train(units, plan.algorithm, configs, plan.metric, plan.runs_alike)

    def _take(self, unit: Unit, config: Any) -> Any:
        """Claim a run; return its configuration, or None: it is done, or others are at it."""
        directory = str(self.directory_of(unit))
        if not self.results.claim(*unit.where(self.steps), self.plan.version, directory):
            return None
        shutil.rmtree(directory, ignore_errors=True)
        self._curves[unit.key] = []
        return dataclasses.replace(config, run_dir=directory)

    def _lanes_now(self) -> int:
        """Return how many trainings the next process takes."""
        if self.plan.lanes is not None:
            return self.plan.lanes
        if self._pruner.name in ("median", "asha"):
            return 1
        for lanes, rates in self._rates.items():
            if len(rates) < _MEASURED:
                return lanes
        return max(self._rates, key=lambda lanes: statistics.median(self._rates[lanes]))

    def _measure(self, process: Process, is_whole: bool) -> None:
        """Note how many trainings a second a process has made."""
        began_s, lanes = self._begun.pop(process.pid, (0.0, 0))
        if is_whole and lanes in self._rates and lanes in process.has_made:
            self._rates[lanes].append(lanes / (time.monotonic() - began_s))
        process.has_made.add(lanes)

    def _fit(self, configs: Sequence[Any]) -> bool:
        """Whether these may be lanes of one update."""
        from hotloop.algorithms import find
        from hotloop.errors import ConfigError
        from hotloop.training.lanes import check_lanes

        try:
            check_lanes(find(self.plan.algorithm), configs)
        except ConfigError:
            return False
        return True

    def _config(self, unit: Unit) -> Any:
        """Return the configuration of a run; None: there is none, which is written down."""
        trial = unit.trial
        params = from_json(trial.became(self.steps) if unit.purpose == "test" else trial.params)
        try:
            return dataclasses.replace(self.plan.config, **params, seed=unit.seed)
        except ValueError as error:  # options that don't go together
            if self.results.claim(*unit.where(self.steps), self.plan.version, ""):
                self._finish(unit, "failed", None, str(error), None)
            return None

    def directory_of(self, unit: Unit) -> Path:
        """Return where a run lies."""
        name = f"trial_{unit.trial.number:04}__seed_{unit.seed}__{self.steps}"
        return self.directory / (name if unit.purpose == "tune" else f"{name}__test")

    def _hear(self, process: Process, messages: list[dict[str, Any]] | None) -> None:
        units: list[Unit] = process.work or []
        if messages is None:
            self._lose(process, units)
            return
        for message in messages:
            if "report" in message:
                lane, timesteps, score = message["report"]
                self._report(process, units, lane, timesteps, score)
            else:
                for unit, told in zip(units, message["done"], strict=True):
                    state, score, reason, seconds = told
                    reason = reason or self._stopped.pop(unit.key, "")
                    self._finish(unit, state, score, reason, seconds)
                self._measure(process, all(told[0] == "done" for told in message["done"]))
                process.work = None

    def _report(
        self, process: Process, units: Sequence[Unit], lane: int, timesteps: int, score: float
    ) -> None:
        unit = units[lane]
        key = unit.key
        curve = self._curves[key]
        curve.append((timesteps, score))
        if len(units) > 1 or unit.purpose != "tune" or key in self._stopped:
            return
        others = [
            run._replace(curve=self._curves.get(own, run.curve))
            for own, run in self._runs.items()
            if own[0] != unit.trial.number and run.purpose == "tune"
        ]
        why = self._pruner.why_stop(curve, others)
        if why:
            self._stopped[key] = why
            process.stop()

    def _lose(self, process: Process, units: Sequence[Unit]) -> None:
        """A process has died: what it was at is tried again, once."""
        code = process.exit_code()
        said = f"with {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        hint = ", as where memory ends" if code == -signal.SIGKILL else ""
        again: list[Unit] = []
        for unit in units:
            if self.results.tries(*unit.where(self.steps)) < MAX_TRIES:
                again.append(unit)
            else:
                self._finish(unit, "failed", None, f"its process ended {said}{hint}", None)
        for unit in again:
            fresh = self._pool.idle() or self._pool.start()
            config = self._take(unit, self._config(unit))
            if config is not None:
                self._hand_to(fresh, [unit], [config])

    def _finish(
        self, unit: Unit, state: str, score: float | None, reason: str, seconds: float | None
    ) -> None:
        run = Run(
            *(*unit.where(self.steps), state, score, reason),
            *(seconds, self._curves.pop(unit.key, []), str(self.directory_of(unit))),
        )
        self.results.finish(run)
        self.num_ended += 1
        self._load()
