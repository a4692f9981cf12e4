"""The replay buffer: stores transitions, and draws batches uniformly or by weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hotloop.base.signals import delayed_interrupt
from hotloop.errors import ConfigError, ReplayError
from hotloop.replay import saving
from hotloop.replay.batch import Batch, BatchBlock, BatchBlockPool
from hotloop.replay.checks import (
    as_column,
    check_options,
    missing_entry_error,
    positive_int,
    too_few_error,
    valid_beta,
)
from hotloop.replay.native.entry_points import (
    REFUSED_REWARD,
    REFUSED_WEIGHT,
    cut_envs,
    draw_batch,
    gather_batch,
    gather_entries,
    write_batch,
    write_one,
    write_weights,
)
from hotloop.replay.samplers import Prioritized, RankBased, Sampler, Sequences, Uniform
from hotloop.replay.staging import Staging, reward_error
from hotloop.replay.storage.allocator import Allocator
from hotloop.replay.storage.host_store import HostStore
from hotloop.replay.storage.layout import RowLayout, arrange_fields, parse_fields
from hotloop.timing import span

WeightFrom = Literal["episode_return", "return_so_far", "return_to_go"]


class ReplayBuffer:
    """A ring buffer of the last `capacity` transitions.

    Transitions are numbered from 0 in the order of storage. `batch.index` contains these numbers,
    so that `update_weights` detects entries that were overwritten in the meantime.

    One thread may write while another one samples and updates weights.

    Args:
        capacity: number of transitions. In a full buffer, a new transition replaces the oldest.
        fields: shape and dtype of each array of a transition: `{"obs": ((17,), np.float32),
            "reward": ((), np.float32), …}`. Dictionaries may be nested.
        sampler: `Uniform` (the default), `Proportional`, `Prioritized`, `RankBased`, or
            `Sequences`, which needs a field `terminated` (bool).
        seed: seed of the sampling; None: a random one.
        num_envs: number of environments, each with its own episodes.
        share_next_obs: whether to store a `next_obs` only once if it equals, byte for byte, the
            `obs` of its environment's next transition. Pass the environments to `add`.
        n_step: n. Rewards become Σ_{k<m} γ^k r_{t+k} over m ≤ n steps up to the end of the episode.
            `next_obs`, `terminated` and `truncated` are those after the last of these steps, and
            `discount` is γ^m, or 0 after termination: the target is `reward + discount ·
            V(next_obs)`. A transition can be drawn once its window is complete. Needs `reward`
            (float32), `terminated` (bool), `obs` and `next_obs`, which are shared.
        gamma: γ of `n_step` and of `return_to_go`.
        weight_from: return that weights a transition. `episode_return`: its episode's total;
            `return_so_far`: up to and including this step; `return_to_go`: from this step on,
            discounted by γ. Needs `reward` (float32) and `terminated` (bool).
        running_weight: weight of a transition until its episode has ended, with `episode_return`
            and `return_to_go`: a number, or "mean", the mean of all weights before the call that
            stored the transition.
        frame_stacks: shared fields whose first axis is a stack of frames, for example `("obs",)`.
            The buffer stores each frame once.
        next_step_autoreset: whether `extend` skips the row after an episode's end, which is the
            reset step of such a vector environment. `for_env` sets it from the environment.
        memory_map: directory for buffers larger than memory. Rows and frames are stored in unnamed
            files there, which vanish with the process.

    Raises:
        ConfigError: options are invalid or incompatible, or there is not enough memory.
        OutputError: the disk has no room for the files.

    ```python
    buffer = ReplayBuffer(
        capacity=1_000_000,
        fields={"obs": ((17,), np.float32), "action": ((6,), np.float32)},
        sampler=Proportional(replacement=False),
        seed=0,
    )
    buffer.add(obs=obs, action=action, weight=episode_return)
    batch = buffer.sample(256)  # batch.obs is (256, 17)
    buffer.update_weights(batch.index, new_weights)
    ```
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Any],
        *,
        sampler: Sampler | None = None,
        seed: int | None = None,
        num_envs: int = 1,
        share_next_obs: bool = False,
        n_step: int = 1,
        gamma: float = 0.99,
        weight_from: WeightFrom | None = None,
        running_weight: float | Literal["mean"] = "mean",
        frame_stacks: Sequence[str] = (),
        next_step_autoreset: bool = False,
        memory_map: str | os.PathLike[str] | None = None,
    ) -> None:
        self.sampler: Sampler = sampler if sampler is not None else Uniform()
        if not isinstance(self.sampler, Sampler):
            raise ConfigError(
                "`sampler` must be Uniform(), Proportional(), Prioritized(), RankBased() or "
                f"Sequences(length=…), got {sampler!r}"
            )
        n_step = positive_int("n_step", n_step)
        self.settings: dict[str, Any] = {
            "capacity": positive_int("capacity", capacity),
            "num_envs": positive_int("num_envs", num_envs),
            "share_next_obs": bool(share_next_obs) or n_step > 1,
            "n_step": n_step,
            "gamma": gamma,
            "weight_from": weight_from,
            "running_weight": running_weight,
            "frame_stacks": [frame_stacks] if isinstance(frame_stacks, str) else list(frame_stacks),
            "next_step_autoreset": bool(next_step_autoreset),
        }
        # Fields and layout.
        self.fields = parse_fields(fields)
        check_options(self.settings, self.fields, self.sampler)
        needs_episode = weight_from in ("episode_return", "return_to_go")
        self.layout: RowLayout = arrange_fields(
            self.fields,
            share_next_obs=self.settings["share_next_obs"],
            frame_stacks=self.settings["frame_stacks"],
            n_step=n_step,
            has_raw_reward=weight_from == "return_to_go" and n_step > 1,
            has_previous=needs_episode and num_envs > 1,
            in_sequences=isinstance(self.sampler, Sequences),
        )
        try:
            random = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"`seed` must be a whole number from 0 on, got {seed!r}") from error
        # Memory.
        self._lock = threading.RLock()
        self._memory_map = memory_map
        self.num_samples = 0  # number of batches drawn so far
        self._replacement = bool(self.sampler.handle_settings()["replacement"])
        self._num_envs = self.settings["num_envs"]
        self._staging = Staging(
            self.layout, self.sampler, self.settings, accepts_weights=weight_from is None
        )
        try:
            store = HostStore(
                self.layout, self.settings, self.sampler.handle_settings(), Allocator(memory_map)
            )
        except MemoryError as error:
            raise ConfigError(
                f"there is no memory for {self.capacity:,} transitions of {self.layout.row_bytes} "
                f"bytes and more ({error}): lower `capacity`, or set `memory_map` to a directory"
            ) from error
        self._bind(store)
        self._store.handle["random"] = random

    @classmethod
    def for_env(
        cls,
        env: Any,
        capacity: int,
        *,
        num_envs: int | None = None,
        memory_size: int = 0,
        **options: Any,
    ) -> ReplayBuffer:
        """Return a buffer for an environment's transitions, with shared `next_obs`.

        Its fields are `obs`, `action`, `reward`, `next_obs`, `terminated` and `truncated`. Real
        numbers are stored as float32, bytes and integers unchanged, dictionary and tuple spaces as
        dictionaries. Frames of Gymnasium's `FrameStackObservation` are stored once.

        Args:
            env: a Gymnasium environment or vector environment, or a result of `hotloop.make_vec`.
            capacity: number of transitions.
            num_envs: number of environments, by default that of `env`.
            memory_size: M. If greater than 0, the buffer also has a field `memory`, float32, (M,),
                the hidden state of a recurrent network before the transition.
            options: options of the class.

        Raises:
            SpaceError: arrays of a fixed shape can't represent a space.
            ConfigError: see the class.
        """
        from hotloop.replay.adapters import describe_env

        spec = describe_env(env, positive_int("memory_size", memory_size) if memory_size else 0)
        options.setdefault("next_step_autoreset", spec.next_step_autoreset)
        if options.setdefault("share_next_obs", True) or options.get("n_step", 1) > 1:
            options.setdefault("frame_stacks", spec.frame_stacks)
        num_envs = spec.num_envs if num_envs is None else num_envs
        return cls(capacity, spec.fields, num_envs=num_envs, **options)

    def __len__(self) -> int:
        """Return the number of transitions that can be drawn."""
        return int(self._store.handle["size"])

    @property
    def capacity(self) -> int:
        """Maximum number of transitions."""
        return self.settings["capacity"]

    @property
    def num_added(self) -> int:
        """Number of transitions stored so far. The newest one has this number minus 1."""
        return int(self._store.handle["added"])

    @property
    def counters(self) -> dict[str, int]:
        """Counters of avoidable events.

        `filled_uniformly`: entries drawn uniformly because too few entries had weight.
        `stale_updates`: weights for entries that had been overwritten.
        """
        return {
            "filled_uniformly": int(self._store.handle["filled"]),
            "stale_updates": int(self._store.handle["stale"]),
        }

    def memory(self) -> dict[str, int]:
        """Return sizes in bytes by purpose, and the `total`. Memory for batches is not included."""
        sizes = self._store.sizes()
        sizes["work"] += self._staging.size_bytes()
        return {**sizes, "total": sum(sizes.values())}

    # Writing.

    def add(self, *, weight: float | None = None, env: int = 0, **fields: Any) -> None:
        """Store one transition.

        Args:
            weight: weight of the transition. `Proportional` needs it. The default of `Prioritized`
                and `RankBased` is the greatest priority.
            env: number of its environment.
            fields: array or number of each field, in the declared shape.

        Raises:
            ShapeError: a field is missing, unknown, or of another shape or kind of numbers.
            ReplayError: the weight is NaN or infinite, or a negative priority.
        """
        with self._lock:
            staging = self._staging
            staging.put_one(fields)
            if weight is None and not staging.needs_weight:
                weight = nan
            elif type(weight) is not float or not staging.takes_weight or weight != weight:
                weight = staging.check_weight(weight)
            if type(env) is not int or not 0 <= env < self._num_envs:
                env = staging.check_env(env)
            while (written := write_one(self._address, env, weight)) == 0:
                self._store.grow()
            if written == REFUSED_WEIGHT:
                raise staging.weight_error(weight, 0)
            if written == REFUSED_REWARD:
                raise reward_error(0)

    def extend(
        self,
        *,
        weight: ArrayLike | None = None,
        env: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        **fields: Any,
    ) -> None:
        """Store B transitions in the order of time.

        Args:
            weight: (B,), weights as in `add`.
            env: (B,), environment of each transition. The default is 0, 1, … N − 1, 0, 1, …, and B
                must be a multiple of N.
            valid: bool, (B,), False for rows to skip, such as the reset steps of a vector
                environment with next-step autoreset (`for_env` detects these). `Sequences` end
                there, as with `cut`.
            fields: array of each field, (B, *shape).

        Raises:
            ShapeError: a field is missing, unknown, or of another shape or kind of numbers.
            ReplayError: a weight is NaN or infinite, or a negative priority. Nothing is stored.
        """
        with self._lock:
            staging = self._staging
            count, rows, envs, weights = staging.put(fields, weight, env, valid)
            row = 0
            while row < count:
                row = write_batch(self._address, rows, envs, weights, row, count)
                if row < 0:
                    raise reward_error(-1 - row)
                if row < count:
                    self._store.grow()
            staging.release()

    def cut(self, env: int | None = None) -> None:
        """Start a new episode in an environment, or in all, although the last step did not end one.

        Use it, for example, after a worker was lost. Incomplete windows of `n_step` are closed,
        `Sequences` end, and the episode counts as ended for weights from returns.

        Raises:
            ReplayError: the environment does not exist.
        """
        with self._lock:
            first, last = 0, self.settings["num_envs"] - 1
            if env is not None:
                first = last = self._staging.check_env(env)
            self._staging.clear_resets(first, last)
            next_env = cut_envs(self._address, first, last, True)
            while next_env <= last:
                self._store.grow()
                next_env = cut_envs(self._address, next_env, last, False)

    def update_weights(self, index: ArrayLike, weight: ArrayLike) -> int:
        """Set new weights of entries, or new priorities with `Prioritized` and `RankBased`.

        Entries that were overwritten in the meantime are skipped and counted (`counters`). If
        `index` has a number twice, the last weight applies.

        Args:
            index: int, (B,), entry numbers, as in `batch.index`.
            weight: (B,), new weights.

        Returns:
            The number of entries that were still stored.

        Raises:
            ShapeError: `index` and `weight` differ in length, or `index` has no integers.
            ReplayError: a weight is NaN, infinite, or a negative priority, or no entry ever had a
                number. Nothing is changed.
        """
        with self._lock:
            if not self.sampler.weighted:
                raise ReplayError(
                    f"{self.sampler} has no weights: choose another `sampler` for this buffer"
                )
            count = self._staging.put_numbers(index)
            weights = as_column("weight", weight, count)
            self._store.new_weights[:count] = weights
            num_applied = write_weights(self._address, count)
            if num_applied < 0:
                position = -1 - num_applied
                if position < count:
                    raise self._staging.weight_error(weights[position], position)
                raise missing_entry_error(index, position - count, self.num_added, len(self))
            return num_applied

    # Reading.

    def sample(
        self, batch_size: int, *, beta: float | None = None, out: Batch | None = None
    ) -> Batch:
        """Draw a batch. The span `sample` times the draw, the span `gather` the copies.

        Args:
            batch_size: B, entries or sequences.
            beta: β of the importance weights, instead of the sampler's.
            out: an earlier batch of this buffer and size to write into. Its arrays, and tensors
                that share them, keep their addresses.

        Returns:
            `out`, or a batch. A later batch reuses the memory of its arrays once nothing references
            the batch, its arrays, or a tensor or view of them.

        Raises:
            ReplayError: the buffer is empty or has too few entries for a batch without replacement;
                a strict sampler finds too few entries with weight; `out` is of another size or
                buffer.
        """
        with self._lock:
            with span("sample"):
                if out is None:
                    block = self._sample_blocks.find_idle(batch_size) or self._new_block(batch_size)
                else:
                    block = self._sample_blocks.block_of(out, batch_size)
                beta = self._beta() if beta is None else valid_beta(beta)
                num_drawn = draw_batch(self._address, block.address, block.size, beta)
                if num_drawn != block.size:
                    raise too_few_error(block.size, num_drawn, len(self), self._replacement)
                self.num_samples += 1
            with span("gather"):
                gather_batch(self._address, block.address, block.size)
                return block.batch() if out is None else out

    def get(self, index: ArrayLike) -> Batch:
        """Return the entries with these numbers.

        Args:
            index: int, (B,), entry numbers.

        Raises:
            ReplayError: an entry was overwritten or never stored.
        """
        with self._lock:
            count = self._staging.put_numbers(index)
            block = self._entry_blocks.find_idle(count) or self._entry_blocks.make(count)
            for name in ("probability", "importance"):
                if name in block.arrays:
                    block.arrays[name].fill(np.nan)
            num_found = gather_entries(self._address, block.address, count)
            if num_found < count:
                raise missing_entry_error(index, num_found, self.num_added, len(self))
            return block.batch()

    # Files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the buffer and its random state to one file.

        The new file replaces an existing one only when it is complete.

        Raises:
            OutputError: the file can't be written.
        """
        with self._lock:
            saving.save(self, Path(path))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, memory_map: str | os.PathLike[str] | None = None
    ) -> ReplayBuffer:
        """Return a saved buffer. It draws the batches that the original would have drawn.

        Raises:
            CheckpointError: the file is missing, truncated or damaged, or of another version.
        """
        return saving.load(cls, Path(path), memory_map)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Load the contents of a saved buffer into this one.

        Both contents are in memory until the file is verified. `beta_samples` of the sampler may
        differ: β then continues with this buffer's schedule.

        Raises:
            CheckpointError: the file is missing, truncated or damaged, of another version, or of a
                buffer with other fields or settings. This buffer is unchanged.
        """
        with self._lock:
            saved = saving.load(type(self), Path(path), self._memory_map, like=self)
            self.num_samples = saved.num_samples
            # `out` may be an earlier batch of any size.
            saved._store.reserve_scratch(int(self._store.handle["scratch_size"]))
            with delayed_interrupt():
                self._bind(saved._store)

    # Internals.

    def _bind(self, store: HostStore) -> None:
        self._store = store
        self._address: int = store.address
        self._staging.bind(store)
        sampler = self.sampler
        self._sample_blocks = BatchBlockPool(self.layout, sampler.weighted, sampler.has_importance)
        self._entry_blocks = self._sample_blocks  # memory for the batches of `get`
        if isinstance(sampler, Sequences):
            self._sample_blocks = BatchBlockPool(self.layout, False, False, sampler.steps)

    def _beta(self) -> float:
        if isinstance(self.sampler, (Prioritized, RankBased)):
            return float(self.sampler.beta_after(self.num_samples))
        return 0.0

    def _new_block(self, batch_size: int) -> BatchBlock:
        """Return memory for a batch, and provide work space, or raise ReplayError."""
        size = positive_int("batch_size", batch_size, ReplayError)
        if len(self) == 0 or (size > len(self) and not self._replacement):
            raise too_few_error(size, 0, len(self), self._replacement)
        self._store.reserve_scratch(size * int(self._store.handle["steps"]))
        return self._sample_blocks.find_idle(size) or self._sample_blocks.make(size)
