"""The replay buffer of a run, from fragments to batches of tensors on the device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from hotloop.base.memory import require_memory
from hotloop.base.transfer import Uploads, to_host
from hotloop.envs import EnvSpec
from hotloop.errors import ConfigError, shortened
from hotloop.ops.schedules import as_schedule
from hotloop.policies import ObsScale
from hotloop.rollouts import Environments
from hotloop.training.hindsight import Hindsight
from hotloop.training.options import ReplayOptions
from hotloop.training.options.base import default_of
from hotloop.training.worker_weights import WorkerWeights
from hotloop.types import Array, Fragment

if TYPE_CHECKING:
    from hotloop.replay import Batch

# Batches drawn in one call. This saves a few µs for each, and more batches would leave the cache
# before they are used.
MAX_DRAWN = 8
_WORKER_WEIGHTS = "worker_weights"
# Options of hotloop's own buffer, which a user's source may read too.
BUFFER_OPTIONS = (
    "replay",
    "n_step",
    "clip_reward",
    "hindsight",
    "replay_from",
    "replay_device",
    "updates_per_launch",
)
_FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class ReplayBatch(NamedTuple):
    """Transitions that one update learns from.

    Attributes:
        obs: observations as the policy sees them, normalized if configured, (B, *obs_shape).
        action: the environments' actions, (B, *action_shape).
        reward: rewards summed over n steps, float32, (B,).
        next_obs: the true successors after n steps, (B, *obs_shape).
        discount: γ^m of the m ≤ n steps until `next_obs`, and 0 if the episode terminated, float32,
            (B,). The target is `reward + discount · V(next_obs)`. Truncation does not stop the
            bootstrap.
        importance: weights of the critics' losses, float32, (B,). They are 1 if batches are not
            drawn by priorities and all workers are equally fast.
        weight: weights of the policy's loss, float32, (B,), mean 1, which give slow and fast
            workers the same share. None for equal weights.
        memory: hidden states before the first step of S sequences, float32, (S, M), or None. Rows
            are then ordered step by step, with B = L · S, and `importance` is 0 in the burn-in and
            after an episode's end.
        begins: episode starts within sequences, bool, (B,), always False; None without `memory`.
        next_mask: the actions that `next_obs` allows, bool, (B, M); None without action masks.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    next_obs: Tensor
    discount: Tensor
    importance: Tensor
    weight: Tensor | None = None
    memory: Tensor | None = None
    begins: Tensor | None = None
    next_mask: Tensor | None = None

    @property
    def row_weight(self) -> Tensor | None:
        """Return `importance` of the rows of sequences, 0 in the burn-in; None for transitions."""
        return None if self.memory is None else self.importance

    @property
    def policy_weight(self) -> Tensor | None:
        """Return the weights of the policy's loss, (B,); None for equal weights."""
        return self.weight if self.memory is None else self.importance

    def next_sequence(self) -> tuple[Tensor, Tensor]:
        """Return observations and episode starts of sequences that are one step longer.

        Within an episode, a step's next observation is the following step's observation. The first
        observation and all next observations therefore form one sequence. Outputs for `next_obs`
        are those of all rows but the first S.

        Returns:
            ((L + 1) · S, *obs_shape), and bool, ((L + 1) · S,).
        """
        assert self.memory is not None
        assert self.begins is not None
        count = len(self.memory)
        obs = torch.cat([self.obs[:count], self.next_obs])
        return obs, torch.cat([self.begins[:count], self.begins])


class ReplaySource(Protocol):
    """The data that off-policy updates learn from: a replay buffer, or a source of your own.

    A class that inherits from it needs the first three methods.

    Attributes:
        options: the names in `BUFFER_OPTIONS` that it reads. The others must have their defaults.
        max_drawn: the maximum number of batches of one `draw`.
        by_priority: whether `update_priorities` receives the TD errors of each batch.
        gamma: γ of the next batches' `discount`, set by the loop before it draws.
    """

    options: ClassVar[tuple[str, ...]] = ()
    max_drawn: int = 1
    by_priority: bool = False
    gamma: float = 1.0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of transitions to draw from. Learning waits for one batch."""

    @abstractmethod
    def store(self, fragment: Fragment) -> object:
        """Add a fragment's transitions."""

    @abstractmethod
    def draw(self, count: int, scale: ObsScale | None) -> tuple[Sequence[ReplayBatch], Any]:
        """Return batches with scaled observations, and their transitions' numbers, (count · B,)."""

    def update_priorities(self, index: Any, td_error: Tensor) -> None:
        """Set new priorities of transitions by |TD error|, (B,)."""

    def cut(self, env: int | None = None) -> None:
        """Start a new episode in an environment, or in all, without a final step."""

    def stored_rows(self, index: Any) -> Mapping[str, Array]:
        """Return the fields of transitions, to report a batch that gave NaN."""
        return {}

    def counters(self) -> tuple[int, int]:
        """Return the transitions added and the batches drawn so far, for a checkpoint."""
        return 0, 0

    def to_arrays(self) -> dict[str, Array]:
        """Return arrays for a checkpoint with the file of `save`."""
        return {}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `to_arrays`."""

    def save(self, path: Path) -> None:
        """Write the transitions to a file, if `save_replay` is set."""
        path.touch()

    def restore(self, path: Path) -> None:
        """Read the file of `save`."""

    def start_empty(self, num_samples: int) -> None:
        """Continue a run from a checkpoint without a file of `save`, after this many batches."""

    def close(self) -> None:
        """Close environments and files that the source has opened, at the end of the run."""


def check_source(source: Any, config: ReplayOptions, name: str) -> None:
    """Check the source of the algorithm `name`.

    Raises:
        ConfigError: it is no source, or an option has no effect on it.
    """
    if not hasattr(source, "options"):
        raise ConfigError(
            f"`source` of '{name}' must return an object of a class that inherits `ReplaySource`, "
            f"got {shortened(repr(source))}"
        )
    for option in BUFFER_OPTIONS:
        value, default = config.value_of(option), default_of(type(config), option)
        if value != default and option not in source.options:
            raise ConfigError(
                f"`{option}` {value!r} has no effect on the source of '{name}': leave it at "
                f"{default!r}, or add it to the source's `options`"
            )


class StoredTransitions(ReplaySource):
    """The transitions of a run's fragments in a buffer, on the host or on a device.

    Args:
        config: the run's configuration.
        envs: the environments that produce the transitions.
        buffer: a `ReplayBuffer`, or a `DeviceReplay`.
        memory_size: M, the size of the acting network's hidden state.

    Attributes:
        buffer: the buffer.
        gamma: γ of the next batches, if each sums the rewards of one step.
        by_priority: whether batches are drawn by TD error.
    """

    def __init__(
        self, config: ReplayOptions, envs: Environments, buffer: Any, memory_size: int = 0
    ) -> None:
        self.buffer = buffer
        self.gamma = as_schedule(config.gamma)(0.0)
        self.by_priority = config.replay in ("prioritized", "rank")
        self._num_envs, self._clip_reward = envs.num_envs, config.clip_reward
        self._has_masks = envs.action_spec.is_masked
        self._names = (*_FIELDS, *(["memory"] if memory_size else ()))
        if self._has_masks:
            self._names += ("mask", "next_mask")

    def __len__(self) -> int:
        return len(self.buffer)

    def counters(self) -> tuple[int, int]:
        """Return the transitions added and the batches drawn so far."""
        return self.buffer.num_added, self.buffer.num_samples

    def start_empty(self, num_samples: int) -> None:
        """Continue without the stored transitions, after this number of batches."""
        self.buffer.num_samples = num_samples  # β continues

    def save(self, path: Path) -> None:
        """Write the buffer to a file."""
        self.buffer.save(path)

    def restore(self, path: Path) -> None:
        """Restore the buffer from a file of `save`."""
        self.buffer.restore(path)

    def store(self, fragment: Fragment) -> int:
        """Add a fragment's transitions, and return the number of the first one."""
        first = fragment.first_env
        for env in fragment.restarted_envs:
            self.cut(first + env)
        flat: dict[str, Any] = {}
        for name in self._names:
            array = getattr(fragment, name)
            flat[name] = array.reshape(-1, *array.shape[2:])
        if self._has_masks:
            for prefix in ("", "next_"):
                parts = {part: flat.pop(f"{prefix}{part}") for part in ("obs", "mask")}
                flat[f"{prefix}obs"] = parts
        if self._clip_reward is not None:  # copy, since reports use the fragment
            flat["reward"] = flat["reward"].clip(-self._clip_reward, self._clip_reward)
        env = None
        if fragment.num_envs != self._num_envs:
            env = np.tile(np.arange(first, first + fragment.num_envs), fragment.num_steps)
        valid = None if fragment.all_valid else fragment.valid.reshape(-1)
        first_number = self.buffer.num_added
        self.buffer.extend(**flat, env=env, valid=valid)
        return first_number

    def cut(self, env: int | None = None) -> None:
        """Start a new episode in an environment, or in all, without a final step."""
        self.buffer.cut(env)

    def stored_rows(self, index: Any) -> dict[str, Array]:
        """Return the fields of those transitions that are still stored."""
        numbers = to_host(index)
        present = numbers[numbers >= self.buffer.num_added - len(self.buffer)]
        rows = self._without_masks(self.buffer.get(present)) if len(present) else {}
        return {name: rows[name] for name in rows}

    def _without_masks(self, batch: Any) -> Any:
        """Return a batch whose observations are arrays. The masks of `next_obs` become a field."""
        if not (self._has_masks and isinstance(batch["obs"], dict)):
            return batch
        arrays = {name: batch[name] for name in batch}
        next_mask = batch.next_obs["mask"]
        parts = {name: arrays[name]["obs"] for name in ("obs", "next_obs")}
        return type(batch)({**arrays, **parts, "next_mask": next_mask})


class Replay(StoredTransitions):
    """The replay buffer of a run on the host, with weights of workers and hindsight goals.

    Args:
        config: the configuration of the run.
        envs: the environments that produce the transitions.
        device: the device of the batches.
        env_spec: the specification of the environments.
        memory_size: M, the size of the acting network's hidden state.

    Attributes:
        buffer: the transitions.
        max_drawn: the maximum number of batches drawn in one call.
        by_priority: whether batches are drawn by TD error.

    Raises:
        ConfigError: the transitions of this run don't fit into memory.
    """

    options = ("replay", "n_step", "clip_reward", "hindsight")

    def __init__(
        self,
        config: ReplayOptions,
        envs: Environments,
        device: torch.device,
        env_spec: EnvSpec,
        memory_size: int = 0,
    ) -> None:
        from hotloop.replay import (
            Proportional,
            ReplayBuffer,
            Uniform,
        )  # imported here, since it needs Numba and `ReplayOnDevice` does not

        sampler = config.sampler()
        buffer = ReplayBuffer.for_env(
            envs,
            config.buffer_size,
            sampler=sampler,
            weight_from=weight_source(config),
            n_step=config.n_step,
            gamma=as_schedule(config.gamma)(0.0),
            seed=config.seed,
            memory_size=memory_size,
        )
        super().__init__(config, envs, buffer, memory_size)
        self._has_sequences = memory_size > 0
        # The buffer allocates memory as it fills, and a short run does not fill it.
        num_stored = min(config.buffer_size, config.total_timesteps)
        require_memory(
            self.buffer.memory()["total"] * num_stored // config.buffer_size,
            f"the {num_stored:,} transitions of the replay buffer",
            "lower `buffer_size`",
        )
        # Draw these batches one by one: priorities change with each update, and draws without
        # replacement must be distinct only within one batch.
        is_independent = isinstance(sampler, (Uniform, Proportional)) and sampler.replacement
        self.max_drawn = MAX_DRAWN if is_independent else 1
        self._weights: WorkerWeights | None = None
        if config.schedule == "async":
            self._weights = WorkerWeights(config.buffer_size, config.num_groups)
        self._hindsight: Hindsight | None = None
        if config.hindsight is not None:
            self._hindsight = Hindsight(config, env_spec, envs.obs_spec, envs.num_envs)
        self._is_saved = config.save_replay
        self._batch_size = config.batch_size
        self._n_step = config.n_step
        self._device = device
        self._samples: dict[int, tuple[Batch, dict[str, Array], list[ReplayBatch]]] = {}
        self._uploads = Uploads(device)
        self._uploaded_arrays: dict[int, list[tuple[str, Tensor, Array]]] = {}

    def store(self, fragment: Fragment) -> int:
        """Add a fragment's transitions, their goals and their worker."""
        first_number = super().store(fragment)
        if self._hindsight is not None:
            self._hindsight.add(fragment, first_number)
        if self._weights is not None:
            worker = fragment.first_env // fragment.num_envs
            self._weights.add(worker, first_number, self.buffer.num_added - first_number)
        return first_number

    def cut(self, env: int | None = None) -> None:
        """Start a new episode in an environment, or in all, without a final step."""
        super().cut(env)
        if self._hindsight is not None:
            self._hindsight.cut(env)

    def draw(self, count: int, scale: ObsScale | None = None) -> tuple[list[ReplayBatch], Array]:
        """Draw `count` batches in one call.

        Args:
            count: the number of batches.
            scale: the scale of the raw stored observations, None in all calls or in none.

        Returns:
            The batches, in memory that the next call with this count overwrites, and their
            transition numbers, (count · B,).
        """
        # Draw into the arrays of this count.
        size = count * self._batch_size
        sample = self._samples.get(count)
        if sample is None:
            sample = self._samples[count] = self._make_sample(
                self.buffer.sample(size), count, is_scaled=scale is not None
            )
        else:
            self.buffer.sample(size, out=sample[0])
        batch, arrays, batches = sample
        batch = self._without_masks(batch)
        # Relabel, scale and weight them.
        if self._hindsight is not None:
            self._hindsight.relabel(batch)
        if scale is not None:
            scale.apply(self._flat_rows(batch.obs), arrays["obs"])
            scale.apply(self._flat_rows(batch.next_obs), arrays["next_obs"])
        if self._n_step == 1:  # rewards of more steps are stored with their discount
            np.logical_not(self._flat_rows(batch.terminated), out=arrays["discount"])
            arrays["discount"] *= self.gamma
        if self._has_sequences:
            np.copyto(arrays["importance"], self._flat_rows(batch.mask))
        index = batch.index.reshape(-1)
        if self._weights is not None:
            arrays["weight"][:] = self._weights.weights(index)
            if self._has_sequences:
                arrays["importance"] *= arrays["weight"]
            elif _has_importance(batch):
                np.multiply(arrays["weight"], batch.importance, out=arrays["importance"])
            else:
                arrays["importance"][:] = arrays["weight"]
        if self._has_sequences:  # give weights a mean of 1 over all rows
            arrays["importance"] /= arrays["importance"].mean()
        if copies := self._uploaded_arrays[count]:
            with self._uploads as uploads:
                for name, device_tensor, array in copies:
                    uploads.put(name, device_tensor, array)
        return batches, index

    def update_priorities(self, index: Array, td_error: Tensor) -> None:
        """Set new priorities of transitions by TD error."""
        self.buffer.update_weights(index, to_host(td_error))

    def to_arrays(self) -> dict[str, Array]:
        """Return the arrays for a checkpoint with the buffer."""
        if not self._is_saved:
            return {}
        arrays = {} if self._weights is None else {_WORKER_WEIGHTS: self._weights.to_array()}
        return arrays | ({} if self._hindsight is None else self._hindsight.to_arrays())

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore the output of `to_arrays`."""
        if self._weights is not None and _WORKER_WEIGHTS in arrays:
            self._weights.load(arrays[_WORKER_WEIGHTS])
        if self._hindsight is not None:
            self._hindsight.load(arrays)

    def close(self) -> None:
        """Close the environment that judges goals."""
        if self._hindsight is not None:
            self._hindsight.close()

    def _make_sample(
        self, batch: Batch, count: int, *, is_scaled: bool
    ) -> tuple[Batch, dict[str, Array], list[ReplayBatch]]:
        """Return a buffer's batch, the arrays to fill with each draw, and their tensor batches."""
        buffer_batch, batch = batch, self._without_masks(batch)
        obs, next_obs = self._flat_rows(batch.obs), self._flat_rows(batch.next_obs)
        num_rows = len(obs)
        discount = np.empty(num_rows, np.float32) if self._n_step == 1 else batch.discount
        if self._weights is None and _has_importance(batch):
            importance = batch.importance
        else:
            importance = np.ones(num_rows, np.float32)
        if is_scaled:
            obs, next_obs = np.empty((2, *obs.shape), np.float32)
        fields = {
            "obs": obs,
            "action": self._flat_rows(batch.action),
            "reward": self._flat_rows(batch.reward),
            "next_obs": next_obs,
            "discount": discount,
            "importance": importance,
        }
        if self._weights is not None:
            fields["weight"] = np.ones(num_rows, np.float32)
        if self._has_sequences:
            fields["memory"] = batch.memory
            fields["begins"] = np.zeros(num_rows, np.bool_)
        if self._has_masks:
            fields["next_mask"] = self._flat_rows(batch.next_mask)
        tensors = self._uploads.send(fields)
        self._uploaded_arrays[count] = []
        if self._device.type != "cpu":  # `draw` copies the arrays to the tensors
            self._uploaded_arrays[count] = [(name, x, fields[name]) for name, x in tensors.items()]
        chunks = {name: x.chunk(count) for name, x in tensors.items()}
        batches = [ReplayBatch(**{name: x[k] for name, x in chunks.items()}) for k in range(count)]
        return buffer_batch, fields, batches

    def _flat_rows(self, steps: Array) -> Array:
        """Return sequences, (L, S, …), as rows, (L · S, …), and rows unchanged."""
        return steps.reshape(-1, *steps.shape[2:]) if self._has_sequences else steps


def weight_source(config: ReplayOptions) -> Any:
    """Return the kind of return that weights transitions, or None for other samplers."""
    is_proportional = config.replay == "proportional"
    return config.replay_weight_from or "episode_return" if is_proportional else None


def _has_importance(batch: Batch) -> bool:
    return "importance" in batch.keys()  # noqa: SIM118  (its items are attributes)
