"""Torch threads: limits, and adjustment to free cores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hotloop.algorithms import sac
from hotloop.learner import threads, torch_threads
from hotloop.learner.threads import ThreadLimiter, graph_threads
from hotloop.runs import RunDirectory


def test_threads_are_restored():
    before = torch.get_num_threads()

    def fail():
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.get_num_threads() == before


class FakeMachine:
    """A machine with free cores, and the time that threads have waited for one."""

    def __init__(self, monkeypatch):
        self.now_s, self.queued_s, self.free = 100.0, 0.0, 4
        monkeypatch.setattr(threads.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(threads.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(threads, "_queued_ns", lambda: round(self.queued_s * 1e9))
        monkeypatch.setattr(threads, "free_cores", lambda: self.free)

    def advance(self, seconds, queued_s=0.0):
        self.now_s += seconds
        self.queued_s += queued_s


@pytest.fixture
def machine(monkeypatch):
    return FakeMachine(monkeypatch)


@pytest.mark.parametrize(("free", "count"), [(4, 3), (2, 2), (1, 1), (0, 1), (None, 3)])
def test_initial_threads_are_the_free_cores(machine, free, count):
    machine.free, before = free, torch.get_num_threads()
    with ThreadLimiter(3).limiting() as limiter:
        assert limiter.count == torch.get_num_threads() == count
        assert graph_threads() == 3  # compiled code is built for all of them
    assert graph_threads() == torch.get_num_threads() == before


def test_threads_are_released_while_the_cores_are_busy(machine):
    with ThreadLimiter(3).limiting() as limiter:
        machine.advance(2.0, queued_s=0.1)
        assert not limiter.adjust()
        assert limiter.count == 3
        machine.advance(0.5, queued_s=0.5)  # too early to judge
        assert not limiter.adjust()
        machine.advance(0.6)
        assert "with one thread" in limiter.adjust()
        assert limiter.count == torch.get_num_threads() == 1
        machine.free = 1
        for _ in range(20):
            machine.advance(1.0)
            assert not limiter.adjust()
        assert limiter.count == 1
        machine.free = 2
        for _ in range(10):
            machine.advance(1.0)
            limiter.adjust()
        assert limiter.count == torch.get_num_threads() == 2
        machine.advance(1.0, queued_s=1.0)
        assert not limiter.adjust()  # reported once
        assert limiter.count == 1
        machine.advance(1.0)
        limiter.adjust()  # measurements from before the busy time no longer count
        assert limiter.count == 1


def test_openmp_may_cut_the_threads_of_compiled_updates(machine):
    """They request the threads they were built for, and OpenMP may grant fewer."""
    machine.free = 1
    limiter = ThreadLimiter(3)
    assert limiter._openmp_libraries
    with limiter.limiting():
        assert all(library.omp_get_dynamic() for library in limiter._openmp_libraries)
    assert not any(library.omp_get_dynamic() for library in limiter._openmp_libraries)


def test_metrics_contain_the_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr("hotloop.training.process.available_threads", lambda: 2)
    config = sac.Config(
        total_timesteps=320,
        learning_starts=256,
        buffer_size=1_000,
        hidden_sizes=(8,),
        execution="eager",
        run_dir=tmp_path / "run",
        report_interval=100,
    )
    result = sac.train(config)
    lines = RunDirectory.open(result.run_dir).metrics()
    assert {line["torch_threads"] for line in lines} <= {1, 2}


def test_single_thread_is_never_adjusted(machine):
    machine.free = 0
    with ThreadLimiter(1).limiting() as limiter:
        machine.advance(9.0, queued_s=9.0)
        assert not limiter.adjust()
        assert limiter.count == 1


def test_results_do_not_depend_on_the_number_of_threads(tmp_path):
    """A separate process is needed: MKL reads at its first product whether it rounds strictly."""
    script = """
import sys
import numpy as np
from hotloop.algorithms import sac, td3

for algorithm in (sac, td3):
    learned = []
    for count in (1, 3):
        config = algorithm.Config(
            env_id="Pendulum-v1",
            total_timesteps=320,
            learning_starts=304,
            buffer_size=1_000,
            execution="eager",
            torch_threads=count,
            run_dir=f"{sys.argv[1]}/{algorithm.__name__}-{count}",
        )
        result = algorithm.train(config, progress=False)
        learned.append(result.policy.snapshot.params)
    for name, value in learned[0].items():
        np.testing.assert_array_equal(value, learned[1][name], err_msg=name)
"""
    environment = dict(os.environ)
    if "GenuineIntel" in Path("/proc/cpuinfo").read_text():
        environment["MKL_CBWR"] = "AUTO,STRICT"
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
