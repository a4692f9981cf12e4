"""Rollouts in the learner's own process: act, step, store; no threads, no copies between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotloop.envs import VectorEnv, check_finite, obs_hash
from hotloop.errors import ConfigError, EnvironmentFailure, NonFiniteError
from hotloop.policies import ActingPolicy, PolicySnapshot
from hotloop.timing import span
from hotloop.types import Array, Episode, Fragment, RunningEpisode

# Noise is drawn for so many steps at least: a function of the step, it may be drawn ahead, and
# NumPy takes 150 µs however few numbers it is asked for.
NOISE_STEPS = 256


@dataclass(frozen=True, kw_only=True)
class RolloutState:
    """Where a rollout stands between two fragments: what a checkpoint holds of it.

    Attributes:
        vector_steps: steps of each environment so far.
        num_transitions: transitions so far, over all environments.
        running: number and length of each environment's running episode; none before the first
            fragment.
        obs: (N, *obs_shape), what to act on next.
        history: the actions of the last steps, in chunks of (L, N, *action_shape), which reach back
            to the start of every running episode; none where episodes can't be replayed.
    """

    vector_steps: int = 0
    num_transitions: int = 0
    running: Sequence[tuple[int, int]] = ()
    obs: Array = field(default_factory=lambda: np.empty(0), repr=False)
    history: Sequence[Array] = field(default=(), repr=False)

    def to_arrays(self) -> dict[str, Array]:
        """Each running episode's actions, (L, *action_shape), for a checkpoint."""
        if not self.history:
            return {f"actions.{i}": np.empty(0) for i in range(len(self.running))}
        actions = np.concatenate(self.history)
        return {
            f"actions.{i}": actions[len(actions) - length :, i]
            for i, (_, length) in enumerate(self.running)
        }

    def to_json(self) -> dict[str, Any]:
        """All else, for a checkpoint."""
        return {
            "vector_steps": self.vector_steps,
            "num_transitions": self.num_transitions,
            "episodes": [
                [episode, obs_hash(self.obs[i])] for i, (episode, _) in enumerate(self.running)
            ],
        }


class History:
    """The actions of the running episodes, which a checkpoint holds."""

    def __init__(self, num_steps: int, like: Array) -> None:
        # Chunks of (L, N, *action_shape); the last one fills up.
        self._chunks: list[Array] = []
        self._used = 0
        self._shape, self._dtype = (max(num_steps, NOISE_STEPS), *like.shape[1:]), like.dtype

    def begin(self, actions: Array) -> None:
        """Start from the actions of episodes that were begun elsewhere."""
        self._chunks, self._used = [actions], len(actions)

    def add(self, actions: Array, running: Sequence[tuple[int, int]]) -> None:
        """Keep the actions of a fragment; what no running episode reaches back to may be dropped.

        Args:
            actions: (T, N, *action_shape).
            running: number and length of each environment's episode.
        """
        if not self._chunks or self._used + len(actions) > len(self._chunks[-1]):
            if self._chunks:
                self._chunks[-1] = self._chunks[-1][: self._used]
            longest = max(length for _, length in running)
            num_kept = sum(map(len, self._chunks)) + len(actions)
            while self._chunks and num_kept - len(self._chunks[0]) >= longest:
                num_kept -= len(self._chunks.pop(0))
            self._chunks.append(np.empty(self._shape, self._dtype))
            self._used = 0
        self._chunks[-1][self._used : self._used + len(actions)] = actions
        self._used += len(actions)

    def parts(self) -> tuple[Array, ...]:
        """All of them; what is added later leaves these alone."""
        if not self._chunks:
            return ()
        return (*self._chunks[:-1], self._chunks[-1][: self._used])


class InlineRollout:
    """Collects fragments of T steps from N environments, one after another.

    With an `Actor`, which has no value function, a fragment's `value`, `next_value` and `log_prob`
    stay 0.

    Args:
        envs: stepped side by side.
        policy: acts; `publish` gives it new parameters between fragments.
        num_steps: T.
        seed: of the noise for acting, which is a function of (seed, step, environment).
    """

    def __init__(self, envs: VectorEnv, policy: ActingPolicy, *, num_steps: int, seed: int) -> None:
        self.envs = envs
        self.policy = policy
        self.seed = seed
        self.vector_steps = 0
        self.num_transitions = 0
        network = policy.network
        self.fragment = Fragment.allocate(
            num_steps,
            envs.num_envs,
            obs_shape=network.obs_spec.shape,
            obs_dtype=network.obs_spec.dtype,
            action_shape=network.action_spec.shape,
            action_dtype=network.action_spec.dtype,
        )
        # Views of every step, made once: making them in the loop costs 0.2 µs each.
        self._head = np.zeros((num_steps, envs.num_envs, network.head_size), np.float32)
        self._rows = [
            (self.fragment.obs[t], self._head[t], self.fragment.action[t], arrays)
            for t, arrays in enumerate(self.fragment.step_arrays())
        ]
        self._is_reset = False
        self._history = History(num_steps, self.fragment.action)
        self._noise = np.empty((0, 0, 0), np.float32)
        self._noise_start = 0

    def state(self) -> RolloutState:
        """Where this rollout stands, between two fragments; later ones leave it alone."""
        if not self._is_reset:
            return RolloutState()
        return RolloutState(
            vector_steps=self.vector_steps,
            num_transitions=self.num_transitions,
            running=self.envs.running(),
            obs=self.fragment.last_obs.copy(),
            history=self._history.parts(),
        )

    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any]) -> list[int]:
        """Go on where another rollout stood, with fresh environments.

        Args:
            arrays: from `RolloutState.to_arrays`, perhaps among others.
            state: from `RolloutState.to_json`.

        Returns:
            The environments that could not be brought there, and began their next episode instead.

        Raises:
            EnvironmentFailure: an environment's `reset` failed.
        """
        self.vector_steps = state["vector_steps"]
        self.num_transitions = state["num_transitions"]
        if not state["episodes"]:
            return []
        episodes = [
            RunningEpisode(episode, arrays[f"actions.{i}"], obs_hash)
            for i, (episode, obs_hash) in enumerate(state["episodes"])
        ]
        with span("env_reset"):
            self.fragment.last_obs[...], began_anew = self.envs.resume(episodes)
        self._is_reset = True
        if self.envs.can_replay:
            lengths = [length for _, length in self.envs.running()]
            shape, dtype = self.fragment.action.shape[1:], self.fragment.action.dtype
            past = np.zeros((max(lengths), *shape), dtype)
            for i, (episode, length) in enumerate(zip(episodes, lengths, strict=True)):
                if length:
                    past[-length:, i] = episode.actions
            self._history.begin(past)
        return began_anew

    def publish(self, snapshot: PolicySnapshot) -> None:
        """Act with these parameters from the next fragment on."""
        self.policy.load(snapshot)

    def collect(self) -> Fragment:
        """The next T steps of each environment.

        Returns:
            The one fragment of this rollout, overwritten by the next call.

        Raises:
            EnvironmentFailure: an environment raised, or gave NaN or a wrong shape.
            NonFiniteError: the policy's outputs were NaN or infinite.
        """
        fragment, policy, envs = self.fragment, self.policy, self.envs
        num_steps = fragment.num_steps
        if not self._is_reset:
            with span("env_reset"):
                fragment.last_obs[...] = envs.reset()
            self._is_reset = True
        fragment.obs[0] = fragment.last_obs
        noise = self._next_noise(num_steps)
        rows = zip(self._rows, noise, strict=True)
        for t, ((obs, head, action, arrays), step_noise) in enumerate(rows):
            with span("act"):
                policy.draw(obs, step_noise, head, action)
            with span("env_step"):
                try:
                    envs.step(action, arrays)
                except EnvironmentFailure:
                    # What failed may have been given NaN, by itself or by the policy.
                    self._check_finite(t)
                    raise
        with span("evaluate"):
            self._check_finite(num_steps)
            if policy.has_value:
                fragment.log_prob[...] = policy.log_prob(self._head, noise, fragment.action)
                self._evaluate(fragment)
        fragment.policy_version = policy.version
        if envs.can_replay:
            self._history.add(fragment.action, envs.running())
        self.vector_steps += num_steps
        self.num_transitions += int(fragment.valid.sum())
        return fragment

    def _next_noise(self, num_steps: int) -> Array:
        """(T, N, K), of the steps that come now."""
        start = self.vector_steps - self._noise_start
        if not 0 <= start <= len(self._noise) - num_steps:
            with span("draw_noise"):
                self._noise = self.policy.draw_noise(
                    self.seed,
                    first_step=self.vector_steps,
                    num_steps=max(num_steps, NOISE_STEPS // num_steps * num_steps),
                    num_envs=self.envs.num_envs,
                )
            self._noise_start, start = self.vector_steps, 0
        return self._noise[start : start + num_steps]

    def pop_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        return self.envs.pop_episodes()

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def _check_finite(self, num_steps: int) -> None:
        """Find NaN and infinity in the first `num_steps` of the fragment, and who made them first.

        Raises:
            NonFiniteError: the policy did.
            EnvironmentFailure: an environment did.
        """
        acted = np.isfinite(self._head[: num_steps + 1]).all(axis=(1, 2))
        if not acted.all():
            step = int(acted.argmin())
            if np.isfinite(self.fragment.obs[step]).all():
                raise NonFiniteError(
                    f"the policy's outputs must be finite, but at step {self.vector_steps + step} "
                    "they were not: lower the learning rate, and check the scale of the rewards"
                )
        check_finite(self.fragment, num_steps=num_steps, first_step=self.vector_steps)

    def _evaluate(self, fragment: Fragment) -> None:
        """V of all observations in one batch: a step's own batch would cost as much as acting."""
        policy = self.policy
        flat_obs = fragment.obs.reshape(-1, *fragment.obs.shape[2:])
        fragment.value[...] = policy.value(flat_obs).reshape(fragment.value.shape)
        following = fragment.next_value
        following[:-1] = fragment.value[1:]
        following[-1] = policy.value(fragment.last_obs)
        # Where the environment was reset, the next observation is not the successor.
        truncated = fragment.truncated & ~fragment.terminated
        if truncated.any():
            following[truncated] = policy.value(fragment.next_obs[truncated])
        following[fragment.terminated] = 0.0


def flatten_valid(
    fragment: Fragment, advantages: Array, rng: np.random.Generator
) -> dict[str, Array]:
    """The transitions of a fragment as one batch of T·N rows, environments' resets left out.

    Rows that are no transitions (`valid` is False) are replaced by valid ones drawn at random, so
    that every batch has the same size.

    Args:
        fragment: T steps of N environments.
        advantages: float32, (T, N).
        rng: drawn from only where a row is not valid.

    Returns:
        `obs`, `action`, `log_prob`, `value`, `advantages`, `returns`, each (T·N, …).

    Raises:
        ConfigError: no row is valid.
    """
    fields = {
        "obs": fragment.obs,
        "action": fragment.action,
        "log_prob": fragment.log_prob,
        "value": fragment.value,
        "advantages": advantages,
        "returns": advantages + fragment.value,
    }
    flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in fields.items()}
    valid = fragment.valid.reshape(-1)
    if valid.all():
        return flat
    rows = np.flatnonzero(valid)
    if not len(rows):
        raise ConfigError(
            "a fragment must hold a transition, but every one of its steps was the reset of an "
            "environment with next-step autoreset: raise `num_steps`"
        )
    index = np.arange(len(valid))
    index[~valid] = rng.choice(rows, size=len(valid) - len(rows))
    return {name: array[index] for name, array in flat.items()}
