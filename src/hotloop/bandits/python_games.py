"""Games with agents or environments in plain Python, step by step, a chunk of runs at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop.bandits.block_sums import BlockSums
from hotloop.bandits.games import Game
from hotloop.bandits.kernels import driver, layout
from hotloop.bandits.kernels.layout import LANES, WINDOW
from hotloop.bandits.play_threads import PlayMonitor
from hotloop.bandits.python_adapters import PythonAgent, PythonEnvironment
from hotloop.bandits.run_block import RunBlock
from hotloop.bandits.run_settings import BLOCK
from hotloop.types import Array


class _LaneArrays:
    """One quantity of all runs of a chunk, stored in the lanes of several blocks."""

    def __init__(self, pieces: Sequence[Array], num_runs: int) -> None:
        self._pieces, self._num_runs = pieces, num_runs

    def gather(self) -> Array:
        return np.concatenate(self._pieces)[: self._num_runs]

    def scatter(self, values: Array) -> None:
        for index, piece in enumerate(self._pieces):
            block_values = values[index * BLOCK : (index + 1) * BLOCK]
            piece[: len(block_values)] = block_values


def play_python_game(
    game: Game, first_run: int, num_runs: int, monitor: PlayMonitor
) -> list[BlockSums]:
    """Play all steps of one chunk with one agent, and return the sums of each block.

    Raises:
        BanditError: A user's agent or environment returned something invalid.
    """
    (agent,), environment, settings = game.agents, game.environment, game.settings
    num_arms = environment.num_arms
    # Reset the blocks and start the user's objects.
    blocks = [game.new_block() for _ in range(0, num_runs, BLOCK)]
    for index, block in enumerate(blocks):
        block.reset(first_run + index * BLOCK, min(BLOCK, num_runs - index * BLOCK))
        driver.begin(block.frame.address)
    seeds = np.random.SeedSequence([settings.seed, first_run]).spawn(2)
    if isinstance(agent, PythonAgent):
        agent.wrapped.start(num_runs, num_arms, np.random.default_rng(seeds[0]))
    if isinstance(environment, PythonEnvironment):
        environment.wrapped.start(num_runs, np.random.default_rng(seeds[1]))

    # Play. The kernels run every part that is not plain Python.
    def lanes(offset: int, dtype: Any) -> _LaneArrays:
        return _LaneArrays([block.frame.view(dtype, offset, LANES) for block in blocks], num_runs)

    arms, rewards = lanes(layout.ARM, np.int32), lanes(layout.REWARD, np.float32)
    values = lanes(layout.VALUE, np.float32)
    best_values = _LaneArrays([block.best_values for block in blocks], num_runs)
    unknown = np.full(num_runs, np.nan)
    reported_at = time.monotonic()
    for step in range(settings.num_steps):
        for block in blocks:
            driver.prepare_step(block.frame.address, step - step % WINDOW, step % WINDOW)
        if isinstance(agent, PythonAgent):
            arms.scatter(agent.choose(step + 1, num_runs, num_arms, first_run))
        else:
            _call_kernels(game, blocks, layout.CHOOSE, step)
        if isinstance(environment, PythonEnvironment):
            chosen, means = arms.gather(), environment.true_values(step + 1, num_runs)
            values.scatter(unknown if means is None else means[np.arange(num_runs), chosen])
            best_values.scatter(unknown if means is None else means.max(axis=1))
            rewards.scatter(environment.reward(step + 1, chosen, first_run))
        else:
            _call_kernels(game, blocks, layout.GIVE_REWARD, step)
        if isinstance(agent, PythonAgent):
            reward = rewards.gather().astype(float)
            agent.wrapped.update(step + 1, arms.gather(), reward)
        else:
            _call_kernels(game, blocks, layout.UPDATE, step)
        for block in blocks:
            driver.record(block.agents[0].address, step)
        monitor.add_steps(num_runs)
        if time.monotonic() - reported_at > 0.2:
            monitor.report()
            reported_at = time.monotonic()
    return [game.collect_sums(block) for block in blocks]


def _call_kernels(game: Game, blocks: Sequence[RunBlock], part: int, step: int) -> None:
    for block in blocks:
        driver.call(*block.part_addresses(part), step)
        if block.fault[0]:
            game.raise_fault(0, block)
