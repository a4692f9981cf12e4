"""User functions are compiled once. The cache finds them by everything that they refer to."""

from __future__ import annotations

import math

import numba
import numpy as np
import pytest

from hotloop.bandits import (
    EpsilonGreedy,
    GaussianRewards,
    JittedAgent,
    JittedEnvironment,
    jitted,
    run,
)
from hotloop.bandits.user_code import fingerprint
from hotloop.base import cache
from hotloop.base.numba_tools import CFunc
from hotloop.errors import BanditError

SCALE, TABLE, SAME_TABLE = 2.0, np.array([1.0, 2.0]), np.array([1.0, 2.0])


def make_reward(source, **names):
    """Compile source text that defines `reward`, with `names` as globals."""
    space = {"__name__": __name__, "math": math, "np": np, **names}
    exec(f"def reward(state, params, step, arm, uniform):\n    {source}", space)
    return space["reward"]


def closure(value):
    def reward(state, params, step, arm, uniform):
        return value

    return reward


def with_default(value):
    def reward(state, params, step, arm, uniform, extra=value):
        return extra

    return reward


def recursive(number):
    return 1 if number < 2 else number * recursive(number - 1)


def test_equal_functions_have_equal_fingerprints():
    assert fingerprint(closure(1.0)) == fingerprint(closure(1.0))
    plain = make_reward("return math.sqrt(SCALE) + TABLE[arm]", SCALE=SCALE, TABLE=TABLE)
    copy = make_reward("return math.sqrt(SCALE) + TABLE[arm]", SCALE=SCALE, TABLE=SAME_TABLE)
    assert fingerprint(plain) == fingerprint(copy)
    assert fingerprint(numba.njit(plain)) == fingerprint(numba.njit(copy))
    assert fingerprint(recursive) == fingerprint(recursive) is not None


def test_different_functions_have_different_fingerprints():
    helper = make_reward("return 1.0")
    other_helper = make_reward("return 2.0")
    functions = [
        make_reward("return 1.0"),
        make_reward("return 1"),
        make_reward("return 2.0"),
        make_reward("return -0.0"),
        make_reward("return 0.0"),
        make_reward("return math.sin(arm)"),
        make_reward("return np.sin(arm)"),
        make_reward("return SCALE", SCALE=2.0),
        make_reward("return SCALE", SCALE=3.0),
        make_reward("return SCALE", SCALE=np.float32(2)),
        make_reward("return TABLE[arm]", TABLE=TABLE),
        make_reward("return TABLE[arm]", TABLE=TABLE + 1),
        make_reward("return TABLE[arm]", TABLE=TABLE.astype(np.float32)),
        make_reward("return helper(state, params, step, arm, uniform)", helper=helper),
        make_reward("return helper(state, params, step, arm, uniform)", helper=other_helper),
        make_reward(
            "return helper(state, params, step, arm, uniform)", helper=numba.njit(other_helper)
        ),
        make_reward("return len(state)"),
        make_reward("return len(state)", len=abs),
        make_reward("return (lambda x: x + 1.0)(step)"),
        make_reward("return (lambda x: x + 2.0)(step)"),
        closure(1.0),
        closure(2.0),
        closure((1.0, 2.0)),
        with_default(1.0),
        with_default(2.0),
        numba.njit(closure(1.0)),
        numba.njit(fastmath=True)(closure(1.0)),
        recursive,
    ]
    digests = [fingerprint(function) for function in functions]
    assert None not in digests
    assert len(set(digests)) == len(functions)
    first, second = functions[:2]
    assert fingerprint(first, second) != fingerprint(second, first)


def test_functions_with_unknown_references_have_no_fingerprint():
    class Settings:
        scale = 2.0

    assert fingerprint(closure(Settings())) is None
    assert fingerprint(make_reward("return cache.SCALE", cache=cache)) is None
    assert fingerprint(closure([1.0])) is None
    assert fingerprint(closure(np.array(["text"]))) is None


def test_fingerprints_depend_on_the_module():
    """Numba imports a function's module when it loads the code."""
    function = make_reward("return 1.0")
    assert fingerprint(function) != fingerprint(make_reward("return 1.0", __name__="math"))
    assert fingerprint(make_reward("return 1.0", __name__="no_such_module")) is None
    del function.__globals__["__name__"]
    assert fingerprint(function) is None


def play(value):
    environment = JittedEnvironment(num_arms=2, reward=closure(value))
    return run(EpsilonGreedy(), environment, num_runs=3, num_steps=4).mean_reward.mean


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Return a list with one item per compiled function, for an empty cache."""
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    count, compile_uncached = [], CFunc._compile_uncached
    monkeypatch.setattr(
        CFunc, "_compile_uncached", lambda self: (count.append(1), compile_uncached(self))[1]
    )
    return count


def clear_parts(monkeypatch):
    """Clear the parts in memory, as in a new process."""
    for name in ("_agent_parts", "_environment_parts"):
        function = getattr(jitted, name).__wrapped__
        monkeypatch.setattr(jitted, name, jitted._share_parts(function))


def test_compiled_code_is_cached_across_agents_and_processes(compiled, monkeypatch):
    clear_parts(monkeypatch)
    assert play(0.75) == 0.75
    assert (number := len(compiled)) >= 2
    assert play(0.75) == 0.75
    assert len(compiled) == number
    clear_parts(monkeypatch)
    assert play(0.75) == 0.75
    assert len(compiled) == number
    # Damaged files are compiled again.
    for entry in cache.entries():
        entry.path.write_bytes(b"damaged")
    clear_parts(monkeypatch)
    assert play(0.75) == 0.75
    assert len(compiled) > number


def test_code_runs_without_a_writable_cache(compiled, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    clear_parts(monkeypatch)
    assert play(0.25) == 0.25
    assert cache.entries() == []


def test_cached_agent_reports_exceptions(compiled, monkeypatch):
    def choose(state, params, step, uniform):
        if step == 3:
            raise ValueError("no")
        return 0

    def update(state, params, step, arm, reward):
        pass

    messages = []
    for _ in range(2):
        clear_parts(monkeypatch)
        agent = JittedAgent(choose=choose, update=update, state_size=1)
        with pytest.raises(BanditError, match=r"agent 'own' raised .* at step 3") as caught:
            run(agent, GaussianRewards(num_arms=2), num_runs=3, num_steps=7)
        messages.append(str(caught.value))
        number = len(compiled)
    assert messages[0] == messages[1]
    assert len(compiled) == number
