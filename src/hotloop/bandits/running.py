"""Playing: blocks of runs over threads, added up in order.

Run number r meets random numbers that are a function of (seed, r, step): neither the number of
threads nor what else is played changes a bit, and runs can be added later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from hotloop.bandits.agents import AGENTS, Agent
from hotloop.bandits.described import whole
from hotloop.bandits.environments import ENVIRONMENTS, Environment, Gaussian
from hotloop.bandits.folding import BLOCK, CHUNK, Fold, Folded, side_by_side
from hotloop.bandits.games import Game, Progress, Watch, games_of
from hotloop.bandits.jitted import JittedAgent, JittedEnvironment
from hotloop.bandits.plain import PlainAgent, PlainEnvironment, adopted
from hotloop.bandits.plain_games import play_plain
from hotloop.bandits.results import Comparison, Result, Sums
from hotloop.bandits.settings import MAX_RUNS, settings_from, threads_from
from hotloop.errors import ConfigError

KERNEL_VERSION = 1  # raised whenever any number that comes out could change


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
        agent: one of `hotloop.bandits`', a `JittedAgent`, or a plain object (see `plain.py`).
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
    threads = threads_from(threads)
    games = games_of(agents, environment, settings)
    started = time.perf_counter()
    watch = Watch(num_runs * settings.num_steps * len(agents), on_progress)
    if any(game.is_plain for game in games):
        played = _play_here(games, 0, num_runs, watch, has_products=True)
    else:
        played = _play_over_threads(games, num_runs, threads, watch)
    watch.tell()
    elapsed_s = time.perf_counter() - started
    results = tuple(
        Result.from_sums(
            played.sums(which),
            agent=agent,
            environment=environment,
            seed=settings.seed,
            num_steps=settings.num_steps,
            steps_per_point=settings.steps_per_point,
            late_steps=settings.late_steps,
            final_regrets=played.final_regrets[which],
            elapsed_s=elapsed_s / len(agents),
            prepare_s=(started - began) / len(agents),
        )
        for which, agent in enumerate(agents)
    )
    return Comparison(
        results=results,
        products=played.products,
        elapsed_s=elapsed_s,
        prepare_s=started - began,
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
    watch: Watch | None = None,
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
        watch: counts what is played, and the seconds in kernels; can stop it.

    Returns:
        Sums for each agent: added in the order of chunks they are, bit for bit, those of `run`.

    Raises:
        ConfigError: a setting makes no sense.
    """
    agents, environment = _adopt(agents, environment)
    settings = settings_from(seed, num_steps, late_steps, steps_per_point)
    whole("num_runs", num_runs, 1, CHUNK)
    if whole("first_run", first_run, 0, MAX_RUNS) % CHUNK:
        raise ConfigError(f"`first_run` must be a multiple of {CHUNK}, got {first_run}")
    games = games_of(agents, environment, settings)
    watch = Watch() if watch is None else watch
    played = _play_here(games, first_run, num_runs, watch, has_products=False)
    return [played.sums(which) for which in range(len(agents))]


def _adopt(
    agents: Sequence[Agent], environment: Environment | None
) -> tuple[list[Agent], Environment]:
    known = (*ENVIRONMENTS.values(), JittedEnvironment)
    environment = Gaussian() if environment is None else environment
    environment = adopted(environment, known, PlainEnvironment)
    if isinstance(agents, str) or not isinstance(agents, Iterable):
        raise ConfigError(
            f"`agents` must be a list of agents, got {agents!r:.80}: put it in brackets, or use "
            "`run`"
        )
    if not agents:
        raise ConfigError("there must be an agent at least, got none")
    ours = (*AGENTS.values(), JittedAgent)
    return [adopted(agent, ours, PlainAgent) for agent in agents], environment


def _blocks_of(num_runs: int) -> Iterator[tuple[int, int, int]]:
    """Number, first run and runs of each block."""
    for index, first in enumerate(range(0, num_runs, BLOCK)):
        yield index, first, min(BLOCK, num_runs - first)


def _play_block(games: Sequence[Game], first_run: int, num_runs: int, watch: Watch) -> Folded:
    played = [game.play(first_run, num_runs, watch) for game in games]
    return side_by_side(played, has_products=True)


def _play_over_threads(games: Sequence[Game], num_runs: int, threads: int, watch: Watch) -> Folded:
    """All blocks; at most a few per thread are on their way, so memory does not grow with runs."""
    fold, jobs = Fold(), _blocks_of(num_runs)
    running: dict[Future[Folded], int] = {}
    with ThreadPoolExecutor(threads) as pool:
        try:
            while True:
                while len(running) < 2 * threads and (job := next(jobs, None)) is not None:
                    index, first, num = job
                    running[pool.submit(_play_block, games, first, num, watch)] = index
                if not running:
                    return fold.result()
                ended, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                watch.tell()
                for future in ended:
                    fold.add(running.pop(future), future.result())
        except BaseException:
            watch.is_over = True
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _play_here(
    games: Sequence[Game], first_run: int, num_runs: int, watch: Watch, *, has_products: bool
) -> Folded:
    """Chunks one after another on the calling thread."""
    fold = Fold()
    for start in range(0, num_runs, CHUNK):
        first, num = first_run + start, min(CHUNK, num_runs - start)
        played = [
            play_plain(game, first, num, watch)
            if game.is_plain
            else [game.play(first + skip, runs, watch) for _, skip, runs in _blocks_of(num)]
            for game in games
        ]
        for index, blocks in enumerate(zip(*played, strict=True), start // BLOCK):
            fold.add(index, side_by_side(blocks, has_products=has_products))
        watch.tell()
    return fold.result()
