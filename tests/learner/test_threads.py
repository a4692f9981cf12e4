"""Threads of torch, given back, and taken as cores are free."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hotloop.algorithms import sac
from hotloop.learner import threads, torch_threads
from hotloop.learner.threads import FreeThreads, graph_threads
from hotloop.runs import RunDirectory


def test_threads_are_given_back():
    before = torch.get_num_threads()

    def fail():
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.get_num_threads() == before


class Machine:
    """Cores, how many are free, and for how long threads have waited for one."""

    def __init__(self, monkeypatch):
        self.now_s, self.queued_s, self.free = 100.0, 0.0, 4
        monkeypatch.setattr(threads.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(threads.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(threads, "_queued_ns", lambda: round(self.queued_s * 1e9))
        monkeypatch.setattr(threads, "free_cores", lambda: self.free)

    def passes(self, seconds, queued_s=0.0):
        self.now_s += seconds
        self.queued_s += queued_s


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.mark.parametrize(("free", "count"), [(4, 3), (2, 2), (1, 1), (0, 1), (None, 3)])
def test_threads_at_first_are_those_that_are_free(machine, free, count):
    machine.free, before = free, torch.get_num_threads()
    with FreeThreads(3).taken() as taken:
        assert taken.count == torch.get_num_threads() == count
        assert graph_threads() == 3  # what is compiled is made for all of them
    assert graph_threads() == torch.get_num_threads() == before


def test_threads_are_given_back_while_the_cores_are_busy(machine):
    with FreeThreads(3).taken() as taken:
        machine.passes(2.0, queued_s=0.1)
        assert not taken.look()
        assert taken.count == 3
        machine.passes(0.5, queued_s=0.5)  # too soon to tell
        assert not taken.look()
        machine.passes(0.6)
        assert "with one thread" in taken.look()
        assert taken.count == torch.get_num_threads() == 1
        machine.free = 1
        for _ in range(20):
            machine.passes(1.0)
            assert not taken.look()
        assert taken.count == 1
        machine.free = 2
        for _ in range(10):
            machine.passes(1.0)
            taken.look()
        assert taken.count == torch.get_num_threads() == 2
        machine.passes(1.0, queued_s=1.0)
        assert not taken.look()  # told once
        assert taken.count == 1
        machine.passes(1.0)
        taken.look()  # what was seen before the cores were busy no longer counts
        assert taken.count == 1


def test_compiled_updates_get_what_there_is(machine):
    """They ask for as many threads as they were made for, which OpenMP may cut while it is told."""
    machine.free = 1
    taking = FreeThreads(3)
    assert taking._openmp
    with taking.taken():
        assert all(library.omp_get_dynamic() for library in taking._openmp)
    assert not any(library.omp_get_dynamic() for library in taking._openmp)


def test_the_number_is_written_down(tmp_path):
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
    assert {line["torch_threads"] for line in lines} <= set(range(1, 5))


def test_one_thread_is_never_looked_after(machine):
    machine.free = 0
    with FreeThreads(1).taken() as taken:
        machine.passes(9.0, queued_s=9.0)
        assert not taken.look()
        assert taken.count == 1


def test_any_number_of_threads_learns_the_same(tmp_path):
    """In a process of its own: MKL reads at its first product whether it rounds strictly."""
    script = """
import sys
import numpy as np
from hotloop.algorithms import sac, td3

for algorithm in (sac, td3):
    learned = []
    for count in (1, 2, 3):
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
    for other in learned[1:]:
        for name, value in learned[0].items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)
"""
    environment = dict(os.environ)
    if "GenuineIntel" in Path("/proc/cpuinfo").read_text():
        environment["MKL_CBWR"] = "AUTO,STRICT"
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
