"""The `hotloop bandit` commands: figures of the book, single agents, comparisons, grids."""

from __future__ import annotations

import importlib

from hotloop.errors import UnknownNameError, nearest

COMMANDS = {
    "figure": "Compute and draw a figure of Sutton & Barto's chapter 2.",
    "run": "Play one agent in one environment, over many runs.",
    "compare": "Play several agents on the same random numbers, and compare.",
    "grid": "Play every combination of settings, resumable after a stop or a kill.",
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
  hotloop bandit run epsilon-greedy --epsilon 0.1 --runs 2000 --arms 10
  hotloop bandit compare "ucb c=2" "epsilon-greedy epsilon=0.1" --picture regret
  hotloop bandit compare moss kl-ucb --environment bernoulli --env means=0.9,0.8

`hotloop bandit COMMAND --help` describes a command's options.
"""


def run(args: list[str]) -> int:
    """Run a command. See `hotloop bandit --help`."""
    if not args or args[0] in ("-h", "--help"):
        from hotloop.bandits.agents import AGENTS
        from hotloop.bandits.environments import ENVIRONMENTS
        from hotloop.cli.bandit.field_help import list_fields

        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
        agents, environments = list_fields(AGENTS), list_fields(ENVIRONMENTS)
        print(HELP.format(commands=commands, agents=agents, environments=environments), end="")
        return 0 if args else 2
    name, command_args = args[0], args[1:]
    if name not in COMMANDS:
        raise UnknownNameError(
            f"expected one of {', '.join(COMMANDS)} after `hotloop bandit`, got '{name}'"
            + (nearest(name, COMMANDS) or "; `hotloop bandit --help` lists them")
        )
    module = "play" if name == "run" else name  # a module named `run` would shadow this function
    return importlib.import_module(f"hotloop.cli.bandit.{module}").run(command_args)
