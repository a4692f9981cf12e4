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
    Gaussian,
    RandomWalk,
    compare,
    plan,
    run,
)
from hotloop.errors import ConfigError
from hotloop.system import memory

MEASURE = """
import re
from pathlib import Path
from hotloop.bandits import EpsilonGreedy, Gaussian, run

def peak():
    # Not getrusage's, which a process has from the one that started it.
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

options = {{"num_steps": {num_steps}, "threads": 2}}
run(EpsilonGreedy(), Gaussian(), num_runs=4096, **options)
before = peak()
run(EpsilonGreedy(), Gaussian(), num_runs={num_runs}, **options)
print(before, peak())
"""


def peaks(num_runs, num_steps):
    """MiB at most before and after so many runs, in a process of its own."""
    code = MEASURE.format(num_runs=num_runs, num_steps=num_steps)
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250
    )
    before, after = map(float, completed.stdout.split())
    return before, after


def test_sums_are_as_large_for_many_runs():
    sizes = set()
    for num_runs in (1, 300, 20_000):
        result = run(
            EpsilonGreedy(), Gaussian(), num_runs=num_runs, num_steps=50, arm_shares=True
        )  # fmt: skip
        sizes.add(len(result.sums.to_bytes()))
        assert len(result.final_regrets) == min(num_runs, 8192)
    assert len(sizes) == 1


def test_points_are_at_most_so_many():
    for num_steps in (2000, 2001, 12_345):
        result = run(EpsilonGreedy(), Gaussian(num_arms=2), num_runs=3, num_steps=num_steps)
        assert len(result.step) == num_steps if num_steps == 2000 else len(result.step) <= 1000
        assert result.step[-1] == num_steps
        assert (np.diff(result.step) > 0).all()


def test_comparisons_keep_no_run():
    agents = [EpsilonGreedy(epsilon=epsilon) for epsilon in (0.0, 0.1)]
    comparison = compare(agents, RandomWalk(), num_runs=20_000, num_steps=20)
    assert comparison.products.shape == (2, 2, 5)
    assert all(len(result.final_regrets) == 8192 for result in comparison.results)


def test_peak_does_not_grow_with_runs():
    """A million runs: a single float32 of each would be 4 MiB, one of each step 200 MiB."""
    before, after = peaks(1_000_000, 50)
    assert after - before < 3


@pytest.mark.slow
def test_a_million_runs_within_200_mib():
    peaks(1, 1)  # what compiling takes, when nothing is kept from before, is another matter
    _, after = peaks(1_000_000, 1000)
    assert after < 200


@pytest.mark.parametrize("agent", [UCB(), UCB1(), MOSS()])
def test_tables_that_do_not_fit_are_refused(monkeypatch, agent):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    message = r"^tables for 1,000,000,00\d steps take at least 3.7 GiB, and 1.0 GiB are free: lower"
    with pytest.raises(ConfigError, match=message):
        run(agent, num_runs=1, num_steps=10**9)


def test_curves_that_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    for more in ({}, {"arm_shares": True, "num_steps": 10**7}):
        options = {"num_steps": 10**8, "steps_per_point": 1, **more}
        with pytest.raises(ConfigError, match=r"points take at least .* raise `steps_per_point`"):
            run(EpsilonGreedy(), num_runs=1, **options)


def test_tables_are_the_same_in_pieces(monkeypatch):
    whole = run(MOSS(), num_runs=64, num_steps=1000)
    monkeypatch.setattr(plan, "_PIECE", 7)
    pieces = run(MOSS(), num_runs=64, num_steps=1000)
    np.testing.assert_array_equal(whole.mean_reward, pieces.mean_reward)
