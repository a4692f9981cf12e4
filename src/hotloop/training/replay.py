"""A training's replay buffer: fragments in, batches of tensors on the device out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hotloop.ops.schedules import as_schedule
from hotloop.policies import ObsScale
from hotloop.replay.storage.device import Uploads
from hotloop.rollouts import Environments
from hotloop.system.memory import need_memory
from hotloop.training.goals import Hindsight
from hotloop.training.worker_weights import WorkerWeights
from hotloop.types import Array, Fragment

if TYPE_CHECKING:
    from hotloop.replay import Batch as Drawn

# Updates whose batches are drawn in one call: it saves a few µs each, and more would leave the
# cache before they are used.
MAX_DRAWN = 8
_WORKERS = "worker_weights"


class Batch(NamedTuple):
    """Transitions that one update learns from.

    Attributes:
        obs: (B, *obs_shape), as the policy sees it: normalised where that is asked for.
        action: (B, *action_shape), as the environment took it.
        reward: float32, (B,), of n steps.
        next_obs: (B, *obs_shape), n steps later, the true successor.
        discount: float32, (B,): 0 where the episode terminated, else 1, or γⁿ of n > 1 steps: the
            target is `reward + γ · discount · V(next_obs)` with the γ of `hyper_of`, and
            truncation does not stop the bootstrap.
        importance: float32, (B,), by which the critics' losses are weighed; 1 where batches are not
            drawn by priorities and all workers are equally fast.
        weight: float32, (B,), by which the policy's loss is weighed, so that slow workers count as
            much as fast ones, 1 on average; None: all the same.
        memory: of a network with memory, float32, (S, M), what it remembered before the first step
            of S sequences, whose rows come step by step: B is L · S; else None. `importance` is
            0 in the burn-in and after an episode's end.
        begins: bool, (B,), False: no episode begins within a sequence; else None.
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


class Replay:
    """The buffer of a run, and who wrote what of it.

    Args:
        config: the run's.
        envs: whose transitions it holds.
        device: where batches are wanted.
        environment: an id or a factory of them.
        memory_size: M, how many numbers the acting network remembers.

    Attributes:
        buffer: the transitions.
        max_drawn: batches that may be drawn in one call.
        by_priority: whether it draws by TD error.

    Raises:
        ConfigError: what it comes to hold in this run doesn't fit into memory.
    """

    def __init__(
        self,
        config: Any,
        envs: Environments,
        device: torch.device,
        environment: str | Callable[..., Any],
        memory_size: int = 0,
    ) -> None:
        from hotloop.replay import Proportional, ReplayBuffer, Uniform  # a device's needs no Numba

        sampler, weight_from = config.sampler(), None
        if config.replay == "proportional":
            weight_from = config.replay_weight_from or "episode_return"
        self.buffer = ReplayBuffer.for_env(
            envs,
            config.buffer_size,
            sampler=sampler,
            weight_from=weight_from,
            n_step=config.n_step,
            gamma=as_schedule(config.gamma)(0.0),
            seed=config.seed,
            memory_size=memory_size,
        )
        self._has_sequences = memory_size > 0
        # It takes its memory as it fills, which a short run does not do.
        num_kept = min(config.buffer_size, config.total_timesteps)
        need_memory(
            self.buffer.memory()["total"] * num_kept // config.buffer_size,
            f"the {num_kept:,} transitions that the replay buffer comes to hold",
            "lower `buffer_size`",
        )
        # Priorities change with each update, and what is drawn without replacement must differ
        # within one batch only.
        is_free = isinstance(sampler, (Uniform, Proportional)) and sampler.replacement
        self.max_drawn = MAX_DRAWN if is_free else 1
        self.by_priority = config.replay in ("prioritized", "rank")
        self._weights: WorkerWeights | None = None
        if config.schedule == "async":
            self._weights = WorkerWeights(config.buffer_size, config.num_groups)
        self._hindsight: Hindsight | None = None
        if config.hindsight is not None:
            self._hindsight = Hindsight(config, environment, envs.obs_spec, envs.num_envs)
        self._is_kept = config.save_replay
        self._batch_size = config.batch_size
        self._num_envs = envs.num_envs
        self._n_step = config.n_step
        self._clip_reward = config.clip_reward
        self._device = device
        self._drawn: dict[int, tuple[Drawn, dict[str, Array], list[Batch]]] = {}
        self._uploads = Uploads(device)
        self._copies: dict[int, list[tuple[str, Tensor, Array]]] = {}

    def store(self, fragment: Fragment) -> None:
        """Add a fragment's transitions."""
        flat = {
            name: array.reshape(-1, *array.shape[2:])
            for name, array in (
                ("obs", fragment.obs),
                ("action", fragment.action),
                ("reward", fragment.reward),
                ("next_obs", fragment.next_obs),
                ("terminated", fragment.terminated),
                ("truncated", fragment.truncated),
                *([("memory", fragment.memory)] if self._has_sequences else []),
            )
        }
        if self._clip_reward is not None:  # a copy: the fragment's are what is reported
            flat["reward"] = flat["reward"].clip(-self._clip_reward, self._clip_reward)
        first = fragment.first_env
        for env in fragment.restarted_envs:
            self.cut(first + env)
        env = None
        if fragment.num_envs != self._num_envs:
            env = np.tile(np.arange(first, first + fragment.num_envs), fragment.num_steps)
        valid = fragment.valid.reshape(-1)
        before = self.buffer.num_added
        self.buffer.extend(**flat, env=env, valid=None if valid.all() else valid)
        if self._hindsight is not None:
            self._hindsight.add(fragment, before)
        if self._weights is not None:
            worker = first // fragment.num_envs
            self._weights.add(worker, before, self.buffer.num_added - before)

    def cut(self, env: int | None = None) -> None:
        """Have what comes next of an environment, or of all, follow on nothing."""
        self.buffer.cut(env)
        if self._hindsight is not None:
            self._hindsight.cut(env)

    def draw(self, count: int, scale: ObsScale | None = None) -> tuple[list[Batch], Array]:
        """Draw `count` batches in one call.

        Args:
            count: of batches.
            scale: what observations become, which are stored raw: always one, or always None.

        Returns:
            The batches, in memory that the next call with this count overwrites, and the numbers of
            their transitions, (count · B,).
        """
        size = count * self._batch_size
        kept = self._drawn.get(count)
        if kept is None:
            kept = self._drawn[count] = self._with_tensors(
                self.buffer.sample(size), count, is_scaled=scale is not None
            )
        else:
            self.buffer.sample(size, out=kept[0])
        drawn, own, batches = kept
        if self._hindsight is not None:
            self._hindsight.relabel(drawn)
        if scale is not None:
            scale.apply(self._rows(drawn.obs), own["obs"])
            scale.apply(self._rows(drawn.next_obs), own["next_obs"])
        if self._n_step == 1:
            np.logical_not(self._rows(drawn.terminated), out=own["discount"])
        if self._has_sequences:
            np.copyto(own["importance"], self._rows(drawn.mask))
        index = drawn.index.reshape(-1)
        if self._weights is not None:
            own["weight"][:] = self._weights.weights(index)
            if self._has_sequences:
                own["importance"] *= own["weight"]
            elif _has_importance(drawn):
                np.multiply(own["weight"], drawn.importance, out=own["importance"])
            else:
                own["importance"][:] = own["weight"]
        if self._has_sequences:  # 1 on average, over all rows
            own["importance"] /= own["importance"].mean()
        if copies := self._copies[count]:
            with self._uploads as uploads:
                for name, there, array in copies:
                    uploads.put(name, there, array)
        return batches, index

    def update_priorities(self, index: Array, td_error: Tensor) -> None:
        """Give transitions that were learned from their new priorities."""
        self.buffer.update_weights(index, td_error.cpu().numpy())

    def kept(self, index: Array) -> dict[str, Array]:
        """Return those of some transitions that are still there, by field."""
        present = index[index >= self.buffer.num_added - len(self.buffer)]
        batch = self.buffer.get(present) if len(present) else {}
        return {name: batch[name] for name in batch}

    def to_arrays(self) -> dict[str, Array]:
        """For a checkpoint that the buffer is kept with."""
        if not self._is_kept:
            return {}
        arrays = {} if self._weights is None else {_WORKERS: self._weights.to_array()}
        return arrays | ({} if self._hindsight is None else self._hindsight.to_arrays())

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `to_arrays`."""
        if self._weights is not None and _WORKERS in arrays:
            self._weights.load(arrays[_WORKERS])
        if self._hindsight is not None and self._is_kept:
            self._hindsight.load(arrays)

    def _with_tensors(
        self, drawn: Drawn, count: int, *, is_scaled: bool
    ) -> tuple[Drawn, dict[str, Array], list[Batch]]:
        """Tensors of what was drawn, and of arrays of our own that are filled with each draw."""
        obs, next_obs = self._rows(drawn.obs), self._rows(drawn.next_obs)
        num_rows = len(obs)
        discount = np.empty(num_rows, np.float32) if self._n_step == 1 else drawn.discount
        if self._weights is None and _has_importance(drawn):
            importance = drawn.importance
        else:
            importance = np.ones(num_rows, np.float32)
        if is_scaled:
            obs, next_obs = np.empty((2, *obs.shape), np.float32)
        fields = {
            "obs": obs,
            "action": self._rows(drawn.action),
            "reward": self._rows(drawn.reward),
            "next_obs": next_obs,
            "discount": discount,
            "importance": importance,
        }
        if self._weights is not None:
            fields["weight"] = np.ones(num_rows, np.float32)
        if self._has_sequences:
            fields["memory"] = drawn.memory
            fields["begins"] = np.zeros(num_rows, np.bool_)
        here = {name: torch.from_numpy(x) for name, x in fields.items()}
        there = here
        if self._device.type != "cpu":  # filled by the copies of each draw, this one's too
            there = {name: torch.empty_like(x, device=self._device) for name, x in here.items()}
        self._copies[count] = [
            (name, there[name], fields[name]) for name in here if there is not here
        ]
        chunks = {name: x.chunk(count) for name, x in there.items()}
        batches = [Batch(**{name: x[k] for name, x in chunks.items()}) for k in range(count)]
        return drawn, fields, batches

    def _rows(self, steps: Array) -> Array:
        """Return (L · S, …), from (L, S, …) of sequences; else what is given, which are rows."""
        return steps.reshape(-1, *steps.shape[2:]) if self._has_sequences else steps


def _has_importance(drawn: Drawn) -> bool:
    return "importance" in drawn.keys()  # noqa: SIM118  (its items are attributes)
