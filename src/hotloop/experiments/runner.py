"""The runner of a plan, which starts missing trainings and stores the outcome of each."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hotloop.base.version import __version__
from hotloop.experiments.plan import Plan
from hotloop.experiments.pruners import Pruner
from hotloop.experiments.results import Results, Run, Trial
from hotloop.experiments.samplers import SearchSampler
from hotloop.experiments.spaces import Choices, from_json, point
from hotloop.experiments.status import SweepStatus

Outcome = tuple[str, "float | None", str, "float | None"]
"""State, score, reason of a failure or a stop, and seconds of a run."""


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


class Executor(Protocol):
    """A way to train runs: in a pool of processes, on Ray, or as a population."""

    def run(self, runner: Runner, specs: Iterator[RunSpec]) -> None:
        """Train the runs.

        It claims each by `runner.claim_next`, reports its scores by `runner.add_report`, its end by
        `runner.finish`, and calls `runner.show` several times a second.
        """
        ...


class Runner:
    """A runner of the trainings of a plan.

    Args:
        plan: the plan.
        config: configuration of all trainings.
        results: the file of results.
        sampler: suggests new trials. None: run stored trials only.
        pruner: stops bad runs and trials.
        executor: trains the runs.
        on_change: function called after each message, and several times a second.
        on_line: function called with the label of a training and a line of its progress, or None.
    """

    def __init__(
        self,
        plan: Plan,
        config: Any,
        results: Results,
        sampler: SearchSampler | None,
        pruner: Pruner,
        executor: Executor,
        on_change: Callable[[Runner], None] = lambda _: None,
        on_line: Callable[[str, str], None] | None = None,
    ) -> None:
        self.plan, self.config, self.results, self.pruner = plan, config, results, pruner
        self.on_line = on_line
        self._sampler, self._executor, self._on_change = sampler, executor, on_change
        self.directory, self.steps = results.directory, plan.steps
        self.curves: dict[tuple[int, int, str], list[tuple[int, float]]] = {}
        self._rejected: dict[int, str] = {}
        self.start_s = time.monotonic()
        self.num_finished = 0
        limits = [plan.trials, None if sampler is None else sampler.max_trials]
        self.num_trials = min((x for x in limits if x is not None), default=None)
        self.load()

    def remaining_s(self) -> float | None:
        """Return the estimated time until all trials are finished, None if unknown."""
        elapsed_s, hours = time.monotonic() - self.start_s, self.plan.hours
        limits = [] if hours is None else [max(0.0, 3600 * hours - elapsed_s)]
        num_finished = self.num_finished
        if self.num_trials is not None and num_finished:
            num_missing = self.num_trials * len(self.plan.seeds) - sum(
                run.state != "running" and run.purpose == "tune" for run in self._runs.values()
            )
            limits.append(max(0.0, num_missing * elapsed_s / num_finished))
        return min(limits, default=None)

    def load(self) -> None:
        """Read the trials and runs of the file."""
        self._trials = self.results.trials()
        runs = [run for run in self.results.runs() if run.steps == self.steps]
        self._runs = {(run.trial, run.seed, run.purpose): run for run in runs}
        self.status = SweepStatus(self._trials, runs, self.plan.seeds, self.steps, self._rejected)

    def show(self) -> None:
        """Show the progress. Raise an exception if a signal has arrived."""
        self._on_change(self)

    # --- choice of runs ---------------------------------------------------------------------------

    def tune(self) -> None:
        """Run trials until the plan is complete or the time is over."""
        self._run(self.missing_specs())

    def test(self, trials: Sequence[Trial], seeds: Sequence[int]) -> None:
        """Run these trials with fresh seeds, which did not influence the choice of options."""
        self._run(RunSpec(trial, seed, "test") for seed in seeds for trial in trials)

    def _run(self, specs: Iterator[RunSpec]) -> None:
        self._executor.run(self, specs)
        self.load()
        self.show()

    def missing_specs(self) -> Iterator[RunSpec]:
        """Yield missing runs trial by trial, and suggest new trials when none are missing."""
        number = 1
        while True:
            trial = next((x for x in self._trials if x.number == number), None)
            if trial is None:
                is_complete = self.num_trials is not None and number > self.num_trials
                if self._sampler is None or is_complete:
                    return
                earlier_trials = [x for x in self._trials if x.number]
                params, attrs = self._sampler.suggest(number, earlier_trials, self.status)
                if self.results.is_group:  # names of runs contain the values as the user wrote them
                    texts = {name: Choices(tuple(x)) for name, x in self.plan.space.items()}
                    attrs = {"texts": point(texts, number - 1)}
                self.results.add_trial(number, params, attrs)
                self.load()
                continue  # another process may have added the trial first
            for seed in self.plan.seeds:
                run = self._runs.get((number, seed, "tune"))
                if run is not None and run.state != "running":
                    continue
                if self.status.state(number) in ("pruned", "failed") and not self.results.is_group:
                    break
                reason = self.pruner.reject_reason(self.status.scores(number), self._best_scores())
                if reason:
                    self._rejected[number] = reason
                    break
                yield RunSpec(trial, seed, "tune")
            number += 1

    def _best_scores(self) -> dict[int, float]:
        best = self.status.best()
        return {} if best is None else self.status.scores(best)

    def is_out_of_time(self) -> bool:
        """Return whether no other run may start."""
        hours = self.plan.hours
        return hours is not None and time.monotonic() - self.start_s > 3600 * hours

    # --- running ----------------------------------------------------------------------------------

    def claim_next(self, specs: Iterator[RunSpec]) -> tuple[RunSpec, Any] | None:
        """Claim the next run. Return it with its configuration, None if there is none."""
        for spec in specs:
            config = self.make_config(spec)
            claimed_config = None if config is None else self.claim(spec, config)
            if claimed_config is not None:
                self.load()
                return spec, claimed_config
        return None

    def make_config(self, spec: RunSpec) -> Any:
        """Return the configuration of a run. If it is invalid, store that and return None."""
        try:
            return self._config(spec)
        except ValueError as error:  # options contradict each other
            if self.results.claim(*spec.primary_key(self.steps), __version__, ""):
                self.finish([(spec, ("failed", None, str(error), None))])
            return None

    def _config(self, spec: RunSpec) -> Any:
        trial = spec.trial
        params = from_json(trial.options(self.steps) if spec.purpose == "test" else trial.params)
        return dataclasses.replace(self.config, **params, seed=spec.seed)

    def claim(self, spec: RunSpec, config: Any) -> Any:
        """Claim a run. Return its configuration, None if it is finished or already claimed."""
        directory = str(self.run_directory(spec))
        if not self.results.claim(*spec.primary_key(self.steps), __version__, directory):
            return None
        shutil.rmtree(directory, ignore_errors=True)
        self.curves[spec.key] = []
        return dataclasses.replace(config, run_dir=directory)

    def run_directory(self, spec: RunSpec) -> Path:
        """Return the directory of a run."""
        return self.results.run_directory(spec.trial, spec.seed, self.steps, spec.purpose)

    def label(self, specs: Sequence[RunSpec]) -> str:
        """Return the text before the lines of a training, or of several as lanes."""
        trial, seed, _ = specs[0]
        options = {**trial.attrs.get("texts", trial.params), "seed": seed}
        label = ", ".join(f"{name} {value}" for name, value in options.items())
        return label if len(specs) == 1 else f"{label} and {len(specs) - 1} more"

    def add_report(self, spec: RunSpec, steps: int, score: float) -> str:
        """Store a score of a run. Return why the pruner stops the run, "" if it continues."""
        # A process that replaces a dead one starts the run again, or from its last checkpoint.
        curve = [point for point in self.curves[spec.key] if point[0] < steps]
        self.curves[spec.key] = curve = [*curve, (steps, score)]
        if spec.purpose != "tune":
            return ""
        other_runs = [
            run._replace(curve=self.curves.get(run_key, run.curve))
            for run_key, run in self._runs.items()
            if run_key[0] != spec.trial.number and run.purpose == "tune"
        ]
        return self.pruner.stop_reason(curve, other_runs)

    def finish(self, outcomes: Sequence[tuple[RunSpec, Outcome]]) -> None:
        """Store the outcomes of one run, or of all lanes of an update."""
        runs: list[Run] = []
        for spec, (state, score, reason, seconds) in outcomes:
            directory, curve = str(self.run_directory(spec)), self.curves.pop(spec.key, [])
            key = spec.primary_key(self.steps)
            runs.append(Run(*key, state, score, reason, seconds, curve, directory))
        self.results.finish(*runs)
        self.num_finished += len(runs)
        self.load()
