"""How a network's head becomes actions: noise, drawing, the most probable one. NumPy alone.

Noise is drawn ahead for many steps as a function of (seed, step, environment), so that who acts,
and in which process, changes nothing. What an actor explores by is part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from hotloop.envs.spaces import ActionSpec
from hotloop.ops.noise import counter_normal, counter_uniform
from hotloop.policies.actors import Actor
from hotloop.policies.protocol import Network
from hotloop.types import Array

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0  # of a squashed Gaussian, as CleanRL bounds it
_EXPLORING = 1  # the stream of noise that decides whether to explore, and of uniform actions
_LOG_SQRT_2PI = np.float32(0.5 * math.log(2.0 * math.pi))


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """How an actor departs from what it thinks best while it collects.

    Attributes:
        random_steps: steps of each environment, from the first on, with uniform actions.
        noise_std: standard deviation of the Gaussian added to deterministic actions, in halves of
            the bounds' width.
        epsilon: probability of a uniform action, among discrete ones, at the first step and from
            `epsilon_steps` on; linear between.
        epsilon_steps: steps of each environment.
    """

    random_steps: int = 0
    noise_std: float = 0.0
    epsilon: tuple[float, float] = (0.0, 0.0)
    epsilon_steps: int = 1


class Head(Protocol):
    """What turns (B, H) and noise, (B, K), into actions, (B, *action_shape)."""

    def load(self, params: Mapping[str, Array]) -> None:
        """Act with these parameters from now on."""
        ...

    def draw_noise(
        self, seed: int, *, first_step: int, num_steps: int, num_envs: int, first_env: int = 0
    ) -> Array:
        """float32, (T, N, K)."""
        ...

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Noise, (B, K), for heads of `shape`, (B, H), from a generator of the user's."""
        ...

    def is_needed(self, noise: Array) -> bool:
        """Whether what the network says makes a difference to these actions."""
        ...

    def choose(self, head: Array, noise: Array, out: Array) -> None:
        """Draw actions into `out`."""
        ...

    def greedy(self, head: Array, out: Array) -> None:
        """Write the most probable actions into `out`."""
        ...

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """log π(action), (T, N), for a whole fragment."""
        ...


def make_head(network: Network, exploration: Exploration | None = None) -> Head:
    """The head of a network; what there is to explore by is only an actor's."""
    spec = network.action_spec
    if isinstance(network, Actor):
        exploration = exploration or Exploration()
        if network.kind == "action_values":
            return EpsilonGreedy(network.action_size, exploration)
        return Squashed(network, exploration)
    if spec.kind == "box":
        return DiagonalGaussian(network.head_size)
    return Categorical(spec)


class Categorical:
    """Discrete actions: the argmax of logits and Gumbel noise is a draw from their softmax."""

    def __init__(self, spec: ActionSpec) -> None:
        sizes = spec.nvec if spec.kind == "multi_discrete" else (spec.num_actions,)
        self._size = sum(sizes)
        ends = np.cumsum((0, *sizes)).tolist()
        self._segments = list(pairwise(ends))
        self._is_single = spec.kind == "discrete"

    def load(self, params: Mapping[str, Array]) -> None:
        """Nothing of it is a parameter."""

    def draw_noise(
        self, seed: int, *, first_step: int, num_steps: int, num_envs: int, first_env: int = 0
    ) -> Array:
        """Gumbel noise."""
        uniform = counter_uniform(
            seed,
            size=self._size,
            first_step=first_step,
            num_steps=num_steps,
            num_envs=num_envs,
            first_env=first_env,
        )
        return (-np.log(-np.log(uniform))).astype(np.float32)

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Gumbel noise."""
        return rng.gumbel(size=shape).astype(np.float32)

    def is_needed(self, noise: Array) -> bool:
        """Always."""
        return True

    def choose(self, head: Array, noise: Array, out: Array) -> None:
        """See `Head`."""
        self.greedy(head + noise, out)

    def greedy(self, head: Array, out: Array) -> None:
        """See `Head`."""
        if self._is_single:
            head.argmax(axis=1, out=out)
            return
        for k, (start, stop) in enumerate(self._segments):
            out[:, k] = head[:, start:stop].argmax(axis=1)

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """See `Head`."""
        if self._is_single:
            return _categorical_log_prob(head, action)
        total = np.zeros(head.shape[:-1], np.float32)
        for k, (start, stop) in enumerate(self._segments):
            total += _categorical_log_prob(head[..., start:stop], action[..., k])
        return total


class DiagonalGaussian:
    """Continuous actions, from means and a log standard deviation that is the same everywhere."""

    def __init__(self, size: int) -> None:
        self._size = size

    def load(self, params: Mapping[str, Array]) -> None:
        """See `Head`."""
        self._log_std = params["policy.log_std"]
        self._std = np.exp(self._log_std)

    def draw_noise(
        self, seed: int, *, first_step: int, num_steps: int, num_envs: int, first_env: int = 0
    ) -> Array:
        """Standard normal numbers."""
        return counter_normal(
            seed,
            size=self._size,
            first_step=first_step,
            num_steps=num_steps,
            num_envs=num_envs,
            first_env=first_env,
        )

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers."""
        return rng.standard_normal(shape, np.float32)

    def is_needed(self, noise: Array) -> bool:
        """Always."""
        return True

    def choose(self, head: Array, noise: Array, out: Array) -> None:
        """See `Head`."""
        flat = out.reshape(head.shape)  # a view: `out` is one step of a fragment
        np.multiply(noise, self._std, out=flat)
        np.add(flat, head, out=flat)

    def greedy(self, head: Array, out: Array) -> None:
        """See `Head`."""
        out.reshape(head.shape)[...] = head

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """See `Head`; the noise is the standardised action."""
        per_dimension = 0.5 * np.square(noise) + (self._log_std + _LOG_SQRT_2PI)
        return -per_dimension.sum(axis=-1, dtype=np.float32)


class Squashed:
    """Continuous actions within their bounds: c + h · u, u = tanh(…) of an actor's head.

    The last number of the noise is 1 in steps whose other numbers are u itself, uniform; those
    steps don't ask the network.
    """

    def __init__(self, network: Actor, exploration: Exploration) -> None:
        self._size = network.action_size
        self._is_gaussian = network.kind == "squashed_gaussian"
        self._exploration = exploration
        self._centre, self._half = network.action_scale
        self._low, self._high = (
            np.asarray(bound, np.float32)
            for bound in (network.action_spec.low, network.action_spec.high)
        )

    def load(self, params: Mapping[str, Array]) -> None:
        """Nothing of it is a parameter."""

    def draw_noise(
        self, seed: int, *, first_step: int, num_steps: int, num_envs: int, first_env: int = 0
    ) -> Array:
        """Standard normal numbers, uniform ones in [−1, 1] at first, and which of them it is."""
        counters = {
            "first_step": first_step,
            "num_steps": num_steps,
            "num_envs": num_envs,
            "first_env": first_env,
        }
        noise = np.zeros((num_steps, num_envs, self._size + 1), np.float32)
        noise[..., :-1] = counter_normal(seed, size=self._size, **counters)
        num_random = min(max(self._exploration.random_steps - first_step, 0), num_steps)
        if num_random:
            uniform = counter_uniform(seed, size=self._size, stream=_EXPLORING, **counters)
            noise[:num_random, :, :-1] = 2.0 * uniform[:num_random] - 1.0
            noise[:num_random, :, -1] = 1.0
        return noise

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers; none where the policy has no randomness of its own."""
        noise = np.zeros((shape[0], self._size + 1), np.float32)
        if self._is_gaussian:
            noise[:, :-1] = rng.standard_normal((shape[0], self._size), np.float32)
        return noise

    def is_needed(self, noise: Array) -> bool:
        """Not while actions are uniform."""
        return not noise[0, -1]

    def choose(self, head: Array, noise: Array, out: Array) -> None:
        """See `Head`."""
        if noise[0, -1]:
            self._write(noise[:, :-1], out)
        elif self._is_gaussian:
            mean, raw = head[:, : self._size], head[:, self._size :]
            self._write(np.tanh(mean + np.exp(log_std_of(raw)) * noise[:, :-1]), out)
        else:
            std = self._exploration.noise_std
            self._write(np.tanh(head) + std * noise[:, :-1], out)

    def greedy(self, head: Array, out: Array) -> None:
        """See `Head`."""
        self._write(np.tanh(head[:, : self._size]), out)

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """Nobody asks for it: what learns from replay computes its own."""
        raise NotImplementedError

    def _write(self, unit: Array, out: Array) -> None:
        """Actions from u; rounding and noise must not carry them over their bounds."""
        flat = out.reshape(unit.shape)
        np.multiply(unit, self._half, out=flat)
        np.add(flat, self._centre, out=flat)
        np.maximum(flat, self._low, out=flat)
        np.minimum(flat, self._high, out=flat)


class EpsilonGreedy:
    """The action of the greatest value, or, with probability ε, a uniform one.

    The noise is the number of that action, or −1, and then 1 in steps with ε = 1. Those don't ask
    the network, nor do those in which the one environment that there is explores.
    """

    def __init__(self, size: int, exploration: Exploration) -> None:
        self._size = size
        self._exploration = exploration

    def load(self, params: Mapping[str, Array]) -> None:
        """Nothing of it is a parameter."""

    def draw_noise(
        self, seed: int, *, first_step: int, num_steps: int, num_envs: int, first_env: int = 0
    ) -> Array:
        """Actions to take whatever the values are, or −1, and whether ε is 1; (T, N, 2)."""
        uniform = counter_uniform(
            seed,
            size=2,
            stream=_EXPLORING,
            first_step=first_step,
            num_steps=num_steps,
            num_envs=num_envs,
            first_env=first_env,
        )
        exploration = self._exploration
        start, end = exploration.epsilon
        steps = np.arange(first_step, first_step + num_steps)
        epsilon = start + (end - start) * np.minimum(steps / exploration.epsilon_steps, 1.0)
        epsilon[steps < exploration.random_steps] = 1.0
        action = np.floor(uniform[..., 1:] * self._size)
        explores = uniform[..., :1] < epsilon[:, None, None]
        noise = np.empty((num_steps, num_envs, 2), np.float32)
        noise[..., :1] = np.where(explores, action, -1.0)
        noise[..., 1] = (epsilon >= 1.0)[:, None]
        return noise

    def draw_from(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """None: the policy is greedy."""
        return np.tile(np.array((-1.0, 0.0), np.float32), (shape[0], 1))

    def is_needed(self, noise: Array) -> bool:
        """Not where every environment explores."""
        return not noise[0, 1] and (len(noise) > 1 or noise[0, 0] < 0)

    def choose(self, head: Array, noise: Array, out: Array) -> None:
        """See `Head`."""
        if not self.is_needed(noise):
            out[...] = noise[:, 0]
            return
        head.argmax(axis=1, out=out)
        if len(noise) > 1:
            explores = noise[:, 0] >= 0
            np.copyto(out, noise[:, 0], where=explores, casting="unsafe")

    def greedy(self, head: Array, out: Array) -> None:
        """See `Head`."""
        head.argmax(axis=1, out=out)

    def log_prob(self, head: Array, noise: Array, action: Array) -> Array:
        """Nobody asks for it."""
        raise NotImplementedError


def log_std_of(raw: Array) -> Array:
    """A squashed Gaussian's log standard deviation, in [−5, 2], from what the network says."""
    return LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (np.tanh(raw) + 1.0)


def _categorical_log_prob(logits: Array, action: Array) -> Array:
    """log softmax(logits)[action]: (…,), from (…, A) and (…,)."""
    # Ufuncs and `take` by flat index: `max`, `sum` and `take_along_axis` cost a short fragment
    # four times as much.
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    log_sum = np.log(np.add.reduce(np.exp(shifted), axis=-1))
    first = np.arange(0, shifted.size, shifted.shape[-1]).reshape(action.shape)
    return shifted.take(first + action) - log_sum
