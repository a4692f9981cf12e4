"""Sequences are of one environment and one episode, and as likely as each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from hotloop.errors import ConfigError, ReplayError
from hotloop.replay import Batch, ReplayBuffer, Sequences
from tests.reference import replay as reference
from tests.replay.test_model import LAYOUTS, Model, Setup, flat, setups
from tests.replay.test_sampling import assert_law


def firsts_of(batch: Batch) -> list[int]:
    """The numbers that were drawn: of each sequence's first transition to learn from."""
    return batch.index[batch.mask.argmax(axis=0), np.arange(len(batch))].tolist()


def check(batch: Batch, twin: reference.Replay) -> None:
    """Every byte of every sequence is what the twin says, given which ones were drawn."""
    sampler: Any = twin.sampler
    shape = (sampler.burn_in + sampler.length, len(batch))
    assert (batch.index.dtype, batch.index.shape) == (np.int64, shape)
    assert (batch.mask.dtype, batch.mask.shape) == (np.bool_, shape)
    want = [twin.sequence(first) for first in firsts_of(batch)]
    np.testing.assert_array_equal(batch.index.T, [numbers for numbers, _ in want])
    np.testing.assert_array_equal(batch.mask.T, [mask for _, mask in want])
    found = flat({name: batch[name] for name in batch})
    names = twin.entries[twin.num_added - 1].fields.keys()
    assert found.keys() == {*names, "index", "mask"}
    for name in names:
        rows = batch.index[:1] if name == "memory" else batch.index
        column = np.stack([twin.entries[number].fields[name] for number in rows.flat])
        column = column.reshape(*rows.shape, *column.shape[1:])
        column = column[0] if name == "memory" else column
        assert (found[name].dtype, found[name].shape) == (column.dtype, column.shape), name
        assert found[name].tobytes() == column.tobytes(), name


# Against the twin.


class SequenceModel(Model):
    """As the model of all buffers, which adds, cuts, leaves out, saves and loads."""

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
            seen = {name: value.tobytes() for name, value in flat(vars(batch)).items()}
            self.held = [*self.held[-2:], (batch, seen)]


def with_room(setup: Setup) -> Setup:
    sampler: Any = setup.sampler
    return replace(setup, capacity=max(setup.capacity, sampler.steps))


SEQUENCES = st.builds(Sequences, length=st.integers(1, 7), burn_in=st.integers(0, 6))
OTHERS = tuple(name for name, (_, others, _) in LAYOUTS.items() if "mask" not in others)


@pytest.mark.parametrize("examples", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_sequences_are_those_of_the_twin(examples):
    SequenceModel.setups = setups(SEQUENCES, False, OTHERS).map(with_room)
    run_state_machine_as_test(
        SequenceModel,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


# By hand.

FIELDS: dict[str, Any] = {
    "obs": ((1,), np.float32),
    "next_obs": ((1,), np.float32),
    "reward": ((), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
}


def made(length: int, burn_in: int = 0, capacity: int = 16, **options: Any) -> ReplayBuffer:
    sampler = Sequences(length=length, burn_in=burn_in)
    options = {"fields": FIELDS, "seed": 0, **options}
    return ReplayBuffer(capacity, sampler=sampler, **options)


def walk(buffer: ReplayBuffer, *observations: float, end: str | None = None, **told: Any) -> None:
    """Steps from each observation to the next whole number; `end` is the last one's flag."""
    for obs in observations:
        is_last = obs == observations[-1]
        buffer.add(
            obs=np.array([obs], np.float32),
            next_obs=np.array([obs + 1], np.float32),
            reward=obs / 2,
            terminated=is_last and end == "terminated",
            truncated=is_last and end == "truncated",
            **told,
        )


def found(buffer: ReplayBuffer) -> dict[float, tuple[list[float], str]]:
    """By the observation to learn from first: all observations; and x where they are learned."""
    batch = buffer.sample(30 * len(buffer))
    obs, mask = batch.obs[..., 0].T.tolist(), batch.mask.T.tolist()
    np.testing.assert_array_equal(batch.next_obs, batch.obs + 1)
    np.testing.assert_array_equal(batch.reward, batch.obs[..., 0] / 2)
    sequences = {}
    for one, learned in zip(obs, mask, strict=True):
        marks = "".join("x" if x else "-" for x in learned)
        sequence = sequences.setdefault(one[learned.index(True)], (one, marks))
        assert sequence == (one, marks)
    return sequences


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("end", ["terminated", "truncated", "cut"])
def test_sequences_stay_within_an_episode(end, shared):
    buffer = made(2, 2, share_next_obs=shared)
    walk(buffer, 0, 1, 2, end=end)
    if end == "cut":
        buffer.cut()
    walk(buffer, 3, 4, 5, 6)
    assert found(buffer) == {
        0: ([0, 1, 1, 1], "xx--"),
        1: ([0, 1, 2, 2], "-xx-"),
        2: ([0, 1, 2, 2], "--x-"),
        3: ([3, 4, 4, 4], "xx--"),
        4: ([3, 4, 5, 5], "-xx-"),
        5: ([3, 4, 5, 6], "--xx"),
        6: ([4, 5, 6, 6], "--x-"),
    }
    walk(buffer, 7)  # goes on with the episode that is running
    assert found(buffer)[6] == ([4, 5, 6, 7], "--xx")


def test_windows_of_several_steps():
    buffer = made(2, 1, n_step=2, gamma=0.5)
    walk(buffer, 0, 1, 2, end="terminated")
    walk(buffer, 4, 5, 6)
    batch = buffer.sample(200)
    firsts = batch.obs[batch.mask.argmax(0), np.arange(200), 0]
    want = {  # of each sequence: obs, reward, next_obs; 6 waits for its window
        0: ([0, 1, 1], [0.25, 1.0, 1.0], [2, 3, 3]),
        1: ([0, 1, 2], [0.25, 1.0, 1.0], [2, 3, 3]),
        2: ([1, 2, 2], [1.0, 1.0, 1.0], [3, 3, 3]),
        4: ([4, 5, 5], [3.25, 4.0, 4.0], [6, 7, 7]),
        5: ([4, 5, 5], [3.25, 4.0, 4.0], [6, 7, 7]),
    }
    assert set(firsts.tolist()) == set(want)
    for one, first in enumerate(firsts.tolist()):
        obs, reward, next_obs = want[first]
        assert batch.obs[:, one, 0].tolist() == obs
        assert batch.reward[:, one].tolist() == reward
        assert batch.next_obs[:, one, 0].tolist() == next_obs


# How likely each is.


def test_each_transition_is_drawn_as_often():
    """Also the first ones and the last ones of episodes, and what was just stored."""
    buffer = made(6, 4, capacity=40, num_envs=3, seed=5)
    rng = np.random.default_rng(1)
    for _ in range(97):
        env, ends = int(rng.integers(3)), rng.random() < 0.2
        walk(buffer, float(rng.integers(99)), env=env, end="terminated" if ends else None)
    drawn = np.concatenate([firsts_of(buffer.sample(500)) for _ in range(40)])
    counts = np.bincount(drawn - (buffer.num_added - 40), minlength=40)
    assert_law(counts, np.full(40, 1 / 40))


# A leak.


def test_a_leak_across_an_end_is_seen():
    """What the comparison with the twin is worth, where one end is overseen."""
    buffer = made(3, 2)
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
    words[6, layout.following :][:4].view(np.int32)[:] = 1  # as if it had not ended
    with pytest.raises(AssertionError):
        check(buffer.sample(200), twin)
    words[6, layout.following :][:4].view(np.int32)[:] = 0
    words[7, layout.previous :][:4].view(np.int32)[:] = 1
    with pytest.raises(AssertionError):
        check(buffer.sample(200), twin)


# What is remembered.


def test_memory_is_that_of_the_first_row_alone():
    fields = {**FIELDS, "memory": ((6,), np.float32)}
    buffer = made(2, 3, fields=fields)
    for step in range(10):
        memory = np.arange(6, dtype=np.float32) + 10 * step
        walk(buffer, step, memory=memory, end="terminated" if step == 3 else None)
    batch = buffer.sample(50)
    assert batch.obs.shape == (5, 50, 1)
    assert batch.memory.shape == (50, 6)
    np.testing.assert_array_equal(batch.memory, 10 * batch.obs[0] + np.arange(6))
    assert {*batch.memory[:, 0].tolist()} == {0.0, 40.0, 50.0, 60.0}
    # Not in the row, every byte of which is read for all transitions of a sequence.
    assert buffer.layout.row_bytes == made(2, 3).layout.row_bytes + 4
    assert buffer.get([3, 8]).memory[:, 0].tolist() == [30.0, 80.0]


def test_of_an_environment_that_resets_itself():
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
    goes_on = batch.index[1:] > batch.index[:-1]
    np.testing.assert_array_equal(batch.obs[1:][goes_on], batch.next_obs[:-1][goes_on])
    assert not batch.terminated[:-1][goes_on].any()
    np.testing.assert_array_equal(batch.memory, 2 * batch.obs[0])
    num_learned = batch.mask.sum(0)
    newest = buffer.get(np.arange(buffer.num_added - 3, buffer.num_added)).index
    last = batch.index[-1]
    ended = np.take_along_axis(batch.terminated, batch.mask.cumsum(0).argmax(0)[None], 0)[0]
    assert (num_learned[~ended & ~np.isin(last, newest)] == 7).all()
    assert set(num_learned) == {1, 2, 3, 4, 5, 6, 7}


# Memory of batches.


def test_into_the_same_memory():
    one, twin = made(3, 2), made(3, 2)
    for buffer in (one, twin):
        walk(buffer, 0, 1, 2, 3, end="truncated")
        walk(buffer, 4, 5, 6, 7)
    out = one.sample(8)
    assert len(out) == 8
    arrays = {name: out[name] for name in out}
    twin.sample(8)
    assert one.sample(8, out=out) is out
    other = twin.sample(8)
    for name, array in arrays.items():
        assert out[name] is array
        np.testing.assert_array_equal(array, other[name])
    for wrong in (one.get(np.arange(8)), one.sample(7), other):
        with pytest.raises(ReplayError, match="`out` must be a batch of 8 that this buffer gave"):
            one.sample(8, out=wrong)
    assert one.get(np.arange(8)).obs.shape == (8, 1)
    tensors = out.torch()
    assert tensors.mask.shape == tensors.index.shape == (5, 8)
    assert len(tensors) == 8


# What makes no sense.


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
def test_settings(settings, match):
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
def test_options_that_do_not_go_together(options, match):
    with pytest.raises(ConfigError, match=match):
        made(4, 3, **options)


def test_what_has_no_weights():
    buffer = made(2)
    with pytest.raises(ReplayError, match=r"weights are not used by Sequences\(length=2, burn"):
        walk(buffer, 0, weight=1.0)
    walk(buffer, 0)
    with pytest.raises(ReplayError, match="has no weights"):
        buffer.update_weights([0], [1.0])
    with pytest.raises(ConfigError, match="`memory_size` must be a whole number from 1 on, got -2"):
        ReplayBuffer.for_env(gymnasium.make("CartPole-v1"), 10, memory_size=-2)
