"""The replay buffer: transitions in, batches out, by any weights."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hotloop.errors import ConfigError, ReplayError, ShapeError
from hotloop.replay import native, rows, saving
from hotloop.replay.batch import Batch, Block, Blocks
from hotloop.replay.calls import (
    REFUSED_REWARD,
    REFUSED_WEIGHT,
    add_weights,
    choose,
    collect,
    cut,
    fetch,
    update,
    write,
    write_one,
)
from hotloop.replay.layout import (
    Field,
    Layout,
    Stage,
    arrange,
    as_array,
    checked,
    declared,
    missing_fields,
)
from hotloop.replay.memory import Memory
from hotloop.replay.options import check, exponent, whole
from hotloop.replay.samplers import Prioritized, Proportional, RankBased, Sampler, Uniform
from hotloop.replay.store import Store
from hotloop.replay.unrolled import ABSENT, with_unrolled_add
from hotloop.timing import span
from hotloop.types import Array

WeightFrom = Literal["episode_return", "return_so_far", "return_to_go"]
MAX_STAGE_BYTES = 1 << 22  # that are kept for the next batch that comes in
_FORMATS = "bBhHiIlLqQfd?"  # of arrays that a memoryview takes
# Numbers that a memoryview's item of this dtype takes as they are.
_REALS = frozenset((bool, int, float, np.float32, np.float64))
_KINDS = {
    "float32": _REALS,
    "float64": _REALS,
    "int32": frozenset((int, np.int64, np.int32)),
    "int64": frozenset((int, np.int64, np.int32)),
    "bool": frozenset((bool, np.bool_)),
}


class ReplayBuffer:
    """The last `capacity` transitions, and batches of them.

    Every transition has a number, counted from 0 over all that were ever stored; `batch.index`
    holds numbers, so that what was overwritten in between is known for what it is.

    One thread may write while another one samples and updates weights.

    Args:
        capacity: transitions; when it is full, each new one replaces the oldest.
        fields: what a transition consists of: `{"obs": ((17,), np.float32), "reward": ((),
            np.float32), …}`; dictionaries within it are allowed.
        sampler: how batches are drawn: `Uniform`, `Proportional`, `Prioritized`, `RankBased`.
        seed: of the draws; None: another one each time.
        num_envs: environments that write, each with episodes of its own.
        share_next_obs: keep a `next_obs` only once where it is the `obs` of the same environment's
            next transition. They are compared byte for byte, so what comes out is what went in,
            always. Which environment a transition belongs to must be said, see `add`, `extend`.
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

    # The class that the one with an `add` for its fields was made from.
    _plain: type[ReplayBuffer] | None = None

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
        memory_map: str | os.PathLike[str] | None = None,
    ) -> None:
        self.sampler: Sampler = sampler if sampler is not None else Uniform()
        if not isinstance(self.sampler, Sampler):
            raise ConfigError(
                "`sampler` must be Uniform(), Proportional(), Prioritized() or RankBased(), got "
                f"{sampler!r}"
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
        )
        try:
            random = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"`seed` must be a whole number from 0 on, got {seed!r}") from error
        self._lock = threading.RLock()
        self._hold = self._lock.acquire, self._lock.release  # half of what `with` costs
        self._memory_map = memory_map
        self.num_samples = 0  # batches drawn so far
        weights_given = self.settings["weight_from"] is None
        self._takes_weight = self.sampler.weighted and weights_given
        self._needs_weight = isinstance(self.sampler, Proportional) and weights_given
        self._replacement = bool(self.sampler.words()[native.REPLACEMENT])
        self._given = {one.name: one for one in self.layout.given()}
        self._single = Stage(self.layout, 1)
        self._stage = Stage(self.layout, 1)
        self._open_stage(64)
        puts = {name: _put_of(self._single, one) for name, one in self._given.items()}
        self._targets = [target for target, _ in puts.values()]
        self._num_envs = self.settings["num_envs"]
        plain = self._plain or type(self)
        if plain.add is ReplayBuffer.add:  # else it is somebody's own
            self.__class__ = with_unrolled_add(plain, puts)
        self._lent: dict[str, Array] = {}
        try:
            store = Store(self.layout, self.settings, self.sampler, Memory(memory_map))
        except MemoryError as error:
            raise ConfigError(
                f"there is no memory for {self.capacity:,} transitions of {self.layout.row_bytes} "
                f"bytes and more ({error}): keep fewer, or name a directory as `memory_map`"
            ) from error
        self._bind(store)
        self._store.handle.view(np.uint64)[native.RANDOM : native.RANDOM + 4] = random

    @classmethod
    def for_env(
        cls, env: Any, capacity: int, *, num_envs: int | None = None, **options: Any
    ) -> ReplayBuffer:
        """A buffer for an environment's transitions, with `next_obs` shared.

        Its fields are `obs`, `action`, `reward`, `next_obs`, `terminated` and `truncated`. Real
        numbers are kept as float32, bytes and integers as they are, dictionary and tuple spaces
        as dictionaries. Frames of Gymnasium's `FrameStackObservation` are kept once.

        Args:
            env: a Gymnasium environment or vector environment, or one that `hotloop.make_vec` made.
            capacity: transitions.
            num_envs: how many such environments there are; by default what `env` says.
            options: as the class takes them.

        Raises:
            SpaceError: a space that arrays of one shape can't hold.
            ConfigError: as of the class.
        """
        from hotloop.replay.adapters import describe

        found = describe(env)
        if options.setdefault("share_next_obs", True) or options.get("n_step", 1) > 1:
            options.setdefault("frame_stacks", found.frame_stacks)
        if num_envs is None:
            num_envs = found.num_envs
        return cls(capacity, found.fields, num_envs=num_envs, **options)

    def __len__(self) -> int:
        """How many transitions can be drawn."""
        return int(self._store.handle[native.SIZE])

    @property
    def capacity(self) -> int:
        """How many transitions it holds at most."""
        return self.settings["capacity"]

    @property
    def num_added(self) -> int:
        """How many transitions it has ever held; the newest one's number is one less."""
        return int(self._store.handle[native.ADDED])

    @property
    def counters(self) -> dict[str, int]:
        """What happened that need not have.

        `filled_uniformly`: entries that a batch was filled with because no others had weight.
        `stale_updates`: weights that came after their entries had been overwritten.
        """
        return {
            "filled_uniformly": int(self._store.handle[native.FILLED]),
            "stale_updates": int(self._store.handle[native.STALE]),
        }

    def memory(self) -> dict[str, int]:
        """Bytes by what they are for; `total` is their sum. Batches have memory of their own.

        Memory is reserved when the buffer is made and taken as it fills.
        """
        staged = self._stage.rows.nbytes + self._staged_weights.nbytes + self._staged_envs.nbytes
        sizes = self._store.sizes()
        sizes["work"] += staged
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
            self._put_all(fields)
            self._write_staged(weight, env)

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
                environment with next-step autoreset spends on a reset.
            fields: each field's array, (B, *shape).

        Raises:
            ShapeError: a field is missing, unknown, or of another shape or kind of numbers.
            ReplayError: a weight is NaN or infinite, or a negative priority; nothing is stored.
        """
        with self._lock:
            given = fields if fields.keys() == self._given.keys() else self._named(fields)
            name, value = next(iter(given.items()))
            first = value.shape if type(value) is np.ndarray else as_array(name, value).shape
            if not first:
                raise ShapeError("`extend` takes a batch, (B, …) each: `add` takes one transition")
            count = first[0]
            num_envs = self.settings["num_envs"]
            if env is None and count % num_envs:
                raise ShapeError(
                    f"{count} transitions are not a multiple of {num_envs} environments: pass "
                    "`env`, the environment of each"
                )
            if valid is not None:
                chosen = checked(Field(("valid",), (), np.dtype(np.bool_)), valid, (count,))
                rows_kept = np.flatnonzero(chosen)
                numbers = np.arange(count) % num_envs if env is None else env
                env = self._one_each("env", numbers, count)[rows_kept]
                if weight is not None:
                    weight = self._one_each("weight", weight, count)[rows_kept]
                given = {
                    name: checked(self._given[name], value, (count,))[rows_kept]
                    for name, value in given.items()
                }
                count = len(rows_kept)
            if count == 0:
                return
            if count != self._stage_count:
                self._open_stage(count)
            targets = self._stage_targets
            for name, value in given.items():
                target, dtype, shape = targets[name]
                if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
                    target[...] = value
                else:
                    self._put(name, value, (count,))
            envs = weights = 0
            if weight is not None:
                weights = self._given_weights(weight, count)
            elif self._needs_weight:
                raise self._weight_missing()
            if env is not None:
                envs = self._given_envs(as_array("env", env), count)
            written = write(self._at, self._stage_at, envs, weights, 0, count)
            if written < 0:
                raise self._reward_refused(-1 - written)
            while written < count:
                self._store.grow()
                written = write(self._at, self._stage_at, envs, weights, written, count)
            self._lent.clear()
            if self._stage.rows.nbytes > MAX_STAGE_BYTES:
                self._stage = Stage(self.layout, 1)
                self._open_stage(64)

    def cut(self, env: int | None = None) -> None:
        """Say that an environment, or all, begins anew though its last step ended no episode.

        After a worker was lost, say. Windows of `n_step` are closed where they stand, and the
        episode counts as over where weights come from returns.

        Raises:
            ReplayError: there is no such environment.
        """
        with self._lock:
            first, last = 0, self.settings["num_envs"] - 1
            if env is not None:
                self._given_envs(as_array("env", [env]), 1)
                first = last = int(env)
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
            count = self._given_numbers(index)
            weights = self._one_each("weight", weight, count)
            self._store.new_weights[:count] = weights
            applied = update(self._at, count)
            if applied < 0:
                place = -1 - applied
                if place < count:
                    raise self._weight_refused(weights[place], place)
                raise self._no_such_number(int(np.asarray(index)[place - count]))
            return applied

    # Reading.

    def sample(
        self, batch_size: int, *, beta: float | None = None, out: Batch | None = None
    ) -> Batch:
        """Draw a batch. Two spans time it: `sample`, which entries; `gather`, what is in them.

        Args:
            batch_size: B.
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
        acquire, release = self._hold
        acquire()
        try:
            with span("sample"):
                if out is None:
                    block = self._blocks.take(batch_size) or self._new_block(batch_size)
                else:
                    block = self._own_block(out, batch_size)
                beta = self._beta() if beta is None else exponent(beta)
                drawn = choose(self._at, block.address, block.size, beta)
                if drawn != block.size:
                    raise self._too_few(block.size, drawn)
                self.num_samples += 1
            with span("gather"):
                collect(self._at, block.address, block.size)
                return block.batch() if out is None else out
        finally:
            release()

    def get(self, index: ArrayLike) -> Batch:
        """The entries with these numbers.

        Args:
            index: int, (B,).

        Raises:
            ReplayError: one of them is not there: it was overwritten, or never was.
        """
        with self._lock:
            count = self._given_numbers(index)
            block = self._blocks.take(count) or self._blocks.make(count)
            for name in ("probability", "importance"):
                if name in block.arrays:
                    block.arrays[name].fill(np.nan)
            found = fetch(self._at, block.address, count)
            if found < count:
                raise self._no_such_number(int(np.asarray(index)[found]))
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
            saved._store.make_scratch(int(self._store.handle[native.SCRATCH_SIZE]))
            self._bind(saved._store)

    # What the public methods stand on.

    def _bind(self, store: Store) -> None:
        """Work on these arrays."""
        self._store = store
        self._at: int = store.at
        store.handle[native.SINGLE] = self._single.rows.ctypes.data
        sampler = self.sampler
        self._blocks = Blocks(self.layout, sampler.weighted, sampler.has_importance)

    def _beta(self) -> float:
        """β of the next batch."""
        if isinstance(self.sampler, (Prioritized, RankBased)):
            return float(self.sampler.beta_after(self.num_samples))
        return 0.0

    def _own_block(self, batch: Batch, batch_size: int) -> Block:
        """The memory of a batch that this buffer gave."""
        block = batch._block
        if block is None or block.layout is not self.layout or block.size != batch_size:
            raise ReplayError(
                f"`out` must be a batch of {batch_size} that this buffer gave, got {batch!r}: take "
                "the first one without `out`"
            )
        return block

    def _new_block(self, batch_size: int) -> Block:
        """Memory for a batch, and work space, if there can be one."""
        size = whole("batch_size", batch_size, ReplayError)
        if len(self) == 0 or (size > len(self) and not self._replacement):
            raise self._too_few(size, 0)
        self._store.make_scratch(size)
        return self._blocks.take(size) or self._blocks.make(size)

    def _open_stage(self, count: int) -> None:
        """Room for `count` transitions on their way in."""
        if count > self._stage.size:
            self._stage = Stage(self.layout, 1 << (count - 1).bit_length())
            self._staged_weights = np.zeros(self._stage.size)
            self._staged_envs = np.zeros(self._stage.size, np.int64)
            self._stage_at: int = self._stage.rows.ctypes.data
            self._staged_weights_at: int = self._staged_weights.ctypes.data
        self._stage_count = count
        # By field: where to write a batch of this dtype and shape; None: not in this way.
        self._stage_targets: dict[str, tuple[Any, Any, Any]] = dict.fromkeys(
            self._given, (None, None, None)
        )
        for name, view in self._stage.views.items():
            target = view[:count]
            self._stage_targets[name] = target, target.dtype, target.shape

    def _named(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What a user passes, by the fields' names: all of them and no others."""
        given = dict(self._leaves("", fields))
        if given.keys() != self._given.keys():
            raise missing_fields(self.layout, given)
        return given

    def _leaves(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Fields by name, from dictionaries, or from tuples where keys 0, 1, … were declared."""
        if name not in self._given and isinstance(value, (Mapping, tuple)):
            parts = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, part in parts:
                yield from self._leaves(f"{name}.{key}" if name else str(key), part)
        else:
            yield name, value

    def _put_all(self, fields: Mapping[str, Any]) -> None:
        """Stage one transition, whatever its fields are, or say what is wrong with one."""
        for name, value in self._named(fields).items():
            self._put(name, value, ())

    def _put_one(self, name: str, value: Any) -> None:
        """Stage one field of one transition, whatever it is.

        Raises:
            KeyError: it was not given.
        """
        if value is ABSENT:
            raise KeyError(name)
        view, one = self._single.views.get(name), self._given[name]
        if (
            view is not None
            and type(value) is np.ndarray
            and value.shape == one.shape
            and value.dtype.kind == one.dtype.kind == "f"
        ):
            view[0] = value
        else:
            self._put(name, value, ())

    def _write_staged(self, weight: float | None, env: int) -> None:
        """Store the transition that is staged."""
        if weight is None:
            if self._needs_weight:
                raise self._weight_missing()
            weight = nan
        else:
            if not self._takes_weight:
                raise self._weight_unused()
            weight = self._as_float(weight)
            if weight != weight:
                raise self._weight_refused(weight, 0)
        self._given_envs(as_array("env", [env]), 1)
        written = write_one(self._at, int(env), weight)
        if written == REFUSED_WEIGHT:
            raise self._weight_refused(weight, 0)
        if written == REFUSED_REWARD:
            raise self._reward_refused(0)
        if written == 0:
            self._store.grow()
            write_one(self._at, int(env), weight)

    def _put(self, name: str, value: Any, leading: tuple[int, ...]) -> None:
        """Copy a field into the stage, or, where it lies apart, remember where its values are."""
        one = self._given[name]
        array = checked(one, value, leading)
        if one.place == "row" or one.place == "next":
            stage = self._stage if leading else self._single
            stage.views[name][: leading[0] if leading else 1] = array
            return
        array = np.ascontiguousarray(array, one.dtype)
        self._lent[name] = array  # must outlive the call
        word = rows.APART_STAGE if one.place == "apart" else rows.APART_NEXT_STAGE
        self._store.apart_words[one.apart, word] = array.ctypes.data

    def _one_each(self, name: str, values: ArrayLike, count: int) -> Array:
        """An array of real numbers, one for each of `count` transitions."""
        array = as_array(name, values)
        if array.shape != (count,) or array.dtype.kind not in "biuf":
            raise ShapeError(
                f"`{name}` must be numbers, shape ({count},), got {array.dtype} {array.shape}"
            )
        return array

    def _given_weights(self, weight: ArrayLike, count: int) -> int:
        """Check weights and copy them to where the jitted code finds them, at the address."""
        if not self._takes_weight:
            raise self._weight_unused()
        weights = self._one_each("weight", weight, count)
        self._staged_weights[:count] = weights
        wrong = add_weights(self._at, self._staged_weights_at, count)
        if wrong < count:
            raise self._weight_refused(weights[wrong], wrong)
        return self._staged_weights_at

    def _as_float(self, weight: Any) -> float:
        array = as_array("weight", weight)
        if array.shape != () or array.dtype.kind not in "biuf":
            raise ShapeError(f"`weight` must be a number, got {weight!r:.60}")
        return float(array) + 0.0

    def _given_envs(self, env: Array, count: int) -> int:
        num_envs = self.settings["num_envs"]
        if env.shape != (count,) or env.dtype.kind not in "iu":
            raise ShapeError(
                f"`env` must be integers, shape ({count},), got {env.dtype} {env.shape}"
            )
        if env.min() < 0 or env.max() >= num_envs:
            wrong = env[(env < 0) | (env >= num_envs)][0]
            raise ReplayError(
                f"`env` must be from 0 to {num_envs - 1}, got {wrong}: say `num_envs` when the "
                "buffer is made"
            )
        self._staged_envs[:count] = env
        return self._staged_envs.ctypes.data

    def _given_numbers(self, index: ArrayLike) -> int:
        """Copy entries' numbers into the work space; how many they are."""
        numbers = as_array("index", index)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
            raise ShapeError(
                f"`index` must be integers, (B,), as `batch.index` has them, got {numbers.dtype} "
                f"{numbers.shape}"
            )
        count = len(numbers)
        self._store.make_scratch(count)
        self._store.numbers[:count] = numbers
        return count

    # What is wrong, in words.

    def _weight_missing(self) -> ReplayError:
        return ReplayError(
            f"{type(self.sampler).__name__} needs `weight`, or a buffer with `weight_from`: pass "
            "weight=… with the transition"
        )

    def _weight_unused(self) -> ReplayError:
        why = "come from returns" if self.sampler.weighted else f"are not used by {self.sampler}"
        return ReplayError(f"this buffer's weights {why}: leave `weight` out")

    def _weight_refused(self, weight: Any, place: int) -> ReplayError:
        expected = f"a finite number, of at most {native.MAX_WEIGHT:g}"
        if self._store.handle[native.PRIORITIES]:
            expected = "a finite number from 0 on (a priority), "
            expected += f"whose power α is at most {native.MAX_WEIGHT:g}"
        return ReplayError(
            f"`weight` must be {expected}, got {weight} at position {place}; nothing was changed"
        )

    def _reward_refused(self, place: int) -> ReplayError:
        return ReplayError(
            f"`reward` must be a finite number, as weights come from it; it is not at position "
            f"{place}; nothing was stored"
        )

    def _no_such_number(self, number: int) -> ReplayError:
        if 0 <= number < self.num_added:
            return ReplayError(
                f"entry {number} was overwritten: the oldest is number {self.num_added - len(self)}"
            )
        return ReplayError(
            f"no entry ever had number {number}: they go from 0 to {self.num_added - 1}; pass "
            "`batch.index`"
        )

    def _too_few(self, batch_size: int, found: int) -> ReplayError:
        size = len(self)
        if size == 0:
            return ReplayError("the buffer is empty: add transitions before sampling")
        if batch_size > size and not self._replacement:
            return ReplayError(
                f"a batch of {batch_size} without replacement needs as many entries, and there are "
                f"{size}: add more, ask for fewer, or draw with replacement"
            )
        return ReplayError(
            f"a batch of {batch_size} needs as many entries with weight, and {found} of {size} "
            "have some: ask for fewer, or leave `strict` out to fill it uniformly"
        )


def _put_of(stage: Stage, one: Field) -> tuple[Any, frozenset[type] | None]:
    """How `add` writes a field at once, see `Puts`.

    A memoryview takes arrays of its own format and shape only, and is twice as fast as an array.
    """
    if one.place in ("row", "next"):
        view = (stage.views[one.name][0] if one.shape else stage.views[one.name]).data
        if view.format not in _FORMATS:
            return None, frozenset()
        if len(one.shape) == 1:
            return view, None
        kinds = _KINDS.get(str(one.dtype))
        if not one.shape and kinds is not None:
            return view, kinds
    return None, frozenset()
