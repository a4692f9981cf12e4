"""Bad input is refused with what was expected and what came, and nothing is changed."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

from hotloop.base import memory
from hotloop.errors import (
    ConfigError,
    HotloopError,
    OutputError,
    ReplayError,
    ShapeError,
    install_command,
)
from hotloop.replay import Prioritized, Proportional, RankBased, ReplayBuffer, Uniform
from hotloop.replay.storage.allocator import Allocator

FIELDS = {
    "obs": ((3,), np.float32),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "next_obs": ((3,), np.float32),
    "terminated": ((), np.bool_),
}
IMAGES = {"obs": ((40, 30), np.uint8), "next_obs": ((40, 30), np.uint8)}
SHARED, TO_GO = {"share_next_obs": True}, {"weight_from": "return_to_go"}


def transition(number=0, count=None, fields=FIELDS):
    """Return one transition, or `count` of them."""
    leading = () if count is None else (count,)
    return {
        name: np.full((*leading, *shape), number % 2 if dtype == np.bool_ else number, dtype)
        for name, (shape, dtype) in fields.items()
    }


BUFFERS = {
    "uniform": {"sampler": Uniform(replacement=False), "share_next_obs": True},
    "proportional": {"sampler": Proportional(replacement=False)},
    "returns": {
        "sampler": Proportional(replacement=False),
        "weight_from": "episode_return",
        "n_step": 2,
    },
    "prioritized": {"sampler": Prioritized(beta_samples=9), "n_step": 3},
    "no alpha": {"sampler": Prioritized(alpha=0.0)},
    "ranks": {"sampler": RankBased(beta_samples=9), "share_next_obs": True},
    "images": {"sampler": Prioritized(), "share_next_obs": True, "fields": {**FIELDS, **IMAGES}},
}


class Twins:
    """Two buffers that are treated alike. One of them is then called with bad input."""

    def __init__(self, name, size=25):
        self.make = {"fields": FIELDS, "num_envs": 2, **BUFFERS[name]}
        self.buffer, self.twin = (ReplayBuffer(20, seed=3, **self.make) for _ in range(2))
        self.takes_weight = name == "proportional"
        step = 2 if size < 5 else 1  # no episode ends
        for number in range(size):
            self.both(
                "add", env=number % 2, **self.transition(step * number % 7), **self.weight(number)
            )
        if len(self.buffer):
            self.both("sample", 4)

    def transition(self, number=0, count=None):
        return transition(number, count, self.make["fields"])

    def weight(self, weight):
        return {"weight": weight} if self.takes_weight else {}

    def both(self, method, *args, **kwargs):
        return [getattr(buffer, method)(*args, **kwargs) for buffer in (self.buffer, self.twin)]

    def assert_alike(self, batch, expected):
        assert batch.keys() == expected.keys()
        for key in batch:
            assert batch[key].tobytes() == expected[key].tobytes(), key

    def assert_all_alike(self):
        buffer, twin = self.buffer, self.twin
        assert (buffer.num_added, buffer.num_samples) == (twin.num_added, twin.num_samples)
        assert buffer.counters == twin.counters
        if len(buffer):
            numbers = np.arange(buffer.num_added - len(buffer), buffer.num_added)
            self.assert_alike(*self.both("get", numbers))

    def assert_refused(self, error, match, method, *args, **kwargs):
        with pytest.raises(HotloopError, match=match) as info:
            getattr(self.buffer, method)(*args, **kwargs)
        assert type(info.value) is error
        self.assert_all_alike()

    def assert_as_before(self):
        """Check that both draw and store alike from here on."""
        for number in range(12):
            self.both("add", env=number % 2, **self.transition(number), **self.weight(1.0))
            if len(self.buffer) > 4:
                self.assert_alike(*self.both("sample", 4))
        self.assert_all_alike()
        self.both("cut")
        self.assert_all_alike()


def ids(name):
    return name.replace(" ", "-")


def make_twins(name):
    twins = Twins(name)
    yield twins
    twins.assert_as_before()


@pytest.fixture(params=list(BUFFERS), ids=ids)
def twins(request):
    yield from make_twins(request.param)


@pytest.fixture(params=[name for name in BUFFERS if name != "uniform"], ids=ids)
def weighted_twins(request):
    yield from make_twins(request.param)


@pytest.fixture(params=["prioritized", "no alpha", "ranks", "images"], ids=ids)
def prioritized_twins(request):
    yield from make_twins(request.param)


def takes_weights(twins):
    return twins.buffer.sampler.weighted and "weight_from" not in twins.make


def has_priorities(twins):
    return isinstance(twins.buffer.sampler, (Prioritized, RankBased))


# Weights.


@pytest.mark.parametrize("weight", [np.nan, -np.inf, 1e291, np.float32(np.inf)])
def test_weights_must_be_finite(weighted_twins, weight):
    twins, requirement = weighted_twins, "`weight` must be a finite number"
    value = rf"got {'-?'}({'nan' if weight != weight else 'inf|1e.?291'})"
    if float(weight) == 1e291 and isinstance(twins.buffer.sampler, Prioritized):
        return  # its power is finite
    match = f"{requirement}.*{value} at position 0; nothing was"
    for kind in (float, np.asarray, np.float32) if takes_weights(twins) else ():
        if kind is not np.float32 or np.isinf(weight):
            step = twins.transition(5)
            twins.assert_refused(ReplayError, match, "add", env=1, weight=kind(weight), **step)
    for place in (0, 3, 7):
        weights = np.ones(8)
        weights[place] = weight
        match = f"{requirement}.*{value} at position {place}; nothing was"
        steps = twins.transition(5, count=8)
        for values in (weights, weights.tolist()) if takes_weights(twins) else ():
            twins.assert_refused(ReplayError, match, "extend", weight=values, **steps)
        numbers = np.arange(twins.buffer.num_added - 8, twins.buffer.num_added)
        twins.assert_refused(ReplayError, match, "update_weights", numbers, weights)
        # Some numbers were overwritten long ago, or occur twice.
        twins.assert_refused(ReplayError, match, "update_weights", numbers * 0, weights)


@pytest.mark.parametrize("weight", [-1.0, -1e-300, -1e9])
def test_priorities_must_not_be_negative(prioritized_twins, weight):
    twins = prioritized_twins
    match = r"`weight` must be a finite number.* from 0 on .*got -1.* at position"
    twins.assert_refused(ReplayError, match, "add", weight=weight, **twins.transition(5))
    weights = [1.0, 2.0, weight, 3.0]
    twins.assert_refused(
        ReplayError, match + " 2", "extend", weight=weights, **twins.transition(5, count=4)
    )
    numbers = twins.buffer.num_added - 1 - np.arange(4)
    twins.assert_refused(ReplayError, match + " 2", "update_weights", numbers, weights)


def test_powers_of_priorities_must_be_finite():
    buffer = ReplayBuffer(9, FIELDS, sampler=Prioritized(alpha=3.0))
    with pytest.raises(ReplayError, match=r"`weight` must be .*got 1e\+200 at position 0"):
        buffer.add(weight=1e200, **transition())
    assert len(buffer) == 0
    buffer.add(weight=1e90, **transition())
    with pytest.raises(ReplayError, match=r"got 1e\+100 at position 1"):
        buffer.update_weights([0, 0], [1.0, 1e100])
    np.testing.assert_allclose(buffer.get([0]).weight, 1e270)


def test_weight_must_be_a_number(weighted_twins):
    if not takes_weights(weighted_twins):
        return
    transition = weighted_twins.transition(5)
    refusal = "`weight` must be"
    for weight in (np.ones(1), [1.0], 1j, "1.5", 10**400):
        match = refusal if isinstance(weight, int) else f"{refusal} a number"
        match += f".*{weight!r}" if isinstance(weight, str) else ""
        weighted_twins.assert_refused(ShapeError, match, "add", weight=weight, **transition)


@pytest.mark.parametrize(
    "weights",
    [
        np.ones(3),
        np.ones((4, 1)),
        1.0,
        np.ones(4, complex),
        ["a", "b", "c", "d"],
        [[1.0], [1.0, 2.0], [3.0], [4.0]],
    ],
    ids=lambda weights: f"{type(weights).__name__}-{np.size(np.array(weights, object))}",
)
def test_weights_of_another_shape_or_type(weighted_twins, weights):
    twins, match = weighted_twins, r"`weight` must be (numbers, shape \(4,\)|an array), got"
    if takes_weights(twins):
        four = twins.transition(5, count=4)
        twins.assert_refused(ShapeError, match, "extend", weight=weights, **four)
        twins.assert_refused(
            ShapeError, match, "extend", weight=weights, valid=np.ones(4, np.bool_), **four
        )
    numbers = twins.buffer.num_added - 1 - np.arange(4)
    twins.assert_refused(ShapeError, match, "update_weights", numbers, weights)


def test_unused_weights_are_refused():
    for name, reason in (("uniform", "not used by Uniform"), ("returns", "come from returns")):
        twins = Twins(name)
        match = f"this buffer's weights .*{reason}.*: leave `weight` out"
        twins.assert_refused(ReplayError, match, "add", weight=1.0, **twins.transition())
        twins.assert_refused(ReplayError, match, "add", weight=np.nan, **twins.transition())
        two = twins.transition(count=2)
        twins.assert_refused(ReplayError, match, "extend", weight=np.ones(2), **two)
        twins.assert_as_before()
    twins = Twins("uniform")
    match = r"Uniform\(.*\) has no weights: choose another `sampler`"
    twins.assert_refused(ReplayError, match, "update_weights", [20], [1.0])
    twins.assert_as_before()


def test_missing_weights():
    twins = Twins("proportional")
    match = "Proportional needs `weight`, or a buffer with `weight_from`: pass weight="
    twins.assert_refused(ReplayError, match, "add", **twins.transition())
    twins.assert_refused(ReplayError, match, "extend", **twins.transition(count=2))
    twins.assert_as_before()


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf])
def test_rewards_that_become_weights_must_be_finite(reward):
    twins, match = Twins("returns"), "`reward` must be a finite number.* at position"
    bad = {**twins.transition(1), "reward": reward}
    twins.assert_refused(ReplayError, match + " 0", "add", **bad)
    bad = {**twins.transition(1, count=4), "reward": np.array([1, 2, 3, reward], np.float32)}
    twins.assert_refused(ReplayError, match + " 3", "extend", **bad)
    twins.assert_as_before()
    plain = Twins("uniform")  # other buffers accept such rewards
    plain.both("add", **{**plain.transition(1), "reward": reward})
    plain.assert_as_before()


# Fields.


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"obs": np.zeros((1, 3), np.float32)}, r"shape \(3,\), got \(1, 3\): `extend` takes a b"),
        ({"obs": 1.0}, r"`obs` must have shape \(3,\), got \(\)"),
        ({"obs": [0.0, 1.0]}, r"`obs` must have shape \(3,\), got \(2,\)"),
        ({"obs": [[0.0], [1.0, 2.0]]}, r"`obs` must be an array, got \[\[0.0\], "),
        ({"obs": None}, r"`obs` must .*got"),
        ({"obs": np.zeros(3, complex)}, r"`obs` must be float32, got complex128"),
        ({"obs": np.array([1, 2, None])}, r"`obs` must be float32, got object"),
        ({"obs": {"pos": np.zeros(3)}}, r"`obs` must have shape \(3,\), got \(\)"),
        ({"next_obs": np.zeros(2, np.float32)}, r"`next_obs` must have shape \(3,\), got \(2,\)"),
        ({"action": 1.5}, r"`action` must be int64, got float64 1.5"),
        ({"action": np.float32(1)}, r"`action` must be int64, got float32: convert it"),
        ({"action": np.zeros(1, np.int64)}, r"`action` must have shape \(\), got \(1,\)"),
        ({"action": 2**70}, r"`action` must be int64, got object"),
        ({"reward": "1.0"}, r"`reward` must be float32, got <U3"),
        ({"reward": 10**400}, r"`reward` must be float32, got object"),
        ({"terminated": 0.5}, r"`terminated` must be bool, got float64"),
        ({"terminated": 2}, r"`terminated` must be bool, got int64"),
        ({"terminated": np.int64(1)}, r"`terminated` must be bool, got int64: convert it"),
        ({"xyz": np.zeros(3)}, r"there is no field `xyz`; fields are `obs`, `act"),
        ({"rewards": 1.0}, r"there is no field `rewards`; did you mean 'reward'\?; fields are"),
    ],
)
def test_unsuitable_fields(changes, match):
    for name in ("uniform", "proportional", "prioritized"):
        twins = Twins(name)
        bad = {**twins.transition(5), **twins.weight(1.0), **changes}
        twins.assert_refused(ShapeError, match, "add", **bad)
        twins.assert_refused(ShapeError, match, "add", env=1, **dict(reversed(bad.items())))
        twins.assert_as_before()


def test_missing_fields():
    for name in BUFFERS:
        twins = Twins(name)
        for missing in twins.make["fields"]:
            bad = {**twins.transition(5), **twins.weight(1.0)}
            bad.pop(missing)
            match = f"field `{missing}` is missing: a transition has `obs`, `action`, `reward`"
            twins.assert_refused(ShapeError, match, "add", **bad)
            bad = {**twins.transition(5, count=2), **twins.weight(np.ones(2))}
            bad.pop(missing)
            twins.assert_refused(ShapeError, match, "extend", **bad)
        twins.assert_refused(ShapeError, "field `obs` is missing", "add", **twins.weight(1.0))
        twins.assert_refused(ShapeError, "field `obs` is missing", "extend", **twins.weight([]))
        twins.assert_as_before()


def test_unsuitable_images():
    twins = Twins("images")
    for wrong, match in (
        (np.zeros((40, 31), np.uint8), r"must have shape \(40, 30\), got \(40, 31\)"),
        (np.zeros((40, 30)), "must be uint8, got float64"),
        (np.full((40, 30), 256).tolist(), "must be uint8, got int64"),
    ):
        for name in ("obs", "next_obs"):
            bad = {**twins.transition(5), name: wrong}
            twins.assert_refused(ShapeError, f"`{name}` {match}", "add", **bad)
            many = {**twins.transition(5, count=2), name: np.array([wrong, wrong])}
            batched = match.replace(r"\(40,", r"\(2, 40,")
            twins.assert_refused(ShapeError, f"`{name}` {batched}", "extend", **many)
    twins.assert_as_before()


@pytest.mark.parametrize(
    "name",
    [
        *("type", "int", "float", "print", "TypeError", "ValueError", "class", "None", "lambda"),
        *("add", "extend", "buffer", "target0", "where0", "kinds0", "stage", "nan", "fields"),
        *("_absent", "_buffer", "_fields", "_write", "_at", "_n", "_v", "__class__", "__dict__"),
        *("given", "a b", "a.b", "ε", "é", "ﬁ", "0", "x" * 300, "_", "_owner", "_unknown"),
        *("_needs_weight", "_takes_weight", "_nan", "_acquire", "_release"),
    ],
)
@pytest.mark.parametrize("sampler", [Uniform(), Proportional()])
def test_field_names_are_unrestricted(name, sampler):
    fields = {name: ((), np.float32), "array": ((2,), np.int64), "flag": ((), np.bool_)}
    buffers = [ReplayBuffer(9, fields, sampler=sampler)]
    buffers.append(ReplayBuffer(9, {"first": ((3,), np.float32), **fields}, sampler=sampler))
    for buffer, more in zip(buffers, ({}, {"first": np.ones(3, np.float32)}), strict=True):
        if sampler.weighted:
            more["weight"] = 1.0
        for number in range(3):
            values = {name: number + 0.5, "array": np.full(2, number), "flag": number == 1}
            buffer.add(**values, **more)
        many = {key: np.repeat(np.asarray(value)[None], 2, 0) for key, value in more.items()}
        values = {name: [3.5, 4.5], "array": [[3, 3], [4, 4]], "flag": [False, False]}
        buffer.extend(**values, **many)
        batch = buffer.get(np.arange(5))
        assert batch[name].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
        assert batch["array"][:, 1].tolist() == [0, 1, 2, 3, 4]
        assert batch["flag"].tolist() == [False, True, False, False, False]
        with pytest.raises(ShapeError, match="there is no field `else`"):
            buffer.add(**{**values, "else": 3}, **more)


def test_add_method_keeps_its_buffer_alive():
    buffer = ReplayBuffer(9, FIELDS)
    add, buffer_ref = buffer.add, weakref.ref(buffer)
    del buffer
    gc.collect()
    assert buffer_ref() is not None  # `add` writes to it
    add(**transition())
    assert len(buffer_ref()) == 1
    del add
    gc.collect()
    assert buffer_ref() is None


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_numbers_beyond_the_range_of_a_field(dtype):
    # Python's numbers have no dtype, so they must be stored unchanged or refused.
    info = np.iinfo(dtype)
    buffer = ReplayBuffer(9, {"x": ((), dtype), "y": ((2,), dtype)})
    buffer.add(x=int(info.max), y=[int(info.max), int(info.max) - 1])
    assert buffer.get([0]).x.tolist() == [info.max]
    assert buffer.get([0]).y.tolist() == [[info.max, info.max - 1]]
    for wrong in (int(info.max) + 1, int(info.min) - 1, 10**30):
        with pytest.raises(ShapeError, match=f"`x` must .*{np.dtype(dtype)}"):
            buffer.add(x=wrong, y=[0, 0])
        with pytest.raises(ShapeError, match=f"`y` must .*{np.dtype(dtype)}"):
            buffer.add(x=0, y=[0, wrong])
        with pytest.raises(ShapeError, match=f"`x` must .*{np.dtype(dtype)}"):
            buffer.extend(x=[0, wrong], y=np.zeros((2, 2), dtype))
    assert len(buffer) == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"obs": np.zeros((4, 2), np.float32)}, r"`obs` must have shape \(4, 3\), got \(4, 2\)"),
        ({"action": np.zeros(5, np.int64)}, r"`action` must have shape \(4,\), got \(5,\)"),
        ({"action": np.zeros(4)}, r"`action` must be int64, got float64: convert it"),
        ({"reward": 1.0}, r"`reward` must have shape \(4,\), got \(\): `add` takes one"),
        ({"obs": 1.0}, r"`extend` takes a batch"),
        ({"reward": [[1.0], [2.0, 3.0], [], []]}, r"`reward` must be an array, got"),
        ({"rewards": np.zeros(4)}, r"there is no field `rewards`; did you mean 'reward'"),
        ({"valid": np.ones(3, np.bool_)}, r"`valid` must have shape \(4,\), got \(3,\)"),
        ({"valid": np.ones(4)}, r"`valid` must be bool, got float64"),
        ({"env": np.zeros(3, np.int64)}, r"`env` must be .*shape \(4,\), got .*\(3,\)"),
        ({"env": np.zeros(4)}, r"`env` must be integers, shape .*, got float64"),
        ({"env": np.zeros(4, np.bool_)}, r"`env` must be integers.*got bool"),
        ({"env": [[0], [1, 0], [0], [0]]}, r"`env` must be an array, got"),
    ],
)
@pytest.mark.parametrize("valid", [False, True])
def test_unsuitable_batches(changes, match, valid):
    for name in ("uniform", "proportional", "prioritized"):
        twins = Twins(name)
        chosen = {"valid": np.array([True, False, True, True])} if valid else {}
        four = {**twins.transition(5, count=4), **twins.weight(np.ones(4)), **chosen, **changes}
        twins.assert_refused(ShapeError, match, "extend", **four)
        twins.assert_as_before()


def test_batches_must_be_a_multiple_of_num_envs(twins):
    bad = {**twins.transition(5, count=5), **twins.weight(np.ones(5))}
    match = "5 transitions are not a multiple of 2 environments: pass `env`"
    twins.assert_refused(ShapeError, match, "extend", **bad)


def test_env_must_be_in_range(twins):
    step = {**twins.transition(5), **twins.weight(1.0)}
    steps = {**twins.transition(5, count=3), **twins.weight(np.ones(3))}
    for env in (-1, 2, 100, -(2**40), 2**31, 2**63 - 1):
        match = f"`env` must be from 0 to 1, got {env}: set `num_envs` when you create the buffer"
        twins.assert_refused(ReplayError, match, "add", env=env, **step)
        twins.assert_refused(ReplayError, match, "add", env=np.int64(env), **step)
        twins.assert_refused(ReplayError, match, "cut", env)
        twins.assert_refused(ReplayError, match, "extend", env=[0, 1, env], **steps)
        envs, valid = np.array([0, env, 1]), [True, True, False]
        twins.assert_refused(ReplayError, match, "extend", env=envs, valid=valid, **steps)


def test_env_must_be_an_integer(twins):
    step = {**twins.transition(5), **twins.weight(1.0)}
    bad_envs = (0.0, 1.0, "0", "", None, False, True, [], [0], np.zeros(2, np.int64), 0j, 2**70)
    for env in bad_envs:
        twins.assert_refused(ShapeError, "`env` must be integers", "add", env=env, **step)
    for env in (np.int32(0), np.uint8(1), np.zeros((), np.int16)):
        twins.both("add", env=env, **step)
    for env in (0.5, "0"):
        twins.assert_refused(ShapeError, "`env` must be", "cut", env)


def test_empty_batches_are_accepted(twins):
    empty = {**twins.transition(count=0), **twins.weight(np.zeros(0))}
    twins.buffer.extend(**empty)
    twins.buffer.extend(valid=np.zeros(0, np.bool_), **empty)
    steps = {**twins.transition(5, count=2), **twins.weight(np.ones(2))}
    twins.buffer.extend(valid=np.zeros(2, np.bool_), **steps)
    twins.assert_all_alike()


# Drawing and updating.


def test_empty_buffer():
    for name in BUFFERS:
        twins = Twins(name, size=0)
        for size in (1, 50):
            twins.assert_refused(
                ReplayError, "the buffer is empty: add transitions", "sample", size
            )
        match = "no entry ever had number 0|the buffer is empty"
        twins.assert_refused(ReplayError, match, "get", [0])
        if twins.buffer.sampler.weighted:
            twins.assert_refused(ReplayError, match, "update_weights", [0], [1.0])
        twins.assert_as_before()
    waiting = Twins("prioritized", size=4)  # no complete window: they have three steps
    assert len(waiting.buffer) == 0
    waiting.assert_refused(ReplayError, "the buffer is empty", "sample", 1)
    waiting.assert_as_before()


def test_bad_batch_sizes(twins):
    for size in (0, -1, -(2**70), 2.5, 4.0, True, "4", None):
        match = f"`batch_size` must be a whole number from 1 on, got {size!r}"
        twins.assert_refused(ReplayError, match, "sample", size)


def test_batches_larger_than_the_buffer():
    for name in BUFFERS:
        twins = Twins(name, size=11)
        size = len(twins.buffer)
        if twins.buffer.sampler.handle_settings().get("replacement") or has_priorities(twins):
            assert len(twins.buffer.sample(100)) == 100
            continue
        match = f"a batch of {size + 1} without replacement needs .* entries, but .* has {size}:"
        twins.assert_refused(ReplayError, match, "sample", size + 1)
        twins.assert_refused(ReplayError, "a batch of 1000000000 without", "sample", 10**9)
        twins.assert_alike(*twins.both("sample", size))
        twins.assert_as_before()


@pytest.mark.parametrize("beta", [-1.0, np.nan, np.inf, -np.inf, "high", [0.4]])
def test_bad_betas(beta):
    for name in ("prioritized", "ranks"):
        twins = Twins(name)
        with pytest.raises(HotloopError, match="`beta` must be"):
            twins.buffer.sample(4, beta=beta)
        twins.assert_all_alike()
        twins.assert_as_before()


def test_numbers_that_were_never_added(weighted_twins):
    twins = weighted_twins
    added = twins.buffer.num_added
    for number in (added, added + 1, 10**15, -1, -(10**15), 2**63 - 1, -(2**63)):
        match = f"no entry ever had number {number}: they go from 0 to {added - 1}"
        for numbers in ([number], [added - 1, number, added - 2], np.array([0, number])):
            weights = np.full(len(numbers), 3.0)
            twins.assert_refused(ReplayError, match, "update_weights", numbers, weights)
        twins.assert_refused(ReplayError, match, "get", [added - 1, number])
    match = "no entry ever had number 9223372036854775808"
    vast = np.array([2**63], np.uint64)
    twins.assert_refused(ReplayError, match, "update_weights", vast, [1.0])


def test_numbers_that_were_overwritten(twins):
    oldest = twins.buffer.num_added - len(twins.buffer)
    assert oldest > 0
    for number in (0, oldest - 1):
        match = f"entry {number} was overwritten: the oldest is number {oldest}"
        twins.assert_refused(ReplayError, match, "get", [oldest, number])
    if twins.buffer.sampler.weighted:
        counters = twins.buffer.counters["stale_updates"]
        assert twins.buffer.update_weights([0, oldest - 1, oldest], [7.0, 8.0, 9.0]) == 1
        assert twins.twin.update_weights([oldest], [9.0]) == 1
        assert twins.buffer.counters["stale_updates"] == counters + 2
        assert twins.twin.update_weights([0, 0], [1.0, 1.0]) == 0
        twins.assert_all_alike()


@pytest.mark.parametrize(
    "numbers",
    [np.zeros(2), np.zeros((2, 1), np.int64), [True, False], [[0], [0, 1]], np.array([2**70, 1])],
    ids=["floats", "two axes", "bools", "ragged", "objects"],
)
def test_numbers_must_be_integers(weighted_twins, numbers):
    match = r"`index` must be (integers, \(B,\), as `batch.index` has them|an array), got"
    weighted_twins.assert_refused(ShapeError, match, "get", numbers)
    weighted_twins.assert_refused(ShapeError, match, "update_weights", numbers, [1.0, 1.0])


# Creating a buffer.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"capacity": 0}, "`capacity` must be a whole number from 1 on, got 0"),
        ({"capacity": 2**30}, r"`capacity` must be below 1,073,741,824, got 1,073,741,824"),
        ({"capacity": 2.7}, "`capacity` must be a whole number"),
        ({"capacity": None}, "`capacity` must be a whole number"),
        ({"num_envs": 0}, "`num_envs` must be a whole number from 1 on, got 0"),
        ({"n_step": 0}, "`n_step` must be a whole number from 1 on, got 0"),
        ({"gamma": -0.1}, "`gamma` must be a number from 0 to 1, got -0.1"),
        ({"gamma": np.nan}, "`gamma` must be a number from 0 to 1, got nan"),
        ({"seed": -1}, "`seed` must be"),
        ({"seed": 1.5}, "`seed` must be"),
        ({"sampler": Uniform}, "`sampler` must be"),
        ({"weight_from": "return"}, "`weight_from` must be one of episode_return, .*got 'return'"),
        ({"weight_from": "episode_return"}, "gives weights to Proportional, not to Uniform"),
        ({"running_weight": "median"}, "`running_weight` must be 'mean' or a finite .*'median'"),
        ({"running_weight": np.nan}, "`running_weight` must be 'mean' or a finite .*got nan"),
        ({"running_weight": 1e300}, "`running_weight` must be"),
        ({"frame_stacks": ("obs",)}, "`frame_stacks` needs `share_next_obs=True`"),
        ({"frame_stacks": ("image",), **SHARED}, "names `image`; shared fields are obs"),
        ({"frame_stacks": ("next_obs",), **SHARED}, "names `next_obs`; shared fields are obs"),
        ({"fields": {}}, "`fields` must declare at least one"),
        ({"fields": {"obs": {}}}, "`fields` must declare at least one"),
        ({"fields": [("obs", ((3,), np.float32))]}, "`fields` must be"),
        ({"fields": {"obs": np.float32}}, r"field `obs` must be declared as \(shape, dtype\)"),
        ({"fields": {"obs": (3,)}}, r"field `obs` must be declared as \(shape, dtype\)"),
        ({"fields": {"obs": ((3,), "floaty")}}, r"field `obs` must be declared as"),
        ({"fields": {"obs": (("x",), np.float32)}}, r"field `obs` must be declared as"),
        ({"fields": {"obs": ((3, 0), np.float32)}}, r"with lengths from 1 on, got shape \(3, 0\)"),
        ({"fields": {"obs": ((3,), object)}}, "`obs` must be of numbers.*dtype object"),
        ({"fields": {"obs": ((3,), ">f4")}}, "`obs` must be of numbers.*>f4"),
        ({"fields": {"a.b": ((), "f4"), "a": {"b": ((), "f4")}}}, "two fields have one name"),
        ({"fields": {"": ((), "f4")}}, "field `` must have another name"),
        ({"fields": {"obs": {1: ((), "f4")}}}, "field `obs.1` must have another name"),
        *(
            ({"fields": {name: ((), "f4")}}, f"field `{name}` must have another name")
            for name in ("index", "probability", "importance", "env", "valid", "keys", "torch")
        ),
        ({"fields": {"weight": {"x": ((), "f4")}}}, "field `weight.x` must have another name"),
    ],
)
def test_bad_buffer_options(options, match):
    options = {"capacity": 9, "fields": FIELDS, **options}
    with pytest.raises(ConfigError, match=match):
        ReplayBuffer(**options)


@pytest.mark.parametrize(
    ("changes", "options", "match"),
    [
        ({"next_obs": None}, SHARED, "sharing needs fields `obs` and `next"),
        ({"obs": None}, SHARED, "sharing needs fields `obs` and `next_obs`"),
        ({"next_obs": ((4,), "f4")}, SHARED, r"`obs` and `next_obs` alike, got \(3,\) float32 an"),
        ({"next_obs": ((3,), "f8")}, SHARED, "`obs` and `next_obs` alike, got .* float64"),
        (
            {"obs": {"a": ((), "f4"), "b": ((), "f4")}, "next_obs": {"a": ((), "f4")}},
            SHARED,
            "sharing needs fields `obs` and `next_obs` of the same structure",
        ),
        (
            {"obs": ((), "f4"), "next_obs": ((), "f4")},
            {**SHARED, "frame_stacks": ["obs"]},
            "`obs` has no first axis that could be a stack of frames",
        ),
        ({"discount": ((), "f4")}, {"n_step": 2}, "a field `discount` is added by `n_step` > 1"),
        ({"reward": None}, {"n_step": 2}, "`n_step` > 1 needs a field `reward`.*there is none"),
        ({"reward": ((), "f8")}, {"n_step": 2}, r"np.float32\); it is float64, shape \(\)"),
        ({"reward": ((2,), "f4")}, TO_GO, r"field `reward`.*; it is float32, shape \(2,\)"),
        ({"terminated": ((), np.uint8)}, TO_GO, "needs a field `terminated`.*it is uint8"),
        ({"truncated": ((), "i8")}, {"n_step": 3}, r"needs `truncated` to be \(\(\), np.bool_\)"),
        ({"obs": None, "next_obs": None}, {"n_step": 2}, "sharing needs fields `obs` and"),
    ],
)
def test_options_that_need_other_fields(changes, options, match):
    fields = {name: field for name, field in {**FIELDS, **changes}.items() if field is not None}
    sampler = Proportional() if "weight_from" in options else None
    with pytest.raises(ConfigError, match=match):
        ReplayBuffer(9, fields, sampler=sampler, **options)


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (Proportional, {"shift": "max"}, "'min' or a finite number, of at most 1e.290, got 'max'"),
        (Proportional, {"shift": np.nan}, "`shift` must be 'min' or a finite number.*got nan"),
        (Proportional, {"shift": 1e300}, "`shift` must be"),
        *(
            (kind, {name: value}, f"`{name}` must be a number from 0 on, got {value!r}")
            for kind in (Prioritized, RankBased)
            for name in ("alpha", "beta", "beta_final")
            for value in (-0.1, np.inf, "high")
        ),
        (Prioritized, {"beta_samples": 0}, "`beta_samples` must be a whole number from 1 on"),
        (RankBased, {"beta_samples": "many"}, "`beta_samples` must be"),
        (Prioritized, {"normalize": "none"}, "`normalize` must be 'buffer' or 'batch', got 'none'"),
        (Prioritized, {"epsilon": 0.0}, "`epsilon` must be a positive number, got 0.0"),
        (Prioritized, {"epsilon": np.nan}, "`epsilon` must be a positive number, got nan"),
    ],
)
def test_bad_sampler_options(kind, options, match):
    with pytest.raises(ConfigError, match=match):
        kind(**options)


def test_memory_map_that_cannot_be_created(tmp_path):
    for path in (tmp_path / "missing", tmp_path / "missing" / "too"):
        with pytest.raises(OutputError, match=rf"no [\d,]+ bytes for the replay in {path}"):
            ReplayBuffer(100, FIELDS, memory_map=path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="name a directory on a disk that has them"):
        ReplayBuffer(100, FIELDS, memory_map=tmp_path / "file")
    fields = dict.fromkeys("abcdefgh", ((128,), np.float64))  # 9 TB in all
    with pytest.raises(OutputError, match="bytes for the replay in"):
        ReplayBuffer((1 << 30) - 1, fields, memory_map=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["finals", "frames"])
def test_growth_that_fails_keeps_stored_transitions(tmp_path, kind):
    # The directory of the maps has been removed: growing raises, and stored transitions stay.
    fields = FIELDS if kind == "finals" else {**FIELDS, **IMAGES}
    directory = tmp_path / "maps"
    directory.mkdir()
    buffer, twin = (
        ReplayBuffer(200, fields, share_next_obs=True, memory_map=path, seed=1)
        for path in (directory, None)
    )
    directory.rmdir()

    def add_unshared(replay, count):
        for number in range(count):
            values = transition(number % 100 * 2, fields=fields)
            replay.add(**{**values, "next_obs": values["next_obs"] + 1})

    for _ in range(2):
        with pytest.raises(OutputError, match="bytes for the replay in"):
            add_unshared(buffer, 500)
    stored = buffer.num_added
    assert 0 < stored < 200
    add_unshared(twin, stored)
    batch, expected = (replay.get(np.arange(stored)) for replay in (buffer, twin))
    for field in fields:
        np.testing.assert_array_equal(batch[field], expected[field])
    np.testing.assert_array_equal(buffer.sample(9).index, twin.sample(9).index)


@pytest.mark.parametrize("sampler", [Uniform(), Prioritized(), RankBased()])
def test_capacity_beyond_memory_is_refused(monkeypatch, sampler):
    def refuse(memory, num_bytes):
        raise MemoryError(f"Unable to allocate {num_bytes}")

    monkeypatch.setattr(Allocator, "allocate", refuse)
    message = (
        r"^there is no memory for 1,000 transitions of \d+ bytes and more \(Unable to allocate "
        r"\d+\): lower `capacity`, or set `memory_map` to a directory$"
    )
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(1_000, FIELDS, sampler=sampler)


@pytest.mark.parametrize(
    ("options", "description"),
    [
        ({"n_step": 10**30, "num_envs": 10}, "1,000,.* steps of 10 environments"),
        ({"num_envs": 10**9, "share_next_obs": True}, "1 steps of 1,000,000,000 environments"),
    ],
)
def test_windows_beyond_memory_are_refused(monkeypatch, options, description):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**34)
    message = (
        f"^the last {description} take at least .*, and 16 GiB are free: lower `n_step` or `num_en"
    )
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(1_000, FIELDS, **options)


# Without optional packages.


def run_python(source):
    process = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_missing_numba_is_reported():
    output = run_python(
        "import sys\n"
        "sys.modules['numba'] = None\n"
        "from hotloop.errors import MissingExtraError\n"
        "try:\n"
        "    from hotloop.replay import ReplayBuffer\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )
    assert "hotloop.replay and hotloop.bandits need Numba" in output
    assert install_command("replay,bandit") in output
