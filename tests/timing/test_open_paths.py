"""Open spans of threads, read from other threads, with both recorders."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from hotloop import timing
from hotloop.timing import _control
from hotloop.timing import _format as f


def current_path() -> tuple[str, ...] | None:
    return timing.open_paths().get(threading.get_native_id())


def test_the_path_of_a_thread(span) -> None:
    assert current_path() is None  # the thread has had no span yet
    with span("collect"):
        assert current_path() == ("collect",)
        for name in ("act", "env_step"):
            with span(name, "wait"):
                assert current_path() == ("collect", name)
        assert current_path() == ("collect",)
    assert current_path() == ()
    with pytest.raises(ZeroDivisionError), span("update"):
        1 / 0  # noqa: B018
    assert current_path() == ()


def test_current_is_the_index_of_the_node(span) -> None:
    with span("a"), span("b"):
        pass
    (segment,) = _control.recorder().segments
    assert segment.state.current() == 0
    with span("a"):
        assert segment.state.current() == 1
        with span("b"):
            assert segment.state.current() == 2
            assert segment.path(2) == ("a", "b")
    assert segment.state.current() == 0
    assert segment.path(0) == ()


def test_overflowing_names_share_a_path(span) -> None:
    with span("outer"):
        for i in range(2 * f.MAIN.node_capacity):
            with span(f"name {i}"), span("inside"):
                path = current_path()
        assert path is not None
        # The shared overflow node. Spans inside it are not counted.
        assert path == ("outer", f.OVERFLOW)
        assert current_path() == ("outer",)


def test_deep_recursion(span) -> None:
    def down(depth: int) -> None:
        with span("down"):
            if depth:
                down(depth - 1)
            else:
                paths.append(current_path())

    paths: list[tuple[str, ...] | None] = []
    down(2 * f.MAX_DEPTH)
    assert paths == [(*("down",) * f.MAX_DEPTH, f.OVERFLOW)]


def test_long_names_and_other_alphabets(span) -> None:
    with span("é" * 100), span("步"):
        assert current_path() == ("é" * 55, "步")


def test_leaving_out_of_order(span) -> None:
    outer = span("outer")
    outer.__enter__()
    inner = span("inner")
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert current_path() == ()
    inner.__exit__(None, None, None)
    assert current_path() == ()


def test_ended_threads_have_no_path(span) -> None:
    inside, leave = threading.Barrier(3), threading.Event()
    numbers: dict[str, int] = {}

    def work(name: str) -> None:
        numbers[name] = threading.get_native_id()
        with span(name), span("waiting", "wait"):
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    inside.wait()
    with span("main"):
        paths = timing.open_paths()
    assert paths == {
        numbers["a"]: ("a", "waiting"),
        numbers["b"]: ("b", "waiting"),
        threading.get_native_id(): ("main",),
    }
    leave.set()
    for thread in threads:
        thread.join()
    assert set(timing.open_paths()) == {threading.get_native_id()}


def test_a_new_recording_starts_without_open_paths(span, tmp_path) -> None:
    with span("before"):
        timing.start(tmp_path)
        assert timing.open_paths() == {}
        with span("after"):
            assert current_path() == ("after",)
    timing.stop()
    assert timing.open_paths() == {}


def test_a_fork_has_its_own_open_paths(run, tmp_path) -> None:
    result = run(
        """
import os, sys
from hotloop import timing
from hotloop.timing import span
timing.start(sys.argv[1])
with span("parent"):
    pid = os.fork()
    if pid == 0:
        assert timing.open_paths() == {}
        with span("child"):
            assert timing.open_paths() == {os.getpid(): ("child",)}
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert timing.open_paths() == {os.getpid(): ("parent",)}
""",
        tmp_path,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_paths_of_a_busy_thread_are_consistent(env) -> None:
    """A concurrent reader such as the sampler gets only paths that exist."""
    script = """
import sys, threading, time
from hotloop import timing
from hotloop.timing import span

sys.setswitchinterval(1e-5)
stop = False

def give_way():
    "Python switches threads at calls and loops."
    return stop

def work():
    n = 0
    while not stop:
        n += 1
        with span("a"):
            with span("b"):
                give_way()
            with span(f"c{n % 50}", "wait"):
                give_way()

thread = threading.Thread(target=work)
thread.start()
paths = set()
begin = time.monotonic()
# At least a second. On a loaded machine, the thread may run later.
while time.monotonic() < begin + (1.0 if len(paths) > 5 else 60.0):
    paths.update(timing.open_paths().values())
stop = True
thread.join()
known = {(), ("a",), ("a", "b")} | {("a", f"c{i}") for i in range(50)}
assert paths <= known, paths - known
assert len(paths) > 5, paths
"""
    result = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
