"""The loop of acting and stepping, shared by the learner's process and workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from hotloop.envs import (
    ActionSpec,
    ObsSpec,
    Spaces,
    VectorEnv,
    advice_for_non_finite,
    check_finite,
    warn_of_coarse_numbers,
)
from hotloop.errors import EnvironmentFailure, NonFiniteError
from hotloop.policies import ActingPolicy, EpisodeNoise, Network
from hotloop.rollouts.noise_buffer import make_noise_buffer
from hotloop.timing import span
from hotloop.types import Array, Fragment, RunningEpisode, StepArrays, transition_bytes

# Estimated size of the Python objects (views of arrays) for each step of a slot.
VIEWS_BYTES = 1_024


class NetworkSizes(Spaces, Protocol):
    """The sizes of a network's inputs and outputs."""

    @property
    def head_size(self) -> int:
        """The width of the head, H."""
        ...

    @property
    def memory_size(self) -> int:
        """The size of the hidden state of one environment, M."""
        ...

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the parameters by name, in order."""
        ...


@dataclass(slots=True)
class Slot:
    """Arrays for a fragment and for its evaluation.

    Attributes:
        fragment: T steps of N environments.
        head: Outputs of the policy's network, float32, (T, N, H).
        rows: Views of observations, masks, head, actions and results of each step. Making them in
            the loop would cost 0.2 µs each.
        memories: Hidden states before every step and after the last one, float32, (N, M). Empty if
            the network is not recurrent.
    """

    fragment: Fragment
    head: Array
    rows: list[tuple[Array, Array, Array, Array, StepArrays]]
    memories: list[Array]

    @classmethod
    def allocate(
        cls,
        num_steps: int,
        num_envs: int,
        network: NetworkSizes,
        *,
        first_env: int = 0,
        zeros: Callable[[tuple[int, ...], DTypeLike], Array] = np.zeros,
    ) -> Slot:
        """Return a slot whose arrays come from `zeros`."""
        fragment = Fragment.allocate(
            num_steps,
            num_envs,
            obs_shape=network.obs_spec.shape,
            obs_dtype=network.obs_spec.dtype,
            action_shape=network.action_spec.shape,
            action_dtype=network.action_spec.dtype,
            mask_size=network.action_spec.mask_size,
            memory_size=network.memory_size,
            first_env=first_env,
            zeros=zeros,
        )
        head = zeros((num_steps, num_envs, network.head_size), np.float32)
        rows = [
            (fragment.obs[t], fragment.mask[t], head[t], fragment.action[t], arrays)
            for t, arrays in enumerate(fragment.step_arrays())
        ]
        memories: list[Array] = []
        if network.memory_size:
            memories = [*fragment.memory, fragment.last_memory]
        return cls(fragment, head, rows, memories)

    @staticmethod
    def size_bytes(num_steps: int, num_envs: int, network: Network) -> int:
        """Return the minimum size of a slot, including noise and evaluation.

        Evaluation computes the value of all rows at once, with all hidden layers.
        """
        obs_bytes = spec_bytes(network.obs_spec)
        bytes_per_env = transition_bytes(obs_bytes, spec_bytes(network.action_spec))
        bytes_per_env += 4 * (network.head_size + network.memory_size)
        bytes_per_env += 2 * network.action_spec.mask_size
        layers = network.layers.numpy_layers
        if network.has_value and layers is not None:
            bytes_per_env += obs_bytes
            bytes_per_env += 4 * sum(
                layers.shapes[f"{name}.bias"][0] for name in layers.names["value"]
            )
        return num_steps * (num_envs * bytes_per_env + VIEWS_BYTES)


def spec_bytes(spec: ObsSpec | ActionSpec) -> int:
    """Return the size of an observation or an action."""
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


class StepObserver(Protocol):
    """Callbacks for each step of the environments, such as the counters of a worker."""

    def on_step_start(self) -> None:
        """Called before the environments are stepped."""
        ...

    def on_step_end(self, t: int) -> None:
        """Called after row `t` of the slot was written."""
        ...


class HalfStepObserver(StepObserver, Protocol):
    """Callbacks for the steps of environments in two halves."""

    def on_half_step(self) -> None:
        """Called after the step of the first half, before that of the second."""
        ...

    def has_room(self) -> bool:
        """Return whether the row after the current one may be collected too."""
        ...


class PolicyInputs:
    """The environments of a collector, and the policy's next inputs.

    Args:
        envs: Environments of the group.
        memory_size: Size of the hidden state of one environment, M.
        vector_steps: Steps of each environment so far.

    Attributes:
        envs: The same.
        vector_steps: Steps of each environment so far.
        obs: Next observations to act on, (N, *obs_shape). None before the first reset.
        memory: Hidden state, float32, (N, M).
        episode_starts: First step of each environment's episode, counted from the start of the run,
            int64, (N,). Up to date if the exploration is an `EpisodeNoise`.
    """

    def __init__(self, envs: VectorEnv, memory_size: int, vector_steps: int = 0) -> None:
        self.envs, self.vector_steps = envs, vector_steps
        self.obs: Array | None = None
        self.memory = np.zeros((envs.num_envs, memory_size), np.float32)
        self.episode_starts = np.zeros(envs.num_envs, np.int64)

    @property
    def has_begun(self) -> bool:
        """Whether the environments were reset."""
        return self.obs is not None

    def begin(self, *, first_episode: int | None = None) -> None:
        """Reset all environments.

        Raises:
            EnvironmentFailure: A reset failed.
        """
        with span("env_reset"):
            self.obs = self.envs.reset(first_episode)
        self.episode_starts[:] = self.vector_steps

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        memory: Array | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """Replay running episodes in fresh environments, and return those that restarted instead.

        Args:
            episodes: Running episode of each environment.
            memory: Hidden state after these episodes, (N, M). None without recurrence.
            on_step: Called before each replayed step.

        Raises:
            EnvironmentFailure: An environment's `reset` failed.
        """
        with span("env_reset"):
            self.obs, restarted_envs = self.envs.resume(episodes, on_step)
        lengths = [length for _, length in self.envs.running_episodes()]
        self.episode_starts[:] = self.vector_steps - np.array(lengths)
        if memory is not None:
            self.memory = memory.copy()
            self.memory[restarted_envs] = 0.0
        return restarted_envs


class Collector(PolicyInputs):
    """Steps one group of environments with a policy, and fills the rows of slots.

    With an `Actor`, which has no value function, `value`, `next_value` and `log_prob` stay 0.

    Args:
        envs: Environments of the group.
        policy: Acting policy.
        seed: Seed of the action noise, which is a function of (seed, step, environment).
        first_env: Index of the first environment, counted over all workers.
    """

    def __init__(
        self, envs: VectorEnv, policy: ActingPolicy, *, seed: int, first_env: int = 0
    ) -> None:
        super().__init__(envs, policy.memory_size)
        self.policy = policy
        self._noise = make_noise_buffer(policy, seed, first_env, self.episode_starts)
        self._has_episode_noise = isinstance(policy.exploration, EpisodeNoise)

    def collect(
        self, slot: Slot, start: int, stop: int, observer: StepObserver | None = None
    ) -> None:
        """Fill rows `start` … `stop` − 1, except `value`, `next_value` and `log_prob`.

        Raises:
            EnvironmentFailure: An environment raised, or returned NaN or a wrong shape.
            NonFiniteError: The policy's outputs were NaN or infinite.
        """
        policy, envs, has_last_value = self.policy, self.envs, self.policy.has_last_value
        assert self.obs is not None
        fragment = slot.fragment
        # `next_obs` and `obs` are often the same arrays.
        fragment.obs[start], fragment.mask[start] = self.obs, envs.mask
        memories, memory = slot.memories, None
        tracks_episodes = bool(memories) or self._has_episode_noise
        if memories:
            np.copyto(memories[start], self.memory)
        noise = self._noise.steps(self.vector_steps, stop - start)
        rows = zip(slot.rows[start:stop], noise, strict=True)
        for t, ((obs, mask, head, action, arrays), step_noise) in enumerate(rows, start):
            with span("act"):
                if memories:
                    memory = memories[t + 1]
                    np.copyto(memory, memories[t])
                policy.draw(obs, step_noise, head, action, memory, mask)
                if has_last_value:
                    fragment.value[t] = policy.last_value()
            if observer is not None:
                observer.on_step_start()
            with span("env_step"):
                try:
                    envs.step(action, arrays)
                except EnvironmentFailure:
                    # The failure may be due to NaN from the policy or from an earlier step: check
                    # for it first.
                    check_rows(slot, start, t, envs.obs_spec, self.vector_steps)
                    raise
            if tracks_episodes:
                is_over = arrays.terminated | arrays.truncated | ~arrays.valid
                if memory is not None:
                    memory[is_over] = 0.0
                if self._has_episode_noise:  # the next iteration draws from these steps
                    self.episode_starts[is_over] = self.vector_steps + t + 1 - start
            if observer is not None:
                observer.on_step_end(t)
        check_rows(slot, start, stop, envs.obs_spec, self.vector_steps)
        self.obs = fragment.obs[stop] if stop < fragment.num_steps else fragment.last_obs
        if memories:
            self.memory = memories[stop]
        self.vector_steps += stop - start
        fragment.policy_version = policy.version

    def evaluate(self, slot: Slot, start: int, stop: int) -> None:
        """Write log-probabilities and values of the last collected rows, `start` … `stop` − 1.

        The values of all observations and successors are one batch, because evaluating each step
        separately costs as much as acting. If acting has computed the values of the rows, only the
        values of the last observations are computed.
        """
        policy = self.policy
        if not policy.has_value:
            return
        with span("evaluate"):
            noise = self._noise.steps(self.vector_steps - (stop - start), stop - start)
            rows = slot.fragment
            if stop - start < rows.num_steps:
                rows = rows.rows(start, stop)
            rows.log_prob[...] = policy.log_prob(slot.head[start:stop], noise, rows.action)
            last_value: Array | None = None
            if not policy.has_last_value and slot.memories:
                flat = hidden_states_after(policy, rows).reshape(-1, policy.memory_size)
                rows.value[...] = policy.value_from_memory(flat).reshape(rows.value.shape)
            elif not policy.has_last_value:
                obs = np.concatenate((rows.obs, rows.last_obs[None]))
                value = policy.value(obs.reshape(-1, *obs.shape[2:])).reshape(obs.shape[:2])
                rows.value[...], last_value = value[:-1], value[-1]
            write_next_values(policy, rows, last_value)


def write_next_values(
    policy: ActingPolicy, rows: Fragment, last_value: Array | None = None
) -> None:
    """Write `next_value` of rows whose `value` is complete.

    Args:
        policy: Policy that evaluates the successors of truncated steps.
        rows: Rows of a fragment.
        last_value: V of `rows.last_obs`, (N,). None: compute it.
    """
    if last_value is None:
        last_memory = rows.last_memory if policy.memory_size else None
        last_value = policy.value(rows.last_obs, last_memory)
    next_value, truncated = rows.next_value, rows.truncated & ~rows.terminated
    next_value[:-1], next_value[-1] = rows.value[1:], last_value
    # After a truncation, the next row has the observation and hidden state after the reset.
    if truncated.any():
        memory = hidden_states_after(policy, rows)[truncated] if policy.memory_size else None
        next_value[truncated] = policy.value(rows.next_obs[truncated], memory)
    next_value[rows.terminated] = 0.0


def hidden_states_after(policy: ActingPolicy, rows: Fragment) -> Array:
    """Return the hidden states after each step, before any reset, (T, N, M)."""
    states = np.concatenate((rows.memory[1:], rows.last_memory[None]))
    is_reset = rows.terminated | rows.truncated | ~rows.valid
    if is_reset.any():
        memory = rows.memory[is_reset]
        policy.head(rows.obs[is_reset], None, memory)
        states[is_reset] = memory
    return states


def check_rows(slot: Slot, start: int, stop: int, spec: ObsSpec, first_step: int) -> None:
    """Check rows `start` … `stop` − 1 for NaN and infinity, and report the first cause.

    Args:
        slot: Slot with the rows.
        start: Index of the first row.
        stop: Index after the last row.
        spec: Layout of observations.
        first_step: Step of row `start`, counted from the start of the run.

    Raises:
        NonFiniteError: The policy's outputs, or the actions, were NaN or infinite.
        EnvironmentFailure: An environment returned NaN or infinity.
    """
    first_env = slot.fragment.first_env
    is_finite = np.isfinite(slot.head[start : stop + 1])
    if not is_finite.all():
        step = int(is_finite.all(axis=(1, 2)).argmin())
        obs = slot.fragment.obs[start + step]
        if np.isfinite(obs).all():
            raise NonFiniteError(
                f"the policy's outputs must be finite, but at step {first_step + step} "
                f"they were not: {advice_for_non_finite({'obs': obs})}"
            )
    fragment = slot.fragment
    actions = fragment.action[start : stop + 1]
    if actions.dtype.kind == "f" and not (is_finite := np.isfinite(actions)).all():
        step = int(is_finite.reshape(len(actions), -1).all(axis=1).argmin())
        if (
            np.isfinite(fragment.obs[start + step]).all()
            and np.isfinite(slot.head[start + step]).all()
        ):
            raise NonFiniteError(
                f"actions must be finite, but at step {first_step + step} they were not, although "
                "the policy's outputs were: check the noise of your exploration or head"
            )
    check_finite(fragment, spec, first_step, slice(start, stop))
    # The environments check the first observation.
    if first_env == first_step == 0 and start < stop:
        next_obs, first_obs = fragment.next_obs[start:stop, 0], fragment.obs[start, 0]
        warn_of_coarse_numbers("environment 0", spec, next_obs, first_obs=first_obs)
