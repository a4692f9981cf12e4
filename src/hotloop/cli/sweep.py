"""`hotloop sweep ALGORITHM NAME=SPACE…`: search for the best options, over trials and seeds."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from typing import TYPE_CHECKING

from hotloop.base.importing import require_module
from hotloop.base.signals import Interrupted, interrupt_once
from hotloop.base.streams import notify
from hotloop.cli import sweep_options
from hotloop.cli.policy_population import run_population
from hotloop.cli.search_space import base_config, split_spaces
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.experiments import Plan, Results
    from hotloop.experiments.runner import Runner

HELP = """usage: hotloop sweep ALGORITHM NAME=SPACE ... [options] [options of train]
       hotloop sweep bandit AGENT NAME=SPACE ... [options of bandit grid]
       hotloop sweep resume FILE [options]
       hotloop sweep report FILE [options]

Train with many combinations of options and print the best ones. Trials run in
parallel, each with several seeds. Results are in one file, to continue after a
kill, or to add trials, seeds or steps.

spaces:
  learning_rate=log:1e-5,1e-2   log-uniform; lin:0,1 uniform, int:2,9 integers
  gae_lambda=0.9,0.95           values; write ; between values with commas:
                                linear:3e-4,0;1e-3
  learning_rate=log:1e-5,1e-2,7 seven points of a range, for a grid
  gae_lambda=0.1:0.5:0.1        a grid by a step; 1e-5:1e-2:x10 by a factor

options:
{options}
`hotloop sweep report --help` describes the report.

examples:
  hotloop sweep ppo learning_rate=log:1e-5,1e-2 gae_lambda=0.9,0.95 --trials 50
  hotloop sweep sac --env-id Pendulum-v1 --space sac.toml --hours 8 --seeds 1-3
  hotloop sweep resume sweep.sqlite --trials 100
  hotloop sweep report sweep.sqlite --test-seeds 101-110"""


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
    options, train_args = sweep_options.parser().parse_known_args(args[1:])
    return _start(args[0], options, train_args)


def _help(code: int) -> int:
    print(HELP.format(options=sweep_options.parser().format_help().partition("options:\n")[2]))
    return code


def _start(name: str, options: argparse.Namespace, train_args: list[str]) -> int:
    from hotloop.algorithms import find
    from hotloop.experiments.launch import Results, plan_sweep, sweep_path

    algorithm, settings = find(name), sweep_options.plan_settings(options)
    texts, args = split_spaces(train_args, getattr(options, "space", None), algorithm.config)
    config = base_config(algorithm, name, args, texts)
    if config.has_policies:
        return run_population(algorithm, config, texts, settings, getattr(options, "file", None))
    results = Results(getattr(options, "file", sweep_path(config.env_id, name)))
    try:
        plan, reason = plan_sweep(name, config, texts, results, **settings)
        if reason:
            notify(reason)
        return _run(plan, results, may_join=hasattr(options, "join"))
    finally:
        results.close()


def _resume(args: list[str]) -> int:
    from hotloop.cli.stored_sweep import open_results

    options = sweep_options.resume_parser().parse_args(args)
    results, stored = open_results(options.path, is_trusted=options.trust)
    try:
        if results.is_group:
            raise ConfigError(
                f"{results.path} has the trainings of `hotloop train --seeds`: `hotloop resume RUN`"
                f" continues one of the runs in {results.directory}"
            )
        settings = sweep_options.plan_settings(options)
        if stored.sampler == "pbt" and settings.keys() & {"trials", "seeds"}:
            raise ConfigError(
                "a population can't change its trials and seed: start another sweep in another "
                "`--file`"
            )
        if settings.get("backend", stored.backend) != "ray":  # drop stored options for Ray
            settings = {**sweep_options.NO_RAY, **settings}
        steps = getattr(options, "total_timesteps", stored.steps)
        config = {**stored.config, "total_timesteps": steps}
        plan = dataclasses.replace(stored, config=config, **settings)
        return _run(plan, results, may_join=hasattr(options, "join"))
    finally:
        results.close()


def _run(plan: Plan, results: Results, *, may_join: bool) -> int:
    """Run the missing trials, and print the best ones."""
    from hotloop.cli.sweep_progress import SweepProgress
    from hotloop.experiments.launch import make_runner
    from hotloop.reports.sweep_table import print_best

    progress, code = SweepProgress(), 0
    with interrupt_once() as guard:

        def on_change(runner: Runner) -> None:
            guard.check()
            progress.show(runner)

        runner = make_runner(plan, results, may_join=may_join, on_change=on_change)
        try:
            runner.tune()
        except Interrupted as interrupt:
            code = interrupt.exit_code
        finally:
            progress.close()
    failed = print_best(runner.status, results.path)
    for note in failed:
        notify(note)
    path = shlex.quote(str(results.path))
    if code:
        notify(f"interrupted: `hotloop sweep resume {path}` continues it")
        return code
    print(f"next: hotloop sweep report {path} --test-seeds 101-110")
    return 1 if failed else 0
