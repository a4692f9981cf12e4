"""Real threads, recorded by the sampler of their process."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

import hotloop
from hotloop.base.children import python_command
from hotloop.base.processes import CoreTimes
from hotloop.profiler.collect.stacks import StackIndex, _ticker
from hotloop.profiler.collect.tally import Tally
from hotloop.profiler.session import Frame, ProfiledProcess, Sample
from hotloop.profiler.session.reading import read
from tests.attempts import attempts
from tests.profiler.programs import record, recordings, run, write

needs_ticker = pytest.mark.skipif(_ticker is None, reason="the C extension is not built")

# One program with a span for each of its phases. Phases whose samples are counted run for a fixed
# time on a core, so that a loaded machine yields equally many samples.
PHASES = """
import json, threading, time, zlib
import numpy
from hotloop.timing import span

report = {"ids": {}, "parts": {}, "operators": {}}

def spin_for(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100))

def nap():
    report["ids"]["nap"] = threading.get_native_id()
    with span("nap"):
        time.sleep(1.2)

def work_beside():
    report["ids"]["beside"] = threading.get_native_id()
    spin_for(1.2)

# Python code, short calls, a long call that holds the GIL, and calls that release it.
def spin():
    x = 0
    for i in range(40_000):
        x += i * i

def nested(depth=60):
    return nested(depth - 1) if depth else None

def calls():
    for _ in range(500):
        nested()

def hold_gil():
    sum(range(400_000))

data = bytes(range(256)) * 100

def release_gil():
    for _ in range(20):
        zlib.crc32(data)
    zlib.compress(data * 4, 1)

numbers = list(range(100_000))

def nothing():
    pass

def multiply():
    x = numbers * 16
    del x
    nothing()

lock = threading.Lock()

class Buffer:
    def repeated(self):
        return numbers * 8  # in Buffer

def add(name, began):
    report["operators"][name] = report["operators"].get(name, 0) + time.monotonic() - began

def hold():
    while not is_over:
        with lock:  # in another thread
            time.sleep(0.003)
        time.sleep(0.001)

def operators(buffer):
    x = None; began = time.monotonic()
    x = -1 in numbers
    add("x = -1 in numbers", began)
    x = None; began = time.monotonic()
    x = numbers[10:90_000] * 4
    add("x = numbers[10:90_000] * 4", began)
    x = None; began = time.monotonic()
    x = buffer.repeated()
    add("return numbers * 8  # in Buffer", began)
    x = None; began = time.monotonic()
    with lock:
        add("with lock:", began)

sleeper = threading.Thread(target=nap)
sleeper.start()
report["work_cpu_s"] = -time.thread_time()
with span("work"):
    spin_for(1.2)
report["work_cpu_s"] += time.thread_time()
sleeper.join()
other = threading.Thread(target=work_beside)
other.start()
with span("join"):
    other.join()
with span("sleep"):
    for _ in range(2):
        time.sleep(0.9)
with span("parts"):
    end = time.thread_time() + 2.2
    while time.thread_time() < end:
        for f in (spin, calls, hold_gil, release_gil):
            began = time.monotonic()
            f()
            report["parts"][f.__name__] = (
                report["parts"].get(f.__name__, 0) + time.monotonic() - began
            )
with span("begin"):
    # No clock of the thread here: on a loaded machine, the kernel takes the core in that call.
    for _ in range(250):
        multiply()
is_over = False
holder = threading.Thread(target=hold)
holder.start()
with span("operators"):
    buffer, end = Buffer(), time.thread_time() + 1.6
    while time.thread_time() < end:
        operators(buffer)
is_over = True
holder.join()
print(json.dumps(report))
"""


class Phases(NamedTuple):
    """The profile of `PHASES`.

    Attributes:
        script: file of the program.
        process: only process of the profile.
        report: measurements of the program itself.
    """

    script: Path
    process: ProfiledProcess
    report: dict[str, Any]

    def samples(self, phase: str, thread: int | None = None) -> list[Sample]:
        """Return the samples of a thread (None: the main one) in a phase."""
        number = self.process.pid if thread is None else thread
        samples = self.process.samples
        return [sample for sample in samples if (sample.thread, sample.path) == (number, (phase,))]

    def leaf(self, sample: Sample) -> Frame:
        """Return the innermost frame of a sample."""
        return self.process.stacks[sample.stack].frames[-1]

    def line(self, text: str) -> int:
        """Return the number of the only line with the text."""
        lines = self.script.read_text().splitlines()
        (number,) = (i for i, line in enumerate(lines, 1) if line.strip() == text)
        return number


@pytest.fixture(scope="module")
def phase_recordings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Phases]:
    """Return a function that profiles the program with phases, once per number."""

    @functools.cache
    def measure(number: int) -> Phases:
        folder = tmp_path_factory.mktemp("phases")
        script = write(folder, PHASES)
        result, session = record(folder, str(script), interval_s=0.005)
        assert result.stderr == ""
        (process,) = session.processes
        return Phases(script, process, json.loads(result.stdout))

    return measure


def total(samples: list[Sample], field: str = "elapsed_ns") -> int:
    return sum(getattr(sample, field) for sample in samples)


def share(samples: list[Sample], field: str) -> float:
    """Return the fraction of the samples' time that was on a core or queued."""
    return total(samples, field) / total(samples)


def shares(times: dict[Any, float]) -> dict[Any, float]:
    """Return the times as fractions of their sum."""
    return {name: seconds / sum(times.values()) for name, seconds in times.items()}


def is_close(elapsed_ns: float, expected_ns: float) -> bool:
    """Return whether the sampled time is nearly complete.

    On a loaded machine, the sampler runs late. It misses the start and the end of a thread, and a
    thread runs longer than its own clock allows.
    """
    return 0.6 < elapsed_ns / expected_ns < 1.6


def test_spinning_and_sleeping_threads(phase_recordings) -> None:
    for phases, attempt in attempts(phase_recordings):
        process = phases.process
        spinning = phases.samples("work")
        sleeping = phases.samples("nap", phases.report["ids"]["nap"])
        # The stack starts at the script's first frame, without frames of the profiler.
        stacks = [process.stacks[sample.stack] for sample in spinning]
        spun = next(stack for stack in stacks if stack.frames[-1].function == "spin_for")
        assert [frame.function for frame in spun.frames] == ["<module>", "spin_for"]
        assert spun.frames[0].file == str(phases.script)
        lines = phases.script.read_text().splitlines()
        assert lines[spun.lines[0] - 2].strip() == 'with span("work"):'
        # Data from the kernel.
        assert {thread.number for thread in process.threads} >= {process.pid}
        last = process.periods[-1]
        assert last.spans["work",][0] == 1
        assert sum(last.by_stack.values()) == sum(last.by_path.values())
        assert last.resident_bytes > 1_000_000
        assert process.cpu_ns > 0.2e9
        assert process.own_ns > 0
        with attempt:
            # Other programs may use the cores. The thread never blocks, except for the GIL.
            measured_ns = phases.report["work_cpu_s"] * 1e9
            assert 0.5 < total(spinning, "on_core_ns") / measured_ns < 2
            assert share(spinning, "on_core_ns") + share(spinning, "queued_ns") > 0.7
            assert share(sleeping, "on_core_ns") < 0.05
            assert share(sleeping, "queued_ns") < 0.05
            # All of the time is accounted for.
            assert total(spinning) == pytest.approx(process.tree.find("work").total_ns, rel=0.1)
            assert process.own_ns < 0.2 * process.duration_ns


def test_a_waiting_main_thread_is_sampled(phase_recordings) -> None:
    for phases, attempt in attempts(phase_recordings):
        waiting, number = phases.samples("join"), phases.report["ids"]["beside"]
        beside = [sample for sample in phases.process.samples if sample.thread == number]
        with attempt:
            assert is_close(total(waiting), phases.process.tree.find("join").total_ns)
            assert share(waiting, "on_core_ns") < 0.1
            assert is_close(total(beside), 1.2e9)
            leaves = {phases.leaf(sample).function for sample in beside if sample.count > 2}
            assert leaves == {"spin_for"}


@needs_ticker
def test_sleeping_threads_cost_little(phase_recordings) -> None:
    """The sampler reads a sleeping thread once and still counts all of its time."""
    for phases, attempt in attempts(phase_recordings):
        asleep = phases.samples("sleep")
        with attempt:
            assert is_close(total(asleep), 1.8e9)
            assert 100 < sum(sample.count for sample in asleep) < 600
            assert total(asleep, "on_core_ns") < 0.05e9
            # The samples are spread over all periods.
            assert all(sum(period.by_stack.values()) > 10 for period in phases.process.periods[:-1])
            # About 1 % on an idle machine at this interval, and more on a loaded one.
            assert phases.process.own_ns < 0.05 * phases.process.duration_ns


@needs_ticker
def test_time_is_attributed_to_the_function_that_took_it(phase_recordings) -> None:
    """Compare samples of Python code and C calls, with and without the GIL, with the clock."""
    for phases, attempt in attempts(phase_recordings):
        spent = phases.report["parts"]
        times = dict.fromkeys(spent, 0)
        for sample in phases.samples("parts"):
            names = {frame.function for frame in phases.process.stacks[sample.stack].frames}
            for name in names & set(spent):
                times[name] += sample.elapsed_ns
        with attempt:
            assert shares(times) == pytest.approx(shares(spent), abs=0.07), (times, spent)


@needs_ticker
def test_a_new_call_has_no_time(phase_recordings) -> None:
    """A C call without a later check for requests, here an operator, ends before the next call."""
    for phases, attempt in attempts(phase_recordings):
        counts: Counter[str] = Counter()
        for sample in phases.samples("begin"):
            counts[phases.leaf(sample).function] += sample.count
        with attempt:
            assert counts["multiply"] > 0.9 * counts.total()
            assert counts["nothing"] <= 2


@pytest.mark.skipif(
    _ticker is None or sys.version_info >= (3, 13), reason="frames are read only on request"
)
def test_operators_are_sampled_at_their_lines(phase_recordings) -> None:
    """Operators do not check for requests, so that a thread would answer some lines later."""
    for phases, attempt in attempts(phase_recordings):
        spent = {phases.line(text): seconds for text, seconds in phases.report["operators"].items()}
        times = dict.fromkeys(spent, 0)
        for sample in phases.samples("operators"):
            line = phases.process.stacks[sample.stack].lines[-1]
            if line in times:
                times[line] += sample.elapsed_ns
        with attempt:
            assert shares(times) == pytest.approx(shares(spent), abs=0.12), (times, spent)
            assert sum(times.values()) > 0.75 * sum(spent.values()) * 1e9


def test_a_period_is_written_about_once_a_second(phase_recordings) -> None:
    """The first period takes long because the sampler imports its modules."""
    for phases, attempt in attempts(phase_recordings):
        ends = [period.end_ns for period in phases.process.periods]
        assert len(ends) >= 4
        with attempt:
            assert median(b - a for a, b in itertools.pairwise(ends)) < 2.5e9


def test_successive_threads_are_distinguished(tmp_path) -> None:
    """Python reuses the `ident` of a thread for the next thread."""
    script = write(
        tmp_path,
        """
        import json, threading, time

        lives = {}

        def spin():
            began = time.monotonic()
            while time.thread_time() < 0.06:
                pass
            lives[threading.get_native_id()] = time.monotonic() - began

        for _ in range(12):
            thread = threading.Thread(target=spin)
            thread.start()
            thread.join()
        print(json.dumps(lives))
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script), interval_s=0.005):
        lives = {int(number): life_s for number, life_s in json.loads(result.stdout).items()}
        (process,) = session.processes
        threads = {sample.thread for sample in process.samples} - {process.pid}
        assert threads - {0} <= set(lives)  # 0: a thread that is just starting
        with attempt:
            assert len(threads) >= 9
            for thread in threads - {0}:
                samples = [sample for sample in process.samples if sample.thread == thread]
                assert total(samples) < 2e9 * lives[thread] + 0.1e9


def test_a_fork_has_its_own_samples(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import os, sys, time
        import numpy
        from hotloop.timing import span

        def spin(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass

        with span("before"):
            spin(0.7)
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                with span("in child"):
                    spin(0.8)
                sys.exit(0)
            children.append(pid)
        quick = [os.fork() for _ in range(1)]
        if quick[0] == 0:
            os.execv("/bin/true", ["true"])
        with span("after"):
            for pid in children + quick:
                os.waitpid(pid, 0)
        print(*children)
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script)):
        assert result.stderr == ""
        assert session.problems == []
        pids = [int(pid) for pid in result.stdout.split()]
        by_pid = {process.pid: process for process in session.processes}
        # The process that called exec at once has left no files.
        assert set(by_pid) == {session.main.pid, *pids}
        children = [by_pid[pid] for pid in pids]
        for child in children:
            assert {path for path, _ in child.tree.walk()} == {("in child",)}
            assert {sample.thread for sample in child.samples} <= {child.pid}
            assert child.parent_pid == session.main.pid
        ends = [period.end_ns for period in session.main.periods]
        assert ends == sorted(set(ends))
        paths = {sample.path for sample in session.main.samples}
        assert ("in child",) not in paths
        with attempt:
            assert {("before",), ("after",)} <= paths
            for child in children:
                inside = [sample for sample in child.samples if sample.path == ("in child",)]
                assert is_close(total(inside), child.tree.find("in child").total_ns)


def test_many_forks_do_not_stop_the_sampler(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import os, time
        end = time.monotonic() + 0.8
        n = 0
        while n < 30 or time.monotonic() < end:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            n += 1
        print(n)
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script)):
        assert int(result.stdout) >= 30
        assert len(session.processes) == 1
        with attempt:
            # Each fork interrupts the sampler, which restarts late on a loaded machine.
            assert total(session.main.samples) > 0.3e9
            assert total(session.main.samples, "count") > 8


@pytest.mark.parametrize("pure", ["", "1"])
def test_a_program_can_join_all_threads(tmp_path, pure) -> None:
    script = write(
        tmp_path,
        """
        import threading, time
        time.sleep(0.3)
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()
        while threading.active_count() > 1:
            time.sleep(0.01)
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script), HOTLOOP_PURE_TIMING=pure):
        assert (result.returncode, result.stderr) == (0, "")
        with attempt:
            assert total(session.main.samples, "count") > 5


def test_threads_that_fork_at_the_same_time(tmp_path) -> None:
    """There is still exactly one sampler afterwards, and nothing is printed."""
    script = write(
        tmp_path,
        """
        import contextlib, os, threading, time

        def fork():
            for _ in range(20):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)

        threads = [threading.Thread(target=fork) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        names, end = [], time.monotonic() + 60
        # A new sampler has its name only once it has run.
        while "hotloop-sampler" not in names and time.monotonic() < end:
            time.sleep(0.05)
            names = []
            for task in os.listdir("/proc/self/task"):
                # A thread may have ended in the meantime.
                with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
                    names.append(file.read().strip())
        print(sorted(name for name in names if name.startswith("hotloop")))
        end = time.monotonic() + 1
        while time.monotonic() < end:
            sum(range(1000))
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script)):
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout.count("hotloop-sampler") == 1
        assert result.stdout.count("hotloop-ticks") <= 1
        with attempt:
            assert total(session.main.samples, "count") > 15


def test_a_program_that_closes_all_descriptors(tmp_path) -> None:
    """Daemons close all descriptors. Files that reuse the numbers must stay unchanged."""
    script = write(
        tmp_path,
        """
        import os, sys, time
        from hotloop.timing import span

        def work(name, seconds):
            with span(name):
                time.sleep(seconds)

        work("before", 1.5)
        os.closerange(3, 256)
        files = [open(f"own-{number}", "wb+", buffering=0) for number in range(64)]
        work("after", 1.5)
        for file in files:
            file.write(b"x")
            file.seek(0)
            assert file.read() == b"x"
        print("done")
        """,
    )
    result, session = record(tmp_path, str(script))
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert result.stderr.count("has closed its descriptor") == 1
    assert {path for path, _ in session.main.tree.walk()} == {("before",), ("after",)}
    assert session.main.tree.find("before").count == 1


def test_the_files_of_a_daemon_stay_open(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import os, sys, time
        if os.fork():
            os.wait()
            sys.exit()
        time.sleep(0.05)
        os.closerange(3, 256)
        files = [open(f"own-{number}", "w") for number in range(64)]
        time.sleep(0.3)
        if not os.fork():
            print(all(os.fstat(file.fileno()) for file in files), flush=True)
            os._exit(0)
        os.wait()
        for file in files:
            file.write("at the end")  # which is after the functions of `atexit`
        """,
    )
    result, _ = record(tmp_path, str(script))
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr
    assert {(tmp_path / f"own-{number}").read_text() for number in range(64)} == {"at the end"}


def test_replaced_clocks_and_thread_functions(tmp_path) -> None:
    """Tests stop the clocks of `time`, and gevent makes greenlets of threads."""
    script = write(
        tmp_path,
        """
        import _thread, os, threading, time

        now = time.monotonic
        time.monotonic, time.monotonic_ns = lambda: 1.0, lambda: 1

        def start_greenlet(*_):
            print("greenlet", flush=True)

        _thread.start_new_thread = threading._start_new_thread = start_greenlet
        _thread.allocate_lock = None
        child = os.fork()
        until = now() + 1.0
        while now() < until:
            time.sleep(0.01)
        if child:
            os.wait()
            print(time.process_time() < 0.6)
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script)):
        assert result.stderr == ""
        assert "greenlet" not in result.stdout
        assert len(session.processes) == 2
        with attempt:
            assert result.stdout == "True\n"
            for process in session.processes:
                assert 0.8e9 < process.duration_ns < 5e9
                assert total(process.samples) > 0.5e9


@pytest.mark.skipif(not hasattr(_ticker, "now_ns"), reason="the C extension is old")
def test_the_main_thread_is_sampled_beside_a_thousand_others(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import threading, time
        threading.stack_size(65536)
        end = threading.Event()
        for _ in range(1100):
            threading.Thread(target=end.wait).start()
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            sum(range(100))
        end.set()
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script)):
        assert result.stderr == ""
        with attempt:
            assert total([x for x in session.main.samples if x.thread == session.main.pid]) > 0.3e9


def test_generated_code_is_one_place() -> None:
    index = StackIndex()
    codes = [compile("f(0)", "<string>", "eval") for _ in range(20_000)]
    alive = weakref.ref(codes[0])
    assert {index._stack_number([code], lambda _: 1) for code in codes} == {0}
    assert index.pop_new() == {"places": [["<module>", "<string>", 1]], "stacks": [[[0], [1]]],
                               "paths": []}  # fmt: skip
    del codes
    assert alive() is None


def test_a_stopped_process_is_not_on_a_core() -> None:
    """After Ctrl-Z and `fg`, the thread runs, but it has not run in the time between."""
    tally = Tally()
    tally.begin(1, 0, CoreTimes(0, 0))
    tally.add(1, 0, 0, 10_000_000, CoreTimes(9_000_000, 1_000_000), "")
    tally.add(1, 0, 0, 5_010_000_000, CoreTimes(12_000_000, 1_000_000), "")
    ((_, _, _, samples, on_core, queued, elapsed),) = tally.pop()
    assert (samples, on_core, queued, elapsed) == (2, 12_000_000, 1_000_000, 5_010_000_000)


def test_a_full_disk_warns_once(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import os, time
        from hotloop.base.owned_file import file_identity
        from hotloop.profiler.collect import processes

        # The file that is open, and later files.
        full = os.open("/dev/full", os.O_WRONLY)
        file = processes._capture._sampler._file
        print(processes._capture._sampler._num_lines)
        os.dup2(full, file.descriptor())
        file._identity = file_identity(full)
        opened = os.open
        os.open = lambda path, *args: (
            os.dup(full) if str(path).endswith(".samples.jsonl") else opened(path, *args)
        )
        time.sleep(2.4)
        pid = os.fork()
        if pid == 0:
            time.sleep(1.3)
            os._exit(0)
        os.waitpid(pid, 0)
        print("done")
        """,
    )
    result, session = record(tmp_path, str(script))
    num_earlier_lines, end = result.stdout.split()
    assert (result.returncode, end) == (0, "done")
    # One warning of this process, and one of its child.
    assert result.stderr.count("No space left on device") == 2
    assert "free some space" in result.stderr
    assert len(session.main.periods) <= int(num_earlier_lines)
    assert session.main.state == "complete"


def test_an_unwritable_profile_folder_warns(tmp_path) -> None:
    script = write(tmp_path, "print('done')")
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "timing").write_text("a file")
    settings = {"directory": str(tmp_path / "profile"), "interval_s": 0.01, "hooks": True}
    command = python_command("hotloop.profiler.collect.script", json.dumps(settings), str(script))
    result = run([command[0], "-W", "error::UserWarning", *command[1:]], tmp_path)
    assert (result.returncode, result.stdout) == (0, "done\n")
    assert "expected to record timings" in result.stderr
    assert "expected to write samples" in result.stderr


def test_dropped_objects_are_freed(tmp_path) -> None:
    """The sampler reads frames, which hold references to their variables."""
    script = write(
        tmp_path,
        """
        import gc, time, weakref

        class Thing:
            pass

        def work():
            thing = Thing()
            sum(range(2000))
            return weakref.ref(thing)

        gc.disable()
        end = time.monotonic() + 0.6
        dropped = []
        while len(dropped) < 2000 or time.monotonic() < end:
            dropped.append(work())
        time.sleep(0.1)
        print(sum(reference() is not None for reference in dropped), len(dropped))
        """,
    )
    result, _ = record(tmp_path, str(script), interval_s=0.001)
    num_alive, num_dropped = map(int, result.stdout.split())
    assert num_dropped >= 2000
    assert num_alive == 0


def test_a_short_recording_is_found(tmp_path) -> None:
    script = write(
        tmp_path,
        f"""
        import time
        from hotloop import timing

        timing.start({str(tmp_path / "run")!r}, "learner")
        with timing.span("short"):
            time.sleep(0.3)
        timing.stop()
        """,
    )
    _, session = record(tmp_path, str(script))
    assert session.main.tree.find("short").count == 1


def test_a_missing_extension_is_reported_once(tmp_path) -> None:
    package = Path(hotloop.__file__).parent
    ignored = shutil.ignore_patterns("_ticker*.so")
    shutil.copytree(package, tmp_path / "source" / "hotloop", ignore=ignored)
    script = write(
        tmp_path,
        """
        import time

        def spin():
            return sum(i for i in range(10_000))

        end = time.thread_time() + 0.8
        while time.thread_time() < end:
            spin()
        """,
    )

    def measure(number: int) -> tuple[subprocess.CompletedProcess[str], ProfiledProcess]:
        folder = tmp_path / f"profile-{number}"
        command = [sys.executable, "-m", "hotloop", "profile", "--out", str(folder), str(script)]
        result = run(command, tmp_path, PYTHONPATH=str(tmp_path / "source"))
        return result, read(folder).main

    for (result, process), attempt in attempts(measure):
        assert result.returncode == 0, result.stderr
        assert result.stderr.count("C extension is not available (it was not built: ") == 1
        with attempt:
            leaves = {process.stacks[sample.stack].frames[-1] for sample in process.samples}
            assert {leaf.function for leaf in leaves} & {"spin", "spin.<locals>.<genexpr>"}
            assert total(process.samples, "count") > 10


def test_a_thread_samples_without_the_extension(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import time
        from hotloop.timing import span

        def spin():
            end = time.monotonic() + 0.8
            while time.monotonic() < end:
                sum(range(100))

        with span("work"):
            spin()
        with span("nap"):
            time.sleep(0.8)
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script), HOTLOOP_PURE_TIMING="1"):
        assert result.stderr == ""
        (process,) = session.processes
        samples = {
            name: [sample for sample in process.samples if sample.path == (name,)]
            for name in ("work", "nap")
        }
        with attempt:
            for name, group in samples.items():
                assert is_close(total(group), process.tree.find(name).total_ns)
            leaves = {
                process.stacks[sample.stack].frames[-1].function
                for sample in samples["work"]
                if sample.count > 2
            }
            assert leaves == {"spin"}


@needs_ticker
def test_each_sampler_counts_its_own_cost(tmp_path) -> None:
    """The sampler of a forked child starts with the memory that its parent has left."""
    script = write(
        tmp_path,
        """
        import os, threading, time
        from hotloop import timing
        from hotloop.profiler.collect import _ticker

        def cost():
            _ticker.begin([], 0.01, threading.main_thread().ident, os.getpid())
            before = _ticker.cost_ns()
            _ticker.start()
            end = time.monotonic() + 60
            while not _ticker.cost_ns() and time.monotonic() < end:
                time.sleep(0.05)
            _ticker.stop()
            after = _ticker.cost_ns()
            _ticker.end()
            return before, after > 0

        print(cost(), cost())
        """,
    )
    result = run([sys.executable, str(script)], tmp_path)
    assert (result.stdout, result.stderr) == ("(0, True) (0, True)\n", "")


@pytest.mark.parametrize("is_pure", [False, True])
def test_signals_are_for_the_threads_of_the_program(tmp_path, is_pure: bool) -> None:
    """Not for the profiler's: a blocked signal would end the program, or interrupt it."""
    script = write(
        tmp_path,
        """
        import os, signal, threading, time

        def handle(number, frame):
            print("handled", "inside" if is_critical else "after", flush=True)

        def count_threads():
            return len(os.listdir("/proc/self/task"))

        signal.signal(signal.SIGTERM, handle)
        while count_threads() < 2:
            time.sleep(0.01)
        for _ in range(2):
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
            is_critical = True
            os.kill(os.getpid(), signal.SIGTERM)
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                sum(range(100))
            os.kill(os.getpid(), signal.SIGUSR1)
            print("waited for", signal.sigwait({signal.SIGUSR1}).name, flush=True)
            is_critical = False
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGUSR1})
            # The threads of the profiler end and start again.
            if not os.fork():
                os._exit(0)
            os.wait()
        """,
    )
    variables = {"HOTLOOP_PURE_TIMING": "1"} if is_pure else {}
    # The recorder in Python imports NumPy, whose BLAS starts a thread.
    result, _ = record(tmp_path, str(script), OPENBLAS_NUM_THREADS="2", **variables)
    assert result.stdout.splitlines() == ["waited for SIGUSR1", "handled after"] * 2, result
    assert result.returncode == 0


@pytest.mark.parametrize("is_pure", [False, True])
def test_a_deep_recursion_keeps_its_outer_lines(tmp_path, is_pure: bool) -> None:
    script = write(
        tmp_path,
        """
        import sys, threading, time

        sys.setrecursionlimit(9000)

        def spin():
            end = time.thread_time() + 0.05
            while time.thread_time() < end:
                sum(range(300))

        def search(levels):
            if levels:
                return [search(levels - 1) for _ in range(1)]
            spin()

        def other():
            spin()

        def alternate():
            for number in range(6):
                search(1000 + number)
                other()

        thread = threading.Thread(target=alternate)
        thread.start()
        thread.join()
        alternate()
        """,
    )
    variables = {"HOTLOOP_PURE_TIMING": "1"} if is_pure else {}
    for _, session, attempt in recordings(tmp_path, str(script), **variables):
        main = session.main
        # Different levels have the same stack.
        assert len(main.stacks) < 60
        times: Counter[tuple[bool, str]] = Counter()
        for sample in main.samples:
            functions = [frame.function for frame in main.stacks[sample.stack].frames]
            if functions[-1] == "spin":
                caller = functions[functions.index("alternate") + 1]
                times[sample.thread == main.pid, caller] += sample.on_core_ns
        with attempt:
            deep = max(main.stacks, key=lambda stack: len(stack.frames))
            assert 100 < len(deep.frames) <= 130
            for is_main in (True, False):
                search, other = times[is_main, "search"], times[is_main, "other"]
                assert search == pytest.approx(other, rel=0.35)
