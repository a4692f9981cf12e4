"""What a thread is blocked on, told of programs that are."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotloop.profiler.collect.stacks import _ticker
from hotloop.profiler.session import Process
from tests.profiler.programs import record, write

pytestmark = pytest.mark.skipif(_ticker is None, reason="the extension tells")

# Each waits at one line, for about as long as it computes at another.
# Each waits at one line, for about as long as it computes at another: what comes first, the line.
PROGRAMS = {
    "sleep": ("", "time.sleep(0.01)"),
    "lock": (
        """
asked, answers = queue.Queue(), queue.Queue()

def answer():
    while asked.get():
        time.sleep(0.01)
        answers.put(1)

threading.Thread(target=answer, daemon=True).start()
""",
        "asked.put(1); answers.get()",
    ),
    "pipe": (
        """
def answer_pipe(pipe):
    while pipe.recv():
        time.sleep(0.01)
        pipe.send(1)

ours, theirs = multiprocessing.get_context("fork").Pipe()
fork = multiprocessing.get_context("fork").Process(target=answer_pipe, args=(theirs,), daemon=True)
fork.start()
""",
        "ours.send(1); ours.recv()",
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


def waits_at(process: Process, text: str, script: Path) -> dict[str, int]:
    """Nanoseconds of main's at a line, by what they were: "on core" or what it was blocked on."""
    number = next(i for i, line in enumerate(script.read_text().splitlines(), 1) if text in line)
    found: dict[str, int] = {}
    for sample in process.samples:
        stack = process.stacks[sample.stack]
        here = any(
            frame.file == str(script) and line == number
            for frame, line in zip(stack.frames, stack.lines, strict=True)
        )
        if sample.thread == process.pid and here:
            found["on core"] = found.get("on core", 0) + sample.on_core_ns
            for name, ns in sample.waits.items():
                found[name] = found.get(name, 0) + ns
    return found


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Process]:
    """Profile one program that waits for all of them, one after another."""
    folder = tmp_path_factory.mktemp("waits")
    parts = [
        begins + COMPUTES.format(wait=wait, line=line) for wait, (begins, line) in PROGRAMS.items()
    ]
    script = folder / "script.py"
    script.write_text(IMPORTS + "\n".join(parts))
    done, session = record(folder, str(script))
    assert done.returncode == 0, done.stderr
    return script, session.main


@pytest.mark.parametrize("wait", PROGRAMS)
def test_what_a_line_waits_for(waiting: tuple[Path, Process], wait: str) -> None:
    script, process = waiting
    found = waits_at(process, PROGRAMS[wait][1], script)
    assert max(found, key=lambda name: found[name]) == wait, found
    # And the line beside it is not: a wait belongs to where it was.
    beside = waits_at(process, f"total += i * i  # before {wait}", script)
    assert beside["on core"] > 0.5 * sum(beside.values()), beside
    assert not process.facts.keys() & {"is_traced", "traces_memory"}


def test_a_thread_that_waits_for_the_interpreter_s_lock(tmp_path: Path) -> None:
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
    done, session = record(tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    found = waits_at(session.main, "sum(range(101))", script)
    assert found["interpreter"] > 0.1 * sum(found.values()), found


def test_what_an_event_loop_awaits(tmp_path: Path) -> None:
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
    done, session = record(tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    polling = waits_at(session.main, "await asyncio.sleep(0.03)", script)
    producing = waits_at(session.main, "await asyncio.sleep(0.001)", script)
    assert polling["sleep"] > 200e6
    # The producer waits for room in the queue most of the time: that is the other one's doing.
    assert sum(producing.values()) < 0.4 * sum(polling.values())


def test_debug_modes_are_told(tmp_path: Path) -> None:
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
