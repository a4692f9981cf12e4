"""CUDA graphs: an update that is captured once and then replayed by one launch.

A graph holds addresses. The state that the update changes keeps its addresses. The other arguments
are copied into inputs that belong to the graph, and outputs are copied before they are returned, so
that the next replay overwrites nothing that the caller still reads. Random numbers are arguments.
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

from hotloop.errors import ConfigError, shortened
from hotloop.learner.state import tensors

# Calls before the capture, in which libraries choose algorithms and allocate memory.
_WARM_UPS = 3
# Calls of which the fastest is reported.
_TIMED = 5
_MIB = 2**20
# Graphs whose capture failed. Torch's allocator may call them for as long as the process lives.
_FAILED: list[torch.cuda.CUDAGraph] = []


class Captured(NamedTuple):
    """A captured call.

    Attributes:
        replay: launches the call's operations on the same memory, without waiting for them.
        outputs: what the call returned. Each replay overwrites it.
        size_bytes: memory that the capture has added to the process.
    """

    replay: Callable[[], None]
    outputs: Any
    size_bytes: int


class Capturing(Protocol):
    """Capturing of calls, on a GPU or by a stand-in in tests."""

    def warm_up(self, call: Callable[[], Any]) -> None:
        """Call it on another stream until libraries have chosen algorithms and memory.

        Raises:
            RuntimeError: the call waits for the device.
        """
        ...

    def capture(self, call: Callable[[], Any]) -> Captured:
        """Record a call's operations without running them."""
        ...

    def wait(self) -> None:
        """Wait until the device has finished all its work."""
        ...


class _CaptureSite(NamedTuple):
    """The streams and the memory that all captures on a device share.

    Graphs share one pool of memory, so the memory between operations is there once and not once a
    graph. That is safe because all graphs are replayed on one stream and their outputs are copied
    on that stream before the next replay: a replay may overwrite the outputs of another graph, but
    only after they were copied.

    Attributes:
        warm_up: the stream of warm-ups. Another one than `capture`, so that the work areas that
            matrix products get for a stream are allocated from the pool.
        capture: the stream of captures. Memory of one stream is not reused on another.
        pool: the handle of the memory pool.
        keeper: an empty graph. Torch can't capture into a pool whose graphs are all gone.
    """

    warm_up: torch.cuda.Stream
    capture: torch.cuda.Stream
    pool: Any
    keeper: torch.cuda.CUDAGraph


@functools.cache
def _capture_site(index: int) -> _CaptureSite:
    with torch.cuda.device(index), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph is empty
        site = _CaptureSite(
            torch.cuda.Stream(),
            torch.cuda.Stream(),
            torch.cuda.graph_pool_handle(),
            torch.cuda.CUDAGraph(),
        )
        with _torch_capture(site, site.keeper):
            pass
    return site


def _torch_capture(site: _CaptureSite, graph: torch.cuda.CUDAGraph) -> Any:
    # "thread_local": calls of other threads, such as copies for a checkpoint, break no capture.
    return torch.cuda.graph(
        graph, pool=site.pool, stream=site.capture, capture_error_mode="thread_local"
    )


class CudaCapturing:
    """Capturing with `torch.cuda.graph`.

    Args:
        device: the device of all tensors.

    Raises:
        ConfigError: an earlier capture failed in this process.
    """

    def __init__(self, device: torch.device) -> None:
        if _FAILED:
            raise ConfigError(
                "no graph can be captured any more, since an earlier capture failed in this "
                "process: start a new process, or choose `execution` 'compile' or 'eager'"
            )
        self._device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index

    def warm_up(self, call: Callable[[], Any]) -> None:
        """See `Capturing`. A capture needs a stream of its own, and so do its warm-ups.

        The last call raises where it would wait for the device, with the line in Python. A capture
        that such a call breaks reports less.
        """
        current = torch.cuda.current_stream(self._device)
        stream = _capture_site(self._index).warm_up
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    call()
                with no_synchronisation():
                    call()
        finally:
            current.wait_stream(stream)

    def capture(self, call: Callable[[], Any]) -> Captured:
        """See `Capturing`."""
        site = _capture_site(self._index)
        graph = torch.cuda.CUDAGraph()
        self.wait()
        gc.collect()
        torch.cuda.empty_cache()  # a capture begins with it, which would hide what it allocates
        before = torch.cuda.memory_reserved(self._device)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.device(self._device):
            try:
                with _no_garbage_collection(), _torch_capture(site, graph):
                    outputs = call()
            except BaseException:
                # Torch leaves its own clean-up out if the capture can't be ended: the capture
                # stream stays the current one, and the allocator goes on asking the graph.
                _FAILED.append(graph)
                torch.cuda.set_stream(current)
                with contextlib.suppress(RuntimeError):  # newer versions have done it
                    torch._C._cuda_endAllocateToPool(self._index, site.pool)
                raise
        return Captured(
            graph.replay, outputs, max(0, torch.cuda.memory_reserved(self._device) - before)
        )

    def wait(self) -> None:
        """See `Capturing`."""
        torch.cuda.synchronize(self._device)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep Python from collecting garbage, which may free a graph or an event of CUDA."""
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
        update: a function of a state, whose tensors it changes in place, and of arguments. It lives
            as long as the graph, which reads constants of a compiled function.
        state: the state that the update is captured with. The graph works with no other, see
            `is_for`.
        inputs: tuples of tensors, tensors, or None: arguments for the capture. They belong to the
            graph afterwards.
        written: the state's tensors that the update changes, see `written_by`.
        capturing: captures on the device.
        name: the update's name in messages.
        copies_outputs: whether each call returns tensors of its own. False returns tensors that
            the next replay of any graph overwrites.

    Attributes:
        size_bytes: memory that the capture has added to the process.
        call_s: seconds from the launch of a replay to its end.

    Raises:
        ConfigError: the update can't be captured, with the reason and the line.
        torch.OutOfMemoryError: the device has not enough memory.
    """

    def __init__(
        self,
        update: Callable[..., Any],
        state: Any,
        inputs: tuple[Any, ...],
        written: list[Tensor],
        capturing: Capturing,
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
        # Tensors of one type are copied by one launch.
        dtypes = dict.fromkeys(x.dtype for x in self._inputs)
        self._by_dtype = [
            [k for k, x in enumerate(self._inputs) if x.dtype == dtype] for dtype in dtypes
        ]
        before = [x.clone() for x in written]
        is_last = ""
        try:
            try:
                capturing.warm_up(lambda: update(state, *inputs))
            finally:
                _restore(written, before)
            is_last = "; this process captures no more graphs"
            captured = capturing.capture(lambda: update(state, *inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first = _origin(error)
            raise ConfigError(
                f"the {name} can't be captured as a graph: {shortened(first_line(first))}"
                f"{_place(first.__traceback__)}{is_last}: an update must not read a tensor's value "
                "on the host (`.item()`, `if tensor:`), nor make tensors of Python's numbers; or "
                "choose another `execution`"
            ) from error
        self._replay, self._outputs, self.size_bytes = captured
        self.call_s = timed(self._replay, capturing.wait)
        _restore(written, before)

    def is_for(self, state: Any) -> bool:
        """Return whether the graph works with a state, which lies where it was captured.

        Learners that are stacked for a joint update move.
        """
        addresses = [x.data_ptr() for x in self._tensors]
        return state is self._state and addresses == self._addresses

    def __call__(self, state: Any, args: tuple[Any, ...], leaves: list[Tensor]) -> Any:
        """Replay the graph with these arguments; return its outputs."""
        inputs = self._inputs
        for places in self._by_dtype:
            changed = [k for k in places if leaves[k] is not inputs[k]]
            if changed:
                torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                    [inputs[k] for k in changed], [leaves[k] for k in changed]
                )
        self._replay()
        if not self._copies_outputs:
            return self._outputs
        # One launch each, on the same stream, so before the next replay.
        if isinstance(self._outputs, tuple):
            return tuple(x.clone() for x in self._outputs)
        return self._outputs.clone()


def timed(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the seconds of the fastest of a few calls, until the device has finished."""
    durations: list[float] = []
    for _ in range(_TIMED):
        wait()
        started = time.perf_counter()
        call()
        wait()
        durations.append(time.perf_counter() - started)
    return min(durations)


def written_by(update: Callable[..., Any], state: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the state's tensors that an update changes, with their values restored.

    The update runs once. A tensor is copied just before the first write to it. Tensors that copies
    of the state share, such as a replay buffer, are left out.
    """
    watch = _Watch(list(tensors(state, is_copied=True).values()))
    try:
        with watch:
            update(state, *args)
    finally:
        _restore(watch.written, watch.before)
    return watch.written


class _Watch(TorchDispatchMode):
    """Copy tensors before an operation writes to their memory."""

    def __init__(self, watched: list[Tensor]) -> None:
        super().__init__()
        self._watched: dict[int, list[Tensor]] = {}
        for x in watched:
            self._watched.setdefault(_memory(x), []).append(x)
        self.written: list[Tensor] = []
        self.before: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports Dynamo, to exclude the next method from it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for x in value if isinstance(value, list | tuple) else (value,):
                if isinstance(x, Tensor):
                    self._keep(x)
        return func(*args, **kwargs)

    def _keep(self, x: Tensor) -> None:
        for tensor in self._watched.pop(_memory(x), ()):
            self.written.append(tensor)
            self.before.append(tensor.clone())


def size_bytes(tree: Any) -> int:
    """Return the memory of a tree's tensors."""
    return sum(x.numel() * x.element_size() for x in tensors(tree).values())


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _restore(written: list[Tensor], before: list[Tensor]) -> None:
    with torch.no_grad():
        for x, old in zip(written, before, strict=True):
            x.copy_(old)


def first_line(error: BaseException) -> str:
    """Return an error's message in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith("raised:"):
        return lines[1]
    return lines[0] if lines else type(error).__name__


def _origin(error: BaseException) -> BaseException:
    """Return the first of a chain of errors that was raised through this module.

    An error breaks a capture, and then ending the capture raises another error.
    """
    found, following = error, error.__context__
    while following is not None:
        frames = traceback.walk_tb(following.__traceback__)
        if any(frame.f_code.co_filename == __file__ for frame, _ in frames):
            found = following
        following = following.__context__
    return found


def _place(trace: TracebackType | None) -> str:
    """Return the line of the update that raised: the last one outside torch and this package."""
    found = ""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith((*ours, "<")):
            found = f" ({code.co_filename}:{trace.tb_lineno}, in {code.co_name})"
        trace = trace.tb_next
    return found


def no_room(
    name: str, state: Any, args: tuple[Any, ...], graph_bytes: int, error: BaseException
) -> ConfigError:
    """Return an error that lists what fills a device's memory.

    Args:
        name: the update's name.
        state: the state; or a tuple of the state, hyper-parameters and a replay buffer.
        args: a batch, and noise.
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
        "keep the replay buffer on the host, or end other programs that use the device"
    )


@contextlib.contextmanager
def no_synchronisation() -> Iterator[None]:
    """Make torch raise an error if the body waits for a GPU; without a GPU, do nothing."""
    if not torch.cuda.is_initialized():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
