"""Merging of costs that one change of the program removes: of one line, function or cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotloop.profiler.diagnose import causes, source
from hotloop.profiler.diagnose.causes import Cause
from hotloop.profiler.diagnose.classification import Program
from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.evidence import CodePosition, user_positions
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session import Frame
from hotloop.profiler.session.stages import stage_by_name
from hotloop.profiler.session.sums import Key, ranked, sums


def merge_alike(costs: list[Cost]) -> list[Cost]:
    """Merge the costs of each cause that is waste, since the same change removes them.

    So it does for messages, which one process sends and another one receives.
    """
    alike: dict[str, list[Cost]] = {}
    for cost in costs:
        is_one = cost.is_waste or cost.cause is causes.MESSAGES
        if is_one and cost.cause is not None and cost.explanation is None:
            alike.setdefault(cost.cause.name, []).append(cost)
    for parts in alike.values():
        if len(parts) > 1:
            whole = max(parts, key=lambda cost: cost.ns)
            rows = [row for cost in parts for row in cost.rows]
            merged = Cost(whole.cause, whole.function, whole.block, rows, whole.is_spread)
            is_part = set(parts)
            costs = [merged, *(cost for cost in costs if cost not in is_part)]
    return costs


class _PendingCosts:
    """Costs that are not merged yet, by the user's lines that all of their samples pass.

    Sums by line are updated with each removal, so that thousands of functions that one line calls
    take no longer than as many of different lines.
    """

    def __init__(self, costs: Iterable[Cost]) -> None:
        self._costs: dict[Cost, list[CodePosition]] = {}
        self._below: dict[CodePosition, list[Cost]] = {}
        self._ns: dict[tuple[CodePosition, Cause | None], float] = {}
        self._total_ns: dict[CodePosition, float] = {}
        for cost in costs:
            self._costs[cost] = _common([user_positions(row.stack) for row in cost.rows])
            for line in self._costs[cost]:
                self._below.setdefault(line, []).append(cost)
            self._add(cost, cost.ns)

    def __contains__(self, cost: Cost) -> bool:
        return cost in self._costs

    def remove(self, cost: Cost) -> None:
        self._add(cost, -cost.ns)
        del self._costs[cost]

    def take_below(self, line: CodePosition) -> list[Cost]:
        """Remove and return the costs that a line calls."""
        costs = [cost for cost in self._below.pop(line, ()) if cost in self]
        for cost in costs:
            self.remove(cost)
        return costs

    def total_ns(self, line: CodePosition) -> float:
        """Return the time of all costs that a line calls."""
        return self._total_ns.get(line, 0.0)

    def ns_of_cause(self, line: CodePosition, cause: Cause | None) -> float:
        """Return the time of the costs of one cause that a line calls, 0 if it is unknown."""
        return 0.0 if cause is None else self._ns.get((line, cause), 0.0)

    def _add(self, cost: Cost, ns: float) -> None:
        for line in self._costs[cost]:
            key = line, cost.cause
            self._ns[key] = self._ns.get(key, 0.0) + ns
            self._total_ns[line] = self._total_ns.get(line, 0.0) + ns


def merge_by_caller(program: Program, costs: list[Cost]) -> list[Cost]:
    """Merge the costs that one line of the user calls, if one of them dominates that line."""
    # A cost moves up to the only line that calls it if the costs of its cause take at least half of
    # that line's time, or three quarters for known waste.
    ordered = sorted(costs, key=lambda cost: -cost.ns)
    pending = _PendingCosts(ordered)
    merged: list[Cost] = []
    for cost in ordered:
        if cost not in pending:
            continue
        pending.remove(cost)
        line = CodePosition(cost.function, cost.places[0].line)
        is_part = program.inclusive_ns.get(line, 0.0) < LIMITS.main_share * program.loop_ns
        if (
            is_part
            and line not in program.driving_lines
            and cost.ns > LIMITS.inside_share * program.inclusive_ns.get(line, 0.0)
        ):
            # The line takes much of its time itself, so the costs that it calls belong to it.
            cost.rows += [row for other in pending.take_below(line) for row in other.rows]
            del cost.ns
        # A cost spread over a function's lines is reported by the function, not by its caller.
        while not cost.is_spread and (caller := _caller(program, cost)) is not None:
            alike = cost.ns + pending.ns_of_cause(caller, cost.cause)
            whole = cost.ns + pending.total_ns(caller)
            # Known waste is not mixed with other work of its caller.
            minimum = LIMITS.dominant_waste_share if cost.is_waste else LIMITS.dominant_share
            if caller in program.driving_lines or alike < minimum * max(
                whole, program.inclusive_ns.get(caller, 0.0)
            ):
                break
            inside = pending.take_below(caller)
            rows = [row for part in (cost, *inside) for row in part.rows]
            block = source.statement_at(caller.frame.file, caller.line)
            cost = Cost(cost.cause, caller.frame, block, rows)
        cost.is_core_work = _is_core_work(program, cost)
        cost.is_guess = _is_guess(program, cost)
        merged.append(cost)
    return merged


def merge_by_function(program: Program, costs: list[Cost]) -> list[Cost]:
    """Merge costs that are too small to report into one cost per function."""
    # The function is the innermost of the user's that consists mostly of such costs. A thread's
    # main functions are excluded.
    ordered = [cost for cost in costs if cost.ns < LIMITS.cost_share * program.loop_ns]
    small = set(ordered)
    inside: dict[Frame, list[Cost]] = {}
    for part in ordered:
        chains = [[at.frame for at in user_positions(row.stack)] for row in part.rows]
        for frame in _common(chains):  # from the inside out, which decides between equal times
            if frame not in program.main_functions:
                inside.setdefault(frame, []).append(part)
    function_ns = program.function_ns
    for frame in sorted(inside, key=lambda frame: function_ns[frame]):
        parts = [part for part in inside[frame] if part in small]
        whole = sum(part.ns for part in parts)
        if len(parts) < 2 or whole < max(
            LIMITS.cost_share * program.loop_ns, LIMITS.self_share * function_ns[frame]
        ):
            continue
        by_cause = sums((part.cause, part.ns) for part in parts)
        known = ranked(by_cause)[0]
        if by_cause[known] < LIMITS.alike_share * whole:
            known = None
        rows = [row for part in parts for row in part.rows]
        line = next(at.line for at in user_positions(rows[0].stack) if at.frame == frame)
        block = source.function_around(frame.file, line)
        cost = Cost(known, frame, block, rows, is_spread=known is None)
        cost.is_core_work = _is_core_work(program, cost)
        cost.is_guess = _is_guess(program, cost)
        small.difference_update(parts)
        merged = set(parts)
        costs = [cost, *(other for other in costs if other not in merged)]
    return costs


def _common(chains: Sequence[Sequence[Key]]) -> list[Key]:
    """Return the elements that all sequences have, once each, in the order of the first one."""
    if not chains:
        return []
    shared = set(chains[0]).intersection(*chains[1:])
    return [key for key in dict.fromkeys(chains[0]) if key in shared]


def _is_core_work(program: Program, cost: Cost) -> bool:
    is_large = cost.ns > LIMITS.large_share * program.loop_ns
    if program.has_core or cost.wait not in ("computing", "queued"):
        return False
    known = cost.cause not in (None, causes.WALKED_EACH_STEP)
    if cost.is_waste or (known and is_large):
        return False
    return (
        cost.cause is causes.PYTHON_LOOP
        or cost.function in program.main_functions
        or any(
            row.stage in ("env", "act", "update") or stage_by_name(row.stack) != "other"
            for row in cost.rows
        )
    )


def _is_guess(program: Program, cost: Cost) -> bool:
    """Return whether only its time suggests a cost, in a program without a library core."""
    is_known = cost.cause is not None or cost.wait not in ("computing", "queued")
    return not program.has_core and not is_known


def _caller(program: Program, cost: Cost) -> CodePosition | None:
    """Return the only line that calls a cost's function. Main functions have no such line."""
    if cost.function in program.main_functions:
        return None
    calls: list[tuple[CodePosition, float]] = []
    for row in cost.rows:
        chain = user_positions(row.stack)
        at = [i for i, position in enumerate(chain) if position.frame == cost.function]
        if at and at[-1] + 1 < len(chain):
            calls.append((chain[at[-1] + 1], row.ns))
    times = sums(calls)
    callers = (at for at in ranked(times)[:1] if times[at] > LIMITS.only_caller_share * cost.ns)
    return next(callers, None)
