"""Costs: avoidable time in a program, place by place.

Each cost belongs to a statement, a tight loop or a small function, whether its cause is known
(`causes`) or not. `classification` separates costs from inherent work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from hotloop.base.statistics import Floats, keeps_rising
from hotloop.profiler.diagnose import causes, growing_structures, source
from hotloop.profiler.diagnose.causes import Cause, Explanation
from hotloop.profiler.diagnose.classification import Program
from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.evidence import Evidence, SampleRow, user_positions
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.diagnose.merging import merge_alike, merge_by_caller, merge_by_function
from hotloop.profiler.diagnose.wrappers import class_name
from hotloop.profiler.session import Frame, ProfiledProcess, Stack, is_library
from hotloop.profiler.session.stages import CodeLine
from hotloop.profiler.session.sums import ranked, sums

# Causes that are recognized by more than the names on their line.
_VERIFIED = (causes.ONE_AT_A_TIME,)


class Costs:
    """A program's costs and its inherent work.

    Args:
        evidence: the program.
        explained: causes that were found by the program's structure, which explain some rows.

    Attributes:
        costs: all costs, most expensive first.
        inherent: nanoseconds by category: "environments", "networks", "arithmetic", "libraries".
        loop_ns: the program's time without importing and starting.
    """

    def __init__(
        self, evidence: Evidence, explained: Sequence[tuple[Cause, Explanation]] = ()
    ) -> None:
        self._main = evidence.main
        self._starting = {
            row.sample.stack for row in evidence.rows_of(evidence.main) if row.stage == "import"
        }
        costs, self.inherent = _classify(Program(evidence.rows, evidence), explained)
        self.start_ns = self.inherent.pop("starting", 0.0)
        costs = _with_interpreter_costs(evidence, costs)
        # A compilation at the first call is part of the start-up.
        starting = [
            cost
            for cost in costs
            if cost.cause is causes.COMPILATION
            and (
                self.is_part_of_start(cost)
                or self._ends_early(cost)
                or self._runs_after(cost, evidence)
            )
        ]
        self.start_ns += sum(cost.ns for cost in starting)
        is_start = set(starting)
        costs = merge_alike([cost for cost in costs if cost not in is_start])
        self.costs = sorted(costs, key=lambda cost: -cost.ns)
        for cost in self.costs:
            is_other = not any(_is_main_thread(row, self._main) for row in cost.rows)
            if is_other and cost.cause is not causes.INTERPRETER:
                cost.wait_line = evidence.longest_wait_line
                vars(cost).pop("places", None)
        self.loop_ns = max(1.0, evidence.duration_ns - self.start_ns)

    def pace(self, cost: Cost) -> str:
        """Return whether a cost occurs "once", is "repeated", or is "growing" during the run."""
        in_main = [row for row in cost.rows if row.process is self._main]
        counts = self._counts({row.sample.stack for row in in_main})
        is_elsewhere = sum(row.ns for row in in_main) < 0.5 * cost.ns
        if len(counts) < 4 or not counts.any() or is_elsewhere:
            return "repeated"
        other_counts = self._running_counts - counts
        # The last period may be incomplete.
        if counts[-1] + other_counts[-1] < 0.5 * np.median(counts + other_counts):
            counts, other_counts = counts[:-1], other_counts[:-1]
        if not counts.sum():
            return "repeated"
        largest = np.convolve(counts, np.ones(2), "same").max()
        if len(counts) >= 6 and largest >= LIMITS.once_share * counts.sum():
            return "once"
        # Compare with the other work of each second, whose time per step is constant.
        at = np.flatnonzero(counts)
        share = (counts / np.maximum(other_counts, 1))[at[0] : at[-1] + 1]
        return "growing" if keeps_rising(share, LIMITS.growth) else "repeated"

    def _counts(self, stacks: Iterable[int]) -> Floats:
        """Return the samples of the main process in some stacks, by period."""
        counts = np.zeros(len(self._main.periods))
        for stack in stacks:
            for period, count in self._counts_by_stack.get(stack, ()):
                counts[period] += count
        return counts

    @cached_property
    def _counts_by_stack(self) -> dict[int, list[tuple[int, int]]]:
        """Periods and samples of each stack of the main process."""
        by_stack: dict[int, list[tuple[int, int]]] = {}
        for number, period in enumerate(self._main.periods):
            for stack, count in period.by_stack.items():
                by_stack.setdefault(stack, []).append((number, count))
        return by_stack

    @cached_property
    def _running_counts(self) -> Floats:
        """Samples of the main process by period, without importing and starting."""
        return self._counts(self._counts_by_stack.keys() - self._starting)

    def is_part_of_start(self, cost: Cost) -> bool:
        """Return whether a cost occurs in one short stretch that ends before the run does."""
        in_main = {row.sample.stack for row in cost.rows if row.process is self._main}
        counts = self._counts(in_main)
        at = np.flatnonzero(counts)
        if not len(at) or at[-1] == len(counts) - 1:
            return False
        stretch = at[-1] - at[0] + 1
        return bool(stretch == len(at) and stretch <= max(3, len(counts) / 4))

    def _ends_early(self, compilation: Cost) -> bool:
        """Return whether functions are compiled in a row, and all other work comes after that."""
        rows = (row for row in compilation.rows if row.process is self._main)
        counts = self._counts({row.sample.stack for row in rows})
        at = np.flatnonzero(counts)
        if not len(at) or len(at) != np.ptp(at) + 1:
            return False
        other_counts = self._running_counts - counts
        during, after = other_counts[at].sum(), other_counts[at[-1] + 1 :]
        return bool(len(after) >= 3 and after.sum() >= 4 * during)

    def _runs_after(self, compilation: Cost, evidence: Evidence) -> bool:
        """Return whether a line is compiled first, and then runs without another compilation."""
        rows = [row for row in compilation.rows if row.process is self._main]
        compiling = {row.sample.stack for row in rows}
        # A lambda or function that makes the call may itself be called first on one line, and
        # later on another.
        innermost = {_innermost_line(row.stack) for row in rows} - {None}
        running = {
            row.sample.stack
            for row in evidence.rows_of(self._main)
            if row.stage != "import"
            and row.sample.stack not in compiling
            and (
                not innermost.isdisjoint(zip(row.stack.frames, row.stack.lines, strict=True))
                or any(
                    position.frame == compilation.function and position.line in compilation.block
                    for position in user_positions(row.stack)
                )
            )
        }
        at = np.flatnonzero(self._counts(compiling))
        if not len(at):
            return False
        counts = self._counts(running)
        before, after = counts[: at[-1]].sum(), counts[at[-1] :].sum()
        # The first calls may compile again for other shapes.
        return bool(after >= max(3, 4 * before))


def _innermost_line(stack: Stack) -> tuple[Frame, int] | None:
    """Return the innermost frame and line outside of libraries, or None."""
    lines = zip(reversed(stack.frames), reversed(stack.lines), strict=True)
    return next(((frame, line) for frame, line in lines if not is_library(frame)), None)


def costs_of(rows: list[SampleRow]) -> list[Cost]:
    """Return the costs in the given rows, treated as a whole program."""
    return _classify(Program(rows), ())[0]


def _classify(
    program: Program, explained: Sequence[tuple[Cause, Explanation]]
) -> tuple[list[Cost], dict[str, float]]:
    """Return a program's costs, and its inherent nanoseconds by category."""
    inherent: dict[str, float] = {}
    by_key = {
        row.key: index for index, (_, x) in reversed([*enumerate(explained)]) for row in x.rows
    }
    structural: dict[int, list[SampleRow]] = {}
    named: dict[tuple[str, Frame, source.CodeBlock], Cost] = {}
    unnamed: dict[Frame, list[SampleRow]] = {}
    wrappers: dict[str, list[SampleRow]] = {}
    for row in program.rows:
        cause, index = program.classify(row), by_key.get(row.key)
        # A structure without an estimate does not show whether inherent work can be saved.
        if index is not None and not (
            isinstance(cause, str) and explained[index][1].saved_ns is None
        ):
            structural.setdefault(index, []).append(row)
        elif isinstance(cause, str):
            inherent[cause] = inherent.get(cause, 0.0) + row.ns
        elif cause is causes.WRAPPERS:
            at = program.wrappers.position(row.stack)
            assert at is not None  # `classify` returns WRAPPERS only at a wrapper's line
            wrappers.setdefault(class_name(at.frame), []).append(row)
        else:
            at = program.evaluation_call(row) or user_positions(row.stack)[0]
            if cause is not None and (cause.is_sure or cause in _VERIFIED):
                block = program.tight_loop(at) or source.statement_at(at.frame.file, at.line)
                cost = named.setdefault((cause.name, at.frame, block), Cost(cause, at.frame, block))
                cost.rows.append(row)
            else:
                unnamed.setdefault(at.frame, []).append(row)
    found = list(named.values())
    for frame, rows in unnamed.items():
        found += _function_costs(program, frame, rows)
    merged = merge_by_function(program, merge_by_caller(program, found))
    merged += _wrapper_costs(program, wrappers)
    for index, rows in structural.items():
        cause, explanation = explained[index]
        at = next((user_positions(row.stack)[0] for row in rows if user_positions(row.stack)), None)
        frame, line = at or (rows[0].stack.frames[-1], 1)
        block = source.statement_at(frame.file, line)
        merged.append(Cost(cause, frame, block, rows, explanation=explanation))
    return merged, inherent


def _wrapper_costs(program: Program, by_class: dict[str, list[SampleRow]]) -> list[Cost]:
    """Return the cost of each wrapper that is large enough to report, and one of all others.

    A wrapper's lines are no part of the line that steps the environment, which is inherent.
    """
    sums = {name: sum(row.ns for row in rows) for name, rows in by_class.items()}
    large = [name for name in by_class if sums[name] >= LIMITS.cost_share * program.loop_ns]
    small = [row for name, rows in by_class.items() if name not in large for row in rows]
    costs: list[Cost] = []
    for rows in (*(by_class[name] for name in large), small):
        if rows:
            first = max(rows, key=lambda row: row.ns)
            at = program.wrappers.position(first.stack)
            assert at is not None
            block = source.function_around(at.frame.file, at.line)
            costs.append(Cost(causes.WRAPPERS, at.frame, block, rows))
    return costs


def _function_costs(program: Program, frame: Frame, rows: list[SampleRow]) -> list[Cost]:
    """Return the costs of a function's own lines: of a line, a loop, or the whole function."""
    by_block: dict[source.CodeBlock, list[SampleRow]] = {}
    loops: set[source.CodeBlock] = set()
    for row in rows:
        at = user_positions(row.stack)[0]
        loop = program.tight_loop(at)
        if loop is not None:
            loops.add(loop)
        block = loop or source.statement_at(frame.file, at.line)
        by_block.setdefault(block, []).append(row)
    found: list[Cost] = []
    for block in sorted(by_block, key=lambda block: block.first):
        block_rows = by_block[block]
        names = source.names_called(frame.file, _largest_statement(block_rows))
        cause = causes.for_calls(names)
        blocked_ns = sum(row.ns for row in block_rows if row.is_blocked)
        if blocked_ns > 0.5 * sum(row.ns for row in block_rows):
            cause = None  # what a line computes is no cause of its waits
        elif block in loops:
            cause = causes.PYTHON_LOOP
        elif cause is not None and (
            cause.is_sure or not _is_confirmed(program, cause, frame.file, block_rows)
        ):
            cause = None  # names alone do not establish this cause, see `Program.classify`
        if (
            cause is not None
            and found
            and cause is found[-1].cause
            and source.are_consecutive(frame.file, found[-1].block, block)
        ):
            # A batch is converted field by field. One change removes all of these lines.
            first = found.pop()
            block = source.CodeBlock(first.block.first, block.last)
            block_rows = [*first.rows, *block_rows]
        found.append(Cost(cause, frame, block, block_rows))
    function = source.function_around(frame.file, user_positions(rows[0].stack)[0].line)
    if frame in program.main_functions or any(
        line in function for line in program.core_lines.get(frame.file, ())
    ):
        return found
    whole = sum(cost.ns for cost in found)
    largest = max(found, key=lambda cost: cost.ns)
    if len(found) == 1 or largest.ns >= LIMITS.dominant_share * whole:
        # One line dominates the function.
        return found
    by_cause = sums((cost.cause, cost.ns) for cost in found if cost.cause is not None)
    if sum(by_cause.values()) > LIMITS.alike_share * whole:
        return [Cost(ranked(by_cause)[0], frame, function, rows)]
    return [Cost(None, frame, function, rows, is_spread=True)]


def _is_confirmed(program: Program, cause: Cause, file: str, rows: list[SampleRow]) -> bool:
    """Return whether lines that call a cause's functions really do what the cause describes."""
    # The structure that they traverse must persist over iterations. In programs without library
    # networks and environments this also applies to sorting and sampling.
    if cause is not causes.WALKED_EACH_STEP and program.has_core:
        return True
    block = _largest_statement(rows)
    return growing_structures.passes_growing_structure(
        file, block
    ) or growing_structures.passes_persistent_structure(file, block)


def _largest_statement(rows: list[SampleRow]) -> source.CodeBlock:
    positions = ((user_positions(row.stack)[0], row.ns) for row in rows)
    times = sums((source.statement_at(at.frame.file, at.line), ns) for at, ns in positions)
    return ranked(times)[0]


def _with_interpreter_costs(evidence: Evidence, costs: list[Cost]) -> list[Cost]:
    """Return the costs with those of threads that hold the interpreter's lock.

    If the main thread also waits for such a thread itself, its line already has a cost, and the
    larger of both decides on its cause. The main thread's own work at the same line is another one.
    """
    result = costs[:]
    indices: dict[tuple[CodeLine, ...], int] = {}
    for index, cost in enumerate(costs):
        in_main = sum(row.ns for row in cost.rows if _is_main_thread(row, evidence.main))
        if cost.explanation is None and in_main < 0.5 * cost.ns:
            indices.setdefault(cost.places[:1], index)
    for holder in _interpreter_costs(evidence):
        index = indices.setdefault(holder.places[:1], len(result))
        if index == len(result):
            result.append(holder)
        else:
            result[index] = max(result[index], holder, key=lambda cost: cost.ns)
    return result


def _is_main_thread(row: SampleRow, main: ProfiledProcess) -> bool:
    return row.process is main and row.sample.thread == main.pid


def _interpreter_costs(evidence: Evidence) -> list[Cost]:
    """Return the work of other threads while the main one waited for the interpreter's lock."""
    main = evidence.main
    waited_ns = sum(row.sample.waits.get("interpreter", 0) for row in evidence.rows_of(main))
    if not waited_ns:
        return []
    found: dict[tuple[Frame, source.CodeBlock], Cost] = {}
    for thread in evidence.other_threads:
        for row in evidence.rows_of(main, thread):
            chain = user_positions(row.stack)
            if not chain or not row.sample.on_core_ns:
                continue
            frame, line = chain[0]
            block = source.loop_around(frame.file, line) or source.statement_at(frame.file, line)
            cost = found.setdefault((frame, block), Cost(causes.INTERPRETER, frame, block))
            waits = {"interpreter": row.sample.on_core_ns}
            cost.rows.append(
                row._replace(
                    sample=row.sample._replace(
                        elapsed_ns=row.sample.on_core_ns, on_core_ns=0, queued_ns=0, waits=waits
                    )
                )
            )
    at_work = sum(cost.ns for cost in found.values())
    for cost in found.values():
        cost.rows = [row._replace(weight=waited_ns / at_work) for row in cost.rows]
        del cost.ns
    return list(found.values())
