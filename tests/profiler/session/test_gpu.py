"""GPU windows: conversion from Kineto's format and clock, and the derived numbers."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from hotloop.profiler.session import Session
from hotloop.profiler.session.gpu import (
    WORK,
    busy_intervals,
    gpu_use,
    summarize_windows,
    synchronizations,
)
from hotloop.profiler.session.gpu_host import Host
from hotloop.profiler.session.kineto import clock_offset, parse_window, read_windows
from hotloop.profiler.session.reading import read
from hotloop.profiler.session.saving import load, save
from hotloop.profiler.session.validation import check_window
from tests.profiler.gpu_windows import PID, WINDOW_NS, Machine, profiled, program
from tests.profiler.programs import record, write
from tests.profiler.sessions import process, session

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
BACK = "Memcpy DtoH (Device -> Pageable)"


def one_update(machine: Machine) -> None:
    """Launch two kernels of 10 µs 20 µs apart, copy back, and wait for the copy."""
    machine.launch(10, at="train.py:40")
    machine.launch(10, at="train.py:41")
    machine.copy(BACK, 4, 2, at="train.py:42", host_us=12)
    machine.synchronize(at="train.py:42")
    machine.span("update", 60)


def test_times_are_on_the_session_clock():
    machine = program(one_update, ms=1)
    window = parse_window(*machine.window())
    assert window.start_ns == WINDOW_NS
    assert window.error_ns == 1000
    # 15 µs of Python, a call of 5, and the kernel 2 µs later: 22 µs after the window started.
    assert abs(int(window.work["start_ns"][0]) - (WINDOW_NS + 22_000)) <= window.error_ns
    assert abs(int(window.calls["start_ns"][0]) - (WINDOW_NS + 15_000)) <= window.error_ns
    assert window.beside_ns == 900_000_000 + 100_000_000


def test_a_span_without_a_path_is_refused():
    window = parse_window(*program(one_update, ms=1).window())
    check_window(window)
    with pytest.raises(ValueError, match="a span's path is empty"):
        check_window(dataclasses.replace(window, spans={(): (1, 10)}))


def test_a_thread_is_found_by_its_low_32_bits():
    window = parse_window(*program(one_update, ms=1).window())
    assert set(window.calls["thread"].tolist()) == {PID}


def test_clock_drift_adds_to_the_error():
    event = {"cat": "user_annotation", "name": "m", "dur": 1.0}
    events = [{**event, "ts": 100.0}, {**event, "ts": 200.0}]
    header = {"marker": "m", "markers": [[50_000, 53_000], [158_000, 161_000]]}
    # The first marker allows −50,000 to −48,000, the second −42,000 to −40,000.
    assert clock_offset(header, events) == (-45_000, 3_000)


@pytest.mark.parametrize("broken", ["marker", "trace", "json", "version", "missing"])
def test_unreadable_windows_are_reported(tmp_path, broken):
    program(one_update, ms=1).write(tmp_path)
    header_path, trace = (
        next(tmp_path.glob(pattern)) for pattern in ("*.gpu.json", "*.kineto.json")
    )
    content = json.loads(header_path.read_text())
    if broken == "marker":
        content["marker"] = "another"
    elif broken == "version":
        content["version"] = 99
    elif broken == "missing":
        trace.unlink()
    elif broken == "trace":
        trace.write_text('{"traceEvents": 3}')
    header_path.write_text("{" if broken == "json" else json.dumps(content))
    program(one_update, ms=1).write(tmp_path, number=1)
    windows, problems = read_windows([tmp_path, tmp_path])
    assert len(windows) == 1, "the other window is read"
    assert len(problems) == 1
    assert str(header_path) in problems[0]


def test_invalid_and_foreign_events_are_left_out():
    header, events = program(one_update, ms=1).window()
    expected = parse_window(header, events)
    kernel = next(event for event in events if event.get("cat") == "kernel")
    odd = [
        {**kernel, "ts": None},
        {**kernel, "dur": math.nan},
        {**kernel, "ph": "i"},
        {**kernel, "cat": "gpu_user_annotation"},
        {**kernel, "cat": "cuda_sync", "name": "Stream Sync"},
        # An event of the profiler's own stop.
        {**kernel, "ts": kernel["ts"] + 1e6},
    ]
    assert np.array_equal(parse_window(header, events + odd).work, expected.work)


def test_category_names_of_older_versions():
    header, events = program(one_update, ms=1).window()
    expected = parse_window(header, events)
    old = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime"}
    renamed = [{**event, "cat": old.get(event.get("cat"), event.get("cat"))} for event in events]
    for event in renamed:
        if event["cat"] in ("Kernel", "Memcpy"):
            event["tid"] = f"stream {event['args'].pop('stream')}"
            event["args"] = {k: v for k, v in event["args"].items() if k != "device"}
    assert np.array_equal(parse_window(header, renamed).work, expected.work)


def test_overlapping_work_counts_once():
    rows = [(0, 10), (5, 12), (12, 14), (20, 30), (22, 25), (29, 45)]
    work = np.zeros(len(rows), WORK)
    work["start_ns"], work["end_ns"] = np.array(rows).T
    starts, ends = busy_intervals(work[::-1], 2, 40)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(2, 14), (20, 40)]
    # Compared with a count of the nanoseconds one by one.
    covered = {t for a, b in rows for t in range(max(a, 2), min(b, 40))}
    assert int((ends - starts).sum()) == len(covered)


def test_numbers_of_a_loop_by_hand():
    # An update has launch calls at 15–20 and 35–40 and kernels at 22–32 and 42–52. The copy is
    # called at 40–52 and runs at 54–56. The wait is at 52–59.
    use = summarize_windows([parse_window(*program(one_update, ms=59 * 20 / 1e3).window())])
    assert use.num_updates == 20
    assert use.ns == 59_000 * 20
    assert use.busy_share == pytest.approx(22 / 59, abs=0.01)
    assert use.num_launches == 40
    assert use.launches_per_update == 2
    assert use.launches_per_s == pytest.approx(2 / 59e-6, rel=0.01)
    assert use.median_kernel_ns == pytest.approx(10_000, abs=2)
    assert use.num_graphs == 0
    (copies,) = use.copies
    assert copies[:4] == ("to the host", "pageable", 20, 80)
    assert copies.device_ns == pytest.approx(40_000, abs=50)
    assert copies.host_ns == pytest.approx(240_000, abs=50)
    # The copy and the synchronization after it count as one.
    assert len(use.syncs_ns) == 20
    assert use.syncs_ns.sum() == pytest.approx(19_000 * 20, rel=0.01)
    by_why = {why: use.gaps_ns(why) / 20 for why in ("launch", "sync", "host", "device")}
    # 32–42: the second launch. 52–54: the copy is queued. 56–81: after the wait.
    assert by_why["launch"] == pytest.approx(10_000, rel=0.02)
    assert by_why["device"] == pytest.approx(2_000, rel=0.05)
    assert by_why["sync"] + by_why["host"] == pytest.approx(25_000, rel=0.02)
    assert use.busy_ns + sum(gap.ns for gap in use.gaps) == use.ns


def test_kernels_of_a_graph_have_one_launch():
    def update(machine: Machine) -> None:
        machine.replay([3.0, 4.0, 5.0], at="train.py:50")
        machine.synchronize(at="train.py:51")
        machine.span("optimizer_step", 20)

    use = summarize_windows([parse_window(*program(update, ms=5).window())])
    assert use.num_graphs == use.num_launches
    assert use.num_kernels == 3 * use.num_graphs
    assert use.launches_per_update == 1
    assert use.gaps_ns("launch") == 0


def test_lines_and_stages_of_the_host():
    def update(machine: Machine) -> None:
        machine.host(600, at="train.py:20", stage="env")
        machine.launch(300, at="train.py:40")
        machine.synchronize(at="train.py:41")

    use = summarize_windows([parse_window(*program(update).window())])
    host = Host(use)
    shares = {stage: ns / use.ns for stage, ns in host.by_stage(use.host_in_gaps).items()}
    assert shares["env"] == pytest.approx(600 / 927, abs=0.12)
    lines = {leaf.line: ns / use.ns for leaf, ns in host.by_line(use.host_in_syncs).items()}
    assert list(lines) == [41]
    assert lines[41] == pytest.approx(307 / 927, abs=0.02)
    assert host.by_line(use.host_in_syncs, without=("update",)) == {}


def test_a_wait_without_samples_has_no_line():
    machine = Machine()
    machine.launch(10, at="train.py:40")
    machine.synchronize(at="train.py:41")
    use = summarize_windows([parse_window(*machine.window())])
    assert len(use.syncs_ns) == 1
    assert use.host_in_syncs == {}


@pytest.mark.parametrize(
    ("name", "is_launch"),
    [
        ("cudaLaunchKernel", True),
        ("cudaLaunchKernelExC", True),
        ("cudaLaunchCooperativeKernel", True),
        ("cuLaunchKernelEx", True),  # as Triton launches
        ("hipModuleLaunchKernel", True),
        ("hipExtModuleLaunchKernel", True),
        ("cudaGraphLaunch", True),
        ("cudaGraphLaunch_v10000", True),
        ("cudaLaunchHostFunc", False),
        ("cudaMemcpyAsync", False),
        ("cudaFuncGetAttributes", False),
    ],
)
def test_which_calls_launch(name, is_launch):
    machine = Machine()
    machine.synchronize(at="train.py:41", name=name)
    assert summarize_windows([parse_window(*machine.window())]).num_launches == is_launch


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaStreamSynchronize", True),
        ("cudaDeviceSynchronize", True),
        ("cudaEventSynchronize", True),
        ("cuStreamSynchronize", True),
        ("hipStreamSynchronize", True),
        ("cudaMemcpy", True),
        ("cuMemcpyDtoH_v2", True),
        ("cudaMemcpyAsync", False),
        ("cudaEventQuery", False),
        ("cudaStreamWaitEvent", False),
        ("cudaStreamIsCapturing", False),
    ],
)
def test_which_calls_wait_for_the_device(name, waits):
    machine = Machine()
    machine.launch(10, at="train.py:40")
    machine.synchronize(at="train.py:41", name=name)
    assert len(synchronizations(parse_window(*machine.window()))) == waits


def test_the_gpu_is_idle_in_a_window_without_work():
    machine = Machine()
    machine.host(100_000, at="train.py:20", stage="env")
    use = summarize_windows([parse_window(*machine.window())])
    assert use.busy_share == 0
    assert math.isnan(use.median_kernel_ns)
    assert use.gaps_ns("host") == use.ns


def test_a_session_without_windows_has_no_gpu():
    assert gpu_use(session(process())) is None


def test_the_process_with_the_highest_use_is_selected():
    heavy = parse_window(*program(one_update, ms=20).window())
    header, events = program(one_update, ms=1).window()
    light = parse_window({**header, "pid": 7}, events)
    assert (use := gpu_use(Session("", {}, [process()], gpu=[light, heavy]))) is not None
    assert use.pid == PID
    assert use.num_updates == summarize_windows([heavy]).num_updates


def test_windows_are_saved_with_a_session(tmp_path):
    before = profiled(program(one_update, ms=20))
    save(before, tmp_path / "session.npz")
    after = load(tmp_path / "session.npz")
    (window,), (loaded,) = before.gpu, after.gpu
    assert np.array_equal(window.work, loaded.work)
    assert np.array_equal(window.calls, loaded.calls)
    assert np.array_equal(window.looks, loaded.looks)
    assert loaded.stacks == window.stacks
    assert loaded.spans == window.spans
    first, second = gpu_use(before), gpu_use(after)
    assert first is not None
    assert second is not None
    assert second.host_in_syncs == first.host_in_syncs
    assert second.busy_ns == first.busy_ns


def test_windows_of_a_profile_belong_to_its_processes(tmp_path):
    """Windows of other processes or from before the program started are ignored."""
    script = write(tmp_path, "import time; time.sleep(0.2)")
    _, before = record(tmp_path, str(script))
    assert before.gpu == []
    main, starts_ns = before.main, []
    for number, (pid, shift_ns) in enumerate([(main.pid, 10**6), (main.pid, -(10**10)), (1, 0)]):
        header, events = program(one_update, ms=1).window()
        shift = main.start_ns + shift_ns - WINDOW_NS
        for name in ("began_ns", "start_ns", "end_ns", "stopped_ns", "written_ns"):
            header[name] += shift
        header["markers"] = [[time_ns + shift for time_ns in pair] for pair in header["markers"]]
        header |= {"pid": pid, "trace": f"{number}.kineto.json", "looks": []}
        folder = tmp_path / "profile" / "timing"
        (folder / f"{number}.gpu.json").write_text(json.dumps(header))
        (folder / f"{number}.kineto.json").write_text(json.dumps({"traceEvents": events}))
        starts_ns.append(header["start_ns"])
    after = read(tmp_path / "profile")
    assert [window.start_ns for window in after.gpu] == starts_ns[:1]
    assert after.problems == before.problems
    assert after.gpu[0].work["start_ns"].min() >= main.start_ns
