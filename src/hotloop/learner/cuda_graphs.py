"""CUDA graphs: an update is captured once, and then one launch replays it.

A graph holds addresses. The state that the update changes keeps its addresses. Each call copies the
other arguments into the graph's own inputs and returns copies of the outputs, so that the next
replay does not overwrite what the caller still reads. Random numbers are arguments.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.errors import ConfigError, first_line, shortened
from hotloop.learner.state import tensors

# Number of calls before the capture, in which libraries choose algorithms and allocate memory.
_NUM_WARM_UPS = 3
# Number of timed calls. The fastest one is reported.
_NUM_TIMED_CALLS = 5
_MIB = 2**20
# Graphs whose capture failed, kept alive: torch's allocator may call them until the process ends.
_FAILED_GRAPHS: list[torch.cuda.CUDAGraph] = []


class CapturedCall(NamedTuple):
    """A captured call.

    Attributes:
        replay: launches the call's operations on the same memory, without waiting for them.
        outputs: the result of the call. Each replay overwrites it.
        size_bytes: memory that the capture added to the process.
    """

    replay: Callable[[], None]
    outputs: Any
    size_bytes: int


class GraphCapturer(Protocol):
    """An object that captures calls: on a GPU, or in tests an imitation."""

    def warm_up(self, call: Callable[[], Any]) -> None:
        """Run the call on another stream until libraries have chosen algorithms and memory.

        Raises:
            RuntimeError: the call waits for the device.
        """
        ...

    def capture(self, call: Callable[[], Any]) -> CapturedCall:
        """Record a call's operations without running them."""
        ...

    def wait(self) -> None:
        """Wait until the device has finished all its work."""
        ...


class _CaptureResources(NamedTuple):
    """The streams and the memory that all captures on a device share.

    Graphs share one pool, so memory for intermediate results exists once. This is safe because all
    graphs are replayed on one stream, which also copies their outputs before the next replay.

    Attributes:
        warm_up: the stream of warm-ups. It differs from `capture`, so that matrix products allocate
            their workspace for the capture stream from the pool.
        capture: the stream of captures. Memory of one stream is not reused on another.
        pool: the handle of the memory pool.
        keeper: an empty graph that keeps the pool: torch can't use one without any graph left.
    """

    warm_up: torch.cuda.Stream
    capture: torch.cuda.Stream
    pool: Any
    keeper: torch.cuda.CUDAGraph


@functools.cache
def _capture_resources(index: int) -> _CaptureResources:
    with torch.cuda.device(index), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that `keeper` is empty
        resources = _CaptureResources(
            torch.cuda.Stream(),
            torch.cuda.Stream(),
            torch.cuda.graph_pool_handle(),
            torch.cuda.CUDAGraph(),
        )
        with _torch_capture(resources, resources.keeper):
            pass
    return resources


def _torch_capture(resources: _CaptureResources, graph: torch.cuda.CUDAGraph) -> Any:
    # "thread_local": CUDA calls of other threads, such as copies for a checkpoint, are allowed.
    return torch.cuda.graph(
        graph, pool=resources.pool, stream=resources.capture, capture_error_mode="thread_local"
    )


class CudaGraphCapturer:
    """A capturer that uses `torch.cuda.graph`.

    Raises:
        ConfigError: an earlier capture failed in this process.
    """

    def __init__(self, device: torch.device) -> None:
        if _FAILED_GRAPHS:
            raise ConfigError(
                "can't capture a graph after a failed capture in the same process: start a new "
                "process, or choose `execution` 'compile' or 'eager'"
            )
        self._device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index

    def warm_up(self, call: Callable[[], Any]) -> None:
        """See `GraphCapturer`. A capture needs a separate stream, and so do its warm-ups.

        The last call raises an error if it would wait for the device. The error has the line in
        Python, unlike the error of a capture that such a call breaks.
        """
        current = torch.cuda.current_stream(self._device)
        stream = _capture_resources(self._index).warm_up
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(_NUM_WARM_UPS):
                    call()
                with no_synchronization():
                    call()
        finally:
            current.wait_stream(stream)

    def capture(self, call: Callable[[], Any]) -> CapturedCall:
        """See `GraphCapturer`."""
        resources = _capture_resources(self._index)
        graph = torch.cuda.CUDAGraph()
        self.wait()
        gc.collect()
        torch.cuda.empty_cache()  # a capture calls it too, which would distort the difference below
        reserved_bytes = torch.cuda.memory_reserved(self._device)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.device(self._device):
            try:
                with _no_garbage_collection(), _torch_capture(resources, graph):
                    outputs = call()
            except BaseException:
                # Torch skips its clean-up if ending the capture fails: the capture stream stays the
                # current one, and the allocator continues to call the graph.
                _FAILED_GRAPHS.append(graph)
                torch.cuda.set_stream(current)
                with contextlib.suppress(RuntimeError):  # newer versions of torch end it themselves
                    torch._C._cuda_endAllocateToPool(self._index, resources.pool)
                raise
        return CapturedCall(
            graph.replay, outputs, max(0, torch.cuda.memory_reserved(self._device) - reserved_bytes)
        )

    def wait(self) -> None:
        """See `GraphCapturer`."""
        torch.cuda.synchronize(self._device)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection, which may free a graph or an event of CUDA."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CapturedUpdate:
    """An update as one graph: `captured(state, arguments, tensors of the arguments)`.

    Args:
        update: a function of a state and of arguments. It changes the state's tensors in place. It
            must outlive the graph, which reads constants of a compiled function.
        state: the state for the capture. The graph supports no other state, see `matches`.
        inputs: arguments for the capture: tuples of tensors, tensors, or None. They belong to the
            graph afterwards.
        written: the state's tensors that the update changes, see `written_tensors`.
        capturer: captures calls on the device.
        name: the update's name in messages.
        copies_outputs: whether each call returns new tensors. If False, it returns tensors that the
            next replay of any graph overwrites.

    Attributes:
        size_bytes: memory that the capture added to the process.
        call_s: seconds from the launch of a replay to its end.

    Raises:
        ConfigError: the update can't be captured. The message has the reason and the line.
        torch.OutOfMemoryError: the device does not have enough memory.
    """

    def __init__(
        self,
        update: Callable[..., Any],
        state: Any,
        inputs: tuple[Any, ...],
        written: list[Tensor],
        capturer: GraphCapturer,
        *,
        name: str,
        copies_outputs: bool = True,
    ) -> None:
        self._update = update
        self._state = state
        self._tensors = list(tensors(state).values())
        self._addresses = [x.data_ptr() for x in self._tensors]
        self._inputs = list(tensors(inputs).values())
        self._copies_outputs = copies_outputs
        # Copy all tensors of the same type with one launch.
        dtypes = dict.fromkeys(x.dtype for x in self._inputs)
        self._by_dtype = [
            [k for k, x in enumerate(self._inputs) if x.dtype == dtype] for dtype in dtypes
        ]
        old_values = [x.clone() for x in written]
        consequence = ""
        try:
            try:
                capturer.warm_up(lambda: update(state, *inputs))
            finally:
                _restore(written, old_values)
            consequence = ", and this process can't capture other graphs"
            captured = capturer.capture(lambda: update(state, *inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            origin = _origin(error)
            raise ConfigError(
                f"the {name} can't be captured as a graph: {shortened(first_line(origin))}"
                f"{_location(origin.__traceback__)}{consequence}: do not read a tensor's value on "
                "the host (`.item()`, `if tensor:`) or create tensors from Python numbers in the "
                "update, or choose another `execution`"
            ) from error
        self._replay, self._outputs, self.size_bytes = captured
        self.call_s = fastest_call_s(self._replay, capturer.wait)
        _restore(written, old_values)

    def matches(self, state: Any) -> bool:
        """Return whether this is the state of the capture, with unchanged addresses.

        Stacking learners for a joint update moves their tensors.
        """
        addresses = [x.data_ptr() for x in self._tensors]
        return state is self._state and addresses == self._addresses

    def __call__(self, state: Any, args: tuple[Any, ...], leaves: list[Tensor]) -> Any:
        """Replay the graph with these arguments and return its outputs."""
        inputs = self._inputs
        for indices in self._by_dtype:
            changed = [k for k in indices if leaves[k] is not inputs[k]]
            if changed:
                torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                    [inputs[k] for k in changed], [leaves[k] for k in changed]
                )
        self._replay()
        if not self._copies_outputs:
            return self._outputs
        # Copy the outputs with one launch each. The stream runs them before the next replay.
        if isinstance(self._outputs, tuple):
            return tuple(x.clone() for x in self._outputs)
        return self._outputs.clone()


def fastest_call_s(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the seconds of the fastest of a few calls, including the work on the device."""
    durations: list[float] = []
    for _ in range(_NUM_TIMED_CALLS):
        wait()
        start_s = time.perf_counter()
        call()
        wait()
        durations.append(time.perf_counter() - start_s)
    return min(durations)


def written_tensors(update: Callable[..., Any], state: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the state's tensors that an update changes, with their values restored.

    The update runs once. A tensor is copied just before the first write to it. The result excludes
    tensors that copies of the state share, such as a replay buffer.
    """
    recorder = _WriteRecorder(list(tensors(state, skip_shared=True).values()))
    try:
        with recorder:
            update(state, *args)
    finally:
        _restore(recorder.written, recorder.old_values)
    return recorder.written


class _WriteRecorder(TorchDispatchMode):
    """A mode that copies tensors before an operation writes to their memory."""

    def __init__(self, watched: list[Tensor]) -> None:
        super().__init__()
        self._watched: dict[int, list[Tensor]] = {}
        for x in watched:
            self._watched.setdefault(_storage_address(x), []).append(x)
        self.written: list[Tensor] = []
        self.old_values: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports Dynamo, to skip `__torch_dispatch__`

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            for x in value if isinstance(value, list | tuple) else (value,):
                if isinstance(x, Tensor):
                    self._save(x)
        return func(*args, **kwargs)

    def _save(self, x: Tensor) -> None:
        for tensor in self._watched.pop(_storage_address(x), ()):
            self.written.append(tensor)
            self.old_values.append(tensor.clone())


def size_bytes(tree: Any) -> int:
    """Return the memory of a tree's tensors in bytes."""
    return sum(x.numel() * x.element_size() for x in tensors(tree).values())


def _storage_address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _restore(written: list[Tensor], old_values: list[Tensor]) -> None:
    with torch.no_grad():
        for x, old_value in zip(written, old_values, strict=True):
            x.copy_(old_value)


def _origin(error: BaseException) -> BaseException:
    """Return the first error of a chain: after an error in a capture, ending it fails too."""
    origin, context = error, error.__context__
    while context is not None:
        frames = traceback.walk_tb(context.__traceback__)
        if any(frame.f_code.co_filename == __file__ for frame, _ in frames):
            origin = context
        context = context.__context__
    return origin


def _location(trace: TracebackType | None) -> str:
    """Return the line that raised the error: the innermost line outside torch and this package."""
    location = ""
    skipped = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith((*skipped, "<")):
            location = f" ({code.co_filename}:{trace.tb_lineno}, in {code.co_name})"
        trace = trace.tb_next
    return location


def out_of_memory_error(
    name: str, state: Any, args: tuple[Any, ...], graph_bytes: int, error: BaseException
) -> ConfigError:
    """Return an error that lists the contents of a device's memory.

    Args:
        name: the update's name.
        state: the state, or a tuple of the state, hyper-parameters and a replay buffer.
        args: a batch and noise.
        graph_bytes: memory of this update's graphs.
        error: the error of the allocation.
    """
    trees = state if isinstance(state, tuple) else (state,)
    parts = {
        "the state": size_bytes(trees[:2]),
        "the replay buffer": size_bytes(trees[2:]),
        "a batch": size_bytes(args),
        "graphs": graph_bytes,
    }
    sizes = ", ".join(f"{part} {size / _MIB:,.0f} MiB" for part, size in parts.items() if size)
    return ConfigError(
        f"the device has no memory left for the {name}, which holds {sizes} "
        f"({shortened(first_line(error))}): lower `batch_size`, `buffer_size` or `hidden_sizes`, "
        "set `replay_device` 'host', or end other programs that use the device"
    )


@contextlib.contextmanager
def no_synchronization() -> Iterator[None]:
    """Make torch raise an error if the body waits for a GPU. Without a GPU, do nothing."""
    if not torch.cuda.is_initialized():
        yield
        return
    previous_mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(previous_mode)
