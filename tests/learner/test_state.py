"""Traversal of a state: names, copies, checkpoints, NaN, and invalid states."""

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
    map_tensors,
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
    named = tensors(state)
    assert list(named) == NAMES
    assert named["adam.mean"] is state.adam.mean
    assert named["layers.1.bias"] is state.layers[1]["bias"]
    assert tensors(None) == tensors(()) == tensors({}) == {}
    tensor = torch.ones(1)
    assert list(tensors(tensor)) == [""]


def test_a_mapped_tree_is_of_the_same_kind():
    state = make_state()
    doubled = map_tensors(state, lambda x: x * 2)
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
    assert map_tensors(((), {}, None), torch.neg) == ((), {}, None)


def test_clone_is_independent():
    state = make_state()
    state.params.requires_grad_()
    copied = clone(state)
    assert list(tensors(copied)) == NAMES
    before = {name: x.clone() for name, x in tensors(copied).items()}
    for name, x in tensors(state).items():
        copy = tensors(copied)[name]
        assert (copy.dtype, copy.shape, copy.requires_grad) == (x.dtype, x.shape, False)
        assert copy.data_ptr() != x.data_ptr()
        with torch.no_grad():
            x.logical_not_() if x.dtype == torch.bool else x.add_(1)
    for name, x in tensors(copied).items():
        assert torch.equal(x, before[name]), name


def test_to_device_keeps_tensors_already_there():
    state = make_state()
    moved = to_device(state, torch.device("cpu"))
    for name, x in tensors(moved).items():
        assert x is tensors(state)[name]
    elsewhere = to_device(state, torch.device("meta"))
    assert {x.device.type for x in tensors(elsewhere).values()} == {"meta"}


def test_arrays_are_loaded_in_place():
    source, target = make_state(), make_state(start=2.0)
    arrays = to_arrays(source)
    assert list(arrays) == [f"state.{name}" for name in NAMES]
    assert np.shares_memory(arrays["state.params"], source.params.numpy())
    target_tensors = tensors(target)
    addresses = {name: (id(x), x.data_ptr()) for name, x in target_tensors.items()}
    load_arrays(target, {**arrays, "normalizer.mean": np.zeros(3)})  # unrelated arrays are ignored
    for name, x in tensors(target).items():
        assert (id(x), x.data_ptr()) == addresses[name]
        assert torch.equal(x, tensors(source)[name]), name
        assert x.dtype == tensors(source)[name].dtype
    source.params.add_(1.0)  # a copy
    assert target.params.tolist() == [0.0, 1.0, 2.0]
    load_arrays(target.adam, {"mean": np.ones(3), "square": np.ones(3), "step": np.array(4.0)}, "")
    assert target.adam.step.item() == 4.0


def test_fields_with_a_default_may_be_missing_in_older_checkpoints():
    @dataclass
    class Newer:
        params: torch.Tensor
        sums: torch.Tensor | None = None

    state = Newer(torch.zeros(2), sums=torch.full((3,), 4.0))
    load_arrays(state, {"state.params": np.ones(2, np.float32)})
    assert state.params.tolist() == [1.0, 1.0]
    assert state.sums.tolist() == [4.0, 4.0, 4.0]
    with pytest.raises(CheckpointError, match=r"`state\.sums` must have shape \(3,\), got \(2,\)"):
        load_arrays(state, {"state.params": np.ones(2, np.float32), "state.sums": np.ones(2)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda arrays: arrays.pop("state.adam.mean"),
            r"`state\.adam\.mean` must have shape \(3,\), it is missing: resume with the same",
        ),
        (
            lambda arrays: arrays.update({"state.layers.0": np.zeros((2, 3), np.float32)}),
            r"`state\.layers\.0` must have shape \(2, 2\), got \(2, 3\): resume",
        ),
        (
            lambda arrays: arrays.update({"state.adam.step": np.zeros(1, np.float32)}),
            r"`state\.adam\.step` must have shape \(\), got \(1,\)",
        ),
        (
            lambda arrays: arrays.update({"state.adam.mean": np.full(3, np.nan, np.float32)}),
            r"`state\.adam\.mean` has NaN or infinity: choose another checkpoint",
        ),
        (
            lambda arrays: arrays.update({"state.adam.mean": np.full(3, np.inf, np.float32)}),
            r"`state\.adam\.mean` has NaN or infinity: choose another checkpoint",
        ),
    ],
)
def test_arrays_of_another_state_are_refused(change, message):
    arrays = to_arrays(clone(make_state()))
    change(arrays)
    with pytest.raises(CheckpointError, match=message):
        load_arrays(make_state(), arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named(value):
    state = make_state()
    assert non_finite(state) == []
    state.adam.square[1] = value
    assert non_finite(state) == ["adam.square"]
    state.layers[1]["bias"][0] = value
    state.moments.var.fill_(value)
    assert non_finite(state) == ["adam.square", "layers.1.bias", "moments.var"]


def test_integers_and_bools_are_finite():
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
def test_invalid_states_are_refused(value, kind, walk):
    message = (
        f"must contain tensors, or dataclasses, tuples and dictionaries of them, got a {kind}: move"
    )
    with pytest.raises(ConfigError, match=message):
        walk({"params": torch.ones(1), "other": (value,)})
