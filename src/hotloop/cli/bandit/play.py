"""The command `hotloop bandit run AGENT`: one agent in one environment."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

from hotloop.base.field_docs import field_docs
from hotloop.base.text_tables import print_json
from hotloop.cli.bandit.field_help import format_default, list_fields
from hotloop.cli.bandit.options import (
    add_environment,
    add_json,
    add_sizes,
    new_parser,
    parse_agent,
    parse_environment,
    parse_options,
)
from hotloop.cli.bandit.plots import add_plots, draw_plots, plot_paths, plots_json, print_plots
from hotloop.cli.bandit.progress import play
from hotloop.cli.bandit.tables import print_result, print_speed
from hotloop.errors import ConfigError


def run(args: list[str]) -> int:
    """Run the command. See `hotloop bandit run --help`."""
    agent_class = None
    if args and not args[0].startswith("-"):
        agent_class, args = type(parse_agent(args[0], [])), args[1:]
    options = parse_options(_parser(agent_class), args)
    if agent_class is None:
        raise ConfigError(
            "name an agent first: `hotloop bandit run AGENT …`; `hotloop bandit run --help` lists "
            "agents"
        )
    agent = parse_agent(agent_class.name, options.settings, "--")
    environment = parse_environment(options)
    if options.save is not None and options.save.suffix != ".npz":
        raise ConfigError(f"`--save` must end in .npz, got '{options.save}'")
    pictures = plot_paths(options)
    # Play, then print and save the result.
    (result,) = play([agent], environment, options, pictures).results
    if not options.json:
        print_result(result)
    if options.save is not None:
        result.save(options.save)
    draw_plots([result], pictures)
    if options.json:
        saved = {"save": None if options.save is None else str(options.save)}
        return print_json(result.to_dict() | saved | plots_json(pictures))
    if options.save is not None:
        print(f"result: {options.save}")
    print_plots(pictures)
    print_speed([result], result.elapsed_s)
    return 0


def _parser(agent_class: Any) -> argparse.ArgumentParser:
    """Return the parser for one kind of agent. For None, its help lists all agents."""
    from hotloop.bandits.agents import AGENTS

    description = "Play one agent in one environment, over many runs."
    if agent_class is None:
        parser = new_parser("run", description)
        parser.usage = "hotloop bandit run AGENT [--FIELD VALUE ...] [options]"
        parser.epilog = f"agents (FIELD=DEFAULT):\n{list_fields(AGENTS)}\n\n{parser.epilog}"
    else:
        description += f"\n\n{inspect.getdoc(agent_class)}"
        parser = new_parser(f"run {agent_class.name}", description)
        docs = field_docs(agent_class)
        group = parser.add_argument_group("settings of the agent")
        for field in fields(agent_class):
            text = f"{docs.get(field.name, '')} (default: {format_default(field.default)})"
            group.add_argument(
                f"--{field.name.replace('_', '-')}",
                metavar="VALUE",
                action="append",
                type=f"{field.name}={{}}".format,
                dest="settings",
                default=[],
                help=text.replace("%", "%%"),
            )
    add_environment(parser)
    add_sizes(parser, runs=2000, steps=1000)
    add_plots(parser, "bandit.png")
    parser.add_argument(
        "--save",
        metavar="FILE.npz",
        type=Path,
        help="save the result; `hotloop.bandits.BanditResult.load` reads it",
    )
    add_json(parser)
    return parser
