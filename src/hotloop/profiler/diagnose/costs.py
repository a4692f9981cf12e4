"""Costs: what could be removed from a program, place by place.

A cost is of the statement, the tight loop or the small function that it is seen in, whether anybody
knows its kind or not (`kinds`). `nature` tells costs from what is inherent.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hotloop.profiler.diagnose import growing, kinds, source
from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.evidence import Evidence, Position, Row, positions
from hotloop.profiler.diagnose.kinds import Kind
from hotloop.profiler.diagnose.nature import TRUNK, Program
from hotloop.profiler.session import Frame
from hotloop.profiler.session.stages import stage_by_name
from hotloop.statistics import Floats, kendall, thirds

# One line of a function, or function of a caller, that has so much of it stands for it.
_DOMINANT, _DOMINANT_WASTE = 0.5, 0.75
# A loop over elements that has so much of it is not what a program without networks is for.
LARGE = 0.5

# What is told of a line or function, of the loop; a function is told where most of it is costs.
SMALL, _MOST = 0.15, 0.7

# Kinds that are told by more than the names on their line.
_SEEN = (kinds.WRAPPERS, kinds.ONE_BY_ONE)


class Costs:
    """A program's costs and what is inherent in it.

    Attributes:
        costs: what takes most first.
        inherent: nanoseconds by what it is: "environments", "networks", "arithmetic", "libraries".
        loop_ns: the program's time without importing and starting.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._main = evidence.main
        self._starting = {
            row.sample.stack for row in evidence.rows_of(evidence.main) if row.stage == "import"
        }
        costs, self.inherent = _sorted_out(Program(evidence.rows))
        self.start_ns = self.inherent.pop("starting", 0.0)
        for holder in _holding_interpreter(evidence):
            same = next((one for one in costs if one.places[0] == holder.places[0]), None)
            if same is None:
                costs.append(holder)
            else:  # it is in the way of the main thread, or what that waits for
                same.kind = kinds.INTERPRETER
                same.rows = max(same, holder, key=lambda one: one.ns).rows
        # What is compiled once, when it is first called, is part of starting.
        starting = [one for one in costs if one.kind is kinds.COMPILES and self.is_of_start(one)]
        self.start_ns += sum(one.ns for one in starting)
        costs = _compiled_anew([one for one in costs if one not in starting])
        self.costs = sorted(costs, key=lambda one: -one.ns)
        for cost in self.costs:
            threads = {(row.process.pid, row.sample.thread) for row in cost.rows}
            is_other = (self._main.pid, self._main.pid) not in threads
            if is_other and cost.kind is not kinds.INTERPRETER:
                cost.waited_at = evidence.waited_at
                vars(cost).pop("places", None)
        self.loop_ns = max(1.0, evidence.whole_ns - self.start_ns)

    def pace(self, cost: Cost) -> str:
        """Whether a cost comes once, again and again, or grows while the program runs."""
        own = self._counts(row.sample.stack for row in cost.rows if row.process is self._main)
        if len(own) < 4 or not own.any():
            return "repeated"
        rest = self._counts() - self._counts(self._starting) - own
        # The last one is as short as it happens to be.
        if own[-1] + rest[-1] < 0.5 * np.median(own + rest):
            own, rest = own[:-1], rest[:-1]
        if not own.sum():
            return "repeated"
        largest = np.convolve(own, np.ones(2), "same").max()
        if len(own) >= 6 and largest >= 0.9 * own.sum():
            return "once"
        # Of each second, against what else was done in it: steps take no other time than before.
        at = np.flatnonzero(own)
        share = (own / np.maximum(rest, 1))[at[0] : at[-1] + 1]
        if len(share) < 5:
            return "repeated"
        first, last = thirds(share)
        # Noise rises so steadily once in twenty-five times, and seldom to the double.
        return "growing" if last > 2 * max(first, 1e-3) and kendall(share) >= 0.6 else "repeated"

    def _counts(self, stacks: Iterable[int] | None = None) -> Floats:
        """Samples of main by period, of some stacks or of all."""
        chosen = None if stacks is None else set(stacks)
        return np.array(
            [
                sum(n for stack, n in one.by_stack.items() if chosen is None or stack in chosen)
                for one in self._main.periods
            ],
            np.float64,
        )

    def is_of_start(self, cost: Cost) -> bool:
        """Whether a cost comes in one stretch of few seconds, that has an end."""
        own = self._counts(row.sample.stack for row in cost.rows if row.process is self._main)
        at = np.flatnonzero(own)
        if not len(at) or at[-1] == len(own) - 1:
            return False
        stretch = at[-1] - at[0] + 1
        return bool(stretch == len(at) and stretch <= max(3, len(own) / 4))


def costs_of(rows: list[Row]) -> list[Cost]:
    """Costs in some rows, as they are all that there is."""
    return _sorted_out(Program(rows))[0]


def _sorted_out(program: Program) -> tuple[list[Cost], dict[str, float]]:
    """Costs of a program, and nanoseconds of what is inherent by what it is."""
    inherent: dict[str, float] = {}
    named: dict[tuple[str, Frame, source.Block], Cost] = {}
    others: dict[Frame, list[Row]] = {}
    for row in program.rows:
        kind = program.nature(row)
        if isinstance(kind, str):
            inherent[kind] = inherent.get(kind, 0.0) + row.ns
            continue
        at = program.evaluated_at(row) or positions(row.stack)[0]
        if kind is not None and (kind.is_sure or kind in _SEEN):
            block = program.tight_loop(at) or source.statement_at(at.frame.file, at.line)
            cost = named.setdefault((kind.rule, at.frame, block), Cost(kind, at.frame, block))
            cost.rows.append(row)
        else:
            others.setdefault(at.frame, []).append(row)
    found = list(named.values())
    for frame, rows in others.items():
        found += _of_function(program, frame, rows)
    return _by_function(program, _joined(program, found)), inherent


def _compiled_anew(costs: list[Cost]) -> list[Cost]:
    """Return the costs, with those of compiling as one: one change ends it in all calls."""
    compiling = [one for one in costs if one.kind is kinds.COMPILES]
    if len(compiling) < 2:
        return costs
    largest = max(compiling, key=lambda one: one.ns)
    rows = [row for one in compiling for row in one.rows]
    whole = Cost(largest.kind, largest.function, largest.block, rows, largest.is_spread)
    return [whole, *(one for one in costs if one not in compiling)]


def _joined(program: Program, costs: list[Cost]) -> list[Cost]:
    """Costs that one line of the user's calls, with the one that has most of that line's time.

    A line that is called for nothing else, whose half and more is one cost, is what it is for.
    """
    left = sorted(costs, key=lambda one: -one.ns)
    done: list[Cost] = []
    while left:
        cost = left.pop(0)
        line = Position(cost.function, cost.places[0].line)
        is_part = program.passing.get(line, 0.0) < TRUNK * program.loop_ns
        if (
            is_part
            and line not in program.drives
            and cost.ns > 0.3 * program.passing.get(line, 0.0)
        ):
            # What a line calls is for it, where it has much of the time itself.
            inside = [one for one in left if _is_under(one, line)]
            left = [one for one in left if one not in inside]
            cost.rows += [row for one in inside for row in one.rows]
            del cost.ns
        # What is spread over a function's lines is told by its name, not by the line that calls it.
        while not cost.is_spread and (caller := _caller(program, cost)) is not None:
            inside = [one for one in left if one is not cost and _is_under(one, caller)]
            alike = cost.ns + sum(
                one.ns for one in inside if cost.kind is not None and one.kind is cost.kind
            )
            whole = cost.ns + sum(one.ns for one in inside)
            # What is known as waste is not mixed with what else its caller does.
            least = _DOMINANT_WASTE if cost.is_waste else _DOMINANT
            if caller in program.drives or alike < least * max(
                whole, program.passing.get(caller, 0.0)
            ):
                break
            left = [one for one in left if one not in inside]
            rows = [row for one in (cost, *inside) for row in one.rows]
            block = source.statement_at(caller.frame.file, caller.line)
            cost = Cost(cost.kind, caller.frame, block, rows)
        cost.is_own_work = _is_own_work(program, cost)
        cost.is_guess = _is_guess(program, cost)
        done.append(cost)
    return done


def _by_function(program: Program, costs: list[Cost]) -> list[Cost]:
    """The costs, with those as one that are each too small to be told, and a function's together.

    Of the user's functions the innermost one that has so much: one that is little else, and not
    what a thread does all the time.
    """
    small = [one for one in costs if one.ns < SMALL * program.loop_ns]
    inside: dict[Frame, list[Cost]] = {}
    for one in small:
        for frame in _all_in(one) - program.trunk:
            inside.setdefault(frame, []).append(one)
    passing = program.function_ns
    for frame in sorted(inside, key=lambda one: passing[one]):
        parts = [one for one in inside[frame] if one in small]
        whole = sum(one.ns for one in parts)
        if len(parts) < 2 or whole < max(SMALL * program.loop_ns, _MOST * passing[frame]):
            continue
        by_kind: dict[Kind | None, float] = {}
        for one in parts:
            by_kind[one.kind] = by_kind.get(one.kind, 0.0) + one.ns
        known = max(by_kind, key=lambda one: by_kind[one])
        if by_kind[known] < 0.6 * whole:
            known = None
        rows = [row for one in parts for row in one.rows]
        line = next(at.line for at in positions(rows[0].stack) if at.frame == frame)
        block = source.function_around(frame.file, line)
        cost = Cost(known, frame, block, rows, is_spread=known is None)
        cost.is_own_work = _is_own_work(program, cost)
        cost.is_guess = _is_guess(program, cost)
        small = [one for one in small if one not in parts]
        costs = [cost, *(one for one in costs if one not in parts)]
    return costs


def _all_in(cost: Cost) -> set[Frame]:
    """The user's functions that all of a cost is in."""
    found = [{at.frame for at in positions(row.stack)} for row in cost.rows]
    return set.intersection(*found) if found else set()


def _is_own_work(program: Program, cost: Cost) -> bool:
    is_large = cost.ns > LARGE * program.loop_ns
    if program.has_core or cost.wait not in ("computing", "queued"):
        return False
    if cost.is_waste or (cost.is_sure and is_large):
        return False
    return (
        cost.kind is kinds.PYTHON_LOOP
        or cost.function in program.trunk
        or any(
            row.stage in ("env", "act", "update") or stage_by_name(row.stack) != "other"
            for row in cost.rows
        )
    )


def _is_guess(program: Program, cost: Cost) -> bool:
    """Whether nothing but its time says that it could be spared, as of all such programs' lines."""
    is_known = cost.kind is not None or cost.wait not in ("computing", "queued")
    return not program.has_core and not is_known


def _caller(program: Program, cost: Cost) -> Position | None:
    """The one line that a cost's function is called from, outside of the program's trunk."""
    if cost.function in program.trunk:
        return None
    found: dict[Position, float] = {}
    for row in cost.rows:
        chain = positions(row.stack)
        at = [i for i, one in enumerate(chain) if one.frame == cost.function]
        if at and at[-1] + 1 < len(chain):
            one = chain[at[-1] + 1]
            found[one] = found.get(one, 0.0) + row.ns
    caller = max(found, key=lambda one: found[one], default=None)
    return caller if caller is not None and found[caller] > 0.9 * cost.ns else None


def _is_under(cost: Cost, caller: Position) -> bool:
    """Whether all of a cost lies below a line, or is that line's own."""
    return all(caller in positions(row.stack) for row in cost.rows)


def _of_function(program: Program, frame: Frame, rows: list[Row]) -> list[Cost]:
    """Costs of a function's own lines: a line, a loop, or the whole of it."""
    by_block: dict[source.Block, list[Row]] = {}
    loops: set[source.Block] = set()
    for row in rows:
        at = positions(row.stack)[0]
        loop = program.tight_loop(at)
        if loop is not None:
            loops.add(loop)
        block = loop or source.statement_at(frame.file, at.line)
        by_block.setdefault(block, []).append(row)
    found: list[Cost] = []
    for block, own in by_block.items():
        names = source.names_called(frame.file, _dearest(own))
        kind = kinds.of_calls(names)
        if block in loops:
            kind = kinds.PYTHON_LOOP
        elif kind is not None and (kind.is_sure or not _is_held(program, kind, frame.file, own)):
            kind = None  # `nature` has looked at more than names
        found.append(Cost(kind, frame, block, own))
    function = source.function_around(frame.file, positions(rows[0].stack)[0].line)
    if frame in program.trunk or any(
        line in function for line in program.core_lines.get(frame.file, ())
    ):
        return found
    whole = sum(one.ns for one in found)
    largest = max(found, key=lambda one: one.ns)
    if len(found) == 1 or largest.ns >= _DOMINANT * whole:
        # The rest of a small function belongs to what it is for.
        return found
    by_kind: dict[Kind, float] = {}
    for one in found:
        if one.kind is not None:
            by_kind[one.kind] = by_kind.get(one.kind, 0.0) + one.ns
    known = max(by_kind, key=lambda one: by_kind[one], default=None)
    if sum(by_kind.values()) > 0.6 * whole:
        return [Cost(known, frame, function, rows)]
    return [Cost(None, frame, function, rows, is_spread=True)]


def _is_held(program: Program, kind: Kind, file: str, rows: list[Row]) -> bool:
    """Whether lines whose names are those of a kind also do what it says of them.

    A structure that is walked each time is one that stays. Of programs without networks and
    environments of a library's so are those that are sorted and drawn from.
    """
    if kind is not kinds.WALKED and program.has_core:
        return True
    block = _dearest(rows)
    return growing.is_walked(file, block) or growing.goes_through_what_stays(file, block)


def _dearest(rows: list[Row]) -> source.Block:
    """The statement with most of some rows' time."""
    found: dict[source.Block, float] = {}
    for row in rows:
        at = positions(row.stack)[0]
        block = source.statement_at(at.frame.file, at.line)
        found[block] = found.get(block, 0.0) + row.ns
    return max(found, key=lambda one: found[one])


def _holding_interpreter(evidence: Evidence) -> list[Cost]:
    """What other threads did while the main one waited for the interpreter's lock."""
    main = evidence.main
    held = sum(row.sample.waits.get("interpreter", 0) for row in evidence.rows_of(main))
    found: dict[tuple[Frame, source.Block], Cost] = {}
    for thread in evidence.other_threads:
        for row in evidence.rows_of(main, thread):
            chain = positions(row.stack)
            if not chain or not row.sample.on_core_ns:
                continue
            frame, line = chain[0]
            block = source.loop_around(frame.file, line) or source.statement_at(frame.file, line)
            cost = found.setdefault((frame, block), Cost(kinds.INTERPRETER, frame, block))
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
        cost.rows = [row._replace(weight=held / at_work) for row in cost.rows]
        del cost.ns
    return list(found.values())
