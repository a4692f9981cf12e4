"""Users' agents and environments made of functions for one run, which Numba compiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hotloop.bandits.checked_settings import check_int
from hotloop.bandits.environments import MAX_ARMS
from hotloop.bandits.kernel_plans import KernelPlan
from hotloop.bandits.kernels import layout
from hotloop.bandits.kernels.environments import start_nothing
from hotloop.bandits.kernels.layout import LANES
from hotloop.bandits.kernels.randomness import (
    USER_AGENT_STREAM,
    USER_ENVIRONMENT_STREAM,
    f32,
    f64,
    i32,
    i64,
    lane_words,
)
from hotloop.bandits.user_code import fingerprint, part_key
from hotloop.base.numba_tools import (
    CodeCache,
    CompiledFunction,
    NumbaError,
    carray,
    jit,
    load_f32,
    load_i32,
    load_i64,
    njit,
    pointer,
    store_f32,
    store_f64,
    store_i32,
    store_i64,
)
from hotloop.errors import BanditError, ConfigError

SIZE, PARAMS, NUM_PARAMS = layout.PARAMETERS, layout.PARAMETERS + 1, layout.PARAMETERS + 2
_START_STEP = 0xFFFFFFFF
_Parts: TypeAlias = "tuple[CompiledFunction, CompiledFunction, CompiledFunction]"
MAX_STATE = 2**18  # numbers per run: 0.5 GB per block


@jit
def _store_uniform(frame: int, lane: int, step: int, stream: int, target: Any) -> None:
    a, b, c, d = lane_words(frame, lane, step, stream, 0)
    target[0] = (f64(a) + 0.5) * 2.0**-32
    target[1] = (f64(b) + 0.5) * 2.0**-32
    target[2] = (f64(c) + 0.5) * 2.0**-32
    target[3] = (f64(d) + 0.5) * 2.0**-32


@jit
def _store_fault(frame: int, kind: int, lane: int, step: int, value: float) -> None:
    if load_i64(frame, layout.FAULT) == 0:
        store_i64(frame, layout.FAULT, kind)
        store_i64(frame, layout.FAULT_LANE, lane)
        store_i64(frame, layout.FAULT_STEP, step)
        store_f64(frame, layout.FAULT_VALUE, value)


@jit
def _run_state(owner: int, lane: int) -> Any:
    size = load_i64(owner, SIZE)
    address = load_i64(owner, layout.STATE) + 8 * size * lane
    return carray(pointer(address), (size,), f64)


@jit
def _params(owner: int) -> Any:
    return carray(pointer(load_i64(owner, PARAMS)), (load_i64(owner, NUM_PARAMS),), f64)


def _guard(loop: Any, fault: int, key: str | None) -> CompiledFunction:
    """Return a part that plays one step in all runs and stores where a user's function raised."""
    # Exceptions can't leave compiled code. `loop` is a separate function, because Numba takes
    # seconds to compile a function that has calls within a `try`. `key` is None if nothing can be
    # cached.
    compiled = njit(loop, error_model="numpy")

    def play(owner, step):  # type: ignore[no-untyped-def]
        try:
            compiled(owner, step)
        except Exception:
            frame = load_i64(owner, layout.FRAME)
            _store_fault(frame, fault, load_i64(frame, layout.CURRENT_LANE), step, 0.0)

    return CompiledFunction(
        play, cache=None if key is None else CodeCache(part_key(key, loop.__name__))
    )


def _share_parts(make: Callable[..., _Parts]) -> Callable[..., _Parts]:
    """Make agents or environments with the same functions share their compiled parts."""
    parts: dict[str, _Parts] = {}

    @functools.wraps(make)
    def find_or_compile(*functions: Any) -> _Parts:
        key = fingerprint(*functions)
        if key is None:
            return make(*functions, key=None)
        key = part_key(key, make.__name__)
        if key not in parts:
            parts[key] = make(*functions, key=key)
        return parts[key]

    return find_or_compile


@_share_parts
def _agent_parts(start: Any, choose: Any, update: Any, *, key: str | None) -> _Parts:
    def start_agents(agent, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(agent, layout.FRAME), _params(agent)
        for i in range(load_i64(frame, layout.NUM_RUNS)):
            store_i64(frame, layout.CURRENT_LANE, i)
            state = _run_state(agent, i)
            state[:] = 0.0
            start(state, params)

    def choose_arms(agent, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(agent, layout.FRAME), _params(agent)
        num_arms, uniform = load_i64(frame, layout.NUM_ARMS), np.empty(4)
        for i in range(load_i64(frame, layout.NUM_RUNS)):
            store_i64(frame, layout.CURRENT_LANE, i)
            _store_uniform(frame, i, step, USER_AGENT_STREAM, uniform)
            arm = choose(_run_state(agent, i), params, step + 1, uniform)
            if 0 <= arm < num_arms and f64(i64(arm)) == f64(arm):
                store_i32(frame + layout.ARM, i, i32(arm))
            else:
                _store_fault(frame, layout.FAULT_ARM, i, step, f64(arm))
                store_i32(frame + layout.ARM, i, i32(0))

    def update_agents(agent, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(agent, layout.FRAME), _params(agent)
        for i in range(load_i64(frame, layout.NUM_RUNS)):
            store_i64(frame, layout.CURRENT_LANE, i)
            arm = i64(load_i32(frame + layout.ARM, i))
            reward = f64(load_f32(frame + layout.REWARD, i))
            update(_run_state(agent, i), params, step + 1, arm, reward)

    return (
        _guard(start_agents, layout.FAULT_AGENT_RAISED, key),
        _guard(choose_arms, layout.FAULT_AGENT_RAISED, key),
        _guard(update_agents, layout.FAULT_AGENT_RAISED, key),
    )


@_share_parts
def _environment_parts(start: Any, reward: Any, mean: Any, *, key: str | None) -> _Parts:
    def start_environments(environment, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(environment, layout.FRAME), _params(environment)
        uniform = np.empty(4)
        for i in range(load_i64(frame, layout.NUM_RUNS)):
            store_i64(frame, layout.CURRENT_LANE, i)
            state = _run_state(environment, i)
            state[:] = 0.0
            _store_uniform(frame, i, _START_STEP, USER_ENVIRONMENT_STREAM, uniform)
            start(state, params, uniform)

    def give_rewards(environment, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(environment, layout.FRAME), _params(environment)
        best, num_arms = load_i64(environment, layout.BEST_AT), load_i64(frame, layout.NUM_ARMS)
        must_be_unit, uniform = load_i64(frame, layout.NEEDS_UNIT) != 0, np.empty(4)
        for i in range(load_i64(frame, layout.NUM_RUNS)):
            store_i64(frame, layout.CURRENT_LANE, i)
            state, arm = _run_state(environment, i), i64(load_i32(frame + layout.ARM, i))
            best_value = -math.inf
            for candidate in range(num_arms):
                best_value = max(best_value, mean(state, params, step + 1, candidate))
            store_f32(best, i, f32(best_value))
            store_f32(frame + layout.VALUE, i, f32(mean(state, params, step + 1, arm)))
            _store_uniform(frame, i, step, USER_ENVIRONMENT_STREAM, uniform)
            reward_f32 = f32(reward(state, params, step + 1, arm, uniform))
            store_f32(frame + layout.REWARD, i, reward_f32)
            if not math.isfinite(reward_f32):
                _store_fault(frame, layout.FAULT_REWARD, i, step, f64(reward_f32))
            elif must_be_unit and not 0.0 <= reward_f32 <= 1.0:
                _store_fault(frame, layout.FAULT_RANGE, i, step, f64(reward_f32))

    return (
        _guard(start_environments, layout.FAULT_ENVIRONMENT_RAISED, key),
        start_nothing,
        _guard(give_rewards, layout.FAULT_ENVIRONMENT_RAISED, key),
    )


def _compiled(function: Any, owner: str, name: str) -> Any:
    if hasattr(function, "py_func"):
        return function
    if not callable(function):
        raise ConfigError(f"`{name}` of {owner} must be a function, got {function!r:.80}")
    return njit(function)


def _start_agent(state, params):  # type: ignore[no-untyped-def]
    pass


def _start_environment(state, params, uniform):  # type: ignore[no-untyped-def]
    pass


def _unknown_mean(state, params, step, arm):  # type: ignore[no-untyped-def]
    return math.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class _JittedFunctions:
    """Settings that `JittedAgent` and `JittedEnvironment` share."""

    params: Sequence[float] = ()
    """Numbers that the functions receive."""
    name: str = "own"
    """Name in tables and plots."""

    @property
    def label(self) -> str:
        return self.name

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "own": "jitted", "params": list(self.params)}

    def __post_init__(self) -> None:
        try:
            params = np.array(self.params, np.float64)
        except (TypeError, ValueError):
            params = np.empty((0, 0))
        if params.ndim != 1:
            raise ConfigError(
                f"`params` of {self.name} must be a flat sequence of numbers, got "
                f"{self.params!r:.80}"
            )
        object.__setattr__(self, "params", tuple(params.tolist()))
        self._functions()

    def _functions(self) -> tuple[Any, Any, Any]:
        raise NotImplementedError

    def _make_plan(self, role: str, parts: _Parts, size: int) -> KernelPlan:
        for part in parts:
            try:
                _ = part.address
            except NumbaError as error:
                raise BanditError(
                    f"{role} '{self.name}' can't be compiled by Numba: {error}\nUse numbers, "
                    "arrays and `math` alone in it, or write it as a plain object, vectorized over "
                    "runs"
                ) from error
        params = np.array(self.params, np.float64)
        return KernelPlan(
            parts=parts,
            parameters=(size, params.ctypes.data, len(params)),
            state_bytes=8 * LANES * max(size, 1),
            arrays=(params,),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class JittedAgent(_JittedFunctions):
    """An agent made of functions for one run, which Numba compiles.

    `state` is float64, (state_size,), and zero at the start of a run. `params` is float64. `step`
    counts from 1. `uniform` is float64, (4,), in (0, 1), with new numbers at every step.

    Raises:
        ConfigError: A function is not callable, or a size is no whole number.
    """

    choose: Callable[..., int]
    """choose(state, params, step, uniform) → arm, from 0."""
    update: Callable[..., None]
    """update(state, params, step, arm, reward)."""
    state_size: int | Callable[[int], int]
    """Length of `state`, or a function of the number of arms that returns it."""
    start: Callable[..., None] | None = None
    """start(state, params), called before a run's first step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.state_size):
            check_int("state_size", self.state_size, 0, MAX_STATE, owner=self.name)

    def state_length(self, num_arms: int) -> int:
        """Return the length of `state`."""
        size = self.state_size(num_arms) if callable(self.state_size) else self.state_size
        return check_int("state_size", size, 0, MAX_STATE, owner=self.name)

    def plan(self, environment: Any, num_steps: int) -> KernelPlan:
        """Return the plan for the kernels."""
        return self._make_plan("agent", self._parts, self.state_length(environment.num_arms))

    @cached_property
    def _parts(self) -> _Parts:
        return _agent_parts(*self._functions())

    def _functions(self) -> tuple[Any, Any, Any]:
        start = _start_agent if self.start is None else self.start
        return (
            _compiled(start, self.name, "start"),
            _compiled(self.choose, self.name, "choose"),
            _compiled(self.update, self.name, "update"),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class JittedEnvironment(_JittedFunctions):
    """An environment made of functions for one run, which Numba compiles.

    Its functions have the same arguments as those of `JittedAgent`.

    Raises:
        ConfigError: A function is not callable, or a size is no whole number.
    """

    has_unit_rewards: ClassVar[bool] = True  # its author must ensure it
    has_contexts: ClassVar[bool] = False
    num_arms: int
    """Number k of arms, at least 2."""
    reward: Callable[..., float]
    """reward(state, params, step, arm, uniform) → a finite number."""
    mean: Callable[..., float] | None = None
    """mean(state, params, step, arm) → the arm's true value at this step. Without it, the share of
    optimal steps and the regret are NaN."""
    start: Callable[..., None] | None = None
    """start(state, params, uniform), called before a run's first step."""
    state_size: int = 0
    """Length of `state`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("num_arms", self.num_arms, 2, MAX_ARMS, owner=self.name)
        check_int("state_size", self.state_size, 0, MAX_STATE, owner=self.name)

    def plan(self, num_steps: int) -> KernelPlan:
        """Return the plan for the kernels."""
        return self._make_plan("environment", self._parts, self.state_size)

    @cached_property
    def _parts(self) -> _Parts:
        return _environment_parts(*self._functions())

    def _functions(self) -> tuple[Any, Any, Any]:
        start = _start_environment if self.start is None else self.start
        return (
            _compiled(start, self.name, "start"),
            _compiled(self.reward, self.name, "reward"),
            _compiled(_unknown_mean if self.mean is None else self.mean, self.name, "mean"),
        )
