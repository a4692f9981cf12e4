"""Options of `hotloop sweep` and `hotloop sweep resume`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from hotloop.base import documents
from hotloop.cli.command_parser import CommandParser, add_trust_option, count, positive
from hotloop.errors import ConfigError, shortened

NO_RAY: dict[str, Any] = dict.fromkeys(("ray_address", "ray_runtime_env", "trial_resources"))
_JSON_EXAMPLES = {
    "ray_runtime_env": '{"pip": ["hotloop[train]"]}',
    "trial_resources": '{"num_cpus": 2, "num_gpus": 0.5}',
}
_DEFAULT_SAMPLER = "default: grid if the space has a finite number of points, else random"
_STORED = ("file", "space", "sampler", "sampler_seed", "metric", "generations")


def parser() -> argparse.ArgumentParser:
    """Return the parser, whose result has the options that were set."""
    from hotloop.experiments.plan import METRICS
    from hotloop.experiments.pruners import PRUNERS
    from hotloop.experiments.samplers import SAMPLERS

    parser = CommandParser(
        prog="hotloop sweep",
        allow_abbrev=False,
        add_help=False,
        usage=argparse.SUPPRESS,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    default = "sweeps/<env>__<algorithm>.sqlite"
    add("--file", type=Path, metavar="FILE", help=f"file of the results; default: {default}")
    add("--space", type=Path, metavar="FILE", help="a TOML file with more spaces")
    add("--sampler", metavar="NAME", help=f"{_join_names(SAMPLERS)}; {_DEFAULT_SAMPLER}")
    add("--sampler-seed", type=int, metavar="N", help="seed of the sampler; default: 0")
    add(
        "--trials", type=count, metavar="N", help="number of trials; default for a grid: all points"
    )
    add("--seeds", metavar="SEEDS", help="seeds per trial, such as 1-3; default: 1")
    add("--hours", type=positive, metavar="H", help="start no new run after this time")
    add("--jobs", type=count, metavar="N", help="number of processes; default: as the cores allow")
    add("--lanes", metavar="N", help="runs per process and update, or auto; default: 1")
    add("--pruner", metavar="NAME", help=_join_names(PRUNERS))
    add("--metric", metavar="NAME", help=_join_names(METRICS))
    add("--join", action="store_true", help="work on a file together with another running sweep")
    add("--backend", metavar="NAME", help="processes, or ray for Ray Tune")
    add("--ray-address", metavar="ADDR", help="address of a Ray cluster; default: a local one")
    add("--ray-runtime-env", metavar="JSON", help="environment of trials: see Ray's `runtime_env`")
    add("--trial-resources", metavar="JSON", help="""Ray resources per trial: '{"num_gpus": 1}'""")
    add("--generations", type=int, metavar="N", help="rounds of `--sampler pbt`; default: 8")
    return parser


def resume_parser() -> argparse.ArgumentParser:
    """Return the parser of `hotloop sweep resume`."""

    class Refuse(argparse.Action):
        def __call__(self, *_: Any) -> None:
            option = self.option_strings[0]
            raise ConfigError(f"a sweep continues with its own options: remove `{option}`")

    resume = CommandParser(
        prog="hotloop sweep resume",
        allow_abbrev=False,
        parents=[parser()],
        conflict_handler="resolve",
        argument_default=argparse.SUPPRESS,
    )
    for name in _STORED:
        resume.add_argument(f"--{name.replace('_', '-')}", action=Refuse, help=argparse.SUPPRESS)
    resume.add_argument("path", type=Path, metavar="FILE")
    resume.add_argument("--total-timesteps", type=int, metavar="N", help="steps of longer runs")
    add_trust_option(resume)
    resume.set_defaults(trust=False)
    return resume


def _join_names(names: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {summary}" for name, summary in names.items()).replace("%", "%%")


def plan_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a plan that were set.

    Raises:
        ConfigError: a value is malformed.
    """
    from hotloop.experiments import Plan
    from hotloop.experiments.plan import parse_seeds

    readers = {
        "seeds": parse_seeds,
        "lanes": _parse_lanes,
        "ray_runtime_env": lambda text: _parse_json("ray_runtime_env", text),
        "trial_resources": lambda text: _parse_json("trial_resources", text),
    }
    names = {field.name for field in fields(Plan)} - {"space"}
    set_values = {name: value for name, value in vars(options).items() if name in names}
    return {name: readers.get(name, lambda x: x)(value) for name, value in set_values.items()}


def _parse_lanes(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"`--lanes` must be a positive number of runs or auto, got {text}")
    return int(text)


def _parse_json(name: str, text: str) -> dict[str, Any]:
    value = documents.parse_object(text)
    if value is None:
        raise ConfigError(
            f"`--{name.replace('_', '-')}` must be a JSON object, got '{shortened(text)}': write "
            f"'{_JSON_EXAMPLES[name]}'"
        )
    return value
