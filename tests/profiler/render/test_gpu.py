"""The GPU in the report and on the trace's timeline."""

from __future__ import annotations

import re

from hotloop.profiler.render import gpu, html, text
from hotloop.profiler.session import ThreadTimes
from hotloop.profiler.session.gpu import gpu_use
from hotloop.profiler.session.kineto import window
from tests.profiler.gpu_windows import KINETO_AHEAD_NS, PID, Machine, profiled, program
from tests.profiler.render.test_trace import of, written
from tests.profiler.sessions import START_NS, process, session

BACK = "Memcpy DtoH (Device -> Pageable)"


def one_update(machine: Machine) -> None:
    """An iteration of 1,000 µs: 700 of an environment, then a kernel of 100 and the wait for it."""
    machine.host(700, at="train.py:20", stage="env")
    machine.launch(100, at="train.py:40", us=20)
    machine.copy(BACK, 4, 2, at="train.py:41", host_us=150)
    machine.host(130, at="train.py:42", stage="update")
    machine.span("update", 300)


def test_the_report_says_what_the_gpu_did_and_what_its_times_are():
    told = text.render(profiled(program(one_update, ms=100)))
    line = next(one for one in told.splitlines() if one.startswith("busy"))
    assert re.search(r" 10\.2%  +1,000  +100 µs  +100 µs  +1,000 launches a second, 1\.0 an", line)
    assert "GPU: a GPU, 1 window of 100 ms" in told
    assert re.search(
        r"copies to the host, pageable +0\.2% +1,000 +4\.0 kB a second; the host", told
    )
    assert re.search(r"the host waits for the GPU +15\.0% +1,000 +150 µs", told)
    assert re.search(r"at train\.py:41 in <module> +15\.0%", told)
    assert "stepping and resetting environments" in told
    assert "the host's time: a kernel runs after the call that launched it" in told
    assert "agree within 1.00 µs" in told
    assert "writing the windows took 1.00 s" in told


def test_shares_of_busy_and_idle_are_all_of_the_time():
    use = gpu_use(profiled(program(one_update, ms=100)))
    assert use is not None
    shares = [row[1] for row in gpu.rows(use) if row[0].startswith(("busy", "idle"))]
    assert abs(sum(float(share.rstrip("%")) for share in shares) - 100) < 0.3


def test_no_gpu_no_section():
    one = session(process())
    assert "GPU" not in text.render(one)
    assert 'id="gpu"' not in html.render(one)


def test_where_nothing_was_seen_of_cuda_the_report_says_so():
    def steps(machine: Machine) -> None:
        machine.host(1000, at="train.py:20", stage="env")

    told = text.render(profiled(program(steps, ms=60)))
    assert "no call of CUDA's was seen in any" in told
    assert "CUPTI is not allowed" not in text.render(profiled(program(one_update, ms=60)))


def test_a_gpu_that_was_not_looked_at_is_told_of():
    threads = [ThreadTimes(100, "python", 1, 1), ThreadTimes(101, "cuda-EvtHandlr", 1, 1)]
    one = session(process(threads=threads))
    assert "A GPU was used and not looked at: all times are the host's" in text.render(one)
    assert "<code>--gpu-window-ms 250</code>" in html.render(one)
    assert "not looked at" not in text.render(profiled(program(one_update, ms=60)))


def test_a_section_of_the_page():
    def odd(machine: Machine) -> None:
        machine.launch(30, at="train.py:40", name="<script>alert(1)</script>")

    page = html.render(profiled(program(odd, ms=60)))
    assert '<section id="gpu"' in page
    assert "idle, what is next was launched" in page
    assert "<script>alert" not in page


def test_kernels_are_on_the_timeline_of_the_processes(tmp_path):
    machine = Machine()
    one_update(machine)
    one = profiled(machine)
    content = written(one, tmp_path / "trace.json")
    by_name = {event["name"]: event for event in of(content, "X")}
    kernel = by_name["void at::native::small<4>(int)"]
    # 700 of the environment, 15 and 5 until the call is over, and 2: on the session's clock.
    begins_us = (one.gpu[0].start_ns - START_NS) / 1e3 + 722
    assert abs(kernel["ts"] - begins_us) < 1
    assert abs(kernel["dur"] - 100) < 0.01
    call = by_name["cudaLaunchKernel"]
    assert call["args"]["correlation"] == kernel["args"]["correlation"]
    assert call["pid"] == PID
    assert by_name["cudaMemcpyAsync"]["cat"] == "wait"
    assert by_name[BACK]["cat"] == "transfer"
    assert by_name[BACK]["args"]["bytes"] == 4
    names = {event["args"].get("name") for event in of(content, "M")}
    assert {"main", "GPU 0", "stream 7", f"CUDA calls of thread {PID}"} <= names


def test_what_runs_side_by_side_on_a_stream_stands_in_rows_of_its_own(tmp_path):
    machine = Machine()
    machine.replay([50.0], at="train.py:40")
    machine.host(200, at="train.py:41")
    branch = next(event for event in machine.events if event["cat"] == "kernel")
    machine.events += [{**branch, "ts": branch["ts"] + 10}, {**branch, "ts": branch["ts"] + 50}]
    content = written(profiled(machine), tmp_path / "trace.json")
    rows = [event["tid"] for event in of(content, "X") if event["name"] == "fused"]
    assert len(rows) == 3
    assert len(set(rows)) == 2
    names = {event["args"].get("name") for event in of(content, "M")}
    assert {"stream 7", "stream 7 (2)"} <= names


def test_two_processes_have_a_gpu_each(tmp_path):
    about, events = program(one_update, ms=5).window()
    assert KINETO_AHEAD_NS
    both = session(
        process(), process("learner", pid=7, role="helper", parent_pid=PID),
        gpu=[window(about, events), window({**about, "pid": 7}, events)],
    )  # fmt: skip
    content = written(both, tmp_path / "trace.json")
    names = {event["args"].get("name") for event in of(content, "M")}
    assert {"GPU 0 of main", "GPU 0 of learner"} <= names
