"""The GPU in the report and on the trace's timeline."""

from __future__ import annotations

import re

from hotloop.profiler.render import gpu, html, text
from hotloop.profiler.session import ThreadTotals
from hotloop.profiler.session.gpu import gpu_use
from hotloop.profiler.session.kineto import parse_window
from tests.profiler.gpu_windows import KINETO_AHEAD_NS, PID, Machine, profiled, program
from tests.profiler.render.test_trace import phase_events, write_trace
from tests.profiler.sessions import START_NS, process, session

BACK = "Memcpy DtoH (Device -> Pageable)"


def one_update(machine: Machine) -> None:
    """Run 1,000 µs: 700 of an environment, then a kernel of 100 and the wait for it."""
    machine.host(700, at="train.py:20", stage="env")
    machine.launch(100, at="train.py:40", us=20)
    machine.copy(BACK, 4, 2, at="train.py:41", host_us=150)
    machine.host(130, at="train.py:42", stage="update")
    machine.span("update", 300)


def test_the_report_describes_gpu_activity():
    report = text.render(profiled(program(one_update, ms=100)))
    busy_line = next(line for line in report.splitlines() if line.startswith("busy"))
    assert re.search(
        r" 10\.2%  +1,000  +100 µs  +100 µs  +1,000 launches per second, 1\.0 per", busy_line
    )
    assert "GPU: a GPU, 1 window of 100 ms" in report
    assert re.search(
        r"copies to the host, pageable +0\.2% +1,000 +4\.0 kB per second, 15% of", report
    )
    assert re.search(r"the host waits for the GPU +15\.0% +1,000 +150 µs", report)
    assert re.search(r"at train\.py:41 in <module> +15\.0%", report)
    assert "stepping and resetting environments" in report
    assert "the host's time: a kernel runs after the call that launched it" in report
    assert "agree within 1.00 µs" in report
    assert "writing the windows took an additional 1.00 s" in report


def test_busy_and_idle_shares_add_up():
    use = gpu_use(profiled(program(one_update, ms=100)))
    assert use is not None
    shares = [row[1] for row in gpu.rows(use) if row[0].startswith(("busy", "idle"))]
    assert abs(sum(float(share.rstrip("%")) for share in shares) - 100) < 0.3


def test_without_a_gpu_there_is_no_section():
    example = session(process())
    assert "GPU" not in text.render(example)
    assert 'id="gpu"' not in html.render(example)


def test_missing_cuda_calls_are_reported():
    def steps(machine: Machine) -> None:
        machine.host(1000, at="train.py:20", stage="env")

    report = text.render(profiled(program(steps, ms=60)))
    assert "They contain no CUDA calls" in report
    assert "CUPTI is not permitted" not in text.render(profiled(program(one_update, ms=60)))


def test_an_unrecorded_gpu_is_reported():
    threads = [ThreadTotals(100, "python", 1, 1), ThreadTotals(101, "cuda-EvtHandlr", 1, 1)]
    example = session(process(threads=threads))
    assert "A GPU was used but not recorded: all times are the host's" in text.render(example)
    assert "<code>--gpu-window-ms 250</code>" in html.render(example)
    assert "not recorded" not in text.render(profiled(program(one_update, ms=60)))


def test_the_page_has_a_gpu_section():
    def odd(machine: Machine) -> None:
        machine.launch(30, at="train.py:40", name="<script>alert(1)</script>")

    page = html.render(profiled(program(odd, ms=60)))
    assert '<section id="gpu"' in page
    assert "idle: the next kernel is already launched" in page
    assert "<script>alert" not in page


def test_kernels_are_on_the_timeline_of_the_processes(tmp_path):
    machine = Machine()
    one_update(machine)
    example = profiled(machine)
    content = write_trace(example, tmp_path / "trace.json")
    by_name = {event["name"]: event for event in phase_events(content, "X")}
    kernel = by_name["void at::native::small<4>(int)"]
    # 700 µs of environment, 20 µs until the call returns, and 2 µs, on the session's clock.
    begins_us = (example.gpu[0].start_ns - START_NS) / 1e3 + 722
    assert abs(kernel["ts"] - begins_us) < 1
    assert abs(kernel["dur"] - 100) < 0.01
    call = by_name["cudaLaunchKernel"]
    assert call["args"]["correlation"] == kernel["args"]["correlation"]
    assert call["pid"] == PID
    assert by_name["cudaMemcpyAsync"]["cat"] == "wait"
    assert by_name[BACK]["cat"] == "transfer"
    assert by_name[BACK]["args"]["bytes"] == 4
    names = {event["args"].get("name") for event in phase_events(content, "M")}
    assert {"main", "GPU 0", "stream 7", f"CUDA calls of thread {PID}"} <= names


def test_overlapping_work_of_a_stream_has_separate_rows(tmp_path):
    machine = Machine()
    machine.replay([50.0], at="train.py:40")
    machine.host(200, at="train.py:41")
    branch = next(event for event in machine.events if event["cat"] == "kernel")
    machine.events += [{**branch, "ts": branch["ts"] + 10}, {**branch, "ts": branch["ts"] + 50}]
    content = write_trace(profiled(machine), tmp_path / "trace.json")
    rows = [event["tid"] for event in phase_events(content, "X") if event["name"] == "fused"]
    assert len(rows) == 3
    assert len(set(rows)) == 2
    names = {event["args"].get("name") for event in phase_events(content, "M")}
    assert {"stream 7", "stream 7 (2)"} <= names


def test_each_process_has_its_gpu(tmp_path):
    header, events = program(one_update, ms=5).window()
    assert KINETO_AHEAD_NS
    example = session(
        process(), process("learner", pid=7, role="helper", parent_pid=PID),
        gpu=[parse_window(header, events), parse_window({**header, "pid": 7}, events)],
    )  # fmt: skip
    content = write_trace(example, tmp_path / "trace.json")
    names = {event["args"].get("name") for event in phase_events(content, "M")}
    assert {"GPU 0 of main", "GPU 0 of learner"} <= names
