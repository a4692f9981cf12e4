"""Execution of an update: eager, or compiled as one graph; and which of them is worth it."""

from __future__ import annotations

import copy
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.learner.state import tensors
from hotloop.timing import span

Compile = Literal["auto", "on", "off"]

# What `auto` expects of one core, from measurements; it must not measure for itself, or one seed
# would not give one run: the two ways of running differ in their last bits.
LAUNCHES_SAVED_S = 0.85e-3  # of an update's some 130 operations
ARITHMETIC_SAVED = 0.2  # of it, by what fuses with products of matrices
FLOP_PER_S = 50e9
COMPILE_S = 15.0


@dataclass(frozen=True)
class Choice:
    """How an update will run, and why.

    Attributes:
        is_compiled: as one graph, or eager.
        reason: a sentence for the user.
        may_be_eager: whether to fall back if compiling fails.
    """

    is_compiled: bool
    reason: str
    may_be_eager: bool = False


def choose(mode: Compile, *, num_calls: int, flop_per_call: float) -> Choice:
    """Weigh what compiling costs against the work ahead.

    Args:
        mode: what the user asked for.
        num_calls: updates in the whole run.
        flop_per_call: arithmetic of one update.

    Raises:
        ConfigError: `on`, but there is no C++ compiler; or no mode at all.
    """
    if mode not in ("auto", "on", "off"):
        raise ConfigError(f"`compile` must be 'auto', 'on' or 'off', got {mode!r}")
    # As torch looks for it.
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if mode == "off":
        return Choice(False, "eager, as asked")
    if shutil.which(compiler) is None:
        if mode == "on":
            raise ConfigError(
                f"`compile` 'on' needs a C++ compiler, and there is no {compiler}: install it, "
                "name another one in CXX, or choose 'auto' or 'off'"
            )
        return Choice(False, f"eager: there is no C++ compiler ({compiler})")
    if mode == "on":
        return Choice(True, "compiled, as asked")
    saved_s = num_calls * (LAUNCHES_SAVED_S + ARITHMETIC_SAVED * flop_per_call / FLOP_PER_S)
    forecast = (
        f"compiling takes about {COMPILE_S:.0f} s (less when cached) and would save about "
        f"{saved_s:.0f} s of {num_calls:,} updates"
    )
    is_worth_it = saved_s > 1.5 * COMPILE_S
    reason = f"{'compiled' if is_worth_it else 'eager'}: {forecast}"
    return Choice(is_worth_it, reason, may_be_eager=True)


class Execution:
    """An update, run as `choose` said.

    Args:
        update: a function of a state (a tree of tensors, see `hotloop.learner.state`), whose
            tensors it changes in place and never replaces, and of tensors or tuples of tensors,
            some of which may be None. It gives a tensor or a tuple of them.
        choice: eager or compiled.
        name: what the summary calls it.

    Attributes:
        choice: the same, or eager if `auto` found that the update can't be compiled.
        compile_s: seconds that compiling took; 0 if eager.
        eager_s: seconds of an eager call, measured on copies just before compiling; 0 if eager.
    """

    def __init__(self, update: Callable[..., Any], choice: Choice, name: str = "update") -> None:
        self.choice = choice
        self.name = name
        self.compile_s = 0.0
        self.eager_s = 0.0
        self._update = update
        # What was compiled, by shape, stride and type of the arguments.
        self._graphs: dict[Any, Graph] = {}
        self._num_calls = 0
        self._calls_s = 0.0

    def __call__(self, state: Any, *args: Any) -> Any:
        """One update; gives what the update does, a tensor or a tuple of them.

        Raises:
            ConfigError: `on`, but the update can't be compiled.
        """
        started = time.perf_counter()
        metrics = self._run(state, args) if self.choice.is_compiled else self._update(state, *args)
        self._calls_s += time.perf_counter() - started
        self._num_calls += 1
        return metrics

    @property
    def num_recompilations(self) -> int:
        """Graphs compiled after the first: each costs seconds and should not be."""
        return max(0, len(self._graphs) - 1)

    def summary(self) -> str:
        """What was chosen and, if it was to compile, what came of it."""
        if not self._graphs:
            return f"{self.name}: {self.choice.reason}"
        call_s = self._calls_s / self._num_calls
        saved_s = self._num_calls * (self.eager_s - call_s) - self.compile_s
        return (
            f"{self.name}: {self.choice.reason}; compiling took {self.compile_s:.1f} s, then an "
            f"update {1e3 * call_s:.2f} ms instead of {1e3 * self.eager_s:.2f}: "
            f"{'saved' if saved_s >= 0 else 'lost'} {abs(saved_s):.1f} s over "
            f"{self._num_calls:,} updates, {self.num_recompilations} recompilations"
        )

    def _run(self, state: Any, args: tuple[Any, ...]) -> Any:
        each = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
        given = [x for x in each if x is not None]
        key = tuple([(x.shape, x.stride(), x.dtype) for x in given])
        graph = self._graphs.get(key)
        if graph is None:
            started = time.perf_counter()
            graph = self._compile(state, args)
            self._calls_s -= time.perf_counter() - started
            if graph is None:
                return self._update(state, *args)
            self._graphs[key] = graph
        return graph(state, args, given)

    def _compile(self, state: Any, args: tuple[Any, ...]) -> Graph | None:
        """A graph for these arguments; None where there is to be none."""
        if not self._graphs:
            self.eager_s = min(self._time_eager(*copy.deepcopy((state, *args))) for _ in range(5))
        started = time.perf_counter()
        try:
            with span("compile"):
                graph = _compiled(self._update, copy.deepcopy((state, *args)))
        except Exception as error:  # a network of the user's own may hold anything
            what = f"the {self.name} can't be compiled ({_first_line(error)})"
            if not self.choice.may_be_eager:
                raise ConfigError(
                    f"`compile` is 'on', but {what}: write it in operations on tensors alone, "
                    "without `.item()` or a branch on a tensor's value, or choose 'auto' or 'off'"
                ) from error
            self.choice = Choice(False, f"eager: {what}")
            return None
        self.compile_s += time.perf_counter() - started
        return graph

    def _time_eager(self, *args: Any) -> float:
        started = time.perf_counter()
        self._update(*args)
        return time.perf_counter() - started


# A compiled update: called with the state, the other arguments, and the tensors in those.
Graph = Callable[[Any, tuple[Any, ...], list[Tensor]], Any]

# C++ calls the kernels: 0.08 ms less an update of PPO's 64×64 networks. What is used more than once
# is computed once, where the default is to repeat up to 30 operations: 0.03 ms.
_OPTIONS = {"cpp_wrapper": True, "realize_opcount_threshold": 15}


def _compiled(update: Callable[..., Any], args: tuple[Any, ...]) -> Graph:
    """The update as one graph, for arguments like these alone; these are changed by it."""
    device = next(iter(tensors(args).values())).device.type
    return COMPILERS.get(device, _torch_compiled)(update, args)


def _torch_compiled(update: Callable[..., Any], args: tuple[Any, ...]) -> Graph:
    """`torch.compile` as it is documented."""
    compiled: Any = torch.compile(update, fullgraph=True, dynamic=False)
    compiled(*args)
    return lambda state, args, given: compiled(state, *args)


def _cpu_compiled(update: Callable[..., Any], args: tuple[Any, ...]) -> Graph:
    """A graph that is called directly, or by `torch.compile` where that fails."""
    try:
        return _DirectGraph(update, args)
    except Exception:  # it takes parts of torch that other releases may have changed
        compiled: Any = torch.compile(update, fullgraph=True, dynamic=False, options=_OPTIONS)
        compiled(*args)
        return lambda state, args, given: compiled(state, *args)


# What makes a graph of an update and arguments like those that it is going to get, by the type of
# the device that these are on.
COMPILERS: dict[str, Callable[[Callable[..., Any], tuple[Any, ...]], Graph]] = {
    "cpu": _cpu_compiled,
    "cuda": _torch_compiled,
}


class _DirectGraph:
    """A graph that is called without `torch.compile` having a look at the arguments each time.

    `Execution` has done that already, and it takes 0.08 ms of 0.43. What is compiled is kept, with
    the place that each of its inputs has among the arguments' tensors.
    """

    def __init__(self, update: Callable[..., Any], args: tuple[Any, ...]) -> None:
        from torch._inductor.compile_fx import compile_fx

        self._graph: Any = None

        def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
            graph: Any = compile_fx(module, example_inputs, config_patches=_OPTIONS)
            self._graph = graph

            def first_call(*inputs: Tensor) -> Any:
                self._inputs = inputs
                self._outputs = graph(*inputs)
                return self._outputs

            return first_call

        def whole(*args: Any) -> Any:
            return update(*args)

        # What is compiled is counted by code objects, and no more than eight of one are allowed:
        # each update gets one of its own.
        whole.__code__ = whole.__code__.replace(co_name="update")
        result = torch.compile(whole, backend=backend, fullgraph=True, dynamic=False)(*args)
        self._gives_tuple = isinstance(result, tuple)
        outputs = result if self._gives_tuple else (result,)
        if list(map(id, self._outputs)) != list(map(id, outputs)):
            raise RuntimeError("the update replaces tensors of its state")
        everything = list(tensors(args).values())
        places = {id(x): place for place, x in enumerate(everything)}
        if len(places) != len(everything):
            raise RuntimeError("a tensor that is passed twice would be taken for one later")
        # Tensors that are no arguments are constants of the update's own.
        self._constants = [x for x in self._inputs if id(x) not in places]
        ends = {id(x): len(places) + k for k, x in enumerate(self._constants)}
        self._places = [places.get(id(x), ends.get(id(x), 0)) for x in self._inputs]
        self._state: Any = None
        self._state_tensors: list[Tensor] = []
        self._inputs = self._outputs = ()

    def __call__(self, state: Any, args: tuple[Any, ...], given: list[Tensor]) -> Any:
        if state is not self._state:
            self._state, self._state_tensors = state, list(tensors(state).values())
        everything = self._state_tensors + given + self._constants
        outputs = self._graph(*[everything[place] for place in self._places])
        return tuple(outputs) if self._gives_tuple else outputs[0]


def _first_line(error: Exception) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith("raised:"):
        return lines[1]
    return lines[0] if lines else type(error).__name__
