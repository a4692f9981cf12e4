"""Recording files: finished, live, killed, forked, on full disks, damaged and foreign."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

from hotloop import timing
from hotloop.timing import _control, _span, _writer
from hotloop.timing import _format as f
from hotloop.timing._writer import Recorder


@pytest.fixture
def recording_span(span, tmp_path):
    timing.start(tmp_path, component="learner")
    yield span
    timing.stop()


def test_a_finished_recording(span, tmp_path):
    with span("before"):
        path = timing.start(tmp_path / "new" / "timing", component="learner 1/2")
    assert path is not None
    assert path.name == f"learner_1_2-{os.getpid()}.hlt"
    for _ in range(10):
        with span("step"):
            pass
    with span("cut"):
        assert timing.stop() == path
    with span("after"):
        pass
    recording = timing.read(path)
    assert recording.complete
    assert not recording.killed
    assert recording.component == "learner 1/2"
    assert (recording.pid, recording.parent_pid) == (os.getpid(), os.getppid())
    assert recording.host == os.uname().nodename
    assert {p: n.count for p, n in recording.tree().walk()} == {("step",): 10, ("cut",): 0}
    assert [o.path for o in recording.open_spans] == [("cut",)]
    assert len(recording.events) == 10
    assert recording.spans[recording.events["span"][0]].path == ("step",)
    assert 0 < recording.duration_ns < 60e9
    assert abs(recording.start_ns + recording.wall_offset_ns - time.time_ns()) < 60e9
    assert timing.current().tree().find("after").count == 1
    assert timing.stop() is None


def test_a_second_start_creates_another_file(recording_span, tmp_path):
    with recording_span("first"):
        pass
    timing.start(tmp_path, component="learner")
    with recording_span("second"):
        pass
    timing.stop()
    recordings, problems = timing.read_directory(tmp_path)
    assert not problems
    assert [r.complete for r in recordings] == [True, True]
    assert {p for r in recordings for p, _ in r.tree().walk()} == {("first",), ("second",)}


def test_a_live_file_is_running(recording_span, tmp_path, recorder_name):
    with recording_span("step"):
        (recording,), _ = timing.read_directory(tmp_path)
    assert recording.state == "running"
    assert recording.recorder == recorder_name
    assert [o.path for o in recording.open_spans] == [("step",)]


WRITER = """
import os, sys
from hotloop import timing
from hotloop.timing import span
timing.start(sys.argv[1], component="child")
def report(n):
    os.write(1, b"%d\\n" % n)
"""

KILLED = (
    WRITER
    + """
with span("run"):
    for i in range(10000):
        with span("step"):
            pass
    with span("last"):
        pass
    with span("stuck", kind="wait"):
        report(1)
        import time
        time.sleep(100)
"""
)


def test_sigkill_in_a_span_keeps_the_recording(env, tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], env=env, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    (alive,), _ = timing.read_directory(tmp_path)
    assert alive.state == "running"
    child.kill()
    child.wait()
    child.stdout.close()
    (recording,), problems = timing.read_directory(tmp_path)
    assert not problems
    assert recording.killed
    assert not recording.complete
    tree = recording.tree()
    assert tree.find("run", "step").count == 10_000
    assert tree.find("run", "last").count == 1
    assert [o.path for o in recording.open_spans] == [("run",), ("run", "stuck")]
    assert tree.find("run", "stuck").kind == "wait"
    last = recording.events[-1]
    assert recording.spans[last["span"]].path == ("run", "last")
    # The last recorded time is the start of the span in which it was killed.
    assert recording.end_ns == recording.open_spans[-1].start_ns


LOOPING = (
    WRITER
    + """
n = 0
while True:
    for _ in range(100):
        with span("a"):
            with span("b"):
                pass
    n += 100
    report(n)
"""
)


def test_kills_at_any_moment_lose_nothing(env, tmp_path):
    rng = random.Random(7)
    for attempt in range(4):
        directory = tmp_path / str(attempt)
        child = subprocess.Popen(
            [sys.executable, "-c", LOOPING, directory], env=env, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        deadline = time.monotonic() + rng.random() * 0.2
        reported = 0
        while time.monotonic() < deadline:
            reported = int(child.stdout.readline())
            if rng.random() < 0.01:  # a live reader also sees all reported spans
                (recording,), _ = timing.read_directory(directory)
                assert recording.tree().find("a").count >= reported
        child.send_signal(signal.SIGKILL)
        output = child.stdout.read()
        child.wait()
        child.stdout.close()
        lines = output.split(b"\n")[:-1]
        reported = int(lines[-1]) if lines else reported
        (recording,), problems = timing.read_directory(directory)
        assert not problems
        tree = recording.tree()
        a, b = tree.find("a"), tree.find("a", "b")
        assert recording.killed
        assert reported <= a.count <= reported + 101
        assert b.count - a.count in (0, 1)
        assert b.total_ns <= a.total_ns
        assert a.max_ns < 10e9
        assert a.min_ns >= 0


FORKING = """
import os, sys
from hotloop import timing
from hotloop.timing import span
path = timing.start(sys.argv[1], component="parent")
with span("before"):
    pass
with span("around"):
    before = path.read_bytes()
    pid = os.fork()
    if pid == 0:
        with span("in child"):
            pass
        sys.exit(0 if path.read_bytes() == before else 3)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert path.read_bytes() == before
silent = os.fork()
if silent == 0:
    os._exit(0)  # no span, no file
os.waitpid(silent, 0)
print(pid)
sys.exit(status)
"""


def test_a_fork_records_to_its_own_file(run, tmp_path):
    result = run(FORKING, tmp_path)
    assert result.returncode == 0, result.stderr
    recordings, problems = timing.read_directory(tmp_path)
    assert not problems
    by_pid = {r.pid: r for r in recordings}
    child = by_pid.pop(int(result.stdout))
    (parent,) = by_pid.values()
    assert child.parent_pid == parent.pid
    assert child.complete
    assert parent.complete
    assert [p for p, _ in child.tree().walk()] == [("in child",)]
    assert [p for p, _ in parent.tree().walk()] == [("before",), ("around",)]


FORKING_BESIDE_A_THREAD = """
import os, sys, threading
from hotloop import timing
from hotloop.timing import span
path = timing.start(sys.argv[1], component="parent")
is_inside, is_over = threading.Event(), threading.Event()
def work():
    with span("inside"):
        is_inside.set()
        is_over.wait()
thread = threading.Thread(target=work)
thread.start()
is_inside.wait()
before = path.read_bytes()
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
assert path.read_bytes() == before
assert ("inside",) in timing._control.open_paths().values()
is_over.set()
thread.join()
"""


def test_a_fork_keeps_the_threads_of_its_parent(run, tmp_path):
    result = run(FORKING_BESIDE_A_THREAD, tmp_path)
    assert result.returncode == 0, result.stderr


MULTIPROCESSING = """
import multiprocessing, sys
from hotloop import timing
from hotloop.timing import span
def work():
    with span("work"):
        pass
timing.start(sys.argv[1])
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
"""


def test_a_multiprocessing_worker_closes_its_file(run, tmp_path):
    result = run(MULTIPROCESSING, tmp_path)
    assert result.returncode == 0, result.stderr
    recordings, _ = timing.read_directory(tmp_path)
    assert sorted(r.complete for r in recordings) == [True, True]


_SIGNAL = """
import faulthandler, signal, sys
from hotloop import timing
from hotloop.timing import _writer

faulthandler.dump_traceback_later(20, exit=True)
reserve = _writer._reserve

def reserve_with_signal(*args):
    signal.raise_signal(signal.SIGUSR1)
    reserve(*args)

def handle(*_):
    with timing.span("handler"):
        pass

_writer._reserve = reserve_with_signal
signal.signal(signal.SIGUSR1, handle)
timing.start(sys.argv[1])
with timing.span("main"):
    pass
assert {total.path for total in timing.totals()} == {("main",), ("handler",)}
timing.stop()
"""


def test_a_signal_handler_may_open_a_span_during_the_first_one(run, tmp_path):
    done = run(_SIGNAL, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    recordings, problems = timing.read_directory(tmp_path)
    assert not problems
    assert [recording.tree().find("main").count for recording in recordings] == [1]


def test_an_exit_without_stop_is_clean(run, tmp_path):
    result = run(WRITER + "with span('a'): sys.exit(3)", tmp_path)
    assert result.returncode == 3
    (recording,), _ = timing.read_directory(tmp_path)
    assert recording.complete
    assert recording.tree().find("a").count == 1


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_warns_once(span, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    with pytest.warns(RuntimeWarning, match="No space left") as caught:
        path = timing.start(tmp_path)
    assert path is None
    assert len(caught) == 1
    with warnings.catch_warnings(), span("a"):
        warnings.simplefilter("error")
    assert timing.current().tree().find("a").count == 1
    assert not list(tmp_path.iterdir())


def test_a_full_disk_with_warnings_as_errors(span, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert timing.start(tmp_path) is None
        with span("a"):
            pass
    assert timing.current().tree().find("a").count == 1


def test_a_descriptor_closed_by_the_program(span, tmp_path):
    timing.start(tmp_path)
    recorder = timing._control.recorder()
    number = recorder._file.descriptor()
    os.close(number)
    with open(tmp_path / "own", "wb+", buffering=0) as file:
        if file.fileno() != number:
            os.dup2(file.fileno(), number)
        with pytest.warns(RuntimeWarning, match="has closed its descriptor"), span("a"):
            pass
        timing.stop()
        os.fstat(number)  # it is still open
        assert file.read() == b""
    assert timing.current().tree().children == {}


def test_a_disk_that_fills_up_later_leaves_a_readable_file(span, tmp_path, monkeypatch):
    path = timing.start(tmp_path)
    assert path is not None
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    with pytest.warns(RuntimeWarning) as caught, span("a"):
        pass
    assert len(caught) == 1
    assert timing.current().tree().find("a").count == 1
    timing.stop()
    assert timing.read(path).tree().children == {}


def test_an_uncreatable_directory_warns(span, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="choose another directory"):
        assert timing.start(tmp_path / "file") is None
    with span("a"):
        pass
    assert timing.current().tree().find("a").count == 1


def test_systems_without_fallocate(span, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    path = timing.start(tmp_path)
    assert path is not None
    with span("a"):
        pass
    timing.stop()
    assert path.stat().st_blocks * 512 >= path.stat().st_size  # written, not a hole
    assert timing.read(path).tree().find("a").count == 1


def test_damaged_and_foreign_files_are_reported(recording_span, tmp_path):
    with recording_span("a"):
        pass
    good = timing.stop()
    assert good is not None
    content = good.read_bytes()
    segment = f.HEADER_SIZE

    def patched(offset, value):
        return content[:offset] + value + content[offset + len(value) :]

    node_1 = segment + f.SEGMENT_HEAD + f.NODE.size
    bad = {
        "a_text": b"no recording at all",
        "b_empty": b"",
        "c_newer": patched(8, (2).to_bytes(8, "little")),
        "d_header": content[:1000],
        "e_cut": content[: segment + 100_000],
        "f_cut_early": content[: segment + 100],
        "g_segment": patched(segment, b"hltsegm9"),
        "h_size": patched(segment + 8 * f.S_SIZE, bytes(8)),
        "i_parent": patched(node_1, (99).to_bytes(8, "little")),
        "j_nodes": patched(segment + 8 * f.S_NUM_NODES, (10**9).to_bytes(8, "little")),
        "k_short": content[:12],
    }
    for name, data in bad.items():
        (tmp_path / f"{name}.hlt").write_bytes(data)
    (tmp_path / "l_directory.hlt").mkdir()
    (tmp_path / "other.txt").write_text("not looked at")
    recordings, problems = timing.read_directory(tmp_path)
    assert [r.path for r in recordings] == [good]
    assert len(problems) == len(bad) + 1
    for name, problem in zip([*bad, "l_directory"], problems, strict=True):
        assert f"{name}.hlt" in str(problem)
        assert isinstance(problem, ValueError)
    assert "another format" in str(problems[0])
    assert "version 2, this hotloop reads 1: update hotloop" in str(problems[2])
    assert "ends in the middle" in str(problems[4])
    with pytest.raises(timing.RecordingError, match="a_text"):
        timing.read(tmp_path / "a_text.hlt")


def test_random_damage_never_crashes_the_reader(recording_span, tmp_path):
    for _ in range(5000):
        with recording_span("a"), recording_span("b"):
            pass
    path = timing.stop()
    assert path is not None
    content = path.read_bytes()
    rng = random.Random(3)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(20):
            damaged[rng.choice([rng.randrange(70_000), rng.randrange(len(content))])] = (
                rng.randrange(256)
            )
        damaged[f.CHECKSUM_OFFSET : f.CHECKSUM_OFFSET + 8] = bytes(8)  # as in older ones
        path.write_bytes(damaged)
        try:
            timing.render(timing.read(path).tree())
        except timing.RecordingError:
            continue


def test_an_unfinished_recording_of_another_machine_is_unknown(recording_span, tmp_path):
    with recording_span("a"):
        pass
    recorder = _control.recorder()
    assert recorder.path is not None
    content = recorder.path.read_bytes()
    host = os.uname().nodename.encode()
    at = content.index(host, 200)
    other = tmp_path / "other.hlt"
    other.write_bytes(content[:at] + b"#" * len(host) + content[at + len(host) :])
    assert timing.read(other).state == "unknown"


def test_imports_stay_light(env, recorder_name):
    script = (
        "import sys; from hotloop.timing import span; span('a').__enter__();"
        "print(sorted({'torch', 'gymnasium', 'numpy', 'rich'} & {m.split('.')[0] for m in "
        "sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ("[]" if recorder_name == "c" else "['numpy']")


def test_the_extension_uses_the_format_constants():
    recorder = pytest.importorskip("hotloop.timing._recorder")
    assert recorder.CONSTANTS == (
        f.PERIOD, f.MAX_DEPTH, f.T_HIST, f.NUM_BUCKETS, f.BUCKET_SHIFT, f.S_FOLDED, f.S_UNNAMED,
        f.EVENT_SIZE, f.OVERFLOW,
    )  # fmt: skip


def open_recorder(tmp_path):
    recorder = Recorder(tmp_path, "main", _control.backend.FLAGS)
    recorder.open()
    segment = recorder.acquire_segment()
    segment.state = _control.backend.RecorderState(segment)
    return recorder, segment


def test_a_thread_that_was_about_to_write_leaves_a_closed_file_unchanged(tmp_path):
    recorder, segment = open_recorder(tmp_path)
    path = recorder.close()
    content = path.read_bytes()
    segment.attach()
    segment.add_node(0, "late", "work")
    segment.release()
    assert path.read_bytes() == content
    assert timing.read(path).complete


def test_a_recording_that_is_closed_during_a_write_has_no_checksum(tmp_path):
    recorder, segment = open_recorder(tmp_path)

    class Nodes(list):
        def append(self, item):  # after the node was written, and before their number is
            recorder.close()
            super().append(item)

    segment.parents = Nodes(segment.parents)
    segment.add_node(0, "step", "work")
    recording = timing.read(recorder.path)
    assert recording.complete
    assert [path for path, _ in recording.tree().walk()] == [("step",)]


@pytest.mark.parametrize("continues", [False, True])
def test_ctrl_c_at_the_first_span_leaves_a_readable_file(span, tmp_path, monkeypatch, continues):
    class Interrupted(_writer.Segment):
        def __init__(self, *args):
            super().__init__(*args)
            raise KeyboardInterrupt

    path = timing.start(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(_writer, "Segment", Interrupted)
        with pytest.raises(KeyboardInterrupt), span("interrupted"):
            pass
    if continues:
        with span("later"):
            pass
    assert timing.stop() == path
    nodes = [path for path, _ in timing.read(path).tree().walk()]
    assert nodes == [("later",)] * continues


def test_ctrl_c_in_start_takes_effect_at_its_end(span, tmp_path, monkeypatch):
    reserve = _writer._reserve

    def reserve_with_signal(*args):
        signal.raise_signal(signal.SIGINT)
        reserve(*args)

    with monkeypatch.context() as context:
        context.setattr(_writer, "_reserve", reserve_with_signal)
        with pytest.raises(KeyboardInterrupt):
            timing.start(tmp_path)
    with span("a"):
        pass
    path = timing.stop()
    assert path is not None
    assert timing.read(path).tree().find("a").count == 1


def test_an_exception_in_start_leaves_no_file(span, tmp_path, monkeypatch):
    reserve = _writer._reserve

    def interrupted(*args):
        reserve(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(_writer, "_reserve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            timing.start(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_node_that_ctrl_c_cut_short_is_added_again(tmp_path):
    recorder, segment = open_recorder(tmp_path)

    class Kinds(list):
        def append(self, item):
            raise KeyboardInterrupt

    kinds = segment.kinds
    segment.kinds = Kinds(kinds)
    with pytest.raises(KeyboardInterrupt):
        segment.add_node(0, "first", "work")
    segment.kinds = kinds
    assert segment.path(segment.add_node(0, "second", "work")) == ("second",)
    recording = timing.read(recorder.close())
    assert [path for path, _ in recording.tree().walk()] == [("second",)]


def test_a_thread_may_end_while_another_one_closes_the_recording(tmp_path):
    recorder, segment = open_recorder(tmp_path)
    segment.state = None  # `close` has discarded it, after `release` checked for the end
    segment.release()
    assert timing.read(recorder.close()).complete


def test_a_thread_that_attaches_during_a_switch_keeps_its_segment(span, tmp_path, monkeypatch):
    has_attached, may_end = threading.Event(), threading.Event()

    def work():
        with span("a"):
            has_attached.set()
            may_end.wait(200)

    thread = threading.Thread(target=work)
    close = Recorder.close

    def close_later(recorder):
        thread.start()
        has_attached.wait(200)
        return close(recorder)

    timing.start(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(Recorder, "close", close_later)
        timing.stop()
    threads = [segment.thread for segment in _control.recorder().segments]
    may_end.set()
    thread.join()
    assert thread.native_id in threads


def test_a_recording_may_start_while_a_thread_attaches(span, tmp_path, recorder_name):
    hooks = () if recorder_name == "python" else (_span.decorate, _span.check_span)
    directories = [tmp_path]

    def attach():
        state = _control._attach()
        if directories:  # as if another thread did this
            timing.start(directories.pop())
        return state

    _control.backend.reset()
    _control.backend.install(attach, *hooks)
    try:
        with span("a"):
            pass
    finally:
        _control.backend.install(_control._attach, *hooks)
    with span("b", kind="wait"):
        pass
    assert {total.path for total in timing.totals()} == {("a",), ("b",)}


def test_both_recorders_start_and_stop_while_threads_record(span, tmp_path):

    running = True

    def work():
        while running:
            with span("a"), span("b"):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(12):
            timing.start(tmp_path)
            time.sleep(0.005)
            timing.stop()
    running = False
    for thread in threads:
        thread.join()
    recordings, problems = timing.read_directory(tmp_path)
    assert not problems
    assert len(recordings) == 12
    for recording in recordings:
        tree = recording.tree()
        for _, node in tree.walk():
            assert node.max_ns < 60e9
