"""`hotloop train ALGORITHM`: train, with a live progress line and a timing tree at the end."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Mapping
from typing import Any

from hotloop import timing
from hotloop.algorithms import ALGORITHMS, find
from hotloop.base.importing import long_imports, require_module
from hotloop.cli.search_space import base_config
from hotloop.cli.train_many import train_many, varied_options
from hotloop.cli.train_options import split_command_options
from hotloop.errors import ConfigError

HELP = """usage: hotloop train ALGORITHM [options]

Train an agent. The run directory stores the configuration, metrics,
checkpoints, learning curve and timing.

algorithms:
{algorithms}
  module:attribute  A custom algorithm, such as my_reinforce:algorithm.

`hotloop train ALGORITHM --help` lists every option and its default.

examples:
  hotloop train ppo --env-id CartPole-v1 --total-timesteps 200000 --seed 1
  hotloop train ppo --learning-rate linear:3e-4,0 --clip-range cosine:0.2,0.05
  hotloop train sac --env-id Pendulum-v1
  hotloop train ppo --seeds 1-5 --jobs 2
  hotloop train ppo --seeds 1-5 --vary learning_rate=1e-4,1e-3 --lanes on
  hotloop train ppo --learning-rate 1e-3 --save-config fast.toml
  hotloop train ppo --config fast.toml
"""


def run(args: list[str]) -> int:
    """Run the command. See `hotloop train --help`."""
    if not args or args[0] in ("-h", "--help"):
        lines = (f"  {name:12} {summary}" for name, summary in ALGORITHMS.items())
        print(HELP.format(algorithms="\n".join(lines)), end="")
        return 0 if args else 2
    for module in ("torch", "gymnasium", "tyro", "safetensors", "matplotlib"):
        require_module(module, extra="train", purpose="training")
    with timing.span("start"), long_imports():
        with timing.span("import torch"):
            importlib.import_module("torch")
        with timing.span("import hotloop"):
            algorithm = find(args[0])
            importlib.import_module("hotloop.training.run")
        with timing.span("read options"):
            options, config_args = split_command_options(args[1:])
            texts = varied_options(options, config_args)
            config = base_config(algorithm, args[0], args[1:], texts)
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
    return train_many(args[0], config, texts, options, config_args)


def _save_config(name: str, config: Any, options: Mapping[str, Any]) -> int:
    """Write a configuration, and print the command that trains with it."""
    from hotloop.training.options import option_files

    path = options["--save-config"]
    option_files.save(path, config, name)
    command = (
        f"hotloop train {name} --config {shlex.quote(path)}{option_files.trust_option(config)}"
    )
    for option in ("--seeds", "--jobs", "--lanes"):  # they are not part of a configuration
        if options[option] is not None:
            command += f" {option} {shlex.quote(options[option])}"
    command += "".join(f" --vary {shlex.quote(text)}" for text in options["--vary"])
    print(f"configuration: {path}\nnext: {command}")
    return 0
