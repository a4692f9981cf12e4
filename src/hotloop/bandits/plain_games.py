"""Games in which something is plain Python: the kernels' loop, step by step, a chunk at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotloop.bandits.block import Block
from hotloop.bandits.folding import BLOCK, Folded
from hotloop.bandits.games import Game, Watch
from hotloop.bandits.kernels import driver, layout
from hotloop.bandits.kernels.layout import LANES, WINDOW
from hotloop.bandits.plain import PlainAgent, PlainEnvironment
from hotloop.types import Array


class _Lanes:
    """One quantity of a chunk's runs, which lies in pieces: some lanes in each block."""

    def __init__(self, pieces: Sequence[Array], num_runs: int) -> None:
        self._pieces, self._num_runs = pieces, num_runs

    def gathered(self) -> Array:
        return np.concatenate(self._pieces)[: self._num_runs]

    def spread(self, whole: Array) -> None:
        for index, piece in enumerate(self._pieces):
            mine = whole[index * BLOCK : (index + 1) * BLOCK]
            piece[: len(mine)] = mine


def play_plain(game: Game, first_run: int, num_runs: int, watch: Watch) -> list[Folded]:
    """One chunk of one agent from its first step to its last: what each of its blocks came to.

    Raises:
        BanditError: a user's own agent or environment gave what is impossible.
    """
    (agent,), environment, settings = game.agents, game.environment, game.settings
    num_arms = environment.num_arms
    blocks = [game.block() for _ in range(0, num_runs, BLOCK)]
    for index, block in enumerate(blocks):
        block.begin(first_run + index * BLOCK, min(BLOCK, num_runs - index * BLOCK))
        driver.begin(block.frame.address)
    seeds = np.random.SeedSequence([settings.seed, first_run]).spawn(2)
    if isinstance(agent, PlainAgent):
        agent.wrapped.start(num_runs, num_arms, np.random.default_rng(seeds[0]))
    if isinstance(environment, PlainEnvironment):
        environment.wrapped.start(num_runs, np.random.default_rng(seeds[1]))

    def lanes(offset: int, dtype: Any) -> _Lanes:
        return _Lanes([block.frame.view(dtype, offset, LANES) for block in blocks], num_runs)

    arms, rewards = lanes(layout.ARM, np.int32), lanes(layout.REWARD, np.float32)
    values, bests = lanes(layout.VALUE, np.float32), _Lanes([one.best for one in blocks], num_runs)
    unknown = np.full(num_runs, np.nan)
    told_at = time.monotonic()
    for step in range(settings.num_steps):
        for block in blocks:
            driver.look_ahead(block.frame.address, step - step % WINDOW, step % WINDOW)
        if isinstance(agent, PlainAgent):
            arms.spread(agent.choose(step + 1, num_runs, num_arms, first_run))
        else:
            _call(game, blocks, layout.CHOOSE, step)
        if isinstance(environment, PlainEnvironment):
            taken, known = arms.gathered(), environment.values(step + 1, num_runs)
            values.spread(unknown if known is None else known[np.arange(num_runs), taken])
            bests.spread(unknown if known is None else known.max(axis=1))
            rewards.spread(environment.reward(step + 1, taken, first_run))
        else:
            _call(game, blocks, layout.GIVE_REWARD, step)
        if isinstance(agent, PlainAgent):
            got = rewards.gathered().astype(float)
            agent.wrapped.update(step + 1, arms.gathered(), got)
        else:
            _call(game, blocks, layout.UPDATE, step)
        for block in blocks:
            driver.record(block.agents[0].address, step)
        watch.note(num_runs)
        if time.monotonic() - told_at > 0.2:
            watch.tell()
            told_at = time.monotonic()
    return [game.harvest(block) for block in blocks]


def _call(game: Game, blocks: Sequence[Block], part: int, step: int) -> None:
    """What the kernels do at a step, in each block."""
    for block in blocks:
        driver.call(*block.part(part), step)
        if block.fault[0]:
            game.fail(0, block)
