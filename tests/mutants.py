"""Check that the tests notice faults: change the source at random places and run the tests.

    python tests/mutants.py --source src --tests tests --seed 41 --count 30

A mutant is a copy of the source with one change: a flipped comparison, a dropped statement or
another constant. It is caught if a test fails that passes without the change, or if the tests hang.
The tests of the mutated room run first, then those of rooms that use it (`COVERED_BY`).

Results are kept in a file, one mutant a line. A second call goes on where the first one stopped.
To try the same mutants on another checkout, pass the file of the first one:

    python tests/mutants.py --source NEW/src --tests NEW/tests --same-as build/mutants.jsonl \\
        --results build/mutants-new.jsonl

Some mutants are equivalent: the change has no effect that a test could see. Read each survivor.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

SELECTION = "not slow and not gpu and not faults"
# The rooms of tests that cover a room of the source, besides its own. Modules that stand beside the
# rooms, such as errors.py, are covered by tests/test_*.py and by the rooms of "".
COVERED_BY = {
    "": ["learner", "cli"],
    "algorithms": ["training", "cli"],
    "bandits": ["cli/test_bandit.py", "cli/test_bandit_grid.py"],
    "base": ["cli", "learner", "rollouts", "runs", "timing"],
    "cli": [],
    "envs": ["rollouts", "training"],
    "learner": ["algorithms", "training"],
    "ops": ["algorithms", "bandits", "learner", "rollouts"],
    "policies": ["learner", "algorithms", "training"],
    "profiler": ["cli/test_cli.py", "cli/test_report_run.py"],
    "replay": ["algorithms", "training"],
    "reports": ["cli"],
    "rollouts": ["training", "cli/test_train_workers.py"],
    "runs": ["training", "cli"],
    "experiments": ["cli"],
    "timing": ["profiler", "cli"],
    "training": ["algorithms", "cli"],
}
# What these rooms compile depends on their source, so a cache of it is used once only.
_COMPILED = {"algorithms", "bandits", "learner", "ops", "policies", "replay"}
# Not copied to the checkout in which tests run.
_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "runs", "__pycache__", ".*_cache", "*.egg-info"
)
_FLIPPED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of the source.

    Attributes:
        path: the module, relative to the source directory.
        function: the qualified name of the function or class around it; empty in a module.
        kind: "comparison", "statement" or "constant".
        before, after: the source text.
        occurrence: how many equal texts of this kind come before it in the function.
        line: where it was found; the position in another checkout may differ.
    """

    path: str
    function: str
    kind: str
    before: str
    after: str
    occurrence: int
    line: int

    def __str__(self) -> str:
        change = (
            f"{self.before} → {self.after}" if self.after != "pass" else f"without {self.before}"
        )
        return f"{self.path}:{self.line} {self.function}: {' '.join(change.split())}"


@dataclass(frozen=True)
class _Place:
    mutant: Mutant
    start: int  # bytes
    end: int


def places_of(path: str, text: str) -> list[_Place]:
    """Return every place of a module that can be changed, in order."""
    raw = text.encode()
    lines = [0]
    for line in raw.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    counts: Counter[tuple[str, str, str]] = Counter()
    places = []
    for function, node in _nodes(ast.parse(text), ""):
        for kind, after in _changes(node):
            start = lines[node.lineno - 1] + node.col_offset
            end = lines[node.end_lineno - 1] + node.end_col_offset
            before = raw[start:end].decode()
            key = (function, kind, before)
            mutant = Mutant(path, function, kind, before, after, counts[key], node.lineno)
            counts[key] += 1
            places.append(_Place(mutant, start, end))
    return places


def _nodes(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes below one, but for annotations, formatted strings and type checkers' code."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            inside = function
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inside = f"{function}.{child.name}".lstrip(".")
            yield inside, child
            yield from _nodes(child, inside)


def _changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Compare):
        flipped = [_FLIPPED[type(node.ops[0])](), *node.ops[1:]]
        changed = ast.Compare(left=node.left, ops=flipped, comparators=node.comparators)
        yield "comparison", f"({ast.unparse(changed)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = node.value
        if isinstance(value, bool):
            yield "constant", str(not value)
        else:
            yield "constant", str(value + 1 if isinstance(value, int) else value * 2 or 1.0)
    elif (
        isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete))
        or (isinstance(node, ast.Expr) and not isinstance(node.value, (ast.Constant, ast.Yield)))
        or (
            # Without a plain assignment the name is missing, which any test would notice.
            isinstance(node, ast.Assign)
            and not any(isinstance(target, ast.Name) for target in node.targets)
        )
    ):
        yield "statement", "pass"


def pick(source: Path, seed: int, count: int) -> list[Mutant]:
    """Pick places at random: first a kind of change, then a place, so that each kind is tried."""
    by_kind: dict[str, list[Mutant]] = {}
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source).as_posix()
        for place in places_of(name, path.read_text(encoding="utf-8")):
            by_kind.setdefault(place.mutant.kind, []).append(place.mutant)
    chance = random.Random(seed)
    kinds = sorted(by_kind)
    for mutants in by_kind.values():
        chance.shuffle(mutants)
    return [by_kind[kinds[number % len(kinds)]].pop() for number in range(count)]


def mutate(mutant: Mutant, text: str) -> str | None:
    """Return a module's text with the change, or None if the place is not in it."""
    target = replace(mutant, line=0)
    for place in places_of(mutant.path, text):
        if replace(place.mutant, line=0) == target:
            raw = text.encode()
            return (raw[: place.start] + mutant.after.encode() + raw[place.end :]).decode()
    return None


def stages_of(path: str, tests: Path) -> list[list[str]]:
    """Return the tests that cover a module: first those of its room, then those of others."""
    parts = path.split("/")[1:]  # without the package
    room = parts[0] if len(parts) > 1 else ""
    room_tests = (
        [f"tests/{room}"]
        if room
        else sorted(f"tests/{file.name}" for file in tests.glob("test_*.py"))
    )
    stages = [room_tests, [f"tests/{name}" for name in COVERED_BY.get(room, COVERED_BY[""])]]
    return [
        found
        for stage in stages
        if (found := [file for file in stage if (tests.parent / file).exists()])
    ]


class Checkout:
    """Copies of a checkout, in which the tests run on a mutated source.

    Args:
        source: the directory with the package, copied in place of the checkout's own `src`.
        tests: the directory `tests` of the checkout.
        scratch: directory for the copies.
        timeout_s: the least time after which a stage of the tests counts as hanging.
    """

    def __init__(self, source: Path, tests: Path, scratch: Path, timeout_s: float) -> None:
        self._source, self._tests = source.resolve(), tests.resolve()
        self._scratch, self._timeout_s = scratch, timeout_s
        self._local = threading.local()
        self._lock = threading.Lock()
        self._clean: dict[tuple[str, ...], tuple[list[str], float]] = {}

    def _copy(self) -> Path:
        """Return this thread's copy."""
        if not hasattr(self._local, "copy"):
            folder = Path(tempfile.mkdtemp(dir=self._scratch)) / "checkout"
            shutil.copytree(self._tests.parent, folder, ignore=_NOT_COPIED, symlinks=True)
            # `runs` is left out at the top only: a room has the name too.
            for name, origin in (("src", self._source), ("tests", self._tests)):
                shutil.rmtree(folder / name, ignore_errors=True)
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(origin, folder / name, ignore=ignored, symlinks=True)
            self._local.copy = folder
        return self._local.copy

    def _run(
        self, folder: Path, tests: list[str], *options: str, timeout_s: float | None = None
    ) -> tuple[int | None, str]:
        """Run tests, and return pytest's exit code and output; no code if it takes too long."""
        path = os.pathsep.join([str(folder / "src"), str(folder)])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", SELECTION]
        environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                [*command, *options, *tests],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None, ""
            output.seek(0)
            return code, output.read()

    def _failing(self, tests: list[str]) -> tuple[list[str], float]:
        """Return the tests that fail without a mutant, and how long all take."""
        with self._lock:
            if tuple(tests) not in self._clean:
                start = time.perf_counter()
                code, output = self._run(self._copy(), tests)
                if code not in (0, 1):
                    raise SystemExit(f"the tests do not run without a mutant:\n{output[-3000:]}")
                self._clean[tuple(tests)] = _failures(output), time.perf_counter() - start
        return self._clean[tuple(tests)]

    def judge(self, mutant: Mutant) -> str:
        """Run the tests on a mutant and return the verdict."""
        folder = self._copy()
        path = folder / "src" / mutant.path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        changed = mutate(mutant, text)
        if changed is None:
            return "not in this source"
        is_compiled = not _COMPILED.isdisjoint(mutant.path.split("/")) or "numba" in mutant.path
        for tests in stages_of(mutant.path, self._tests):
            failing, took_s = self._failing(tests)
            deselected = [f"--deselect={name}" for name in failing]
            timeout_s = max(self._timeout_s, 3 * took_s)
            if is_compiled:
                shutil.rmtree(folder / ".pytest_cache", ignore_errors=True)
            path.write_text(changed, encoding="utf-8")
            try:
                code, output = self._run(folder, tests, "-x", *deselected, timeout_s=timeout_s)
            finally:
                path.write_text(text, encoding="utf-8")
                if is_compiled:
                    shutil.rmtree(folder / ".pytest_cache", ignore_errors=True)
            if code is None:
                return f"caught: {' '.join(tests)} hang"
            if code not in (0, 5):  # 5: nothing was collected
                return f"caught: {next(iter(_failures(output)), 'the tests do not start')}"
        return "survived"


def _failures(output: str) -> list[str]:
    """Return the tests that a summary of pytest names as failed."""
    lines = [
        line.split(" ", 1)[1]
        for line in output.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    return [line.split(" - ")[0] for line in lines]


def main(arguments: list[str] | None = None) -> int:
    """Pick or read mutants, judge those that have no result yet, and print all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=Path("src"), help="directory of the package")
    parser.add_argument("--tests", type=Path, default=Path("tests"), help="directory of its tests")
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--same-as", type=Path, help="results whose mutants are tried again")
    parser.add_argument("--results", type=Path, default=Path("build/mutants.jsonl"))
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds until tests hang")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    options = parser.parse_args(arguments)

    if options.same_as:
        mutants = list(_read(options.same_as))
    else:
        mutants = pick(options.source, options.seed, options.count)
    if options.list:
        print(*mutants, sep="\n")
        return 0
    results = _read(options.results)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        checkout = Checkout(options.source, options.tests, Path(scratch), options.timeout)

        def judge(mutant: Mutant) -> None:
            outcome = checkout.judge(mutant)
            with lock, open(options.results, "a", encoding="utf-8") as file:
                results[mutant] = outcome
                file.write(
                    json.dumps(asdict(mutant) | {"outcome": outcome}, ensure_ascii=False) + "\n"
                )
                print(f"{outcome}\n    {mutant}", flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(judge, [mutant for mutant in mutants if mutant not in results]))

    counts = Counter(results[mutant].partition(":")[0] for mutant in mutants)
    print(f"\nof {len(mutants)} mutants: " + ", ".join(f"{n} {one}" for one, n in counts.items()))
    print(*(f"survived: {one}" for one in mutants if results[one] == "survived"), sep="\n")
    return 0


def _read(path: Path) -> dict[Mutant, str]:
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {Mutant(**{k: v for k, v in e.items() if k != "outcome"}): e["outcome"] for e in entries}


if __name__ == "__main__":
    sys.exit(main())
