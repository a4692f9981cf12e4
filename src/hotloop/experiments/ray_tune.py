"""Trainings in Ray Tune, on this machine or a cluster."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hotloop.base.children import module_paths
from hotloop.base.processes import process_start
from hotloop.base.rounding import format_number
from hotloop.errors import ConfigError, requires_extra, shortened
from hotloop.experiments.ray_trainable import TrialSettings, train_trial
from hotloop.experiments.worker import pack

if TYPE_CHECKING:
    from hotloop.experiments.plan import Plan
    from hotloop.experiments.runner import Outcome, Runner, RunSpec

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


def trial_resources(config: Any, overrides: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources of a trial. Default: its torch threads, a core per worker, its GPU.

    Args:
        config: configuration of the trials.
        overrides: `num_cpus`, `num_gpus` and custom resources, which replace the default.

    Raises:
        ConfigError: an amount is invalid, all are 0, or the number of workers is `auto`.
    """
    for amount in overrides.values():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
            raise ConfigError(
                "`--trial-resources` must map names to numbers of at least 0, got "
                f"'{json.dumps(overrides)}': write '{{\"num_cpus\": 2, \"num_gpus\": 0.5}}'"
            )
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


class RayExecutor:
    """An executor that trains in Ray Tune, each run alone.

    Raises:
        ConfigError: the settings of Ray are invalid.
        MissingExtraError: Ray Tune is not installed.
    """

    generations = 1

    def __init__(self, plan: Plan, config: Any) -> None:
        address = plan.ray_address or os.environ.get("RAY_ADDRESS") or ""
        if address.startswith("ray://"):
            raise ConfigError(
                f"`--ray-address` must be host:port of a cluster that includes this machine, got "
                f"{address}: Ray Tune does not support Ray's client"
            )
        if plan.lanes != 1:
            raise ConfigError(
                "`--lanes` needs `--backend processes`: a trial on Ray is one training"
            )
        self.plan = plan
        self._resources = trial_resources(config, plan.trial_resources or {})
        self._specs: dict[str, RunSpec] = {}
        import_tune()

    def run(self, runner: Runner, specs: Iterator[RunSpec]) -> None:
        """Train the runs. See `Executor`."""
        from hotloop.rollouts.ray.cluster import connect

        self.runner = runner
        first = next(specs, None)
        if first is None:  # all runs are finished
            return
        specs = itertools.chain([first], specs)
        tune, directory = import_tune(), runner.directory
        env = {"TUNE_FUNCTION_THREAD_TIMEOUT_S": str(_TIMEOUT_S), "RAY_CHDIR_TO_TRIAL_DIR": "0"}
        env["WANDB_RUN_GROUP"] = os.environ.get("WANDB_RUN_GROUP", directory.name)
        user_env = self.plan.ray_runtime_env or {}
        runtime_env = {**user_env, "env_vars": {**env, **user_env.get("env_vars", {})}}
        num_cpus = self._resources["num_cpus"] * (self.plan.jobs or 1)
        for path in directory.glob(f"{_TUNE_DIRECTORY}-*"):  # remains of killed sweeps
            if not process_start(int(path.name.rpartition("-")[2])):
                shutil.rmtree(path, ignore_errors=True)
        directory_name = f"{_TUNE_DIRECTORY}-{os.getpid()}"
        try:
            with connect(self.plan.ray_address, num_cpus=num_cpus, runtime_env=runtime_env) as ray:
                _check_capacity(ray, self._resources)
                self._run_tuner(tune, specs, directory_name)
        finally:  # delete Tune's checkpoints, since the run directories have checkpoints
            shutil.rmtree(directory / directory_name, ignore_errors=True)

    def _run_tuner(self, tune: Any, specs: Iterator[RunSpec], name: str) -> None:
        """Train all runs in Tune, with its own files in a directory of this name."""
        from ray.tune import PlacementGroupFactory

        bundle = {_RAY_NAMES.get(x, x): amount for x, amount in self._resources.items() if amount}
        directory = str(self.runner.directory.resolve())
        options, space, config = self.tune_options(tune, specs)
        settings = TrialSettings(
            algorithm=self.plan.algorithm,
            metric=self.plan.metric,
            runs_per_update=self.plan.runs_per_update,
            directory=directory,
            sys_path=module_paths(),
            config=config,
            generations=self.generations,
        )

        def trainable(params: dict[str, Any]) -> None:
            train_trial(params, settings)

        tuner = tune.Tuner(
            tune.with_resources(trainable, PlacementGroupFactory([bundle])),
            param_space=space,
            tune_config=tune.TuneConfig(
                mode="max",
                metric="score",
                reuse_actors=True,
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
                **options,
            ),
            run_config=tune.RunConfig(
                name=name,
                storage_path=directory,
                failure_config=tune.FailureConfig(max_failures=1),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=_NUM_CHECKPOINTS),
                verbose=0,
                callbacks=[_callback(self)],
            ),
        )
        tuner.fit()

    def tune_options(
        self, tune: Any, specs: Iterator[RunSpec]
    ) -> tuple[dict[str, Any], dict[str, Any], str | None]:
        """Return Tune's options, its parameter space, and the packed configuration of members."""
        from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

        steps = self.plan.steps
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
                min_time_slice=sys.maxsize,  # never pause trials: Tune has no checkpoints of them
            ),
        }
        scheduler = schedulers.get(self.runner.pruner.name, FIFOScheduler)()
        options = {
            "search_alg": _searcher(self, specs),
            "scheduler": scheduler,
            "num_samples": -1,
            "max_concurrent_trials": self.plan.jobs,
        }
        return options, {}, None

    def suggest(self, specs: Iterator[RunSpec]) -> dict[str, Any] | None:
        """Claim the next run. Return the parameters of its trial in Tune, None if there is none."""
        claimed = None if self.runner.is_out_of_time() else self.runner.claim_next(specs)
        if claimed is None:
            return None
        spec, config = claimed
        return {"run": self.register(spec), "config": pack(config)}

    def register(self, spec: RunSpec) -> str:
        """Return the name of a run in Tune, the same as that of its directory."""
        name = self.runner.run_directory(spec).name
        self._specs[name] = spec
        return name

    def record_report(self, name: str, result: Mapping[str, Any]) -> None:
        """Store the report of a run."""
        spec, score = self._specs[name], result.get("score", math.nan)
        if spec.key in self.runner.curves and "timesteps" in result and math.isfinite(score):
            self.runner.add_report(spec, result["timesteps"], score)  # Tune's pruner stops runs

    def record_end(self, name: str, result: Mapping[str, Any], error: str) -> None:
        """Store the outcome of a run.

        Args:
            name: name of the run's directory.
            result: its last report.
            error: why its process died, "" if it finished or Tune stopped it.
        """
        spec = self._specs[name]
        outcome: Outcome = ("failed", None, error, None)
        if "ended" in result:
            state, score, reason, seconds = result["ended"]
            outcome = (state, score, reason, seconds)
            if result.get("became"):
                steps, attrs = str(self.plan.steps), spec.trial.attrs
                became = {**attrs.get("became", {}), steps: result["became"]}
                self.runner.results.update_attrs(spec.trial.number, {"became": became})
        elif not error:
            score, steps = result.get("score", math.nan), result.get("timesteps", 0)
            reason = f"{format_number(score)} after {steps:,} steps: stopped by Ray Tune's "
            reason += self.runner.pruner.name
            outcome = ("pruned", score, reason, result.get("time_total_s"))
        self.runner.finish([(spec, outcome)])


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


def _searcher(executor: RayExecutor, specs: Iterator[RunSpec]) -> Any:
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
            pass  # `ResultCallback` handles it, also for populations

        def save(self, checkpoint_path: str) -> None:
            pass  # the sweep resumes from its file

        def restore(self, checkpoint_path: str) -> None:
            pass

    return RunSearcher(lambda: executor.suggest(specs))


def _callback(executor: RayExecutor) -> Any:
    """Return the callback that receives the results of Tune's trials."""
    from ray.tune import Callback

    class ResultCallback(Callback):
        """A callback that stores results."""

        def __init__(self, executor: RayExecutor) -> None:
            self._executor = executor

        def __getstate__(self) -> dict[str, Any]:
            return {}  # nothing restores it

        def on_trial_result(
            self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
        ) -> None:
            self._executor.record_report(str(trial), result)

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            self._executor.record_end(str(trial), trial.last_result, "")

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
            error = trial.get_error()
            lines = str(error).strip().splitlines() or ["its process ended"]
            self._executor.record_end(str(trial), {}, shortened(lines[-1].strip()))

        def on_step_end(self, iteration: int, trials: Any, **_: Any) -> None:
            self._executor.runner.show()

    return ResultCallback(executor)
