"""`hotloop bandit run AGENT`: one agent in one environment."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

from hotloop.cli import need
from hotloop.cli.bandit.fields import field_docs, listing, written
from hotloop.cli.bandit.options import (
    add_environment,
    add_json,
    add_sizes,
    environment_of,
    parsed,
    parser_of,
    sizes_of,
)
from hotloop.cli.bandit.pictures import add_pictures, as_json, draw, pictures_of, print_pictures
from hotloop.cli.bandit.progress import ProgressLine
from hotloop.cli.bandit.tables import print_json, print_result, print_speed
from hotloop.errors import ConfigError


def run(args: list[str]) -> int:
    """See `hotloop bandit run --help`."""
    from hotloop.bandits.agents import AGENTS
    from hotloop.bandits.options import agent_from

    agent_class = None
    if args and not args[0].startswith("-"):
        if args[0] not in AGENTS:
            agent_from(args[0], {})  # raises, with the nearest name
        agent_class, args = AGENTS[args[0]], args[1:]
    options = parsed(_parser(agent_class), args)
    if agent_class is None:
        raise ConfigError(
            "name an agent first: `hotloop bandit run AGENT …`; `hotloop bandit run --help` lists "
            "them"
        )
    given = {}
    for name, values in vars(options).items():
        if name.startswith("agent.") and values is not None:
            field = name.removeprefix("agent.")
            if len(values) > 1:
                raise ConfigError(f"`--{field.replace('_', '-')}` is given twice: give it once")
            given[field] = values[0]
    agent = agent_from(agent_class.name, given)
    environment = environment_of(options)
    if options.save is not None and options.save.suffix != ".npz":
        raise ConfigError(f"`--save` must end in .npz, got '{options.save}'")
    pictures = pictures_of(options)
    need("numba", extra="bandit", purpose="playing bandits")

    from hotloop.bandits.running import run as play

    with ProgressLine() as progress:
        result = play(
            agent,
            environment,
            **sizes_of(options),
            arm_shares="shares" in pictures,
            on_progress=progress.show,
        )
    if not options.json:
        print_result(result)
    if options.save is not None:
        result.save(options.save)
    draw([result], pictures)
    if options.json:
        places = {"save": None if options.save is None else str(options.save)}
        return print_json(result.to_dict() | places | as_json(pictures))
    if options.save is not None:
        print(f"result: {options.save}")
    print_pictures(pictures)
    print_speed([result], result.elapsed_s)
    return 0


def _parser(agent_class: Any) -> argparse.ArgumentParser:
    """Options of one kind of agent; None for help that lists them all."""
    from hotloop.bandits.agents import AGENTS

    about = "Play one agent in one environment, over many runs."
    if agent_class is None:
        parser = parser_of("run", about)
        parser.usage = "hotloop bandit run AGENT [--FIELD VALUE ...] [options]"
        parser.epilog = f"agents (FIELD=DEFAULT):\n{listing(AGENTS)}\n\n{parser.epilog}"
    else:
        about += f"\n\n{inspect.getdoc(agent_class)}"
        parser = parser_of(f"run {agent_class.name}", about)
        docs = field_docs(agent_class)
        group = parser.add_argument_group("settings of the agent")
        for one in fields(agent_class):
            told = f"{docs.get(one.name, '')} (default: {written(one.default)})"
            group.add_argument(
                f"--{one.name.replace('_', '-')}",
                metavar="VALUE",
                action="append",
                dest=f"agent.{one.name}",
                help=told.replace("%", "%%"),
            )
    add_environment(parser)
    add_sizes(parser, runs=2000, steps=1000)
    add_pictures(parser, "bandit.png")
    parser.add_argument(
        "--save",
        metavar="FILE.npz",
        type=Path,
        help="keep the result: `hotloop.bandits.Result.load` reads it",
    )
    add_json(parser)
    return parser
