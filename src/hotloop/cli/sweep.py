"""`hotloop sweep ALGORITHM NAME=SPACE…`: the best options, over trials and seeds."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hotloop
from hotloop.algorithms import find
from hotloop.cli import need, tell
from hotloop.errors import ConfigError
from hotloop.system.signals import Ended, end_once

if TYPE_CHECKING:
    from hotloop.sweeps import Results, Space
    from hotloop.sweeps.runner import Plan, Runner
    from hotloop.training.algorithm import Algorithm

HELP = """usage: hotloop sweep ALGORITHM NAME=SPACE ... [options] [options of hotloop train]
       hotloop sweep bandit AGENT NAME=SPACE ... [options of hotloop bandit grid]
       hotloop sweep resume FILE [options]
       hotloop sweep report FILE [options]

Train with many options, and say which are best: trials side by side, several seeds each, all in one
file that a sweep goes on from when it was killed, or gets more trials, seeds or steps.

spaces:
  learning_rate=log:1e-5,1e-2   a range, by its logarithm; lin:0,1 evenly, int:16,256 whole numbers
  gae_lambda=0.9,0.95           values; with commas in them: linear:3e-4,0;1e-3
  learning_rate=log:1e-5,1e-2,7 seven points of a range, for a grid; also 0.1:0.5:0.1 by steps and
                                1e-5:1e-2:x10 by factors

options:
{options}
`hotloop sweep report --help` says what the report has.

examples:
  hotloop sweep ppo --env-id CartPole-v1 learning_rate=log:1e-5,1e-2 gae_lambda=0.9,0.95 \\
    --trials 50 --seeds 1-3
  hotloop sweep sac --env-id Pendulum-v1 --space sac.toml --sampler tpe --hours 8
  hotloop sweep resume sweep.sqlite --trials 100
  hotloop sweep report sweep.sqlite --test-seeds 101-110
"""
# Options that a sweep may be gone on with; they change nothing of what there is.
_MORE = (
    *("trials", "seeds", "hours", "jobs", "lanes", "pruner", "join"),
    *("backend", "ray_address", "ray_runtime_env", "trial_resources"),
)
_BACKENDS = ("processes", "ray")
_AMOUNTS, _RUNTIME_ENV = '{"num_cpus": 2, "num_gpus": 0.5}', '{"pip": ["hotloop[train]"]}'
_OF_RAY = {"ray_address", "ray_runtime_env", "trial_resources"}
# Of a population: how often the worst go on from the best, and one.
GENERATIONS = 8


def run(args: list[str]) -> int:
    """Sweep; see `hotloop sweep --help`."""
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
        need(module, extra="train", purpose="training")
    if args[0] == "resume":
        return _resume(args[1:])
    own, rest = _parser().parse_known_args(args[1:])
    return _sweep(args[0], own, rest)


def _help(code: int) -> int:
    """Print the help; return the exit code."""
    print(HELP.format(options=_parser().format_help().partition("options:\n")[2]), end="")
    return code


def _parser() -> argparse.ArgumentParser:
    from hotloop.sweeps.pruners import PRUNERS
    from hotloop.sweeps.samplers import SAMPLERS
    from hotloop.sweeps.worker import METRICS

    parser = argparse.ArgumentParser(
        prog="hotloop sweep", allow_abbrev=False, add_help=False, usage=argparse.SUPPRESS
    )
    add = parser.add_argument
    default = "sweeps/<env>__<algorithm>.sqlite"
    add("--file", type=Path, metavar="FILE", help=f"of results; default: {default}")
    add("--space", type=Path, metavar="FILE", help="spaces in a TOML file, beside those given")
    add("--sampler", metavar="NAME", default="random", help=_listed(SAMPLERS))
    add("--sampler-seed", type=int, metavar="N", default=0, help="of its draws; default: 0")
    add("--trials", type=int, metavar="N", help="how many; a grid: all of it")
    add("--seeds", metavar="SEEDS", default="1", help="of each trial, such as 1-3; default: 1")
    add("--hours", type=float, metavar="H", help="after which nothing new is begun")
    add("--jobs", metavar="N", help="processes; by default as many as the cores have room for")
    add(
        "--lanes", metavar="N", default="1", help="trainings of a process in one update; default: 1"
    )
    add("--pruner", metavar="NAME", default="none", help=_listed(PRUNERS))
    add("--metric", metavar="NAME", default="return", help=_listed(METRICS))
    add("--join", action="store_true", help="work on a file that another sweep works on")
    add("--backend", metavar="NAME", default="processes", help="processes, or ray: Ray Tune")
    add("--ray-address", metavar="ADDR", help="of a cluster; default: a Ray of this machine alone")
    add("--ray-runtime-env", metavar="JSON", help="of trials there: see Ray's `runtime_env`")
    add(
        "--trial-resources", metavar="JSON", help="""of a trial on Ray, such as '{"num_gpus": 1}'"""
    )
    add("--generations", type=int, metavar="N", help="of `--sampler pbt`; default: 8")
    return parser


def _listed(names: dict[str, str]) -> str:
    return "; ".join(f"{name}: {about}" for name, about in names.items()).replace("%", "%%")


def _sweep(name: str, own: argparse.Namespace, rest: list[str]) -> int:
    """Begin a sweep, or go on with it."""
    from hotloop.cli.train_options import configured
    from hotloop.sweeps import Results
    from hotloop.sweeps.samplers import key_of
    from hotloop.sweeps.spaces import parse, texts_of
    from hotloop.training.options import to_json

    algorithm = find(name)
    spaces = [x for x in rest if "=" in x and x.partition("=")[0].isidentifier()]
    args = [x for x in rest if x not in spaces]
    texts: dict[str, Any] = {**_of_file(own.space), **texts_of(spaces)}
    space = parse(texts, algorithm.config)
    given = {x.partition("=")[0].removeprefix("--").replace("-", "_") for x in args}
    for option in space:
        if option in given:
            raise ConfigError(f"`{option}` is swept over, and given too: leave one of them out")
    for option in ("seed", "seeds", "vary", "run_dir"):
        if option in given:
            raise ConfigError(f"a sweep has no `--{option.replace('_', '-')}`: write `--seeds`")
    config = configured(algorithm, args, name)
    path = own.file or Path("sweeps") / f"{_plain(config.env_id)}__{_plain(name)}.sqlite"
    told = {
        "algorithm": name,
        "args": args,
        "space": texts,
        "sampler": own.sampler,
        "sampler_seed": own.sampler_seed,
        "metric": own.metric,
    }
    if own.sampler == "pbt":  # trained together: another number of them is another population
        told |= {"trials": own.trials, "seeds": own.seeds}
        told["generations"] = own.generations or GENERATIONS
    elif own.generations is not None:
        raise ConfigError("`--generations` are those of a population: pass `--sampler pbt`")
    fixed = {
        option: value
        for option, value in to_json(config).items()
        if option not in (*space, "seed", "total_timesteps", "run_dir", "runs_dir")
    }
    key = key_of({**{n: x for n, x in told.items() if n != "args"}, "config": fixed})
    results = Results(path)
    try:
        before = results.get("key")
        if before is not None and before != key:
            raise ConfigError(
                f"{path} has another sweep, of {results.get('algorithm')} over "
                f"{', '.join(results.get('space'))}: name another `--file`, or go on with it, "
                f"`hotloop sweep resume {shlex.quote(str(path))}`"
            )
        return _go(name, config, space, own, results, {**told, "key": key})
    finally:
        results.close()


def _of_file(path: Path | None) -> dict[str, Any]:
    """Return spaces of a TOML file: of each option a text, or a list of values."""
    if path is None:
        return {}
    from hotloop.cli.configuration import toml_loads

    try:
        return toml_loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"`--space` must be a TOML file, got {path} ({error.strerror})"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f'{path} is no TOML ({error}): expected lines such as `learning_rate = "log:1e-5,1e-2"`'
        ) from error


def _plain(text: str) -> str:
    return "".join(x if x.isalnum() or x in "-." else "-" for x in text)


def _resume(args: list[str]) -> int:
    """Go on with a sweep."""
    parser = _parser()
    parser.prog = "hotloop sweep resume"
    parser.add_argument("path", type=Path, metavar="FILE")
    parser.add_argument("--total-timesteps", type=int)
    own = parser.parse_args(args)
    _, config, space, stored = opened(own.path)
    try:
        given = {arg.partition("=")[0].removeprefix("--") for arg in args if arg.startswith("--")}
        asked = {name.replace("-", "_") for name in given}
        for name in asked - {*_MORE, "total_timesteps"}:
            name = name.replace("_", "-")
            raise ConfigError(f"a sweep is gone on with as it was begun: leave `--{name}` out")
        for name, value in (stored.get("asked") or {}).items():
            if name not in asked:
                setattr(own, name, value)
        if own.backend != "ray":  # what is stored of Ray is of a sweep that was there
            for name in _OF_RAY - asked:
                setattr(own, name, None)
        own.sampler, own.sampler_seed = stored.get("sampler"), stored.get("sampler_seed")
        own.metric = stored.get("metric")
        own.generations = stored.get("generations")
        if own.sampler == "pbt" and asked & {"trials", "seeds"}:
            raise ConfigError(
                "a population is trained together, and has the trials and the seed that it was "
                "begun with: begin another one in another `--file`"
            )
        steps = own.total_timesteps or stored.get("steps")
        config = dataclasses.replace(config, total_timesteps=steps)
        return _go(stored.get("algorithm"), config, space, own, stored, {})
    finally:
        stored.close()


def opened(path: Path) -> tuple[Algorithm, Any, Any, Results]:
    """Return the algorithm, the configuration and the space of a sweep, and its open file.

    Raises:
        ConfigError: there is no such file, or no sweep in it.
    """
    from hotloop.cli.train_options import configured
    from hotloop.sweeps import Results
    from hotloop.sweeps.spaces import parse

    if not path.exists():
        raise ConfigError(f"there is no {path}: `hotloop sweep ALGORITHM …` makes one")
    results = Results(path)
    try:
        name = results.get("algorithm")
        if name is None:
            raise ConfigError(f"{path} has no sweep yet: begin one, `hotloop sweep ALGORITHM …`")
        algorithm = find(name)
        config = configured(algorithm, results.get("args"), name)
        steps = results.get("steps")
        if steps is not None:
            config = dataclasses.replace(config, total_timesteps=steps)
        return algorithm, config, parse(results.get("space"), algorithm.config), results
    except BaseException:
        results.close()
        raise


def plan_of(
    algorithm_name: str,
    config: Any,
    own: argparse.Namespace,
    seeds: Sequence[int],
    runs_alike: int = 1,
) -> Plan:
    """Return what a sweep does.

    Args:
        algorithm_name: on the command line.
        config: that trials change.
        own: options of the sweep.
        seeds: of each trial.
        runs_alike: see `Plan`.

    Raises:
        ConfigError: a number makes no sense.
    """
    from hotloop.cli.planned import parse_jobs
    from hotloop.sweeps.runner import Plan
    from hotloop.sweeps.worker import METRICS

    if own.trials is not None and own.trials < 1:
        raise ConfigError(f"`--trials` must be positive, got {own.trials}")
    if own.hours is not None and not own.hours > 0:
        raise ConfigError(f"`--hours` must be positive, got {own.hours:g}")
    if own.lanes != "auto" and (not own.lanes.isdecimal() or int(own.lanes) < 1):
        raise ConfigError(
            f"`--lanes` must be how many trainings share an update, or auto, got {own.lanes}"
        )
    if own.metric not in METRICS:
        raise ConfigError(f"`--metric` must be {' or '.join(METRICS)}, got '{own.metric}'")
    if own.metric == "evaluation" and not getattr(config, "eval_interval", None):
        raise ConfigError("`--metric evaluation` needs `--eval-interval`: say how often")
    return Plan(
        algorithm=algorithm_name,
        config=config,
        seeds=tuple(seeds),
        trials=own.trials,
        hours=own.hours,
        jobs=parse_jobs(own.jobs, config),
        lanes=None if own.lanes == "auto" else int(own.lanes),
        metric=own.metric,
        version=hotloop.__version__,
        runs_alike=runs_alike,
    )


def _go(
    name: str,
    config: Any,
    space: Any,
    own: argparse.Namespace,
    results: Results,
    kept: Mapping[str, Any],
) -> int:
    """Run what is missing, and tell what is best.

    Args:
        name: of the algorithm.
        config, space, own, results: of the sweep.
        kept: what the file is to know of a sweep that begins, once nothing is refused.
    """
    from hotloop.cli.planned import parse_seeds
    from hotloop.cli.sweep_table import Shown, print_best
    from hotloop.sweeps.pruners import Pruner
    from hotloop.sweeps.runner import Runner
    from hotloop.sweeps.samplers import Sampler
    from hotloop.sweeps.spaces import runs_alike

    sampler = Sampler(own.sampler, space, own.sampler_seed)
    seeds = parse_seeds(own.seeds)
    # Of a sweep that is there as it was begun: what one compiles, another must not leave eager.
    counts = [count for count in (own.trials, sampler.most) if count and count > 0]
    alike = runs_alike(space, config, min(counts, default=1) * len(seeds))
    alike = results.get("runs_alike") or alike
    plan = plan_of(name, config, own, seeds, alike)
    pruner = Pruner(own.pruner, config.total_timesteps)
    if plan.trials is None and plan.hours is None and sampler.most is None:
        raise ConfigError("a sweep needs an end: pass `--trials` or `--hours`")
    if (plan.lanes or 1) > 1 and own.pruner in ("median", "asha"):
        raise ConfigError(
            f"`--pruner {own.pruner}` stops single runs, and lanes are trained together: leave "
            "one of them out"
        )
    ray_runner = _on_ray(own, space, plan)
    results.enter(may_join=own.join)
    for what, value in kept.items():
        results.set(what, value)
    results.set("runs_alike", alike)
    results.set("steps", config.total_timesteps)
    results.set("asked", {name: getattr(own, name) for name in _MORE if name != "join"})
    shown = Shown(plan, sampler.most)
    runner: Runner | None = None
    code = 0
    with end_once() as ending:
        try:

            def on_change(runner: Runner) -> None:
                ending.check()
                shown.show(runner)

            parts = plan, results, sampler, pruner, on_change
            runner = Runner(*parts) if ray_runner is None else ray_runner(*parts)
            runner.tune()
        except Ended as ended:
            code = ended.exit_code
        finally:
            shown.close()
    assert runner is not None
    failed = print_best(runner)
    path = shlex.quote(str(results.path))
    if code:
        tell(f"interrupted: `hotloop sweep resume {path}` goes on")
        return code
    print(f"next: hotloop sweep report {path} --test-seeds 101-110")
    return 1 if failed else 0


def _on_ray(own: argparse.Namespace, space: Space, plan: Plan) -> Callable[..., Runner] | None:
    """Return what makes the runner of a sweep on Ray; None: it is not on Ray.

    Raises:
        ConfigError: options don't go together.
        MissingExtraError: Ray is not installed.
    """
    if own.backend not in _BACKENDS:
        raise ConfigError(f"`--backend` must be {' or '.join(_BACKENDS)}, got '{own.backend}'")
    if own.backend == "processes":
        if own.sampler == "pbt":
            raise ConfigError("`--sampler pbt` is Ray Tune's: pass `--backend ray`")
        for name in sorted(_OF_RAY):
            if getattr(own, name):
                raise ConfigError(f"`--{name.replace('_', '-')}` needs `--backend ray`")
        return None
    from hotloop.sweeps.on_ray import (
        OnRay,
        RayRunner,
        check_population,
        import_tune,
        resources_of,
    )

    if (own.ray_address or "").startswith("ray://"):
        raise ConfigError(
            f"`--ray-address` must be host:port of a cluster that this machine is a node of, got "
            f"{own.ray_address}: Tune does not run through Ray's client"
        )
    if plan.lanes != 1:
        raise ConfigError("`--lanes` are of processes here, and a trial on Ray is one training")
    is_population = own.sampler == "pbt"
    if own.generations is not None and own.generations < 2:
        raise ConfigError(f"`--generations` must be 2 or more, got {own.generations}")
    if is_population:
        check_population(space, plan, own.generations or GENERATIONS)
        if own.pruner != "none":
            raise ConfigError("`--sampler pbt` replaces the worst itself: leave `--pruner` out")
        for name in ("jobs", "join"):
            if getattr(own, name):
                raise ConfigError(f"a population is trained together: leave `--{name}` out")
    import_tune()
    where = OnRay(
        address=own.ray_address,
        resources=resources_of(plan.config, _resources(own.trial_resources)),
        runtime_env=_json_object("ray-runtime-env", own.ray_runtime_env, _RUNTIME_ENV),
        jobs=plan.jobs if own.jobs else None,
        generations=own.generations or GENERATIONS,
        seed=own.sampler_seed,
    )
    return functools.partial(RayRunner, where=where, space=space if is_population else None)


def _resources(text: str | None) -> dict[str, float]:
    """Return what a trial takes of a node."""
    found = _json_object("trial-resources", text, _AMOUNTS)
    for amount in found.values():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
            raise ConfigError(
                f"`--trial-resources` must be amounts by name, got '{text}': write '{_AMOUNTS}'"
            )
    return found


def _json_object(option: str, text: str | None, example: str) -> dict[str, Any]:
    """Return what an option of JSON says; None: nothing."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"`--{option}` must be an object of JSON, got '{text}': write '{example}'"
        )
    return found
