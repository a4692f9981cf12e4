"""GPU windows, recorded on the host alone, and how they exclude captures of CUDA graphs."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from hotloop.errors import ProfileError  # noqa: E402
from hotloop.profiler.session.kineto import read_windows  # noqa: E402
from hotloop.timing import gpu_window, span  # noqa: E402
from hotloop.timing.gpu_window import SUFFIX, GpuWindows  # noqa: E402
from tests.attempts import attempts  # noqa: E402


def busy(seconds: float) -> int:
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        with span("update"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        count += 1
    return count


def test_a_host_window_is_recorded(tmp_path, capfd):
    def measure(number):
        folder = tmp_path / str(number)
        folder.mkdir()
        windows = GpuWindows(folder, "main", length_s=0.1, start_times_s=(0.05,), device=None)
        before = threading.enumerate()
        windows.start()
        assert threading.enumerate() == before, "a program may join all of its threads"
        count = busy(0.1)
        while not list(folder.glob(f"*{SUFFIX}")):
            count += busy(0.05)
        windows.stop()
        windows.stop()
        assert windows.problems == []
        (window,), problems = read_windows([folder])
        assert problems == []
        return window, count

    for (window, count), attempt in attempts(measure):
        assert "External init callback" not in capfd.readouterr().err
        assert window.duration_ns > 0.09e9
        assert not len(window.work)
        looks = window.looks["at_ns"]
        assert ((looks >= window.start_ns) & (looks <= window.end_ns)).all()
        with attempt:
            assert window.error_ns < 1e6
            num_spans, total_ns = window.spans[("update",)]
            assert 0 < num_spans < count
            assert 0 < total_ns < 1.2 * window.duration_ns
            frames = [frame for stack in window.stacks for frame in stack.frames]
            assert "busy" in {frame.function.rpartition(".")[2] for frame in frames}
            assert len(looks) >= 2


def test_kineto_logs_are_silenced_unless_the_program_sets_a_level(tmp_path, monkeypatch):
    name, level = gpu_window.LOG_LEVEL
    for value, expected in ((None, level), ("2", "2")):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
        windows = GpuWindows(tmp_path, "main", start_times_s=(), device=None)
        windows.start()
        windows.stop()
        assert os.environ[name] == expected
    monkeypatch.delenv(name)


def test_only_one_instance_takes_windows(tmp_path):
    first, second = (
        GpuWindows(tmp_path, name, length_s=0.02, start_times_s=(0.0,), device=None)
        for name in ("main", "learner")
    )
    first.start()
    second.start()
    await_file(tmp_path, f"main-*{SUFFIX}")
    second.stop()
    first.stop()
    assert not list(tmp_path.glob("learner-*"))
    second.start()
    await_file(tmp_path, f"learner-*{SUFFIX}")
    second.stop()


def await_file(directory: Path, pattern: str) -> None:
    until = time.monotonic() + 120
    while not list(directory.glob(pattern)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_program_that_ends_in_a_window_keeps_it(tmp_path, monkeypatch):
    windows = GpuWindows(tmp_path, "main", length_s=60.0, start_times_s=(0.0,), device=None)
    is_sampling = threading.Event()
    sample = gpu_window._ThreadSamples.sample
    monkeypatch.setattr(
        gpu_window._ThreadSamples, "sample", lambda samples: is_sampling.set() or sample(samples)
    )
    windows.start()
    while not is_sampling.is_set():
        busy(0.01)
    start = time.monotonic()
    windows.stop()
    elapsed_s = time.monotonic() - start
    (window,), _ = read_windows([tmp_path])
    # Not its whole length.
    assert max(elapsed_s, window.duration_ns / 1e9) < 50


def test_profiler_errors_are_recorded(tmp_path, monkeypatch):
    windows = GpuWindows(tmp_path, "main", length_s=0.05, start_times_s=(0.0, 0.01), device=None)
    profile = gpu_window._make_profiler

    def fails(torch, device):
        if threading.current_thread() is threading.main_thread():
            return profile(torch, device)
        raise RuntimeError("CUPTI is not allowed here")

    monkeypatch.setattr(gpu_window, "_make_profiler", fails)
    windows.start()
    await_file(tmp_path, f"*{SUFFIX}")
    busy(0.1)  # no second window
    windows.stop()
    assert windows.problems == ["RuntimeError: CUPTI is not allowed here"]
    recorded, problems = read_windows([tmp_path])
    assert recorded == []
    assert len(problems) == 1
    assert "CUPTI is not allowed here" in problems[0]


def test_a_self_profiling_program_gets_no_windows(tmp_path):
    with torch.autograd.profiler.profile(use_kineto=True) as profiler:
        windows = GpuWindows(
            tmp_path, "main", length_s=0.02, start_times_s=(0.0, 0.01), device=None
        )
        windows._record_windows(torch)
        torch.ones(3).sum()
    assert list(tmp_path.iterdir()) == []
    assert any(event.name == "aten::sum" for event in profiler.function_events)


class Graph:
    """A stand-in for `torch.cuda.CUDAGraph`."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.calls: list[str] = []

    def capture_begin(self, pool: object = None) -> None:
        if self.fails:
            raise RuntimeError("a capture is underway")
        self.calls.append(f"begin {pool}")

    def capture_end(self) -> None:
        self.calls.append("end")


@pytest.fixture
def graph_class(monkeypatch):
    class CapturableGraph(Graph):
        capture_begin = Graph.capture_begin
        capture_end = Graph.capture_end

    monkeypatch.setattr(gpu_window, "_capture_lock", gpu_window._CaptureLock())
    gpu_window._delay_captures(SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=CapturableGraph)))
    return CapturableGraph


def test_a_capture_waits_for_the_end_of_a_window(graph_class):
    captures, graph = gpu_window._capture_lock, graph_class()
    assert captures.open_window(threading.Event())
    capturing = threading.Thread(target=graph.capture_begin, args=("pool",))
    capturing.start()
    time.sleep(0.05)
    assert graph.calls == []
    captures.close_window()
    capturing.join(60)
    assert graph.calls == ["begin pool"]


def test_a_window_waits_for_the_end_of_a_capture(graph_class):
    graph, stopping = graph_class(), threading.Event()
    graph.capture_begin()
    opened: list[bool] = []
    waiting = threading.Thread(
        target=lambda: opened.append(gpu_window._capture_lock.open_window(stopping))
    )
    waiting.start()
    time.sleep(0.05)
    assert opened == []
    graph.capture_end()
    waiting.join(60)
    assert opened == [True]


def test_a_failed_capture_blocks_no_window(graph_class):
    graph = graph_class(fails=True)
    with pytest.raises(RuntimeError, match="underway"):
        graph.capture_begin()
    assert gpu_window._capture_lock.open_window(threading.Event())


def test_stopping_during_a_capture_opens_no_window(graph_class):
    stopping = threading.Event()
    graph_class().capture_begin()
    stopping.set()
    assert not gpu_window._capture_lock.open_window(stopping)


def test_cupti_stays_loaded_for_old_cuda_versions(monkeypatch):
    for version, expected in (("11.8", "0"), ("12.4", "0"), ("12.6", None), ("13.0", None)):
        monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
        monkeypatch.delenv("DISABLE_CUPTI_LAZY_REINIT", raising=False)
        autograd = SimpleNamespace(
            profiler=torch.autograd.profiler, _supported_activities=lambda: set()
        )
        fake = SimpleNamespace(version=SimpleNamespace(cuda=version), autograd=autograd)
        gpu_window._initialize_kineto(fake, None)  # pyright: ignore[reportArgumentType]
        assert os.environ.get("TEARDOWN_CUPTI") == expected, version


def test_torch_without_cupti_raises(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ProfileError, match="built without CUPTI"):
        GpuWindows(tmp_path, "main").start()


SCRIPT = """
import time
import torch

model = torch.nn.Linear(64, 64).cuda()
until = time.monotonic() + 5
while time.monotonic() < until:
    loss = model(torch.rand(32, 64).cuda()).square().mean()
    loss.backward()
    loss.item()
"""


@pytest.mark.gpu
def test_a_real_script_on_a_gpu(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    import subprocess

    from hotloop.profiler.diagnose.evidence import Evidence
    from hotloop.profiler.diagnose.gpu import observed_host
    from hotloop.profiler.render import text
    from hotloop.profiler.session.reading import read

    script, out = tmp_path / "train.py", tmp_path / "profile"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "hotloop", "profile", "--out", str(out), str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert len(list((out / "timing").glob(f"*{SUFFIX}"))) >= 1
    session = read(out)
    assert session.problems == []
    host = observed_host(Evidence(session))
    assert host is not None
    use = host.use
    assert 0 < use.busy_share < 1
    assert use.launches_per_s > 1000
    assert any(copy[:2] == ("to the device", "pageable") for copy in use.copies)
    assert len(use.syncs_ns) > 10
    assert max(window.error_ns for window in use.windows) < 1e6
    # Calls come before the kernels that they launch, on the clock of the spans.
    for window in use.windows:
        calls = window.calls
        starts = dict(zip(calls["correlation"].tolist(), calls["start_ns"].tolist(), strict=True))
        work = zip(
            window.work["correlation"].tolist(), window.work["start_ns"].tolist(), strict=True
        )
        late = [start - starts[number] for number, start in work if number in starts]
        assert late
        assert min(late) > -50_000
    assert "train.py:11" in text.render(session)
    assert json.loads((out / "profile.json").read_text())["exit_code"] == 0
    assert Path(out / "report.html").is_file()
