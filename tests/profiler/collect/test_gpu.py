"""GPU windows start when torch starts to use a GPU, and only then."""

from __future__ import annotations

import pytest

from tests.profiler.programs import record, write

TORCH = """
queued = []

def _lazy_call(function):
    queued.append(function)

def init():
    for function in queued:
        function()
"""
CUDA = """
import sys
import torch.cuda
import hotloop.profiler.collect.processes as processes

class Windows:
    def __init__(self, directory, component, *, length_s):
        print("windows of", component, length_s, directory.name, flush=True)

    def start(self):
        if len(sys.argv) > 1:
            raise RuntimeError("no CUPTI")
        print("start", flush=True)

    def stop(self):
        print("stop", flush=True)

processes.GpuWindows = Windows
print("no GPU yet", flush=True)
torch.cuda.init()
torch.cuda.init()
print("the end", flush=True)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "torch" / "cuda").mkdir(parents=True)
    write(tmp_path / "torch", "def get_num_threads(): return 1", "__init__.py")
    write(tmp_path / "torch" / "cuda", TORCH, "__init__.py")
    return str(write(tmp_path, CUDA))


@pytest.mark.parametrize("hooks", [True, False])
def test_windows_start_once_with_cuda(tmp_path, script, hooks):
    result, _ = record(tmp_path, script, hooks=hooks, gpu_window_s=0.125)
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "no GPU yet", "windows of main 0.125 timing", "start", "the end", "stop",
    ]  # fmt: skip


def test_a_length_of_zero_records_no_windows(tmp_path, script):
    result, _ = record(tmp_path, script, gpu_window_s=0.0)
    assert result.stdout.splitlines() == ["no GPU yet", "the end"]


def test_errors_are_reported_and_the_program_continues(tmp_path, script):
    result, session = record(tmp_path, script, "fails", gpu_window_s=0.125)
    assert result.stdout.splitlines()[-2:] == ["the end", "stop"]
    assert any("no CUPTI" in problem for problem in session.problems)
