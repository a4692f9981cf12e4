"""The functions that play agents: blocks of runs on several threads, added in order.

The random numbers of run r are a function of (seed, r, step). So no bit depends on the number of
threads or on other agents, and runs can be added later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from hotloop.bandits.agents import AGENTS, Agent
from hotloop.bandits.block_sums import BlockSums, OrderedSum, join_agents
from hotloop.bandits.checked_settings import check_int
from hotloop.bandits.environments import ENVIRONMENTS, Environment, GaussianRewards
from hotloop.bandits.games import Game, make_games
from hotloop.bandits.jitted import JittedAgent, JittedEnvironment
from hotloop.bandits.play_threads import PlayMonitor, Progress, play_jobs
from hotloop.bandits.python_adapters import PythonAgent, PythonEnvironment, adapt
from hotloop.bandits.python_games import play_python_game
from hotloop.bandits.results import BanditComparison, BanditResult, RunSums
from hotloop.bandits.run_settings import BLOCK, CHUNK, MAX_RUNS, make_settings, resolve_threads
from hotloop.errors import ConfigError

KERNEL_VERSION = 1  # raise it with every change that could change a result


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
) -> BanditResult:
    """Play one agent in one environment, over many independent runs.

    Args:
        agent: an agent of `hotloop.bandits`, a `JittedAgent`, or an object in plain Python.
        environment: the environment, in the same forms. Default: the 10-armed testbed.
        num_runs: number of independent runs. Raise it for smaller standard errors.
        num_steps: steps of each run.
        seed: seed of all random numbers, 0 … 2⁶⁴ − 1.
        threads: number of threads. Default: the process's number of cores. No bit depends on it.
        late_steps: number of last steps that `late_reward` and `late_optimal` average over.
            Default: a tenth.
        steps_per_point: steps that each point of a curve averages over. Default: 1 for up to 2000
            steps, otherwise the least number that gives at most 1000 points.
        arm_shares: whether to count the pulls of each arm, for about a nanosecond per step.
        on_progress: function called with the finished and the total number of runs × steps.

    Returns:
        Curves over steps, and estimates over runs.

    Raises:
        ConfigError: A setting is invalid, or the agent can't play in this environment.
        BanditError: A user's agent or environment returns something invalid.
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
) -> BanditComparison:
    """Play several agents on the same random numbers, which are computed once for all of them.

    For the other arguments see `run`. Each result equals that of `run` for its agent, bit for bit.

    Raises:
        ConfigError: A setting is invalid, or an agent can't play in this environment.
        BanditError: A user's agent or environment returns something invalid.
    """
    # Check the settings and prepare the games.
    began_at = time.perf_counter()
    agents, environment = _adapt_all(agents, environment)
    settings = make_settings(seed, num_steps, late_steps, steps_per_point, arm_shares)
    num_runs = check_int("num_runs", num_runs, 1, MAX_RUNS)
    threads = resolve_threads(threads)
    games = make_games(agents, environment, settings)
    # Play them.
    started_at = time.perf_counter()
    monitor = PlayMonitor(num_runs * settings.num_steps * len(agents), on_progress)
    if any(game.has_python_objects for game in games):
        totals = _play_on_this_thread(games, 0, num_runs, monitor, has_products=True)
    else:
        totals = _play_over_threads(games, num_runs, threads, monitor)
    monitor.report()
    elapsed_s = time.perf_counter() - started_at
    # Make the results.
    results = tuple(
        BanditResult.from_sums(
            totals.agents[index],
            agent=agent,
            environment=environment,
            seed=settings.seed,
            num_steps=settings.num_steps,
            steps_per_point=settings.steps_per_point,
            late_steps=settings.late_steps,
            final_regrets=totals.final_regrets[index],
            elapsed_s=elapsed_s / len(agents),
            prepare_s=(started_at - began_at) / len(agents),
        )
        for index, agent in enumerate(agents)
    )
    return BanditComparison(
        results=results,
        products=totals.products,
        elapsed_s=elapsed_s,
        prepare_s=started_at - began_at,
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
    monitor: PlayMonitor | None = None,
) -> list[RunSums]:
    """Play one chunk of runs on the calling thread. Grids consist of chunks.

    The GIL is released nearly all the time.

    Args:
        agents: agents that play on the same random numbers.
        environment: their environment.
        seed: seed of all random numbers.
        num_steps: steps of each run.
        first_run: number of the first run, a multiple of CHUNK.
        num_runs: number of runs, at most CHUNK.
        late_steps, steps_per_point: see `run`.
        monitor: counter of steps and seconds in kernels that can stop the games.

    Returns:
        The sums of each agent. Added in the order of chunks, they equal those of `run` bit for bit.

    Raises:
        ConfigError: A setting is invalid.
    """
    agents, environment = _adapt_all(agents, environment)
    settings = make_settings(seed, num_steps, late_steps, steps_per_point)
    check_int("num_runs", num_runs, 1, CHUNK)
    if check_int("first_run", first_run, 0, MAX_RUNS) % CHUNK:
        raise ConfigError(f"`first_run` must be a multiple of {CHUNK}, got {first_run}")
    games = make_games(agents, environment, settings)
    monitor = PlayMonitor() if monitor is None else monitor
    totals = _play_on_this_thread(games, first_run, num_runs, monitor, has_products=False)
    return totals.agents


def _adapt_all(
    agents: Sequence[Agent], environment: Environment | None
) -> tuple[list[Agent], Environment]:
    known_environments = (*ENVIRONMENTS.values(), JittedEnvironment)
    environment = GaussianRewards() if environment is None else environment
    environment = adapt(environment, known_environments, PythonEnvironment)
    if isinstance(agents, str) or not isinstance(agents, Iterable):
        raise ConfigError(
            f"`agents` must be a list of agents, got {agents!r:.80}: put it in brackets, or use "
            "`run`"
        )
    if not agents:
        raise ConfigError("`agents` must have at least one agent, got none")
    known_agents = (*AGENTS.values(), JittedAgent)
    return [adapt(agent, known_agents, PythonAgent) for agent in agents], environment


def _split_blocks(num_runs: int) -> Iterator[tuple[int, int, int]]:
    """Yield index, first run and number of runs of each block."""
    for index, first in enumerate(range(0, num_runs, BLOCK)):
        yield index, first, min(BLOCK, num_runs - first)


def _play_over_threads(
    games: Sequence[Game], num_runs: int, threads: int, monitor: PlayMonitor
) -> BlockSums:
    """Return the sums of all runs, added in the order of the blocks."""
    total, blocks = OrderedSum(), _split_blocks(num_runs)

    def play(block: tuple[int, int, int]) -> BlockSums:
        _, first, num = block
        parts = [game.play(first, num, monitor) for game in games]
        return join_agents(parts, has_products=True)

    play_jobs(
        lambda: next(blocks, None),
        play,
        num_threads=threads,
        monitor=monitor,
        add=lambda block, sums: total.add(block[0], sums),
        report=monitor.report,
    )
    return total.result()


def _play_on_this_thread(
    games: Sequence[Game],
    first_run: int,
    num_runs: int,
    monitor: PlayMonitor,
    *,
    has_products: bool,
) -> BlockSums:
    """Play one chunk after another on the calling thread."""
    total = OrderedSum()
    for start in range(0, num_runs, CHUNK):
        first, num = first_run + start, min(CHUNK, num_runs - start)
        block_sums = [
            play_python_game(game, first, num, monitor)
            if game.has_python_objects
            else [game.play(first + skip, runs, monitor) for _, skip, runs in _split_blocks(num)]
            for game in games
        ]
        for index, parts in enumerate(zip(*block_sums, strict=True), start // BLOCK):
            total.add(index, join_agents(parts, has_products=has_products))
        monitor.report()
    return total.result()
