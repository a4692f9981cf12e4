"""Games of agents in one environment, a block of runs at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from hotloop.bandits.agents import Agent
from hotloop.bandits.block_sums import BlockSums
from hotloop.bandits.environments import Adversarial, Environment
from hotloop.bandits.jitted import JittedEnvironment
from hotloop.bandits.kernel_plans import KernelPlan
from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.environments import start_nothing
from hotloop.bandits.kernels.layout import WINDOW
from hotloop.bandits.play_threads import PlayMonitor
from hotloop.bandits.python_adapters import PythonAgent, PythonEnvironment
from hotloop.bandits.results import RunSums
from hotloop.bandits.run_block import RunBlock
from hotloop.bandits.run_settings import RunSettings
from hotloop.bandits.user_errors import arm_error, reward_error
from hotloop.errors import BanditError

_TARGET_CALL_S = 0.05  # target duration of a call: a game can stop only between calls
_EMPTY_PLAN = KernelPlan(parts=(start_nothing, start_nothing, start_nothing))


class Game:
    """Agents, an environment and settings, with their plans for the kernels.

    The constructor compiles the kernels or loads them from the cache.
    """

    def __init__(
        self, agents: Sequence[Agent], environment: Environment, settings: RunSettings
    ) -> None:
        self.agents, self.environment, self.settings = agents, environment, settings
        self.has_python_objects = isinstance(environment, PythonEnvironment) or any(
            isinstance(agent, PythonAgent) for agent in agents
        )
        num_steps = settings.num_steps
        is_python = isinstance(environment, PythonEnvironment)
        self._environment = _EMPTY_PLAN if is_python else environment.plan(num_steps)
        self._agents = [
            _EMPTY_PLAN if isinstance(agent, PythonAgent) else agent.plan(environment, num_steps)
            for agent in agents
        ]
        self._free_blocks = [self.new_block()]
        if not self.has_python_objects:
            self._free_blocks[0].play(WINDOW, WINDOW)  # compiles the loop, plays no step
        self._steps_per_call = WINDOW  # adapted to `_TARGET_CALL_S`

    def new_block(self) -> RunBlock:
        """Return memory for one block of runs."""
        return RunBlock(
            self._agents,
            self._environment,
            num_arms=self.environment.num_arms,
            settings=self.settings,
            dimension=getattr(self.environment, "dimension", 0),
            in_hindsight=isinstance(self.environment, Adversarial),
        )

    def play(self, first_run: int, num_runs: int, monitor: PlayMonitor) -> BlockSums:
        """Play all steps of one block. Several threads may call this method.

        Raises:
            BanditError: A user's agent or environment returned something invalid.
            GameStopped: `monitor` stopped the game.
        """
        try:
            block = self._free_blocks.pop()
        except IndexError:
            block = self.new_block()
        block.reset(first_run, num_runs)
        first, num_steps = 0, self.settings.num_steps
        while first < num_steps:
            last = min(first + self._steps_per_call, num_steps)
            started_at = time.perf_counter()
            faulty_agent = block.play(first, last)
            elapsed_s = time.perf_counter() - started_at
            if faulty_agent >= 0:
                self.raise_fault(faulty_agent, block)
            monitor.add_steps((last - first) * num_runs * len(self.agents), elapsed_s)
            if elapsed_s < _TARGET_CALL_S and last - first == self._steps_per_call:
                self._steps_per_call *= 2
            elif elapsed_s > 4 * _TARGET_CALL_S and self._steps_per_call > WINDOW:
                self._steps_per_call //= 2
            first = last
        sums = self.collect_sums(block)
        self._free_blocks.append(block)
        return sums

    def raise_fault(self, index: int, block: RunBlock) -> None:
        """Raise the error of the fault that stopped a block while agent `index` played."""
        kind, run, step, value = block.fault
        agent, environment = self.agents[index].name, self.environment.name
        if kind == layout.FAULT_ARM:
            raise arm_error(agent, self.environment.num_arms, value, run, step)
        if kind == layout.FAULT_REWARD:
            raise reward_error(environment, value, run, step)
        if kind == layout.FAULT_RANGE:
            raise BanditError(
                f"environment '{environment}' returned the reward {value!r} at step {step} of run "
                f"{run}, but an agent needs rewards from 0 to 1: scale them, or play another agent"
            )
        is_agent = kind == layout.FAULT_AGENT_RAISED
        owner = f"agent '{agent}'" if is_agent else f"environment '{environment}'"
        raise BanditError(
            f"a function of {owner} raised an exception at step {step} of run {run}; compiled code "
            "loses its type and text: call the plain Python function (`.py_func`) with the same "
            "arguments"
        )

    def collect_sums(self, block: RunBlock) -> BlockSums:
        """Return the sums of a finished block, without products."""
        values = block.run_values()
        if np.isnan(values[:, 2]).all():  # optimal arms are unknown without true values
            values[:, [1, 4]] = np.nan
            block.curves[:, 2:4] = np.nan
        totals = np.stack([values.sum(axis=2), (values * values).sum(axis=2)], axis=1)
        agents = [
            RunSums(
                num_runs=values.shape[2],
                curve=block.curves[index].copy(),
                totals=totals[index],
                arm_pulls=block.pulls[index].copy() if len(block.pulls) else None,
            )
            for index in range(len(self.agents))
        ]
        return BlockSums(
            agents=agents,
            products=np.empty(0),
            final_regrets=values[:, 2].copy(),
            run_values=values,
        )


def make_games(
    agents: Sequence[Agent], environment: Environment, settings: RunSettings
) -> list[Game]:
    """Return one game for all agents if they can share the environment, else one game per agent.

    A user's environment may have a state that depends on the agent, so agents don't share it.
    """
    is_user_defined = isinstance(environment, (JittedEnvironment, PythonEnvironment))
    if is_user_defined or any(isinstance(agent, PythonAgent) for agent in agents):
        return [Game([agent], environment, settings) for agent in agents]
    return [Game(agents, environment, settings)]
