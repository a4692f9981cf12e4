"""CUDA graphs: an update that is captured once, and from then on is one launch.

What a graph holds are addresses. The state that the update changes keeps its own; the other
arguments are copied into inputs that stay, and outputs are copied before they are given away, so
that the next replay overwrites nothing that somebody reads. Random numbers are handed in.
"""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.errors import ConfigError, shortened
from hotloop.learner.state import tensors

# Calls before it is captured: libraries choose their ways and take their memory in them.
_WARM_UPS = 3
# Calls that one call's time is taken from.
_TIMED = 5
_MIB = 2**20


class Captured(NamedTuple):
    """What came of capturing a call.

    Attributes:
        replay: makes the call's operations again, on the same memory; waits for nothing.
        outputs: what the call gave, which each replay overwrites.
        size_bytes: memory that it has taken for itself.
    """

    replay: Callable[[], None]
    outputs: Any
    size_bytes: int


class Capturing(Protocol):
    """The ability to capture; of a GPU, or a stand-in in tests."""

    def warm_up(self, call: Callable[[], Any]) -> None:
        """Make a call aside, until all is settled that first calls settle.

        Raises:
            RuntimeError: it waits for the device.
        """
        ...

    def capture(self, call: Callable[[], Any]) -> Captured:
        """Take down a call's operations, which are not made."""
        ...

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        ...


class CudaCapturing:
    """Capturing by `torch.cuda.graph`.

    Args:
        device: that all tensors are on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm_up(self, call: Callable[[], Any]) -> None:
        """See `Capturing`: on a stream beside, as what is captured runs on one.

        The last call finds what would wait for the device, while Python still knows where: a
        capture that such a call breaks says less.
        """
        current = torch.cuda.current_stream(self._device)
        stream = torch.cuda.Stream(self._device)
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
        graph = torch.cuda.CUDAGraph()
        self.wait()
        gc.collect()
        torch.cuda.empty_cache()  # capturing begins so anyway, which would hide what it takes
        before = torch.cuda.memory_reserved(self._device)
        # A stream of its own: torch keeps one for all captures, on the device of the first.
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream(self._device)
            with torch.cuda.graph(graph, stream=stream):
                outputs = call()
        return Captured(
            graph.replay, outputs, max(0, torch.cuda.memory_reserved(self._device) - before)
        )

    def wait(self) -> None:
        """See `Capturing`."""
        torch.cuda.synchronize(self._device)


class CapturedUpdate:
    """An update as one graph: `captured(state, arguments, tensors of the arguments)`.

    Args:
        update: of a state, whose tensors it changes in place, and of arguments like these.
        state: the one that it is captured with, and for.
        inputs: tuples of tensors, tensors, or None: arguments that it is captured with, and that
            are its own from here on.
        written: the state's tensors that it changes, see `written_by`.
        capturing: of the device.
        name: what messages call it.

    Attributes:
        size_bytes: memory that the graph has taken for itself.
        call_s: seconds of a replay, from its launch to its end.

    Raises:
        ConfigError: it can't be captured, says why and where.
        torch.OutOfMemoryError: there is no room for it.
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
    ) -> None:
        self._state = state
        self._inputs = list(tensors(inputs).values())
        # One copy of many tensors is one launch where all are of one type.
        dtypes = dict.fromkeys(x.dtype for x in self._inputs)
        self._by_dtype = [
            [k for k, x in enumerate(self._inputs) if x.dtype == dtype] for dtype in dtypes
        ]
        before = [x.clone() for x in written]
        try:
            try:
                capturing.warm_up(lambda: update(state, *inputs))
            finally:
                _restore(written, before)
            captured = capturing.capture(lambda: update(state, *inputs))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first = _origin(error)
            raise ConfigError(
                f"the {name} can't be captured as a graph: {shortened(_first_line(first))}"
                f"{_place(first.__traceback__)}: an update must not look at a tensor's value "
                "(`.item()`, `if tensor:`), nor make tensors of Python's numbers; or choose "
                "another `execution`"
            ) from error
        self._replay, self._outputs, self.size_bytes = captured
        self.call_s = timed(self._replay, capturing.wait)
        _restore(written, before)

    def __call__(self, state: Any, args: tuple[Any, ...], given: list[Tensor]) -> Any:
        """Replay it with these arguments; return tensors of the caller's own."""
        if state is not self._state:
            raise ValueError("a graph is of the state that it was captured with")
        inputs = self._inputs
        for places in self._by_dtype:
            changed = [k for k in places if given[k] is not inputs[k]]
            if changed:
                torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                    [inputs[k] for k in changed], [given[k] for k in changed]
                )
        self._replay()
        # By a launch each, on the same stream: the next replay comes after it.
        if isinstance(self._outputs, tuple):
            return tuple(x.clone() for x in self._outputs)
        return self._outputs.clone()


def timed(call: Callable[[], Any], wait: Callable[[], None]) -> float:
    """Return the least time of a few calls in seconds, until the device has ended each."""
    taken: list[float] = []
    for _ in range(_TIMED):
        wait()
        started = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - started)
    return min(taken)


def written_by(update: Callable[..., Any], state: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the state's tensors that an update changes, but for those that copies share.

    They are as they were before. The update runs once. A tensor is copied just before it is written
    to.
    """
    watch = _Watch(list(tensors(state, is_copied=True).values()))
    try:
        with watch:
            update(state, *args)
    finally:
        _restore(watch.written, watch.before)
    return watch.written


class _Watch(TorchDispatchMode):
    """Copies tensors before something is written to their memory."""

    def __init__(self, watched: list[Tensor]) -> None:
        super().__init__()
        self._watched: dict[int, list[Tensor]] = {}
        for x in watched:
            self._watched.setdefault(_memory(x), []).append(x)
        self.written: list[Tensor] = []
        self.before: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports Dynamo, to have it leave the next method alone

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
        for one in self._watched.pop(_memory(x), ()):
            self.written.append(one)
            self.before.append(one.clone())


def size_bytes(tree: Any) -> int:
    """Return the memory of a tree's tensors."""
    return sum(x.numel() * x.element_size() for x in tensors(tree).values())


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _restore(written: list[Tensor], before: list[Tensor]) -> None:
    with torch.no_grad():
        for x, old in zip(written, before, strict=True):
            x.copy_(old)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _origin(error: BaseException) -> BaseException:
    """Return the first of errors that followed each other, of those that came up in here.

    A capture that an error breaks can't be ended either: what is seen last is an error of its end.
    """
    found, following = error, error.__context__
    while following is not None:
        frames = traceback.walk_tb(following.__traceback__)
        if any(frame.f_code.co_filename == __file__ for frame, _ in frames):
            found = following
        following = following.__context__
    return found


def _place(trace: TracebackType | None) -> str:
    """Return where in the update it happened: the last line that is neither torch's nor ours."""
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
    """Return an error that says what a device without room is full of.

    Args:
        name: of the update.
        state: what it changes; or a tuple of that, of hyper-parameters, and of what it learns from.
        args: a batch, and noise.
        graph_bytes: of graphs of this update.
        error: what was raised.
    """
    parts = state if isinstance(state, tuple) else (state,)
    held = {
        "the state": size_bytes(parts[:2]),
        "the replay buffer": size_bytes(parts[2:]),
        "a batch": size_bytes(args),
        "graphs": graph_bytes,
    }
    told = ", ".join(f"{what} {size / _MIB:,.0f} MiB" for what, size in held.items() if size)
    return ConfigError(
        f"the device has no room for the {name}, of which take {told} "
        f"({shortened(_first_line(error))}): lower `batch_size`, `buffer_size` or `hidden_sizes`, "
        "keep the replay buffer on the host, or end what else runs there"
    )


@contextlib.contextmanager
def no_synchronisation() -> Iterator[None]:
    """Have torch raise where the body waits for a GPU; without one, do nothing."""
    if not torch.cuda.is_initialized():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def shared_with_others(device: torch.device) -> str:
    """Return a sentence where another process holds much of a GPU; else nothing.

    It says nothing of a process that holds little and computes much: what a GPU is doing is told
    by `nvidia-smi`, which is not there always.
    """
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if others < 2 * 2**30:  # a process's own context takes some hundred MiB
        return ""
    return (
        f"other processes hold {others / 2**30:.1f} of the GPU's {total / 2**30:.1f} GiB: they "
        "take turns with this one, and both are slower"
    )
