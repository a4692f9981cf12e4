"""Starting many trainings: `sweep` and `train_many`, and the parts that their commands share."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotloop.base.space_syntax import SYNTAX
from hotloop.envs import EnvSpec
from hotloop.errors import ConfigError, RunDirectoryError
from hotloop.experiments.plan import Plan, check_positive, default_jobs, parse_seeds, plan_options
from hotloop.experiments.pool import PoolExecutor
from hotloop.experiments.pruners import Pruner
from hotloop.experiments.results import GROUP_FILE, Results, group_run_name
from hotloop.experiments.runner import Executor, Runner
from hotloop.experiments.samplers import SearchSampler, choose_sampler
from hotloop.experiments.spaces import (
    Choices,
    Space,
    check_trials,
    data_check,
    grid_size,
    parse,
    parse_domain,
    point,
    runs_per_update,
    value_text,
)
from hotloop.experiments.tables import ExperimentTable, table_of
from hotloop.runs.new_directory import default_name

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm
    from hotloop.training.options import Factory

# Default number of rounds of population-based training.
GENERATIONS = 8
_RAY_OPTIONS = ("ray_address", "ray_runtime_env", "trial_resources")


def sweep(
    algorithm: str,
    space: Mapping[str, str | Sequence[Any]],
    env_id: Factory,
    *,
    seeds: str | int | Iterable[int] = 1,
    file: str | Path | None = None,
    on_change: Callable[[Runner], None] = lambda _: None,
    sampler: str | None = None,
    trials: int | None = None,
    hours: float | None = None,
    jobs: int | None = None,
    lanes: int | None = 1,
    pruner: str = "none",
    metric: str = "return",
    sampler_seed: int = 0,
    **options: Any,
) -> ExperimentTable:
    """Search for the best options of an algorithm, over trials and seeds.

    The trials run in other processes. Runs whose results are already in the file are not repeated.
    `hotloop sweep report FILE` prints the results.

    Args:
        algorithm: `ppo` for example, or `module:attribute` of your own.
        space: option → its values, or a text such as "log:1e-5,1e-2", as for `hotloop sweep`.
        env_id: id of the environment, `module:Id` for your own, or a class or function of a module
            that makes it.
        seeds: seeds of each trial: a number, several, or a text such as "1-3".
        file: the file of results, by default `sweeps/<env>__<algorithm>.sqlite`.
        on_change: function called with the runner several times a second.
        sampler: a name of `hotloop sweep --sampler`. None: a grid if the space is finite.
        trials: number of trials. None: all points of a grid.
        hours: time in hours after which no run starts.
        jobs: number of processes. None: as many as have room on the cores.
        lanes: number of runs that a process trains in one update. None: the faster number.
        pruner: a name of `hotloop sweep --pruner`.
        metric: "return" of training episodes, or "evaluation".
        sampler_seed: seed of the sampler.
        options: options of all trainings, such as `total_timesteps=20_000`. Others have the value
            of the environment's preset, or their default.

    Returns:
        The table of all runs.

    Raises:
        ConfigError, UnknownNameError: an option, a space or a setting is invalid.
        MissingExtraError: the sampler needs an extra.
    """
    for name, number in (("trials", trials), ("hours", hours), ("jobs", jobs), ("lanes", lanes)):
        check_positive(name, number)
    definition = _find(algorithm)
    config, texts = definition.preset(_importable_env(env_id), **options), _as_texts(space)
    path = sweep_path(config.env_id, algorithm) if file is None else Path(file)
    results = Results(path)
    try:
        plan, _ = plan_sweep(
            algorithm,
            config,
            texts,
            results,
            sampler=sampler,
            seeds=parse_seeds(seeds),
            trials=trials,
            hours=hours,
            jobs=jobs,
            lanes=lanes,
            pruner=pruner,
            metric=metric,
            sampler_seed=sampler_seed,
        )
        make_runner(plan, results, on_change=on_change).tune()
        return table_of(results)
    finally:
        results.close()


def train_many(
    algorithm: str,
    env_id: Factory,
    *,
    seeds: str | int | Iterable[int],
    vary: Mapping[str, str | Sequence[Any]] | None = None,
    jobs: int | None = None,
    lanes: bool = False,
    run_dir: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> ExperimentTable:
    """Train with several seeds, and with all combinations of values of some options.

    Each training runs in another process, and ends with the same weights as it would alone.

    Args:
        algorithm: `ppo` for example, or `module:attribute` of your own.
        env_id: id of the environment, `module:Id` for your own, or a class or function of a module
            that makes it.
        seeds: seeds of each combination: a number, several, or a text such as "1-5".
        vary: option → its values, or a text such as "1e-4,3e-4".
        jobs: number of processes. None: as many as have room on the cores.
        lanes: whether a process trains several runs in one update.
        run_dir: the new parent of the run directories, by default
            `runs/<env>__<algorithm>__seeds__<time>`. You may add other seeds to an existing one.
        progress: whether to print progress lines.
        options: options of all trainings. Others have the value of the environment's preset, or
            their default.

    Returns:
        The table of all runs, whose score is the mean return of the last 100 training episodes.

    Raises:
        ConfigError, UnknownNameError: an option is invalid.
        RunDirectoryError: a run directory exists already.
    """
    definition = _find(algorithm)
    config = definition.preset(_importable_env(env_id), **options)
    directory = group_directory(config, definition.name) if run_dir is None else Path(run_dir)
    plan = plan_group(
        algorithm, config, _as_texts(vary or {}), parse_seeds(seeds), jobs, has_lanes=lanes
    )
    runner = open_group(plan, directory, on_line=_print_line if progress else None)
    try:
        runner.tune()
        return table_of(runner.results)
    finally:
        runner.results.close()


def _importable_env(env_id: Factory) -> str:
    """Return the name under which other processes import the environment."""
    return EnvSpec(env_id).to_json()["env"]


def _print_line(label: str, text: str) -> None:
    print(f"{label} | {text}", flush=True)


def plan_sweep(
    algorithm: str,
    config: Any,
    texts: Mapping[str, Any],
    results: Results,
    *,
    sampler: str | None = None,
    trials: int | None = None,
    generations: int | None = None,
    **settings: Any,
) -> tuple[Plan, str]:
    """Return the plan of a sweep, and the reason for its sampler.

    Args:
        algorithm: name of the algorithm.
        config: configuration of all trainings.
        texts: option → its space.
        results: the file of results, which may have the same sweep.
        sampler, trials, generations, settings: see `Plan`.

    Raises:
        ConfigError, UnknownNameError: a setting is invalid, or the file has another sweep.
    """
    if not texts:
        raise ConfigError(f"a sweep needs options to sweep over, got none: {SYNTAX}")
    _check_one_policy(config, texts)
    space, stored, reason = parse(texts, type(config)), results.plan, ""
    if sampler is None and stored is not None:
        sampler = stored.sampler
    elif sampler is None:
        sampler, reason = choose_sampler(space, trials)
    if sampler == "pbt":
        generations = GENERATIONS if generations is None else generations
    elif generations is not None:
        raise ConfigError("`--generations` needs a population: pass `--sampler pbt`")
    plan = Plan(
        algorithm=algorithm,
        config=plan_options(config),
        space=dict(texts),
        sampler=sampler,
        trials=trials,
        generations=generations,
        **settings,
    )
    if stored is None:
        size = SearchSampler(sampler, space, 0).max_trials
        counts = [count for count in (trials, size) if count is not None]
        num_runs = min(counts, default=1) * len(plan.seeds)
        return replace(plan, runs_per_update=runs_per_update(space, config, num_runs)), reason
    if stored.key != plan.key:
        raise ConfigError(
            f"{results.path} has another sweep, of {stored.algorithm} over "
            f"{', '.join(stored.space) or 'seeds'}: pass another `--file`, or continue that sweep "
            f"with `hotloop sweep resume {shlex.quote(str(results.path))}`"
        )
    # A resumed sweep keeps its number of runs per update, on which compiling depends.
    return replace(plan, runs_per_update=stored.runs_per_update), reason


def plan_group(
    algorithm: str,
    config: Any,
    varied: Mapping[str, Any],
    seeds: tuple[int, ...],
    jobs: int | None = None,
    *,
    has_lanes: bool = False,
) -> Plan:
    """Return the plan of trainings with several seeds, and all combinations of some values.

    Args:
        algorithm: name of the algorithm.
        config: configuration of all trainings.
        varied: option → its values, as text or a list.
        seeds: seeds of each combination.
        jobs: number of processes. None: as many as have room on the cores.
        has_lanes: whether a process trains several runs in one update.

    Raises:
        ConfigError, UnknownNameError: a value is invalid, or the trainings can't be lanes.
    """
    _check_one_policy(config, varied)
    # The names of runs contain the values as the user wrote them.
    texts = {
        name: [
            value_text(value)
            for value in (x if isinstance(x, list) else parse_domain(name, x, str).points(name))
        ]
        for name, x in varied.items()
    }
    space = parse(texts, type(config))
    configs = [
        replace(config, **point(space, k), seed=seed)
        for k in range(grid_size(space))
        for seed in seeds
    ]
    check_positive("jobs", jobs)
    num_jobs = min(default_jobs(config) if jobs is None else jobs, len(configs))
    num_lanes = 1
    if has_lanes:
        from hotloop.learner import choose_device
        from hotloop.training.lanes import check_lanes

        check_lanes(_find(algorithm), configs)
        if jobs is None and choose_device(config.device).type != "cpu":
            num_jobs = 1
        num_lanes = math.ceil(len(configs) / max(1, num_jobs))
    return Plan(
        algorithm=algorithm,
        config=plan_options(config),
        space=texts,
        seeds=seeds,
        jobs=num_jobs,
        lanes=num_lanes,
    )


def _check_one_policy(config: Any, varied: Iterable[str]) -> None:
    """Check that no training has several policies."""
    if config.has_policies or "policies" in varied:
        raise ConfigError(
            "`policies` can't be combined with several seeds or varied options, which train one "
            "policy in each run: start `hotloop train` once for each seed, or leave `policies` out"
        )


def group_paths(plan: Plan, directory: Path) -> list[Path]:
    """Return the run directories of a group of trainings."""
    texts: Space = {name: Choices(tuple(values)) for name, values in plan.space.items()}
    return [
        directory / group_run_name(point(texts, k), seed)
        for k in range(grid_size(texts))
        for seed in plan.seeds
    ]


def open_group(plan: Plan, directory: Path, **callbacks: Any) -> Runner:
    """Return the runner of a group of trainings, whose results must be closed.

    Raises:
        RunDirectoryError: a run directory exists already.
        ConfigError: the directory has trainings with other options.
    """
    for path in group_paths(plan, directory):
        if path.exists():
            raise RunDirectoryError(
                f"{path} exists already, and runs are never overwritten: remove it, or pass "
                "another --run-dir"
            )
    results = Results(directory / GROUP_FILE)
    try:
        return make_runner(plan, results, may_join=True, **callbacks)
    except BaseException:
        results.close()
        raise


def group_directory(config: Any, name: str) -> Path:
    """Return the parent of a group's run directories, by default a new name."""
    if config.run_dir is not None:
        return Path(config.run_dir)
    base = Path(config.runs_dir) / default_name(config.env_id, name, "seeds")
    path, count = base, 1
    while path.exists():
        count += 1
        path = base.with_name(f"{base.name}-{count}")
    return path


def sweep_path(env_id: str, algorithm: str) -> Path:
    """Return the default path of a sweep's file."""
    slugs = (
        "".join(char if char.isalnum() or char in "-." else "-" for char in text)
        for text in (env_id, algorithm)
    )
    return Path("sweeps") / f"{'__'.join(slugs)}.sqlite"


def make_runner(
    plan: Plan,
    results: Results,
    *,
    may_join: bool = False,
    on_change: Callable[[Runner], None] = lambda _: None,
    on_line: Callable[[str, str], None] | None = None,
) -> Runner:
    """Store a plan, and return the runner of its missing trainings.

    Args:
        plan: the plan.
        results: the file of results.
        may_join: whether other processes may run the plan at the same time.
        on_change, on_line: see `Runner`.

    Raises:
        ConfigError: settings contradict each other, or another process runs it.
        MissingExtraError: the sampler or the backend needs an extra.
    """
    config, space = _load(plan, results)
    sampler = SearchSampler(plan.sampler, space, plan.sampler_seed)
    pruner = Pruner(plan.pruner, plan.steps)
    if plan.trials is None and plan.hours is None and sampler.max_trials is None:
        raise ConfigError(
            "a sweep needs an end: pass `--trials` or `--hours`, or only values such as "
            "`learning_rate=3e-4,1e-3`, for a trial with each"
        )
    if plan.sampler == "pbt" and may_join:
        raise ConfigError("`--sampler pbt` does not support `--join`: remove it")
    executor, stored = _make_executor(plan, config, space), plan
    if results.is_group and results.plan is not None:
        stored = _extended(results, plan)
    results.make_directory()
    results.enter(may_join=may_join)
    results.plan = stored
    return Runner(plan, config, results, sampler, pruner, executor, on_change, on_line)


def _load(plan: Plan, results: Results) -> tuple[Any, Space]:
    """Return the configuration and the space of a plan, after a check of stored trials."""
    config = plan.make_config()
    space = parse(plan.space, type(config))
    check_trials(results.path, results.trials(), space, data_check(type(config)))
    return config, space


def _extended(results: Results, plan: Plan) -> Plan:
    """Return the stored plan of a group with the seeds of another plan."""
    stored = results.plan
    assert stored is not None
    if stored.key != plan.key:
        raise ConfigError(
            f"{results.directory} has trainings with other options, and only seeds can be added: "
            "pass another --run-dir"
        )
    return replace(plan, seeds=tuple(dict.fromkeys((*stored.seeds, *plan.seeds))))


def _make_executor(plan: Plan, config: Any, space: Space) -> Executor:
    """Return the executor of a plan, after a check of its settings."""
    if plan.backend == "ray":
        from hotloop.experiments.population import PopulationExecutor
        from hotloop.experiments.ray_tune import RayExecutor

        if plan.sampler == "pbt":
            return PopulationExecutor(plan, config, space)
        return RayExecutor(plan, config)
    if plan.sampler == "pbt":
        raise ConfigError("`--sampler pbt` needs Ray Tune: pass `--backend ray`")
    for name in _RAY_OPTIONS:
        if getattr(plan, name) is not None:
            raise ConfigError(f"`--{name.replace('_', '-')}` needs `--backend ray`")
    if (plan.lanes or 1) > 1 and plan.pruner in ("median", "asha"):
        raise ConfigError(
            f"`--pruner {plan.pruner}` stops single runs, which lanes can't: remove one of the two "
            "options"
        )
    return PoolExecutor(plan.jobs or default_jobs(config), plan.lanes)


def make_test_runner(plan: Plan, results: Results, num_seeds: int, jobs: int | None) -> Runner:
    """Return a runner of stored trials with fresh seeds, in processes of this machine."""
    plan = replace(plan, trials=None, hours=None, runs_per_update=num_seeds)
    config, _ = _load(plan, results)
    executor = PoolExecutor(jobs or default_jobs(config), lanes=1)
    results.make_directory()
    results.enter(may_join=True)
    return Runner(plan, config, results, None, Pruner("none", plan.steps), executor)


def _find(algorithm: str) -> Algorithm:
    from hotloop.algorithms import find

    return find(algorithm)


def _as_texts(space: Mapping[str, str | Sequence[Any]]) -> dict[str, Any]:
    """Return spaces as text, or as lists of JSON values."""
    return {
        name: x if isinstance(x, str) else [list(v) if isinstance(v, tuple) else v for v in x]
        for name, x in space.items()
    }
