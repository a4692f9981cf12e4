"""What threads are inside of, as another one sees it; both recorders."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from hotloop import timing
from hotloop.timing import _control
from hotloop.timing import _format as f


def own() -> tuple[str, ...] | None:
    return timing.open_paths().get(threading.get_native_id())


def test_the_path_of_a_thread(span) -> None:
    assert own() is None  # it has had no span yet
    with span("collect"):
        assert own() == ("collect",)
        for name in ("act", "env_step"):
            with span(name, "wait"):
                assert own() == ("collect", name)
        assert own() == ("collect",)
    assert own() == ()
    with pytest.raises(ZeroDivisionError), span("update"):
        1 / 0  # noqa: B018
    assert own() == ()


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


def test_names_that_found_no_place_are_those_around_them(span) -> None:
    with span("outer"):
        for i in range(2 * f.MAIN.node_capacity):
            with span(f"name {i}"), span("inside"):
                path = own()
        assert path is not None
        # The shared one; what is inside of it is not counted.
        assert path == ("outer", f.OVERFLOW)
        assert own() == ("outer",)


def test_deep_recursion(span) -> None:
    def down(depth: int) -> None:
        with span("down"):
            if depth:
                down(depth - 1)
            else:
                seen.append(own())

    seen: list[tuple[str, ...] | None] = []
    down(2 * f.MAX_DEPTH)
    assert seen == [(*("down",) * f.MAX_DEPTH, f.OVERFLOW)]


def test_long_names_and_other_alphabets(span) -> None:
    with span("é" * 100), span("步"):
        assert own() == ("é" * 55, "步")


def test_leaving_out_of_order(span) -> None:
    outer = span("outer")
    outer.__enter__()
    inner = span("inner")
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert own() == ()
    inner.__exit__(None, None, None)
    assert own() == ()


def test_threads_and_those_that_have_ended(span) -> None:
    inside, leave = threading.Barrier(3), threading.Event()
    numbers: dict[str, int] = {}

    def work(name: str) -> None:
        numbers[name] = threading.get_native_id()
        with span(name), span("waiting", "wait"):
            inside.wait()
            leave.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for one in threads:
        one.start()
    inside.wait()
    with span("main"):
        paths = timing.open_paths()
    assert paths == {
        numbers["a"]: ("a", "waiting"),
        numbers["b"]: ("b", "waiting"),
        threading.get_native_id(): ("main",),
    }
    leave.set()
    for one in threads:
        one.join()
    assert set(timing.open_paths()) == {threading.get_native_id()}


def test_a_new_recording_knows_of_nothing_that_is_open(span, tmp_path) -> None:
    with span("before"):
        timing.start(tmp_path)
        assert timing.open_paths() == {}
        with span("after"):
            assert own() == ("after",)
    timing.stop()
    assert timing.open_paths() == {}


def test_a_fork_knows_of_its_own(run, tmp_path) -> None:
    done = run(
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
    assert (done.returncode, done.stderr) == (0, "")


def test_looking_while_another_thread_is_busy(env) -> None:
    """From the side, as a sampler does: no path is ever one that there is not."""
    script = """
import sys, threading, time
from hotloop import timing
from hotloop.timing import span

sys.setswitchinterval(1e-5)
stop = False

def give_way():
    "Calls and loops are where Python lets another thread run."
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

one = threading.Thread(target=work)
one.start()
seen = set()
end = time.monotonic() + 1.0
while time.monotonic() < end:
    seen.update(timing.open_paths().values())
stop = True
one.join()
known = {(), ("a",), ("a", "b")} | {("a", f"c{i}") for i in range(50)}
assert seen <= known, seen - known
assert len(seen) > 5, seen
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
