"""Windows on the GPU, taken of the host alone, and their peace with captures of CUDA graphs."""

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


def busy(seconds: float) -> int:
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        with span("update"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        count += 1
    return count


def test_a_window_of_the_host(tmp_path, capfd):
    windows = GpuWindows(tmp_path, "main", length_s=0.1, at_s=(0.05,), device=None)
    before = threading.enumerate()
    windows.start()
    assert threading.enumerate() == before, "a program that waits for its threads waits for none"
    count = busy(0.1)
    while not list(tmp_path.glob(f"*{SUFFIX}")):
        count += busy(0.05)
    windows.stop()
    windows.stop()
    assert windows.problems == []
    assert "External init callback" not in capfd.readouterr().err
    (one,), problems = read_windows([tmp_path])
    assert problems == []
    assert one.duration_ns > 0.09e9
    assert one.error_ns < 1e6
    assert not len(one.work)
    ended, total_ns = one.spans[("update",)]
    assert 0 < ended < count
    assert 0 < total_ns < 1.2 * one.duration_ns
    functions = {
        frame.function.rpartition(".")[2] for stack in one.stacks for frame in stack.frames
    }
    assert "busy" in functions
    assert len(one.looks) >= 2
    assert ((one.looks["at_ns"] >= one.start_ns) & (one.looks["at_ns"] <= one.end_ns)).all()


def test_kineto_is_asked_to_keep_silent_and_the_program_has_the_last_word(tmp_path, monkeypatch):
    name, level = gpu_window.LOG_LEVEL
    for said, expected in ((None, level), ("2", "2")):
        monkeypatch.delenv(name, raising=False)
        if said is not None:
            monkeypatch.setenv(name, said)
        windows = GpuWindows(tmp_path, "main", at_s=(), device=None)
        windows.start()
        windows.stop()
        assert os.environ[name] == expected
    monkeypatch.delenv(name)


def test_one_takes_windows_at_a_time(tmp_path):
    first, second = (
        GpuWindows(tmp_path, name, length_s=0.02, at_s=(0.0,), device=None)
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
    until = time.monotonic() + 20
    while not list(directory.glob(pattern)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_program_that_ends_within_a_window_keeps_it(tmp_path):
    windows = GpuWindows(tmp_path, "main", length_s=60.0, at_s=(0.0,), device=None)
    windows.start()
    busy(0.1)
    began = time.monotonic()
    windows.stop()
    assert time.monotonic() - began < 10
    (one,), _ = read_windows([tmp_path])
    assert one.duration_ns < 10e9


def test_what_the_profiler_raises_is_kept_and_told(tmp_path, monkeypatch):
    windows = GpuWindows(tmp_path, "main", length_s=0.05, at_s=(0.0, 0.01), device=None)
    profile = gpu_window._profile

    def fails(torch, device):
        if threading.current_thread() is threading.main_thread():
            return profile(torch, device)
        raise RuntimeError("CUPTI is not allowed here")

    monkeypatch.setattr(gpu_window, "_profile", fails)
    windows.start()
    busy(0.1)
    windows.stop()
    assert windows.problems == ["RuntimeError: CUPTI is not allowed here"]
    found, problems = read_windows([tmp_path])
    assert found == []
    assert len(problems) == 1
    assert "CUPTI is not allowed here" in problems[0]


def test_a_program_that_profiles_itself_is_left_alone(tmp_path):
    with torch.autograd.profiler.profile(use_kineto=True) as own:
        windows = GpuWindows(tmp_path, "main", length_s=0.02, at_s=(0.0, 0.01), device=None)
        windows._take_all(torch)
        torch.ones(3).sum()
    assert list(tmp_path.iterdir()) == []
    assert any(event.name == "aten::sum" for event in own.function_events)


class Graph:
    """A graph of a torch with CUDA."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.did: list[str] = []

    def capture_begin(self, pool: object = None) -> None:
        if self.fails:
            raise RuntimeError("a capture is underway")
        self.did.append(f"begin {pool}")

    def capture_end(self) -> None:
        self.did.append("end")


@pytest.fixture
def graphs(monkeypatch):
    class Own(Graph):
        capture_begin = Graph.capture_begin
        capture_end = Graph.capture_end

    monkeypatch.setattr(gpu_window, "_captures", gpu_window._Captures())
    gpu_window._keep_from_captures(SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=Own)))
    return Own


def test_a_capture_waits_for_the_end_of_a_window(graphs):
    captures, one = gpu_window._captures, graphs()
    assert captures.open_window(threading.Event())
    capturing = threading.Thread(target=one.capture_begin, args=("pool",))
    capturing.start()
    time.sleep(0.05)
    assert one.did == []
    captures.close_window()
    capturing.join(5)
    assert one.did == ["begin pool"]


def test_a_window_waits_for_the_end_of_a_capture(graphs):
    one, stopping = graphs(), threading.Event()
    one.capture_begin()
    opened: list[bool] = []
    waiting = threading.Thread(
        target=lambda: opened.append(gpu_window._captures.open_window(stopping))
    )
    waiting.start()
    time.sleep(0.05)
    assert opened == []
    one.capture_end()
    waiting.join(5)
    assert opened == [True]


def test_a_capture_that_fails_is_none(graphs):
    one = graphs(fails=True)
    with pytest.raises(RuntimeError, match="underway"):
        one.capture_begin()
    assert gpu_window._captures.open_window(threading.Event())


def test_a_program_that_ends_while_it_captures_has_no_window(graphs):
    stopping = threading.Event()
    graphs().capture_begin()
    stopping.set()
    assert not gpu_window._captures.open_window(stopping)


def test_cupti_stays_where_graphs_are_replayed_by_an_old_cuda(monkeypatch):
    for version, expected in (("11.8", "0"), ("12.4", "0"), ("12.6", None), ("13.0", None)):
        monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)
        monkeypatch.delenv("DISABLE_CUPTI_LAZY_REINIT", raising=False)
        autograd = SimpleNamespace(
            profiler=torch.autograd.profiler, _supported_activities=lambda: set()
        )
        fake = SimpleNamespace(version=SimpleNamespace(cuda=version), autograd=autograd)
        gpu_window._prepare(fake, None)  # pyright: ignore[reportArgumentType]
        assert os.environ.get("TEARDOWN_CUPTI") == expected, version


def test_a_torch_without_cupti_is_told(tmp_path):
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
    from hotloop.profiler.diagnose.gpu import looked_at
    from hotloop.profiler.render import text
    from hotloop.profiler.session.reading import read

    script, out = tmp_path / "train.py", tmp_path / "profile"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "hotloop", "profile", "--out", str(out), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert len(list((out / "timing").glob(f"*{SUFFIX}"))) >= 1
    session = read(out)
    assert session.problems == []
    host = looked_at(Evidence(session))
    assert host is not None
    use = host.use
    assert 0 < use.busy < 1
    assert use.launches_per_s > 1000
    assert any(copy[:2] == ("to the device", "pageable") for copy in use.copies)
    assert len(use.syncs_ns) > 10
    assert max(one.error_ns for one in use.windows) < 1e6
    # Calls come before the kernels that they launch, on the clock of our spans.
    for one in use.windows:
        calls = one.calls
        starts = dict(zip(calls["correlation"].tolist(), calls["start_ns"].tolist(), strict=True))
        work = zip(one.work["correlation"].tolist(), one.work["start_ns"].tolist(), strict=True)
        late = [start - starts[number] for number, start in work if number in starts]
        assert late
        assert min(late) > -50_000
    assert "train.py:11" in text.render(session)
    assert json.loads((out / "profile.json").read_text())["exit_code"] == 0
    assert Path(out / "report.html").is_file()
