"""Options that commands share, and their parsing."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any

from hotloop.base.space_syntax import parse_assignments
from hotloop.cli.bandit.field_help import list_fields
from hotloop.cli.command_parser import CommandParser, count, natural
from hotloop.errors import ConfigError, UnknownNameError, nearest

_VALUE = "FIELD=VALUE"


def new_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for `hotloop bandit NAME`. Blank lines separate paragraphs."""
    parser = CommandParser(
        prog=f"hotloop bandit {name}",
        description="\n\n".join(textwrap.fill(part, 80) for part in description.split("\n\n")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # so that a misspelled name raises an error with the nearest one
    )
    parser.epilog = "Values are numbers such as 0.1, 1/128 or 2**-7, or none, true, false."
    return parser


def add_environment(parser: argparse.ArgumentParser, *, accepts_ranges: bool = False) -> None:
    """Add the options of the environment, with ranges instead of values for a grid."""
    from hotloop.bandits.environments import ENVIRONMENTS

    name_help = "name of an environment from the list below (default: %(default)s)"
    kind, metavar = (str, "RANGE") if accepts_ranges else (int, "K")
    group = parser.add_argument_group("environment")
    group.add_argument("--environment", metavar="NAME", default="gaussian", help=name_help)
    group.add_argument("--arms", metavar=metavar, type=kind, help="number of arms (default: 10)")
    group.add_argument(
        "--env",
        metavar=f"FIELD={'RANGE' if accepts_ranges else 'VALUE'}",
        nargs="+",
        action="extend",
        default=[],
        help="settings of the environment: spread=2, means=0.9,0.8, rewards=FILE.npy",
    )
    parser.epilog = f"environments (FIELD=DEFAULT):\n{list_fields(ENVIRONMENTS)}\n\n{parser.epilog}"


def add_sizes(parser: argparse.ArgumentParser, *, runs: int | None, steps: int | None) -> None:
    """Add the options of the number of runs and steps, the seed and the threads."""
    add, default = parser.add_argument, "that of the figure" if runs is None else "%(default)s"
    number = {"metavar": "N", "type": count}
    add("--runs", **number, default=runs, help=f"independent runs (default: {default})")
    add("--steps", **number, default=steps, help=f"steps of a run (default: {default})")
    seed = {"type": natural, "metavar": "N", "default": 0}
    add("--seed", **seed, help="random seed (default: %(default)s)")
    threads_help = "number of threads, without effect on the results (default: every core)"
    add("--threads", **number, help=threads_help)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for JSON output."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run_sizes(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_sizes` as arguments of `run` and `compare`."""
    sizes = {"num_runs": options.runs, "num_steps": options.steps}
    return sizes | {"seed": options.seed, "threads": options.threads}


def parse_options(
    parser: argparse.ArgumentParser, args: Sequence[str], *, is_intermixed: bool = False
) -> argparse.Namespace:
    """Parse the options.

    Positional arguments may follow options if `is_intermixed`.

    Raises:
        UnknownNameError: there is no such option. The message gives the nearest one.
        ConfigError: there is an extra argument, or a value is invalid.
    """
    parse = parser.parse_known_intermixed_args if is_intermixed else parser.parse_known_args
    options, unknown = parse([_with_dashes(arg) for arg in args])
    if unknown:
        name, _, value = unknown[0].partition("=")
        actions = [(x, action.dest) for action in parser._actions for x in action.option_strings]
        settings = ", ".join(option for option, dest in actions if dest == "settings")
        help_hint = f"; `{parser.prog} --help` lists them"
        if not name.startswith("-"):
            hint = (
                f": write it as an option, `--{name} {value}`" if value and settings else help_hint
            )
            raise ConfigError(f"`{parser.prog}` can't take '{unknown[0]}' here{hint}")
        hint = nearest(name[2:], [option[2:] for option, _ in actions], prefix="--")
        if not hint and settings:
            hint = f"; settings of this agent are {settings}"
        elif not hint and "ranges" in options:
            hint = f"; write a setting of the agent without dashes, `{name[2:]}=RANGE`"
        raise UnknownNameError(f"`{parser.prog}` has no option '{name}'{hint or help_hint}")
    return options


def _with_dashes(arg: str) -> str:
    """Return an option with dashes: fields are spelled with underscores."""
    name, equals, value = arg.partition("=")
    return (name.replace("_", "-") if name.startswith("--") else name) + equals + value


def parse_agent(name: str, settings: Sequence[str], option: str = "") -> Any:
    """Return an agent with settings `field=value` of an `option`.

    Raises:
        UnknownNameError, ConfigError: the name or a setting is invalid.
    """
    from hotloop.bandits.parsing import make_agent

    return make_agent(name, parse_assignments(settings, option, form=_VALUE))


def environment_fields(options: argparse.Namespace, **form: str) -> dict[str, str]:
    """Return the settings of the environment as text: those of `--env`, and `--arms`."""
    fields = parse_assignments(options.env, "--env ", **form)
    if options.arms is not None:
        if "num_arms" in fields:
            raise ConfigError("`--arms` and `--env num_arms=…` are the same: give one of them")
        fields["num_arms"] = str(options.arms)
    return fields


def parse_environment(options: argparse.Namespace) -> Any:
    """Return the environment of the options.

    Raises:
        UnknownNameError, ConfigError: the name or a setting is invalid.
    """
    from hotloop.bandits.parsing import make_environment

    environment = make_environment(options.environment, environment_fields(options, form=_VALUE))
    if options.arms not in (None, environment.num_arms):  # `means` overrides only the default
        raise ConfigError(
            f"`--arms` sets {options.arms} arms, `--env` {environment.num_arms}: give one of them"
        )
    return environment
