"""Results are bitwise the same for any division of the work."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hotloop.bandits import (
    EXP3,
    KLUCB,
    MOSS,
    UCB,
    UCB1,
    AbruptChange,
    Adversarial,
    BanditResult,
    Bernoulli,
    BetaThompson,
    EpsilonGreedy,
    GaussianRewards,
    GaussianThompson,
    Gradient,
    LinearContextual,
    LinTS,
    LinUCB,
    Optimistic,
    RandomWalk,
    RunSums,
    chunk_sums,
    compare,
    games,
    python_games,
    run,
)
from hotloop.bandits.run_settings import CHUNK
from hotloop.errors import BanditError

MATRIX = np.random.default_rng(0).uniform(0, 1, (30, 3))

PAIRS = {
    "epsilon": (EpsilonGreedy(), GaussianRewards()),
    "optimistic": (Optimistic(), RandomWalk(num_arms=5)),
    "ucb": (UCB(), AbruptChange(num_arms=5, every=8)),
    "ucb1": (UCB1(), Bernoulli()),
    "gradient": (Gradient(), GaussianRewards(num_arms=4)),
    "gaussian thompson": (GaussianThompson(), GaussianRewards(num_arms=4)),
    "beta thompson": (BetaThompson(), Bernoulli()),
    "kl-ucb": (KLUCB(), Bernoulli()),
    "exp3": (EXP3(), Adversarial(rewards=MATRIX)),
    "moss": (MOSS(), GaussianRewards(num_arms=4)),
    "lin-ucb": (LinUCB(), LinearContextual(num_arms=3, dimension=2)),
    "lin-ts": (LinTS(), LinearContextual(num_arms=3, dimension=2)),
}
OPTIONS = {"num_steps": 30, "seed": 11, "steps_per_point": 1, "arm_shares": True}


def assert_same_sums(sums, expected):
    assert sums.num_runs == expected.num_runs
    for name in ("curve", "totals", "arm_pulls"):
        array, expected_array = getattr(sums, name), getattr(expected, name)
        assert array.dtype == expected_array.dtype
        assert array.shape == expected_array.shape
        assert array.tobytes() == expected_array.tobytes(), name


def assert_same_results(result, expected):
    assert_same_sums(result.sums, expected.sums)
    assert result.final_regrets.tobytes() == expected.final_regrets.tobytes()
    assert np.isfinite(result.sums.curve).all()
    assert result.sums.curve.any()


@pytest.mark.parametrize("num_runs", [1, 255, 256, 257, 2047, 2048, 2049])
def test_results_do_not_depend_on_threads(num_runs):
    results = [
        run(UCB(), RandomWalk(), num_runs=num_runs, threads=threads, **OPTIONS)
        for threads in (1, 3)
    ]
    assert_same_results(*results)
    assert len(results[0].final_regrets) == results[0].num_runs == num_runs
    np.testing.assert_allclose(
        results[0].final_regrets.sum(), results[0].sums.totals[0, 2], rtol=1e-9
    )


COMPARED = {
    "testbed": ((EpsilonGreedy(), UCB(), Gradient(), Optimistic(), MOSS()), GaussianRewards()),
    "walk": ((EpsilonGreedy(step_size=0.1), GaussianThompson(), UCB1()), RandomWalk()),
    "change": ((EpsilonGreedy(step_size=0.1), UCB()), AbruptChange(every=7)),
    "coins": ((KLUCB(), BetaThompson(), EXP3(), MOSS()), Bernoulli()),
    "matrix": ((EXP3(), UCB1(), Gradient()), Adversarial(rewards=MATRIX)),
    "contextual": ((LinUCB(), LinTS(), LinUCB(alpha=0.1)), LinearContextual(num_arms=3)),
}


@pytest.mark.parametrize("where", COMPARED)
def test_single_runs_equal_those_of_a_comparison(where):
    agents, environment = COMPARED[where]
    together = compare(agents, environment, num_runs=2500, threads=2, **OPTIONS)
    backwards = compare(agents[::-1], environment, num_runs=2500, threads=1, **OPTIONS)
    for index, agent in enumerate(agents):
        single = run(agent, environment, num_runs=2500, threads=3, **OPTIONS)
        assert_same_results(single, together.results[index])
        assert_same_results(single, backwards.results[len(agents) - 1 - index])
        assert together.results[index].agent is agent
    last = len(agents) - 1
    forward = together.difference(0, last, "final_regret")
    backward = backwards.difference(last, 0, "final_regret")
    assert forward.mean == backward.mean
    assert forward.se == pytest.approx(backward.se, rel=1e-9)


@pytest.mark.parametrize("pair", PAIRS)
def test_first_runs_do_not_depend_on_num_runs(pair):
    agent, environment = PAIRS[pair]
    many = run(agent, environment, num_runs=2400, **OPTIONS).final_regrets
    for num_runs in (1, 77, 256, 2100):
        few = run(agent, environment, num_runs=num_runs, **OPTIONS).final_regrets
        np.testing.assert_array_equal(few, many[:num_runs])


def test_first_steps_do_not_depend_on_num_steps():
    for pair in ("epsilon", "optimistic", "ucb", "gradient", "gaussian thompson", "kl-ucb"):
        agent, environment = PAIRS[pair]
        options = {**OPTIONS, "num_runs": 600}
        long = run(agent, environment, **options)
        short = run(agent, environment, **{**options, "num_steps": 13})
        for name in ("reward", "optimal", "regret", "arm_share"):
            np.testing.assert_array_equal(getattr(short, name), getattr(long, name)[:13])


@pytest.mark.parametrize("pair", PAIRS)
def test_sums_of_chunks_equal_a_whole_run(pair):
    agent, environment = PAIRS[pair]
    shape = {"seed": 11, "num_steps": 30, "late_steps": 3, "steps_per_point": 1}
    total = None
    for first_run in range(0, 5000, CHUNK):
        size = min(CHUNK, 5000 - first_run)
        (sums,) = chunk_sums(
            [agent], environment, first_run=first_run, num_runs=size, **shape
        )  # fmt: skip
        sums = RunSums.from_bytes(sums.to_bytes())
        total = sums if total is None else total + sums
    result = run(agent, environment, num_runs=5000, late_steps=3, **OPTIONS)
    assert total.num_runs == 5000
    for name in ("curve", "totals"):
        assert getattr(total, name).tobytes() == getattr(result.sums, name).tobytes()
    rebuilt = BanditResult.from_sums(
        total, agent=agent, environment=environment, elapsed_s=0.0, **shape
    )  # fmt: skip
    for name in ("step", "reward", "reward_se", "optimal", "optimal_se", "regret", "regret_se"):
        np.testing.assert_array_equal(getattr(rebuilt, name), getattr(result, name))
    for name in ("mean_reward", "mean_optimal", "final_regret", "late_reward", "late_optimal"):
        assert getattr(rebuilt, name) == getattr(result, name)


def test_chunks_of_several_agents():
    agents, environment = COMPARED["testbed"]
    shape = {
        "seed": 3, "num_steps": 20, "late_steps": 5, "steps_per_point": 4, "first_run": CHUNK,
        "num_runs": 700,
    }  # fmt: skip
    together = chunk_sums(agents, environment, **shape)
    for agent, sums in zip(agents, together, strict=True):
        (single,) = chunk_sums([agent], environment, **shape)
        for name in ("curve", "totals"):
            assert getattr(sums, name).tobytes() == getattr(single, name).tobytes()


def test_seeds_and_runs_differ():
    results = [
        run(
            EpsilonGreedy(epsilon=1.0), GaussianRewards(), num_runs=600, num_steps=10, seed=seed
        ).final_regrets
        for seed in (0, 1, 2**32, 2**64 - 1)
    ]
    numbers = np.concatenate(results)
    assert len(np.unique(numbers)) == len(numbers)


@pytest.mark.parametrize("pair", PAIRS)
def test_short_pieces_equal_a_whole_run(pair, monkeypatch):
    """Long runs are played some steps at a time, with their state carried over."""
    agent, environment = PAIRS[pair]
    whole = run(agent, environment, num_runs=300, **OPTIONS)
    monkeypatch.setattr(games, "_TARGET_CALL_S", 0.0)  # the least, eight steps at a time
    progress = []
    options = {**OPTIONS, "on_progress": lambda played, total: progress.append(played)}
    assert_same_results(whole, run(agent, environment, num_runs=300, **options))
    assert progress[-1] == 300 * 30


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_reports_do_not_change_results(threads):
    reports, callers = [], set()

    def on_progress(played, total):
        reports.append((played, total))
        callers.add(threading.get_ident())

    agents, environment = COMPARED["walk"]
    options = {**OPTIONS, "num_runs": 3000, "threads": threads}
    with_progress = compare(agents, environment, on_progress=on_progress, **options)
    plain = compare(agents, environment, **options)
    for result, plain_result in zip(with_progress.results, plain.results, strict=True):
        assert_same_results(result, plain_result)
    total_steps = 3000 * OPTIONS["num_steps"] * len(agents)
    assert reports[-1] == (total_steps, total_steps)
    assert reports == sorted(reports)
    assert {total for _, total in reports} == {total_steps}
    assert callers == {threading.get_ident()}


class SlowAgent:
    """An agent in plain Python that takes 0.15 s per step."""

    now_s = 0.0

    def start(self, num_runs, num_arms, rng):
        self.arms = np.zeros(num_runs, int)

    def choose(self, step):
        self.now_s += 0.15
        return self.arms

    def update(self, step, arm, reward):
        pass


@pytest.mark.filterwarnings("ignore::hotloop.bandits.python_adapters.BanditSpeedWarning")
def test_progress_of_plain_python_is_reported_within_a_chunk(monkeypatch):
    calls, agent = [], SlowAgent()
    monkeypatch.setattr(python_games, "time", SimpleNamespace(monotonic=lambda: agent.now_s))
    options = {"num_runs": 2, "num_steps": 8, "on_progress": lambda played, _: calls.append(played)}
    run(agent, GaussianRewards(), **options)
    assert calls == [4, 8, 12, 16]  # of 2 × 8 steps: after every second of 0.15 s


def test_memory_order_of_a_matrix_does_not_matter():
    rewards = np.random.default_rng(0).random((30, 3))
    options = {"num_runs": 20, "num_steps": 30, "arm_shares": True}
    expected = run(UCB(), Adversarial(rewards=rewards), **options)
    fortran_order = run(UCB(), Adversarial(rewards=np.ascontiguousarray(rewards.T).T), **options)
    assert_same_results(expected, fortran_order)
    assert expected.mean_reward == fortran_order.mean_reward


def test_exception_in_on_progress_ends_the_run():
    """The next run is not affected."""

    def on_progress(played, total):
        raise KeyboardInterrupt

    threads = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        run(UCB(), GaussianRewards(), num_runs=20_000, num_steps=100, on_progress=on_progress)
    assert set(threading.enumerate()) <= threads
    run(UCB(), GaussianRewards(), num_runs=300, num_steps=10)


def test_standard_error_ignores_rounding():
    """If all runs are equal, sums of squares and of means differ only in their last bits."""
    result = run(UCB(), GaussianRewards(means=(0.1, 0.3), noise=0), num_runs=3000, num_steps=20)
    totals = np.tile(np.array([[0.1 * 3000], [0.01 * 3000 * (1 + 1e-15)]]), 5)
    sums = RunSums(num_runs=3000, curve=result.sums.curve, totals=totals)
    assert replace(result, sums=sums).mean_reward.se == 0
    # A real deviation of 10⁻⁶ of the mean is kept.
    totals[1] = 0.01 * 3000 * (1 + 1e-12)
    assert replace(result, sums=sums).mean_reward.se == pytest.approx(1e-7 / 3000**0.5, rel=0.01)


def random_sums(*, arm_pulls):
    rng = np.random.default_rng(0)
    pulls = rng.integers(0, 2**40, (7, 3)) if arm_pulls else None
    return RunSums(
        num_runs=99, curve=rng.normal(size=(6, 7)), totals=rng.normal(size=(2, 5)), arm_pulls=pulls
    )


@pytest.mark.parametrize("arm_pulls", [False, True])
def test_sums_survive_serialization(arm_pulls):
    sums = random_sums(arm_pulls=arm_pulls)
    loaded = RunSums.from_bytes(sums.to_bytes())
    assert loaded.num_runs == 99
    np.testing.assert_array_equal(loaded.curve, sums.curve)
    np.testing.assert_array_equal(loaded.totals, sums.totals)
    if arm_pulls:
        np.testing.assert_array_equal(loaded.arm_pulls, sums.arm_pulls)
    else:
        assert loaded.arm_pulls is None
    doubled = sums + loaded
    assert doubled.num_runs == 198
    np.testing.assert_array_equal(doubled.curve, 2 * sums.curve)


@pytest.mark.parametrize("arm_pulls", [False, True])
def test_truncated_sums(arm_pulls):
    stored = random_sums(arm_pulls=arm_pulls).to_bytes()
    for length in (0, 7, 31, 32, 33, len(stored) // 2, len(stored) - 8, len(stored) - 1):
        with pytest.raises(BanditError, match="cut short"):
            RunSums.from_bytes(stored[:length])
    with pytest.raises(BanditError):
        RunSums.from_bytes(stored + b"\0")
    with pytest.raises(BanditError, match="version"):
        RunSums.from_bytes(b"\x09" + stored[1:])
