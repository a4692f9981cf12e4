"""Agents, a file each: its settings, what help says of it, and its plan for the kernels.

k arms, rewards r; N is how often an arm was taken, Q the value it is estimated to have; t is the
current step, from 1. Where several arms look best one of them is drawn, each as likely.

Who adds one writes its file and puts it into the table below. The kernels themselves are in
`kernels/`: several agents share them, Numba's cache on disk heeds the sources of one package, and
settings must load without Numba, for `hotloop bandit --help`. So a plan imports its kernels when it
is made.
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

Agent: TypeAlias = Any  # one of these, a JittedAgent, or a user's own object: see plain.py

AGENTS: dict[str, Any] = {
    one.name: one
    for one in (
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
"""Agents by the name that commands know them by."""
