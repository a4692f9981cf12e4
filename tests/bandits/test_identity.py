"""The same numbers, to the last bit, however the work is cut and shared out."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

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
    Bernoulli,
    BetaThompson,
    EpsilonGreedy,
    Gaussian,
    GaussianThompson,
    Gradient,
    LinearContextual,
    LinTS,
    LinUCB,
    Optimistic,
    RandomWalk,
    Result,
    Sums,
    chunk_sums,
    compare,
    games,
    run,
)
from hotloop.bandits.folding import CHUNK
from hotloop.errors import BanditError

MATRIX = np.random.default_rng(0).uniform(0, 1, (30, 3))

PAIRS = {
    "epsilon": (EpsilonGreedy(), Gaussian()),
    "optimistic": (Optimistic(), RandomWalk(num_arms=5)),
    "ucb": (UCB(), AbruptChange(num_arms=5, every=8)),
    "ucb1": (UCB1(), Bernoulli()),
    "gradient": (Gradient(), Gaussian(num_arms=4)),
    "gaussian thompson": (GaussianThompson(), Gaussian(num_arms=4)),
    "beta thompson": (BetaThompson(), Bernoulli()),
    "kl-ucb": (KLUCB(), Bernoulli()),
    "exp3": (EXP3(), Adversarial(rewards=MATRIX)),
    "moss": (MOSS(), Gaussian(num_arms=4)),
    "lin-ucb": (LinUCB(), LinearContextual(num_arms=3, dimension=2)),
    "lin-ts": (LinTS(), LinearContextual(num_arms=3, dimension=2)),
}
OPTIONS = {"num_steps": 30, "seed": 11, "steps_per_point": 1, "arm_shares": True}


def assert_same_sums(one, other):
    assert one.num_runs == other.num_runs
    for name in ("curve", "totals", "arm_pulls"):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes(), name


def assert_same_results(one, other):
    assert_same_sums(one.sums, other.sums)
    assert one.final_regrets.tobytes() == other.final_regrets.tobytes()
    assert np.isfinite(one.sums.curve).all()
    assert one.sums.curve.any()


@pytest.mark.parametrize("num_runs", [1, 255, 256, 257, 2047, 2048, 2049])
def test_any_number_of_runs_and_threads(num_runs):
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
    "testbed": ((EpsilonGreedy(), UCB(), Gradient(), Optimistic(), MOSS()), Gaussian()),
    "walk": ((EpsilonGreedy(step_size=0.1), GaussianThompson(), UCB1()), RandomWalk()),
    "change": ((EpsilonGreedy(step_size=0.1), UCB()), AbruptChange(every=7)),
    "coins": ((KLUCB(), BetaThompson(), EXP3(), MOSS()), Bernoulli()),
    "matrix": ((EXP3(), UCB1(), Gradient()), Adversarial(rewards=MATRIX)),
    "contextual": ((LinUCB(), LinTS(), LinUCB(alpha=0.1)), LinearContextual(num_arms=3)),
}


@pytest.mark.parametrize("where", COMPARED)
def test_alone_as_in_a_comparison(where):
    agents, environment = COMPARED[where]
    together = compare(agents, environment, num_runs=2500, threads=2, **OPTIONS)
    backwards = compare(agents[::-1], environment, num_runs=2500, threads=1, **OPTIONS)
    for index, agent in enumerate(agents):
        single = run(agent, environment, num_runs=2500, threads=3, **OPTIONS)
        assert_same_results(single, together.results[index])
        assert_same_results(single, backwards.results[len(agents) - 1 - index])
        assert together.results[index].agent is agent
    last = len(agents) - 1
    one = together.difference(0, last, "final_regret")
    other = backwards.difference(last, 0, "final_regret")
    assert one.mean == other.mean
    assert one.se == pytest.approx(other.se, rel=1e-9)


@pytest.mark.parametrize("pair", PAIRS)
def test_first_runs_do_not_depend_on_how_many(pair):
    agent, environment = PAIRS[pair]
    many = run(agent, environment, num_runs=2400, **OPTIONS).final_regrets
    for num_runs in (1, 77, 256, 2100):
        few = run(agent, environment, num_runs=num_runs, **OPTIONS).final_regrets
        np.testing.assert_array_equal(few, many[:num_runs])


def test_first_steps_do_not_depend_on_how_many():
    for pair in ("epsilon", "optimistic", "ucb", "gradient", "gaussian thompson", "kl-ucb"):
        agent, environment = PAIRS[pair]
        options = {**OPTIONS, "num_runs": 600}
        long = run(agent, environment, **options)
        short = run(agent, environment, **{**options, "num_steps": 13})
        for name in ("reward", "optimal", "regret", "arm_share"):
            np.testing.assert_array_equal(getattr(short, name), getattr(long, name)[:13])


@pytest.mark.parametrize("pair", PAIRS)
def test_chunk_by_chunk_as_at_once(pair):
    agent, environment = PAIRS[pair]
    shape = {"seed": 11, "num_steps": 30, "late_steps": 3, "steps_per_point": 1}
    total = None
    for first_run in range(0, 5000, CHUNK):
        size = min(CHUNK, 5000 - first_run)
        (sums,) = chunk_sums(
            [agent], environment, first_run=first_run, num_runs=size, **shape
        )  # fmt: skip
        sums = Sums.from_bytes(sums.to_bytes())
        total = sums if total is None else total + sums
    result = run(agent, environment, num_runs=5000, late_steps=3, **OPTIONS)
    assert total.num_runs == 5000
    for name in ("curve", "totals"):
        assert getattr(total, name).tobytes() == getattr(result.sums, name).tobytes()
    rebuilt = Result.from_sums(
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
            EpsilonGreedy(epsilon=1.0), Gaussian(), num_runs=600, num_steps=10, seed=seed
        ).final_regrets
        for seed in (0, 1, 2**32, 2**64 - 1)
    ]
    numbers = np.concatenate(results)
    assert len(np.unique(numbers)) == len(numbers)


@pytest.mark.parametrize("pair", PAIRS)
def test_any_pieces(pair, monkeypatch):
    """Long runs are played some steps at a time; what is carried over is all that there is."""
    agent, environment = PAIRS[pair]
    whole = run(agent, environment, num_runs=300, **OPTIONS)
    monkeypatch.setattr(games, "_PIECE_S", 0.0)  # eight steps at a time, and no more
    told = []
    options = {**OPTIONS, "on_progress": lambda played, total: told.append(played)}
    assert_same_results(whole, run(agent, environment, num_runs=300, **options))
    assert told[-1] == 300 * 30


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_is_told_and_changes_nothing(threads):
    told, callers = [], set()

    def on_progress(played, total):
        told.append((played, total))
        callers.add(threading.get_ident())

    agents, environment = COMPARED["walk"]
    options = {**OPTIONS, "num_runs": 3000, "threads": threads}
    watched = compare(agents, environment, on_progress=on_progress, **options)
    plain = compare(agents, environment, **options)
    for one, other in zip(watched.results, plain.results, strict=True):
        assert_same_results(one, other)
    whole = 3000 * OPTIONS["num_steps"] * len(agents)
    assert told[-1] == (whole, whole)
    assert told == sorted(told)
    assert {total for _, total in told} == {whole}
    assert callers == {threading.get_ident()}


class Slow:
    """In plain Python, 0.1 s a step."""

    def start(self, num_runs, num_arms, rng):
        self.arms = np.zeros(num_runs, int)

    def choose(self, step):
        time.sleep(0.1)
        return self.arms

    def update(self, step, arm, reward):
        pass


@pytest.mark.filterwarnings("ignore::hotloop.bandits.plain.BanditSpeedWarning")
def test_progress_of_plain_python_is_told_within_a_chunk():
    told = []
    options = {"num_runs": 2, "num_steps": 8, "on_progress": lambda played, _: told.append(played)}
    run(Slow(), Gaussian(), **options)
    assert 3 <= len(told) <= 5  # after every third step, and at the end
    assert told == sorted(told)
    assert told[-1] == 16


def test_a_matrix_in_any_order_of_memory():
    rewards = np.random.default_rng(0).random((30, 3))
    options = {"num_runs": 20, "num_steps": 30, "arm_shares": True}
    expected = run(UCB(), Adversarial(rewards=rewards), **options)
    turned = run(UCB(), Adversarial(rewards=np.ascontiguousarray(rewards.T).T), **options)
    assert_same_results(expected, turned)
    assert expected.mean_reward == turned.mean_reward


def test_who_stops_it_stops_it():
    """What `on_progress` raises ends the run, and the next is as if nothing had been."""

    def on_progress(played, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(UCB(), Gaussian(), num_runs=20_000, num_steps=100, on_progress=on_progress)
    alive = [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]
    assert not alive
    run(UCB(), Gaussian(), num_runs=300, num_steps=10)


def test_what_rounding_leaves_is_no_error():
    """Runs that are all alike: sums of squares and of means differ in their last bits."""
    result = run(UCB(), Gaussian(means=(0.1, 0.3), noise=0), num_runs=3000, num_steps=20)
    arm = np.tile(np.array([[0.1 * 3000], [0.01 * 3000 * (1 + 1e-15)]]), 5)
    alike = Sums(num_runs=3000, curve=result.sums.curve, totals=arm)
    assert replace(result, sums=alike).mean_reward.se == 0
    # What is there stays: 1 in 10⁶ of the mean.
    arm[1] = 0.01 * 3000 * (1 + 1e-12)
    assert replace(result, sums=alike).mean_reward.se == pytest.approx(1e-7 / 3000**0.5, rel=0.01)


def made_sums(*, arm_pulls):
    rng = np.random.default_rng(0)
    pulls = rng.integers(0, 2**40, (7, 3)) if arm_pulls else None
    return Sums(
        num_runs=99, curve=rng.normal(size=(6, 7)), totals=rng.normal(size=(2, 5)), arm_pulls=pulls
    )


@pytest.mark.parametrize("arm_pulls", [False, True])
def test_sums_there_and_back(arm_pulls):
    sums = made_sums(arm_pulls=arm_pulls)
    back = Sums.from_bytes(sums.to_bytes())
    assert back.num_runs == 99
    np.testing.assert_array_equal(back.curve, sums.curve)
    np.testing.assert_array_equal(back.totals, sums.totals)
    if arm_pulls:
        np.testing.assert_array_equal(back.arm_pulls, sums.arm_pulls)
    else:
        assert back.arm_pulls is None
    both = sums + back
    assert both.num_runs == 198
    np.testing.assert_array_equal(both.curve, 2 * sums.curve)


@pytest.mark.parametrize("arm_pulls", [False, True])
def test_sums_cut_short(arm_pulls):
    stored = made_sums(arm_pulls=arm_pulls).to_bytes()
    for length in (0, 7, 31, 32, 33, len(stored) // 2, len(stored) - 8, len(stored) - 1):
        with pytest.raises(BanditError, match="cut short"):
            Sums.from_bytes(stored[:length])
    with pytest.raises(BanditError):
        Sums.from_bytes(stored + b"\0")
    with pytest.raises(BanditError, match="version"):
        Sums.from_bytes(b"\x09" + stored[1:])
