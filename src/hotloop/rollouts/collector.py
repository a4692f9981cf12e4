"""Acting and stepping, the same for the learner's own process and for workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from hotloop.envs import ActionSpec, ObsSpec, VectorEnv, check_finite
from hotloop.errors import EnvironmentFailure, NonFiniteError
from hotloop.policies import ActingPolicy, Network
from hotloop.timing import span
from hotloop.types import Array, Fragment, RunningEpisode, StepArrays

# Noise is drawn for so many steps at least: a function of the step, it may be drawn ahead, and
# NumPy takes 150 µs however few numbers it is asked for.
NOISE_STEPS = 256
# Of the views of a step's rows, about 1,400.
_VIEWS_BYTES = 1_024


class Outline(Protocol):
    """What must be known of a network to keep what it gives."""

    @property
    def obs_spec(self) -> ObsSpec:
        """What is observed."""
        ...

    @property
    def action_spec(self) -> ActionSpec:
        """What is done."""
        ...

    @property
    def head_size(self) -> int:
        """H, the width of the head."""
        ...

    @property
    def memory_size(self) -> int:
        """M, how many numbers it remembers of each environment."""
        ...

    def parameter_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes by name, in order, of what is learned."""
        ...


@dataclass(slots=True)
class Slot:
    """Room for a fragment, and for what evaluating it needs.

    Attributes:
        fragment: T steps of N environments.
        head: float32, (T, N, H), what the policy's network said.
        rows: views of every step, made once: making them in the loop costs 0.2 µs each.
        memories: float32, (N, M), what is remembered before every step, and after the last one;
            none where nothing is.
    """

    fragment: Fragment
    head: Array
    rows: list[tuple[Array, Array, Array, StepArrays]]
    memories: list[Array]

    @classmethod
    def allocate(
        cls,
        num_steps: int,
        num_envs: int,
        network: Outline,
        *,
        first_env: int = 0,
        zeros: Callable[[tuple[int, ...], DTypeLike], Array] = np.zeros,
    ) -> Slot:
        """A slot of zeros, or wherever `zeros` puts it."""
        fragment = Fragment.allocate(
            num_steps,
            num_envs,
            obs_shape=network.obs_spec.shape,
            obs_dtype=network.obs_spec.dtype,
            action_shape=network.action_spec.shape,
            action_dtype=network.action_spec.dtype,
            memory_size=network.memory_size,
            first_env=first_env,
            zeros=zeros,
        )
        head = zeros((num_steps, num_envs, network.head_size), np.float32)
        rows = [
            (fragment.obs[t], head[t], fragment.action[t], arrays)
            for t, arrays in enumerate(fragment.step_arrays())
        ]
        memories: list[Array] = []
        if network.memory_size:
            memories = [*fragment.memory, fragment.last_memory]
        return cls(fragment, head, rows, memories)

    @staticmethod
    def size_bytes(num_steps: int, num_envs: int, network: Network) -> int:
        """Return what a slot takes at least, with the noise that it is acted with and evaluation.

        The value is computed of all rows at once, with all its hidden layers.
        """
        obs, action = network.obs_spec, network.action_spec
        obs_bytes = math.prod(obs.shape) * np.dtype(obs.dtype).itemsize
        each = 2 * obs_bytes + math.prod(action.shape) * np.dtype(action.dtype).itemsize
        each += 4 * 4 + 3 + 4 * (network.head_size + network.memory_size)
        twin = network.layers.twin
        if network.has_value and twin is not None:
            each += obs_bytes
            each += 4 * sum(twin.shapes[f"{name}.bias"][0] for name in twin.names["value"])
        return num_steps * (num_envs * each + _VIEWS_BYTES)


class Watch(Protocol):
    """Who wants to know of each step while it happens: a worker's counters."""

    def begins(self) -> None:
        """Environments are about to be stepped."""
        ...

    def ended(self, t: int) -> None:
        """Row `t` of the slot is written."""
        ...


class HalfWatch(Watch, Protocol):
    """Who wants to know of each half's steps."""

    def pauses(self) -> None:
        """The first half has been stepped, and the second one has not."""
        ...

    def has_room(self) -> bool:
        """Whether the row after the one that is being made may be made too."""
        ...


class Collector:
    """Steps one group of environments with a policy, row after row of a slot.

    With an `Actor`, which has no value function, `value`, `next_value` and `log_prob` stay 0.

    Args:
        envs: stepped side by side.
        policy: acts.
        seed: of the noise for acting, which is a function of (seed, step, environment).
        first_env: number of the first environment, counted over all workers.

    Attributes:
        vector_steps: steps of each environment so far.
        obs: (N, *obs_shape), what to act on next; None before the first reset.
        memory: float32, (N, M), what the policy remembers.
    """

    def __init__(
        self, envs: VectorEnv, policy: ActingPolicy, *, seed: int, first_env: int = 0
    ) -> None:
        self.envs = envs
        self.policy = policy
        self.vector_steps = 0
        self._first_env = first_env
        self.obs: Array | None = None
        self.memory = np.zeros((envs.num_envs, policy.memory_size), np.float32)
        self._noise = NoiseAhead(policy, seed=seed, num_envs=envs.num_envs, first_env=first_env)

    @property
    def has_begun(self) -> bool:
        """Whether the environments were reset."""
        return self.obs is not None

    def begin(self, *, first_episode: int | None = None) -> None:
        """Reset all environments.

        Raises:
            EnvironmentFailure: one failed at it.
        """
        with span("env_reset"):
            self.obs = self.envs.reset(first_episode)

    def resume(
        self,
        episodes: Sequence[RunningEpisode],
        memory: Array | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """Bring fresh environments to where others stood; gives those that began anew instead.

        Args:
            episodes: one for each environment.
            memory: (N, M), what the policy remembered there; None: it has no memory.
            on_step: is called before each step that is made again.

        Raises:
            EnvironmentFailure: an environment's `reset` failed.
        """
        with span("env_reset"):
            self.obs, restarted_envs = self.envs.resume(episodes, on_step)
        if memory is not None:
            self.memory = memory.copy()
            self.memory[restarted_envs] = 0.0
        return restarted_envs

    def collect(self, slot: Slot, start: int, stop: int, watch: Watch | None = None) -> None:
        """Fill rows `start` … `stop` − 1, all but `value`, `next_value` and `log_prob`.

        Raises:
            EnvironmentFailure: an environment raised, or gave NaN or a wrong shape.
            NonFiniteError: the policy's outputs were NaN or infinite.
        """
        policy, envs, tells_value = self.policy, self.envs, self.policy.tells_value
        assert self.obs is not None
        fragment = slot.fragment
        fragment.obs[start] = self.obs  # where it is already, most often
        memories, memory = slot.memories, None
        if memories:
            np.copyto(memories[start], self.memory)
        noise = self._noise.of(self.vector_steps, stop - start)
        rows = zip(slot.rows[start:stop], noise, strict=True)
        for t, ((obs, head, action, arrays), step_noise) in enumerate(rows, start):
            with span("act"):
                if memories:
                    memory = memories[t + 1]
                    np.copyto(memory, memories[t])
                policy.draw(obs, step_noise, head, action, memory)
                if tells_value:
                    fragment.value[t] = policy.last_value()
            if watch is not None:
                watch.begins()
            with span("env_step"):
                try:
                    envs.step(action, arrays)
                except EnvironmentFailure:
                    # What failed may have been given NaN, by itself or by the policy.
                    self._check_finite(slot, start, t)
                    raise
            if memory is not None:
                memory[arrays.terminated | arrays.truncated | ~arrays.valid] = 0.0
            if watch is not None:
                watch.ended(t)
        self._check_finite(slot, start, stop)
        self.obs = fragment.obs[stop] if stop < fragment.num_steps else fragment.last_obs
        if memories:
            self.memory = memories[stop]
        self.vector_steps += stop - start
        fragment.policy_version = policy.version

    def evaluate(self, slot: Slot, start: int, stop: int) -> None:
        """What the policy thinks of rows `start` … `stop` − 1, the last ones that were collected.

        V of all observations, and of what follows, in one batch: a step's own batch would cost as
        much as acting. Where acting has told it, V of the last observation is left.
        """
        policy = self.policy
        if not policy.has_value:
            return
        with span("evaluate"):
            noise = self._noise.of(self.vector_steps - (stop - start), stop - start)
            part = slot.fragment.rows(start, stop)
            part.log_prob[...] = policy.log_prob(slot.head[start:stop], noise, part.action)
            remembered: Array | None = None
            if slot.memories:
                remembered = remembered_after(policy, part)
                if not policy.tells_value:
                    flat = remembered.reshape(-1, policy.memory_size)
                    part.value[...] = policy.remembered_value(flat).reshape(part.value.shape)
                last_value = policy.value(part.last_obs, part.last_memory)
            elif policy.tells_value:
                last_value = policy.value(part.last_obs)
            else:
                obs = np.concatenate((part.obs, part.last_obs[None]))
                value = policy.value(obs.reshape(-1, *obs.shape[2:])).reshape(obs.shape[:2])
                part.value[...], last_value = value[:-1], value[-1]
            value_successors(policy, part, last_value, remembered)

    def _check_finite(self, slot: Slot, start: int, stop: int) -> None:
        """See `check_rows`."""
        check_rows(slot, start, stop, first_env=self._first_env, first_step=self.vector_steps)


class NoiseAhead:
    """Draws the noise that a group's actions are chosen by, many steps at once.

    Args:
        policy: whose noise it is.
        seed: of it.
        num_envs: N.
        first_env: number of the group's first environment, counted over all workers.
    """

    def __init__(self, policy: ActingPolicy, *, seed: int, num_envs: int, first_env: int) -> None:
        self._policy, self._seed = policy, seed
        self._num_envs, self._first_env = num_envs, first_env
        self._noise = np.empty((0, 0, 0), np.float32)
        self._start = 0

    def of(self, first_step: int, num_steps: int) -> Array:
        """(T, N, K), of steps counted from the start of the run."""
        start = first_step - self._start
        if not 0 <= start <= len(self._noise) - num_steps:
            with span("draw_noise"):
                self._noise = self._policy.draw_noise(
                    self._seed,
                    first_step=first_step,
                    num_steps=max(num_steps, NOISE_STEPS // num_steps * num_steps),
                    num_envs=self._num_envs,
                    first_env=self._first_env,
                )
            self._start, start = first_step, 0
        return self._noise[start : start + num_steps]


def value_successors(
    policy: ActingPolicy, part: Fragment, last_value: Array, remembered: Array | None
) -> None:
    """Write `next_value` of rows whose `value` is known.

    Args:
        policy: values what only a reset knows of.
        part: the rows.
        last_value: (N,), V of its `last_obs`.
        remembered: (T, N, M), see `remembered_after`; None: nothing is.
    """
    following, truncated = part.next_value, part.truncated & ~part.terminated
    following[:-1], following[-1] = part.value[1:], last_value
    # Where the environment was reset, the next observation is not the successor, and what is
    # remembered before it is not what was before the reset.
    if truncated.any():
        before = None if remembered is None else remembered[truncated]
        following[truncated] = policy.value(part.next_obs[truncated], before)
    following[part.terminated] = 0.0


def remembered_after(policy: ActingPolicy, part: Fragment) -> Array:
    """Return what was remembered after each step, (T, N, M), before any reset."""
    remembered = np.concatenate((part.memory[1:], part.last_memory[None]))
    is_reset = part.terminated | part.truncated | ~part.valid
    if is_reset.any():
        memory = part.memory[is_reset]
        policy.head(part.obs[is_reset], None, memory)
        remembered[is_reset] = memory
    return remembered


def check_rows(slot: Slot, start: int, stop: int, *, first_env: int, first_step: int) -> None:
    """Find NaN and infinity in rows `start` … `stop` − 1, and who made them first.

    Args:
        slot: of the rows.
        start: the first row.
        stop: the one after the last.
        first_env: number of the first environment, counted over all workers.
        first_step: of row `start`, counted from the start of the run.

    Raises:
        NonFiniteError: the policy did.
        EnvironmentFailure: an environment did.
    """
    acted = np.isfinite(slot.head[start : stop + 1])
    if not acted.all():
        step = int(acted.all(axis=(1, 2)).argmin())
        if np.isfinite(slot.fragment.obs[start + step]).all():
            raise NonFiniteError(
                f"the policy's outputs must be finite, but at step {first_step + step} "
                "they were not: lower the learning rate, and check the scale of the rewards"
            )
    check_finite(slot.fragment.rows(start, stop), first_env=first_env, first_step=first_step)
