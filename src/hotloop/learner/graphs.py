"""CUDA graphs: an update that is captured once, and from then on is one launch.

What a graph holds are addresses. The state that the update changes keeps its own; the other
arguments are copied into inputs that stay, and outputs are copied before they are given away, so
that the next replay overwrites nothing that somebody reads. Random numbers are handed in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.errors import ConfigError, shortened
from hotloop.learner.state import mapped, tensors

# Calls before it is captured: libraries choose their ways and take their memory in them.
_WARM_UPS = 3
_MIB = 2**20


class Capturing(Protocol):
    """The ability to capture; of a GPU, or a stand-in in tests."""

    def warm_up(self, call: Callable[[], Any]) -> None:
        """Make a call aside, until all is settled that a first call settles."""
        ...

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Return what makes the call's operations again, and what it gave, whose memory stays."""
        ...

    def reserved_bytes(self) -> int:
        """Return the memory that is taken from the device."""
        ...


class CudaCapturing:
    """Capturing by `torch.cuda.graph`.

    Args:
        device: that all tensors are on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def warm_up(self, call: Callable[[], Any]) -> None:
        """See `Capturing`: on a stream beside, as what is captured runs on one."""
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream(self._device).wait_stream(stream)

    def capture(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """See `Capturing`."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph):
            outputs = call()
        return graph.replay, outputs

    def reserved_bytes(self) -> int:
        """See `Capturing`."""
        return torch.cuda.memory_reserved(self._device)


class CapturedUpdate:
    """An update as one graph: `captured(state, arguments, tensors of the arguments)`.

    Args:
        update: of a state, whose tensors it changes in place, and of arguments like these.
        state: the one that it is captured with, and for.
        args: tuples of tensors, tensors, or None.
        written: the state's tensors that it changes, see `written_by`.
        capturing: of the device.
        name: what messages call it.

    Attributes:
        size_bytes: memory that the graph has taken.

    Raises:
        ConfigError: it can't be captured, says why and where; or there is no room for it.
    """

    def __init__(
        self,
        update: Callable[..., Any],
        state: Any,
        args: tuple[Any, ...],
        written: list[Tensor],
        capturing: Capturing,
        *,
        name: str,
    ) -> None:
        self._state = state
        inputs = mapped(args, lambda x: x.clone())
        self._inputs = list(tensors(inputs).values())
        before = [x.clone() for x in written]
        taken = capturing.reserved_bytes()
        try:
            try:
                for _ in range(_WARM_UPS):
                    capturing.warm_up(lambda: update(state, *inputs))
            finally:
                _restore(written, before)
            self._replay, self._outputs = capturing.capture(lambda: update(state, *inputs))
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"the device has no room for the {name} as a graph: the state and what it learns "
                f"from take {size_bytes(state) / _MIB:,.0f} MiB, a batch "
                f"{size_bytes(inputs) / _MIB:,.0f} MiB ({_first_line(error)}): lower `batch_size`, "
                "`buffer_size` or `hidden_sizes`, or choose another `execution`"
            ) from error
        except RuntimeError as error:
            raise ConfigError(
                f"the {name} can't be captured as a graph: {shortened(_first_line(error))}"
                f"{_place(error.__traceback__)}: an update must not look at a tensor's value "
                "(`.item()`, `if tensor:`), nor make tensors of Python's numbers; or choose "
                "another `execution`"
            ) from error
        self.size_bytes = capturing.reserved_bytes() - taken

    def __call__(self, state: Any, args: tuple[Any, ...], given: list[Tensor]) -> Any:
        """Replay it with these arguments; return tensors of the caller's own."""
        if state is not self._state:
            raise ValueError("a graph is of the state that it was captured with")
        torch._foreach_copy_(self._inputs, given)  # pyright: ignore[reportPrivateImportUsage]
        self._replay()
        if isinstance(self._outputs, tuple):
            return tuple(x.clone() for x in self._outputs)
        return self._outputs.clone()


def written_by(update: Callable[..., Any], state: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the state's tensors that an update changes; they are as they were before.

    The update runs once. A tensor is copied just before it is written to, so that what is only
    read, such as a replay buffer, is not.
    """
    watch = _Watch(list(tensors(state).values()))
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
    """Return a sentence where another process holds much of a GPU; else nothing."""
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if others < 2 * 2**30:  # a process's own context takes some hundred MiB
        return ""
    return (
        f"other processes hold {others / 2**30:.1f} of the GPU's {total / 2**30:.1f} GiB: they "
        "take turns with this one, and both are slower"
    )
