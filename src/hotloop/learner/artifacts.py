"""Artifacts: updates compiled for the CPU, stored on disk, which load in milliseconds.

    recorded = record(update, arguments)
    artifact = load(recorded) or build(recorded)

`record` runs an update once on copies and records its operations: their names, their numbers, and
the flow of results between them. An artifact's key is a digest of that record and of everything
else that machine code depends on (torch's build, the processor, the compiler, the number of
threads). AOTInductor builds the artifact. Loading it needs neither Dynamo nor Inductor.

An artifact is machine code. hotloop loads it only from the user's own cache (`hotloop.base.cache`),
never from a run's directory.
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
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.base import cache
from hotloop.base.files import private_file
from hotloop.learner.state import map_tensors, tensors
from hotloop.learner.threads import graph_threads

OPTIONS = {
    # Compute a value only once, even if several operations use it. The default repeats up to 30
    # operations, which costs an update of PPO's 64×64 networks 0.03 ms.
    "realize_opcount_threshold": 15,
    # Trust the processor's list of vector instructions. Inductor's own test takes 9 s.
    "cpp.vec_isa_ok": True,
    # Do not optimize the code around the kernels.
    "aot_inductor.compile_wrapper_opt_level": "O0",
}
_WITHOUT_CURRENT_DIRECTORY = "import sys\nsys.path = [path for path in sys.path if path]\n"
_SUFFIX = ".so"
# A library that calls hotloop's own operations ends with their list and its length.
_TRAILER = struct.Struct("<Q8s")
_TRAILER_MARK = b"hotloop\1"
_WAIT_MESSAGE = "compiling the update: waiting for another process that compiles the same update"


class PackagingError(Exception):
    """An error about an update that can't be packaged, with the reason."""


class CompilerError(Exception):
    """An error of AOTInductor while it compiles an update or loads the library."""


class RecordedUpdate(NamedTuple):
    """A digest of an update's operations, for arguments of some shapes.

    Attributes:
        key: 64 hexadecimal digits.
        update, arguments: the update and its arguments.
        returns_tuple: whether the update returns a tuple of tensors instead of one tensor.
    """

    key: str
    update: Callable[..., Any]
    arguments: tuple[Any, ...]
    returns_tuple: bool


def record(update: Callable[..., Any], arguments: tuple[Any, ...]) -> RecordedUpdate:
    """Run an update once on copies, and record its operations.

    Raises:
        PackagingError: the operations depend on the values of tensors, or the update replaces
            tensors of its state.
    """
    copies = copy.deepcopy(arguments)
    inputs = list(tensors(copies).values())
    if len(set(map(id, inputs))) < len(inputs):
        raise PackagingError("a tensor is passed twice")
    recorder = _Recorder(inputs)
    with compiling_flag(), recorder:
        result = update(*copies)
    after = list(tensors(copies).values())
    if list(map(id, after)) != list(map(id, inputs)):
        raise PackagingError("it replaces tensors of its state")
    outputs = result if isinstance(result, tuple) else (result,)
    if {id(x) for x in outputs} & {id(x) for x in inputs}:
        raise PackagingError("it returns a tensor of its arguments")
    recorder.add("outputs", outputs)
    key = hashlib.sha256(f"{recorder.digest()}\n{_compile_environment()}".encode()).hexdigest()
    return RecordedUpdate(key, update, arguments, isinstance(result, tuple))


@contextlib.contextmanager
def compiling_flag() -> Iterator[None]:
    """Make `torch.compiler.is_compiling()` true, as during torch's own tracing."""
    previous = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = previous


class _Recorder(TorchDispatchMode):
    """A digest of all operations, with tensors numbered in the order of their appearance."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self._text = hashlib.sha256()
        self._numbers: dict[int, int] = {}
        self._references: list[Tensor] = []  # keep tensors alive, so that each id stays unique
        for x in inputs:
            self._assign_number(x)
        self.add("inputs", [self._signature(x) for x in inputs])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports Dynamo, to skip `__torch_dispatch__`

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _VALUE_READING_OPS:
            raise PackagingError("it reads the values of its tensors")
        self.add(str(func), (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor):
                self._assign_number(x)
        return result

    def add(self, label: str, value: Any) -> None:
        self._text.update(f"{label} {self._describe(value)}\n".encode())

    def digest(self) -> str:
        return self._text.hexdigest()

    def _assign_number(self, x: Tensor) -> None:
        if id(x) not in self._numbers:
            self._numbers[id(x)] = len(self._numbers)
            self._references.append(x)

    def _describe(self, value: Any) -> str:
        if isinstance(value, Tensor):
            number = self._numbers.get(id(value))
            if number is not None:
                return f"%{number}"
            self._assign_number(value)
            content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            return f"{self._signature(value)}:{hashlib.sha256(content).hexdigest()}"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self._describe, value))}]"
        if isinstance(value, dict):
            return str({name: self._describe(part) for name, part in value.items()})
        return f"{type(value).__name__}({value!r})"

    @staticmethod
    def _signature(x: Tensor) -> str:
        return f"{x.dtype}{tuple(x.shape)}{x.stride()}{x.device}"


_VALUE_READING_OPS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
}


@functools.cache
def _machine_description() -> str:
    """Return a description of the hardware and software that machine code depends on."""
    flags = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    stat = os.stat(os.path.realpath(compiler)) if compiler else None
    return "\n".join(
        [
            torch.__version__,
            str(torch.version.git_version),
            platform.platform(),
            platform.machine(),
            torch.backends.cpu.get_cpu_capability(),
            flags,
            "" if stat is None else f"{compiler} {stat.st_size} {stat.st_mtime_ns}",
        ]
    )


def _compile_environment() -> str:
    from hotloop.base.version import __version__

    return f"{_machine_description()}\n{graph_threads()}\n{sorted(OPTIONS.items())}\n{__version__}"


class Artifact:
    """A compiled update: `artifact(state, arguments, tensors of the arguments)`."""

    def __init__(self, content: bytes, returns_tuple: bool) -> None:
        # Like `torch._inductor.aoti_load_package`, but without importing Inductor.
        runners: Any = torch._C._aoti  # pyright: ignore[reportAttributeAccessIssue]
        with _library_with_calls(content) as library:
            self._runner = runners.AOTIModelContainerRunnerCpu(str(library), 1)
        self._returns_tuple = returns_tuple
        self._state: Any = None
        self._state_tensors: list[Tensor] = []

    def __call__(self, state: Any, args: tuple[Any, ...], leaves: list[Tensor]) -> Any:
        if state is not self._state:
            self._state, self._state_tensors = state, list(tensors(state).values())
        outputs = self._runner.run(self._state_tensors + leaves)
        return tuple(outputs) if self._returns_tuple else outputs[0]


@contextlib.contextmanager
def _library_with_calls(content: bytes) -> Iterator[Path]:
    """Yield a path to the library, with a JSON list of the operations that it calls next to it."""
    # Torch reads a `.json` file of the same name. The cache stores both in one file, so that
    # neither can get lost alone.
    length, mark = _TRAILER.unpack(content[-_TRAILER.size :])
    # The path must be new: the system's loader returns an earlier library of the same path.
    with private_file(content) as path, cache.temporary_directory() as folder:
        link = folder / f"update{_SUFFIX}"
        link.symlink_to(path)
        if mark == _TRAILER_MARK:
            end = len(content) - _TRAILER.size
            link.with_suffix(".json").write_bytes(content[end - length : end])
        yield link


def load(recorded: RecordedUpdate) -> Artifact | None:
    """Return the artifact from the cache, or None if it is missing."""
    content = cache.find(recorded.key, _SUFFIX)
    return None if content is None else Artifact(content, recorded.returns_tuple)


def build(
    recorded: RecordedUpdate, on_progress: Callable[[str], None] = lambda _: None
) -> Artifact:
    """Compile the update, store the artifact in the cache if possible, and load it.

    Other processes that need the same artifact wait meanwhile.

    Args:
        on_progress: called with a progress message before each stage.
    """
    with cache.creating(recorded.key, _SUFFIX, lambda: on_progress(_WAIT_MESSAGE)) as file:
        content = file.existing or file.save(_compile(recorded, on_progress))
        return Artifact(content, recorded.returns_tuple)


def trace(
    update: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[torch.nn.Module, tuple[Tensor, ...], bool]:
    """Return an update as a graph of its operations.

    Args:
        update: the update, which runs once.
        arguments: trees of tensors. The update changes them. They are not copied, since a state
            may hold a replay buffer that does not fit into memory twice.

    Returns:
        The graph, which returns a tuple; its input tensors; and whether the update returns a tuple
        instead of one tensor.

    Raises:
        PackagingError: the update replaces tensors of its state.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs = tuple(tensors(arguments).values())
    returns_tuple = False

    def flat_update(*leaves: Tensor) -> tuple[Tensor, ...]:
        nonlocal returns_tuple
        remaining = iter(leaves)
        tree = map_tensors(arguments, lambda _: next(remaining))
        result = update(*tree)
        if list(map(id, tensors(tree).values())) != list(map(id, leaves)):
            raise PackagingError("it replaces tensors of its state")
        returns_tuple = isinstance(result, tuple)
        return result if isinstance(result, tuple) else (result,)

    with compiling_flag():
        graph = make_fx(flat_update)(*inputs)
    return graph, inputs, returns_tuple


@contextlib.contextmanager
def private_inductor() -> Iterator[None]:
    """Keep torch's compiler from the files of others while the body runs.

    It stores its own in hotloop's cache. To test a library it starts `python -c`, which would
    search the current directory first: a `ctypes.py` in a run directory would be executed.
    """
    from torch._inductor.cpu_vec_isa import VecISA
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if not VecISA._avx_py_load.startswith(_WITHOUT_CURRENT_DIRECTORY):
        VecISA._avx_py_load = _WITHOUT_CURRENT_DIRECTORY + VecISA._avx_py_load
    with cache.inductor_directory(default_cache_dir()):
        yield


def _compile(recorded: RecordedUpdate, on_progress: Callable[[str], None]) -> bytes:
    """Return the compiled library of an update, followed by the operations that it calls."""
    from torch._inductor import aoti_compile_and_package

    with warnings.catch_warnings(), private_inductor():
        warnings.simplefilter("ignore")  # deprecations within torch
        on_progress("compiling the update, once on this machine (about 20 s): tracing")
        graph, inputs, _ = trace(recorded.update, copy.deepcopy(recorded.arguments))
        program = torch.export.export(graph, inputs, strict=False)
        on_progress("compiling the update: compiling its C++")
        # Build in memory, since torch aborts the process if the package does not fit on the disk.
        package = io.BytesIO()
        configs = {**OPTIONS, "cpp.threads": graph_threads()}
        aoti_compile_and_package(program, package_path=package, inductor_configs=configs)
    with zipfile.ZipFile(package) as parts:
        (library,) = (name for name in parts.namelist() if name.endswith(_SUFFIX))
        name = library.removesuffix(_SUFFIX) + ".json"
        if name not in parts.namelist():
            return parts.read(library)
        calls = parts.read(name)
        return parts.read(library) + calls + _TRAILER.pack(len(calls), _TRAILER_MARK)
