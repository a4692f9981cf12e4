"""Bandits as textbooks write them: lists, loops and float64, one run at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference.philox import MASK, philox_4x32

POLICY, REWARD, MEANS, WALK, SAMPLE, BETA, CONTEXT, THETA, AGENT, ENVIRONMENT = range(1, 11)


def normals(a: int, b: int) -> tuple[float, float]:
    """Return two samples of N(0, 1) from two words, by Box and Muller.

    The first word gives the radius. The second gives an angle of at most 45° to either side of the
    first axis, and its three lowest bits select the axis and the signs.
    """
    radius = math.sqrt(-2 * math.log(((a >> 1) + 0.5) / 2**31))
    angle = (b - 2**32 if b >> 31 else b) / 2**31 * math.pi / 4
    x, y = radius * math.sin(angle), radius * math.cos(angle)
    p, q = (x, y) if b & 1 else (y, x)
    return (-p if b & 2 else p), (-q if b & 4 else q)


class Randomness:
    """All the random numbers of one run."""

    def __init__(self, seed: int, run: int) -> None:
        self.key = (seed & MASK, seed >> 32)
        self.run = run

    def words(self, a: int, stream: int, b: int = 0) -> tuple[int, int, int, int]:
        return philox_4x32((self.run, a & MASK, stream, b), self.key)

    def policy(self, step: int) -> int:
        return self.words(step // 4, POLICY)[step % 4]

    def row(self, a: int, stream: int, size: int) -> list[float]:
        """Return `size` normals, four per counter."""
        values: list[float] = []
        for group in range(-(-size // 4)):
            w = self.words(a, stream, group)
            values += [*normals(w[0], w[1]), *normals(w[2], w[3])]
        return values[:size]

    def normal_at(self, number: int, stream: int) -> float:
        """Return the normal with this number, four per counter."""
        group = number // 4
        w = self.words(group, stream, group >> 32)
        return [*normals(w[0], w[1]), *normals(w[2], w[3])][number % 4]

    def noise(self, step: int) -> float:
        return self.normal_at(step, REWARD)

    def reward_word(self, step: int) -> int:
        return self.words(step // 4, REWARD)[step % 4]

    def uniforms(self, step: int, stream: int) -> np.ndarray:
        return np.array([(word + 0.5) / 2**32 for word in self.words(step, stream)])


# Choice of arms.


def best_arm(values: Sequence[float], word: int) -> int:
    """Return the best arm, a random one of several."""
    best = max(values)
    tied = [arm for arm, value in enumerate(values) if value == best]
    return tied[word * len(tied) >> 32]


def sample_arm(probabilities: Sequence[float], word: int) -> int:
    """Return the first arm whose cumulative probability exceeds u."""
    u, below = ((word >> 8) + 0.5) / 2**24, 0.0
    for arm, probability in enumerate(probabilities):
        below += probability
        if below > u:
            return arm
    return len(probabilities) - 1


def kl(p: float, q: float) -> float:
    """Return the divergence of Bernoulli(p) from Bernoulli(q)."""
    first = 0.0 if p == 0 else p * math.log(p / q)
    return first + (0.0 if p == 1 else (1 - p) * math.log((1 - p) / (1 - q)))


def kl_upper(mean: float, budget: float) -> float:
    """Return the largest q with kl(mean, q) <= budget, by bisection."""
    if mean >= 1:
        return 1.0
    low, high = mean, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if middle >= 1 or kl(mean, middle) <= budget else (low, middle)
        if middle >= 1:
            break
    return low


# Agents.


class Agent:
    """Counts, sums and estimates; steps are counted from 1."""

    def __init__(self, options: Any, num_arms: int, num_steps: int, random: Randomness) -> None:
        self.options = options
        self.num_arms = num_arms
        self.num_steps = num_steps
        self.random = random
        self.count = [0] * num_arms
        self.total = [0.0] * num_arms
        self.value = [float(getattr(options, "initial_value", 0.0))] * num_arms

    def choose(self, step: int, context: np.ndarray | None) -> int:
        raise NotImplementedError

    def update(self, step: int, arm: int, reward: float) -> None:
        self.count[arm] += 1
        self.total[arm] += reward
        step_size = getattr(self.options, "step_size", None)
        if step_size is None:
            self.value[arm] = self.total[arm] / self.count[arm]
        else:
            self.value[arm] += step_size * (reward - self.value[arm])

    def word(self, step: int) -> int:
        return self.random.policy(step - 1)


class EpsilonGreedy(Agent):
    def choose(self, step: int, context: np.ndarray | None) -> int:
        epsilon = self.options.epsilon / (1 + self.options.epsilon_decay * (step - 1))
        word = self.word(step)
        arm, fraction = divmod(word * self.num_arms, 2**32)
        limit = round(epsilon * 2**32)
        if fraction < limit:
            return arm
        # The fraction is uniform from `limit` on. Stretched to all of 2³², with the arm before it,
        # it is a uniform number again.
        stretched = (fraction - limit) * 2**32 // (2**32 - limit)
        best = max(self.value)
        tied = [arm for arm, value in enumerate(self.value) if value == best]
        return tied[(arm * 2**32 + stretched) * len(tied) // (self.num_arms * 2**32)]


class Optimistic(Agent):
    def choose(self, step: int, context: np.ndarray | None) -> int:
        return best_arm(self.value, self.word(step))


class Indexed(Agent):
    """An agent that chooses the arm of the greatest index, untried arms first."""

    def choose(self, step: int, context: np.ndarray | None) -> int:
        indices = [
            self.index(step, arm) if self.count[arm] else math.inf for arm in range(self.num_arms)
        ]
        return best_arm(indices, self.word(step))

    def index(self, step: int, arm: int) -> float:
        raise NotImplementedError


class UCB(Indexed):
    def index(self, step: int, arm: int) -> float:
        return self.value[arm] + self.options.c * math.sqrt(math.log(step) / self.count[arm])


class UCB1(Indexed):
    def index(self, step: int, arm: int) -> float:
        width = math.sqrt(math.log(step - 1) / self.count[arm])
        return self.value[arm] + self.options.scale * width


class KLUCB(Indexed):
    def index(self, step: int, arm: int) -> float:
        log = math.log(step - 1)
        budget = log + self.options.c * max(math.log(log) if log > 0 else 0.0, 0.0)
        return kl_upper(self.value[arm], budget / self.count[arm])


class MOSS(Indexed):
    def index(self, step: int, arm: int) -> float:
        log = math.log(self.num_steps / (self.num_arms * self.count[arm]))
        return self.value[arm] + math.sqrt(max(log, 0.0) / self.count[arm])


class Gradient(Agent):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.preference = [0.0] * self.num_arms
        self.reward_sum = 0.0

    def probabilities(self) -> list[float]:
        best = max(self.preference)
        weights = [math.exp(preference - best) for preference in self.preference]
        return [weight / sum(weights) for weight in weights]

    def choose(self, step: int, context: np.ndarray | None) -> int:
        return sample_arm(self.probabilities(), self.word(step))

    def update(self, step: int, arm: int, reward: float) -> None:
        baseline = 0.0
        if self.options.baseline:
            baseline = self.reward_sum / (step - 1) if step > 1 else reward
        for other, probability in enumerate(self.probabilities()):
            change = (other == arm) - probability
            self.preference[other] += self.options.step_size * (reward - baseline) * change
        self.reward_sum += reward


class EXP3(Agent):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.exponent = [0.0] * self.num_arms

    def probabilities(self) -> list[float]:
        gamma, best = self.options.gamma, max(self.exponent)
        weights = [math.exp(exponent - best) for exponent in self.exponent]
        return [(1 - gamma) * weight / sum(weights) + gamma / self.num_arms for weight in weights]

    def choose(self, step: int, context: np.ndarray | None) -> int:
        return sample_arm(self.probabilities(), self.word(step))

    def update(self, step: int, arm: int, reward: float) -> None:
        estimate = reward / self.probabilities()[arm]
        self.exponent[arm] += self.options.gamma * estimate / self.num_arms


class GaussianThompson(Agent):
    def choose(self, step: int, context: np.ndarray | None) -> int:
        options = self.options
        samples = []
        for arm, z in enumerate(self.random.row(step - 1, SAMPLE, self.num_arms)):
            precision = options.prior_std**-2 + self.count[arm] * options.noise**-2
            total = options.prior_mean * options.prior_std**-2
            total += self.total[arm] * options.noise**-2
            samples.append(total / precision + z / math.sqrt(precision))
        return int(np.argmax(samples))


class BetaThompson(Agent):
    """X / (X + Y) of two gamma variables, by Marsaglia and Tsang 2000, until both are accepted.

    A shape below 1 is sampled as shape + 1, times U^(1/shape).
    """

    def choose(self, step: int, context: np.ndarray | None) -> int:
        alpha, beta = self.options.prior_alpha, self.options.prior_beta
        samples = [
            self.sample(
                step, arm, alpha + self.total[arm], beta + self.count[arm] - self.total[arm]
            )
            for arm in range(self.num_arms)
        ]
        return int(np.argmax(samples))

    def sample(self, step: int, arm: int, alpha: float, beta: float) -> float:
        shapes = [shape + 1 if shape < 1 else shape for shape in (alpha, beta)]
        for attempt in range(0xFFFF):
            w = self.random.words(step - 1, BETA, arm << 16 | attempt)
            gammas = [
                self.gamma(shape, z, ((word >> 8) + 0.5) / 2**24)
                for shape, z, word in zip(shapes, normals(w[0], w[1]), w[2:], strict=True)
            ]
            if None not in gammas:
                break
        else:
            raise AssertionError("no attempt was accepted")
        last = self.random.words(step - 1, BETA, arm << 16 | 0xFFFF)
        log_x, log_y = (math.log(x) for x in gammas)
        if alpha < 1:
            log_x += math.log((last[0] + 0.5) / 2**32) / alpha
        if beta < 1:
            log_y += math.log((last[1] + 0.5) / 2**32) / beta
        return 1 / (1 + math.exp(min(log_y - log_x, 700)))

    @staticmethod
    def gamma(shape: float, z: float, u: float) -> float | None:
        d = shape - 1 / 3
        v = (1 + z / math.sqrt(9 * d)) ** 3
        if v <= 0 or math.log(u) >= z * z / 2 + d * (1 - v + math.log(v)):
            return None
        return d * v


class LinUCB(Agent):
    """One ridge regression per arm."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.matrix: list[np.ndarray] = []
        self.vector: list[np.ndarray] = []
        self.context = np.zeros(0)

    def scores(self, context: np.ndarray) -> list[tuple[float, float]]:
        """Return each arm's estimated reward for this context, and its confidence width."""
        if not self.matrix:
            size = len(context)
            self.matrix = [self.options.ridge * np.eye(size) for _ in range(self.num_arms)]
            self.vector = [np.zeros(size) for _ in range(self.num_arms)]
        self.context = context
        scores = []
        for matrix, vector in zip(self.matrix, self.vector, strict=True):
            solved = np.linalg.solve(matrix, np.stack([vector, context], axis=1))
            scores.append((float(context @ solved[:, 0]), math.sqrt(context @ solved[:, 1])))
        return scores

    def choose(self, step: int, context: np.ndarray | None) -> int:
        assert context is not None
        indices = [mean + self.options.alpha * width for mean, width in self.scores(context)]
        return best_arm(indices, self.word(step))

    def update(self, step: int, arm: int, reward: float) -> None:
        self.matrix[arm] += np.outer(self.context, self.context)
        self.vector[arm] += reward * self.context


class LinTS(LinUCB):
    """Only xᵀθ of a sampled θ matters, and it is normal."""

    def choose(self, step: int, context: np.ndarray | None) -> int:
        assert context is not None
        z = self.random.row(step - 1, SAMPLE, self.num_arms)
        scores = self.scores(context)
        samples = [
            mean + self.options.scale * width * z[arm] for arm, (mean, width) in enumerate(scores)
        ]
        return int(np.argmax(samples))


# Environments.


class Environment:
    """The true values of the arms at a step (from 0), and rewards."""

    def __init__(self, options: Any, num_steps: int, random: Randomness) -> None:
        self.options = options
        self.num_arms = options.num_arms
        self.num_steps = num_steps
        self.random = random

    def context(self, step: int) -> np.ndarray | None:
        return None

    def means(self, step: int) -> Sequence[float]:
        """Return the true values. Called once per step, in order."""
        raise NotImplementedError

    def reward(self, step: int, arm: int, means: Sequence[float]) -> float:
        return means[arm] + self.options.noise * self.random.noise(step)


class GaussianRewards(Environment):
    def means(self, step: int) -> Sequence[float]:
        if self.options.means is not None:
            return self.options.means
        z = self.random.row(0, MEANS, self.num_arms)
        return [self.options.mean + self.options.spread * x for x in z]


class Bernoulli(Environment):
    def means(self, step: int) -> Sequence[float]:
        return self.options.means

    def reward(self, step: int, arm: int, means: Sequence[float]) -> float:
        return float((self.random.reward_word(step) >> 8) / 2**24 < np.float32(means[arm]))


class RandomWalk(Environment):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.current = [float(self.options.start)] * self.num_arms

    def means(self, step: int) -> Sequence[float]:
        if step > 0:
            moves = [
                self.options.walk * self.random.normal_at(step * self.num_arms + arm, WALK)
                for arm in range(self.num_arms)
            ]
            self.current = [sum(pair) for pair in zip(self.current, moves, strict=True)]
        return self.current


class AbruptChange(Environment):
    def means(self, step: int) -> Sequence[float]:
        z = self.random.row(step // self.options.every, MEANS, self.num_arms)
        return [self.options.mean + self.options.spread * x for x in z]


class Adversarial(Environment):
    """All rewards are fixed. The best arm has the largest total."""

    def means(self, step: int) -> Sequence[float]:
        return self.options.rewards[step]

    def reward(self, step: int, arm: int, means: Sequence[float]) -> float:
        return float(means[arm])

    def best(self) -> int:
        return int(np.argmax(np.asarray(self.options.rewards)[: self.num_steps].sum(axis=0)))


class LinearContextual(Environment):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        size, self.theta = self.options.dimension, []
        for arm in range(self.num_arms):
            values: list[float] = []
            for group in range(-(-size // 4)):
                w = self.random.words(group, THETA, arm)
                values += [*normals(w[0], w[1]), *normals(w[2], w[3])]
            self.theta.append(np.array(values[:size]) / math.sqrt(size))

    def context(self, step: int) -> np.ndarray:
        return np.array(self.random.row(step, CONTEXT, self.options.dimension))

    def means(self, step: int) -> Sequence[float]:
        return [float(theta @ self.context(step)) for theta in self.theta]


# Runs.


@dataclass
class Run:
    """The results of a run, one number per step."""

    arm: np.ndarray
    reward: np.ndarray
    optimal: np.ndarray
    regret: np.ndarray


def play(agent: Any, environment: Any, *, seed: int, run: int, num_steps: int) -> Run:
    """Run the reference versions of hotloop's `agent` and `environment`."""
    random = Randomness(seed, run)
    world: Environment = globals()[type(environment).__name__](environment, num_steps, random)
    player: Agent = globals()[type(agent).__name__](agent, world.num_arms, num_steps, random)
    rows = []
    for step in range(num_steps):
        means = world.means(step)
        arm = player.choose(step + 1, world.context(step))
        reward = world.reward(step, arm, means)
        player.update(step + 1, arm, reward)
        if isinstance(world, Adversarial):
            best = world.best()
            optimal, regret = arm == best, means[best] - means[arm]
        else:
            optimal, regret = means[arm] == max(means), max(means) - means[arm]
        rows.append((arm, reward, optimal, regret))
    arms, rewards, optimal, regret = zip(*rows, strict=True)
    return Run(
        np.array(arms, np.int64),
        np.array(rewards, np.float64),
        np.array(optimal, np.float64),
        np.cumsum(np.array(regret, np.float64)),
    )


def play_all(agent: Any, environment: Any, *, seed: int, num_runs: int, num_steps: int) -> Run:
    """Return the results of `num_runs` runs, (num_runs, num_steps) each."""
    runs = [
        play(agent, environment, seed=seed, run=run, num_steps=num_steps) for run in range(num_runs)
    ]
    names = ("arm", "reward", "optimal", "regret")
    return Run(*(np.stack([getattr(run, name) for run in runs]) for name in names))
