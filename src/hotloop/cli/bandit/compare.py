"""`hotloop bandit compare AGENT…`: several agents on the same random numbers."""

from __future__ import annotations

from hotloop.cli import need
from hotloop.cli.bandit.fields import listing
from hotloop.cli.bandit.options import (
    add_environment,
    add_json,
    add_sizes,
    agent_of,
    environment_of,
    parsed,
    parser_of,
    sizes_of,
)
from hotloop.cli.bandit.pictures import add_pictures, as_json, draw, pictures_of, print_pictures
from hotloop.cli.bandit.progress import ProgressLine
from hotloop.cli.bandit.tables import print_comparison, print_json, print_speed


def run(args: list[str]) -> int:
    """See `hotloop bandit compare --help`."""
    from hotloop.bandits.agents import AGENTS

    parser = parser_of(
        "compare",
        "Play several agents in one environment on the same random numbers: the same true values, "
        "the same noise. Differences to the first agent are taken run by run, which makes their "
        "standard errors small.",
    )
    parser.add_argument(
        "agents",
        metavar="AGENT",
        nargs="+",
        help='an agent, alone or with settings: ucb, "ucb c=2", "epsilon-greedy epsilon=1/8"',
    )
    parser.epilog = f"agents (FIELD=DEFAULT):\n{listing(AGENTS)}\n\n{parser.epilog}"
    add_environment(parser)
    add_sizes(parser, runs=2000, steps=1000)
    add_pictures(parser, "bandits.png")
    add_json(parser)
    options = parsed(parser, args)
    agents = [agent_of(text) for text in options.agents]
    environment = environment_of(options)
    pictures = pictures_of(options)
    need("numba", extra="bandit", purpose="playing bandits")

    from hotloop.bandits.running import compare

    with ProgressLine() as progress:
        comparison = compare(
            agents,
            environment,
            **sizes_of(options),
            arm_shares="shares" in pictures,
            on_progress=progress.show,
        )
    if not options.json:
        print_comparison(comparison)
    draw(comparison.results, pictures)
    if options.json:
        return print_json(comparison.to_dict() | as_json(pictures))
    print_pictures(pictures)
    print_speed(comparison.results, comparison.elapsed_s)
    return 0
