"""`hotloop train ALGORITHM`: train, with a live progress line and a timing tree at the end."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotloop import timing
from hotloop.algorithms import ALGORITHMS, find
from hotloop.base.importing import require_module
from hotloop.cli.train_options import build_config, split_command_options
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.training.algorithm import Algorithm

HELP = """usage: hotloop train ALGORITHM [options]

Train an agent. The run directory stores the configuration, metrics,
checkpoints, learning curve and timing.

algorithms:
{algorithms}
  module:attribute  your own algorithm, such as my_reinforce:algorithm

`hotloop train ALGORITHM --help` lists every option with its default and meaning.

examples:
  hotloop train ppo --env-id CartPole-v1 --total-timesteps 200000 --seed 1
  hotloop train ppo --learning-rate linear:3e-4,0 --clip-range cosine:0.2,0.05,0.5
  hotloop train sac --env-id Pendulum-v1
  hotloop train ppo --seeds 1-5 --jobs 2
  hotloop train ppo --seeds 1-5 --vary learning_rate=1e-4,1e-3 --lanes on
  hotloop train ppo --learning-rate 1e-3 --save-config fast.toml
  hotloop train ppo --config fast.toml
"""


def run(args: list[str]) -> int:
    """Run the command. See `hotloop train --help`."""
    if not args or args[0] in ("-h", "--help"):
        lines = (f"  {name:6} {summary}" for name, summary in ALGORITHMS.items())
        print(HELP.format(algorithms="\n".join(lines)), end="")
        return 0 if args else 2
    for module in ("torch", "gymnasium", "tyro", "safetensors", "matplotlib"):
        require_module(module, extra="train", purpose="training")
    with timing.span("start"):
        with timing.span("import torch"):
            importlib.import_module("torch")
        with timing.span("import hotloop"):
            algorithm = find(args[0])
            importlib.import_module("hotloop.training.run")
        with timing.span("read options"):
            options, config_args = split_command_options(args[1:])
            config = build_config(algorithm, args[1:], args[0])
    if options["--save-config"] is not None:
        return _save_config(args[0], config, options)
    if options["--seeds"] is None and not options["--vary"]:
        for option in ("--jobs", "--lanes"):
            if options[option] is not None:
                raise ConfigError(
                    f"`{option}` needs several trainings: pass `--seeds` too, such as 1-5"
                )
        from hotloop.reports.training_summary import TrainingSummary
        from hotloop.training.terminal import train_in_terminal

        return train_in_terminal(algorithm, config, TrainingSummary().print)
    return _train_several(algorithm, config, args[0], options, config_args)


def _save_config(name: str, config: Any, options: Mapping[str, Any]) -> int:
    """Write a configuration, and print the command that trains with it."""
    from hotloop.training.options import option_files

    path = options["--save-config"]
    option_files.save(path, config, name)
    command = (
        f"hotloop train {name} --config {shlex.quote(path)}{option_files.trust_option(config)}"
    )
    for option in ("--seeds", "--jobs", "--lanes"):  # not part of a configuration
        if options[option] is not None:
            command += f" {option} {shlex.quote(options[option])}"
    command += "".join(f" --vary {shlex.quote(text)}" for text in options["--vary"])
    print(f"configuration: {path}\nnext: {command}")
    return 0


def _train_several(
    algorithm: Algorithm, config: Any, name: str, options: Mapping[str, Any], config_args: list[str]
) -> int:
    """Train with several seeds or option values, and return the exit code."""
    from hotloop.cli import lanes, seeds, training_plan

    is_seeded = options["--seeds"] is not None
    if is_seeded and any(arg.partition("=")[0] == "--seed" for arg in config_args):
        raise ConfigError("`--seed` and `--seeds` can't be combined: remove one of them")
    if options["--lanes"] not in (None, "on", "off"):
        raise ConfigError(f"`--lanes` must be 'on' or 'off', got '{options['--lanes']}'")
    plan = training_plan.TrainingPlan(
        training_plan.parse_seeds(options["--seeds"]) if is_seeded else (config.seed,),
        training_plan.parse_varied(options["--vary"], algorithm.config, config_args),
    )
    if options["--config"] is not None:
        trust = ["--trust"] if options["--trust"] else []
        config_args = ["--config", options["--config"], *trust, *config_args]
    config_args = training_plan.without_seed(config_args)
    jobs = training_plan.parse_jobs(options["--jobs"], config)
    use_lanes = options["--lanes"] == "on"
    directory = seeds.output_directory(config, algorithm.name)
    if plan.varied or use_lanes:  # report errors before any training starts
        trainings = plan.trainings()
        configs = [build_config(algorithm, config_args, name, run.options) for run in trainings]
        if use_lanes:
            from hotloop.training.lanes import check_lanes

            check_lanes(algorithm, configs)
            jobs = jobs if options["--jobs"] else lanes.choose_jobs(jobs, configs)
            if jobs == 1:
                return lanes.train(algorithm, configs, trainings, directory)
    return seeds.train(name, config_args, directory, plan=plan, jobs=jobs, lanes=use_lanes)
