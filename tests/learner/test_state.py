"""The walk over a state: names, copies, checkpoints, NaN, and what is no state."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hotloop.errors import CheckpointError, ConfigError
from hotloop.learner import AdamState
from hotloop.learner.state import (
    clone,
    load_arrays,
    mapped,
    non_finite,
    tensors,
    to_arrays,
    to_device,
)


class Moments(NamedTuple):
    mean: Any
    var: Any


@dataclass(slots=True)
class State:
    params: Any
    adam: Any
    layers: Any
    moments: Any
    nothing: Any
    count: Any
    active: Any


def make_state(start=0.0):
    params = torch.arange(3.0) + start
    return State(
        params=params,
        adam=AdamState.zeros(params),
        layers=(torch.full((2, 2), start), {"bias": torch.ones(2), "gone": None}),
        moments=Moments(torch.zeros(()), torch.ones((), dtype=torch.float64)),
        nothing=None,
        count=torch.tensor(7 + int(start)),
        active=torch.tensor(start == 0.0),
    )


NAMES = [
    *("params", "adam.mean", "adam.square", "adam.step"),
    *("layers.0", "layers.1.bias", "moments.mean", "moments.var", "count", "active"),
]


def test_names_are_dotted_and_in_order():
    state = make_state()
    found = tensors(state)
    assert list(found) == NAMES
    assert found["adam.mean"] is state.adam.mean
    assert found["layers.1.bias"] is state.layers[1]["bias"]
    assert tensors(None) == tensors(()) == tensors({}) == {}
    alone = torch.ones(1)
    assert list(tensors(alone)) == [""]


def test_a_mapped_tree_is_of_the_same_kind():
    state = make_state()
    doubled = mapped(state, lambda x: x * 2)
    assert type(doubled) is State
    assert type(doubled.adam) is AdamState
    assert type(doubled.layers) is tuple
    assert type(doubled.layers[1]) is dict
    assert type(doubled.moments) is Moments
    assert doubled.nothing is None
    assert doubled.layers[1].keys() == {"bias", "gone"}
    assert doubled.layers[1]["gone"] is None
    for name, x in tensors(doubled).items():
        assert torch.equal(x, tensors(state)[name] * 2), name
    assert mapped(((), {}, None), torch.neg) == ((), {}, None)


def test_a_clone_is_left_alone_by_what_comes_later():
    state = make_state()
    state.params.requires_grad_()
    copied = clone(state)
    assert list(tensors(copied)) == NAMES
    before = {name: x.clone() for name, x in tensors(copied).items()}
    for name, x in tensors(state).items():
        ours = tensors(copied)[name]
        assert (ours.dtype, ours.shape, ours.requires_grad) == (x.dtype, x.shape, False)
        assert ours.data_ptr() != x.data_ptr()
        with torch.no_grad():
            x.logical_not_() if x.dtype == torch.bool else x.add_(1)
    for name, x in tensors(copied).items():
        assert torch.equal(x, before[name]), name


def test_what_is_on_the_device_already_stays_what_it_is():
    state = make_state()
    moved = to_device(state, torch.device("cpu"))
    for name, x in tensors(moved).items():
        assert x is tensors(state)[name]
    elsewhere = to_device(state, torch.device("meta"))
    assert {x.device.type for x in tensors(elsewhere).values()} == {"meta"}


def test_arrays_come_back_in_place():
    ours, other = make_state(), make_state(start=2.0)
    arrays = to_arrays(ours)
    assert list(arrays) == [f"state.{name}" for name in NAMES]
    assert np.shares_memory(arrays["state.params"], ours.params.numpy())
    there = tensors(other)
    places = {name: (id(x), x.data_ptr()) for name, x in there.items()}
    load_arrays(other, {**arrays, "normalizer.mean": np.zeros(3)})  # others' arrays are theirs
    for name, x in tensors(other).items():
        assert (id(x), x.data_ptr()) == places[name]
        assert torch.equal(x, tensors(ours)[name]), name
        assert x.dtype == tensors(ours)[name].dtype
    ours.params.add_(1.0)  # a copy
    assert other.params.tolist() == [0.0, 1.0, 2.0]
    load_arrays(other.adam, {"mean": np.ones(3), "square": np.ones(3), "step": np.array(4.0)}, "")
    assert other.adam.step.item() == 4.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda arrays: arrays.pop("state.adam.mean"),
            r"`state\.adam\.mean` must have shape \(3,\), it is missing: resume with the algorithm",
        ),
        (
            lambda arrays: arrays.update({"state.layers.0": np.zeros((2, 3), np.float32)}),
            r"`state\.layers\.0` must have shape \(2, 2\), got \(2, 3\): resume",
        ),
        (
            lambda arrays: arrays.update({"state.adam.step": np.zeros(1, np.float32)}),
            r"`state\.adam\.step` must have shape \(\), got \(1,\)",
        ),
    ],
)
def test_arrays_of_another_state_are_refused(change, message):
    arrays = to_arrays(clone(make_state()))
    change(arrays)
    with pytest.raises(CheckpointError, match=message):
        load_arrays(make_state(), arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(value):
    state = make_state()
    assert non_finite(state) == []
    state.adam.square[1] = value
    assert non_finite(state) == ["adam.square"]
    state.layers[1]["bias"][0] = value
    state.moments.var.fill_(value)
    assert non_finite(state) == ["adam.square", "layers.1.bias", "moments.var"]


def test_numbers_that_are_always_finite_are_not_looked_at():
    assert non_finite((torch.tensor(2**62), torch.tensor(True), None)) == []
    assert non_finite(None) == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.0, "float"),
        ([torch.ones(1)], "list"),
        ("text", "str"),
        (np.ones(1), "ndarray"),
        (MappingProxyType({"a": torch.ones(1)}), "mappingproxy"),
    ],
)
@pytest.mark.parametrize("walk", [tensors, clone, to_arrays, non_finite])
def test_what_is_no_state_is_refused(value, kind, walk):
    message = f"must hold tensors, dataclasses, tuples and dictionaries of them, got a {kind}: keep"
    with pytest.raises(ConfigError, match=message):
        walk({"params": torch.ones(1), "other": (value,)})
