"""Agents. Each file has an agent's settings, its help text and its plan for the kernels.

Docstrings use these symbols: k arms, reward r, number of pulls N of an arm, estimated value Q of an
arm, current step t from 1. Ties between best arms are broken uniformly at random.

To add an agent, write its file and add it to the table below. Kernels are in `kernels/`, because
several agents share them, because Numba's disk cache depends on the sources of one package, and
because `hotloop bandit --help` loads settings without Numba. So `plan` imports its kernels late.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from hotloop.bandits.agents.beta_thompson import BetaThompson
from hotloop.bandits.agents.epsilon_greedy import EpsilonGreedy
from hotloop.bandits.agents.exp3 import EXP3
from hotloop.bandits.agents.gaussian_thompson import GaussianThompson
from hotloop.bandits.agents.gradient import Gradient
from hotloop.bandits.agents.kl_ucb import KLUCB
from hotloop.bandits.agents.lin_ts import LinTS
from hotloop.bandits.agents.lin_ucb import LinUCB
from hotloop.bandits.agents.moss import MOSS
from hotloop.bandits.agents.optimistic import Optimistic
from hotloop.bandits.agents.ucb import UCB
from hotloop.bandits.agents.ucb1 import UCB1

Agent: TypeAlias = Any  # a class above, a JittedAgent or a user's object (python_adapters.py)

AGENTS: dict[str, Any] = {
    cls.name: cls
    for cls in (
        EpsilonGreedy,
        Optimistic,
        UCB,
        UCB1,
        Gradient,
        GaussianThompson,
        BetaThompson,
        KLUCB,
        EXP3,
        MOSS,
        LinUCB,
        LinTS,
    )
}
"""Agent classes by their names in commands."""
