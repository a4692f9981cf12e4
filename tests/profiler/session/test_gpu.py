"""Windows on a GPU: read from Kineto's format onto our clock, and what their numbers are."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from hotloop.profiler.session import Session
from hotloop.profiler.session.gpu import WORK, busy_times, gpu_use, synchronisations, use_of
from hotloop.profiler.session.gpu_host import Host
from hotloop.profiler.session.kineto import offset, read_windows, window
from hotloop.profiler.session.reading import read
from hotloop.profiler.session.saving import load, save
from tests.profiler.gpu_windows import PID, WINDOW_NS, Machine, profiled, program
from tests.profiler.programs import record, write
from tests.profiler.sessions import process, session

PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
BACK = "Memcpy DtoH (Device -> Pageable)"


def one_update(machine: Machine) -> None:
    """Two kernels of 10 µs launched 20 µs apart, a copy back, and the wait for it."""
    machine.launch(10, at="train.py:40")
    machine.launch(10, at="train.py:41")
    machine.copy(BACK, 4, 2, at="train.py:42", host_us=12)
    machine.synchronise(at="train.py:42")
    machine.span("update", 60)


def test_times_are_on_our_clock_within_the_markers_error():
    machine = program(one_update, ms=1)
    one = window(*machine.window())
    assert one.start_ns == WINDOW_NS
    assert one.error_ns == 1000
    # 15 µs of Python, the call of 5, and the kernel 2 µs later: 22 µs after the window began.
    assert abs(int(one.work["start_ns"][0]) - (WINDOW_NS + 22_000)) <= one.error_ns
    assert abs(int(one.calls["start_ns"][0]) - (WINDOW_NS + 15_000)) <= one.error_ns
    assert one.beside_ns == 900_000_000 + 100_000_000


def test_a_thread_is_found_by_the_32_bits_that_kineto_keeps_of_it():
    one = window(*program(one_update, ms=1).window())
    assert set(one.calls["thread"].tolist()) == {PID}


def test_clocks_that_drift_apart_have_half_of_it_as_their_error():
    event = {"cat": "user_annotation", "name": "m", "dur": 1.0}
    events = [{**event, "ts": 100.0}, {**event, "ts": 200.0}]
    about = {"marker": "m", "markers": [[50_000, 53_000], [158_000, 161_000]]}
    # The first allows −50,000 to −48,000, the second −42,000 to −40,000.
    assert offset(about, events) == (-45_000, 3_000)


@pytest.mark.parametrize("broken", ["marker", "trace", "json", "version", "missing"])
def test_what_can_not_be_read_is_told(tmp_path, broken):
    program(one_update, ms=1).write(tmp_path)
    about, trace = (next(tmp_path.glob(one)) for one in ("*.gpu.json", "*.kineto.json"))
    content = json.loads(about.read_text())
    if broken == "marker":
        content["marker"] = "another"
    elif broken == "version":
        content["version"] = 99
    elif broken == "missing":
        trace.unlink()
    elif broken == "trace":
        trace.write_text('{"traceEvents": 3}')
    about.write_text("{" if broken == "json" else json.dumps(content))
    program(one_update, ms=1).write(tmp_path, number=1)
    found, problems = read_windows([tmp_path, tmp_path])
    assert len(found) == 1, "the others are read"
    assert len(problems) == 1
    assert str(about) in problems[0]


def test_events_without_times_and_of_other_categories_are_left_out():
    about, events = program(one_update, ms=1).window()
    expected = window(about, events)
    kernel = next(one for one in events if one.get("cat") == "kernel")
    odd = [
        {**kernel, "ts": None},
        {**kernel, "dur": math.nan},
        {**kernel, "ph": "i"},
        {**kernel, "cat": "gpu_user_annotation"},
        {**kernel, "cat": "cuda_sync", "name": "Stream Sync"},
        # Of the profiler's own end.
        {**kernel, "ts": kernel["ts"] + 1e6},
    ]
    assert np.array_equal(window(about, events + odd).work, expected.work)


def test_names_of_categories_of_older_versions():
    about, events = program(one_update, ms=1).window()
    expected = window(about, events)
    old = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime"}
    renamed = [{**one, "cat": old.get(one.get("cat"), one.get("cat"))} for one in events]
    for one in renamed:
        if one["cat"] in ("Kernel", "Memcpy"):
            one["tid"] = f"stream {one['args'].pop('stream')}"
            one["args"] = {k: v for k, v in one["args"].items() if k != "device"}
    assert np.array_equal(window(about, renamed).work, expected.work)


def test_work_of_several_streams_counts_once():
    rows = [(0, 10), (5, 12), (12, 14), (20, 30), (22, 25), (29, 45)]
    work = np.zeros(len(rows), WORK)
    work["start_ns"], work["end_ns"] = np.array(rows).T
    starts, ends = busy_times(work[::-1], 2, 40)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(2, 14), (20, 40)]
    # Compared with a count of the nanoseconds one by one.
    covered = {t for a, b in rows for t in range(max(a, 2), min(b, 40))}
    assert int((ends - starts).sum()) == len(covered)


def test_numbers_of_a_loop_by_hand():
    # An update: launches at 15 and 35, ends of calls at 20 and 40; kernels 22–32 and 42–52; the
    # copy is called at 40–52 and runs 54–56; the wait is 52–59.
    found = use_of([window(*program(one_update, ms=59 * 20 / 1e3).window())])
    assert found.num_updates == 20
    assert found.ns == 59_000 * 20
    assert found.busy == pytest.approx(22 / 59, abs=0.01)
    assert found.num_launches == 40
    assert found.launches_per_update == 2
    assert found.launches_per_s == pytest.approx(2 / 59e-6, rel=0.01)
    assert found.median_kernel_ns == pytest.approx(10_000, abs=2)
    assert found.num_graphs == 0
    (copies,) = found.copies
    assert copies[:4] == ("to the host", "pageable", 20, 80)
    assert copies.device_ns == pytest.approx(40_000, abs=50)
    assert copies.host_ns == pytest.approx(240_000, abs=50)
    # The copy and the synchronisation behind it are one.
    assert len(found.syncs_ns) == 20
    assert found.syncs_ns.sum() == pytest.approx(19_000 * 20, rel=0.01)
    by_why = {why: found.gaps_ns(why) / 20 for why in ("launch", "sync", "host", "device")}
    # 32–42 the second launch; 52–54 the copy had been called; 56–81 after the wait.
    assert by_why["launch"] == pytest.approx(10_000, rel=0.02)
    assert by_why["device"] == pytest.approx(2_000, rel=0.05)
    assert by_why["sync"] + by_why["host"] == pytest.approx(25_000, rel=0.02)
    assert found.busy_ns + sum(gap.ns for gap in found.gaps) == found.ns


def test_kernels_of_a_graph_have_one_launch():
    def update(machine: Machine) -> None:
        machine.replay([3.0, 4.0, 5.0], at="train.py:50")
        machine.synchronise(at="train.py:51")
        machine.span("optimizer_step", 20)

    found = use_of([window(*program(update, ms=5).window())])
    assert found.num_graphs == found.num_launches
    assert found.num_kernels == 3 * found.num_graphs
    assert found.launches_per_update == 1
    assert found.gaps_ns("launch") == 0


def test_lines_and_stages_of_what_the_host_did():
    def update(machine: Machine) -> None:
        machine.host(600, at="train.py:20", stage="env")
        machine.launch(300, at="train.py:40")
        machine.synchronise(at="train.py:41")

    found = use_of([window(*program(update).window())])
    host = Host(found)
    shares = {stage: ns / found.ns for stage, ns in host.by_stage(found.in_gaps).items()}
    assert shares["env"] == pytest.approx(600 / 927, abs=0.12)
    lines = {leaf.line: ns / found.ns for leaf, ns in host.by_line(found.in_syncs).items()}
    assert list(lines) == [41]
    assert lines[41] == pytest.approx(307 / 927, abs=0.02)
    assert host.by_line(found.in_syncs, without=("update",)) == {}


def test_a_wait_without_a_look_has_no_line():
    machine = Machine()
    machine.launch(10, at="train.py:40")
    machine.synchronise(at="train.py:41")
    found = use_of([window(*machine.window())])
    assert len(found.syncs_ns) == 1
    assert found.in_syncs == {}


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
    machine.synchronise(at="train.py:41", name=name)
    assert len(synchronisations(window(*machine.window()))) == waits


def test_the_gpu_is_idle_in_a_window_without_work():
    machine = Machine()
    machine.host(100_000, at="train.py:20", stage="env")
    found = use_of([window(*machine.window())])
    assert found.busy == 0
    assert math.isnan(found.median_kernel_ns)
    assert found.gaps_ns("host") == found.ns


def test_a_session_without_windows_has_no_gpu():
    assert gpu_use(session(process())) is None


def test_the_process_that_uses_it_most_is_told():
    most = window(*program(one_update, ms=20).window())
    about, events = program(one_update, ms=1).window()
    less = window({**about, "pid": 7}, events)
    assert (found := gpu_use(Session("", {}, [process()], gpu=[less, most]))) is not None
    assert found.pid == PID
    assert found.num_updates == use_of([most]).num_updates


def test_windows_are_kept_in_the_one_file_of_a_session(tmp_path):
    before = profiled(program(one_update, ms=20))
    save(before, tmp_path / "session.npz")
    after = load(tmp_path / "session.npz")
    (one,), (other,) = before.gpu, after.gpu
    assert np.array_equal(one.work, other.work)
    assert np.array_equal(one.calls, other.calls)
    assert np.array_equal(one.looks, other.looks)
    assert other.stacks == one.stacks
    assert other.spans == one.spans
    first, second = gpu_use(before), gpu_use(after)
    assert first is not None
    assert second is not None
    assert second.in_syncs == first.in_syncs
    assert second.busy_ns == first.busy_ns


def test_windows_of_a_profile_belong_to_its_processes(tmp_path):
    """Those of another process, or of before it began, are none of this program's."""
    script = write(tmp_path, "import time; time.sleep(0.2)")
    _, before = record(tmp_path, str(script))
    assert before.gpu == []
    main, kept = before.main, []
    for number, (pid, shift_ns) in enumerate([(main.pid, 10**6), (main.pid, -(10**10)), (1, 0)]):
        about, events = program(one_update, ms=1).window()
        moved = main.start_ns + shift_ns - WINDOW_NS
        for name in ("began_ns", "start_ns", "end_ns", "stopped_ns", "written_ns"):
            about[name] += moved
        about["markers"] = [[one + moved for one in pair] for pair in about["markers"]]
        about |= {"pid": pid, "trace": f"{number}.kineto.json", "looks": []}
        folder = tmp_path / "profile" / "timing"
        (folder / f"{number}.gpu.json").write_text(json.dumps(about))
        (folder / f"{number}.kineto.json").write_text(json.dumps({"traceEvents": events}))
        kept.append(about["start_ns"])
    after = read(tmp_path / "profile")
    assert [one.start_ns for one in after.gpu] == kept[:1]
    assert after.problems == before.problems
    assert after.gpu[0].work["start_ns"].min() >= main.start_ns
