"""Measure what each test costs: wall and core-seconds, per phase and per shared fixture.

`pytest --costs FILE` writes the measurements. `python -m tests.costs FILE` prints the most
expensive rooms, tests and fixtures. With `--write-long-ones` it derives the list for
`make test-quick`.

Core-seconds are the CPU time of the test process and of all processes below it. Daemons that have
left the tree of processes, such as those of a Ray cluster, are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter  # tests replace the function in its module
from typing import Any

import pytest

LONG_ONES = Path(__file__).parent / "long_ones.txt"
# The wall time that the tests of `make test-quick` take together, on two workers: the half of it
# and some 12 s of collection are 40 s.
QUICK_BUDGET_S = 56.0
# Only shared fixtures that cost more are listed test by test.
CHEAP_FIXTURE_S = 0.05

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Cost = list[float]  # wall seconds, core-seconds


def _now() -> Cost:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    core_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return [perf_counter(), core_s + _running_children_s("self")]


def _running_children_s(process: str) -> float:
    """Return the CPU time of processes that no parent has waited for yet, such as fork servers."""
    seconds = 0.0
    with contextlib.suppress(OSError):  # the process has ended, or this is not Linux
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                # Its own time and that of its ended children, in user and in kernel mode.
                seconds += sum(map(int, fields[11:15])) / _TICKS_PER_S
                seconds += _running_children_s(child)
    return seconds


def _since(start: Cost) -> Cost:
    return [round(end - begin, 4) for begin, end in zip(start, _now(), strict=True)]


def function_of(test: str) -> str:
    """Return a test's name without its parameters."""
    return test.partition("[")[0]


class Meter:
    """A pytest plugin that measures tests, for every process that runs some.

    The measurements travel with the test reports, which pytest-xdist sends to the main process.
    """

    def __init__(self) -> None:
        self._phases: dict[str, Cost] = {}
        self._fixtures: list[tuple[str, Cost]] = []

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = _now()
        try:
            yield
        finally:
            self._phases[name] = _since(start)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Any:
        with self._phase("setup"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Any:
        with self._phase("call"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Any:
        with self._phase("teardown"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
        if fixturedef.scope == "function":  # a part of its test
            return (yield)
        start = _now()
        try:
            return (yield)
        finally:
            self._fixtures.append((_fixture_name(fixturedef), _since(start)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report = yield
        report.cost = self._phases.pop(report.when, [0.0, 0.0])
        # Most fixtures are made during the set-up, some by `getfixturevalue` during the call.
        report.fixture_costs, self._fixtures = self._fixtures, []
        if report.when == "setup":
            report.shared_fixtures = _shared_fixtures(item)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # From the start of the process, with all imports.
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["collection"] = _now()[1]


def _fixture_name(fixture: pytest.FixtureDef[Any]) -> str:
    return f"{fixture.baseid}::{fixture.argname}" if fixture.baseid else fixture.argname


def _shared_fixtures(item: pytest.Item) -> list[str]:
    definitions = (
        item._fixtureinfo.name2fixturedefs.values() if hasattr(item, "_fixtureinfo") else ()
    )
    return [_fixture_name(chain[-1]) for chain in definitions if chain[-1].scope != "function"]


class Costs:
    """The measurements of one run or several, and a pytest plugin that adds those of this run.

    A run replaces the measurements of its own tests, and keeps those of others, also of runs that
    have ended in the meantime.

    Attributes:
        tests: each test's cost per phase, without the set-up of fixtures that it shares.
        fixtures: each shared fixture's number of set-ups and their cost.
        shared: the fixtures that each test shares with others, if they are expensive.
        collection: core-seconds of starting and collecting, per `-m` expression.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Cost]] = {}
        self.fixtures: dict[str, list[float]] = {}
        self.shared: dict[str, list[str]] = {}
        self.collection: dict[str, float] = {}
        self._read()
        self._new_tests: dict[str, dict[str, Cost]] = {}
        self._new_shared: dict[str, list[str]] = {}
        self._new_fixtures: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        self._new_collection = 0.0

    def _read(self) -> None:
        content = {}
        with contextlib.suppress(FileNotFoundError):
            content = json.loads(self.path.read_text(encoding="utf-8"))
        for name in ("tests", "fixtures", "shared", "collection"):
            getattr(self, name).update(content.get(name, {}))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not hasattr(report, "cost"):  # the worker process crashed
            return
        wall_s, core_s = report.cost
        for name, (fixture_wall_s, fixture_core_s) in report.fixture_costs:
            total = self._new_fixtures[name]
            total[:] = total[0] + 1, total[1] + fixture_wall_s, total[2] + fixture_core_s
            wall_s, core_s = wall_s - fixture_wall_s, core_s - fixture_core_s
        if report.when == "setup":
            self._new_tests[report.nodeid] = {}
            self._new_shared[report.nodeid] = report.shared_fixtures
        cost = [round(max(0.0, seconds), 4) for seconds in (wall_s, core_s)]
        self._new_tests.setdefault(report.nodeid, {})[report.when] = cost

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._new_collection += getattr(node, "workeroutput", {}).get("collection", 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{self.path}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            self._add(session)
            self.write()

    def _add(self, session: pytest.Session) -> None:
        self.tests |= self._new_tests
        self.shared |= self._new_shared
        self.fixtures |= {
            name: cost for name, cost in self._new_fixtures.items() if max(cost[1:]) > 0.01
        }
        if self._new_collection:
            self.collection[session.config.option.markexpr] = round(self._new_collection, 2)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section(f"costs, in {self.path}")
        for line in self.report():
            terminalreporter.write_line(line)

    def write(self) -> None:
        """Write the file, one entry a line, the most expensive first."""
        num_users = Counter(name for names in self.shared.values() for name in names)
        # A fixture of every test distinguishes none.
        expensive = {
            name
            for name, entry in self.fixtures.items()
            if max(entry[1:]) > CHEAP_FIXTURE_S and num_users[name] < len(self.tests)
        }
        shared = {
            test: names
            for test, fixtures in sorted(self.shared.items())
            if (names := [name for name in fixtures if name in expensive])
        }
        fixtures = {
            name: [int(entry[0]), round(entry[1], 4), round(entry[2], 4)]
            for name, entry in sorted(self.fixtures.items(), key=lambda item: -item[1][2])
        }
        tests = dict(sorted(self.tests.items(), key=lambda item: -total(item[1])[1]))
        parts = {
            "collection": self.collection, "tests": tests, "fixtures": fixtures, "shared": shared
        }  # fmt: skip
        self.path.write_text(
            "{\n"
            + ",\n".join(f'"{name}": {_lines(part)}' for name, part in parts.items())
            + "\n}\n",
            encoding="utf-8",
        )

    def report(self, count: int = 20) -> list[str]:
        """Return lines that name the most expensive rooms, tests and fixtures."""
        rooms: dict[str, Cost] = defaultdict(lambda: [0.0, 0.0])
        for test, phases in self.tests.items():
            room = "/".join(test.partition("::")[0].split("/")[:2])
            rooms[room] = [
                entry + more for entry, more in zip(rooms[room], total(phases), strict=True)
            ]
        groups = {
            "rooms": rooms,
            "tests": {test: total(phases) for test, phases in self.tests.items()},
            "fixtures": {name: entry[1:] for name, entry in self.fixtures.items()},
        }
        lines = []
        for title, group in groups.items():
            lines += [f"{'core-s':>8} {'wall s':>8}  {title}"]
            ordered = sorted(group.items(), key=lambda item: -item[1][1])[:count]
            lines += [f"{core_s:8.2f} {wall_s:8.2f}  {name}" for name, (wall_s, core_s) in ordered]
        wall_s, core_s = (sum(cost[part] for cost in rooms.values()) for part in (0, 1))
        lines += [f"{core_s:8.0f} {wall_s:8.0f}  all tests, without shared fixtures"]
        lines += [
            f"{core_s:8.0f} {'':8}  collection of -m '{name}'"
            for name, core_s in self.collection.items()
        ]
        return lines

    def long_ones(self, budget_s: float = QUICK_BUDGET_S) -> tuple[list[str], float]:
        """Return the functions that are too long for `make test-quick`, and the limit per test.

        The limit is the highest at which all tests below it take `budget_s` together. A test that
        uses an expensive shared fixture counts as one that sets it up.
        """
        cases: dict[str, list[float]] = defaultdict(list)
        for test, phases in self.tests.items():
            made_s = sum(
                max(self.fixtures[name][1:]) / self.fixtures[name][0]
                for name in self.shared.get(test, ())
                if name in self.fixtures
            )
            cases[function_of(test)].append(max(total(phases)) + made_s)
        left_s, limit_s = budget_s, 0.0
        functions = sorted(cases, key=lambda name: max(cases[name]))
        for position, name in enumerate(functions):
            left_s -= sum(cases[name])
            if left_s < 0:
                return sorted(functions[position:]), limit_s
            limit_s = max(cases[name])
        return [], limit_s


def total(phases: dict[str, Cost]) -> Cost:
    """Return a test's cost, all phases together."""
    return [round(sum(cost[part] for cost in phases.values()), 4) for part in (0, 1)]


def _lines(part: dict[str, Any]) -> str:
    entries = (
        f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(value, separators=(',', ':'))}"
        for name, value in part.items()
    )
    return "{\n" + ",\n".join(entries) + "\n}"


def main(arguments: list[str] | None = None) -> int:
    """Print the measurements, or derive the list of long tests from them."""
    parser = argparse.ArgumentParser(prog="python -m tests.costs", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--write-long-ones", action="store_true", help=f"write {LONG_ONES.name}")
    options = parser.parse_args(arguments)
    if not options.file.exists():
        parser.error(
            f"{options.file} does not exist: run `make test OPTIONS=--costs={options.file}`"
        )
    costs = Costs(options.file)
    if not options.write_long_ones:
        print(*costs.report(), sep="\n")
        return 0
    names, limit_s = costs.long_ones()
    LONG_ONES.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    print(f"{LONG_ONES.name}: {len(names)} functions have a test of more than {limit_s:.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
