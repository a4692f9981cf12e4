"""Trials on Ray: Tune runs them, on this machine or a cluster, and populations of them."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, MissingExtraError, shortened
from hotloop.sweeps.runner import Plan, Runner, Unit
from hotloop.sweeps.spaces import Choices, Range, Space
from hotloop.sweeps.trainable import Work, train_trial
from hotloop.sweeps.worker import packed
from hotloop.system.processes import process_start
from hotloop.training.options.constraints import scheduled

# A training that is stopped has so long to write its last checkpoint.
_THREAD_S = 30
_STORED = "tune"
_KEPT = 3  # checkpoints of a member
_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}
_ENV = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the sweep ends it
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # results are in one file
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnRay:
    """Where and how a sweep runs on Ray.

    Attributes:
        address: of a cluster; None: one is started here, and ended.
        resources: that a trial takes, see `resources_of`.
        jobs: how many trials at a time; None: as many as there is room for.
        runtime_env: of their processes, see Ray's `runtime_env`.
        generations: of a population.
        seed: of what a population changes.
    """

    address: str | None
    resources: Mapping[str, float]
    jobs: int | None
    runtime_env: Mapping[str, Any]
    generations: int
    seed: int


def import_tune() -> Any:
    """Return Ray Tune.

    Raises:
        MissingExtraError: it is not installed.
    """
    from hotloop.rollouts.ray.cluster import import_ray

    os.environ.update({name: os.environ.get(name, value) for name, value in _ENV.items()})
    try:
        import_ray()
        from ray import tune
    except ImportError as error:
        raise MissingExtraError(
            f"`--backend ray` of a sweep needs Ray Tune ({error}): pip install 'hotloop[tune]'"
        ) from error
    for name in ("ray.tune", "ray.air", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return tune


def resources_of(config: Any, given: Mapping[str, float]) -> dict[str, float]:
    """Return what a trial takes of a node: by default a core, one for each worker, and its GPU.

    Args:
        config: of the trials.
        given: `num_cpus`, `num_gpus` and what nodes have besides; it comes first.

    Raises:
        ConfigError: it is nothing, or nobody says how many workers there are.
    """
    if config.workers == "auto":
        raise ConfigError("on Ray a trial must say how many `--workers` it has, got auto")
    threads = config.torch_threads if isinstance(config.torch_threads, int) else 1
    central = config.workers > 0 and config.inference != "worker"
    found: dict[str, float] = {"num_cpus": threads + config.workers + central}
    if str(config.device).startswith("cuda"):
        found["num_gpus"] = 1
    found |= given
    if not any(found.values()):
        raise ConfigError("`--trial-resources` must have one amount above 0: a trial takes some")
    return found


def check_population(space: Space, plan: Plan, generations: int) -> None:
    """Refuse what population-based training can't do.

    Raises:
        ConfigError: an option of the space can't change while it trains, there is no population,
            or generations are shorter than iterations.
    """
    config, may = plan.config, scheduled(type(plan.config))
    for name, one in space.items():
        if name not in may:
            raise ConfigError(
                f"`--sampler pbt` changes options while they train, and `{name}` can't be: sweep "
                f"over {', '.join(sorted(may))}, or take another sampler"
            )
        if isinstance(one, Choices) and not all(isinstance(x, int | float) for x in one.values):
            raise ConfigError(
                f"`--sampler pbt` makes the schedules itself: give `{name}` numbers or a range"
            )
    if len(plan.seeds) > 1:
        raise ConfigError(
            f"`--sampler pbt` compares trials of one seed, got {len(plan.seeds)}: pass one, "
            "and `hotloop sweep report --test-seeds` trains the best with others"
        )
    if plan.trials is None or plan.trials < 2:
        raise ConfigError(
            "`--sampler pbt` needs a population: pass `--trials`, 2 or more; 8 is a small one"
        )
    if plan.hours is not None:
        raise ConfigError("`--hours` ends a sweep between trials, and a population is one whole")
    if config.track:
        raise ConfigError("`--track` follows one run, and members go on from one another's")
    every = config.total_timesteps // generations
    iteration = getattr(config, "num_steps", 1) * config.total_envs
    if iteration > every:
        raise ConfigError(
            f"a generation has {every:,} steps, and an iteration {iteration:,}: lower "
            "`--generations`, or train for longer"
        )
    interval = getattr(config, "eval_interval", None)
    if plan.metric == "evaluation" and (interval is None or interval > every):
        raise ConfigError(
            f"each generation of {every:,} steps needs an evaluation: lower `--eval-interval`"
        )


class RayRunner(Runner):
    """Runs trials through Ray Tune; what there is to do and what comes of it is as elsewhere.

    Args:
        where: see `OnRay`.
        space: of the options, for a population; None: each trial is for itself.
        others: as `Runner` has them.
    """

    def __init__(self, *others: Any, where: OnRay, space: Space | None) -> None:
        super().__init__(*others)
        self._where, self._space = where, space
        self._named: dict[str, Unit] = {}

    def _run(self, units: Iterator[Unit]) -> None:
        from hotloop.rollouts.ray.cluster import connected

        first = next(units, None)
        if first is None:  # all is done: Ray need not start
            return
        units = itertools.chain([first], units)
        tune = import_tune()
        wanted = self._where.resources
        env = {"TUNE_FUNCTION_THREAD_TIMEOUT_S": str(_THREAD_S), "RAY_CHDIR_TO_TRIAL_DIR": "0"}
        env["WANDB_RUN_GROUP"] = os.environ.get("WANDB_RUN_GROUP", self.directory.name)
        given = self._where.runtime_env
        runtime_env = {**given, "env_vars": {**env, **given.get("env_vars", {})}}
        num_cpus = wanted["num_cpus"] * (self._where.jobs or 1)
        for path in self.directory.glob(f"{_STORED}-*"):  # of sweeps that were killed
            if not process_start(int(path.name.rpartition("-")[2])):
                shutil.rmtree(path, ignore_errors=True)
        stored = f"{_STORED}-{os.getpid()}"
        try:
            with connected(self._where.address, num_cpus=num_cpus, runtime_env=runtime_env) as ray:
                _need_room(ray, wanted)
                self._tuned(tune, units, wanted, stored)
        finally:  # checkpoints of generations; the runs keep their own
            shutil.rmtree(self.directory / stored, ignore_errors=True)
        self._load()
        self._on_change(self)

    def _tuned(
        self, tune: Any, units: Iterator[Unit], wanted: Mapping[str, float], stored: str
    ) -> None:
        """Have Tune run all of them, and store what it wants to in a directory of that name."""
        from ray.tune import PlacementGroupFactory

        bundle = {_NAMES.get(name, name): amount for name, amount in wanted.items() if amount}
        work = Work(
            algorithm=self.plan.algorithm,
            metric=self.plan.metric,
            runs=self.plan.runs_alike,
            directory=str(self.directory.resolve()),
            sys_path=[path or os.getcwd() for path in sys.path],
        )
        options: dict[str, Any] = {"mode": "max", "metric": "score", "reuse_actors": True}
        if self._space is None:
            options |= self._searched(units)
            space: dict[str, Any] = {}
        else:
            more, space, work = self._population(tune, self._space, work)
            options |= more

        def trainable(given: dict[str, Any]) -> None:
            train_trial(given, work)

        tuner = tune.Tuner(
            tune.with_resources(trainable, PlacementGroupFactory([bundle])),
            param_space=space,
            tune_config=tune.TuneConfig(
                trial_name_creator=_run_of, trial_dirname_creator=_run_of, **options
            ),
            run_config=tune.RunConfig(
                name=stored,
                storage_path=str(self.directory.resolve()),
                failure_config=tune.FailureConfig(max_failures=1),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=_KEPT),
                verbose=0,
                callbacks=[_callback(self)],
            ),
        )
        tuner.fit()

    def _searched(self, units: Iterator[Unit]) -> dict[str, Any]:
        """Return how Tune finds and stops trials that are each for themselves."""
        from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

        steps = self.steps
        schedulers = {
            "asha": lambda: ASHAScheduler(
                time_attr="timesteps",
                max_t=3 * steps,
                grace_period=max(1, steps // 9),
                reduction_factor=3,
            ),
            "median": lambda: MedianStoppingRule(
                time_attr="timesteps",
                grace_period=steps / 3,
                min_samples_required=4,
                min_time_slice=sys.maxsize,  # it would pause trials, which have no checkpoints
            ),
        }
        scheduler = schedulers.get(self._pruner.name, FIFOScheduler)()
        return {
            "search_alg": _searcher(self, units),
            "scheduler": scheduler,
            "num_samples": -1,
            "max_concurrent_trials": self._where.jobs,
        }

    def suggest(self, units: Iterator[Unit]) -> dict[str, Any] | None:
        """Claim the next run; return what Tune gives its trial; None: there is no more."""
        while not self._is_over():
            unit = next(units, None)
            if unit is None:
                return None
            config = self._config(unit)
            taken = None if config is None else self._take(unit, config)
            if taken is not None:
                self._load()
                return {"run": self._named_run(unit), "config": packed(taken)}
        return None

    def _named_run(self, unit: Unit) -> str:
        """Return what Tune calls a run: as its directory is called."""
        name = self.directory_of(unit).name
        self._named[name] = unit
        return name

    def _population(
        self, tune: Any, space: Space, work: Work
    ) -> tuple[dict[str, Any], dict[str, Any], Work]:
        """Return how Tune runs a population, its space, and what its members are told."""
        from ray.tune.search import BasicVariantGenerator

        # Something is missing: it was killed, and those left would be compared to nobody.
        self.results.forget(self.steps)
        self._load()
        members = [unit for unit in self._units() if self._take(unit, self.plan.config) is not None]
        self._load()
        points = [{"run": self._named_run(unit), **unit.trial.params} for unit in members]
        domains = {name: _domain(tune, one) for name, one in space.items()}
        scheduler = _seeded(self._where.seed)(
            time_attr="generation",
            perturbation_interval=1,
            hyperparam_mutations=domains,
            custom_explore_fn=lambda config: _within(config, space),
            log_config=False,
            synch=True,  # the same seed gives the same population, whoever comes first
        )
        options = {
            "scheduler": scheduler,
            "search_alg": BasicVariantGenerator(points_to_evaluate=points),
            "num_samples": len(points),
        }
        every = max(1, self.steps // self._where.generations)
        changes: dict[str, Any] = {"checkpoint_interval": every, "seed": self.plan.seeds[0]}
        if hasattr(self.plan.config, "save_replay"):
            changes["save_replay"] = True  # else a fork would begin with an empty buffer
            changes["report_interval"] = min(self.plan.config.report_interval, every)
        config = packed(dataclasses.replace(self.plan.config, **changes))
        work = dataclasses.replace(work, config=config, generations=self._where.generations)
        runs = tune.choice([point["run"] for point in points])
        return options, {"run": runs, **domains}, work

    def hear(self, name: str, result: Mapping[str, Any]) -> None:
        """Keep what a run has reported."""
        unit, score = self._named[name], result.get("score", math.nan)
        if unit.key in self._curves and "timesteps" in result and math.isfinite(score):
            # A process that was replaced begins again, or at its last checkpoint.
            curve = [one for one in self._curves[unit.key] if one[0] < result["timesteps"]]
            self._curves[unit.key] = [*curve, (result["timesteps"], score)]

    def hear_end(self, name: str, result: Mapping[str, Any], error: str) -> None:
        """Keep what has come of a run.

        Args:
            name: of its directory.
            result: the last that it reported.
            error: why its process ended; empty: it ended as it should, or Tune stopped it.
        """
        unit = self._named[name]
        if "ended" in result:
            state, score, reason, seconds = result["ended"]
            if result.get("became"):
                became = {**unit.trial.attrs.get("became", {}), str(self.steps): result["became"]}
                self.results.note(unit.trial.number, {"became": became})
            self._finish(unit, state, score, reason, seconds)
        elif error:
            self._finish(unit, "failed", None, error, None)
        else:
            score, steps = result.get("score", math.nan), result.get("timesteps", 0)
            reason = f"{score:.4g} after {steps:,} steps: Ray Tune's {self._pruner.name} stopped it"
            self._finish(unit, "pruned", score, reason, result.get("time_total_s"))

    def look(self) -> None:
        """Show where the sweep stands; raises what ends it."""
        self._on_change(self)


def _run_of(trial: Any) -> str:
    """Return what Tune calls a trial, and its directory: as the run that it begins as."""
    return trial.config["run"]


def _need_room(ray: Any, wanted: Mapping[str, float]) -> None:
    """Refuse trials that no node has room for."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if all(node.get(_NAMES.get(name, name), 0) >= amount for name, amount in wanted.items()):
            return
    each = ", ".join(f"`{name}` {amount:g}" for name, amount in wanted.items())
    most = ", ".join(
        f"{name} {max(node.get(name, 0) for node in nodes):g}"
        for name in sorted({name for node in nodes for name in node if ":" not in name})
        if "memory" not in name
    )
    raise ConfigError(
        f"a trial takes {each}, and no node has as much (at most {most}): use fewer `--workers`, "
        "lower `--trial-resources`, or add a node"
    )


def _domain(tune: Any, one: Choices | Range) -> Any:
    """Return an option's space as Tune has it."""
    if isinstance(one, Choices):
        return list(one.values)
    return (tune.loguniform if one.is_log else tune.uniform)(one.low, one.high)


def _within(config: dict[str, Any], space: Space) -> dict[str, Any]:
    """Return options within their ranges: Tune multiplies them by 0.8 or 1.2."""
    ranges = {name: one for name, one in space.items() if isinstance(one, Range)}
    return config | {n: min(max(config[n], x.low), x.high) for n, x in ranges.items()}


def _seeded(seed: int) -> Any:
    """Return Tune's population-based training, whose draws depend on a seed and the generation.

    Tune draws from the process's own generators, as others do. All that a generation changes, it
    changes when the last of its members has come, whichever that is.
    """
    from ray.tune.schedulers import PopulationBasedTraining

    class Seeded(PopulationBasedTraining):
        """Draws anew for each generation, and waits for nobody who is gone."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            random.seed(f"{seed} {result['generation']}")
            np.random.seed([seed, result["generation"]])  # noqa: NPY002
            return super().on_trial_result(tune_controller, trial, result)

        def choose_trial_to_run(self, tune_controller: Any) -> Any:
            chosen = super().choose_trial_to_run(tune_controller)
            live = [one for one in tune_controller.get_trials() if not one.is_finished()]
            if chosen is None and live and all(one.status == one.PAUSED for one in live):
                # The last one of a generation failed: nobody else would say that it is over.
                states = [self._trial_state[one] for one in live]
                reached = max(state.last_train_time for state in states)
                for state in states:
                    state.last_perturbation_time = reached
                self._next_perturbation_sync = reached + 1
                chosen = super().choose_trial_to_run(tune_controller)
            return chosen

    return Seeded


def _searcher(runner: RayRunner, units: Iterator[Unit]) -> Any:
    """Return what Tune asks for the next trial."""
    from ray.tune.search import Searcher

    class Asked(Searcher):
        """Gives runs that are missing."""

        def __init__(self, suggest: Callable[[], Any]) -> None:
            super().__init__(metric="score", mode="max")
            self._suggest = suggest

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Tune keeps it, and nothing goes on from that

        def suggest(self, trial_id: str) -> Any:
            return self._suggest() or Searcher.FINISHED

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            pass  # `Heard` hears it, of populations too

        def save(self, checkpoint_path: str) -> None:
            pass  # the sweep's file is what it goes on from

        def restore(self, checkpoint_path: str) -> None:
            pass

    return Asked(lambda: runner.suggest(units))


def _callback(runner: RayRunner) -> Any:
    """Return what Tune tells of its trials."""
    from ray.tune import Callback

    class Heard(Callback):
        """Keeps what comes."""

        def __init__(self, runner: RayRunner) -> None:
            self._runner = runner

        def __getstate__(self) -> dict[str, Any]:
            return {}  # as above

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
        ) -> None:
            self._runner.hear(str(trial), result)

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            self._runner.hear_end(str(trial), trial.last_result, "")

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            error = trial.get_error()
            lines = str(error).strip().splitlines() or ["its process ended"]
            self._runner.hear_end(str(trial), {}, shortened(lines[-1].strip()))

        def on_step_end(self, iteration: int, trials: Any, **_: Any) -> None:
            self._runner.look()

    return Heard(runner)
