"""Execution of an update: eager, compiled, as a CUDA graph; and which of them is worth it."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from hotloop import cache
from hotloop.errors import ConfigError, shortened
from hotloop.learner import artefacts
from hotloop.learner.graphs import (
    CapturedUpdate,
    Capturing,
    CudaCapturing,
    no_room,
    timed,
    written_by,
)
from hotloop.learner.state import mapped, tensors
from hotloop.timing import span

Mode = Literal["auto", "eager", "compile", "cudagraph", "compile+cudagraph"]
"""How an update is executed."""

MODES = get_args(Mode)
# Graphs of one update, for batches of different shapes: each takes memory of its own.
MOST_GRAPHS = 8
# What `auto` expects of one core, from measurements; it must not measure for itself, or one seed
# would not give one run: the two ways of running differ in their last bits.
LAUNCHES_SAVED_S = 0.85e-3  # of an update's some 130 operations
ARITHMETIC_SAVED = 0.2  # of it, by what fuses with products of matrices
FLOP_PER_S = 50e9
COMPILE_S = 20.0


@dataclass(frozen=True)
class Choice:
    """How an update will run, and why.

    Attributes:
        is_compiled: compiled, or operation by operation.
        reason: a sentence for the user.
        may_be_eager: whether to fall back if compiling fails.
        may_be_kept: whether to take what an earlier run has compiled, where that is kept.
        is_captured: whether it is replayed as a CUDA graph, compiled or not.
    """

    is_compiled: bool
    reason: str
    may_be_eager: bool = False
    may_be_kept: bool = False
    is_captured: bool = False

    @property
    def mode(self) -> str:
        """Return what `choose` calls it."""
        parts = (("compile", self.is_compiled), ("cudagraph", self.is_captured))
        return "+".join(name for name, is_so in parts if is_so) or "eager"

    @property
    def told(self) -> str:
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
    """Weigh what compiling costs against the work ahead.

    Args:
        mode: what the user asked for.
        num_calls: updates in the whole run.
        flop_per_call: arithmetic of one update.
        num_lanes: runs that each call updates. Of a sweep others want it compiled too, as
            `cache.SHARED` says.
        device: where it runs; None: on the CPU.

    Raises:
        ConfigError: this machine can't do what was asked for; or there is no such mode.
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
    if on_gpu:  # its compiler comes with torch, and comes to hand in the first call
        if mode == "compile":
            return Choice(True, "compiled, as asked")
        told = "compiled, and a CUDA graph"
        told += ", as asked" if mode != "auto" else ": launches are what tiny networks wait for"
        return Choice(True, told, may_be_eager=mode == "auto", is_captured=True)
    # As torch looks for it.
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        if mode == "compile":
            raise ConfigError(
                f"`execution` 'compile' needs a C++ compiler, and there is no {compiler}: install "
                "it, name another one in CXX, or choose 'auto' or 'eager'"
            )
        return Choice(False, f"eager: there is no C++ compiler ({compiler})")
    if mode == "compile":
        return Choice(True, "compiled, as asked")
    num_runs = cache.SHARED.runs
    saved_s = LAUNCHES_SAVED_S + ARITHMETIC_SAVED * flop_per_call / FLOP_PER_S
    saved_s *= num_calls * max(num_lanes, num_runs)
    is_worth_it = saved_s > 1.5 * COMPILE_S
    reason = (
        f"{'compiled' if is_worth_it else 'eager, unless an earlier run has compiled it'}: "
        f"compiling takes about {COMPILE_S:.0f} s once and would save about {saved_s:.0f} s of "
        f"{num_calls:,} updates{f' in each of {num_runs:,} runs' if num_runs > 1 else ''}"
    )
    return Choice(is_worth_it, reason, may_be_eager=True, may_be_kept=not is_worth_it)


def repeat(was: str, device: torch.device | None = None) -> Choice:
    """Choose as the run did that is gone on with, as far as the device can.

    Args:
        was: `Execution.was` of it; older versions wrote "compiled" for "compile".
        device: where it goes on; None: on the CPU, which has no graphs.
    """
    on_gpu = device is not None and device.type == "cuda"
    choice = Choice(was.startswith("compile"), "", is_captured="cudagraph" in was and on_gpu)
    return replace(
        choice, reason=f"{choice.told}, as the run began", may_be_eager=choice.mode != "eager"
    )


class Execution:
    """An update, run as `choose` said.

    Args:
        update: a function of a state (a tree of tensors, see `hotloop.learner.state`), whose
            tensors it changes in place and never replaces, and of tensors or tuples of tensors,
            some of which may be None. It gives a tensor or a tuple of them.
        choice: how it runs.
        name: what the summary calls it.
        capturing: captures graphs; None: the device's own.

    Attributes:
        choice: the same, or what `auto` fell back to where the update could not run so.
        compile_s: seconds that compiling and capturing took; 0 if eager.
        eager_s: seconds of an eager call, measured on copies just before compiling; 0 if eager.
        tell: called with what is done next while an update is compiled.
    """

    def __init__(
        self,
        update: Callable[..., Any],
        choice: Choice,
        name: str = "update",
        *,
        capturing: Capturing | None = None,
    ) -> None:
        self.choice = choice
        self.name = name
        self.compile_s = 0.0
        self.eager_s = 0.0
        self.tell: Callable[[str], None] = lambda _: None
        self._update = update
        self._capturing = capturing
        # What was compiled, by shape, stride and type of the arguments.
        self._graphs: dict[Any, Graph] = {}
        self._num_calls = 0
        self._calls_s = 0.0
        # Of a call on a GPU, which is given work and not waited for: the clock sees its launch.
        self._graph_s = 0.0

    def __call__(self, state: Any, *args: Any) -> Any:
        """One update; gives what the update does, a tensor or a tuple of them.

        Raises:
            ConfigError: it can't run as was asked for, or the device has no room for it.
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
        """How the updates ran that there were, as `Choice.mode` says; None: there were none."""
        return self.choice.mode if self._num_calls else None

    @property
    def num_recompilations(self) -> int:
        """Graphs compiled after the first: each costs seconds and should not be."""
        return max(0, len(self._graphs) - 1)

    def summary(self) -> str:
        """What was chosen and, if it was to compile, what came of it."""
        if not self._graphs:
            return f"{self.name}: {self.choice.reason}"
        captured = self._captured()
        call_s = self._graph_s or self._calls_s / self._num_calls
        saved_s = self._num_calls * (self.eager_s - call_s) - self.compile_s
        again = "recaptures" if captured else "recompilations"
        doing = "compiling" if self.choice.is_compiled else "capturing"
        told = (
            f"{self.name}: {self.choice.reason}; {doing} "
            f"took {self.compile_s:.1f} s, then an "
            f"update {1e3 * call_s:.2f} ms instead of {1e3 * self.eager_s:.2f}: "
            f"{'saved' if saved_s >= 0 else 'lost'} {abs(saved_s):.1f} s over "
            f"{self._num_calls:,} updates, {self.num_recompilations} {again}"
        )
        return f"{told}; {self.graph_bytes / 2**20:,.0f} MiB in graphs" if captured else told

    @property
    def graph_bytes(self) -> int:
        """Memory of the device that graphs have taken for themselves."""
        return sum(graph.size_bytes for graph in self._captured())

    def _captured(self) -> list[CapturedUpdate]:
        return [graph for graph in self._graphs.values() if isinstance(graph, CapturedUpdate)]

    def _run(self, state: Any, args: tuple[Any, ...]) -> Any:
        given, key = _given(args)
        graph = self._graphs.get(key)
        if graph is None:
            started = time.perf_counter()
            graph = self._compile(state, args)
            self._calls_s -= time.perf_counter() - started
            if graph is None:
                return self._update(state, *args)
            self._graphs[key] = graph
        return graph(state, args, given)

    def _look_for_kept(self, state: Any, args: tuple[Any, ...]) -> None:
        """Take what an earlier run has compiled, if there is such."""
        with contextlib.suppress(Exception), span("compile"):  # then it is eager
            graph = artefacts.load(artefacts.record(self._update, (state, *args)))
            if graph is not None:
                self._graphs[_given(args)[1]] = graph
                self.eager_s = self._eager_s(state, args)
                why = "compiled: an earlier run has compiled it"
                self.choice = Choice(True, why, may_be_eager=True)

    def _compile(self, state: Any, args: tuple[Any, ...]) -> Graph | None:
        """A graph for these arguments; None where there is to be none."""
        if not self._graphs:
            self.eager_s = self._eager_s(state, args)
        started = time.perf_counter()
        graph = None
        while graph is None and self.choice.mode != "eager":
            try:
                with span("compile"):
                    graph = self._made(state, args)
            except Exception as error:  # a network of the user's own may hold anything
                self._fall_back(error)
        if graph is not None:
            self.compile_s += time.perf_counter() - started
            if not self._graphs:
                self._graph_s = self._timed(graph, state, args)
        return graph

    def _timed(self, graph: Graph, state: Any, args: tuple[Any, ...]) -> float:
        """Seconds of a call on a GPU, until it has ended; 0 on the CPU, where all are timed."""
        if isinstance(graph, CapturedUpdate):
            return graph.call_s
        if _device(state).type != "cuda":
            return 0.0
        state, *some = self._copies(state, args)
        given = _given(tuple(some))[0]
        return timed(lambda: graph(state, tuple(some), given), torch.cuda.synchronize)

    def _fall_back(self, error: Exception) -> None:
        """Choose less than what has failed, if that is `auto`'s choice and not the user's.

        Raises:
            ConfigError: it is the user's.
            torch.OutOfMemoryError: the same.
        """
        is_of_graph = isinstance(error, ConfigError | torch.OutOfMemoryError)
        advice = (
            "write it in operations on tensors alone, without `.item()` or a branch on a tensor's "
            "value, or choose 'auto' or 'eager'"
        )
        what = f"torch {torch.__version__} can't compile the {self.name} ({_first_line(error)})"
        if is_of_graph:
            what = _first_line(error)
        elif isinstance(error, artefacts.CompilerFailure):
            what = f"AOTInductor of {what}"
            advice = "choose 'auto' or 'eager', or install another version of torch"
        if not self.choice.may_be_eager:
            if is_of_graph:
                raise error
            raise ConfigError(
                f"`execution` is '{self.choice.mode}', but {what}: {advice}"
            ) from error
        choice = self.choice
        if choice.is_compiled and not (choice.is_captured and is_of_graph):
            less = replace(choice, is_compiled=False)
        else:
            less = replace(choice, is_captured=False)
        self.choice = replace(less, reason=f"{less.told}: {what}")

    def _made(self, state: Any, args: tuple[Any, ...]) -> Graph:
        """Compile and capture, as far as that is chosen."""
        if not self.choice.is_captured:
            return _compiled(self._update, self._copies(state, args), self.tell)
        if len(self._graphs) == MOST_GRAPHS:
            shapes = ", ".join(str([tuple(x[0]) for x in key[1:]]) for key in self._graphs)
            raise ConfigError(
                f"the {self.name} must have batches of a few shapes, and got {MOST_GRAPHS + 1}: "
                f"each is a graph of its own, so far for {shortened(shapes)}; pad them to one "
                "shape, or choose `execution` 'compile' or 'eager'"
            )
        # Dense, whatever the arguments are views of: what is compiled is for these.
        inputs = mapped(args, lambda x: x.clone())
        update = self._update
        if self.choice.is_compiled:
            compiled = _compiled(self._update, self._copies(state, inputs), self.tell)
            update = lambda state, *some: compiled(state, some, _given(some)[0])  # noqa: E731
        capturing = self._capturing
        if capturing is None:
            capturing = CudaCapturing(_device(state))
        self.tell(f"capturing the {self.name} as a CUDA graph")
        written = written_by(self._update, state, inputs)
        return CapturedUpdate(update, state, inputs, written, capturing, name=self.name)

    def _eager_s(self, state: Any, args: tuple[Any, ...]) -> float:
        """The least of five calls on copies."""
        wait = torch.cuda.synchronize if _device(state).type == "cuda" else lambda: None
        taken: list[float] = []
        for _ in range(5):
            copies = self._copies(state, args)
            wait()
            started = time.perf_counter()
            self._update(*copies)
            wait()
            taken.append(time.perf_counter() - started)
        return min(taken)

    def _copies(self, state: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a state and arguments that may be changed.

        On a GPU a state may hold a replay buffer, of which there is no room for another: what the
        update only reads is no copy.
        """
        memo: dict[int, Any] = {}
        if _device(state).type == "cuda":
            changed = {id(x) for x in written_by(self._update, state, args)}
            memo = {id(x): x for x in tensors(state).values() if id(x) not in changed}
        return copy.deepcopy((state, *args), memo)


def _device(state: Any) -> torch.device:
    return next(iter(tensors(state).values())).device


def _given(args: tuple[Any, ...]) -> tuple[list[Tensor], Any]:
    """The tensors of arguments, and what a graph is for: shapes, strides, types, which are one."""
    each = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
    given = [x for x in each if x is not None]
    ids = [id(x) for x in given]
    ones = () if len(set(ids)) == len(ids) else tuple([ids.index(one) for one in ids])
    return given, (ones, *[(x.shape, x.stride(), x.dtype) for x in given])


# A compiled update: called with the state, the other arguments, and the tensors in those.
Graph = Callable[[Any, tuple[Any, ...], list[Tensor]], Any]


def _compiled(
    update: Callable[..., Any], args: tuple[Any, ...], tell: Callable[[str], None]
) -> Graph:
    """The update as one graph, for arguments like these alone; these are changed by it."""
    return COMPILERS.get(_device(args).type, _torch_compiled)(update, args, tell)


def _torch_compiled(
    update: Callable[..., Any], args: tuple[Any, ...], tell: Callable[[str], None]
) -> Graph:
    """`torch.compile` of the operations that an update makes, for arguments like these alone.

    They are written down first, as for an artefact: Dynamo knows no gradients of one's own under
    `vmap`. Guards are left out: `Execution` has looked.
    """
    tell("compiling the update with torch.compile")
    options: Any = {
        "fullgraph": True,
        "dynamic": False,
        "options": {"guard_filter_fn": lambda guards: [False] * len(guards)},
    }
    try:
        graph, inputs, gives_tuple = artefacts.traced(update, args)
    except artefacts.Unpackable:
        return _whole_compiled(update, args, options)
    compiled: Any = torch.compile(graph, **options)
    compiled(*inputs)
    known: Any = None
    changed: list[Tensor] = []

    def run(state: Any, args: tuple[Any, ...], given: list[Tensor]) -> Any:
        nonlocal known, changed
        if state is not known:
            known, changed = state, list(tensors(state).values())
        outputs = compiled(*changed, *given)
        return tuple(outputs) if gives_tuple else outputs[0]

    return run


def _whole_compiled(
    update: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> Graph:
    """The same of an update that replaces tensors of its state, as Python runs it."""

    def whole(*args: Any) -> Any:
        return update(*args)

    # What is compiled is counted by code objects, and no more than eight of one are allowed: each
    # update gets one of its own.
    whole.__code__ = whole.__code__.replace(co_name="update")
    compiled: Any = torch.compile(whole, **options)
    compiled(*args)
    return lambda state, args, given: compiled(state, *args)


def _cpu_compiled(
    update: Callable[..., Any], args: tuple[Any, ...], tell: Callable[[str], None]
) -> Graph:
    """Load or build an artefact; use `torch.compile` for an update that can't be recorded.

    Raises:
        CompilerFailure: AOTInductor fails. `torch.compile` would compile in every run again.
    """
    try:
        recording = artefacts.record(update, args)
    except Exception:  # a network of the user's own may hold anything
        return _torch_compiled(update, args, tell)
    try:
        return artefacts.load(recording) or artefacts.build(recording, tell)
    except artefacts.Unpackable:
        return _torch_compiled(update, args, tell)
    except Exception as error:
        raise artefacts.CompilerFailure(_first_line(error)) from error


# What makes a graph of an update and arguments like those that it is going to get, by the type of
# the device that these are on.
COMPILERS: dict[
    str, Callable[[Callable[..., Any], tuple[Any, ...], Callable[[str], None]], Graph]
] = {"cpu": _cpu_compiled, "cuda": _torch_compiled}


def _first_line(error: Exception) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith("raised:"):
        return lines[1]
    return lines[0] if lines else type(error).__name__
