"""Artefacts: compiled updates that are kept on disk, and load in milliseconds.

    recording = record(update, arguments)
    artefact = load(recording) or build(recording)

An update is run once on copies while its operations are written down: their names, their numbers,
and which result goes where. That text, with all else that machine code depends on (torch's build,
the processor, the compiler, the number of threads), is what an artefact is found by. It is built by
AOTInductor and loaded without Dynamo and Inductor.

An artefact is machine code: it is taken from the user's own cache alone (`hotloop.cache`), never
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
    # What is used more than once is computed once, where the default is to repeat up to 30
    # operations: 0.03 ms less an update of PPO's 64×64 networks.
    "realize_opcount_threshold": 15,
    # The processor says which vectors it has: Inductor would compile and load some, for 9 s.
    "cpp.vec_isa_ok": True,
    # The code around the kernels.
    "aot_inductor.compile_wrapper_opt_level": "O0",
}
_SUFFIX = ".so"
# What ends a library that calls operations of ours, whose list stands before it: how long that is.
_TRAILER = struct.Struct("<Q8s")
_CALLS = b"hotloop\1"
_WAITS = "compiling the update: another process compiles the same, waiting for it"


class Unpackable(Exception):
    """An update that can't be kept: it says why."""


class CompilerFailure(Exception):
    """AOTInductor cannot compile an update, or cannot load what it compiled."""


class Recording(NamedTuple):
    """What an update does with arguments like some.

    Attributes:
        key: 64 hexadecimal digits.
        update, arguments: themselves; the arguments are copies.
        gives_tuple: whether it gives several tensors or one.
    """

    key: str
    update: Callable[..., Any]
    arguments: tuple[Any, ...]
    gives_tuple: bool


def record(update: Callable[..., Any], arguments: tuple[Any, ...]) -> Recording:
    """Run an update once on copies, and write down what it does.

    Raises:
        Unpackable: what it does depends on the values of its tensors, or it replaces tensors of its
            state.
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
    """Have `torch.compiler.is_compiling()` say so, as it does while torch traces by itself."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


class _Recorder(TorchDispatchMode):
    """Writes down each operation, with tensors by the order in which they came up."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self._text = hashlib.sha256()
        self._numbers: dict[int, int] = {}
        self._kept: list[Tensor] = []  # so that no number is given twice
        for x in inputs:
            self._enter(x)
        self.add("inputs", [self._outline(x) for x in inputs])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports Dynamo, to have it leave the next method alone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOOKS_AT_VALUES:
            raise Unpackable("it looks at the values of its tensors")
        self.add(str(func), (args, kwargs or {}))
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else (result,):
            if isinstance(x, Tensor):
                self._enter(x)
        return result

    def add(self, what: str, value: Any) -> None:
        self._text.update(f"{what} {self._told(value)}\n".encode())

    def digest(self) -> str:
        return self._text.hexdigest()

    def _enter(self, x: Tensor) -> None:
        if id(x) not in self._numbers:
            self._numbers[id(x)] = len(self._numbers)
            self._kept.append(x)

    def _told(self, value: Any) -> str:
        if isinstance(value, Tensor):
            number = self._numbers.get(id(value))
            if number is not None:
                return f"%{number}"
            self._enter(value)
            content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            return f"{self._outline(value)}:{hashlib.sha256(content).hexdigest()}"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self._told, value))}]"
        if isinstance(value, dict):
            return str({name: self._told(one) for name, one in value.items()})
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
    """What machine code depends on, beside what it does."""
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
        # What `torch._inductor.aoti_load_package` comes to, without importing Inductor, and without
        # a copy of the library in a directory that a killed process leaves behind.
        runners: Any = torch._C._aoti  # pyright: ignore[reportAttributeAccessIssue]
        with _beside_its_calls(path) as found:
            self._runner = runners.AOTIModelContainerRunnerCpu(str(found), 1)
        self._gives_tuple = gives_tuple
        self._state: Any = None
        self._state_tensors: list[Tensor] = []

    def __call__(self, state: Any, args: tuple[Any, ...], given: list[Tensor]) -> Any:
        if state is not self._state:
            self._state, self._state_tensors = state, list(tensors(state).values())
        outputs = self._runner.run(self._state_tensors + given)
        return tuple(outputs) if self._gives_tuple else outputs[0]


@contextlib.contextmanager
def _beside_its_calls(path: Path) -> Iterator[Path]:
    """Give a library's path, with the list of operations that it calls beside it.

    Torch looks for a `.json` of the same name, but keeping two files could keep one of them alone.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TRAILER.size))
        length, mark = _TRAILER.unpack(file.read())
        if mark != _CALLS:
            yield path
            return
        file.seek(size - _TRAILER.size - length)
        told = file.read(length)
    with tempfile.TemporaryDirectory(prefix="hotloop-") as folder:
        link = Path(folder) / f"update{_SUFFIX}"
        link.symlink_to(path.resolve())
        link.with_suffix(".json").write_bytes(told)
        yield link


def load(recording: Recording) -> Artefact | None:
    """An artefact that is there; None: there is none."""
    path = cache.find(recording.key, _SUFFIX)
    return None if path is None else Artefact(path, recording.gives_tuple)


def build(recording: Recording, tell: Callable[[str], None] = lambda _: None) -> Artefact:
    """Compile, keep what came of it where that is possible, and load it.

    Of several processes one builds, and the others wait for it.

    Args:
        tell: called with what is done next.
    """
    with cache.to_be_made(recording.key, _SUFFIX, lambda: tell(_WAITS)) as making:
        if making.found is not None:
            return Artefact(making.found, recording.gives_tuple)
        return Artefact(making.keep(_compiled(recording, tell)), recording.gives_tuple)


def traced(
    update: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[torch.nn.Module, tuple[Tensor, ...], bool]:
    """Return an update as a graph of its operations, of the tensors of its arguments in order.

    Args:
        update: is run once.
        arguments: trees of tensors, which it changes; no copies, since a state may hold a replay
            buffer that leaves no room for another.

    Returns:
        The graph, which gives a tuple; the tensors to call it with; whether the update gives a
        tuple too, or one tensor.

    Raises:
        Unpackable: it replaces tensors of its state.
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
    """Return the library that is the compiled update."""
    from torch._inductor import aoti_compile_and_package

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's about its own ways
        tell("compiling the update, once on this machine (some 20 s): tracing it")
        graph, inputs, _ = traced(recording.update, copy.deepcopy(recording.arguments))
        program = torch.export.export(graph, inputs, strict=False)
        tell("compiling the update: it is traced, its C++ is being compiled")
        # In memory: torch ends the process where a package that it writes finds no room.
        package = io.BytesIO()
        configs = {**OPTIONS, "cpp.threads": graph_threads()}
        aoti_compile_and_package(program, package_path=package, inductor_configs=configs)
    with zipfile.ZipFile(package) as parts:
        (library,) = (name for name in parts.namelist() if name.endswith(_SUFFIX))
        calls = library.removesuffix(_SUFFIX) + ".json"
        if calls not in parts.namelist():
            return parts.read(library)
        told = parts.read(calls)
        return parts.read(library) + told + _TRAILER.pack(len(told), _CALLS)
