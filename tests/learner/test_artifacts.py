"""Cached compiled updates: keyed by their operations, loaded without a compiler."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch

from hotloop.base import cache
from hotloop.learner import Execution, ExecutionChoice, artifacts, choose
from hotloop.learner.execution import repeat_choice
from hotloop.learner.gradients import value_and_grad

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


def step(state, x, scale=2.0):
    loss, _, grad = value_and_grad(lambda params: ((params * x).sum() ** 2, None), state)
    state.sub_(0.01 * scale * grad)
    return loss


def arguments():
    return torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])


def key_of(update, args=None):
    return artifacts.record(update, arguments() if args is None else args).key


def test_key_depends_on_operations_shapes_and_constants():
    key = key_of(step)
    assert key == key_of(step) == key_of(lambda state, x: step(state, x))
    other_keys = [
        key_of(lambda state, x: step(state, x, 3.0)),  # a number
        key_of(lambda state, x: step(state, x) + 0),  # an operation
        key_of(step, (torch.zeros(3), torch.ones(3))),  # a shape
        key_of(step, (torch.zeros(2).double(), torch.ones(2).double())),  # a type
        key_of(step, (torch.zeros(2), torch.ones(4)[::2])),  # a stride
    ]
    assert len({key, *other_keys}) == 6
    # Values of arguments don't matter, but those of an update's constants do.
    assert key == key_of(step, (torch.zeros(2), torch.zeros(2)))
    constants = [
        key_of(lambda state, x, c=c: step(state, x * c)) for c in map(torch.tensor, (1, 2))
    ]
    assert constants[0] != constants[1]


def test_the_compilers_child_imports_nothing_from_the_current_directory(tmp_path):
    """Torch's compiler starts `python -c` in the current directory, which may be a stranger's."""
    import _ctypes

    from torch._inductor.cpu_vec_isa import VecISA

    for name in ("ctypes", "torch"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w').close()\n")
    for _ in range(2):
        with artifacts.private_inductor():
            script = VecISA._avx_py_load.replace("__lib_path__", _ctypes.__file__)
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=60)
    assert not (tmp_path / "imported").exists()


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
def test_an_artifact_of_another_torch_is_not_loaded(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    recording = artifacts.record(step, arguments())
    with cache.creating(recording.key, ".so") as making:
        content = making.save(b"a library that this version of torch has compiled")
    assert cache.find(recording.key, ".so") == content
    try:
        monkeypatch.setattr(f"torch.{name}", value)
        artifacts._machine_description.cache_clear()
        assert artifacts.load(artifacts.record(step, arguments())) is None
    finally:
        monkeypatch.undo()
        artifacts._machine_description.cache_clear()


def test_recording_leaves_the_arguments_alone():
    args = arguments()
    before = copy.deepcopy(args)
    artifacts.record(step, args)
    assert all(map(torch.equal, args, before))
    assert not torch.compiler.is_compiling()


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (lambda state, x: x.sum() if x.sum() > 0 else x.mean(), "reads the values"),
        (lambda state, x: x.sum() * x.sum().item(), "reads the values"),
        (lambda state, x: state, "returns a tensor of its arguments"),
    ],
)
def test_some_updates_cannot_be_packaged(update, why):
    with pytest.raises(artifacts.PackagingError, match=why):
        artifacts.record(update, arguments())
    assert not torch.compiler.is_compiling()


def test_tensor_passed_twice_cannot_be_packaged():
    x = torch.ones(2)
    with pytest.raises(artifacts.PackagingError, match="twice"):
        artifacts.record(step, (x, x))


@needs_compiler
def test_artifact_is_loaded_in_another_process_without_a_compiler():
    """The results are bitwise equal, without Dynamo and Inductor."""
    recording = artifacts.record(step, arguments())
    built = artifacts.load(recording) or artifacts.build(recording)
    state, x = arguments()
    losses = [built(state, (x,), [x]).item() for _ in range(3)]
    done = subprocess.run(
        [sys.executable, "-c", LOAD_SCRIPT], capture_output=True, text=True, cwd=".", check=True
    )
    assert json.loads(done.stdout) == [losses, state.tolist()]
    eager, _ = arguments()
    for _ in range(3):
        step(eager, x)
    torch.testing.assert_close(state, eager)


LOAD_SCRIPT = """
import json, sys
from hotloop.learner import artifacts
from tests.learner.test_artifacts import arguments, step

loaded = artifacts.load(artifacts.record(step, arguments()))
state, x = arguments()
losses = [loaded(state, (x,), [x]).item() for _ in range(3)]
print(json.dumps([losses, state.tolist()]))
assert not {"torch._dynamo", "torch._inductor"} & set(sys.modules)
"""


@pytest.fixture
def library():
    """Return the compiled `step`, built once for all tests."""
    recording = artifacts.record(step, arguments())
    assert artifacts.load(recording) or artifacts.build(recording)
    return cache.find(recording.key, ".so")


@needs_compiler
def test_auto_uses_the_artifact_of_an_earlier_run(tmp_path, monkeypatch, library):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    few = choose("auto", num_calls=10, flop_per_call=10.0)
    execution, notes = Execution(step, few), []
    execution.on_progress = notes.append
    assert "unless" not in few.reason
    execution(*arguments())
    assert execution.mode_used == "eager"
    assert notes == [f"update: {few.reason}"]  # announced once it is certain
    key = artifacts.record(step, arguments()).key
    with cache.creating(key, ".so", lambda: None) as making:
        making.save(library)  # as another run does
    execution(*arguments())  # an eager execution stays eager
    assert execution.mode_used == "eager"
    later = Execution(step, few)
    later.on_progress = notes.append
    assert later.mode_used is None
    later(*arguments())
    assert notes[1:] == ["update: compiled: an earlier run has compiled it"]
    assert later.mode_used == "compile"
    assert "an earlier run has compiled it" in later.summary()
    # A resumed run keeps its execution.
    resumed = Execution(step, repeat_choice("eager"))
    resumed(*arguments())
    assert resumed.mode_used == "eager"


@needs_compiler
def test_unwritable_cache_does_not_prevent_compilation(tmp_path, monkeypatch, library):
    def package(program, *, package_path, inductor_configs):
        """Stand in for the C++ compiler."""
        with zipfile.ZipFile(package_path, "w") as parts:
            parts.writestr("data/update.so", library)

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", package)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "file"))
    messages = []
    execution = Execution(step, ExecutionChoice(True, "asked"))
    execution.on_progress = messages.append
    state, x = arguments()
    assert execution(state, x) == pytest.approx(121.0)
    assert execution.mode_used == "compile"
    assert "once on this machine" in messages[0]
    assert cache.entries() == []


def test_traced_inputs_are_not_copied():
    """A state may hold a replay buffer, and a GPU may have no room for a second one."""
    state, x = arguments()
    graph, inputs, gives_tuple = artifacts.trace(step, (state, x))
    assert [id(tensor) for tensor in inputs] == [id(state), id(x)]
    assert not gives_tuple
    (traced_state, x), (eager_state, _) = arguments(), arguments()
    (loss,) = graph(traced_state, x)
    torch.testing.assert_close(loss, step(eager_state, x))
    torch.testing.assert_close(traced_state, eager_state)
    _, _, gives_tuple = artifacts.trace(lambda state, x: (state + x,), arguments())
    assert gives_tuple


def test_every_library_has_a_path_of_its_own(tmp_path, monkeypatch):
    """The system's loader would return the first library for the second one's path."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    paths = set()
    for number in range(3):
        with artifacts._library_with_calls(bytes([number]) * 100) as path:
            paths.add(str(path))
            assert path.read_bytes() == bytes([number]) * 100
            assert path.parent.parent == tmp_path / "cache"
    assert len(paths) == 3
    assert list((tmp_path / "cache").iterdir()) == []
    calls = b"[]" + artifacts._TRAILER.pack(2, artifacts._TRAILER_MARK)
    (tmp_path / "cache").chmod(0o755)  # not used
    with artifacts._library_with_calls(b"library" + calls) as path:
        assert path.with_suffix(".json").read_bytes() == b"[]"
        assert path.parent.parent != tmp_path / "cache"
