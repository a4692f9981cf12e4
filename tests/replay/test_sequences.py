"""Sequences stay within one episode of one environment, and all are equally likely."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import strategies as st
from hypothesis.stateful import rule

from hotloop.errors import ConfigError, ReplayError
from hotloop.replay import Batch, ReplayBuffer, Sequences
from tests.reference import replay as reference
from tests.replay.test_model import LAYOUTS, Model, Setup, check_machine, flat, setups
from tests.replay.test_sampling import assert_law


def drawn_numbers(batch: Batch) -> list[int]:
    """Return the drawn numbers: those of each sequence's first transition to learn from."""
    return batch.index[batch.mask.argmax(axis=0), np.arange(len(batch))].tolist()


def check(batch: Batch, twin: reference.Replay) -> None:
    """Check every byte of every sequence against the twin, for the same draws."""
    sampler: Any = twin.sampler
    shape = (sampler.burn_in + sampler.length, len(batch))
    assert (batch.index.dtype, batch.index.shape) == (np.int64, shape)
    assert (batch.mask.dtype, batch.mask.shape) == (np.bool_, shape)
    expected = [twin.sequence(first) for first in drawn_numbers(batch)]
    np.testing.assert_array_equal(batch.index.T, [numbers for numbers, _ in expected])
    np.testing.assert_array_equal(batch.mask.T, [mask for _, mask in expected])
    actual = flat({name: batch[name] for name in batch})
    names = twin.entries[twin.num_added - 1].fields.keys()
    assert actual.keys() == {*names, "index", "mask"}
    for name in names:
        rows = batch.index[:1] if name == "memory" else batch.index
        column = np.stack([twin.entries[number].fields[name] for number in rows.flat])
        column = column.reshape(*rows.shape, *column.shape[1:])
        column = column[0] if name == "memory" else column
        assert (actual[name].dtype, actual[name].shape) == (column.dtype, column.shape), name
        assert actual[name].tobytes() == column.tobytes(), name


# Against the twin.


class SequenceModel(Model):
    """The model of all buffers, which draws sequences."""

    @rule(size=st.integers(1, 40), hold=st.booleans())
    def sample(self, size: int, hold: bool) -> None:
        if not self.twin.entries:
            with pytest.raises(ReplayError, match="empty"):
                self.buffer.sample(size)
            return
        batch = self.buffer.sample(size)
        check(batch, self.twin)
        self.num_samples += 1
        if hold:
            self.hold_batch(batch)


def with_room(setup: Setup) -> Setup:
    sampler: Any = setup.sampler
    return replace(setup, capacity=max(setup.capacity, sampler.steps))


SEQUENCES = st.builds(Sequences, length=st.integers(1, 7), burn_in=st.integers(0, 6))
OTHER_LAYOUTS = tuple(name for name, (_, fields, _) in LAYOUTS.items() if "mask" not in fields)


@pytest.mark.parametrize("examples", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_sequences_match_the_twin(examples):
    SequenceModel.setups = setups(SEQUENCES, False, OTHER_LAYOUTS).map(with_room)
    check_machine(SequenceModel, examples)


# Hand-computed sequences.

FIELDS: dict[str, Any] = {
    "obs": ((1,), np.float32),
    "next_obs": ((1,), np.float32),
    "reward": ((), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
}


def make_buffer(length: int, burn_in: int = 0, capacity: int = 16, **options: Any) -> ReplayBuffer:
    sampler = Sequences(length=length, burn_in=burn_in)
    options = {"fields": FIELDS, "seed": 0, **options}
    return ReplayBuffer(capacity, sampler=sampler, **options)


def walk(buffer: ReplayBuffer, *observations: float, end: str | None = None, **kwargs: Any) -> None:
    """Add a step from each observation to the next integer. `end` is the flag of the last one."""
    for obs in observations:
        is_last = obs == observations[-1]
        buffer.add(
            obs=np.array([obs], np.float32),
            next_obs=np.array([obs + 1], np.float32),
            reward=obs / 2,
            terminated=is_last and end == "terminated",
            truncated=is_last and end == "truncated",
            **kwargs,
        )


def draw_sequences(buffer: ReplayBuffer) -> dict[float, tuple[list[float], str]]:
    """Map the first learned observation to all observations of its sequence and their marks."""
    batch = buffer.sample(30 * len(buffer))
    obs, mask = batch.obs[..., 0].T.tolist(), batch.mask.T.tolist()
    np.testing.assert_array_equal(batch.next_obs, batch.obs + 1)
    np.testing.assert_array_equal(batch.reward, batch.obs[..., 0] / 2)
    sequences = {}
    for observations, learned in zip(obs, mask, strict=True):
        marks = "".join("x" if is_learned else "-" for is_learned in learned)
        sequence = sequences.setdefault(observations[learned.index(True)], (observations, marks))
        assert sequence == (observations, marks)
    return sequences


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("end", ["terminated", "truncated", "cut"])
def test_sequences_stay_within_an_episode(end, shared):
    buffer = make_buffer(2, 2, share_next_obs=shared)
    walk(buffer, 0, 1, 2, end=end)
    if end == "cut":
        buffer.cut()
    walk(buffer, 3, 4, 5, 6)
    assert draw_sequences(buffer) == {
        0: ([0, 1, 1, 1], "xx--"),
        1: ([0, 1, 2, 2], "-xx-"),
        2: ([0, 1, 2, 2], "--x-"),
        3: ([3, 4, 4, 4], "xx--"),
        4: ([3, 4, 5, 5], "-xx-"),
        5: ([3, 4, 5, 6], "--xx"),
        6: ([4, 5, 6, 6], "--x-"),
    }
    walk(buffer, 7)  # continues the running episode
    assert draw_sequences(buffer)[6] == ([4, 5, 6, 7], "--xx")


def test_windows_of_several_steps():
    buffer = make_buffer(2, 1, n_step=2, gamma=0.5)
    walk(buffer, 0, 1, 2, end="terminated")
    walk(buffer, 4, 5, 6)
    batch = buffer.sample(200)
    firsts = batch.obs[batch.mask.argmax(0), np.arange(200), 0]
    expected = {  # obs, reward and next_obs by sequence. The window of 6 is incomplete.
        0: ([0, 1, 1], [0.25, 1.0, 1.0], [2, 3, 3]),
        1: ([0, 1, 2], [0.25, 1.0, 1.0], [2, 3, 3]),
        2: ([1, 2, 2], [1.0, 1.0, 1.0], [3, 3, 3]),
        4: ([4, 5, 5], [3.25, 4.0, 4.0], [6, 7, 7]),
        5: ([4, 5, 5], [3.25, 4.0, 4.0], [6, 7, 7]),
    }
    assert set(firsts.tolist()) == set(expected)
    for k, first in enumerate(firsts.tolist()):
        obs, reward, next_obs = expected[first]
        assert batch.obs[:, k, 0].tolist() == obs
        assert batch.reward[:, k].tolist() == reward
        assert batch.next_obs[:, k, 0].tolist() == next_obs


# Frequencies.


def test_all_transitions_are_equally_likely():
    """They include the first and last ones of episodes and the newest ones."""
    buffer = make_buffer(6, 4, capacity=40, num_envs=3, seed=5)
    rng = np.random.default_rng(1)
    for _ in range(97):
        env, ends = int(rng.integers(3)), rng.random() < 0.2
        walk(buffer, float(rng.integers(99)), env=env, end="terminated" if ends else None)
    numbers = np.concatenate([drawn_numbers(buffer.sample(500)) for _ in range(40)])
    counts = np.bincount(numbers - (buffer.num_added - 40), minlength=40)
    assert_law(counts, np.full(40, 1 / 40))


# Leaks across episodes.


def test_leaks_across_an_episode_end_are_detected():
    """The comparison with the twin fails if one end is ignored."""
    buffer = make_buffer(3, 2)
    twin = reference.Replay(16, buffer.sampler)
    rng = np.random.default_rng(0)
    for step in range(16):
        fields = {
            "obs": rng.normal(size=1).astype(np.float32),
            "next_obs": rng.normal(size=1).astype(np.float32),
            "reward": np.float32(step),
            "terminated": np.bool_(step == 6),
            "truncated": np.bool_(False),
        }
        buffer.add(**fields)
        twin.add(fields)
    check(buffer.sample(200), twin)
    layout, rows = buffer.layout, buffer._store.rows
    words = rows.reshape(16, layout.row_bytes)
    words[6, layout.following :][:4].view(np.int32)[:] = 1  # as if the episode had not ended
    with pytest.raises(AssertionError):
        check(buffer.sample(200), twin)
    words[6, layout.following :][:4].view(np.int32)[:] = 0
    words[7, layout.previous :][:4].view(np.int32)[:] = 1
    with pytest.raises(AssertionError):
        check(buffer.sample(200), twin)


# Recurrent memory.


def test_memory_comes_from_the_first_row():
    fields = {**FIELDS, "memory": ((6,), np.float32)}
    buffer = make_buffer(2, 3, fields=fields)
    for step in range(10):
        memory = np.arange(6, dtype=np.float32) + 10 * step
        walk(buffer, step, memory=memory, end="terminated" if step == 3 else None)
    batch = buffer.sample(50)
    assert batch.obs.shape == (5, 50, 1)
    assert batch.memory.shape == (50, 6)
    np.testing.assert_array_equal(batch.memory, 10 * batch.obs[0] + np.arange(6))
    assert {*batch.memory[:, 0].tolist()} == {0.0, 40.0, 50.0, 60.0}
    # Memory is not part of the row, which is read for all transitions of a sequence.
    assert buffer.layout.row_bytes == make_buffer(2, 3).layout.row_bytes + 4
    assert buffer.get([3, 8]).memory[:, 0].tolist() == [30.0, 80.0]


def test_sequences_of_environments_with_autoreset():
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3)
    sampler = Sequences(length=7, burn_in=5)
    buffer = ReplayBuffer.for_env(envs, 200, sampler=sampler, memory_size=4, seed=0)
    envs.action_space.seed(0)
    obs, _ = envs.reset(seed=0)
    for _ in range(150):
        action = envs.action_space.sample()
        next_obs, reward, terminated, truncated, _ = envs.step(action)
        buffer.extend(
            obs=obs,
            action=action,
            reward=reward,
            next_obs=next_obs,
            terminated=terminated,
            truncated=truncated,
            memory=2 * obs,
        )
        obs = next_obs
    batch = buffer.sample(300)
    continues = batch.index[1:] > batch.index[:-1]
    np.testing.assert_array_equal(batch.obs[1:][continues], batch.next_obs[:-1][continues])
    assert not batch.terminated[:-1][continues].any()
    np.testing.assert_array_equal(batch.memory, 2 * batch.obs[0])
    num_learned = batch.mask.sum(0)
    newest = buffer.get(np.arange(buffer.num_added - 3, buffer.num_added)).index
    last = batch.index[-1]
    is_last = np.take_along_axis(batch.terminated, batch.mask.cumsum(0).argmax(0)[None], 0)[0]
    assert (num_learned[~is_last & ~np.isin(last, newest)] == 7).all()
    assert set(num_learned) == {1, 2, 3, 4, 5, 6, 7}


# Batches drawn into earlier ones.


def test_sequences_may_be_drawn_into_an_earlier_batch():
    buffer, twin = make_buffer(3, 2), make_buffer(3, 2)
    for replay in (buffer, twin):
        walk(replay, 0, 1, 2, 3, end="truncated")
        walk(replay, 4, 5, 6, 7)
    out = buffer.sample(8)
    assert len(out) == 8
    arrays = {name: out[name] for name in out}
    twin.sample(8)
    assert buffer.sample(8, out=out) is out
    expected = twin.sample(8)
    for name, array in arrays.items():
        assert out[name] is array
        np.testing.assert_array_equal(array, expected[name])
    for wrong in (buffer.get(np.arange(8)), buffer.sample(7), expected):
        with pytest.raises(ReplayError, match="`out` must be a batch of 8 from this buffer"):
            buffer.sample(8, out=wrong)
    assert buffer.get(np.arange(8)).obs.shape == (8, 1)
    tensors = out.torch()
    assert tensors.mask.shape == tensors.index.shape == (5, 8)
    assert len(tensors) == 8


# Bad options.


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"length": 0}, "`length` must be a whole number from 1 on, got 0"),
        ({"length": 2.5}, "`length` must be a whole number from 1 on, got 2.5"),
        ({"length": True}, "`length` must be a whole number from 1 on, got True"),
        ({"length": 3, "burn_in": -1}, "`burn_in` must be a whole number from 0 on, got -1"),
        ({"length": 3, "burn_in": "5"}, "`burn_in` must be a whole number from 0 on, got '5'"),
    ],
)
def test_bad_settings(settings, match):
    with pytest.raises(ConfigError, match=match):
        Sequences(**settings)
    assert Sequences(length=np.int64(3)) == Sequences(length=3, burn_in=0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"capacity": 6}, r"`length` \+ `burn_in` must be at most `capacity`, 6, got 7"),
        ({"fields": {"x": ((), np.float32)}}, "Sequences needs a field `terminated`.*there is non"),
        (
            {"fields": {**FIELDS, "truncated": ((), np.float32)}},
            "Sequences needs `truncated` to be",
        ),
        (
            {"fields": {**FIELDS, "terminated": ((1,), np.bool_)}},
            r"Sequences needs a field `terminated`, .*shape \(1,\)",
        ),
        ({"fields": {**FIELDS, "mask": ((), np.bool_)}}, "field `mask` must have another name"),
        (
            {"weight_from": "episode_return"},
            "`weight_from` gives weights to Proportional, not to Sequences",
        ),
    ],
)
def test_incompatible_options(options, match):
    with pytest.raises(ConfigError, match=match):
        make_buffer(4, 3, **options)


def test_sequences_have_no_weights():
    buffer = make_buffer(2)
    with pytest.raises(ReplayError, match=r"weights are not used by Sequences\(length=2, burn"):
        walk(buffer, 0, weight=1.0)
    walk(buffer, 0)
    with pytest.raises(ReplayError, match="has no weights"):
        buffer.update_weights([0], [1.0])
    with pytest.raises(ConfigError, match="`memory_size` must be a whole number from 1 on, got -2"):
        ReplayBuffer.for_env(gymnasium.make("CartPole-v1"), 10, memory_size=-2)
