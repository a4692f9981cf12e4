"""The assignment of a game's agents to policies, from the option `policies`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotloop.base.importing import describe_exception, import_object
from hotloop.errors import ConfigError

_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")  # names a directory


def named_policies(policies: str | Callable[[Any], str]) -> dict[str, str]:
    """Return the algorithm of each policy that `policies` names, "" for that of the training.

    It is empty for a function or its `module:name`, which returns the names.
    """
    if not isinstance(policies, str) or (":" in policies and "," not in policies):
        return {}
    parts = (part.strip().partition(":") for part in policies.split(","))
    return {name: algorithm for name, _, algorithm in parts}


def assign(
    policies: str | Callable[[Any], str], agents: Sequence[Any]
) -> Mapping[str, Sequence[Any]]:
    """Return the agents of each policy by name.

    Args:
        policies: names of policies, separated by commas. An agent has the policy with the longest
            name that its own name begins with. See `named_policies`. Or a function, or its
            `module:name`, which returns the policy of an agent.
        agents: all agents.

    Raises:
        ConfigError: an agent has no policy, or a policy no agent.
    """
    if names := list(named_policies(policies)):
        groups: dict[str, list[Any]] = {name: [] for name in names}
        for agent in agents:
            fitting = [name for name in names if name and str(agent).startswith(name)]
            groups.setdefault(max(fitting, key=len, default=""), []).append(agent)
        if "" in groups:
            missing = groups[""] or ["a policy without a name"]
            raise ConfigError(
                f"`policies` must have the beginning of each agent's name, got '{policies}' and "
                f"none for {missing[0]!r}: the agents are {', '.join(map(str, agents))}"
            )
    else:
        groups = {}
        function: Any = policies
        if isinstance(policies, str):
            function = import_object(policies, kind="function", example="my_games:policy_of")
        for agent in agents:
            try:
                name = function(agent)
            except (Exception, SystemExit) as error:
                raise ConfigError(
                    f"the function `policies` raised {describe_exception(error)} for {agent!r}: "
                    "return the name of a policy"
                ) from error
            groups.setdefault(name, []).append(agent)
    for name, members in groups.items():
        if not members:
            raise ConfigError(
                f"each of `policies` must have an agent, got '{name}' without any: the agents are "
                f"{', '.join(map(str, agents))}"
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"the name of a policy must consist of letters, digits, `_`, `-` and `.`, got "
                f"{name!r} for {members[0]!r}"
            )
    return groups
