"""The command `hotloop bandit compare AGENT…`: several agents on the same random numbers."""

from __future__ import annotations

from hotloop.base.text_tables import print_json
from hotloop.cli.bandit.field_help import list_fields
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
from hotloop.cli.bandit.tables import print_comparison, print_speed
from hotloop.errors import ConfigError


def run(args: list[str]) -> int:
    """Run the command. See `hotloop bandit compare --help`."""
    from hotloop.bandits.agents import AGENTS

    # Read the options.
    parser = new_parser(
        "compare",
        "Play several agents in one environment on the same random numbers: the same true values "
        "and noise. Differences to the first agent are computed run by run, so that their "
        "standard errors are small.",
    )
    parser.add_argument(
        "agents",
        metavar="AGENT",
        nargs="+",
        help='an agent, alone or with settings: ucb, "ucb c=2", "epsilon-greedy epsilon=1/8"',
    )
    parser.epilog = f"agents (FIELD=DEFAULT):\n{list_fields(AGENTS)}\n\n{parser.epilog}"
    add_environment(parser)
    add_sizes(parser, runs=2000, steps=1000)
    add_plots(parser, "bandits.png")
    add_json(parser)
    options = parse_options(parser, args)
    agents = []
    for text in options.agents:
        name, *settings = text.split() or [""]
        if "=" in name:
            agent = agents[-1].name if agents else "AGENT"
            raise ConfigError(
                f"expected an agent, got the setting '{text}': write an agent and its settings in "
                f'quotes, such as "{agent} {text}"'
            )
        agents.append(parse_agent(name, settings))
    environment = parse_environment(options)
    pictures = plot_paths(options)
    comparison = play(agents, environment, options, pictures)
    # Print and draw the results.
    if not options.json:
        print_comparison(comparison)
    draw_plots(comparison.results, pictures)
    if options.json:
        return print_json(comparison.to_dict() | plots_json(pictures))
    print_plots(pictures)
    print_speed(comparison.results, comparison.elapsed_s)
    return 0
