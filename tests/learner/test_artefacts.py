"""Compiled updates that are kept: found by what they do, loaded without a compiler."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch

from hotloop import cache
from hotloop.learner import Choice, Execution, artefacts, choose
from hotloop.learner.execution import repeat
from hotloop.learner.gradients import value_and_grad

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


def step(state, x, scale=2.0):
    loss, _, grad = value_and_grad(lambda params: ((params * x).sum() ** 2, None), state)
    state.sub_(0.01 * scale * grad)
    return loss


def arguments():
    return torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])


def key_of(update, args=None):
    return artefacts.record(update, arguments() if args is None else args).key


def test_the_same_has_the_same_key_and_anything_else_another():
    key = key_of(step)
    assert key == key_of(step) == key_of(lambda state, x: step(state, x))
    others = [
        key_of(lambda state, x: step(state, x, 3.0)),  # a number
        key_of(lambda state, x: step(state, x) + 0),  # an operation
        key_of(step, (torch.zeros(3), torch.ones(3))),  # a shape
        key_of(step, (torch.zeros(2).double(), torch.ones(2).double())),  # a type
        key_of(step, (torch.zeros(2), torch.ones(4)[::2])),  # a stride
    ]
    assert len({key, *others}) == 6
    # Values of arguments don't matter, those of an update's own constants do.
    assert key == key_of(step, (torch.zeros(2), torch.zeros(2)))
    constants = [
        key_of(lambda state, x, c=c: step(state, x * c)) for c in map(torch.tensor, (1, 2))
    ]
    assert constants[0] != constants[1]


def test_the_number_of_threads_is_part_of_the_key():
    before, threads = key_of(step), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert key_of(step) != before
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "value"), [("__version__", "2.99.0"), ("version.git_version", "0" * 40)]
)
def test_an_artefact_of_another_torch_is_not_loaded(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    recording = artefacts.record(step, arguments())
    with cache.to_be_made(recording.key, ".so") as making:
        path = making.keep(b"a library that this version of torch has compiled")
    assert cache.find(recording.key, ".so") == path
    try:
        monkeypatch.setattr(f"torch.{name}", value)
        artefacts._machine.cache_clear()
        assert artefacts.load(artefacts.record(step, arguments())) is None
    finally:
        monkeypatch.undo()
        artefacts._machine.cache_clear()


def test_recording_leaves_the_arguments_alone():
    args = arguments()
    before = copy.deepcopy(args)
    artefacts.record(step, args)
    assert all(map(torch.equal, args, before))
    assert not torch.compiler.is_compiling()


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (lambda state, x: x.sum() if x.sum() > 0 else x.mean(), "looks at the values"),
        (lambda state, x: x.sum() * x.sum().item(), "looks at the values"),
        (lambda state, x: state, "gives a tensor of its arguments back"),
    ],
)
def test_what_can_not_be_kept(update, why):
    with pytest.raises(artefacts.Unpackable, match=why):
        artefacts.record(update, arguments())
    assert not torch.compiler.is_compiling()


def test_a_tensor_that_is_passed_twice_can_not_be_kept():
    x = torch.ones(2)
    with pytest.raises(artefacts.Unpackable, match="twice"):
        artefacts.record(step, (x, x))


@needs_compiler
def test_what_was_built_is_loaded_in_another_process_without_a_compiler():
    """With the same bits, and neither Dynamo nor Inductor."""
    recording = artefacts.record(step, arguments())
    built = artefacts.load(recording) or artefacts.build(recording)
    state, x = arguments()
    losses = [built(state, (x,), [x]).item() for _ in range(3)]
    done = subprocess.run(
        [sys.executable, "-c", LOADS], capture_output=True, text=True, cwd=".", check=True
    )
    assert json.loads(done.stdout) == [losses, state.tolist()]
    eager, _ = arguments()
    for _ in range(3):
        step(eager, x)
    torch.testing.assert_close(state, eager)


LOADS = """
import json, sys
from hotloop.learner import artefacts
from tests.learner.test_artefacts import arguments, step

loaded = artefacts.load(artefacts.record(step, arguments()))
state, x = arguments()
losses = [loaded(state, (x,), [x]).item() for _ in range(3)]
print(json.dumps([losses, state.tolist()]))
assert not {"torch._dynamo", "torch._inductor"} & set(sys.modules)
"""


@pytest.fixture
def library():
    """The compiled `step`, built once for all tests."""
    recording = artefacts.record(step, arguments())
    assert artefacts.load(recording) or artefacts.build(recording)
    return cache.find(recording.key, ".so").read_bytes()


@needs_compiler
def test_auto_takes_what_an_earlier_run_has_compiled(tmp_path, monkeypatch, library):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    few = choose("auto", num_calls=10, flop_per_call=10.0)
    execution = Execution(step, few)
    execution(*arguments())
    assert execution.was == "eager"
    key = artefacts.record(step, arguments()).key
    with cache.to_be_made(key, ".so", lambda: None) as making:
        making.keep(library)  # as another run does
    execution(*arguments())  # what begins eager stays so
    assert execution.was == "eager"
    later = Execution(step, few)
    assert later.was is None
    later(*arguments())
    assert later.was == "compile"
    assert "an earlier run has compiled it" in later.summary()
    # A run that is gone on with goes on as it began.
    resumed = Execution(step, repeat("eager"))
    resumed(*arguments())
    assert resumed.was == "eager"


@needs_compiler
def test_where_nothing_can_be_kept_it_is_compiled_all_the_same(tmp_path, monkeypatch, library):
    def package(program, *, package_path, inductor_configs):
        """Stand in for the C++ compiler."""
        with zipfile.ZipFile(package_path, "w") as parts:
            parts.writestr("data/update.so", library)

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", package)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "file"))
    said = []
    execution = Execution(step, Choice(True, "asked"))
    execution.tell = said.append
    state, x = arguments()
    assert execution(state, x) == pytest.approx(121.0)
    assert execution.was == "compile"
    assert "once on this machine" in said[0]
    assert cache.kept() == []


def test_what_is_traced_is_no_copy():
    """A state may hold a replay buffer, and a GPU no room for another."""
    state, x = arguments()
    graph, inputs, gives_tuple = artefacts.traced(step, (state, x))
    assert [id(one) for one in inputs] == [id(state), id(x)]
    assert not gives_tuple
    (ours, x), (same, _) = arguments(), arguments()
    (loss,) = graph(ours, x)
    torch.testing.assert_close(loss, step(same, x))
    torch.testing.assert_close(ours, same)
    _, _, gives_tuple = artefacts.traced(lambda state, x: (state + x,), arguments())
    assert gives_tuple
