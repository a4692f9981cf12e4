"""`hotloop sweep ALGORITHM NAME=SPACE…`: search for the best options, over trials and seeds."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hotloop
from hotloop.algorithms import find
from hotloop.base import documents
from hotloop.base.files import read_regular
from hotloop.base.importing import require_module
from hotloop.base.signals import Interrupted, interrupt_once
from hotloop.base.streams import notify
from hotloop.cli.command_parser import CommandParser, add_trust_option
from hotloop.cli.stored_sweep import load_sweep, open_results
from hotloop.errors import ConfigError, shortened

if TYPE_CHECKING:
    from hotloop.experiments import Results, Space
    from hotloop.experiments.results import ResumeOptions, SweepSettings
    from hotloop.experiments.runner import Runner, SweepPlan

HELP = """usage: hotloop sweep ALGORITHM NAME=SPACE ... [options] [options of hotloop train]
       hotloop sweep bandit AGENT NAME=SPACE ... [options of hotloop bandit grid]
       hotloop sweep resume FILE [options]
       hotloop sweep report FILE [options]

Train with many combinations of options and print the best ones. Trials run in parallel, each with
several seeds. Results are in one file, to continue after a kill, or to add trials, seeds or steps.

spaces:
  learning_rate=log:1e-5,1e-2   a log-uniform range; lin:0,1 is uniform, int:16,256 has integers
  gae_lambda=0.9,0.95           values; write ; between values with commas: linear:3e-4,0;1e-3
  learning_rate=log:1e-5,1e-2,7 seven points of a range, for a grid; also 0.1:0.5:0.1 with a step
                                and 1e-5:1e-2:x10 with a factor

options:
{options}
`hotloop sweep report --help` describes the report.

examples:
  hotloop sweep ppo --env-id CartPole-v1 learning_rate=log:1e-5,1e-2 gae_lambda=0.9,0.95 \\
    --trials 50 --seeds 1-3
  hotloop sweep sac --env-id Pendulum-v1 --space sac.toml --sampler tpe --hours 8
  hotloop sweep resume sweep.sqlite --trials 100
  hotloop sweep report sweep.sqlite --test-seeds 101-110
"""
_DEFAULT_SAMPLER = "default: grid if the space has a finite number of points, else random"
_BACKENDS = ("processes", "ray")
_RESOURCES, _RUNTIME_ENV = '{"num_cpus": 2, "num_gpus": 0.5}', '{"pip": ["hotloop[train]"]}'
_RAY_OPTIONS = {"ray_address", "ray_runtime_env", "trial_resources"}
# Default number of rounds of population-based training.
GENERATIONS = 8


def run(args: list[str]) -> int:
    """Run the command. See `hotloop sweep --help`."""
    if not args or args[0] in ("-h", "--help"):
        return _help(0 if args else 2)
    if args[0] == "report":
        from hotloop.cli.sweep_report import run as report

        return report(args[1:])
    if args[0] == "bandit":
        from hotloop.cli.bandit.grid import run as grid

        return grid(args[1:])
    if "--help" in args or "-h" in args:
        return _help(0)
    for module in ("torch", "gymnasium", "tyro", "safetensors", "matplotlib"):
        require_module(module, extra="train", purpose="training")
    if args[0] == "resume":
        return _resume(args[1:])
    options, train_args = _parser().parse_known_args(args[1:])
    return _start(args[0], options, train_args)


def _help(code: int) -> int:
    print(HELP.format(options=_parser().format_help().partition("options:\n")[2]), end="")
    return code


def _parser() -> argparse.ArgumentParser:
    from hotloop.experiments.pruners import PRUNERS
    from hotloop.experiments.samplers import SAMPLERS
    from hotloop.experiments.worker import METRICS

    parser = CommandParser(
        prog="hotloop sweep", allow_abbrev=False, add_help=False, usage=argparse.SUPPRESS
    )
    add = parser.add_argument
    default = "sweeps/<env>__<algorithm>.sqlite"
    add("--file", type=Path, metavar="FILE", help=f"file of the results; default: {default}")
    add("--space", type=Path, metavar="FILE", help="a TOML file with more spaces")
    add("--sampler", metavar="NAME", help=f"{_join_names(SAMPLERS)}; {_DEFAULT_SAMPLER}")
    add("--sampler-seed", type=int, metavar="N", default=0, help="seed of the sampler; default: 0")
    add("--trials", type=int, metavar="N", help="number of trials; default for a grid: all points")
    add("--seeds", metavar="SEEDS", default="1", help="seeds per trial, such as 1-3; default: 1")
    add("--hours", type=float, metavar="H", help="start no new run after this time")
    add("--jobs", metavar="N", help="number of processes; default: as the cores allow")
    add(
        "--lanes", metavar="N", default="1", help="runs per process and update, or auto; default: 1"
    )
    add("--pruner", metavar="NAME", default="none", help=_join_names(PRUNERS))
    add("--metric", metavar="NAME", default="return", help=_join_names(METRICS))
    add("--join", action="store_true", help="work on a file together with another running sweep")
    add("--backend", metavar="NAME", default="processes", help="processes, or ray for Ray Tune")
    add("--ray-address", metavar="ADDR", help="address of a Ray cluster; default: a local one")
    add("--ray-runtime-env", metavar="JSON", help="environment of trials: see Ray's `runtime_env`")
    add("--trial-resources", metavar="JSON", help="""Ray resources per trial: '{"num_gpus": 1}'""")
    add("--generations", type=int, metavar="N", help="rounds of `--sampler pbt`; default: 8")
    return parser


def _join_names(names: dict[str, str]) -> str:
    return "; ".join(f"{name}: {summary}" for name, summary in names.items()).replace("%", "%%")


def _start(name: str, options: argparse.Namespace, train_args: list[str]) -> int:
    from hotloop.cli.train_options import build_config
    from hotloop.experiments import Results
    from hotloop.experiments.results import SweepSettings
    from hotloop.experiments.samplers import params_key
    from hotloop.experiments.spaces import check_trials, data_check, parse, parse_assignments
    from hotloop.training.options import to_json

    # Separate the spaces from fixed options, and check both.
    algorithm = find(name)
    space_args = [arg for arg in train_args if "=" in arg and arg.partition("=")[0].isidentifier()]
    args = [arg for arg in train_args if arg not in space_args]
    texts: dict[str, Any] = {**_read_spaces(options.space), **parse_assignments(space_args)}
    space = parse(texts, algorithm.config)
    option_names = {arg.partition("=")[0].removeprefix("--").replace("-", "_") for arg in args}
    for option in space:
        if option in option_names:
            raise ConfigError(f"`{option}` has a space and a fixed value: remove one of them")
    for option in ("seed", "seeds", "vary", "run_dir", "runs_dir"):
        if option in option_names:
            other = "`--file`, which its runs are next to" if "dir" in option else "`--seeds`"
            raise ConfigError(f"a sweep has no `--{option.replace('_', '-')}`: use {other}")
    config = build_config(algorithm, args, name)
    path = options.file or Path("sweeps") / f"{_slug(config.env_id)}__{_slug(name)}.sqlite"
    # Compute a key of everything that must not change when the sweep is resumed.
    results = Results(path)
    try:
        stored = results.settings
        if options.sampler is None and stored is not None:
            options.sampler = stored.sampler
        elif options.sampler is None:
            options.sampler = _choose_sampler(space, options.trials)
        key = {
            "algorithm": name,
            "space": texts,
            "sampler": options.sampler,
            "sampler_seed": options.sampler_seed,
            "metric": options.metric,
        }
        if options.sampler == "pbt":  # the members of a population depend on each other
            options.generations = options.generations or GENERATIONS
            key |= {name: getattr(options, name) for name in ("trials", "seeds", "generations")}
        elif options.generations is not None:
            raise ConfigError("`--generations` needs a population: pass `--sampler pbt`")
        key["config"] = {
            option: value
            for option, value in to_json(config).items()
            if option not in (*space, "seed", "total_timesteps", "run_dir", "runs_dir")
        }
        key_text = params_key(key)
        if stored is not None and stored.key != key_text:
            raise ConfigError(
                f"{path} has another sweep, of {stored.algorithm} over {', '.join(stored.space)}: "
                "pass another `--file`, or continue that sweep with `hotloop sweep resume "
                f"{shlex.quote(str(path))}`"
            )
        check_trials(path, results.trials(), space, data_check(algorithm.config))
        settings = SweepSettings(
            key=key_text,
            algorithm=name,
            args=args,
            space=texts,
            sampler=options.sampler,
            sampler_seed=options.sampler_seed,
            metric=options.metric,
            generations=options.generations,
            steps=config.total_timesteps,
            runs_per_update=stored.runs_per_update if stored is not None else 0,
            options=_resume_options(options),
        )
        return _run_sweep(config, space, options, results, settings)
    finally:
        results.close()


def _resume_options(options: argparse.Namespace) -> ResumeOptions:
    from hotloop.experiments.results import ResumeOptions

    return ResumeOptions(**{x.name: getattr(options, x.name) for x in fields(ResumeOptions)})


def _choose_sampler(space: Space, trials: int | None) -> str:
    """Return the default sampler, and print the reason: a grid unless `--trials` would cut it."""
    from hotloop.experiments.spaces import MAX_POINTS, grid_size

    try:
        size = grid_size(space)
    except ConfigError:  # a range without a number of points
        return "random"
    points = f"the space has {size:,} point{'s' * (size != 1)}"
    if trials is not None and trials < size:
        notify(f"{points}, more than `--trials {trials}`: random draws, or pass `--sampler grid`")
        return "random"
    if size > MAX_POINTS:
        return "random"
    notify(f"{points}: a grid, with a trial for each, or pass `--sampler random`")
    return "grid"


def _read_spaces(path: Path | None) -> dict[str, Any]:
    """Return the spaces in a TOML file: a text or a list of values per option."""
    if path is None:
        return {}
    from hotloop.training.options.option_files import toml_loads

    try:
        return toml_loads(read_regular(path).decode("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"`--space` must be a TOML file, got {path} ({error.strerror})"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not valid TOML ({error}): expected lines such as "
            '`learning_rate = "log:1e-5,1e-2"`'
        ) from error


def _slug(text: str) -> str:
    return "".join(char if char.isalnum() or char in "-." else "-" for char in text)


def _resume(args: list[str]) -> int:
    parser = _parser()
    parser.prog = "hotloop sweep resume"
    parser.add_argument("path", type=Path, metavar="FILE")
    parser.add_argument("--total-timesteps", type=int)
    add_trust_option(parser)
    options = parser.parse_args(args)
    results = open_results(options.path, is_trusted=options.trust)
    try:
        config, space = load_sweep(results)
        stored = results.settings
        assert stored is not None  # checked by `open_results`
        flags = {arg.partition("=")[0].removeprefix("--") for arg in args if arg.startswith("--")}
        given_names = {name.replace("-", "_") for name in flags}
        stored_options = dataclasses.asdict(stored.options)
        for name in given_names - {*stored_options, "join", "total_timesteps"}:
            name = name.replace("_", "-")
            raise ConfigError(f"a sweep continues with its own options: remove `--{name}`")
        for name, value in stored_options.items():
            if name not in given_names:
                setattr(options, name, value)
        if options.backend != "ray":  # stored Ray options are for the Ray backend only
            for name in _RAY_OPTIONS - given_names:
                setattr(options, name, None)
        options.sampler, options.sampler_seed = stored.sampler, stored.sampler_seed
        options.metric, options.generations = stored.metric, stored.generations
        if options.sampler == "pbt" and given_names & {"trials", "seeds"}:
            raise ConfigError(
                "a population can't change its trials and seed: start another sweep in another "
                "`--file`"
            )
        steps = options.total_timesteps or stored.steps
        config = dataclasses.replace(config, total_timesteps=steps)
        return _run_sweep(config, space, options, results, stored)
    finally:
        results.close()


def make_plan(
    algorithm_name: str,
    config: Any,
    options: argparse.Namespace,
    seeds: Sequence[int],
    runs_per_update: int = 1,
) -> SweepPlan:
    """Return the plan of a sweep.

    Raises:
        ConfigError: A number is out of range, or the metric is unknown or unavailable.
    """
    from hotloop.cli.training_plan import parse_jobs
    from hotloop.experiments.runner import SweepPlan
    from hotloop.experiments.worker import METRICS

    if options.trials is not None and options.trials < 1:
        raise ConfigError(f"`--trials` must be positive, got {options.trials}")
    if options.hours is not None and not options.hours > 0:
        raise ConfigError(f"`--hours` must be positive, got {options.hours:g}")
    if options.lanes != "auto" and (not options.lanes.isdecimal() or int(options.lanes) < 1):
        raise ConfigError(
            f"`--lanes` must be a positive number of runs or auto, got {options.lanes}"
        )
    if options.metric not in METRICS:
        raise ConfigError(f"`--metric` must be {' or '.join(METRICS)}, got '{options.metric}'")
    if options.metric == "evaluation" and not getattr(config, "eval_interval", None):
        raise ConfigError("`--metric evaluation` needs `--eval-interval`")
    return SweepPlan(
        algorithm=algorithm_name,
        config=config,
        seeds=tuple(seeds),
        trials=options.trials,
        hours=options.hours,
        jobs=parse_jobs(options.jobs, config),
        lanes=None if options.lanes == "auto" else int(options.lanes),
        metric=options.metric,
        version=hotloop.__version__,
        runs_per_update=runs_per_update,
    )


def _run_sweep(
    config: Any,
    space: Any,
    options: argparse.Namespace,
    results: Results,
    settings: SweepSettings,
) -> int:
    """Store the settings, run the missing trials, and print the best ones."""
    from hotloop.cli.sweep_progress import SweepProgress
    from hotloop.cli.training_plan import parse_seeds
    from hotloop.experiments.pruners import Pruner
    from hotloop.experiments.runner import Runner
    from hotloop.experiments.samplers import SearchSampler
    from hotloop.experiments.spaces import runs_per_update
    from hotloop.reports.sweep_table import print_best

    sampler = SearchSampler(options.sampler, space, options.sampler_seed)
    seeds = parse_seeds(options.seeds)
    # A resumed sweep keeps its number of equal runs, which decides whether updates are compiled.
    counts = [count for count in (options.trials, sampler.max_trials) if count and count > 0]
    num_alike = runs_per_update(space, config, min(counts, default=1) * len(seeds))
    num_alike = settings.runs_per_update or num_alike
    plan = make_plan(settings.algorithm, config, options, seeds, num_alike)
    pruner = Pruner(options.pruner, config.total_timesteps)
    if plan.trials is None and plan.hours is None and sampler.max_trials is None:
        raise ConfigError(
            "a sweep needs an end: pass `--trials` or `--hours`, or only values such as "
            "`learning_rate=3e-4,1e-3`, for a trial with each"
        )
    if (plan.lanes or 1) > 1 and options.pruner in ("median", "asha"):
        raise ConfigError(
            f"`--pruner {options.pruner}` stops single runs, which lanes can't: remove one of "
            "the two options"
        )
    ray_runner = _make_ray_runner(options, space, plan)
    # Store the settings, and run the trials.
    results.make_directory()
    results.enter(may_join=options.join)
    results.settings = dataclasses.replace(
        settings,
        steps=config.total_timesteps,
        runs_per_update=num_alike,
        options=_resume_options(options),
    )
    progress = SweepProgress(plan, sampler.max_trials)
    runner: Runner | None = None
    code = 0
    with interrupt_once() as guard:
        try:

            def on_change(runner: Runner) -> None:
                guard.check()
                progress.show(runner)

            runner_args = plan, results, sampler, pruner, on_change
            runner = Runner(*runner_args) if ray_runner is None else ray_runner(*runner_args)
            runner.tune()
        except Interrupted as interrupt:
            code = interrupt.exit_code
        finally:
            progress.close()
    assert runner is not None
    failed = print_best(runner.status, results.path)
    for note in failed:
        notify(note)
    path = shlex.quote(str(results.path))
    if code:
        notify(f"interrupted: `hotloop sweep resume {path}` continues it")
        return code
    print(f"next: hotloop sweep report {path} --test-seeds 101-110")
    return 1 if failed else 0


def _make_ray_runner(
    options: argparse.Namespace, space: Space, plan: SweepPlan
) -> Callable[..., Runner] | None:
    """Return a factory of the Ray runner, or None for another backend."""
    # Raises ConfigError if options contradict each other, MissingExtraError without Ray.
    # Check the options of the backend.
    if options.backend not in _BACKENDS:
        raise ConfigError(f"`--backend` must be {' or '.join(_BACKENDS)}, got '{options.backend}'")
    if options.backend == "processes":
        if options.sampler == "pbt":
            raise ConfigError("`--sampler pbt` needs Ray Tune: pass `--backend ray`")
        for name in sorted(_RAY_OPTIONS):
            if getattr(options, name):
                raise ConfigError(f"`--{name.replace('_', '-')}` needs `--backend ray`")
        return None
    from hotloop.experiments.ray_tune import (
        RayRunner,
        RaySettings,
        check_population,
        import_tune,
        trial_resources,
    )

    address = options.ray_address or os.environ.get("RAY_ADDRESS") or ""
    if address.startswith("ray://"):
        raise ConfigError(
            f"`--ray-address` must be host:port of a cluster that includes this machine, got "
            f"{address}: Ray Tune does not support Ray's client"
        )
    if plan.lanes != 1:
        raise ConfigError("`--lanes` needs `--backend processes`: a trial on Ray is one training")
    # Check the options of a population.
    is_population = options.sampler == "pbt"
    if options.generations is not None and options.generations < 2:
        raise ConfigError(f"`--generations` must be 2 or more, got {options.generations}")
    if is_population:
        check_population(space, plan, options.generations or GENERATIONS)
        if options.pruner != "none":
            raise ConfigError("`--sampler pbt` replaces the worst trials itself: remove `--pruner`")
        for name in ("jobs", "join"):
            if getattr(options, name):
                raise ConfigError(f"`--sampler pbt` does not support `--{name}`: remove it")
    # Make the factory.
    import_tune()
    ray_options = RaySettings(
        address=options.ray_address,
        resources=trial_resources(plan.config, _parse_resources(options.trial_resources)),
        runtime_env=_parse_json("ray-runtime-env", options.ray_runtime_env, _RUNTIME_ENV),
        jobs=plan.jobs if options.jobs else None,
        generations=options.generations or GENERATIONS,
        seed=options.sampler_seed,
    )
    return functools.partial(
        RayRunner, settings=ray_options, space=space if is_population else None
    )


def _parse_resources(text: str | None) -> dict[str, float]:
    amounts = _parse_json("trial-resources", text, _RESOURCES)
    for amount in amounts.values():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
            raise ConfigError(
                f"`--trial-resources` must map names to numbers of at least 0, got '{text}': "
                f"write '{_RESOURCES}'"
            )
    return amounts


def _parse_json(option: str, text: str | None, example: str) -> dict[str, Any]:
    """Return the value of an option in JSON, or an empty dictionary for None."""
    try:
        value = documents.parse(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(
            f"`--{option}` must be a JSON object, got '{shortened(text or '')}': write '{example}'"
        )
    return value
