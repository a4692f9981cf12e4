"""A game: agents and an environment that play together, a block of runs at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from hotloop.bandits.agents import Agent
from hotloop.bandits.block import Block
from hotloop.bandits.environments import Adversarial, Environment
from hotloop.bandits.folding import Folded
from hotloop.bandits.jitted import JittedEnvironment
from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.environments import start_nothing
from hotloop.bandits.kernels.layout import WINDOW
from hotloop.bandits.mistakes import arm_error, raised_error, range_error, reward_error
from hotloop.bandits.plain import PlainAgent, PlainEnvironment
from hotloop.bandits.plan import Plan
from hotloop.bandits.settings import Settings

_PIECE_S = 0.05  # between two looks at whether to stop
_NOTHING = Plan(parts=(start_nothing, start_nothing, start_nothing))

Progress = Callable[[int, int], None]


class Stopped(Exception):
    """Nobody waits for what is being played any more."""


class Watch:
    """Counts what was played, tells the caller, and passes on that it is time to stop.

    Attributes:
        is_over: set it to stop the game.
        kernel_s: seconds spent in the kernels' loop, of all threads together.
    """

    def __init__(self, total: int = 0, on_progress: Progress | None = None) -> None:
        self.is_over = False
        self.kernel_s = 0.0
        self._total, self._on_progress = total, on_progress
        self._played, self._told = 0, -1
        self._lock = threading.Lock()

    def note(self, run_steps: int, took_s: float = 0.0) -> None:
        """So much more was played, and the kernels took so long for it.

        Raises:
            Stopped: it is time to.
        """
        with self._lock:
            self._played += run_steps
            self.kernel_s += took_s
        if self.is_over:
            raise Stopped

    def tell(self) -> None:
        """Call `on_progress`, on this thread, if there is something new."""
        if self._on_progress is not None and self._played != self._told:
            self._told = self._played
            self._on_progress(self._told, self._total)


class Game:
    """What is played: agents, environment, settings, and how the kernels see them.

    Compiles what is needed, or loads it from the cache.
    """

    def __init__(
        self, agents: Sequence[Agent], environment: Environment, settings: Settings
    ) -> None:
        self.agents, self.environment, self.settings = agents, environment, settings
        self.is_plain = isinstance(environment, PlainEnvironment) or any(
            isinstance(agent, PlainAgent) for agent in agents
        )
        steps = settings.num_steps
        is_made_here = isinstance(environment, PlainEnvironment)
        self._environment = _NOTHING if is_made_here else environment.plan(steps)
        self._agents = [
            _NOTHING if isinstance(agent, PlainAgent) else agent.plan(environment, steps)
            for agent in agents
        ]
        self._spare = [self.block()]
        if not self.is_plain:
            self._spare[0].play(WINDOW, WINDOW)  # no step: the loop itself is compiled, too
        self._piece = WINDOW  # steps that the kernels play at once

    def block(self) -> Block:
        """Memory for one block of runs."""
        return Block(
            self._agents,
            self._environment,
            num_arms=self.environment.num_arms,
            settings=self.settings,
            dimension=getattr(self.environment, "dimension", 0),
            in_hindsight=isinstance(self.environment, Adversarial),
        )

    def play(self, first_run: int, num_runs: int, watch: Watch) -> Folded:
        """One block from its first step to its last; several threads may call it.

        Raises:
            BanditError: a user's own agent or environment gave what is impossible.
            Stopped: `watch` said so.
        """
        try:
            block = self._spare.pop()
        except IndexError:
            block = self.block()
        block.begin(first_run, num_runs)
        first, num_steps = 0, self.settings.num_steps
        while first < num_steps:
            last = min(first + self._piece, num_steps)
            began = time.perf_counter()
            which = block.play(first, last)
            took_s = time.perf_counter() - began
            if which >= 0:
                self.fail(which, block)
            watch.note((last - first) * num_runs * len(self.agents), took_s)
            if took_s < _PIECE_S and last - first == self._piece:
                self._piece *= 2
            elif took_s > 4 * _PIECE_S and self._piece > WINDOW:
                self._piece //= 2
            first = last
        folded = self.harvest(block)
        self._spare.append(block)
        return folded

    def fail(self, which: int, block: Block) -> None:
        """Raise what a block met while agent number `which` played."""
        kind, run, step, value = block.fault
        if kind == layout.FAULT_ARM:
            raise arm_error(self.agents[which].name, self.environment.num_arms, value, run, step)
        if kind == layout.FAULT_AGENT_RAISED:
            raise raised_error("agent", self.agents[which].name, run, step)
        if kind == layout.FAULT_ENVIRONMENT_RAISED:
            raise raised_error("environment", self.environment.name, run, step)
        if kind == layout.FAULT_RANGE:
            raise range_error(self.environment.name, value, run, step)
        raise reward_error(self.environment.name, value, run, step)

    def harvest(self, block: Block) -> Folded:
        """What a block that was played came to, but for products."""
        ends = block.ends()
        if np.isnan(ends[:, 2]).all():  # true values are unknown, so is what is optimal
            ends[:, [1, 4]] = np.nan
            block.curves[:, 2:4] = np.nan
        return Folded(
            num_runs=ends.shape[2],
            curves=block.curves.copy(),
            totals=np.stack([ends.sum(axis=2), (ends * ends).sum(axis=2)], axis=1),
            products=np.empty(0),
            pulls=block.pulls.copy(),
            final_regrets=ends[:, 2].copy(),
            ends=ends,
        )


def games_of(agents: Sequence[Agent], environment: Environment, settings: Settings) -> list[Game]:
    """Agents that can share an environment play together.

    A user's own environment may remember what was done to it: there each agent has one for itself.
    """
    is_own = isinstance(environment, (JittedEnvironment, PlainEnvironment))
    if is_own or any(isinstance(agent, PlainAgent) for agent in agents):
        return [Game([agent], environment, settings) for agent in agents]
    return [Game(agents, environment, settings)]
