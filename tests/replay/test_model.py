"""The buffer and its slow reference, the twin, agree after any sequence of operations."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hotloop.errors import ReplayError
from hotloop.replay import (
    Batch,
    Prioritized,
    Proportional,
    RankBased,
    ReplayBuffer,
    Sampler,
    Uniform,
)
from tests.reference import replay as reference

FLAGS = {"terminated": ((), np.bool_), "truncated": ((), np.bool_)}
STEP = {"action": ((), np.int64), "reward": ((), np.float32), **FLAGS}
POSITION = ((3,), np.float32)
IMAGE = ((2, 3, 181), np.uint8)  # 1086 bytes, stored apart from the rows
# Name: observation fields, other fields, frame stacks among the observation fields.
LAYOUTS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "vector": (POSITION, STEP, ()),
    "of few kinds": (  # `add` has a specialized version for these
        POSITION,
        {"action": ((2,), np.float64), "reward": ((), np.float32), "cost": ((), "f8"), **FLAGS},
        (),
    ),
    "odd sizes": (
        ((3,), np.uint8),
        {**STEP, "note": ((), np.uint8), "pair": ((2, 1), np.float64), "half": ((1,), np.float16)},
        (),
    ),
    "nested": (
        {"position": POSITION, "inner": {"count": ((), np.int16), "time": ((), np.float64)}},
        {**STEP, "extra": {"a": ((2,), np.int32), "b": ((), np.bool_)}},
        (),
    ),
    "image": (IMAGE, STEP, ()),
    "image and vector": (
        {"image": IMAGE, "position": POSITION},
        {**STEP, "mask": ((1100,), np.bool_)},
        (),
    ),
    "stack": (((4, 2, 3), np.uint8), STEP, ("obs",)),
    "stack and vector": (
        {"frames": ((3, 2), np.uint8), "position": POSITION},
        STEP,
        ("obs.frames",),
    ),
    "two stacks": (
        {"near": ((2, 3), np.float32), "far": ((5, 1), np.uint8), "image": IMAGE},
        STEP,
        ("obs.near", "obs.far"),
    ),
    "memory": (POSITION, {**STEP, "memory": ((5,), np.float32)}, ()),
    "no truncation": (
        POSITION,
        {"reward": ((), np.float32), "terminated": ((), np.bool_)},
        (),
    ),
}
CAPACITIES = st.one_of(st.integers(1, 4), st.integers(5, 40), st.integers(65, 130))
# Some exceed the work space of the buffer, which has to grow.
ROWS = st.one_of(st.integers(1, 50), st.integers(1, 50), st.integers(65, 200))
SIZES = st.one_of(st.integers(1, 50), st.integers(1, 50), st.integers(1, 130), st.just(1100))
# They include two equal zeros with different bytes, and a NaN that equals nothing.
FLOATS = [0.0, -0.0, np.nan, 1.0, -1.5, np.inf]


@dataclass(frozen=True)
class Setup:
    """The options of a buffer."""

    capacity: int
    layout: str
    sampler: Sampler
    num_envs: int
    shared: bool
    n_step: int
    gamma: float
    weight_from: str | None
    running_weight: Any
    mapped: bool

    @property
    def frame_stacks(self) -> tuple[str, ...]:
        return LAYOUTS[self.layout][2] if self.shared else ()

    def fields(self) -> dict[str, Any]:
        obs, other_fields, _ = LAYOUTS[self.layout]
        return {"obs": obs, **other_fields, "next_obs": obs}

    def options(self) -> dict[str, Any]:
        """Return the options that the buffer and the twin have in common."""
        names = ("num_envs", "n_step", "gamma", "weight_from", "running_weight")
        return {name: getattr(self, name) for name in names}


@st.composite
def setups(
    draw: st.DrawFn,
    samplers: st.SearchStrategy[Sampler],
    returns: bool,
    layouts: tuple[str, ...] = tuple(LAYOUTS),
) -> Setup:
    n_step = draw(st.sampled_from([1, 2, 3, 5]))
    return Setup(
        capacity=draw(CAPACITIES),
        layout=draw(st.sampled_from(layouts)),
        sampler=draw(samplers),
        num_envs=draw(st.integers(1, 3)),
        shared=n_step > 1 or draw(st.booleans()),
        n_step=n_step,
        gamma=draw(st.sampled_from([0.9, 0.99, 1.0, 0.0])),
        weight_from=(
            draw(st.sampled_from(["episode_return", "return_so_far", "return_to_go"]))
            if returns
            else None
        ),
        running_weight=draw(st.sampled_from(["mean", 0.0, 2.5, -3])) if returns else "mean",
        mapped=draw(st.booleans()),
    )


ANNEALED: dict[str, st.SearchStrategy[Any]] = {
    "beta": st.sampled_from([0.0, 0.4, 1.0]),
    "beta_samples": st.sampled_from([None, 1, 7]),
    "stratified": st.booleans(),
    "normalize": st.sampled_from(["buffer", "batch"]),
}
UNIFORM = st.builds(Uniform, replacement=st.booleans())
PROPORTIONAL = st.builds(
    Proportional,
    replacement=st.booleans(),
    shift=st.sampled_from(["min", 0.0, 1.5, -1]),
    strict=st.booleans(),
)
PRIORITIZED = st.builds(
    Prioritized, alpha=st.sampled_from([0.0, 0.6, 1.0]), epsilon=st.just(0.01), **ANNEALED
)
RANK_BASED = st.builds(RankBased, alpha=st.sampled_from([0.0, 0.7, 1.0, 2.0]), **ANNEALED)
MACHINES = {
    "uniform": setups(UNIFORM, False),
    "proportional": setups(PROPORTIONAL, False),
    "returns": setups(PROPORTIONAL, True),
    "prioritized": setups(PRIORITIZED, False),
    "ranks": setups(RANK_BASED, False),
}


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dictionaries under dotted names."""
    leaves = {}
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else key
        leaves.update(flat(value, name) if isinstance(value, dict) else {name: value})
    return leaves


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Reverse `flat`."""
    root: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        parent = root
        for key in parents:
            parent = parent.setdefault(key, {})
        parent[last] = value
    return root


class TransitionSource:
    """A source of transitions, most of which start where the environment's last one ended.

    Args:
        setup: the setup whose fields they have.
    """

    def __init__(self, setup: Setup) -> None:
        self.fields = flat(setup.fields())
        self.stacks = setup.frame_stacks
        self.last: list[dict[str, np.ndarray] | None] = [None] * setup.num_envs

    def values(self, rng: np.random.Generator, name: str) -> np.ndarray:
        """Return either a few recurring values or random ones."""
        shape, dtype = self.fields[name]
        dtype = np.dtype(dtype)
        if dtype.kind == "f":
            values = rng.choice(FLOATS, shape) if rng.random() < 0.5 else rng.normal(size=shape)
            return np.asarray(values, dtype)
        if dtype.kind == "b":
            return np.asarray(rng.random(shape) < 0.5)
        return np.asarray(rng.integers(0, rng.choice([2, 120]), shape), dtype)

    def observation(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return values by names such as `obs`. A stack may repeat one frame."""
        obs = {name: self.values(rng, name) for name in self.fields if name.startswith("obs")}
        for name in self.stacks:
            if rng.random() < 0.5:
                obs[name][:] = obs[name][0]
        return obs

    def following(
        self, rng: np.random.Generator, obs: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the next observation: stacks move by a frame, and some parts may stay the same."""
        next_obs = self.observation(rng)
        for name, value in obs.items():
            if rng.random() < 0.1:
                next_obs[name] = value
            elif name in self.stacks and rng.random() < 0.8:
                next_obs[name] = np.concatenate([value[1:], next_obs[name][:1]])
        return next_obs

    def step(self, rng: np.random.Generator, env: int, style: str, ends: float) -> dict[str, Any]:
        """Return one transition with every field by its name."""
        chain_probability = {"chained": 1.0, "loose": 0.0, "still": 1.0, "mixed": 0.7}[style]
        obs, last = self.observation(rng), self.last[env]
        if last is not None and rng.random() < chain_probability:
            obs = last
        next_obs = obs if style == "still" else self.following(rng, obs)
        values = {name: self.values(rng, name) for name in self.fields}
        values["reward"] = np.float32(rng.integers(-8, 9) / 4)  # sums of these are exact
        values["terminated"] = np.bool_(rng.random() < ends)
        if "truncated" in self.fields:
            values["truncated"] = np.bool_(rng.random() < ends / 2)
        values.update({name: value.copy() for name, value in obs.items()})
        values.update({f"next_{name}": value.copy() for name, value in next_obs.items()})
        self.last[env] = next_obs
        return values


def disguise(rng: np.random.Generator, array: np.ndarray) -> Any:
    """Return the same numbers in another memory layout, byte order or type."""
    kind = rng.integers(6)
    if kind == 0 and array.ndim > 0:
        return np.repeat(array, 2, axis=-1)[..., ::2]  # with strides
    if kind == 1 and array.ndim > 0:
        return np.asfortranarray(array)
    if kind == 2:
        return array.astype(array.dtype.newbyteorder(">"))
    if kind == 3 and array.ndim == 0:
        return array.item()
    return array


SEEDS = st.integers(0, 2**32 - 1)
STYLES = st.sampled_from(["chained", "chained", "mixed", "loose", "still"])
ENDS = st.sampled_from([0.0, 0.1, 0.1, 0.5, 1.0])
WEIGHTS = st.sampled_from(["small", "signed", "zero", "equal", "huge", "mixed"])


class Model(RuleBasedStateMachine):
    """A state machine that drives the buffer and the twin. Tests set `setups`."""

    setups: st.SearchStrategy[Setup]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.held_batches: list[tuple[Batch, dict[str, bytes]]] = []
        self.setup: Setup | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(data=st.data(), seed=SEEDS)
    def make(self, data: st.DataObject, seed: int) -> None:
        self.setup = data.draw(self.setups)
        self.buffer = self.make_buffer(seed)
        self.twin = reference.Replay(
            self.setup.capacity, self.setup.sampler, **self.setup.options()
        )
        self.world = TransitionSource(self.setup)
        self.num_samples = self.filled = 0

    def make_buffer(self, seed: int) -> ReplayBuffer:
        assert self.setup is not None
        return ReplayBuffer(
            self.setup.capacity,
            self.setup.fields(),
            sampler=self.setup.sampler,
            seed=seed,
            share_next_obs=self.setup.shared,
            frame_stacks=self.setup.frame_stacks,
            memory_map=self.folder if self.setup.mapped else None,
            **self.setup.options(),
        )

    # Properties of the setup.

    @property
    def takes_weight(self) -> bool:
        return self.twin.sampler.weighted and self.twin.weight_from is None

    @property
    def has_priorities(self) -> bool:
        return isinstance(self.twin.sampler, (Prioritized, RankBased))

    @property
    def replaces(self) -> bool:
        return getattr(self.twin.sampler, "replacement", True)

    def weights(self, rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
        by_kind = {
            "small": rng.random(count),
            "signed": rng.normal(size=count),
            "zero": np.zeros(count),
            "equal": np.full(count, rng.normal()),
            "huge": rng.choice([1e18, -1e18, 3e17, 1.0, 0.0], count),
        }
        if kind == "mixed":
            kinds = rng.choice(["small", "signed", "zero", "huge"], count)
            weights = np.array([by_kind[entry_kind][i] for i, entry_kind in enumerate(kinds)])
        else:
            weights = by_kind[kind]
        return np.abs(weights) if self.has_priorities else weights

    def maybe_weights(self, rng: np.random.Generator, kind: str, count: int) -> np.ndarray | None:
        """Return weights for `add` and `extend`. Priorities are optional."""
        if not self.takes_weight or (self.has_priorities and rng.random() < 0.5):
            return None
        return self.weights(rng, kind, count)

    # Writing.

    @rule(seed=SEEDS, style=STYLES, ends=ENDS, kind=WEIGHTS, count=st.integers(1, 9))
    def add(self, seed: int, style: str, ends: float, kind: str, count: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(count):
            env = int(rng.integers(self.twin.num_envs))
            step = self.world.step(rng, env, style, ends)
            weights = self.maybe_weights(rng, kind, 1)
            kwargs: dict[str, Any] = {}
            if weights is not None:
                kwargs["weight"] = weights[0] if rng.random() < 0.3 else float(weights[0])
            if env > 0 or rng.random() < 0.5:
                kwargs["env"] = np.int32(env) if rng.random() < 0.3 else env
            fields = {name: disguise(rng, value) for name, value in step.items()}
            self.buffer.add(**nested(fields), **kwargs)
            self.twin.add(step, env=env, weight=kwargs.get("weight"))

    @rule(seed=SEEDS, style=STYLES, ends=ENDS, kind=WEIGHTS, count=ROWS)
    def extend(self, seed: int, style: str, ends: float, kind: str, count: int) -> None:
        rng, num_envs = np.random.default_rng(seed), self.twin.num_envs
        kwargs: dict[str, Any] = {}
        if rng.random() < 0.5:
            count -= count % num_envs
            envs = [row % num_envs for row in range(count)]
        else:
            envs = rng.integers(0, num_envs, count).tolist()
            kwargs["env"] = envs if count and rng.random() < 0.5 else np.array(envs, np.int64)
        assume(count > 0)
        if rng.random() < 0.5:
            kwargs["valid"] = rng.random(count) < rng.choice([0.0, 0.5, 0.9])
        weights = self.maybe_weights(rng, kind, count)
        if weights is not None:
            kwargs["weight"] = weights
        steps = [self.world.step(rng, env, style, ends) for env in envs]
        columns = {
            name: disguise(rng, np.stack([step[name] for step in steps])) for name in steps[0]
        }
        self.buffer.extend(**nested(columns), **kwargs)
        self.twin.extend(steps, envs=envs, weights=kwargs.get("weight"), valid=kwargs.get("valid"))

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        env = data.draw(st.sampled_from([None, *range(self.twin.num_envs)]))
        self.buffer.cut(env)
        self.twin.cut(env)

    @precondition(lambda self: self.twin.sampler.weighted and self.twin.num_added > 0)
    @rule(seed=SEEDS, kind=WEIGHTS, count=SIZES)
    def update_weights(self, seed: int, kind: str, count: int) -> None:
        rng = np.random.default_rng(seed)
        oldest = max(self.twin.num_added - 2 * self.twin.capacity, 0)
        numbers = rng.integers(oldest, self.twin.num_added, count)  # stale and repeated ones
        if self.twin.weight_from is not None and kind in ("huge", "mixed"):
            kind = "signed"  # means of huge weights are less accurate than 1e-9
        weights = self.weights(rng, kind, count)
        applied = self.buffer.update_weights(numbers, weights)
        assert applied == self.twin.update_weights(numbers, weights)

    @precondition(lambda self: self.takes_weight)
    @rule(seed=SEEDS, wrong=st.sampled_from([np.nan, np.inf, -np.inf]), count=st.integers(1, 5))
    def refuse_bad_weights(self, seed: int, wrong: float, count: int) -> None:
        """The invariants check that nothing has changed."""
        rng = np.random.default_rng(seed)
        world = TransitionSource(self.setup)
        steps = [world.step(rng, 0, "mixed", 0.3) for _ in range(count)]
        weights = np.ones(count)
        if self.has_priorities and seed % 2:
            wrong = -1.0
        weights[rng.integers(count)] = wrong
        columns = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
        with pytest.raises(ReplayError, match="weight"):
            self.buffer.extend(**nested(columns), weight=weights, env=np.zeros(count, np.int64))
        with pytest.raises(ReplayError, match="weight"):
            self.buffer.add(**nested(steps[0]), weight=wrong)
        if self.twin.num_added >= count:
            with pytest.raises(ReplayError, match="weight"):
                self.buffer.update_weights(np.arange(count), weights)
        for number in (-1, self.twin.num_added):
            with pytest.raises(ReplayError, match=f"number {number}"):
                self.buffer.update_weights([number], [1.0])
            with pytest.raises(ReplayError, match=f"number {number}"):
                self.buffer.get([number])

    # Reading.

    @rule(size=SIZES, beta=st.sampled_from([None, None, 0.0, 0.7]), hold=st.booleans())
    def sample(self, size: int, beta: float | None, hold: bool) -> None:
        law = self.law()
        positive = sum(share > 0 for share in law.values())
        kwargs = {} if beta is None or not self.has_priorities else {"beta": beta}
        if not self.can_draw(size):
            state = self.buffer.num_samples
            with pytest.raises(ReplayError):
                self.buffer.sample(size, **kwargs)
            assert self.buffer.num_samples == state
            return
        batch = self.buffer.sample(size, **kwargs)
        self.check_fields(batch)
        assert batch.index.dtype == np.int64
        assert batch.index.shape == (size,)
        numbers = batch.index.tolist()
        if not self.replaces:
            assert len(set(numbers)) == size
        if not self.twin.sampler.weighted:
            assert not hasattr(batch, "weight")
            assert not hasattr(batch, "probability")
        else:
            without_weight = self.without_weight()
            self.check_weights(batch)
            assert batch.probability.dtype == np.float64
            expected = [law[number] for number in numbers]
            np.testing.assert_allclose(batch.probability, expected, rtol=1e-9, atol=0)
            if without_weight:
                self.filled += size
            elif self.replaces or positive >= size:
                assert all(law[number] > 0 for number in numbers)
            else:
                assert {number for number in law if law[number] > 0} <= set(numbers)
                self.filled += size - positive
        if self.has_priorities:
            self.check_importance(batch, law, beta)
            if self.twin.sampler.stratified:
                self.check_strata(batch, law)
        else:
            assert not hasattr(batch, "importance")
        self.num_samples += 1
        if hold:
            self.hold_batch(batch)

    def hold_batch(self, batch: Any) -> None:
        content = {name: value.tobytes() for name, value in flat(vars(batch)).items()}
        self.held_batches = [*self.held_batches[-2:], (batch, content)]

    @precondition(lambda self: self.twin.num_added > self.twin.capacity)
    @rule()
    def refuse_overwritten_numbers(self) -> None:
        number = self.twin.num_added - self.twin.capacity - 1
        with pytest.raises(ReplayError, match=f"{number} was overwritten"):
            self.buffer.get([self.twin.num_added - 1, number])

    @rule(size=SIZES, continued=st.sampled_from(["saved", "loaded", "restored"]))
    def save_and_load(self, size: int, continued: str) -> None:
        path = self.folder / "buffer"
        self.buffer.save(path)
        restored = self.make_buffer(seed=1)
        rng = np.random.default_rng(size)
        for env in range(self.twin.num_envs):  # earlier content leaves no trace
            step = TransitionSource(self.setup).step(rng, env, "loose", 0.0)
            kwargs = {"weight": 5.0} if self.takes_weight else {}
            restored.add(**nested(step), env=env, **kwargs)
        restored.restore(path)
        mapped = self.folder if self.setup.mapped else None
        buffers = {
            "saved": self.buffer,
            "loaded": ReplayBuffer.load(path, memory_map=mapped),
            "restored": restored,
        }
        if self.can_draw(size):
            batches = [flat(vars(buffer.sample(size))) for buffer in buffers.values()]
            for batch, expected in itertools.pairwise(batches):
                assert list(batch) == list(expected)
                for name, value in batch.items():
                    assert value.dtype == expected[name].dtype
                    assert value.tobytes() == expected[name].tobytes(), name
            self.num_samples += 1
            positive = sum(share > 0 for share in self.law().values())
            if self.without_weight():
                self.filled += size
            elif not self.replaces:
                self.filled += max(size - positive, 0)
        self.buffer = buffers[continued]

    def can_draw(self, size: int) -> bool:
        live = len(self.twin.entries)
        if live == 0 or (size > live and not self.replaces):
            return False
        if not getattr(self.twin.sampler, "strict", False):
            return True
        positive = sum(share > 0 for share in self.law().values())
        # Draws with replacement are never strict: without weights they are uniform.
        return self.replaces or (not self.without_weight() and positive >= size)

    def law(self) -> dict[int, float]:
        """Return draw probabilities from the buffer's weights, which are correct to 1e-9."""
        if not self.twin.entries or not self.twin.sampler.weighted:
            return self.twin.law() if self.twin.entries else {}
        numbers = self.twin.numbers
        weights = self.buffer.get(numbers).weight.tolist()
        return self.twin.law(dict(zip(numbers, weights, strict=True)))

    def without_weight(self) -> bool:
        """Whether no entry has weight, so that batches are uniform."""
        if not isinstance(self.twin.sampler, Proportional):
            return False
        weights = self.buffer.get(self.twin.numbers).weight
        shift = self.twin.sampler.shift
        shift = max(-weights.min(), 0.0) if shift == "min" else shift
        return not (weights + shift > 0).any()

    # Checks.

    def check_fields(self, batch: Batch) -> None:
        """Check every byte of every entry."""
        expected = [self.twin.entries[number].fields for number in batch.index.tolist()]
        actual = flat({name: batch[name] for name in batch.keys()})  # noqa: SIM118
        extra = {"index", "weight", "probability", "importance"}
        assert actual.keys() - extra == expected[0].keys()
        for name in expected[0]:
            column = np.stack([fields[name] for fields in expected])
            assert actual[name].dtype == column.dtype, name
            assert actual[name].shape == column.shape, name
            if actual[name].tobytes() != column.tobytes():
                for number, got, other in zip(batch.index, actual[name], column, strict=True):
                    assert got.tobytes() == other.tobytes(), (
                        f"{name} of {number}: {got}, not {other}"
                    )

    def check_weights(self, batch: Batch) -> None:
        expected = [self.twin.entries[number].weight for number in batch.index.tolist()]
        greatest = max(abs(entry.weight) for entry in self.twin.entries.values())
        near_zero = 1e-12 * greatest if self.twin.weight_from is not None else 0.0
        assert batch.weight.dtype == np.float64
        np.testing.assert_allclose(batch.weight, expected, rtol=1e-9, atol=near_zero)

    def check_importance(self, batch: Batch, law: dict[int, float], beta: float | None) -> None:
        sampler: Any = self.twin.sampler
        if beta is None:
            beta = sampler.beta
            if sampler.beta_samples is not None:
                progress = min(self.num_samples / sampler.beta_samples, 1.0)
                beta = sampler.beta + (sampler.beta_final - sampler.beta) * progress
        expected = reference.importance(
            [law[number] for number in batch.index.tolist()],
            list(law.values()),
            beta=beta,
            normalize=sampler.normalize,
        )
        assert batch.importance.dtype == np.float32
        np.testing.assert_allclose(batch.importance, expected, rtol=1e-5)

    def check_strata(self, batch: Batch, law: dict[int, float]) -> None:
        """Draw i lies in stratum i of B equal ones. Entries are ordered by slot or by rank."""
        numbers = sorted(law, key=lambda number: number % self.twin.capacity)
        if isinstance(self.twin.sampler, RankBased):
            weights = self.buffer.get(numbers).weight.tolist()
            ranks = reference.ranks(weights, [number % self.twin.capacity for number in numbers])
            numbers = [number for _, number in sorted(zip(ranks, numbers, strict=True))]
        ends = np.cumsum([law[number] for number in numbers])
        for i, number in enumerate(batch.index.tolist()):
            end = ends[numbers.index(number)]
            assert end >= i / len(batch) - 1e-9
            assert end - law[number] <= (i + 1) / len(batch) + 1e-9

    @invariant()
    def all_entries_are_the_same(self) -> None:
        if self.setup is None:
            return
        assert len(self.buffer) == len(self.twin.entries)
        assert self.buffer.num_added == self.twin.num_added
        if not self.twin.entries:
            return
        batch = self.buffer.get(self.twin.numbers)
        assert batch.index.tolist() == self.twin.numbers
        self.check_fields(batch)
        if self.twin.sampler.weighted:
            self.check_weights(batch)

    @invariant()
    def counts_are_the_same(self) -> None:
        if self.setup is None:
            return
        assert self.buffer.counters == {
            "filled_uniformly": self.filled,
            "stale_updates": self.twin.stale_updates,
        }
        assert self.buffer.num_samples == self.num_samples

    @invariant()
    def held_batches_do_not_change(self) -> None:
        for batch, content in self.held_batches:
            for name, value in flat(vars(batch)).items():
                assert value.tobytes() == content[name], name


def check_machine(machine: type[Model], examples: int) -> None:
    """Run a state machine with the same examples in every run."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("examples", [15, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MACHINES)
def test_buffer_matches_its_twin(name, examples):
    machine = type("Model", (Model,), {"setups": MACHINES[name]})
    check_machine(machine, examples)
