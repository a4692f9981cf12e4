"""Memory does not grow with the number of runs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hotloop.bandits import (
    MOSS,
    UCB,
    UCB1,
    EpsilonGreedy,
    GaussianRewards,
    RandomWalk,
    compare,
    kernel_plans,
    run,
)
from hotloop.base import memory
from hotloop.errors import ConfigError
from tests.attempts import attempts

MEASURE = """
import re
from pathlib import Path
from hotloop.bandits import EpsilonGreedy, GaussianRewards, run

def peak():
    # getrusage's peak would include the parent process.
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

options = {{"num_steps": {num_steps}, "threads": 2}}
run(EpsilonGreedy(), GaussianRewards(), num_runs=4096, **options)
before = peak()
run(EpsilonGreedy(), GaussianRewards(), num_runs={num_runs}, **options)
print(before, peak())
"""


def peaks(num_runs, num_steps):
    """Return the peak memory in MiB before and after the runs, in a process."""
    code = MEASURE.format(num_runs=num_runs, num_steps=num_steps)
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250
    )
    before, after = map(float, completed.stdout.split())
    return before, after


def test_sums_do_not_grow_with_runs():
    sizes = set()
    for num_runs in (1, 300, 20_000):
        result = run(
            EpsilonGreedy(), GaussianRewards(), num_runs=num_runs, num_steps=50, arm_shares=True
        )  # fmt: skip
        sizes.add(len(result.sums.to_bytes()))
        assert len(result.final_regrets) == min(num_runs, 8192)
    assert len(sizes) == 1


def test_number_of_points_is_bounded():
    for num_steps in (2000, 2001, 12_345):
        result = run(EpsilonGreedy(), GaussianRewards(num_arms=2), num_runs=3, num_steps=num_steps)
        assert len(result.step) == num_steps if num_steps == 2000 else len(result.step) <= 1000
        assert result.step[-1] == num_steps
        assert (np.diff(result.step) > 0).all()


def test_comparisons_do_not_store_runs():
    agents = [EpsilonGreedy(epsilon=epsilon) for epsilon in (0.0, 0.1)]
    comparison = compare(agents, RandomWalk(), num_runs=20_000, num_steps=20)
    assert comparison.products.shape == (2, 2, 5)
    assert all(len(result.final_regrets) == 8192 for result in comparison.results)


def test_peak_does_not_grow_with_runs():
    """For a million runs, one float32 per run is 4 MiB, and one per step is 200 MiB."""
    for (before, after), attempt in attempts(lambda _: peaks(1_000_000, 50)):
        with attempt:
            assert after - before < 3


@pytest.mark.slow
def test_a_million_runs_within_200_mib():
    peaks(1, 1)  # compile first, if the cache is empty
    _, after = peaks(1_000_000, 1000)
    assert after < 200


@pytest.mark.parametrize("agent", [UCB(), UCB1(), MOSS()])
def test_tables_beyond_memory_are_refused(monkeypatch, agent):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    message = r"^tables for 1,000,000,00\d steps take at least 3.7 GiB, and 1.0 GiB are free: lower"
    with pytest.raises(ConfigError, match=message):
        run(agent, num_runs=1, num_steps=10**9)


def test_curves_beyond_memory_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    for more in ({}, {"arm_shares": True, "num_steps": 10**7}):
        options = {"num_steps": 10**8, "steps_per_point": 1, **more}
        with pytest.raises(ConfigError, match=r"points take at least .* raise `steps_per_point`"):
            run(EpsilonGreedy(), num_runs=1, **options)


def test_tables_do_not_depend_on_chunks(monkeypatch):
    whole = run(MOSS(), num_runs=64, num_steps=1000)
    monkeypatch.setattr(kernel_plans, "_TABLE_CHUNK", 7)
    pieces = run(MOSS(), num_runs=64, num_steps=1000)
    np.testing.assert_array_equal(whole.mean_reward, pieces.mean_reward)
