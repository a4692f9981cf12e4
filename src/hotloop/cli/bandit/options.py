"""Options that commands have in common, and what is made of them."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from hotloop.cli.bandit.fields import listing
from hotloop.errors import ConfigError, UnknownNameError, nearest


def parser_of(name: str, about: str) -> argparse.ArgumentParser:
    """A parser for `hotloop bandit NAME`; `about` has blank lines between paragraphs."""
    parser = argparse.ArgumentParser(
        prog=f"hotloop bandit {name}",
        description="\n\n".join(textwrap.fill(part, 88) for part in about.split("\n\n")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # so that a name that is nearly right is answered, not guessed
    )
    # What argparse takes for a negative number is not -1e-3, nor -1/8.
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    parser.epilog = "Values are numbers such as 0.1, 1/128 or 2**-7, or none, true, false."
    return parser


def add_environment(parser: argparse.ArgumentParser, *, of_ranges: bool = False) -> None:
    """Where to play; `environment_of` makes it, and a grid those of ranges."""
    from hotloop.bandits.environments import ENVIRONMENTS

    about = "which environment; they are listed below (default: %(default)s)"
    kind, metavar = (str, "RANGE") if of_ranges else (int, "K")
    group = parser.add_argument_group("environment")
    group.add_argument("--environment", metavar="NAME", default="gaussian", help=about)
    group.add_argument("--arms", metavar=metavar, type=kind, help="number of arms (default: 10)")
    group.add_argument(
        "--env",
        metavar=f"FIELD={'RANGE' if of_ranges else 'VALUE'}",
        nargs="+",
        action="extend",
        default=[],
        help="settings of the environment: spread=2, means=0.9,0.8, rewards=FILE.npy",
    )
    parser.epilog = f"environments (FIELD=DEFAULT):\n{listing(ENVIRONMENTS)}\n\n{parser.epilog}"


def add_sizes(parser: argparse.ArgumentParser, *, runs: int | None, steps: int | None) -> None:
    """How much to play; `runs` and `steps` are the defaults."""
    default = "the figure's own" if runs is None else "%(default)s"
    parser.add_argument(
        "--runs", metavar="N", type=int, default=runs, help=f"independent runs (default: {default})"
    )
    parser.add_argument(
        "--steps", metavar="N", type=int, default=steps, help=f"steps of a run (default: {default})"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of all randomness (default: %(default)s)"
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=int,
        help="how many work at once; the numbers don't depend on it (default: every core)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Whether to print JSON."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def sizes_of(options: argparse.Namespace) -> dict[str, Any]:
    """What `add_sizes` asked for, as playing takes it."""
    return {
        "num_runs": options.runs,
        "num_steps": options.steps,
        "seed": options.seed,
        "threads": options.threads,
    }


def parsed(parser: argparse.ArgumentParser, args: list[str]) -> argparse.Namespace:
    """Options, checked as far as they are alike in all commands.

    Raises:
        UnknownNameError: there is no such option.
        ConfigError: a number makes no sense.
    """
    options, rest = parser.parse_known_args([_dashed(arg) for arg in args])
    refuse(parser, rest)
    for name in ("runs", "steps", "threads"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise ConfigError(f"`--{name}` must be positive, got {number}")
    if options.seed < 0:
        raise ConfigError(f"`--seed` must not be negative, got {options.seed}")
    return options


def refuse(parser: argparse.ArgumentParser, rest: Sequence[str]) -> None:
    """Answer arguments that a parser does not know.

    Raises:
        UnknownNameError: there is no such option; says which is nearest.
        ConfigError: an argument too many.
    """
    if not rest:
        return
    name = rest[0].split("=")[0]
    if not name.startswith("-"):
        raise ConfigError(f"`{parser.prog}` can't take '{rest[0]}' here: see its --help")
    known = [one for action in parser._actions for one in action.option_strings]
    raise UnknownNameError(
        f"`{parser.prog}` has no option '{name}'"
        + (nearest(name, known) or f"; `{parser.prog} --help` lists them")
    )


def _dashed(arg: str) -> str:
    """`--step_size=0.1`, as fields are spelled, is `--step-size=0.1`."""
    name, equals, value = arg.partition("=")
    return (name.replace("_", "-") if name.startswith("--") else name) + equals + value


def agent_of(text: str) -> Any:
    """An agent from `"name field=value …"`.

    Raises:
        UnknownNameError: there is no such agent, or it has no such field.
        ConfigError: a setting makes no sense.
    """
    from hotloop.bandits.options import agent_from

    name, *settings = text.split() or [""]
    return agent_from(name, _settings(settings, "an agent's setting"))


def environment_of(options: argparse.Namespace) -> Any:
    """The environment that is asked for.

    Raises:
        UnknownNameError: there is no such environment, or it has no such field.
        ConfigError: a setting makes no sense, or contradicts another.
    """
    from hotloop.bandits.environments import ENVIRONMENTS
    from hotloop.bandits.options import environment_from

    given = _settings(options.env, "`--env`")
    known = ENVIRONMENTS.get(options.environment)
    if options.arms is not None and known is not None:
        if "num_arms" not in {one.name for one in fields(known)}:
            raise ConfigError(
                f"`--arms` can't be set for '{options.environment}': it has as many arms as its "
                f"`{fields(known)[0].name}`, which `--env` gives"
            )
        if given.get("means", "none").lower() == "none":  # else it says itself how many
            given.setdefault("num_arms", str(options.arms))
    environment = environment_from(options.environment, given)
    if options.arms not in (None, environment.num_arms):
        raise ConfigError(
            f"`--arms` says {options.arms} arms, `--env` {environment.num_arms}: leave one out"
        )
    return environment


def _settings(parts: Sequence[str], what: str) -> dict[str, str]:
    given = {}
    for part in parts:
        field, equals, value = part.partition("=")
        if not (field and equals and value) or " " in field:
            raise ConfigError(f"{what} must be written FIELD=VALUE, got '{part}'")
        field = field.replace("-", "_")
        if field in given:
            raise ConfigError(f"`{field}` is given twice: give it once")
        given[field] = value
    return given
