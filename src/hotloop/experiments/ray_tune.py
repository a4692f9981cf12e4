"""Sweeps with Ray Tune, on this machine or a cluster, and population-based training."""

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

from hotloop.base.children import module_paths
from hotloop.base.processes import process_start
from hotloop.base.rounding import format_number
from hotloop.errors import ConfigError, requires_extra, shortened
from hotloop.experiments.ray_trainable import TrialSettings, train_trial
from hotloop.experiments.runner import Runner, RunSpec, SweepPlan
from hotloop.experiments.spaces import Choices, Range, Space
from hotloop.experiments.worker import pack
from hotloop.training.options.constraints import scheduled_options

# Time in which a stopped training can write its last checkpoint.
_TIMEOUT_S = 30
_TUNE_DIRECTORY = "tune"
_NUM_CHECKPOINTS = 3  # per member of a population
_RAY_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}
_ENV = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the sweep handles signals
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the sweep stores results itself
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Settings of a sweep on Ray.

    Attributes:
        address: address of a cluster. None: start a local one for this sweep.
        resources: resources of a trial, see `trial_resources`.
        jobs: number of trials at a time. None: limited by the cluster's resources.
        runtime_env: environment of the trials' processes, see Ray's `runtime_env`.
        generations: number of generations of a population.
        seed: seed of a population's changes.
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
        MissingExtraError: Ray Tune is not installed.
    """
    from hotloop.rollouts.ray.cluster import import_ray

    os.environ.update({name: os.environ.get(name, value) for name, value in _ENV.items()})
    with requires_extra("`--backend ray` of a sweep needs Ray Tune", "tune"):
        import_ray()
        from ray import tune
    for name in ("ray.tune", "ray.air", "ray.train"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return tune


def trial_resources(config: Any, overrides: Mapping[str, float]) -> dict[str, float]:
    """Return the resources of a trial. Default: its torch threads, a core per worker, its GPU.

    Args:
        config: configuration of the trials.
        overrides: `num_cpus`, `num_gpus` and custom resources, which replace the default.

    Raises:
        ConfigError: all amounts are 0, or the number of workers is `auto`.
    """
    if config.workers == "auto":
        raise ConfigError("`--backend ray` needs a number of `--workers`, got auto")
    threads = config.torch_threads if isinstance(config.torch_threads, int) else 1
    has_inference_process = config.workers > 0 and config.inference != "worker"
    resources: dict[str, float] = {"num_cpus": threads + config.workers + has_inference_process}
    if str(config.device).startswith("cuda"):
        resources["num_gpus"] = 1
    resources |= overrides
    if not any(resources.values()):
        raise ConfigError("`--trial-resources` must have at least one amount above 0")
    return resources


def check_population(space: Space, plan: SweepPlan, generations: int) -> None:
    """Raise an error if population-based training does not support a plan.

    Raises:
        ConfigError: an option of the space can't change during training, there is no population,
            or a generation is shorter than an iteration, for example.
    """
    # Check the search space.
    config, schedulable = plan.config, scheduled_options(type(plan.config))
    for name, domain in space.items():
        if name not in schedulable:
            raise ConfigError(
                f"`--sampler pbt` changes options during training, but `{name}` can't change: "
                f"sweep over {', '.join(sorted(schedulable))}, or use another sampler"
            )
        if isinstance(domain, Choices) and not all(
            isinstance(x, int | float) for x in domain.values
        ):
            raise ConfigError(
                f"`--sampler pbt` creates schedules itself: give `{name}` numbers or a range"
            )
    # Check the plan.
    if len(plan.seeds) > 1:
        raise ConfigError(
            f"`--sampler pbt` needs trials with one seed, got {len(plan.seeds)}: pass one, and "
            "test the best trial on others with `hotloop sweep report --test-seeds`"
        )
    if plan.trials is None or plan.trials < 2:
        raise ConfigError(
            "`--sampler pbt` needs a population: pass `--trials` with 2 or more, such as 8"
        )
    if plan.hours is not None:
        raise ConfigError("`--hours` stops between trials, but a population trains all together")
    if config.track:
        raise ConfigError("`--track` follows one run, but members continue one another's runs")
    # Check the length of a generation.
    interval = config.total_timesteps // generations
    iteration = getattr(config, "num_steps", 1) * config.total_envs
    if iteration > interval:
        raise ConfigError(
            f"a generation has {interval:,} steps, and an iteration {iteration:,}: lower "
            "`--generations`, or raise `--total-timesteps`"
        )
    eval_interval = getattr(config, "eval_interval", None)
    if plan.metric == "evaluation" and (eval_interval is None or eval_interval > interval):
        raise ConfigError(
            f"each generation of {interval:,} steps needs an evaluation: lower `--eval-interval`"
        )


class RayRunner(Runner):
    """A runner of trials in Ray Tune.

    Args:
        runner_args: arguments of `Runner`.
        settings: settings of Ray.
        space: the search space of a population. None: the trials are independent.
    """

    def __init__(self, *runner_args: Any, settings: RaySettings, space: Space | None) -> None:
        super().__init__(*runner_args)
        self._settings, self._space = settings, space
        self._specs: dict[str, RunSpec] = {}

    def _run(self, specs: Iterator[RunSpec]) -> None:
        from hotloop.rollouts.ray.cluster import connect

        first = next(specs, None)
        if first is None:  # all runs are finished
            return
        specs = itertools.chain([first], specs)
        tune = import_tune()
        resources = self._settings.resources
        env = {"TUNE_FUNCTION_THREAD_TIMEOUT_S": str(_TIMEOUT_S), "RAY_CHDIR_TO_TRIAL_DIR": "0"}
        env["WANDB_RUN_GROUP"] = os.environ.get("WANDB_RUN_GROUP", self.directory.name)
        user_env = self._settings.runtime_env
        runtime_env = {**user_env, "env_vars": {**env, **user_env.get("env_vars", {})}}
        num_cpus = resources["num_cpus"] * (self._settings.jobs or 1)
        for path in self.directory.glob(f"{_TUNE_DIRECTORY}-*"):  # remains of killed sweeps
            if not process_start(int(path.name.rpartition("-")[2])):
                shutil.rmtree(path, ignore_errors=True)
        directory_name = f"{_TUNE_DIRECTORY}-{os.getpid()}"
        try:
            with connect(self._settings.address, num_cpus=num_cpus, runtime_env=runtime_env) as ray:
                _check_capacity(ray, resources)
                self._run_tuner(tune, specs, resources, directory_name)
        finally:  # delete Tune's checkpoints, since the runs have their own
            shutil.rmtree(self.directory / directory_name, ignore_errors=True)
        self._load()
        self._on_change(self)

    def _run_tuner(
        self, tune: Any, specs: Iterator[RunSpec], resources: Mapping[str, float], name: str
    ) -> None:
        """Train all runs in Tune, with its own files in a directory of this name."""
        from ray.tune import PlacementGroupFactory

        bundle = {_RAY_NAMES.get(key, key): amount for key, amount in resources.items() if amount}
        settings = TrialSettings(
            algorithm=self.plan.algorithm,
            metric=self.plan.metric,
            runs_per_update=self.plan.runs_per_update,
            directory=str(self.directory.resolve()),
            sys_path=module_paths(),
        )
        options: dict[str, Any] = {"mode": "max", "metric": "score", "reuse_actors": True}
        if self._space is None:
            options |= self._search_options(specs)
            space: dict[str, Any] = {}
        else:
            extra, space, settings = self._population_options(tune, self._space, settings)
            options |= extra

        def trainable(params: dict[str, Any]) -> None:
            train_trial(params, settings)

        tuner = tune.Tuner(
            tune.with_resources(trainable, PlacementGroupFactory([bundle])),
            param_space=space,
            tune_config=tune.TuneConfig(
                trial_name_creator=_trial_name, trial_dirname_creator=_trial_name, **options
            ),
            run_config=tune.RunConfig(
                name=name,
                storage_path=str(self.directory.resolve()),
                failure_config=tune.FailureConfig(max_failures=1),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=_NUM_CHECKPOINTS),
                verbose=0,
                callbacks=[_callback(self)],
            ),
        )
        tuner.fit()

    def _search_options(self, specs: Iterator[RunSpec]) -> dict[str, Any]:
        """Return Tune's options for independent trials."""
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
                min_time_slice=sys.maxsize,  # never pause trials, since they have no checkpoints
            ),
        }
        scheduler = schedulers.get(self._pruner.name, FIFOScheduler)()
        return {
            "search_alg": _searcher(self, specs),
            "scheduler": scheduler,
            "num_samples": -1,
            "max_concurrent_trials": self._settings.jobs,
        }

    def suggest(self, specs: Iterator[RunSpec]) -> dict[str, Any] | None:
        """Claim the next run. Return the parameters of its trial in Tune, None if there is none."""
        while not self._is_out_of_time():
            spec = next(specs, None)
            if spec is None:
                return None
            config = self._config(spec)
            claimed_config = None if config is None else self._claim(spec, config)
            if claimed_config is not None:
                self._load()
                return {"run": self._register(spec), "config": pack(claimed_config)}
        return None

    def _register(self, spec: RunSpec) -> str:
        name = self.run_directory(spec).name
        self._specs[name] = spec
        return name

    def _population_options(
        self, tune: Any, space: Space, settings: TrialSettings
    ) -> tuple[dict[str, Any], dict[str, Any], TrialSettings]:
        """Return Tune's options of a population, its parameter space, and its members' settings."""
        from ray.tune.search import BasicVariantGenerator

        # Start over after a kill, since members can only be compared within a generation.
        self.results.delete_runs(self.steps)
        self._load()
        specs = [x for x in self._missing_specs() if self._claim(x, self.plan.config) is not None]
        self._load()
        points = [{"run": self._register(spec), **spec.trial.params} for spec in specs]
        domains = {name: _tune_domain(tune, x) for name, x in space.items()}
        scheduler = _population_scheduler(self._settings.seed)(
            time_attr="generation",
            perturbation_interval=1,
            hyperparam_mutations=domains,
            custom_explore_fn=lambda config: _clip_to_ranges(config, space),
            log_config=False,
            synch=True,  # the same seed gives the same population in any order of arrival
        )
        options = {
            "scheduler": scheduler,
            "search_alg": BasicVariantGenerator(points_to_evaluate=points),
            "num_samples": len(points),
        }
        interval = max(1, self.steps // self._settings.generations)
        changes: dict[str, Any] = {"checkpoint_interval": interval, "seed": self.plan.seeds[0]}
        if hasattr(self.plan.config, "save_replay"):
            changes["save_replay"] = True  # otherwise a fork would start with an empty buffer
            changes["report_interval"] = min(self.plan.config.report_interval, interval)
        config = pack(dataclasses.replace(self.plan.config, **changes))
        settings = dataclasses.replace(
            settings, config=config, generations=self._settings.generations
        )
        runs = tune.choice([point["run"] for point in points])
        return options, {"run": runs, **domains}, settings

    def record_report(self, name: str, result: Mapping[str, Any]) -> None:
        """Store the report of a run."""
        spec, score = self._specs[name], result.get("score", math.nan)
        if spec.key in self._curves and "timesteps" in result and math.isfinite(score):
            # A replaced process starts again, or at its last checkpoint.
            curve = [item for item in self._curves[spec.key] if item[0] < result["timesteps"]]
            self._curves[spec.key] = [*curve, (result["timesteps"], score)]

    def record_end(self, name: str, result: Mapping[str, Any], error: str) -> None:
        """Store the outcome of a run.

        Args:
            name: name of the run's directory.
            result: its last report.
            error: why its process died, "" if it finished or Tune stopped it.
        """
        spec = self._specs[name]
        if "ended" in result:
            state, score, reason, seconds = result["ended"]
            if result.get("became"):
                became = {**spec.trial.attrs.get("became", {}), str(self.steps): result["became"]}
                self.results.update_attrs(spec.trial.number, {"became": became})
            self._finish(spec, state, score, reason, seconds)
        elif error:
            self._finish(spec, "failed", None, error, None)
        else:
            score, steps = result.get("score", math.nan), result.get("timesteps", 0)
            text = format_number(score)
            reason = f"{text} after {steps:,} steps: stopped by Ray Tune's {self._pruner.name}"
            self._finish(spec, "pruned", score, reason, result.get("time_total_s"))

    def show_progress(self) -> None:
        """Show the progress of the sweep. Raise an exception if a signal has arrived."""
        self._on_change(self)


def _trial_name(trial: Any) -> str:
    """Return the name of a trial and its directory, which is that of its first run."""
    return trial.config["run"]


def _check_capacity(ray: Any, resources: Mapping[str, float]) -> None:
    """Raise an error if no node has the resources of a trial."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if all(node.get(_RAY_NAMES.get(name, name), 0) >= x for name, x in resources.items()):
            return
    request = ", ".join(f"`{name}` {amount:g}" for name, amount in resources.items())
    capacity = ", ".join(
        f"{name} {max(node.get(name, 0) for node in nodes):g}"
        for name in sorted({name for node in nodes for name in node if ":" not in name})
        if "memory" not in name
    )
    raise ConfigError(
        f"a trial needs {request}, but no node has that much (at most {capacity}): use fewer "
        "`--workers`, lower `--trial-resources`, or add a node"
    )


def _tune_domain(tune: Any, domain: Choices | Range) -> Any:
    if isinstance(domain, Choices):
        return list(domain.values)
    return (tune.loguniform if domain.is_log else tune.uniform)(domain.low, domain.high)


def _clip_to_ranges(config: dict[str, Any], space: Space) -> dict[str, Any]:
    """Return options clipped to their ranges, since Tune multiplies them by 0.8 or 1.2."""
    ranges = {name: x for name, x in space.items() if isinstance(x, Range)}
    return config | {name: min(max(config[name], x.low), x.high) for name, x in ranges.items()}


def _population_scheduler(seed: int) -> Any:
    """Return Tune's population-based training, whose draws depend on seed and generation."""
    # Tune draws from the global generators of the process. It makes all changes of a generation
    # when the last member arrives, whichever that is.
    from ray.tune.schedulers import PopulationBasedTraining

    class SeededPopulation(PopulationBasedTraining):
        """Population-based training that is reproducible and does not wait for failed members."""

        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> str:
            random.seed(f"{seed} {result['generation']}")
            np.random.seed([seed, result["generation"]])  # noqa: NPY002
            return super().on_trial_result(tune_controller, trial, result)

        def choose_trial_to_run(self, tune_controller: Any) -> Any:
            next_trial = super().choose_trial_to_run(tune_controller)
            live = [x for x in tune_controller.get_trials() if not x.is_finished()]
            if next_trial is None and live and all(x.status == x.PAUSED for x in live):
                # The last member of a generation failed, so no report would end the generation.
                states = [self._trial_state[x] for x in live]
                last_generation = max(state.last_train_time for state in states)
                for state in states:
                    state.last_perturbation_time = last_generation
                self._next_perturbation_sync = last_generation + 1
                next_trial = super().choose_trial_to_run(tune_controller)
            return next_trial

    return SeededPopulation


def _searcher(runner: RayRunner, specs: Iterator[RunSpec]) -> Any:
    """Return the search algorithm that gives Tune the missing runs."""
    from ray.tune.search import Searcher

    class RunSearcher(Searcher):
        """A search algorithm that suggests the missing runs."""

        def __init__(self, suggest: Callable[[], Any]) -> None:
            super().__init__(metric="score", mode="max")
            self._suggest = suggest

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Tune stores this state, but nothing restores it

        def suggest(self, trial_id: str) -> Any:
            return self._suggest() or Searcher.FINISHED

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            pass  # `ResultCallback` handles it, for populations too

        def save(self, checkpoint_path: str) -> None:
            pass  # the sweep resumes from its file

        def restore(self, checkpoint_path: str) -> None:
            pass

    return RunSearcher(lambda: runner.suggest(specs))


def _callback(runner: RayRunner) -> Any:
    """Return the callback that receives the results of Tune's trials."""
    from ray.tune import Callback

    class ResultCallback(Callback):
        """A callback that stores results."""

        def __init__(self, runner: RayRunner) -> None:
            self._runner = runner

        def __getstate__(self) -> dict[str, Any]:
            return {}  # like above

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
        ) -> None:
            self._runner.record_report(str(trial), result)

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            self._runner.record_end(str(trial), trial.last_result, "")

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            error = trial.get_error()
            lines = str(error).strip().splitlines() or ["its process ended"]
            self._runner.record_end(str(trial), {}, shortened(lines[-1].strip()))

        def on_step_end(self, iteration: int, trials: Any, **_: Any) -> None:
            self._runner.show_progress()

    return ResultCallback(runner)
