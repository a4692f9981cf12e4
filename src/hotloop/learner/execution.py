"""Execution of an update: eager, compiled or as a CUDA graph, and the choice between them."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from hotloop import cache
from hotloop.errors import ConfigError, shortened
from hotloop.learner import artefacts
from hotloop.learner.graphs import (
    CapturedUpdate,
    Capturing,
    CudaCapturing,
    first_line,
    no_room,
    timed,
    written_by,
)
from hotloop.learner.state import mapped, tensors
from hotloop.timing import span

Mode = Literal["auto", "eager", "compile", "cudagraph", "compile+cudagraph"]
"""How an update is executed."""

MODES = get_args(Mode)
# Graphs of one update, for batches of different shapes. Each takes some memory.
MOST_GRAPHS = 8


class _Costs(NamedTuple):
    """What `auto` expects of compiling an update on one kind of device.

    These are constants, since a measurement would make one seed give different runs: compiled and
    eager updates differ in their last bits.

    Attributes:
        launches_saved_s: seconds saved by fusing the small operations of an update.
        arithmetic_saved: share saved of the arithmetic, by what fuses with matrix products.
        flop_per_s: speed of the arithmetic.
        compile_s: seconds that compiling takes.
    """

    launches_saved_s: float
    arithmetic_saved: float
    flop_per_s: float
    compile_s: float


_CPU = _Costs(0.85e-3, 0.2, 50e9, 20.0)  # measured: one core, an update of 130 operations
# Estimated: eager updates have 100 to 210 operations, compiled ones 100 kernels less, at 2 µs in a
# graph. No GPU has been measured.
_GPU = _Costs(0.2e-3, 0.2, 20e12, 45.0)


@dataclass(frozen=True)
class Choice:
    """The way an update runs, and the reason.

    Attributes:
        is_compiled: compiled, or operation by operation.
        reason: a sentence for the user.
        may_be_eager: whether to fall back if compiling or capturing fails.
        may_be_kept: whether to use what an earlier run compiled, if it is in the cache.
        is_captured: whether it is replayed as a CUDA graph, compiled or not.
    """

    is_compiled: bool
    reason: str
    may_be_eager: bool = False
    may_be_kept: bool = False
    is_captured: bool = False

    @property
    def mode(self) -> str:
        """Return the name of this way in `Mode`."""
        parts = (("compile", self.is_compiled), ("cudagraph", self.is_captured))
        return "+".join(name for name, is_so in parts if is_so) or "eager"

    @property
    def description(self) -> str:
        """Return the same in words."""
        parts = (("compiled", self.is_compiled), ("a CUDA graph", self.is_captured))
        return ", and ".join(name for name, is_so in parts if is_so) or "eager"


def choose(
    mode: Mode,
    *,
    num_calls: int,
    flop_per_call: float,
    num_lanes: int = 1,
    device: torch.device | None = None,
) -> Choice:
    """Weigh the cost of compiling against the work ahead.

    Args:
        mode: the user's option.
        num_calls: updates in the whole run.
        flop_per_call: arithmetic of one update.
        num_lanes: runs that each call updates. In a sweep, other runs use the same compiled
            update, see `cache.SHARED`.
        device: the learner's device; None: the CPU.

    Raises:
        ConfigError: there is no such mode, or this machine can't execute it.
    """
    if mode not in MODES:
        raise ConfigError(f"`execution` must be {', '.join(map(repr, MODES))}, got {mode!r}")
    on_gpu = device is not None and device.type == "cuda"
    if "cudagraph" in mode and not on_gpu:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise ConfigError(
            f"`execution` '{mode}' replays a graph of a CUDA device, and updates run on the CPU "
            f"(torch {torch.__version__} sees {count} CUDA devices): choose 'compile' or 'eager', "
            "or set `device` 'cuda' where there is one"
        )
    if mode == "eager":
        return Choice(False, "eager, as asked")
    if mode == "cudagraph":
        return Choice(False, "a CUDA graph, as asked", is_captured=True)
    if mode == "compile+cudagraph":
        return Choice(True, "compiled, and a CUDA graph, as asked", is_captured=True)
    # Torch brings the compiler for GPUs, and looks for the CPU's by this name.
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if not on_gpu and shutil.which(compiler) is None:
        if mode == "compile":
            raise ConfigError(
                f"`execution` 'compile' needs a C++ compiler, and there is no {compiler}: install "
                "it, name another one in CXX, or choose 'auto' or 'eager'"
            )
        return Choice(False, f"eager: there is no C++ compiler ({compiler})")
    if mode == "compile":
        return Choice(True, "compiled, as asked")
    costs, num_runs = _GPU if on_gpu else _CPU, cache.SHARED.runs
    saved_s = costs.launches_saved_s + costs.arithmetic_saved * flop_per_call / costs.flop_per_s
    saved_s *= num_calls * max(num_lanes, num_runs)
    is_worth_it = saved_s > 1.5 * costs.compile_s
    if on_gpu:
        name = "compiled, and a CUDA graph" if is_worth_it else "a CUDA graph of the eager update"
    else:
        name = "compiled" if is_worth_it else "eager, unless an earlier run has compiled it"
    reason = (
        f"{name}: compiling takes about {costs.compile_s:.0f} s once and would save about "
        f"{saved_s:.0f} s of {num_calls:,} updates"
        f"{f' in each of {num_runs:,} runs' if num_runs > 1 else ''}"
    )
    return Choice(
        is_worth_it,
        reason,
        may_be_eager=True,
        may_be_kept=not (is_worth_it or on_gpu),
        is_captured=on_gpu,
    )


def repeat(was: str, device: torch.device | None = None) -> Choice:
    """Return the choice of the run that is resumed, as far as the device supports it.

    Args:
        was: its `Execution.was`. Older versions wrote "compiled" for "compile".
        device: the learner's device now; None: the CPU, which has no graphs.
    """
    on_gpu = device is not None and device.type == "cuda"
    choice = Choice(was.startswith("compile"), "", is_captured="cudagraph" in was and on_gpu)
    reason = f"{choice.description}, as the run began"
    return replace(choice, reason=reason, may_be_eager=choice.mode != "eager")


class Execution:
    """An update, executed as `choose` decided.

    Args:
        update: a function of a state (a tree of tensors, see `hotloop.learner.state`), whose
            tensors it changes in place and never replaces, and of tensors or tuples of tensors,
            some of which may be None. It returns a tensor or a tuple of tensors.
        choice: the way it runs.
        name: its name in the summary.
        capturing: captures graphs; None: a GPU does.
        copies_outputs: whether each call returns tensors of its own. False saves a copy where the
            caller copies them before the next call of any update.

    Attributes:
        choice: the way it runs, after `auto` has fallen back where necessary.
        compile_s: seconds that compiling and capturing took; 0 if eager.
        eager_s: seconds of an eager call, measured on copies just before compiling; 0 if eager.
        tell: called with a progress message before each stage of compiling.
    """

    def __init__(
        self,
        update: Callable[..., Any],
        choice: Choice,
        name: str = "update",
        *,
        capturing: Capturing | None = None,
        copies_outputs: bool = True,
    ) -> None:
        self.choice = choice
        self.name = name
        self.compile_s = 0.0
        self.eager_s = 0.0
        self.tell: Callable[[str], None] = lambda _: None
        self._update = update
        self._capturing = capturing
        self._copies_outputs = copies_outputs
        # Compiled or captured updates, by shape, stride and type of the arguments.
        self._graphs: dict[Any, Graph] = {}
        self._num_calls = 0
        self._calls_s = 0.0
        # Seconds of a call on a GPU, measured once: `_calls_s` has only the launches.
        self._graph_s = 0.0

    def __call__(self, state: Any, *args: Any) -> Any:
        """Run the update and return its tensor or tuple of tensors.

        Raises:
            ConfigError: it can't run as the user chose, or the device has not enough memory.
        """
        if self.choice.may_be_kept and not self._num_calls:
            self._look_for_kept(state, args)
        started = time.perf_counter()
        is_eager = not (self.choice.is_compiled or self.choice.is_captured)
        try:
            metrics = self._update(state, *args) if is_eager else self._run(state, args)
        except torch.OutOfMemoryError as error:
            raise no_room(self.name, state, args, self.graph_bytes, error) from error
        self._calls_s += time.perf_counter() - started
        self._num_calls += 1
        return metrics

    @property
    def was(self) -> str | None:
        """Return the `Choice.mode` of the updates so far; None: there were none."""
        return self.choice.mode if self._num_calls else None

    @property
    def num_recompilations(self) -> int:
        """Return how often the update was compiled after the first time, which costs seconds."""
        return max(0, len(self._graphs) - 1)

    def summary(self) -> str:
        """Return the choice and, if the update was compiled or captured, the time it saved."""
        if not self._graphs:
            return f"{self.name}: {self.choice.reason}"
        captured = self._captured()
        call_s = self._graph_s or self._calls_s / self._num_calls
        saved_s = self._num_calls * (self.eager_s - call_s) - self.compile_s
        again = "recaptures" if captured else "recompilations"
        doing = "compiling" if self.choice.is_compiled else "capturing"
        text = (
            f"{self.name}: {self.choice.reason}; {doing} "
            f"took {self.compile_s:.1f} s, then an "
            f"update {1e3 * call_s:.2f} ms instead of {1e3 * self.eager_s:.2f}: "
            f"{'saved' if saved_s >= 0 else 'lost'} {abs(saved_s):.1f} s over "
            f"{self._num_calls:,} updates, {self.num_recompilations} {again}"
        )
        return f"{text}; {self.graph_bytes / 2**20:,.0f} MiB in graphs" if captured else text

    @property
    def graph_bytes(self) -> int:
        """Return the memory that this update's graphs have added to the process."""
        return sum(graph.size_bytes for graph in self._captured())

    def _captured(self) -> list[CapturedUpdate]:
        return [graph for graph in self._graphs.values() if isinstance(graph, CapturedUpdate)]

    def _run(self, state: Any, args: tuple[Any, ...]) -> Any:
        leaves, key = _flattened(args)
        graph = self._graphs.get(key)
        if isinstance(graph, CapturedUpdate) and not graph.is_for(state):
            del self._graphs[key]
            graph = None
        if graph is None:
            started = time.perf_counter()
            graph = self._compile(state, args)
            self._calls_s -= time.perf_counter() - started
            if graph is None:
                return self._update(state, *args)
            self._graphs[key] = graph
        return graph(state, args, leaves)

    def _look_for_kept(self, state: Any, args: tuple[Any, ...]) -> None:
        """Use the update that an earlier run has compiled, if there is one."""
        with contextlib.suppress(Exception), span("compile"):  # then it is eager
            graph = artefacts.load(artefacts.record(self._update, (state, *args)))
            if graph is not None:
                self._graphs[_flattened(args)[1]] = graph
                self.eager_s = self._eager_s(state, args)
                why = "compiled: an earlier run has compiled it"
                self.choice = Choice(True, why, may_be_eager=True)

    def _compile(self, state: Any, args: tuple[Any, ...]) -> Graph | None:
        """Return a graph for these arguments; None: the update runs eager."""
        if not self._graphs:
            self.eager_s = self._eager_s(state, args)
        started = time.perf_counter()
        graph = None
        while graph is None and self.choice.mode != "eager":
            try:
                with span("compile"):
                    graph = self._made(state, args)
            except Exception as error:  # a user's own network may raise anything
                self._fall_back(error)
        if graph is not None:
            self.compile_s += time.perf_counter() - started
            if not self._graphs:
                self._graph_s = self._timed(graph, state, args)
        return graph

    def _timed(self, graph: Graph, state: Any, args: tuple[Any, ...]) -> float:
        """Return the seconds of a call on a GPU; 0 on the CPU, where every call is timed."""
        if isinstance(graph, CapturedUpdate):
            return graph.call_s
        if _device(state).type != "cuda":
            return 0.0
        wait = _waiting_for(state)
        state, *copies = self._copies(state, args)
        leaves = _flattened(tuple(copies))[0]
        return timed(lambda: graph(state, tuple(copies), leaves), wait)

    def _fall_back(self, error: Exception) -> None:
        """Give up compiling or capturing after it failed, if `auto` has chosen it.

        Raises:
            ConfigError: the user has chosen it.
            torch.OutOfMemoryError: the user has chosen it.
        """
        is_of_graph = isinstance(error, ConfigError | torch.OutOfMemoryError)
        advice = (
            "write it in operations on tensors alone, without `.item()` or a branch on a tensor's "
            "value, or choose 'auto' or 'eager'"
        )
        problem = f"torch {torch.__version__} can't compile the {self.name} ({first_line(error)})"
        if is_of_graph:
            problem = first_line(error)
        elif isinstance(error, artefacts.CompilerFailure):
            problem = f"AOTInductor of {problem}"
            advice = "choose 'auto' or 'eager', or install another version of torch"
        if not self.choice.may_be_eager:
            if is_of_graph:
                raise error
            raise ConfigError(
                f"`execution` is '{self.choice.mode}', but {problem}: {advice}"
            ) from error
        choice = self.choice
        if choice.is_compiled and not (choice.is_captured and is_of_graph):
            less = replace(choice, is_compiled=False)
        else:
            less = replace(choice, is_captured=False)
        self.choice = replace(less, reason=f"{less.description}: {problem}")

    def _made(self, state: Any, args: tuple[Any, ...]) -> Graph:
        """Compile and capture the update, as chosen."""
        if not self.choice.is_captured:
            return _compiled(self._update, self._copies(state, args), self.tell)
        if len(self._graphs) == MOST_GRAPHS:
            shapes = ", ".join(str([tuple(x[0]) for x in key[1:]]) for key in self._graphs)
            raise ConfigError(
                f"the {self.name} must have batches of a few shapes, and got {MOST_GRAPHS + 1}: "
                f"each is a graph of its own, so far for {shortened(shapes)}; pad them to one "
                "shape, or choose `execution` 'compile' or 'eager'"
            )
        capturing = self._capturing or CudaCapturing(_device(state))
        # Dense copies, also of arguments that are views: the update is compiled for these.
        inputs = mapped(args, lambda x: x.clone())
        update = self._update
        if self.choice.is_compiled:
            compiled = _compiled(self._update, self._copies(state, inputs), self.tell)
            update = lambda state, *args: compiled(state, args, _flattened(args)[0])  # noqa: E731
        self.tell(f"capturing the {self.name} as a CUDA graph")
        return CapturedUpdate(
            update,
            state,
            inputs,
            written_by(self._update, state, inputs),
            capturing,
            name=self.name,
            copies_outputs=self._copies_outputs,
        )

    def _eager_s(self, state: Any, args: tuple[Any, ...]) -> float:
        """Return the seconds of the fastest of five calls on copies."""
        copies = self._copies(state, args)
        return timed(lambda: self._update(*copies), _waiting_for(state))

    def _copies(self, state: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a copy of the state and the arguments.

        On a GPU a state may hold a replay buffer that does not fit twice. Tensors that the update
        only reads are shared there.
        """
        memo: dict[int, Any] = {}
        if _device(state).type == "cuda":
            changed = {id(x) for x in written_by(self._update, state, args)}
            memo = {id(x): x for x in tensors(state).values() if id(x) not in changed}
        return copy.deepcopy((state, *args), memo)


def _device(state: Any) -> torch.device:
    return next(iter(tensors(state).values())).device


def _waiting_for(state: Any) -> Callable[[], None]:
    """Return a function that waits until the state's device has finished all its work."""
    device = _device(state)
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None


def _flattened(args: tuple[Any, ...]) -> tuple[list[Tensor], Any]:
    """Return the tensors of arguments, and a key: shapes, strides, types, repeated tensors."""
    each = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
    leaves = [x for x in each if x is not None]
    ids = [id(x) for x in leaves]
    repeated = () if len(set(ids)) == len(ids) else tuple([ids.index(x) for x in ids])
    return leaves, (repeated, *[(x.shape, x.stride(), x.dtype) for x in leaves])


# A compiled update: called with the state, the other arguments, and the tensors in those.
Graph = Callable[[Any, tuple[Any, ...], list[Tensor]], Any]


def _compiled(
    update: Callable[..., Any], args: tuple[Any, ...], tell: Callable[[str], None]
) -> Graph:
    """Compile the update as one graph for arguments of these shapes. It changes the arguments.

    On the CPU it is an artefact from the cache, or the work of `torch.compile` if the update can't
    be recorded or packaged.

    Raises:
        CompilerFailure: AOTInductor fails. `torch.compile` would compile again in every run.
    """
    if _device(args).type != "cpu":
        return _torch_compiled(update, args, tell)
    try:
        recording = artefacts.record(update, args)
    except Exception:  # a user's own network may raise anything
        return _torch_compiled(update, args, tell)
    try:
        return artefacts.load(recording) or artefacts.build(recording, tell)
    except artefacts.Unpackable:
        return _torch_compiled(update, args, tell)
    except Exception as error:
        raise artefacts.CompilerFailure(first_line(error)) from error


def _torch_compiled(
    update: Callable[..., Any], args: tuple[Any, ...], tell: Callable[[str], None]
) -> Graph:
    """Compile the operations of an update with `torch.compile`, for arguments of these shapes.

    The operations are recorded first, as for an artefact, since Dynamo can't trace a user's own
    gradients under `vmap`. Guards are left out: `Execution` compares shapes itself.

    Torch keeps what it compiles in a folder of hotloop's cache. The next process that compiles the
    same update loads it from there.

    Raises:
        Unpackable: the update replaces tensors of its state.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    tell("compiling the update with torch.compile")
    options: dict[str, Any] = {"guard_filter_fn": lambda guards: [False] * len(guards)}
    graph, inputs, gives_tuple = artefacts.traced(update, args)
    with cache.inductor_directory(default_cache_dir()):
        if _device(args).type == "cuda":
            import torch._inductor.config as inductor

            # Otherwise reductions are tuned by measuring, and one seed gives different runs.
            if hasattr(inductor, "deterministic"):
                options["deterministic"] = True
        compiled: Any = torch.compile(graph, fullgraph=True, dynamic=False, options=options)
        compiled(*inputs)
    known: Any = None
    state_tensors: list[Tensor] = []

    def run(state: Any, args: tuple[Any, ...], leaves: list[Tensor]) -> Any:
        nonlocal known, state_tensors
        if state is not known:
            known, state_tensors = state, list(tensors(state).values())
        outputs = compiled(*state_tensors, *leaves)
        return tuple(outputs) if gives_tuple else outputs[0]

    return run
