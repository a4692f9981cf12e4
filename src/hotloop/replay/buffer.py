"""The replay buffer: transitions in, batches out, by any weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hotloop.errors import ConfigError, ReplayError
from hotloop.replay import saving
from hotloop.replay.batch import Batch, Block, Blocks
from hotloop.replay.checks import (
    check,
    exponent,
    no_such_number,
    one_each,
    too_few,
    whole,
)
from hotloop.replay.native.calls import (
    REFUSED_REWARD,
    REFUSED_WEIGHT,
    choose,
    collect,
    cut,
    fetch,
    update,
    write,
    write_one,
)
from hotloop.replay.samplers import Prioritized, RankBased, Sampler, Sequences, Uniform
from hotloop.replay.staging import Staging, reward_refused
from hotloop.replay.storage.host import Store
from hotloop.replay.storage.layout import Layout, arrange, declared
from hotloop.replay.storage.memory import Memory
from hotloop.timing import span

WeightFrom = Literal["episode_return", "return_so_far", "return_to_go"]


class ReplayBuffer:
    """The last `capacity` transitions, and batches of them.

    Every transition has a number, counted from 0 over all that were ever stored; `batch.index`
    holds numbers, so that what was overwritten in between is known for what it is.

    One thread may write while another one samples and updates weights.

    Args:
        capacity: transitions; when it is full, each new one replaces the oldest.
        fields: what a transition consists of: `{"obs": ((17,), np.float32), "reward": ((),
            np.float32), …}`; dictionaries within it are allowed.
        sampler: how batches are drawn: `Uniform`, `Proportional`, `Prioritized`, `RankBased`, or
            `Sequences`, which needs `terminated` (bool).
        seed: of the draws; None: another one each time.
        num_envs: environments that write, each with episodes of its own.
        share_next_obs: keep a `next_obs` only once where it is, byte for byte, the `obs` of its
            environment's next transition; which environment that is must be said, see `add`.
        n_step: n. Rewards become Σ_{k<m} γ^k r_{t+k}, m ≤ n steps up to the end of the episode;
            `next_obs`, `terminated` and `truncated` are those after the last of these steps, and
            `discount` is γ^m, or 0 where it terminated: the target is `reward + discount ·
            V(next_obs)`. A transition can be drawn when its window is complete. Needs `reward`
            (float32), `terminated` (bool), `obs` and `next_obs`, which are shared.
        gamma: γ of `n_step` and of `return_to_go`.
        weight_from: weigh transitions by what their episode earned. `episode_return`: all of it;
            `return_so_far`: up to and with this step; `return_to_go`: from this step on, discounted
            by γ. Needs `reward` (float32) and `terminated` (bool).
        running_weight: what `episode_return` and `return_to_go` weigh until the episode has ended:
            a number, or "mean", the mean of all weights as the call began that stored the
            transition.
        frame_stacks: shared fields whose first axis is a stack of frames, each of which is kept
            once: `("obs",)`.
        next_step_autoreset: leave out the row that `extend` is given after an episode's end: it is
            the reset of such a vector environment. `for_env` sets it by what the environment says.
        memory_map: a directory for what is larger than memory: rows and frames lie in files there,
            which have no name and vanish with the process.

    Raises:
        ConfigError: options that make no sense, or not together, or too little memory.
        OutputError: there is no room for the files.

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
        n_step = whole("n_step", n_step)
        self.settings: dict[str, Any] = {
            "capacity": whole("capacity", capacity),
            "num_envs": whole("num_envs", num_envs),
            "share_next_obs": bool(share_next_obs) or n_step > 1,
            "n_step": n_step,
            "gamma": gamma,
            "weight_from": weight_from,
            "running_weight": running_weight,
            "frame_stacks": [frame_stacks] if isinstance(frame_stacks, str) else list(frame_stacks),
            "next_step_autoreset": bool(next_step_autoreset),
        }
        self.fields = declared(fields)
        check(self.settings, self.fields, self.sampler)
        returns = weight_from in ("episode_return", "return_to_go")
        self.layout: Layout = arrange(
            self.fields,
            share_next_obs=self.settings["share_next_obs"],
            frame_stacks=self.settings["frame_stacks"],
            n_step=n_step,
            keeps_raw_reward=weight_from == "return_to_go" and n_step > 1,
            keeps_previous=returns and num_envs > 1,
            in_sequences=isinstance(self.sampler, Sequences),
        )
        try:
            random = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"`seed` must be a whole number from 0 on, got {seed!r}") from error
        self._lock = threading.RLock()
        self._memory_map = memory_map
        self.num_samples = 0  # batches drawn so far
        self._replacement = bool(self.sampler.in_handle()["replacement"])
        self._num_envs = self.settings["num_envs"]
        self._staging = Staging(
            self.layout, self.sampler, self.settings, weights_given=weight_from is None
        )
        try:
            store = Store(self.layout, self.settings, self.sampler.in_handle(), Memory(memory_map))
        except MemoryError as error:
            raise ConfigError(
                f"there is no memory for {self.capacity:,} transitions of {self.layout.row_bytes} "
                f"bytes and more ({error}): keep fewer, or name a directory as `memory_map`"
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
        """A buffer for an environment's transitions, with `next_obs` shared.

        Its fields are `obs`, `action`, `reward`, `next_obs`, `terminated` and `truncated`. Real
        numbers are kept as float32, bytes and integers as they are, dictionary and tuple spaces
        as dictionaries. Frames of Gymnasium's `FrameStackObservation` are kept once.

        Args:
            env: a Gymnasium environment or vector environment, or one that `hotloop.make_vec` made.
            capacity: transitions.
            num_envs: how many such environments there are; by default what `env` says.
            memory_size: M; with more than 0 there is a field `memory` besides, float32, (M,), what
                a network remembered before the transition.
            options: as the class takes them.

        Raises:
            SpaceError: a space that arrays of one shape can't hold.
            ConfigError: as of the class.
        """
        from hotloop.replay.adapters import describe

        found = describe(env, whole("memory_size", memory_size) if memory_size else 0)
        options.setdefault("next_step_autoreset", found.next_step_autoreset)
        if options.setdefault("share_next_obs", True) or options.get("n_step", 1) > 1:
            options.setdefault("frame_stacks", found.frame_stacks)
        num_envs = found.num_envs if num_envs is None else num_envs
        return cls(capacity, found.fields, num_envs=num_envs, **options)

    def __len__(self) -> int:
        """How many transitions can be drawn."""
        return int(self._store.handle["size"])

    @property
    def capacity(self) -> int:
        """How many transitions it holds at most."""
        return self.settings["capacity"]

    @property
    def num_added(self) -> int:
        """How many transitions it has ever held; the newest one's number is one less."""
        return int(self._store.handle["added"])

    @property
    def counters(self) -> dict[str, int]:
        """What happened that need not have.

        `filled_uniformly`: entries that a batch was filled with because no others had weight.
        `stale_updates`: weights that came after their entries had been overwritten.
        """
        return {
            "filled_uniformly": int(self._store.handle["filled"]),
            "stale_updates": int(self._store.handle["stale"]),
        }

    def memory(self) -> dict[str, int]:
        """Bytes, taken as it fills, by what they are for, and their `total`; without batches."""
        sizes = self._store.sizes()
        sizes["work"] += self._staging.size_bytes()
        return {**sizes, "total": sum(sizes.values())}

    # Writing.

    def add(self, *, weight: float | None = None, env: int = 0, **fields: Any) -> None:
        """Store one transition.

        Args:
            weight: of a weighted sampler: `Proportional` needs it, `Prioritized` and `RankBased`
                take the greatest priority without it.
            env: which environment it comes from.
            fields: each field's array or number, of the declared shape.

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
                weight = staging.weight_of_one(weight)
            if type(env) is not int or not 0 <= env < self._num_envs:
                env = staging.env_of_one(env)
            while (written := write_one(self._at, env, weight)) == 0:
                self._store.grow()
            if written == REFUSED_WEIGHT:
                raise staging.weight_refused(weight, 0)
            if written == REFUSED_REWARD:
                raise reward_refused(0)

    def extend(
        self,
        *,
        weight: ArrayLike | None = None,
        env: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        **fields: Any,
    ) -> None:
        """Store B transitions, in the order of time.

        Args:
            weight: (B,), as `add` takes them.
            env: (B,), the environment of each; without it they belong to 0, 1, … N − 1, 0, 1, … and
                B is a multiple of N.
            valid: bool, (B,); where it is False nothing is stored, as for the step that a vector
                environment with next-step autoreset spends on a reset (`for_env` knows of these).
                `Sequences` end there, as with `cut`.
            fields: each field's array, (B, *shape).

        Raises:
            ShapeError: a field is missing, unknown, or of another shape or kind of numbers.
            ReplayError: a weight is NaN or infinite, or a negative priority; nothing is stored.
        """
        with self._lock:
            staging = self._staging
            count, envs, weights = staging.put(fields, weight, env, valid)
            written = 0
            while written < count:
                written = write(self._at, staging.at, envs, weights, written, count)
                if written < 0:
                    raise reward_refused(-1 - written)
                if written < count:
                    self._store.grow()
            staging.release()

    def cut(self, env: int | None = None) -> None:
        """Say that an environment, or all, begins anew though its last step ended no episode.

        After a worker was lost, say. Windows of `n_step` are closed where they stand, `Sequences`
        end there, and the episode counts as over where weights come from returns.

        Raises:
            ReplayError: there is no such environment.
        """
        with self._lock:
            first, last = 0, self.settings["num_envs"] - 1
            if env is not None:
                first = last = self._staging.env_of_one(env)
            self._staging.begin_anew(first, last)
            following = cut(self._at, first, last, True)
            while following <= last:
                self._store.grow()
                following = cut(self._at, following, last, False)

    def update_weights(self, index: ArrayLike, weight: ArrayLike) -> int:
        """Give entries new weights; for `Prioritized` and `RankBased`, new priorities.

        What was overwritten since it was drawn is left out and counted (`counters`). Of an entry
        that is named twice the last weight counts.

        Args:
            index: int, (B,), their numbers, as `batch.index` has them.
            weight: (B,).

        Returns:
            How many entries were still there.

        Raises:
            ShapeError: `index` and `weight` are not of one length, or `index` not of integers.
            ReplayError: a weight is NaN, infinite, or a negative priority; a number that no entry
                ever had. Nothing is changed.
        """
        with self._lock:
            if not self.sampler.weighted:
                raise ReplayError(
                    f"{self.sampler} has no weights: choose another `sampler` for this buffer"
                )
            count = self._staging.put_numbers(index)
            weights = one_each("weight", weight, count)
            self._store.new_weights[:count] = weights
            applied = update(self._at, count)
            if applied < 0:
                place = -1 - applied
                if place < count:
                    raise self._staging.weight_refused(weights[place], place)
                raise no_such_number(index, place - count, self.num_added, len(self))
            return applied

    # Reading.

    def sample(
        self, batch_size: int, *, beta: float | None = None, out: Batch | None = None
    ) -> Batch:
        """Draw a batch. Two spans time it: `sample`, which entries; `gather`, what is in them.

        Args:
            batch_size: B, entries or sequences.
            beta: β of the importance weights, in place of the sampler's own.
            out: a batch of this size that this buffer gave before, to be written into: its arrays,
                and tensors made of them, stay where they are.

        Returns:
            `out`, or a batch whose arrays are memory that is used again for a later one, though not
            while the batch, one of the arrays, or a tensor or view made from one is held somewhere.

        Raises:
            ReplayError: the buffer is empty, or has fewer entries than a batch without replacement
                asks for; or fewer with weight, and the sampler is strict; `out` is of another size
                or another buffer.
        """
        with self._lock:
            with span("sample"):
                if out is None:
                    block = self._blocks.take(batch_size) or self._new_block(batch_size)
                else:
                    block = self._blocks.own(out, batch_size)
                beta = self._beta() if beta is None else exponent(beta)
                drawn = choose(self._at, block.address, block.size, beta)
                if drawn != block.size:
                    raise too_few(block.size, drawn, len(self), self._replacement)
                self.num_samples += 1
            with span("gather"):
                collect(self._at, block.address, block.size)
                return block.batch() if out is None else out

    def get(self, index: ArrayLike) -> Batch:
        """The entries with these numbers.

        Args:
            index: int, (B,).

        Raises:
            ReplayError: one of them is not there: it was overwritten, or never was.
        """
        with self._lock:
            count = self._staging.put_numbers(index)
            block = self._singles.take(count) or self._singles.make(count)
            for name in ("probability", "importance"):
                if name in block.arrays:
                    block.arrays[name].fill(np.nan)
            found = fetch(self._at, block.address, count)
            if found < count:
                raise no_such_number(index, found, self.num_added, len(self))
            return block.batch()

    # Keeping.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, as it stands, the state of the draws included.

        The file takes its name when it is whole; what was there before stays until then.

        Raises:
            OutputError: it can't be written.
        """
        with self._lock:
            saving.save(self, Path(path))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, memory_map: str | os.PathLike[str] | None = None
    ) -> ReplayBuffer:
        """The buffer that `save` wrote: what it draws is what the saved one would have drawn.

        Raises:
            CheckpointError: the file is missing, cut short or damaged, or of another version.
        """
        return saving.load(cls, Path(path), memory_map)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take over what `save` wrote, into this buffer.

        Until all of it has been found good, both contents are in memory. `beta_samples` of the
        sampler may be another one: β goes on from where it stood, at this buffer's pace.

        Raises:
            CheckpointError: the file is missing, cut short or damaged, of another version, or of a
                buffer with other fields or settings; this one is as it was.
        """
        with self._lock:
            saved = saving.load(type(self), Path(path), self._memory_map, like=self)
            self.num_samples = saved.num_samples
            # Batches that this buffer gave may be drawn into again, whatever their size.
            saved._store.make_scratch(int(self._store.handle["scratch_size"]))
            self._bind(saved._store)

    # What the public methods stand on.

    def _bind(self, store: Store) -> None:
        """Work on these arrays."""
        self._store = store
        self._at: int = store.at
        self._staging.bind(store)
        sampler = self.sampler
        self._blocks = Blocks(self.layout, sampler.weighted, sampler.has_importance)
        self._singles = self._blocks  # where what `get` is asked for goes
        if isinstance(sampler, Sequences):
            self._blocks = Blocks(self.layout, False, False, sampler.steps)

    def _beta(self) -> float:
        """β of the next batch."""
        if isinstance(self.sampler, (Prioritized, RankBased)):
            return float(self.sampler.beta_after(self.num_samples))
        return 0.0

    def _new_block(self, batch_size: int) -> Block:
        """Memory for a batch, and work space, if there can be one."""
        size = whole("batch_size", batch_size, ReplayError)
        if len(self) == 0 or (size > len(self) and not self._replacement):
            raise too_few(size, 0, len(self), self._replacement)
        self._store.make_scratch(size * int(self._store.handle["steps"]))
        return self._blocks.take(size) or self._blocks.make(size)
