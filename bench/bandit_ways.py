"""The contenders of `python -m bench bandit`: the seed's versions, NumPy, Numba, peers, hotloop.

All play the ε-greedy agent with sample averages, ε = 0.1, on the book's testbed: ten arms, true
values ~ N(0, 1) drawn anew for each run, rewards ~ N(true value, 1).
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench import bandit_seed
from bench.replay_seed import Missing
from bench.replay_ways import imported

Floats = npt.NDArray[np.float64]
ARMS, EPSILON = 10, 0.1


class Moments(NamedTuple):
    """Of the mean rewards of some runs: what can be added up over calls."""

    runs: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, means: Sequence[float] | Floats) -> Moments:
        """From each run's mean."""
        values = np.asarray(means, np.float64)
        return cls(len(values), float(values.sum()), float(np.square(values).sum()))

    @classmethod
    def of_estimate(cls, runs: int, mean: float, se: float) -> Moments:
        """From the mean over runs and its standard error."""
        return cls(runs, runs * mean, runs * (mean * mean + (runs - 1) * se * se))

    def plus(self, other: Moments) -> Moments:
        """Both together."""
        return Moments(
            self.runs + other.runs, self.total + other.total, self.squares + other.squares
        )

    def estimate(self) -> dict[str, float]:
        """Mean, its standard error (endless for a single run) and the number of runs."""
        mean = self.total / self.runs
        se = math.inf
        if self.runs > 1:
            variance = max(self.squares - self.runs * mean * mean, 0.0) / (self.runs - 1)
            se = math.sqrt(variance / self.runs)
        return {"mean": mean, "se": se, "runs": self.runs}


Play = Callable[[int, int, int], Moments]
"""(num_runs, num_steps, seed) -> what the runs got."""


def seed_version(version: str) -> Play:
    """One of the seed's."""
    if version in ("configuration_objects", "plain_dictionaries"):
        imported("omegaconf")

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        return Moments.of(bandit_seed.play(version, num_runs, num_steps, seed))

    return play


def numpy_a_run() -> Play:
    """Arrays, one run at a time; what does not depend on the arms is drawn beforehand."""

    def one(num_steps: int, rng: np.random.Generator) -> float:
        true_values = rng.standard_normal(ARMS)
        noise = rng.standard_normal(num_steps)
        explores = rng.random(num_steps) < EPSILON
        others = rng.integers(ARMS, size=num_steps)
        estimates, counts = np.zeros(ARMS), np.zeros(ARMS)
        rewards = np.zeros(num_steps)
        for step in range(num_steps):
            if explores[step]:
                arm = others[step]
            else:
                best = np.flatnonzero(estimates == estimates.max())
                arm = best[0] if len(best) == 1 else best[rng.integers(len(best))]
            rewards[step] = reward = true_values[arm] + noise[step]
            counts[arm] += 1
            estimates[arm] += (reward - estimates[arm]) / counts[arm]
        return float(rewards.mean())

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        return Moments.of([one(num_steps, rng) for _ in range(num_runs)])

    return play


def numpy_over_runs() -> Play:
    """A step of all runs at once."""

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        true_values = rng.standard_normal((num_runs, ARMS))
        estimates, counts = np.zeros((num_runs, ARMS)), np.zeros((num_runs, ARMS))
        totals = np.zeros(num_runs)
        every = np.arange(num_runs)
        for _ in range(num_steps):
            arm = estimates.argmax(axis=1)
            # Ties are drawn only where there are any: after some steps that is almost nowhere.
            is_best = estimates == estimates[every, arm][:, None]
            tied = np.flatnonzero(np.count_nonzero(is_best, axis=1) > 1)
            if len(tied):
                arm[tied] = (is_best[tied] * rng.random((len(tied), ARMS))).argmax(axis=1)
            explores = np.flatnonzero(rng.random(num_runs) < EPSILON)
            arm[explores] = rng.integers(ARMS, size=len(explores))
            reward = true_values[every, arm] + rng.standard_normal(num_runs)
            counts[every, arm] += 1
            estimates[every, arm] += (reward - estimates[every, arm]) / counts[every, arm]
            totals += reward
        return Moments.of(totals / num_steps)

    return play


def _loop(
    rng: Any, means: Any, num_steps: int, num_arms: int, epsilon: float
) -> None:  # compiled below
    true_values, estimates = np.empty(num_arms), np.empty(num_arms)
    counts = np.empty(num_arms)
    for run in range(len(means)):
        for arm in range(num_arms):
            true_values[arm] = rng.standard_normal()
            estimates[arm] = 0.0
            counts[arm] = 0.0
        total = 0.0
        for _ in range(num_steps):
            chosen = 0
            if rng.random() < epsilon:
                chosen = int(rng.random() * num_arms)
            else:
                # Draws among equals in one pass: the n-th of them takes over with chance 1 / n.
                ties = 1
                for arm in range(1, num_arms):
                    if estimates[arm] > estimates[chosen]:
                        chosen, ties = arm, 1
                    elif estimates[arm] == estimates[chosen]:
                        ties += 1
                        if rng.random() * ties < 1.0:
                            chosen = arm
            reward = true_values[chosen] + rng.standard_normal()
            counts[chosen] += 1.0
            estimates[chosen] += (reward - estimates[chosen]) / counts[chosen]
            total += reward
        means[run] = total / num_steps


def numba_loop() -> Play:
    """The plain loop, compiled: what most people would write once NumPy is too slow."""
    loop = imported("numba").njit(_loop)

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        means = np.empty(num_runs)
        loop(np.random.default_rng(seed), means, num_steps, ARMS, EPSILON)
        return Moments.of(means)

    return play


def pymab() -> Play:
    """PyMAB 2, its engine in Rust; ten replicates a bandit, as it has a fixed cost a bandit."""
    library, policies = imported("pymab"), imported("pymab.policies")

    def one(num_runs: int, num_steps: int, rng: np.random.Generator) -> float:
        experiment = library.Experiment(
            environment=library.BanditEnvironment(means=rng.standard_normal(ARMS)),
            policies={"epsilon": policies.EpsilonGreedyPolicy(n_arms=ARMS, epsilon=EPSILON)},
            config=library.ExperimentConfig(
                horizon=num_steps,
                n_replicates=num_runs,
                seed=int(rng.integers(2**31)),
                backend="rust",
            ),
        )
        return float(experiment.run().rewards.mean())

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        sizes = [min(10, num_runs - first) for first in range(0, num_runs, 10)]
        # The replicates of one bandit are no independent runs of the testbed: their mean is one.
        return Moments.of([one(size, num_steps, rng) for size in sizes])

    return play


def mabwiser() -> Play:
    """MABWiser: a prediction and a partial fit a step."""
    library = imported("mabwiser.mab")

    def one(num_steps: int, rng: np.random.Generator) -> float:
        policy = library.LearningPolicy.EpsilonGreedy(epsilon=EPSILON)
        agent = library.MAB(list(range(ARMS)), policy, seed=int(rng.integers(2**31)))
        true_values = rng.standard_normal(ARMS)
        noise = rng.standard_normal(num_steps)
        total = 0.0
        for step in range(num_steps):
            # It predicts nothing before the first fit; any arm is as good as another by then.
            arm = agent.predict() if step else 0
            reward = true_values[arm] + noise[step]
            agent.partial_fit([arm], [reward])
            total += reward
        return total / num_steps

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = np.random.default_rng(seed)
        return Moments.of([one(num_steps, rng) for _ in range(num_runs)])

    return play


def smpybandits() -> Play:
    """SMPyBandits: `choice`, `draw` and `getReward` a step, as its evaluator calls them."""
    special = imported("scipy.special")
    # A name that SciPy has dropped and that SMPyBandits imports; ε-greedy does not call it.
    if not hasattr(special, "btdtri"):
        special.btdtri = special.betaincinv
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(divide="ignore"):
        policies, arms = imported("SMPyBandits.Policies"), imported("SMPyBandits.Arms")

    def one(num_steps: int) -> float:
        bandit = [
            arms.Gaussian(random.gauss(0.0, 1.0), sigma=1.0, mini=-math.inf, maxi=math.inf)
            for _ in range(ARMS)
        ]
        agent = policies.EpsilonGreedy(ARMS, epsilon=EPSILON)
        agent.startGame()
        total = 0.0
        for step in range(num_steps):
            arm = agent.choice()
            reward = bandit[arm].draw(step)
            agent.getReward(arm, reward)
            total += reward
        return total / num_steps

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (it draws from both)
        return Moments.of([one(num_steps) for _ in range(num_runs)])

    return play


def epsilongreedy() -> Play:
    """The package EpsilonGreedy: pure Python, its own loop."""
    library = imported("EpsilonGreedy")

    def one(num_steps: int, rng: random.Random) -> float:
        arms = [
            library.Arm(name=str(arm), distribution="normal", mu=rng.gauss(0.0, 1.0))
            for arm in range(ARMS)
        ]
        bandit = library.MultiArmedBandit(arms, seed=rng.randrange(2**31))
        agent = library.EpsilonGreedyAgent(ARMS, epsilon=EPSILON, seed=rng.randrange(2**31))
        return library.run_bandit(bandit, agent, num_steps)["avg_reward"]

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        rng = random.Random(seed)
        return Moments.of([one(num_steps, rng) for _ in range(num_runs)])

    return play


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hotloop_plays(agents: Sequence[Any], environment: Any, threads: int) -> Play:
    """hotloop: one agent by `run`, several by `compare`; the reward is the first one's."""
    bandits = imported("hotloop.bandits")

    def play(num_runs: int, num_steps: int, seed: int) -> Moments:
        sizes = {"num_runs": num_runs, "num_steps": num_steps, "seed": seed, "threads": threads}
        if len(agents) == 1:
            result = bandits.run(agents[0], environment, **sizes)
        else:
            result = bandits.compare(agents, environment, **sizes).results[0]
        return Moments.of_estimate(num_runs, *result.mean_reward)

    return play


def hotloop(threads: int) -> Play:
    """hotloop's kernels at what all contenders play."""
    if threads > cores():
        raise Missing(f"needs {threads} cores")
    bandits = imported("hotloop.bandits")
    agent, environment = bandits.EpsilonGreedy(epsilon=EPSILON), bandits.Gaussian(num_arms=ARMS)
    return hotloop_plays([agent], environment, threads)


class Way(NamedTuple):
    """A contender."""

    about: str
    make: Callable[[], Play]
    runs: int
    """So many a call; where it is less than a grid point's, that is extrapolated."""
    kind: str
    """seed, plain, peer or hotloop."""
    remark: str = ""


WAYS: dict[str, Way] = {
    **{
        name: Way(about, functools.partial(seed_version, name), 1, "seed")
        for name, (about, _) in bandit_seed.VERSIONS.items()
    },
    "numpy_a_run": Way("NumPy, one run at a time", numpy_a_run, 5, "plain"),
    "numpy_over_runs": Way("NumPy, 2000 runs at once", numpy_over_runs, 2000, "plain"),
    "numba_loop": Way("Numba, one run at a time", numba_loop, 2000, "plain"),
    "epsilongreedy": Way("EpsilonGreedy (pure Python)", epsilongreedy, 10, "peer"),
    "pymab": Way("PyMAB (Rust)", pymab, 20, "peer"),
    "smpybandits": Way(
        "SMPyBandits",
        smpybandits,
        2,
        "peer",
        "exploits the largest sum of rewards instead of the largest mean",
    ),
    "mabwiser": Way("MABWiser", mabwiser, 1, "peer"),
    "hotloop": Way("hotloop, one thread", lambda: hotloop(1), 2000, "hotloop"),
    "hotloop_two": Way("hotloop, two threads", lambda: hotloop(2), 2000, "hotloop"),
}

# Known, and not to be had from the package index.
UNAVAILABLE = {
    "libbandit": "libbandit (C++)",
    "chapter_2": "ShangtongZhang's reinforcement-learning-an-introduction, chapter 2",
}


class Case(NamedTuple):
    """Settings of one agent in an environment; alone it is the first of them."""

    about: str
    agents: Sequence[Any]
    environment: Any
    runs: int = 2000


def cases(num_steps: int) -> dict[str, Case]:
    """Every agent of hotloop's, and some environments, on ten arms."""
    b: Any = imported("hotloop.bandits")
    gaussian = b.Gaussian()
    coins = b.Bernoulli(means=tuple(0.05 + 0.1 * arm for arm in range(10)))
    matrix = b.Adversarial(rewards=np.random.default_rng(0).random((num_steps, ARMS)))
    linear = b.LinearContextual()

    def each(agent: Any, field: str, *values: float, **others: float) -> list[Any]:
        return [agent(**{field: value}, **others) for value in values]

    some = (0.1, 0.01, 0.05, 0.2)
    greedy = each(b.EpsilonGreedy, "epsilon", *some)
    tracking = each(b.EpsilonGreedy, "epsilon", *some, step_size=0.1)
    thompson = each(b.GaussianThompson, "prior_std", 1.0, 0.5, 2.0, 4.0)
    return {
        "epsilon-greedy": Case("ε-greedy", greedy, gaussian),
        "ucb": Case("UCB", each(b.UCB, "c", 2.0, 0.5, 1.0, 4.0), gaussian),
        "gradient": Case("gradient", each(b.Gradient, "step_size", *some), gaussian),
        "random-walk": Case("ε-greedy, α = 0.1", tracking, b.RandomWalk()),
        "abrupt-change": Case("ε-greedy, α = 0.1", tracking, b.AbruptChange()),
        "optimistic": Case(
            "optimistic start", each(b.Optimistic, "initial_value", 5.0, 1.0, 2.0, 4.0), gaussian
        ),
        "gaussian-thompson": Case("Thompson, Gaussian", thompson, gaussian),
        "ucb1": Case("UCB1", each(b.UCB1, "scale", 2**0.5, 0.5, 0.7, 1.0), coins),
        "moss": Case("MOSS", [b.MOSS()], coins),
        "beta-thompson": Case(
            "Thompson, Beta", each(b.BetaThompson, "prior_beta", 1.0, 2.0, 3.0, 4.0), coins, 512
        ),
        "kl-ucb": Case("KL-UCB", each(b.KLUCB, "c", 0.0, 1.0, 2.0, 3.0), coins, 512),
        "exp3": Case("EXP3", each(b.EXP3, "gamma", *some), matrix),
        "lin-ucb": Case("LinUCB", each(b.LinUCB, "alpha", 1.0, 0.5, 2.0, 4.0), linear, 512),
        "lin-ts": Case("LinTS", each(b.LinTS, "scale", 1.0, 0.5, 2.0, 4.0), linear, 512),
        "jitted-agent": Case(
            "ε-greedy as a user's jitted functions",
            [
                b.JittedAgent(
                    choose=_own_choose, update=_own_update, state_size=_own_size, params=(epsilon,)
                )
                for epsilon in some
            ],
            gaussian,
        ),
        "plain-agent": Case("ε-greedy as a user's plain Python", [OwnAgent(EPSILON)], gaussian),
    }


# A user's ε-greedy. Of equals the first: no arm of these differs from another beforehand.


def _own_size(num_arms: int) -> int:
    return 2 * num_arms


def _own_choose(state: Any, params: Any, step: int, uniform: Any) -> int:
    num_arms = len(state) // 2
    if uniform[0] < params[0]:
        return int(uniform[1] * num_arms)
    best = 0
    for arm in range(1, num_arms):
        if state[arm] > state[best]:
            best = arm
    return best


def _own_update(state: Any, params: Any, step: int, arm: int, reward: float) -> None:
    count = len(state) // 2 + arm
    state[count] += 1.0
    state[arm] += (reward - state[arm]) / state[count]


class OwnAgent:
    """The same in NumPy, a step of all runs at once."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    def start(self, num_runs: int, num_arms: int, rng: np.random.Generator) -> None:
        """Begin anew."""
        self.rng, self.every = rng, np.arange(num_runs)
        self.estimates = np.zeros((num_runs, num_arms))
        self.counts = np.zeros((num_runs, num_arms))

    def choose(self, step: int) -> npt.NDArray[np.int64]:
        """An arm for each run."""
        arm = self.estimates.argmax(axis=1)
        explores = np.flatnonzero(self.rng.random(len(arm)) < self.epsilon)
        arm[explores] = self.rng.integers(self.estimates.shape[1], size=len(explores))
        return arm

    def update(self, step: int, arm: npt.NDArray[np.int64], reward: Floats) -> None:
        """Sample averages."""
        self.counts[self.every, arm] += 1
        error = reward - self.estimates[self.every, arm]
        self.estimates[self.every, arm] += error / self.counts[self.every, arm]
