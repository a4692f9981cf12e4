"""How an update runs: eager, or compiled as one graph; and which of them is worth it."""

from __future__ import annotations

import copy
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hotloop.errors import ConfigError
from hotloop.timing import span

Compile = Literal["auto", "on", "off"]

# What `auto` expects of one core, from measurements; it must not measure for itself, or one seed
# would not give one run: the two ways of running differ in their last bits.
EAGER_CALL_S = 1.3e-3  # launching some 130 operations
FLOP_PER_S = 50e9
COMPILE_S = 15.0
SHARE_SAVED = 0.6


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
        ConfigError: `on`, but there is no C++ compiler.
    """
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++", "c++")), None)
    if mode == "off":
        return Choice(False, "eager, as asked")
    if compiler is None or shutil.which(compiler) is None:
        if mode == "on":
            raise ConfigError(
                "`compile` 'on' needs a C++ compiler, and there is none: install g++, name one in "
                "CXX, or choose 'auto' or 'off'"
            )
        return Choice(False, "eager: there is no C++ compiler")
    if mode == "on":
        return Choice(True, "compiled, as asked")
    saved_s = SHARE_SAVED * num_calls * (EAGER_CALL_S + flop_per_call / FLOP_PER_S)
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
        update: a function of tensors, or tuples of them, that changes its first argument's tensors
            in place.
        choice: eager or compiled.

    Attributes:
        choice: the same, or eager if `auto` found that the update can't be compiled.
        compile_s: seconds that compiling took; 0 if eager.
        eager_s: seconds of an eager call, measured on copies just before compiling; 0 if eager.
    """

    def __init__(self, update: Callable[..., Tensor], choice: Choice) -> None:
        self.choice = choice
        self.compile_s = 0.0
        self.eager_s = 0.0
        self._update = update
        # What was compiled, by the shapes and types of the arguments after the first.
        self._graphs: dict[Any, Callable[..., Tensor]] = {}
        self._num_calls = 0
        self._calls_s = 0.0

    def __call__(self, *args: Any) -> Tensor:
        """One update.

        Raises:
            ConfigError: `on`, but the update can't be compiled.
        """
        run = self._update
        if self.choice.is_compiled:
            run = self._graphs.get(_signature(args[1:]))
            if run is None:
                run = self._compile(args)
        started = time.perf_counter()
        metrics = run(*args)
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
            return f"update: {self.choice.reason}"
        call_s = self._calls_s / self._num_calls
        saved_s = self._num_calls * (self.eager_s - call_s) - self.compile_s
        return (
            f"update: {self.choice.reason}; compiling took {self.compile_s:.1f} s, then an update "
            f"{1e3 * call_s:.2f} ms instead of {1e3 * self.eager_s:.2f}: {saved_s:+.1f} s over "
            f"{self._num_calls:,} updates, {self.num_recompilations} recompilations"
        )

    def _compile(self, args: tuple[Any, ...]) -> Callable[..., Tensor]:
        """A graph for these arguments; the update itself where there is to be none."""
        if not self._graphs:
            self.eager_s = min(self._time_eager(*copy.deepcopy(args)) for _ in range(5))
        started = time.perf_counter()
        try:
            with span("compile"):
                graph = _compiled(self._update, args)
                graph(*copy.deepcopy(args))  # the first call of a graph is not like the others
        except Exception as error:  # a network of the user's own may hold anything
            what = f"the update can't be compiled ({str(error).strip().splitlines()[0]})"
            if not self.choice.may_be_eager:
                raise ConfigError(
                    f"`compile` is 'on', but {what}: choose 'auto' or 'off'"
                ) from error
            self.choice = Choice(False, f"eager: {what}")
            return self._update
        self.compile_s += time.perf_counter() - started
        self._graphs[_signature(args[1:])] = graph
        return graph

    def _time_eager(self, *args: Any) -> float:
        started = time.perf_counter()
        self._update(*args)
        return time.perf_counter() - started


def _compiled(update: Callable[..., Tensor], args: tuple[Any, ...]) -> Callable[..., Tensor]:
    """One graph, for arguments like these alone.

    C++ calls the kernels: 0.08 ms less an update of PPO's 64×64 networks. What is used more than
    once is computed once (the compiler's default is to repeat up to 30 operations): 0.03 ms. And
    nobody looks at each call whether the arguments are as they were, which `Execution` does itself:
    another 0.08 ms, of 0.35 that are left.
    """
    compiled: Any = torch.compile(
        update,
        fullgraph=True,
        dynamic=False,
        options={"cpp_wrapper": True, "realize_opcount_threshold": 15},
    )
    try:
        graph = compiled.aot_compile((args, {}))
        graph.disable_guard_check()
    except Exception:  # not every release has it, and not every closure can be pickled
        return compiled
    return graph


def _signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Shapes, strides and types of tensors and tuples of tensors."""
    tensors = [x for arg in args for x in (arg if isinstance(arg, tuple) else (arg,))]
    return tuple([(x.shape, x.stride(), x.dtype) for x in tensors])
