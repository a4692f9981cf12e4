"""Agents and environments of a user's own as functions for one run, which Numba compiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np

from hotloop.bandits.described import whole
from hotloop.bandits.environments import MAX_ARMS
from hotloop.bandits.kernels.environments import start_nothing
from hotloop.bandits.kernels.layout import (
    ARM,
    BEST_AT,
    FAULT,
    FAULT_AGENT_RAISED,
    FAULT_ARM,
    FAULT_ENVIRONMENT_RAISED,
    FAULT_LANE,
    FAULT_RANGE,
    FAULT_REWARD,
    FAULT_STEP,
    FAULT_VALUE,
    FRAME,
    LANES,
    NEEDS_UNIT,
    NOW_LANE,
    NUM_ARMS,
    NUM_RUNS,
    PARAMETERS,
    REWARD,
    STATE,
    VALUE,
)
from hotloop.bandits.kernels.randomness import (
    OWN_AGENT_STREAM,
    OWN_ENVIRONMENT_STREAM,
    f32,
    f64,
    i32,
    i64,
    lane_words,
)
from hotloop.bandits.plan import Plan
from hotloop.bandits.user_code import CodeCache, fingerprint, part_key
from hotloop.errors import BanditError, ConfigError
from hotloop.numba_tools import (
    NumbaError,
    Part,
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

SIZE, PARAMS, NUM_PARAMS = PARAMETERS, PARAMETERS + 1, PARAMETERS + 2
_AT_START = 0xFFFFFFFF
_Parts: TypeAlias = "tuple[Part, Part, Part]"
MAX_STATE = 2**18  # numbers of one run; 0.5 GB for a block's


@jit
def _put_uniform(frame: int, lane: int, step: int, stream: int, target: Any) -> None:
    a, b, c, d = lane_words(frame, lane, step, stream, 0)
    target[0] = (f64(a) + 0.5) * 2.0**-32
    target[1] = (f64(b) + 0.5) * 2.0**-32
    target[2] = (f64(c) + 0.5) * 2.0**-32
    target[3] = (f64(d) + 0.5) * 2.0**-32


@jit
def _note(frame: int, kind: int, lane: int, step: int, value: float) -> None:
    if load_i64(frame, FAULT) == 0:
        store_i64(frame, FAULT, kind)
        store_i64(frame, FAULT_LANE, lane)
        store_i64(frame, FAULT_STEP, step)
        store_f64(frame, FAULT_VALUE, value)


@jit
def _state_of(owner: int, lane: int) -> Any:
    size = load_i64(owner, SIZE)
    address = load_i64(owner, STATE) + 8 * size * lane
    return carray(pointer(address), (size,), f64)


@jit
def _params_of(owner: int) -> Any:
    return carray(pointer(load_i64(owner, PARAMS)), (load_i64(owner, NUM_PARAMS),), f64)


def _guarded(loop: Any, fault: int, key: str | None) -> Part:
    """Return a part that plays one step in all runs and notes where a user's function raised.

    What is raised can't leave compiled code. The loop is a function of its own, as Numba takes
    seconds to compile one that has calls within a `try`.

    Args:
        key: of the user's functions; None: they can't be kept.
    """
    compiled = njit(loop, error_model="numpy")

    def play(owner, step):  # type: ignore[no-untyped-def]
        try:
            compiled(owner, step)
        except Exception:
            frame = load_i64(owner, FRAME)
            _note(frame, fault, load_i64(frame, NOW_LANE), step, 0.0)

    return Part(play, cache=None if key is None else CodeCache(part_key(key, loop.__name__)))


def _shared(make: Callable[..., _Parts]) -> Callable[..., _Parts]:
    """Let agents, or environments, of the same functions share their compiled parts."""
    made: dict[str, _Parts] = {}

    @functools.wraps(make)
    def find_or_make(*functions: Any) -> _Parts:
        key = fingerprint(*functions)
        if key is None:
            return make(*functions, key=None)
        key = part_key(key, make.__name__)
        if key not in made:
            made[key] = make(*functions, key=key)
        return made[key]

    return find_or_make


@_shared
def _agent_parts(start: Any, choose: Any, update: Any, *, key: str | None) -> _Parts:
    def start_own(agent, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(agent, FRAME), _params_of(agent)
        for i in range(load_i64(frame, NUM_RUNS)):
            store_i64(frame, NOW_LANE, i)
            state = _state_of(agent, i)
            state[:] = 0.0
            start(state, params)

    def choose_own(agent, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(agent, FRAME), _params_of(agent)
        num_arms, uniform = load_i64(frame, NUM_ARMS), np.empty(4)
        for i in range(load_i64(frame, NUM_RUNS)):
            store_i64(frame, NOW_LANE, i)
            _put_uniform(frame, i, step, OWN_AGENT_STREAM, uniform)
            arm = choose(_state_of(agent, i), params, step + 1, uniform)
            if 0 <= arm < num_arms and f64(i64(arm)) == f64(arm):
                store_i32(frame + ARM, i, i32(arm))
            else:
                _note(frame, FAULT_ARM, i, step, f64(arm))
                store_i32(frame + ARM, i, i32(0))

    def update_own(agent, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(agent, FRAME), _params_of(agent)
        for i in range(load_i64(frame, NUM_RUNS)):
            store_i64(frame, NOW_LANE, i)
            arm, reward = i64(load_i32(frame + ARM, i)), f64(load_f32(frame + REWARD, i))
            update(_state_of(agent, i), params, step + 1, arm, reward)

    return (
        _guarded(start_own, FAULT_AGENT_RAISED, key),
        _guarded(choose_own, FAULT_AGENT_RAISED, key),
        _guarded(update_own, FAULT_AGENT_RAISED, key),
    )


@_shared
def _environment_parts(start: Any, reward: Any, mean: Any, *, key: str | None) -> _Parts:
    def start_own(environment, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(environment, FRAME), _params_of(environment)
        uniform = np.empty(4)
        for i in range(load_i64(frame, NUM_RUNS)):
            store_i64(frame, NOW_LANE, i)
            state = _state_of(environment, i)
            state[:] = 0.0
            _put_uniform(frame, i, _AT_START, OWN_ENVIRONMENT_STREAM, uniform)
            start(state, params, uniform)

    def give_own(environment, step):  # type: ignore[no-untyped-def]
        frame, params = load_i64(environment, FRAME), _params_of(environment)
        best, num_arms = load_i64(environment, BEST_AT), load_i64(frame, NUM_ARMS)
        must_be_unit, uniform = load_i64(frame, NEEDS_UNIT) != 0, np.empty(4)
        for i in range(load_i64(frame, NUM_RUNS)):
            store_i64(frame, NOW_LANE, i)
            state, arm = _state_of(environment, i), i64(load_i32(frame + ARM, i))
            top = -math.inf
            for other in range(num_arms):
                top = max(top, mean(state, params, step + 1, other))
            store_f32(best, i, f32(top))
            store_f32(frame + VALUE, i, f32(mean(state, params, step + 1, arm)))
            _put_uniform(frame, i, step, OWN_ENVIRONMENT_STREAM, uniform)
            got = f32(reward(state, params, step + 1, arm, uniform))
            store_f32(frame + REWARD, i, got)
            if not math.isfinite(got):
                _note(frame, FAULT_REWARD, i, step, f64(got))
            elif must_be_unit and not 0.0 <= got <= 1.0:
                _note(frame, FAULT_RANGE, i, step, f64(got))

    return (
        _guarded(start_own, FAULT_ENVIRONMENT_RAISED, key),
        start_nothing,
        _guarded(give_own, FAULT_ENVIRONMENT_RAISED, key),
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


def _unknown(state, params, step, arm):  # type: ignore[no-untyped-def]
    return math.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class _Jitted:
    """Settings and names that agents and environments of functions share."""

    params: Sequence[float] = ()
    """Settings that the functions are handed."""
    name: str = "own"
    """What tables and pictures call it."""

    @property
    def label(self) -> str:
        """A short text for a legend."""
        return self.name

    def describe(self) -> dict[str, Any]:
        """Its name and its settings, as JSON holds them."""
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

    def _own_plan(self, what: str, parts: _Parts, size: int) -> Plan:
        for part in parts:
            try:
                _ = part.address
            except NumbaError as error:
                raise BanditError(
                    f"{what} '{self.name}' can't be compiled by Numba: {error}\nUse numbers, "
                    "arrays and `math` alone in it; or write it as a plain object, vectorised over "
                    "runs"
                ) from error
        params = np.array(self.params, np.float64)
        return Plan(
            parts=parts,
            parameters=(size, params.ctypes.data, len(params)),
            state_bytes=8 * LANES * max(size, 1),
            arrays=(params,),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class JittedAgent(_Jitted):
    """An agent made of functions for one run, which Numba compiles.

    `state` is float64, (state_size,), zero at the start of a run; `params` float64; `step` counts
    from 1; `uniform` is float64, (4,), in (0, 1), new in every step.

    Raises:
        ConfigError: what should be a function is none, or a size is no whole number.
    """

    choose: Callable[..., int]
    """choose(state, params, step, uniform) → arm, from 0."""
    update: Callable[..., None]
    """update(state, params, step, arm, reward)."""
    state_size: int | Callable[[int], int]
    """Numbers in `state`, or a function of the number of arms that gives them."""
    start: Callable[..., None] | None = None
    """start(state, params), before a run's first step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.state_size):
            whole("state_size", self.state_size, 0, MAX_STATE, owner=self.name)

    def num_state(self, num_arms: int) -> int:
        """How many numbers its state has."""
        size = self.state_size(num_arms) if callable(self.state_size) else self.state_size
        return whole("state_size", size, 0, MAX_STATE, owner=self.name)

    def plan(self, environment: Any, num_steps: int) -> Plan:
        """How it plays."""
        return self._own_plan("agent", self._parts, self.num_state(environment.num_arms))

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
class JittedEnvironment(_Jitted):
    """An environment made of functions for one run, which Numba compiles.

    Arguments are as those of a `JittedAgent`'s functions.

    Raises:
        ConfigError: what should be a function is none, or a size is no whole number.
    """

    is_unit: ClassVar[bool] = True  # its author answers for it
    has_contexts: ClassVar[bool] = False
    num_arms: int
    """k, from 2."""
    reward: Callable[..., float]
    """reward(state, params, step, arm, uniform) → a finite number."""
    mean: Callable[..., float] | None = None
    """mean(state, params, step, arm) → the arm's true value at this step; without it the share of
    optimal steps and the regret are unknown (NaN)."""
    start: Callable[..., None] | None = None
    """start(state, params, uniform), before a run's first step."""
    state_size: int = 0
    """Numbers in `state`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("num_arms", self.num_arms, 2, MAX_ARMS, owner=self.name)
        whole("state_size", self.state_size, 0, MAX_STATE, owner=self.name)

    def plan(self, num_steps: int) -> Plan:
        """What it does."""
        return self._own_plan("environment", self._parts, self.state_size)

    @cached_property
    def _parts(self) -> _Parts:
        return _environment_parts(*self._functions())

    def _functions(self) -> tuple[Any, Any, Any]:
        start = _start_environment if self.start is None else self.start
        return (
            _compiled(start, self.name, "start"),
            _compiled(self.reward, self.name, "reward"),
            _compiled(_unknown if self.mean is None else self.mean, self.name, "mean"),
        )
