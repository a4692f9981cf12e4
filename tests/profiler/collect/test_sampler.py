"""Real threads, seen by the sampler of their process."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hotloop
from hotloop.profiler.collect.stacks import _ticker
from hotloop.profiler.session import Frame, Process, Sample
from hotloop.profiler.session.reading import read
from tests.profiler.programs import record, run, write

needs_ticker = pytest.mark.skipif(_ticker is None, reason="a thread beside the program looks")

# One program with a span for each of its phases. Those that are counted last for so much time on a
# core, so that there are as many samples on a loaded machine.
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

# In Python, in short calls, in a long call that keeps the interpreter's lock, in some that don't.
def spin():
    x = 0
    for i in range(40_000):
        x += i * i

def nested(depth=60):
    return nested(depth - 1) if depth else None

def calls():
    for _ in range(500):
        nested()

def keeps():
    sum(range(400_000))

data = bytes(range(256)) * 100

def lets_go():
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
with span("work"):
    spin_for(1.2)
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
        for f in (spin, calls, keeps, lets_go):
            began = time.monotonic()
            f()
            report["parts"][f.__name__] = (
                report["parts"].get(f.__name__, 0) + time.monotonic() - began
            )
with span("begin"):
    end = time.thread_time() + 0.8
    while time.thread_time() < end:
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
        script: its file.
        process: its only process.
        report: what it measured of itself.
    """

    script: Path
    process: Process
    report: dict[str, Any]

    def samples(self, phase: str, thread: int | None = None) -> list[Sample]:
        """Return the samples of a thread (None: the main one) in a phase."""
        number = self.process.pid if thread is None else thread
        samples = self.process.samples
        return [one for one in samples if (one.thread, one.path) == (number, (phase,))]

    def leaf(self, sample: Sample) -> Frame:
        """Return the innermost frame of a sample."""
        return self.process.stacks[sample.stack].frames[-1]

    def line(self, text: str) -> int:
        """Return the number of the only line with a text."""
        lines = self.script.read_text().splitlines()
        (number,) = (i for i, line in enumerate(lines, 1) if line.strip() == text)
        return number


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Phases:
    """Profile the program with phases."""
    folder = tmp_path_factory.mktemp("phases")
    script = write(folder, PHASES)
    done, session = record(folder, str(script), interval_s=0.005)
    assert done.stderr == ""
    (process,) = session.processes
    return Phases(script, process, json.loads(done.stdout))


def total(samples: list[Sample], what: str = "elapsed_ns") -> int:
    return sum(getattr(one, what) for one in samples)


def share(samples: list[Sample], what: str) -> float:
    """Return which part of the time of samples was on a core, or queued."""
    return total(samples, what) / total(samples)


def about(elapsed_ns: float, expected_ns: float) -> bool:
    """Whether a time was seen nearly whole.

    Where others have the cores, a sampler comes late: it misses the first and the last part of a
    second of a thread, and a thread outlives its own clock's end.
    """
    return 0.6 < elapsed_ns / expected_ns < 1.6


def test_a_thread_that_spins_and_a_thread_that_sleeps(phases: Phases) -> None:
    process = phases.process
    spinning, sleeping = phases.samples("work"), phases.samples("nap", phases.report["ids"]["nap"])
    # Others may have the cores; what the thread never does is block, but for the lock of Python.
    assert share(spinning, "on_core_ns") > 0.2
    assert share(spinning, "on_core_ns") + share(spinning, "queued_ns") > 0.7
    assert share(sleeping, "on_core_ns") < 0.05
    assert share(sleeping, "queued_ns") < 0.05
    # All of the time is accounted for.
    assert total(spinning) == pytest.approx(process.tree.find("work").total_ns, rel=0.1)
    stacks = [process.stacks[one.stack] for one in spinning]
    spun = [stack for stack in stacks if stack.frames[-1].function == "spin_for"]
    # From the script's first frame on: nothing of what runs it.
    assert [one.function for one in spun[0].frames] == ["<module>", "spin_for"]
    assert spun[0].frames[0].file == str(phases.script)
    lines = phases.script.read_text().splitlines()
    assert lines[spun[0].lines[0] - 2].strip() == 'with span("work"):'
    # What the sampler took, and what the kernel knows.
    assert 0 < process.own_ns < 0.2 * process.duration_ns
    assert {one.number for one in process.threads} >= {process.pid}
    last = process.periods[-1]
    assert last.spans["work",][0] == 1
    assert sum(last.by_stack.values()) == sum(last.by_path.values())
    assert last.resident > 1_000_000
    assert process.cpu_ns > 0.2e9


def test_the_main_thread_is_seen_while_it_waits_and_while_others_work(phases: Phases) -> None:
    waiting = phases.samples("join")
    beside = [x for x in phases.process.samples if x.thread == phases.report["ids"]["beside"]]
    assert about(total(waiting), 1.2e9)
    assert share(waiting, "on_core_ns") < 0.1
    assert about(total(beside), 1.2e9)
    assert {phases.leaf(one).function for one in beside if one.count > 2} == {"spin_for"}


@needs_ticker
def test_a_thread_that_sleeps_costs_next_to_nothing(phases: Phases) -> None:
    """It is not looked at again, and all of its time is accounted for."""
    asleep = phases.samples("sleep")
    assert about(total(asleep), 1.8e9)
    assert 100 < sum(one.count for one in asleep) < 600
    assert total(asleep, "on_core_ns") < 0.05e9
    # In each period, not when it wakes.
    assert all(sum(period.by_stack.values()) > 10 for period in phases.process.periods[:-1])
    # Some 1 % on an idle machine at this interval, more on a loaded one.
    assert phases.process.own_ns < 0.05 * phases.process.duration_ns


@needs_ticker
def test_time_is_attributed_to_the_function_that_took_it(phases: Phases) -> None:
    """In Python, in long calls that keep the GIL, in short ones that don't: by its own clock."""
    spent = phases.report["parts"]
    seen = dict.fromkeys(spent, 0)
    for one in phases.samples("parts"):
        names = {frame.function for frame in phases.process.stacks[one.stack].frames}
        for name in names & set(spent):
            seen[name] += one.elapsed_ns
    for name, own_s in spent.items():
        expected = own_s / sum(spent.values())
        assert seen[name] / sum(seen.values()) == pytest.approx(expected, abs=0.07), (seen, spent)


@needs_ticker
def test_a_function_that_has_just_begun_has_taken_no_time(phases: Phases) -> None:
    """A call of C that no instruction looks after, here an operator, ends before the next call."""
    seen: dict[str, int] = {}
    for one in phases.samples("begin"):
        leaf = phases.leaf(one).function
        seen[leaf] = seen.get(leaf, 0) + one.count
    assert seen["multiply"] > 0.8 * sum(seen.values())
    assert seen.get("nothing", 0) <= 2


@pytest.mark.skipif(
    _ticker is None or sys.version_info >= (3, 13), reason="frames are not looked at without asking"
)
def test_operators_are_seen_at_their_own_lines(phases: Phases) -> None:
    """None of them looks for requests: a thread that is asked answers some lines further on."""
    spent = {phases.line(text): seconds for text, seconds in phases.report["operators"].items()}
    seen = dict.fromkeys(spent, 0)
    for one in phases.samples("operators"):
        line = phases.process.stacks[one.stack].lines[-1]
        if line in seen:
            seen[line] += one.elapsed_ns
    for line, own_s in spent.items():
        expected = own_s / sum(spent.values())
        assert seen[line] / sum(seen.values()) == pytest.approx(expected, abs=0.12), (seen, spent)
    assert sum(seen.values()) > 0.75 * sum(spent.values()) * 1e9


def test_a_line_is_written_about_once_a_second(phases: Phases) -> None:
    """Also after the first, which takes long, since it loads what it needs."""
    ends = [period.end_ns for period in phases.process.periods]
    assert len(ends) >= 4
    assert max(b - a for a, b in itertools.pairwise(ends)) < 2.5e9


def test_threads_that_follow_one_another_are_told_apart(tmp_path) -> None:
    """Python uses a thread's `ident` again for the next one."""
    script = write(
        tmp_path,
        """
        import threading, time

        numbers = []

        def spin():
            numbers.append(threading.get_native_id())
            end = time.monotonic() + 0.06
            while time.monotonic() < end:
                pass

        for _ in range(12):
            one = threading.Thread(target=spin)
            one.start()
            one.join()
        print(numbers)
        """,
    )
    done, session = record(tmp_path, str(script), interval_s=0.005)
    numbers = set(json.loads(done.stdout))
    (process,) = session.processes
    seen = {one.thread for one in process.samples} - {process.pid}
    assert seen - {0} <= numbers  # 0: one that is just being started
    assert len(seen) >= 9
    for thread in seen:
        elapsed = sum(one.elapsed_ns for one in process.samples if one.thread == thread)
        assert elapsed < 0.5e9


def test_a_fork_has_samples_of_its_own(tmp_path) -> None:
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
    done, session = record(tmp_path, str(script))
    assert done.stderr == ""
    assert session.problems == []
    children = [int(pid) for pid in done.stdout.split()]
    by_pid = {one.pid: one for one in session.processes}
    # What was replaced at once has left nothing.
    assert set(by_pid) == {session.main.pid, *children}
    for pid in children:
        child = by_pid[pid]
        assert {path for path, _ in child.tree.walk()} == {("in child",)}
        elapsed = sum(one.elapsed_ns for one in child.samples if one.path == ("in child",))
        assert about(elapsed, 0.8e9)
        assert {one.thread for one in child.samples} == {pid}
        assert child.parent_pid == session.main.pid
    ends = [period.end_ns for period in session.main.periods]
    assert ends == sorted(set(ends))
    paths = {one.path for one in session.main.samples}
    assert {("before",), ("after",)} <= paths
    assert ("in child",) not in paths


def test_many_forks_do_not_keep_the_sampler_from_looking(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import os, time
        end = time.monotonic() + 0.8
        n = 0
        while time.monotonic() < end:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            n += 1
        print(n)
        """,
    )
    done, session = record(tmp_path, str(script))
    assert int(done.stdout) > 20
    assert len(session.processes) == 1
    assert sum(one.elapsed_ns for one in session.main.samples) > 0.5e9
    assert sum(one.count for one in session.main.samples) > 20


@pytest.mark.parametrize("pure", ["", "1"])
def test_a_program_that_waits_for_all_of_its_threads(tmp_path, pure) -> None:
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
    done, session = record(tmp_path, str(script), HOTLOOP_PURE_TIMING=pure)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(one.count for one in session.main.samples) > 5


def test_threads_that_fork_at_the_same_time(tmp_path) -> None:
    """The sampler is the same afterwards, once, and told of nowhere."""
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
        names = []
        for task in os.listdir("/proc/self/task"):
            # One may have ended since.
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
        print(sorted(name for name in names if name.startswith("hotloop")))
        end = time.monotonic() + 1
        while time.monotonic() < end:
            sum(range(1000))
        """,
    )
    done, session = record(tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hotloop-sampler") == 1
    assert done.stdout.count("hotloop-ticks") <= 1
    assert done.stderr == ""
    assert sum(one.count for one in session.main.samples) > 50


def test_a_program_that_closes_what_it_does_not_know(tmp_path) -> None:
    """As a daemon does: what gets our descriptors' numbers stays as the program made it."""
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
    done, session = record(tmp_path, str(script))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("has closed its descriptor") == 1
    assert {path for path, _ in session.main.tree.walk()} == {("before",), ("after",)}
    assert session.main.tree.find("before").count == 1


def test_a_full_disk_is_warned_of_once_and_the_program_goes_on(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import os, time
        from hotloop.profiler.collect import processes

        # The file that is open, and those to come.
        full = os.open("/dev/full", os.O_WRONLY)
        file = processes._capture._sampler._file
        os.dup2(full, file.number())
        file._identity = file._look()
        opened = os.open
        os.open = lambda path, *rest: (
            os.dup(full) if str(path).endswith(".samples.jsonl") else opened(path, *rest)
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
    done, session = record(tmp_path, str(script))
    assert (done.returncode, done.stdout) == (0, "done\n")
    # This process's, once, and its child's.
    assert done.stderr.count("No space left on device") == 2
    assert "free some space" in done.stderr
    assert session.main.periods == []
    assert session.main.state == "complete"


def test_no_room_from_the_start(tmp_path) -> None:
    script = write(tmp_path, "print('done')")
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "timing").write_text("a file")
    settings = {"directory": str(tmp_path / "profile"), "interval_s": 0.01, "hooks": True}
    import sys

    command = [sys.executable, "-W", "error::UserWarning", "-m", "hotloop.profiler.collect.script"]
    done = run([*command, json.dumps(settings), str(script)], tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "expected to record timings" in done.stderr
    assert "expected to write samples" in done.stderr


def test_what_a_program_drops_is_gone(tmp_path) -> None:
    """The sampler looks at frames, which hold all that is in their variables."""
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
        while time.monotonic() < end:
            dropped.append(work())
        time.sleep(0.1)
        print(sum(one() is not None for one in dropped), len(dropped))
        """,
    )
    done, _ = record(tmp_path, str(script), interval_s=0.001)
    kept, total = map(int, done.stdout.split())
    assert total > 1000
    assert kept == 0


def test_a_program_without_numpy_does_not_get_it(tmp_path) -> None:
    script = write(
        tmp_path,
        """
        import sys, time
        time.sleep(1.3)
        print("numpy" in sys.modules)
        """,
    )
    done, session = record(tmp_path, str(script))
    assert done.stdout == "False\n"
    assert len(session.main.periods) >= 1
    assert session.main.periods[-1].spans == {}


def test_a_recording_that_ends_before_a_line_is_written_is_found(tmp_path) -> None:
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


def test_without_the_extension_a_thread_samples_and_the_report_mentions_it_once(tmp_path) -> None:
    package = Path(hotloop.__file__).parent
    ignored = shutil.ignore_patterns("_ticker*.so")
    shutil.copytree(package, tmp_path / "source" / "hotloop", ignore=ignored)
    script = write(
        tmp_path,
        """
        import time

        def spin():
            return sum(i for i in range(10_000))

        end = time.monotonic() + 1
        while time.monotonic() < end:
            spin()
        """,
    )
    command = ["profile", "--out", str(tmp_path / "profile"), str(script)]
    result = run(
        [sys.executable, "-m", "hotloop", *command], tmp_path, PYTHONPATH=str(tmp_path / "source")
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("C extension is not available (it was not built: ") == 1
    (process,) = read(tmp_path / "profile").processes
    leaves = [process.stacks[one.stack].frames[-1].function for one in process.samples]
    assert "spin.<locals>.<genexpr>" in leaves or "spin" in leaves
    assert sum(one.count for one in process.samples) > 10


def test_without_the_extension_a_thread_beside_the_program_looks(tmp_path) -> None:
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
    done, session = record(tmp_path, str(script), HOTLOOP_PURE_TIMING="1")
    assert done.stderr == ""
    (process,) = session.processes
    elapsed = dict.fromkeys([("work",), ("nap",)], 0)
    for one in process.samples:
        if one.path in elapsed:
            elapsed[one.path] += one.elapsed_ns
    assert about(elapsed["work",], 0.8e9)
    assert about(elapsed["nap",], 0.8e9)
    leaves = {
        process.stacks[one.stack].frames[-1].function
        for one in process.samples
        if one.path == ("work",) and one.count > 2
    }
    assert leaves == {"spin"}


@needs_ticker
def test_each_sampler_counts_its_own_cost(tmp_path) -> None:
    """A forked child's begins with what its parent's has left in memory."""
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
            time.sleep(0.2)
            _ticker.stop()
            after = _ticker.cost_ns()
            _ticker.end()
            return before, after > 0

        print(cost(), cost())
        """,
    )
    done = run([sys.executable, str(script)], tmp_path)
    assert (done.stdout, done.stderr) == ("(0, True) (0, True)\n", "")
