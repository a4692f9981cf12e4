"""Playing: blocks of runs over threads, folded in order.

Run number r meets random numbers that are a function of (seed, r, step): neither the number of
threads nor what else is played changes a bit, and runs can be added later.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.bandits.agents import AGENTS, Agent
from hotloop.bandits.block import Block, Settings
from hotloop.bandits.environments import ENVIRONMENTS, Adversarial, Environment, Gaussian
from hotloop.bandits.kernels import driver, layout
from hotloop.bandits.kernels.environments import start_nothing
from hotloop.bandits.kernels.layout import LANES, WINDOW
from hotloop.bandits.own import (
    JittedAgent,
    JittedEnvironment,
    PlainAgent,
    PlainEnvironment,
    adopted,
    arm_error,
    reward_error,
)
from hotloop.bandits.plans import Plan, plan_agent, plan_environment
from hotloop.bandits.results import Comparison, Result, Sums
from hotloop.errors import ConfigError
from hotloop.types import Array

KERNEL_VERSION = 1  # raised whenever any number that comes out could change
BLOCK = LANES
CHUNK = 8 * BLOCK
MAX_FINAL_REGRETS = 8192
MAX_RUNS = 2**32 - CHUNK
_PIECE = 8_000_000  # agents × runs × steps between two looks at whether to stop: some 0.1 s

Progress = Callable[[int, int], None]
_NOTHING = Plan(parts=(start_nothing, start_nothing, start_nothing))


@dataclass(kw_only=True)
class _Folded:
    """What one block, or several in order, came to; axis 0: agents."""

    num_runs: int
    curves: Array  # (A, 6, P)
    totals: Array  # (A, 2, 5)
    products: Array  # (A, A, 5)
    pulls: Array  # (A, P, k) or empty

    def add(self, later: _Folded) -> None:
        self.num_runs += later.num_runs
        self.curves += later.curves
        self.totals += later.totals
        self.products += later.products
        self.pulls += later.pulls

    def sums(self, which: int) -> Sums:
        return Sums(
            num_runs=self.num_runs,
            curve=self.curves[which],
            totals=self.totals[which],
            arm_pulls=self.pulls[which] if len(self.pulls) else None,
        )


class _Fold:
    """Blocks, in whatever order they come, added in order: within a chunk, then chunk by chunk."""

    def __init__(self) -> None:
        self.whole: _Folded | None = None
        self._chunk: _Folded | None = None
        self._waiting: dict[int, _Folded] = {}
        self._next = 0

    def add(self, index: int, block: _Folded) -> None:
        self._waiting[index] = block
        while self._next in self._waiting:
            if self._next % (CHUNK // BLOCK) == 0:
                self._close_chunk()
            self._chunk = _joined(self._chunk, self._waiting.pop(self._next))
            self._next += 1

    def _close_chunk(self) -> None:
        if self._chunk is not None:
            self.whole = _joined(self.whole, self._chunk)
            self._chunk = None

    def result(self) -> _Folded:
        self._close_chunk()
        assert self.whole is not None
        return self.whole


def _joined(one: _Folded | None, later: _Folded) -> _Folded:
    if one is None:
        return later
    one.add(later)
    return one


class _Game:
    """What is played: agents, environment, settings, and how the kernels see them."""

    def __init__(
        self, agents: Sequence[Agent], environment: Environment, settings: Settings
    ) -> None:
        """Compiles what is needed, or loads it from the cache."""
        self.agents, self.environment, self.settings = agents, environment, settings
        self.is_plain = isinstance(environment, PlainEnvironment) or any(
            isinstance(agent, PlainAgent) for agent in agents
        )
        steps = settings.num_steps
        is_made_here = isinstance(environment, PlainEnvironment)
        self._environment = _NOTHING if is_made_here else plan_environment(environment, steps)
        self._agents = [
            _NOTHING if isinstance(agent, PlainAgent) else plan_agent(agent, environment, steps)
            for agent in agents
        ]
        self.spare = [self.block()]

    def block(self) -> Block:
        return Block(
            self._agents,
            self._environment,
            num_arms=self.environment.num_arms,
            settings=self.settings,
            dimension=getattr(self.environment, "dimension", 0),
            in_hindsight=isinstance(self.environment, Adversarial),
        )

    def fail(self, which: int, block: Block) -> None:
        kind, run, step, value = block.fault
        if kind == layout.FAULT_ARM:
            raise arm_error(self.agents[which].name, self.environment.num_arms, value, run, step)
        raise reward_error(self.environment.name, value, run, step)

    def harvest(self, block: Block) -> tuple[_Folded, Array]:
        """Sums of a block that was played, and every run's final regret, (A, runs)."""
        ends = np.stack([block.totals(which) for which in range(len(self.agents))])
        if np.isnan(ends[:, 2]).all():  # true values are unknown, so is what is optimal
            ends[:, [1, 4]] = np.nan
            block.curves[:, 2:4] = np.nan
        folded = _Folded(
            num_runs=ends.shape[2],
            curves=block.curves.copy(),
            totals=np.stack([ends.sum(axis=2), (ends * ends).sum(axis=2)], axis=1),
            products=(ends[:, None] * ends[None]).sum(axis=3),
            pulls=block.pulls.copy(),
        )
        return folded, ends[:, 2]


def _play_block(
    game: _Game, block: Block, first_run: int, num_runs: int, note: Callable[[int], bool]
) -> tuple[_Folded, Array] | None:
    """One block from its first step to its last; None if `note` says to stop."""
    block.begin(first_run, num_runs)
    num_agents, num_steps = len(game.agents), game.settings.num_steps
    piece = max(_PIECE // (num_agents * LANES) // WINDOW, 1) * WINDOW
    for first in range(0, num_steps, piece):
        last = min(first + piece, num_steps)
        which = block.play(first, last)
        if which >= 0:
            game.fail(which, block)
        if not note((last - first) * num_runs * num_agents):
            return None
    return game.harvest(block)


def _lanes_of(blocks: Sequence[Block], offset: int, dtype: Any) -> list[Array]:
    return [block.frame.view(dtype, offset, LANES) for block in blocks]


def _play_plain(
    game: _Game, first_run: int, num_runs: int, note: Callable[[int], bool]
) -> list[tuple[_Folded, Array]] | None:
    """A chunk in which something is plain Python: the kernels' loop, step by step, in pieces."""
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
    arms_of = _lanes_of(blocks, layout.ARM, np.int32)
    values_of = _lanes_of(blocks, layout.VALUE, np.float32)
    rewards_of = _lanes_of(blocks, layout.REWARD, np.float32)
    bests_of = [block.best for block in blocks]

    def gathered(parts: list[Array]) -> Array:
        return np.concatenate(parts)[:num_runs]

    def spread(whole: Array, parts: list[Array]) -> None:
        for index, part in enumerate(parts):
            mine = whole[index * BLOCK : (index + 1) * BLOCK]
            part[: len(mine)] = mine

    def call_all(part: int) -> None:
        for block in blocks:
            driver.call(*block.part(part), step)
            if block.fault[0]:
                game.fail(0, block)

    for step in range(settings.num_steps):
        for block in blocks:
            driver.look_ahead(block.frame.address, step - step % WINDOW, step % WINDOW)
        if isinstance(agent, PlainAgent):
            spread(agent.choose(step + 1, num_runs, num_arms), arms_of)
        else:
            call_all(layout.CHOOSE)
        if isinstance(environment, PlainEnvironment):
            arms = gathered(arms_of)
            values = environment.values(step + 1, num_runs)
            known = values is not None
            taken = values[np.arange(num_runs), arms] if known else np.full(num_runs, np.nan)
            spread(taken, values_of)
            spread(values.max(axis=1) if known else taken, bests_of)
            spread(environment.reward(step + 1, arms), rewards_of)
        else:
            call_all(layout.GIVE_REWARD)
        if isinstance(agent, PlainAgent):
            agent.wrapped.update(step + 1, gathered(arms_of), gathered(rewards_of).astype(float))
        else:
            call_all(layout.UPDATE)
        for block in blocks:
            driver.record(block.agents[0].address, step)
        if not note(num_runs):
            return None
    return [game.harvest(block) for block in blocks]


class _Watch:
    """Counts what was played, tells the caller, and passes on that it is time to stop."""

    def __init__(self, total: int, on_progress: Progress | None) -> None:
        self.stop = False
        self._total, self._on_progress = total, on_progress
        self._played, self._told = 0, -1
        self._lock = threading.Lock()

    def note(self, steps: int) -> bool:
        with self._lock:
            self._played += steps
        return not self.stop

    def tell(self) -> None:
        if self._on_progress is not None and self._played != self._told:
            self._told = self._played
            self._on_progress(self._told, self._total)


def _blocks_of(num_runs: int) -> Iterator[tuple[int, int, int]]:
    for index, first in enumerate(range(0, num_runs, BLOCK)):
        yield index, first, min(BLOCK, num_runs - first)


def _play_over_threads(
    game: _Game, num_runs: int, threads: int, watch: _Watch
) -> tuple[_Folded, Array]:
    """All blocks; at most a few per thread are on their way, so memory does not grow with runs."""
    fold, regrets = _Fold(), []
    jobs = _blocks_of(num_runs)

    def play(first: int, num: int) -> tuple[_Folded, Array] | None:
        try:
            block = game.spare.pop()
        except IndexError:
            block = game.block()
        played = _play_block(game, block, first, num, watch.note)
        game.spare.append(block)
        return played

    with ThreadPoolExecutor(threads) as pool:
        running: dict[Future[Any], int] = {}
        late: dict[int, Array] = {}
        try:
            while True:
                while len(running) < 2 * threads and (job := next(jobs, None)) is not None:
                    running[pool.submit(play, *job[1:])] = job[0]
                if not running:
                    break
                ended, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                watch.tell()
                for future in ended:
                    index, played = running.pop(future), future.result()
                    fold.add(index, played[0])
                    if index * BLOCK < MAX_FINAL_REGRETS:
                        late[index] = played[1]
        except BaseException:
            watch.stop = True
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    regrets = [late[index] for index in sorted(late)]
    return fold.result(), np.concatenate(regrets, axis=1)


def _play_here(game: _Game, first_run: int, num_runs: int, watch: _Watch) -> tuple[_Folded, Array]:
    """Chunks one after another on the calling thread."""
    fold, late = _Fold(), []
    for first in range(first_run, first_run + num_runs, CHUNK):
        num = min(CHUNK, first_run + num_runs - first)
        if game.is_plain:
            played = _play_plain(game, first, num, lambda steps: watch.note(steps) or True)
        else:
            played = [
                _play_block(game, game.spare[0], first + offset, runs, watch.note)
                for _, offset, runs in _blocks_of(num)
            ]
        watch.tell()
        assert played is not None
        for offset, one in enumerate(played):
            assert one is not None
            fold.add((first - first_run) // BLOCK + offset, one[0])
            if (first - first_run) + offset * BLOCK < MAX_FINAL_REGRETS:
                late.append(one[1])
    return fold.result(), np.concatenate(late, axis=1)


def run(
    agent: Agent,
    environment: Environment | None = None,
    *,
    num_runs: int = 2000,
    num_steps: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    late_steps: int | None = None,
    steps_per_point: int | None = None,
    arm_shares: bool = False,
    on_progress: Progress | None = None,
) -> Result:
    """Play one agent in one environment, over many independent runs.

    Args:
        agent: one of `hotloop.bandits`', a `JittedAgent`, or a plain object (see `own.py`).
        environment: likewise; the 10-armed testbed by default.
        num_runs: independent runs.
        num_steps: steps of each.
        seed: of all random numbers, 0 … 2⁶⁴ − 1.
        threads: how many; all cores that the process may use by default. No bit depends on it.
        late_steps: `late_reward` and `late_optimal` are over so many steps at the end; a tenth of
            the steps by default.
        steps_per_point: a point of a curve is the mean of so many steps; by default 1 up to 2000
            steps, beyond that so many that there are at most 1000 points.
        arm_shares: also count which arms are taken; costs about a nanosecond a step.
        on_progress: is told, now and then, how many run·steps were played, and of how many.

    Returns:
        Curves over steps, and estimates over runs.

    Raises:
        ConfigError: a setting makes no sense, or the agent can't play in that environment.
        BanditError: a user's own agent or environment gives what is impossible.
    """
    return compare(
        [agent],
        environment,
        num_runs=num_runs,
        num_steps=num_steps,
        seed=seed,
        threads=threads,
        late_steps=late_steps,
        steps_per_point=steps_per_point,
        arm_shares=arm_shares,
        on_progress=on_progress,
    ).results[0]


def compare(
    agents: Sequence[Agent],
    environment: Environment | None = None,
    *,
    num_runs: int = 2000,
    num_steps: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    late_steps: int | None = None,
    steps_per_point: int | None = None,
    arm_shares: bool = False,
    on_progress: Progress | None = None,
) -> Comparison:
    """Play several agents on the same random numbers, which are made once for all of them.

    Arguments are as those of `run`. A result is bit for bit what `run` gives for its agent.

    Raises:
        ConfigError: a setting makes no sense, or an agent can't play in that environment.
        BanditError: a user's own agent or environment gives what is impossible.
    """
    began = time.perf_counter()
    agents, environment = _adopt(agents, environment)
    settings = settings_from(seed, num_steps, late_steps, steps_per_point, arm_shares)
    num_runs = whole("num_runs", num_runs, 1, MAX_RUNS)
    threads = whole("threads", available_cores() if threads is None else threads, 1, 1024)
    games = _games(agents, environment, settings)
    started = time.perf_counter()
    watch = _Watch(num_runs * settings.num_steps * len(agents), on_progress)
    played = [
        _play_here(game, 0, num_runs, watch)
        if game.is_plain
        else _play_over_threads(game, num_runs, threads, watch)
        for game in games
    ]
    watch.tell()
    elapsed_s = time.perf_counter() - started
    folded, regrets = zip(*played, strict=True)
    sums = [one.sums(which) for one in folded for which in range(len(one.curves))]
    results = tuple(
        Result.from_sums(
            one,
            agent=agent,
            environment=environment,
            seed=settings.seed,
            num_steps=settings.num_steps,
            steps_per_point=settings.steps_per_point,
            late_steps=settings.late_steps,
            final_regrets=final[:MAX_FINAL_REGRETS],
            elapsed_s=elapsed_s / len(agents),
            prepare_s=(started - began) / len(agents),
        )
        for one, agent, final in zip(sums, agents, np.concatenate(regrets), strict=True)
    )
    products = folded[0].products
    if len(games) > 1:
        products = np.full((len(agents), len(agents), 5), np.nan)
        for which, one in enumerate(folded):
            products[which, which] = one.products[0, 0]
    return Comparison(
        results=results, products=products, elapsed_s=elapsed_s, prepare_s=started - began
    )


def chunk_sums(
    agents: Sequence[Agent],
    environment: Environment,
    *,
    seed: int,
    num_steps: int,
    first_run: int,
    num_runs: int,
    late_steps: int | None = None,
    steps_per_point: int | None = None,
) -> list[Sums]:
    """One chunk of runs, on the calling thread: what a grid is made of.

    The interpreter's lock is free nearly all the time.

    Args:
        agents: play on the same random numbers.
        environment: where.
        seed: of all random numbers.
        num_steps: steps of each run.
        first_run: a multiple of CHUNK.
        num_runs: at most CHUNK.
        late_steps: see `run`.
        steps_per_point: see `run`.

    Returns:
        Sums for each agent: added in the order of chunks they are, bit for bit, those of `run`.

    Raises:
        ConfigError: a setting makes no sense.
    """
    agents, environment = _adopt(agents, environment)
    settings = settings_from(seed, num_steps, late_steps, steps_per_point, False)
    whole("num_runs", num_runs, 1, CHUNK)
    if whole("first_run", first_run, 0, MAX_RUNS) % CHUNK:
        raise ConfigError(f"`first_run` must be a multiple of {CHUNK}, got {first_run}")
    watch = _Watch(0, None)
    played = [
        _play_here(game, first_run, num_runs, watch)[0]
        for game in _games(agents, environment, settings)
    ]
    return [one.sums(which) for one in played for which in range(len(one.curves))]


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _adopt(
    agents: Sequence[Agent], environment: Environment | None
) -> tuple[list[Agent], Environment]:
    known = (*ENVIRONMENTS.values(), JittedEnvironment)
    environment = Gaussian() if environment is None else environment
    environment = adopted(environment, known, PlainEnvironment)
    if not agents:
        raise ConfigError("there must be an agent at least, got none")
    ours = (*AGENTS.values(), JittedAgent)
    return [adopted(agent, ours, PlainAgent) for agent in agents], environment


def _games(agents: Sequence[Agent], environment: Environment, settings: Settings) -> list[_Game]:
    """Agents that can share an environment play together.

    A user's own environment may remember what was done to it: there each agent has one for itself.
    """
    is_own = isinstance(environment, (JittedEnvironment, PlainEnvironment))
    if is_own or any(isinstance(agent, PlainAgent) for agent in agents):
        return [_Game([agent], environment, settings) for agent in agents]
    return [_Game(agents, environment, settings)]


def settings_from(
    seed: int,
    num_steps: int,
    late_steps: int | None,
    steps_per_point: int | None,
    arm_shares: bool = False,
) -> Settings:
    """Settings that were given, and what follows from them.

    Raises:
        ConfigError: one of them makes no sense.
    """
    num_steps = whole("num_steps", num_steps, 1, 2**31 - 1)
    if steps_per_point is None:
        steps_per_point = 1 if num_steps <= 2000 else -(-num_steps // 1000)
    late_steps = max(num_steps // 10, 1) if late_steps is None else late_steps
    return Settings(
        seed=whole("seed", seed, 0, 2**64 - 1),
        num_steps=num_steps,
        steps_per_point=whole("steps_per_point", steps_per_point, 1, num_steps),
        late_steps=whole("late_steps", late_steps, 1, num_steps),
        arm_shares=arm_shares,
    )


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A count, as a user gives it.

    Raises:
        ConfigError: it is no whole number, or out of range.
    """
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= value <= high:
        raise ConfigError(f"`{name}` must be a whole number from {low} to {high:,}, got {value!r}")
    return int(value)
