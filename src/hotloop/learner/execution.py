"""How an update runs: eager, or compiled as one graph; and which of them is worth it."""

from __future__ import annotations

import copy
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    """

    is_compiled: bool
    reason: str


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
    return Choice(is_worth_it, f"{'compiled' if is_worth_it else 'eager'}: {forecast}")


class Execution:
    """An update, run as `choose` said.

    Args:
        update: a function of tensors that changes its first argument's tensors in place.
        choice: eager or compiled.

    Attributes:
        compile_s: seconds that the first compiled call took; 0 if eager.
        eager_s: seconds of an eager call, measured on copies just before compiling; 0 if eager.
    """

    def __init__(self, update: Callable[..., Tensor], choice: Choice) -> None:
        self.choice = choice
        self.compile_s = 0.0
        self.eager_s = 0.0
        self._update = self._run = update
        self._num_calls = 0
        self._later_s = 0.0
        self._first_graphs = 0
        if choice.is_compiled:
            # C++ calls the kernels too: 0.50 ms an update of PPO's 64×64 networks, not 0.58.
            self._run = torch.compile(
                update, fullgraph=True, dynamic=False, options={"cpp_wrapper": True}
            )

    def __call__(self, *args: Any) -> Tensor:
        """One update."""
        if self.choice.is_compiled and self._num_calls == 0:
            return self._compile(*args)
        started = time.perf_counter()
        metrics = self._run(*args)
        self._later_s += time.perf_counter() - started
        self._num_calls += 1
        return metrics

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Around calls whose arguments have the shapes and types of those before.

        What Dynamo looks up to be sure of that costs 40 µs a call.
        """
        is_sure = self.choice.is_compiled and self._num_calls > 1
        stance = (
            torch.compiler.set_stance(skip_guard_eval_unsafe=True) if is_sure else nullcontext()
        )
        with stance:
            yield

    @property
    def num_recompilations(self) -> int:
        """Graphs compiled after the first: each costs seconds and should not be."""
        return max(0, _num_graphs() - self._first_graphs) if self._first_graphs else 0

    def summary(self) -> str:
        """What was chosen and, if it was to compile, what came of it."""
        later = self._num_calls - 1
        if not self.choice.is_compiled or later < 1:
            return f"update: {self.choice.reason}"
        call_s = self._later_s / later
        saved_s = later * (self.eager_s - call_s) - self.compile_s
        return (
            f"update: {self.choice.reason}; compiling took {self.compile_s:.1f} s, then an update "
            f"{1e3 * call_s:.2f} ms instead of {1e3 * self.eager_s:.2f}: {saved_s:+.1f} s over "
            f"{later:,} updates, {self.num_recompilations} recompilations"
        )

    def _compile(self, *args: Any) -> Tensor:
        self.eager_s = min(self._time_eager(*copy.deepcopy(args)) for _ in range(5))
        started = time.perf_counter()
        with span("compile"):
            metrics = self._run(*args)
        self.compile_s = time.perf_counter() - started
        self._num_calls = 1
        self._first_graphs = _num_graphs()
        return metrics

    def _time_eager(self, *args: Any) -> float:
        started = time.perf_counter()
        self._update(*args)
        return time.perf_counter() - started


def _num_graphs() -> int:
    """Graphs that this process has compiled so far."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
