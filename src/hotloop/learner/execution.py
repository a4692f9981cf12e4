"""Execution of an update: eager, compiled or as a CUDA graph, and the choice between them."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from hotloop.base import cache
from hotloop.errors import ConfigError, first_line, shortened
from hotloop.learner import artifacts
from hotloop.learner.cuda_graphs import (
    CapturedUpdate,
    CudaGraphCapturer,
    GraphCapturer,
    fastest_call_s,
    out_of_memory_error,
    written_tensors,
)
from hotloop.learner.state import map_tensors, tensors
from hotloop.timing import span

Mode = Literal["auto", "eager", "compile", "cudagraph", "compile+cudagraph"]
"""How an update is executed."""

MODES = get_args(Mode)
# Maximum number of graphs of one update, one for each shape of a batch. Each takes some memory.
MAX_GRAPHS = 8


class _CompileCosts(NamedTuple):
    """Estimates for `auto`: costs and savings of compiling an update on one kind of device.

    They are constants, so that a seed gives one run: compiled and eager updates round differently.

    Attributes:
        launches_saved_s: seconds saved by fusing the small operations of an update.
        arithmetic_saved: share of the arithmetic saved by operations fused with matrix products.
    """

    launches_saved_s: float
    arithmetic_saved: float
    flop_per_s: float
    compile_s: float


_CPU = _CompileCosts(0.85e-3, 0.2, 50e9, 20.0)  # measured: one core, an update of 130 operations
# Estimates, not measured on a GPU: eager updates have 100 to 210 operations. Compiled ones launch
# 100 fewer kernels, of 2 µs each in a graph.
_GPU = _CompileCosts(0.2e-3, 0.2, 20e12, 45.0)


@dataclass(frozen=True)
class ExecutionChoice:
    """The execution mode of an update, and the reason.

    Attributes:
        is_compiled: whether the update is compiled instead of run operation by operation.
        reason: a sentence for the user.
        may_fall_back: whether to use a simpler mode if compiling or capturing fails.
        may_use_cached: whether the first call uses a compiled update from the cache, if an earlier
            run has compiled it.
        is_captured: whether the update, compiled or not, is replayed as a CUDA graph.
    """

    is_compiled: bool
    reason: str
    may_fall_back: bool = False
    may_use_cached: bool = False
    is_captured: bool = False

    @property
    def mode(self) -> str:
        """Return the name of the mode, as in `Mode`."""
        parts = (("compile", self.is_compiled), ("cudagraph", self.is_captured))
        return "+".join(name for name, is_set in parts if is_set) or "eager"

    @property
    def description(self) -> str:
        """Return the mode in words."""
        parts = (("compiled", self.is_compiled), ("a CUDA graph", self.is_captured))
        return ", and ".join(name for name, is_set in parts if is_set) or "eager"


def choose(
    mode: Mode,
    *,
    num_calls: int,
    flop_per_call: float,
    num_lanes: int = 1,
    device: torch.device | None = None,
) -> ExecutionChoice:
    """Return the execution mode. `auto` compares the cost of compiling with the expected savings.

    Args:
        mode: the user's option.
        num_calls: number of updates in the whole run.
        flop_per_call: floating-point operations of one update.
        num_lanes: number of runs that each call updates. In a sweep, other runs use the same
            compiled update, see `cache.SHARING`.
        device: the learner's device. None: the CPU.

    Raises:
        ConfigError: the mode is unknown, or this machine does not support it.
    """
    if mode not in MODES:
        raise ConfigError(f"`execution` must be {', '.join(map(repr, MODES))}, got {mode!r}")
    on_gpu = device is not None and device.type == "cuda"
    if "cudagraph" in mode and not on_gpu:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise ConfigError(
            f"`execution` '{mode}' needs a CUDA device, but updates run on the CPU (torch "
            f"{torch.__version__} finds {count} CUDA devices): choose 'compile' or 'eager', or set "
            "`device` 'cuda' on a machine with a GPU"
        )
    if mode == "eager":
        return ExecutionChoice(False, "eager, as requested")
    if mode == "cudagraph":
        return ExecutionChoice(False, "a CUDA graph, as requested", is_captured=True)
    if mode == "compile+cudagraph":
        return ExecutionChoice(True, "compiled, and a CUDA graph, as requested", is_captured=True)
    # Torch includes the compiler for GPUs. It searches for the CPU's compiler by this name.
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if not on_gpu and shutil.which(compiler) is None:
        if mode == "compile":
            raise ConfigError(
                f"`execution` 'compile' needs a C++ compiler, but {compiler} is missing: install "
                "it, set CXX to another one, or choose 'auto' or 'eager'"
            )
        return ExecutionChoice(False, f"eager: the C++ compiler ({compiler}) is missing")
    if mode == "compile":
        return ExecutionChoice(True, "compiled, as requested")
    # `auto`: compare the cost of compiling with the time that it saves in all updates.
    costs, num_runs = _GPU if on_gpu else _CPU, cache.SHARING.runs
    saved_s = costs.launches_saved_s + costs.arithmetic_saved * flop_per_call / costs.flop_per_s
    saved_s *= num_calls * max(num_lanes, num_runs)
    is_worth_it = saved_s > 1.5 * costs.compile_s
    if on_gpu:
        name = "compiled, and a CUDA graph" if is_worth_it else "a CUDA graph of the eager update"
    else:
        name = "compiled" if is_worth_it else "eager"
    reason = (
        f"{name}: compiling takes about {costs.compile_s:.0f} s once and would save about "
        f"{saved_s:.0f} s over {num_calls:,} updates"
        f"{f' in each of {num_runs:,} runs' if num_runs > 1 else ''}"
    )
    return ExecutionChoice(
        is_worth_it,
        reason,
        may_fall_back=True,
        may_use_cached=not (is_worth_it or on_gpu),
        is_captured=on_gpu,
    )


def repeat_choice(mode: str, device: torch.device | None = None) -> ExecutionChoice:
    """Return the mode of the run that is resumed, or the nearest one that the device supports.

    Args:
        mode: the stored `Execution.mode_used`. Older versions wrote "compiled" for "compile".
        device: the learner's current device. None: the CPU, which has no graphs.
    """
    on_gpu = device is not None and device.type == "cuda"
    choice = ExecutionChoice(
        mode.startswith("compile"), "", is_captured="cudagraph" in mode and on_gpu
    )
    reason = f"{choice.description}, as before the run was resumed"
    return replace(choice, reason=reason, may_fall_back=choice.mode != "eager")


class Execution:
    """An update, executed in the mode that `choose` returned.

    Args:
        update: `update(state, *args)` returns a tensor or a tuple of tensors. It changes `state`, a
            tree of tensors (see `hotloop.learner.state`), in place. Each other argument is a
            tensor, a tuple of tensors, or None.
        choice: the execution mode.
        name: the update's name in the summary.
        capturer: captures graphs. None: on a GPU.
        copies_outputs: whether each call returns new tensors. False saves a copy if the caller
            copies them before the next call of any update.

    Attributes:
        choice: the execution mode, after a possible fall-back of `auto`.
        compile_s: seconds of compiling and capturing, 0 if eager.
        eager_s: seconds of an eager call, measured on copies just before compiling, 0 if eager.
        on_progress: called with a message before each stage of compiling, and after the first call
            has searched the cache.
    """

    def __init__(
        self,
        update: Callable[..., Any],
        choice: ExecutionChoice,
        name: str = "update",
        *,
        capturer: GraphCapturer | None = None,
        copies_outputs: bool = True,
    ) -> None:
        self.choice = choice
        self.name = name
        self.compile_s = 0.0
        self.eager_s = 0.0
        self.on_progress: Callable[[str], None] = lambda _: None
        self._update = update
        self._capturer = capturer
        self._copies_outputs = copies_outputs
        # Compiled or captured updates by shape, stride and type of the arguments.
        self._graphs: dict[Any, Graph] = {}
        self._num_calls = 0
        self._calls_s = 0.0
        # Seconds of a call on a GPU, measured once. `_calls_s` includes only the launches.
        self._graph_s = 0.0

    def __call__(self, state: Any, *args: Any) -> Any:
        """Run the update and return its tensor or tuple of tensors.

        Raises:
            ConfigError: the chosen mode is impossible, or the device does not have enough memory.
        """
        if self.choice.may_use_cached and not self._num_calls:
            self._load_cached(state, args)
        start_s = time.perf_counter()
        is_eager = not (self.choice.is_compiled or self.choice.is_captured)
        try:
            metrics = self._update(state, *args) if is_eager else self._run(state, args)
        except torch.OutOfMemoryError as error:
            raise out_of_memory_error(self.name, state, args, self.graph_bytes, error) from error
        self._calls_s += time.perf_counter() - start_s
        self._num_calls += 1
        return metrics

    @property
    def mode_used(self) -> str | None:
        """Return the `ExecutionChoice.mode` of the updates so far, or None before the first one."""
        return self.choice.mode if self._num_calls else None

    @property
    def num_recompilations(self) -> int:
        """Return the number of compilations after the first one. Each takes seconds."""
        return max(0, len(self._graphs) - 1)

    def summary(self) -> str:
        """Return the choice and, if the update was compiled or captured, the time it saved."""
        if not self._graphs:
            return f"{self.name}: {self.choice.reason}"
        captured = self._captured_graphs()
        call_s = self._graph_s or self._calls_s / self._num_calls
        saved_s = self._num_calls * (self.eager_s - call_s) - self.compile_s
        repetitions = "recaptures" if captured else "recompilations"
        activity = "compiling" if self.choice.is_compiled else "capturing"
        preparation = f"{activity} took {self.compile_s:.1f} s, then " if self.compile_s else ""
        text = (
            f"{self.name}: {self.choice.reason}; {preparation}an "
            f"update took {1e3 * call_s:.2f} ms instead of {1e3 * self.eager_s:.2f} ms: "
            f"{'saved' if saved_s >= 0 else 'lost'} {abs(saved_s):.1f} s over "
            f"{self._num_calls:,} updates, {self.num_recompilations} {repetitions}"
        )
        return f"{text}; {self.graph_bytes / 2**20:,.0f} MiB in graphs" if captured else text

    @property
    def graph_bytes(self) -> int:
        """Return the memory that this update's graphs have added to the process, in bytes."""
        return sum(graph.size_bytes for graph in self._captured_graphs())

    def _captured_graphs(self) -> list[CapturedUpdate]:
        return [graph for graph in self._graphs.values() if isinstance(graph, CapturedUpdate)]

    def _run(self, state: Any, args: tuple[Any, ...]) -> Any:
        leaves, key = _flatten(args)
        graph = self._graphs.get(key)
        if isinstance(graph, CapturedUpdate) and not graph.matches(state):
            del self._graphs[key]
            graph = None
        if graph is None:
            start_s = time.perf_counter()
            graph = self._prepare_graph(state, args)
            self._calls_s -= time.perf_counter() - start_s
            if graph is None:
                return self._update(state, *args)
            self._graphs[key] = graph
        return graph(state, args, leaves)

    def _load_cached(self, state: Any, args: tuple[Any, ...]) -> None:
        """Load the update that an earlier run has compiled, if the cache has it."""
        with contextlib.suppress(Exception), span("compile"):  # after an error the update is eager
            graph = artifacts.load(artifacts.record(self._update, (state, *args)))
            if graph is not None:
                self._graphs[_flatten(args)[1]] = graph
                self.eager_s = self._measure_eager_s(state, args)
                reason = "compiled: an earlier run has compiled it"
                self.choice = ExecutionChoice(True, reason, may_fall_back=True)
        self.on_progress(f"{self.name}: {self.choice.reason}")

    def _prepare_graph(self, state: Any, args: tuple[Any, ...]) -> Graph | None:
        """Return a graph for these arguments, or None if the update runs eagerly."""
        if not self._graphs:
            self.eager_s = self._measure_eager_s(state, args)
        start_s = time.perf_counter()
        graph = None
        while graph is None and self.choice.mode != "eager":
            try:
                with span("compile"):
                    graph = self._build_graph(state, args)
            except Exception as error:  # a user's own network may raise anything
                self._fall_back(error)
        if graph is not None:
            self.compile_s += time.perf_counter() - start_s
            if not self._graphs:
                self._graph_s = self._measure_graph_s(graph, state, args)
        return graph

    def _measure_graph_s(self, graph: Graph, state: Any, args: tuple[Any, ...]) -> float:
        """Return the seconds of a call on a GPU, or 0 on the CPU, where every call is timed."""
        if isinstance(graph, CapturedUpdate):
            return graph.call_s
        if _device(state).type != "cuda":
            return 0.0
        wait = _synchronizer(state)
        state, *copies = self._copy_arguments(state, args)
        leaves = _flatten(tuple(copies))[0]
        return fastest_call_s(lambda: graph(state, tuple(copies), leaves), wait)

    def _fall_back(self, error: Exception) -> None:
        """Switch to a simpler mode after a failure."""
        # Raises ConfigError or torch.OutOfMemoryError if the user chose the mode.
        is_graph_error = isinstance(error, ConfigError | torch.OutOfMemoryError)
        advice = (
            "write it with operations on tensors only, without `.item()` or a branch on a tensor's "
            "value, or choose 'auto' or 'eager'"
        )
        problem = f"torch {torch.__version__} can't compile the {self.name} ({first_line(error)})"
        if is_graph_error:
            problem = first_line(error)
        elif isinstance(error, artifacts.CompilerError):
            problem = f"AOTInductor of {problem}"
            advice = "choose 'auto' or 'eager', or install another version of torch"
        if _is_disk_full(error):
            places = f"{tempfile.gettempdir()} or {cache.directory()}"
            problem = f"the {self.name} can't be compiled because {places} is full"
            advice = "free some space there, or set TMPDIR or HOTLOOP_CACHE to another directory"
        if not self.choice.may_fall_back:
            if is_graph_error:
                raise error
            raise ConfigError(
                f"`execution` is '{self.choice.mode}', but {problem}: {advice}"
            ) from error
        choice = self.choice
        if choice.is_compiled and not (choice.is_captured and is_graph_error):
            simpler = replace(choice, is_compiled=False)
        else:
            simpler = replace(choice, is_captured=False)
        self.choice = replace(simpler, reason=f"{simpler.description}: {problem}")

    def _build_graph(self, state: Any, args: tuple[Any, ...]) -> Graph:
        """Compile and capture the update, as chosen."""
        if not self.choice.is_captured:
            return _compile_update(
                self._update, self._copy_arguments(state, args), self.on_progress
            )
        if len(self._graphs) == MAX_GRAPHS:
            shapes = ", ".join(str([tuple(x[0]) for x in key[1:]]) for key in self._graphs)
            raise ConfigError(
                f"the {self.name} supports batches of at most {MAX_GRAPHS} shapes, got "
                f"{MAX_GRAPHS + 1}: each shape needs a separate graph, so far {shortened(shapes)}; "
                "pad batches to one shape, or choose `execution` 'compile' or 'eager'"
            )
        capturer = self._capturer or CudaGraphCapturer(_device(state))
        # Copy the arguments, so that views become dense. The update is compiled for the copies.
        inputs = map_tensors(args, lambda x: x.clone())
        update = self._update
        if self.choice.is_compiled:
            compiled = _compile_update(
                self._update, self._copy_arguments(state, inputs), self.on_progress
            )
            update = lambda state, *args: compiled(state, args, _flatten(args)[0])  # noqa: E731
        self.on_progress(f"capturing the {self.name} as a CUDA graph")
        return CapturedUpdate(
            update,
            state,
            inputs,
            written_tensors(self._update, state, inputs),
            capturer,
            name=self.name,
            copies_outputs=self._copies_outputs,
        )

    def _measure_eager_s(self, state: Any, args: tuple[Any, ...]) -> float:
        copies = self._copy_arguments(state, args)
        return fastest_call_s(lambda: self._update(*copies), _synchronizer(state))

    def _copy_arguments(self, state: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a copy of the state and the arguments."""
        # On a GPU, it shares tensors that the update only reads: a replay buffer may not fit twice.
        memo: dict[int, Any] = {}
        if _device(state).type == "cuda":
            written = {id(x) for x in written_tensors(self._update, state, args)}
            memo = {id(x): x for x in tensors(state).values() if id(x) not in written}
        return copy.deepcopy((state, *args), memo)


def _device(state: Any) -> torch.device:
    return next(iter(tensors(state).values())).device


def _synchronizer(state: Any) -> Callable[[], None]:
    """Return a function that waits until the state's device has finished its work."""
    device = _device(state)
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def _flatten(args: tuple[Any, ...]) -> tuple[list[Tensor], Any]:
    """Return the tensors of arguments, and a key: shapes, strides, types, repeated tensors."""
    values = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
    leaves = [x for x in values if x is not None]
    ids = [id(x) for x in leaves]
    repeated = () if len(set(ids)) == len(ids) else tuple([ids.index(x) for x in ids])
    return leaves, (repeated, *[(x.shape, x.stride(), x.dtype) for x in leaves])


def _is_disk_full(error: BaseException | None) -> bool:
    """Return whether a compiler failed because the disk is full, according to any of its causes."""
    while error and "No space left on device" not in str(error):  # texts include compilers' output
        error = error.__cause__ or error.__context__
    return error is not None


# A compiled update: a function of the state, the other arguments, and the tensors in these.
Graph = Callable[[Any, tuple[Any, ...], list[Tensor]], Any]


def _compile_update(
    update: Callable[..., Any], args: tuple[Any, ...], on_progress: Callable[[str], None]
) -> Graph:
    """Compile the update as one graph for arguments of these shapes, and change the arguments."""
    # The CPU uses artifacts, or `torch.compile` for an update that can't be recorded or packaged. A
    # CompilerError of AOTInductor is raised: `torch.compile` would compile again in every run.
    if _device(args).type != "cpu":
        return _torch_compile(update, args, on_progress)
    try:
        recorded = artifacts.record(update, args)
    except Exception:  # a user's own network may raise anything
        return _torch_compile(update, args, on_progress)
    try:
        return artifacts.load(recorded) or artifacts.build(recorded, on_progress)
    except artifacts.PackagingError:
        return _torch_compile(update, args, on_progress)
    except Exception as error:
        raise artifacts.CompilerError(first_line(error)) from error


def _torch_compile(
    update: Callable[..., Any], args: tuple[Any, ...], on_progress: Callable[[str], None]
) -> Graph:
    """Compile the operations of an update with `torch.compile`, for arguments of these shapes."""
    # The operations are recorded first, as for an artifact, since Dynamo can't trace a user's own
    # gradients under `vmap`. There are no guards, since `Execution` compares shapes itself. Torch
    # stores its results in a folder of hotloop's cache, where other processes find them. Raises
    # PackagingError if the update replaces tensors of its state.
    on_progress("compiling the update with torch.compile")
    options: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards)}
    graph, inputs, returns_tuple = artifacts.trace(update, args)
    with artifacts.private_inductor():
        if _device(args).type == "cuda":
            import torch._inductor.config as inductor

            # Otherwise Inductor tunes reductions by measurements, and runs of one seed differ.
            if hasattr(inductor, "deterministic"):
                options["deterministic"] = True
        compiled: Any = torch.compile(graph, fullgraph=True, dynamic=False, options=options)
        compiled(*inputs)
    last_state: Any = None
    state_tensors: list[Tensor] = []

    def run(state: Any, args: tuple[Any, ...], leaves: list[Tensor]) -> Any:
        nonlocal last_state, state_tensors
        if state is not last_state:
            last_state, state_tensors = state, list(tensors(state).values())
        outputs = compiled(*state_tensors, *leaves)
        return tuple(outputs) if returns_tuple else outputs[0]

    return run
