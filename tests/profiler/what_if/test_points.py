"""Checks in the program's code: they change nothing but what is delayed."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import json
import mmap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotloop.profiler.collect import delays
from hotloop.profiler.collect.delays import DelayPoints
from hotloop.profiler.collect.points import FUNCTION, STATEMENT, insert_points, point_names

FILE = "/program/loop.py"
SOURCE = '''"""A docstring."""
from __future__ import annotations
import asyncio

def work(n):
    """Return a sum."""
    total = 0
    for i in range(n):
        total += i * i
    return abs(total)

class Loop:
    kind: str = "loop"
    def run(self, n):
        with span("pass"):
            results = [work(i)
                       for i in range(n)]
        if sum(results) > 3:
            return max(results)
        elif len(results) == 2:
            return -1
        return 0

async def step(n):
    await asyncio.sleep(0)
    return work(n)
'''


@pytest.fixture
def points(tmp_path: Path) -> Iterator[DelayPoints]:
    """Return the points of this process, and remove their names afterwards."""
    (tmp_path / delays.DIRECTORY).mkdir()
    before = set(vars(builtins))
    yield DelayPoints(tmp_path)
    for name in set(vars(builtins)) - before:
        delattr(builtins, name)


def run_source(points: DelayPoints) -> dict[str, Any]:
    from contextlib import nullcontext

    namespace: dict[str, Any] = {"span": lambda name: nullcontext(), "__name__": "loop"}
    exec(points.compile(SOURCE.encode(), FILE), namespace)
    return namespace


def arm(points: DelayPoints, *places: tuple[str, int]) -> memoryview:
    """Arm one point per kind and line, and return the control words."""
    path = points._directory / delays.CONTROL_FILE
    path.write_bytes(bytes(8 * delays.NUM_CONTROLS))
    points._arm([{"places": [[kind, FILE, line]], "spans": []} for kind, line in places])
    with path.open("r+b") as file:
        control = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    control[delays.QUEUE_POINT] = -1
    return control


def counter(points: DelayPoints, index: int, word: int) -> int:
    return points._counters[index * delays.NUM_COUNTERS + word]


def test_a_program_with_checks_computes_the_same(points: DelayPoints) -> None:
    namespace = run_source(points)
    assert namespace["work"](5) == 30
    assert namespace["Loop"]().run(4) == 5
    assert namespace["Loop"]().run(2) == -1
    assert asyncio.run(namespace["step"](3)) == 5
    assert namespace["__doc__"] == "A docstring."
    assert namespace["work"].__doc__ == "Return a sum."


def test_lines_keep_their_numbers(points: DelayPoints) -> None:
    code = points.compile(SOURCE.encode(), FILE)
    plain = compile(SOURCE, FILE, "exec")

    def lines(code: Any) -> set[int]:
        inner = [lines(constant) for constant in code.co_consts if inspect.iscode(constant)]
        own = {line for *_, line in code.co_lines() if line}
        return own.union(*inner)

    assert lines(code) - {0} <= lines(plain) | {5, 14, 24}  # `def` lines, checked at the entry


def test_statements_loops_functions_and_spans_are_known() -> None:
    source = insert_points(ast.parse(SOURCE), FILE)
    assert source.functions == {"work": 5, "Loop.run": 14, "step": 24}
    assert source.spans == {"pass": [15]}
    assert source.statements[17] == 16  # the second line of a comprehension
    assert source.statements[8] == 8
    assert source.loops[9] == [8]
    assert 7 not in source.statements  # `total = 0` takes no time


def test_calls_are_counted_and_delayed(points: DelayPoints) -> None:
    namespace = run_source(points)
    control = arm(points, (STATEMENT, 9), (FUNCTION, 5), (STATEMENT, 8))
    for index in range(3):
        control[delays.FIRST_MODE + index] = delays.COUNTED
    namespace["work"](7)
    assert [counter(points, index, delays.CALLS) for index in range(3)] == [7, 1, 7]
    assert counter(points, 0, delays.DELAYED_NS) == 0
    # Three milliseconds of CPU time in 300 calls: short delays are added up.
    control[delays.CPU_NS] = 10_000
    control[delays.FIRST_MODE] = delays.DELAYED
    before_ns = time.thread_time_ns()
    namespace["work"](300)
    assert time.thread_time_ns() - before_ns >= 2_900_000
    assert counter(points, 0, delays.DELAYED_NS) >= 2_900_000


def test_a_delay_without_the_lock_takes_cpu_time_too(points: DelayPoints) -> None:
    namespace = run_source(points)
    control = arm(points, (FUNCTION, 5))
    control[delays.CPU_NS], control[delays.WITHOUT_LOCK] = 1_000_000, 1
    control[delays.FIRST_MODE] = delays.DELAYED
    namespace["work"](1)
    assert counter(points, 0, delays.DELAYED_NS) >= 1_000_000


def test_coroutines_sleep_without_blocking_others(points: DelayPoints) -> None:
    namespace = run_source(points)
    control = arm(points, (STATEMENT, 25))
    control[delays.SLEEP_NS] = 50_000_000
    control[delays.FIRST_MODE] = delays.DELAYED
    order: list[str] = []

    async def delayed() -> None:
        await namespace["step"](1)
        order.append("delayed")

    async def other() -> None:
        await asyncio.sleep(0)
        order.append("other")

    async def both() -> None:
        await asyncio.gather(delayed(), other())

    asyncio.run(both())
    assert order == ["other", "delayed"]
    assert counter(points, 0, delays.DELAYED_NS) >= 50_000_000


def test_points_of_an_earlier_version_are_removed(points: DelayPoints) -> None:
    namespace = run_source(points)
    control = arm(points, (STATEMENT, 9))
    name, _ = point_names(STATEMENT, FILE, 9)
    assert getattr(builtins, name) is not None
    points._arm([{"places": [], "spans": []}])
    assert getattr(builtins, name) is None
    control[delays.FIRST_MODE] = delays.COUNTED
    namespace["work"](3)
    assert counter(points, 0, delays.CALLS) == 0


def test_functions_for_another_compiler_have_no_checks() -> None:
    tree = ast.parse("@numba.njit(cache=True)\ndef f(x):\n    return g(x) + 1\n")
    assert insert_points(tree, FILE).names == []


def test_points_are_followed_until_the_last_version(points: DelayPoints) -> None:
    run_source(points)
    (points._directory / delays.CONTROL_FILE).write_bytes(bytes(8 * delays.NUM_CONTROLS))
    path = points._directory / delays.POINTS_FILE
    document = {"points": [{"places": [[STATEMENT, FILE, 9]], "spans": []}], "is_final": True}
    path.write_text(json.dumps(document))
    points._follow_points()  # ends with the last version
    assert getattr(builtins, point_names(STATEMENT, FILE, 9)[0]) is not None


def test_a_check_is_the_only_addition() -> None:
    tree = ast.parse(SOURCE)
    insert_points(tree, FILE)
    checks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).startswith("__hotloop_")
    ]
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [inner for inner in block if inner not in checks])
    assert ast.unparse(tree) == ast.unparse(ast.parse(SOURCE))
