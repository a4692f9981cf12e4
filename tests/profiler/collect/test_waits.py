"""The causes of blocked time, measured in programs that wait."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import functools
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from hotloop.profiler.collect.asyncio_waits import pick_awaited_task
from hotloop.profiler.collect.stacks import _ticker
from hotloop.profiler.session import ProfiledProcess
from tests.attempts import attempts
from tests.profiler.programs import record, recordings, write

pytestmark = pytest.mark.skipif(_ticker is None, reason="the C extension is not built")

# Each waits at one line for about as long as it computes at another: (set-up code, waiting line).
PROGRAMS = {
    "sleep": ("", "time.sleep(0.01)"),
    "lock": (
        """
requests, answers = queue.Queue(), queue.Queue()

def answer():
    while requests.get():
        time.sleep(0.01)
        answers.put(1)

threading.Thread(target=answer, daemon=True).start()
""",
        "requests.put(1); answers.get()",
    ),
    "pipe": (
        """
def answer_pipe(pipe):
    while pipe.recv():
        time.sleep(0.01)
        pipe.send(1)

parent, child = multiprocessing.get_context("fork").Pipe()
fork = multiprocessing.get_context("fork").Process(target=answer_pipe, args=(child,), daemon=True)
fork.start()
""",
        "parent.send(1); parent.recv()",
    ),
    "network": (
        """
listening = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    connection, _ = listening.accept()
    while connection.recv(1):
        time.sleep(0.01)
        connection.send(b"1")
    os._exit(0)
peer = socket.create_connection(listening.getsockname())
""",
        'peer.send(b"1"); peer.recv(1)',
    ),
    "child": ("", "os.waitpid(os.posix_spawn('/bin/sleep', ['sleep', '0.01'], {}), 0)"),
}


IMPORTS = "import multiprocessing, os, queue, socket, threading, time\n"
COMPUTES = """
def compute_before_{wait}():
    total = 0
    for i in range(60_000):
        total += i * i  # before {wait}
    return total

for _ in range(80):
    compute_before_{wait}()
    {line}
"""


def waits_at(process: ProfiledProcess, text: str, script: Path) -> Counter[str]:
    """Return main's nanoseconds at a line by kind: "on core" or the cause of blocking."""
    number = next(i for i, line in enumerate(script.read_text().splitlines(), 1) if text in line)
    times: Counter[str] = Counter()
    for sample in process.samples:
        stack = process.stacks[sample.stack]
        is_at_line = any(
            frame.file == str(script) and line == number
            for frame, line in zip(stack.frames, stack.lines, strict=True)
        )
        if sample.thread == process.pid and is_at_line:
            times["on core"] += sample.on_core_ns
            times.update(sample.waits)
    return times


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, Any]]:
    """Return a function that profiles a program with each cause of waiting, once per number."""

    @functools.cache
    def measure(number: int) -> tuple[Path, ProfiledProcess]:
        folder = tmp_path_factory.mktemp("waits")
        parts = [
            setup + COMPUTES.format(wait=wait, line=line)
            for wait, (setup, line) in PROGRAMS.items()
        ]
        script = folder / "script.py"
        script.write_text(IMPORTS + "\n".join(parts))
        result, session = record(folder, str(script))
        assert result.returncode == 0, result.stderr
        return script, session.main

    return measure


@pytest.mark.parametrize("wait", PROGRAMS)
def test_the_cause_of_waiting_at_a_line(measure, wait: str) -> None:
    for (script, process), attempt in attempts(measure):
        assert not process.facts.keys() & {"is_traced", "traces_memory"}
        times = waits_at(process, PROGRAMS[wait][1], script)
        compute_times = waits_at(process, f"total += i * i  # before {wait}", script)
        with attempt:
            assert max(times, default="", key=lambda name: times[name]) == wait, times
            # The line beside it only computes: a wait belongs to its line.
            assert compute_times["on core"] > 0.5 * sum(compute_times.values()), compute_times


def test_a_thread_that_waits_for_the_gil(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import threading, time

        def spin():
            while not done:
                sum(range(100))

        done = False
        threading.Thread(target=spin).start()
        until = time.perf_counter() + 0.8
        while time.perf_counter() < until:
            sum(range(101))
        done = True
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script)):
        assert result.returncode == 0, result.stderr
        times = waits_at(session.main, "sum(range(101))", script)
        with attempt:
            assert times["interpreter"] > 0.1 * sum(times.values()), times


def test_waits_of_an_event_loop(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import asyncio

        async def poll(queue):
            while queue.empty():
                await asyncio.sleep(0.03)
            return queue.get_nowait()

        async def produce(queue):
            for i in range(20):
                await asyncio.sleep(0.001)
                await queue.put(i)

        async def main():
            queue = asyncio.Queue(1)
            task = asyncio.create_task(produce(queue))
            for _ in range(20):
                await poll(queue)
            await task

        asyncio.run(main())
        """,
    )
    for result, session, attempt in recordings(tmp_path, str(script)):
        assert result.returncode == 0, result.stderr
        polling = waits_at(session.main, "await asyncio.sleep(0.03)", script)
        producing = waits_at(session.main, "await asyncio.sleep(0.001)", script)
        with attempt:
            assert polling["sleep"] > 200e6
            # The producer mostly waits for space in the queue: the other task is the cause.
            assert sum(producing.values()) < 0.4 * sum(polling.values())


def test_only_some_tasks_of_the_threads_own_loop_are_inspected() -> None:
    codes = [asyncio.base_events.BaseEventLoop.run_forever.__code__]

    class Loop:
        def __init__(self, thread: int) -> None:
            self._thread_id = thread

    class Task:
        num_inspected = 0
        _fut_waiter = object()

        def __init__(self, thread: int) -> None:
            self.get_loop = lambda: Loop(thread)
            self.coroutine = wait_elsewhere() if thread == 2 else wait_here()

        def done(self) -> bool:
            return False

        def get_coro(self) -> Any:
            Task.num_inspected += 1
            return self.coroutine

    async def wait_here() -> None:
        await asyncio.sleep(1)

    async def wait_elsewhere() -> None:
        await asyncio.sleep(1)

    class Odd(Task):
        def done(self) -> bool:
            raise ValueError("of the program")

    def picks(tasks: list[Task]) -> set[str]:
        with patch.dict(sys.modules, {"asyncio.tasks": Mock(_scheduled_tasks=tasks)}):
            awaited = [pick_awaited_task(codes, 1) for _ in range(10)]
        for task in tasks:
            task.coroutine.close()
        return {task.codes[0].co_name for task in awaited if task is not None}

    assert picks([Task(1), Task(2), Task(2), Task(2)]) == {"wait_here"}
    assert picks([Odd(1)]) == set()
    Task.num_inspected = 0
    assert picks([Task(1) for _ in range(10_000)]) == {"wait_here"}
    assert Task.num_inspected < 1000


def test_debug_modes_are_recorded(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        import sys, time, tracemalloc
        tracemalloc.start()
        sys.setprofile(lambda *_: None)
        until = time.perf_counter() + 0.5
        while time.perf_counter() < until:
            sum(range(100))
        """,
    )
    _, session = record(tmp_path, str(script))
    assert session.main.facts.keys() >= {"is_traced", "traces_memory"}
