"""`hotloop bandit …`: figures of the book, single agents, comparisons, grids."""

from __future__ import annotations

import importlib

from hotloop.errors import UnknownNameError, nearest

COMMANDS = {
    "figure": "Compute and draw a figure of Sutton & Barto's chapter 2.",
    "run": "Play one agent in one environment, over many runs.",
    "compare": "Play several agents on the same random numbers, with paired differences.",
    "grid": "Play every combination of settings; killed at any moment, it goes on where it was.",
}

HELP = """usage: hotloop bandit COMMAND ...

k-armed bandits: thousands of runs at a few nanoseconds a step.

commands:
{commands}

agents (FIELD=DEFAULT):
{agents}

environments (FIELD=DEFAULT):
{environments}

Values are numbers such as 0.1, 1/128 or 2**-7, or none, true, false.

examples:
  hotloop bandit figure 2.2
  hotloop bandit run epsilon-greedy --epsilon 0.1 --runs 2000 --steps 1000 --arms 10
  hotloop bandit compare "ucb c=2" "epsilon-greedy epsilon=0.1" --picture curves,regret
  hotloop bandit compare beta-thompson kl-ucb --environment bernoulli --env means=0.9,0.8

`hotloop bandit COMMAND --help` says more of each.
"""


def run(args: list[str]) -> int:
    """A command; see `hotloop bandit --help`."""
    if not args or args[0] in ("-h", "--help"):
        from hotloop.bandits.agents import AGENTS
        from hotloop.bandits.environments import ENVIRONMENTS
        from hotloop.cli.bandit.fields import listing

        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {name:{width}}  {about}" for name, about in COMMANDS.items())
        agents, environments = listing(AGENTS), listing(ENVIRONMENTS)
        print(HELP.format(commands=commands, agents=agents, environments=environments), end="")
        return 0 if args else 2
    name, rest = args[0], args[1:]
    if name not in COMMANDS:
        raise UnknownNameError(
            f"expected one of {', '.join(COMMANDS)} after `hotloop bandit`, got '{name}'"
            + (nearest(name, COMMANDS) or "; `hotloop bandit --help` lists them")
        )
    module = "play" if name == "run" else name  # a module `run` would take this function's place
    return importlib.import_module(f"hotloop.cli.bandit.{module}").run(rest)
