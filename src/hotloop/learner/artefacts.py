"""Artefacts: compiled updates of the CPU that are kept on disk and load in milliseconds.

    recording = record(update, arguments)
    artefact = load(recording) or build(recording)

An update runs once on copies while its operations are recorded: their names, their numbers, and
the flow of results between them. An artefact's key is a digest of that record and of everything
else that machine code depends on (torch's build, the processor, the compiler, the number of
threads). AOTInductor builds the artefact, and it loads without Dynamo and Inductor.

An artefact is machine code. It is loaded only from the user's own cache (`hotloop.cache`), never
from a run's directory.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import os
import platform
import shutil
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop import cache
from hotloop.learner.state import mapped, tensors
from hotloop.learner.threads import graph_threads

OPTIONS = {
    # Compute a value that is used more than once only once. The default repeats up to 30
    # operations, which costs an update of PPO's 64×64 networks 0.03 ms.
    "realize_opcount_threshold": 15,
    # Trust the processor's list of vector instructions. Inductor would test them for 9 s.
    "cpp.vec_isa_ok": True,
    # Do not optimise the code around the kernels.
    "aot_inductor.compile_wrapper_opt_level": "O0",
}
_SUFFIX = ".so"
# The end of a library that calls hotloop's own operations: the length of their list before it.
_TRAILER = struct.Struct("<Q8s")
_CALLS = b"hotloop\1"
_WAITS = "compiling the update: another process compiles the same, waiting for it"


class Unpackable(Exception):
    """An update can't be packaged, for the reason in the message."""


class CompilerFailure(Exception):
    """AOTInductor cannot compile an update, or cannot load what it compiled."""


class Recording(NamedTuple):
    """The operations of an update, for arguments of some shapes.

    Attributes:
        key: 64 hexadecimal digits.
        update, arguments: the update and its arguments.
        gives_tuple: whether the update returns several tensors or one.
    """

    key: str
    update: Callable[..., Any]
    arguments: tuple[Any, ...]
    gives_tuple: bool


def record(update: Callable[..., Any], arguments: tuple[Any, ...]) -> Recording:
    """Run an update once on copies, and record its operations.

    Raises:
        Unpackable: the operations depend on the values of tensors, or the update replaces tensors
            of its state.
    """
    copies = copy.deepcopy(arguments)
    inputs = list(tensors(copies).values())
    if len(set(map(id, inputs))) < len(inputs):
        raise Unpackable("a tensor is passed twice")
    recorder = _Recorder(inputs)
    with compiling(), recorder:
        result = update(*copies)
    after = list(tensors(copies).values())
    if list(map(id, after)) != list(map(id, inputs)):
        raise Unpackable("it replaces tensors of its state")
    outputs = result if isinstance(result, tuple) else (result,)
    if {id(x) for x in outputs} & {id(x) for x in inputs}:
        raise Unpackable("it gives a tensor of its arguments back")
    recorder.add("gives", outputs)
    key = hashlib.sha256(f"{recorder.digest()}\n{_surroundings()}".encode()).hexdigest()
    return Recording(key, update, arguments, isinstance(result, tuple))


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Make `torch.compiler.is_compiling()` true, as it is while torch traces by itself."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


class _Recorder(TorchDispatchMode):
    """Record each operation, with tensors numbered in the order of their appearance."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self._text = hashlib.sha256()
        self._numbers: dict[int, int] = {}
        self._kept: list[Tensor] = []  # so that no id is used twice
        for x in inputs:
            self._enter(x)
        self.add("inputs", [self._outline(x) for x in inputs])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports Dynamo, to exclude the next method from it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOOKS_AT_VALUES:
            raise Unpackable("it looks at the values of its tensors")
        self.add(str(func), (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor):
                self._enter(x)
        return result

    def add(self, label: str, value: Any) -> None:
        self._text.update(f"{label} {self._described(value)}\n".encode())

    def digest(self) -> str:
        return self._text.hexdigest()

    def _enter(self, x: Tensor) -> None:
        if id(x) not in self._numbers:
            self._numbers[id(x)] = len(self._numbers)
            self._kept.append(x)

    def _described(self, value: Any) -> str:
        if isinstance(value, Tensor):
            number = self._numbers.get(id(value))
            if number is not None:
                return f"%{number}"
            self._enter(value)
            content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            return f"{self._outline(value)}:{hashlib.sha256(content).hexdigest()}"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self._described, value))}]"
        if isinstance(value, dict):
            return str({name: self._described(part) for name, part in value.items()})
        return f"{type(value).__name__}({value!r})"

    @staticmethod
    def _outline(x: Tensor) -> str:
        return f"{x.dtype}{tuple(x.shape)}{x.stride()}{x.device}"


_LOOKS_AT_VALUES = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
}


@functools.cache
def _machine() -> str:
    """Return what machine code depends on besides the operations."""
    flags = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    about = os.stat(os.path.realpath(compiler)) if compiler else None
    return "\n".join(
        [
            torch.__version__,
            str(torch.version.git_version),
            platform.platform(),
            platform.machine(),
            torch.backends.cpu.get_cpu_capability(),
            flags,
            "" if about is None else f"{compiler} {about.st_size} {about.st_mtime_ns}",
        ]
    )


def _surroundings() -> str:
    from hotloop import __version__

    return f"{_machine()}\n{graph_threads()}\n{sorted(OPTIONS.items())}\n{__version__}"


# --- loading, building ----------------------------------------------------------------------------


class Artefact:
    """A compiled update: `artefact(state, arguments, tensors of the arguments)`."""

    def __init__(self, path: Path, gives_tuple: bool) -> None:
        # The same as `torch._inductor.aoti_load_package`, without importing Inductor, and without a
        # copy of the library in a directory that a killed process leaves behind.
        runners: Any = torch._C._aoti  # pyright: ignore[reportAttributeAccessIssue]
        with _with_list_of_calls(path) as library:
            self._runner = runners.AOTIModelContainerRunnerCpu(str(library), 1)
        self._gives_tuple = gives_tuple
        self._state: Any = None
        self._state_tensors: list[Tensor] = []

    def __call__(self, state: Any, args: tuple[Any, ...], leaves: list[Tensor]) -> Any:
        if state is not self._state:
            self._state, self._state_tensors = state, list(tensors(state).values())
        outputs = self._runner.run(self._state_tensors + leaves)
        return tuple(outputs) if self._gives_tuple else outputs[0]


@contextlib.contextmanager
def _with_list_of_calls(path: Path) -> Iterator[Path]:
    """Yield a path of the library with the list of operations that it calls in a file beside it.

    Torch reads a `.json` of the same name. The cache keeps both in one file, since of two files one
    could be lost.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TRAILER.size))
        length, mark = _TRAILER.unpack(file.read())
        if mark != _CALLS:
            yield path
            return
        file.seek(size - _TRAILER.size - length)
        calls = file.read(length)
    with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
        link = Path(folder) / f"update{_SUFFIX}"
        link.symlink_to(path.resolve())
        link.with_suffix(".json").write_bytes(calls)
        yield link


def load(recording: Recording) -> Artefact | None:
    """Return the artefact from the cache; None: there is none."""
    path = cache.find(recording.key, _SUFFIX)
    return None if path is None else Artefact(path, recording.gives_tuple)


def build(recording: Recording, tell: Callable[[str], None] = lambda _: None) -> Artefact:
    """Compile the update, keep the artefact in the cache if possible, and load it.

    One process builds while others that need the same artefact wait.

    Args:
        tell: called with a progress message before each stage.
    """
    with cache.to_be_made(recording.key, _SUFFIX, lambda: tell(_WAITS)) as making:
        if making.found is not None:
            return Artefact(making.found, recording.gives_tuple)
        return Artefact(making.keep(_compiled(recording, tell)), recording.gives_tuple)


def traced(
    update: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[torch.nn.Module, tuple[Tensor, ...], bool]:
    """Return an update as a graph of its operations.

    Args:
        update: the update, which runs once.
        arguments: trees of tensors, which the update changes. They are not copied, since a state
            may hold a replay buffer that does not fit twice.

    Returns:
        The graph, which returns a tuple; the tensors to call it with; whether the update returns a
        tuple or one tensor.

    Raises:
        Unpackable: the update replaces tensors of its state.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = tuple(tensors(arguments).values())
    gives_tuple = False

    def flat(*some: Tensor) -> tuple[Tensor, ...]:
        nonlocal gives_tuple
        following = iter(some)
        tree = mapped(arguments, lambda _: next(following))
        result = update(*tree)
        if list(map(id, tensors(tree).values())) != list(map(id, some)):
            raise Unpackable("it replaces tensors of its state")
        gives_tuple = isinstance(result, tuple)
        return result if isinstance(result, tuple) else (result,)

    with compiling():
        graph = make_fx(flat)(*inputs)
    return graph, inputs, gives_tuple


def _compiled(recording: Recording, tell: Callable[[str], None]) -> bytes:
    """Compile the update and return the library."""
    from torch._inductor import aoti_compile_and_package

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecations
        tell("compiling the update, once on this machine (some 20 s): tracing it")
        graph, inputs, _ = traced(recording.update, copy.deepcopy(recording.arguments))
        program = torch.export.export(graph, inputs, strict=False)
        tell("compiling the update: it is traced, its C++ is being compiled")
        # In memory: torch ends the process if there is no room for a package on disk.
        package = io.BytesIO()
        configs = {**OPTIONS, "cpp.threads": graph_threads()}
        aoti_compile_and_package(program, package_path=package, inductor_configs=configs)
    with zipfile.ZipFile(package) as parts:
        (library,) = (name for name in parts.namelist() if name.endswith(_SUFFIX))
        name = library.removesuffix(_SUFFIX) + ".json"
        if name not in parts.namelist():
            return parts.read(library)
        calls = parts.read(name)
        return parts.read(library) + calls + _TRAILER.pack(len(calls), _CALLS)
