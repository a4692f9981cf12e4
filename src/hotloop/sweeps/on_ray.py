"""Trials on Ray: Tune runs them, on this machine or a cluster, and populations of them."""

from __future__ import annotations

import dataclasses
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
from hotloop.training.options.constraints import scheduled

# A training that is stopped has so long to write its last checkpoint.
_THREAD_S = 30
_STORED = "tune"
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
        resources: that a trial takes: `num_cpus`, `num_gpus` and what nodes have besides; what is
            not there is taken from the trial's options.
        jobs: how many trials at a time; None: as many as there is room for.
        generations: of a population.
        seed: of what a population changes.
    """

    address: str | None
    resources: Mapping[str, float]
    jobs: int | None
    generations: int
    seed: int


def import_tune() -> Any:
    """Return Ray Tune.

    Raises:
        MissingExtraError: it is not installed.
    """
    from hotloop.rollouts.ray.cluster import import_ray

    os.environ.update({name: os.environ.get(name, value) for name, value in _ENV.items()})
    import_ray()
    try:
        from ray import tune
    except ImportError as error:
        raise MissingExtraError(
            f"`--backend ray` of a sweep needs Ray Tune ({error}): pip install 'hotloop[tune]'"
        ) from error
    for name in ("ray.tune", "ray.air", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return tune


def resources_of(config: Any, given: Mapping[str, float]) -> dict[str, float]:
    """Return what a trial takes of a node: by default a core, one for each worker, and its GPU."""
    workers = config.workers if isinstance(config.workers, int) else 0
    threads = config.torch_threads if isinstance(config.torch_threads, int) else 1
    found: dict[str, float] = {"num_cpus": threads + workers}
    if str(config.device).startswith("cuda"):
        found["num_gpus"] = 1
    return {**found, **given}


def check_population(space: Space, config_class: type, plan: Plan) -> None:
    """Refuse what population-based training can't change while it trains.

    Raises:
        ConfigError: an option of the space can't change, or there is no population.
    """
    for name, one in space.items():
        may = scheduled(config_class)
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

        tune = import_tune()
        wanted = resources_of(self.plan.config, self._where.resources)
        env = {"TUNE_FUNCTION_THREAD_TIMEOUT_S": str(_THREAD_S), "RAY_CHDIR_TO_TRIAL_DIR": "0"}
        env["WANDB_RUN_GROUP"] = os.environ.get("WANDB_RUN_GROUP", self.directory.name)
        num_cpus, runtime_env = wanted["num_cpus"], {"env_vars": env}
        with connected(self._where.address, num_cpus=num_cpus, runtime_env=runtime_env) as ray:
            _need_room(ray, wanted)
            try:
                self._tuned(tune, units, wanted)
            finally:  # checkpoints of generations; the runs keep their own
                shutil.rmtree(self.directory / _STORED, ignore_errors=True)
        self._load()
        self._on_change(self)

    def _tuned(self, tune: Any, units: Iterator[Unit], wanted: Mapping[str, float]) -> None:
        """Have Tune run all of them."""
        from ray.tune import PlacementGroupFactory

        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        bundle = {names.get(name, name): amount for name, amount in wanted.items() if amount}
        work = Work(
            algorithm=self.plan.algorithm,
            metric=self.plan.metric,
            directory=str(self.directory.resolve()),
            sys_path=[path or os.getcwd() for path in sys.path],
        )
        told: dict[str, Any] = {"mode": "max", "metric": "score", "reuse_actors": True}
        if self._space is None:
            told |= self._searched(units)
            space: dict[str, Any] = {}
        else:
            more, space, work = self._population(tune, units, self._space, work)
            if not space:
                return
            told |= more

        def trainable(given: dict[str, Any]) -> None:
            train_trial(given, work)

        tuner = tune.Tuner(
            tune.with_resources(trainable, PlacementGroupFactory([bundle])),
            param_space=space,
            tune_config=tune.TuneConfig(
                trial_name_creator=_name, trial_dirname_creator=_name, **told
            ),
            run_config=tune.RunConfig(
                name=_STORED,
                storage_path=str(self.directory.resolve()),
                failure_config=tune.FailureConfig(max_failures=1),
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
                time_attr="timesteps", grace_period=steps / 3, min_samples_required=4
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
                return {"run": self._name(unit), "config": packed(taken)}
        return None

    def _name(self, unit: Unit) -> str:
        """Return what Tune calls a run: as its directory is called."""
        name = self.directory_of(unit).name
        self._named[name] = unit
        return name

    def _population(
        self, tune: Any, units: Iterator[Unit], space: Space, work: Work
    ) -> tuple[dict[str, Any], dict[str, Any], Work]:
        """Return how Tune runs a population, its space, and what its members are told."""
        from ray.tune.search import BasicVariantGenerator

        # Of one that was killed, those left would be compared to nobody: all of it is made again.
        if any(one.state == "running" and one.purpose == "tune" for one in self._runs.values()):
            self.results.forget(self.steps)
            self._load()
        members = [unit for unit in units if self._take(unit, self.plan.config) is not None]
        self._load()
        points = [{"run": self._name(unit), **unit.trial.params} for unit in members]
        domains = {name: _domain(tune, one) for name, one in space.items()}
        scheduler = _seeded(self._where.seed)(
            time_attr="generation",
            perturbation_interval=1,
            hyperparam_mutations=domains,
            custom_explore_fn=lambda config: _within(config, space),
            log_config=False,
            synch=True,  # the same seed gives the same population, whoever comes first
        )
        told = {
            "scheduler": scheduler,
            "search_alg": BasicVariantGenerator(points_to_evaluate=points),
            "num_samples": len(points),
            "max_concurrent_trials": self._where.jobs,
        }
        every = max(1, self.steps // self._where.generations)
        changes: dict[str, Any] = {"checkpoint_interval": every, "seed": self.plan.seeds[0]}
        if hasattr(self.plan.config, "save_replay"):
            changes["save_replay"] = True  # else a fork would begin with an empty buffer
        config = packed(dataclasses.replace(self.plan.config, **changes))
        work = dataclasses.replace(work, config=config, generations=self._where.generations)
        runs = {"run": tune.choice([point["run"] for point in points])} if points else {}
        return told, {**runs, **domains} if runs else {}, work

    def hear(self, name: str, result: Mapping[str, Any]) -> None:
        """Keep what a run has reported."""
        unit, score = self._named[name], result.get("score", math.nan)
        if unit.key in self._curves and "timesteps" in result and math.isfinite(score):
            self._curves[unit.key].append((result["timesteps"], score))

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
                self.results.note(unit.trial.number, {"became": result["became"]})
            self._finish(unit, state, score, reason, seconds)
        elif error:
            self._finish(unit, "failed", None, error, None)
        else:
            score, steps = result.get("score", math.nan), result.get("timesteps", 0)
            reason = f"{score:.4g} after {steps:,} steps: Ray Tune's {self._pruner.name} stopped it"
            self._finish(unit, "pruned", score, reason, result.get("time_total_s"))

    def changed(self) -> None:
        """Tell who looks on."""
        self._on_change(self)


def _name(trial: Any) -> str:
    """Return what Tune calls a trial, and its directory: as the run that it begins as."""
    return trial.config["run"]


def _need_room(ray: Any, wanted: Mapping[str, float]) -> None:
    """Refuse trials that no node has room for."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if all(node.get(names.get(name, name), 0) >= amount for name, amount in wanted.items()):
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
        """Draws anew for each generation."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            random.seed(f"{seed} {result['generation']}")
            np.random.seed([seed, result["generation"]])  # noqa: NPY002
            return super().on_trial_result(tune_controller, trial, result)

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
            text = " ".join(str(error).split()) if error else "its process ended"
            self._runner.hear_end(str(trial), {}, shortened(text))

        def on_step_end(self, iteration: int, trials: Any, **_: Any) -> None:
            self._runner.changed()

    return Heard(runner)
