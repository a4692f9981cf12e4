"""Costs: what could be removed from a program, place by place, and what is inherent told apart.

Every sample of what the program's time depends on is either *inherent* or a cost at a place of the
user's code. Inherent is, by the test that `_Sorter.nature` makes:

* a step or reset of an environment that is a library's, or the user's own but for blocking calls,
  loops over elements, what a wrapper adds, and known kinds of waste;
* a network's forward or backward pass, an optimizer's step, a compiled function of JAX's;
* arithmetic on a line of the user's that multiplies matrices, or calls nothing;
* a library's own time on a line that drives the whole program (`model.learn(…)`, `envs.step(…)`).

Time that a thread is blocked is never inherent, and neither is what evaluates or renders, whatever
is below it. All else is a cost, of the statement, the tight loop or the small function that it is
seen in, whether anybody knows its kind or not (`kinds`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from hotloop.profiler.diagnose import kinds, source
from hotloop.profiler.diagnose.evidence import Evidence, Position, Row, below, positions
from hotloop.profiler.diagnose.kinds import Kind
from hotloop.profiler.diagnose.series import Floats, kendall, thirds
from hotloop.profiler.session import Frame, Stack, is_library
from hotloop.profiler.session.stages import Leaf, stage_by_name

# A function, loop or line that has so much of the time is what the program is, and no part of it.
_TRUNK = 0.85
# One line of a function, or function of a caller, that has so much of it stands for it.
_DOMINANT = 0.5
_MAX_PLACES = 6

_SITE = r"/(site|dist)-packages/"
_ENVIRONMENTS = re.compile(
    r"/(gymnasium|gym)/envs/|/(mujoco|ale_py|envpool|dm_control|pybullet|pettingzoo|minigrid|vizdoom"
    r"|procgen|nle|crafter|metaworld|Box2D|pygame|highway_env|gym_\w+)/"
)
_WRAPPERS = re.compile(
    r"/(gymnasium|gym)/wrappers/|/stable_baselines3/common/(atari_wrappers|monitor)"
)
_NETWORKS = re.compile(
    r"/torch/(nn/|optim/|autograd/|distributions/|_ops\.py|_functorch/|_compile\.py)|"
    r"/(jax|jaxlib|optax|flax|equinox|haiku|chex|distrax|tensorflow|keras)/"
)
_LEARNS = re.compile(r"/torch/(optim|autograd)/|/optax/|/jax/_src/api")
_BUFFERS = re.compile(
    r"/stable_baselines3/common/buffers\.py$|/torchrl/data/|/tianshou/data/|/cpprb/|/hotloop/replay/"
)
_CALLS_WRAPPERS = re.compile(r"(^|\.)(Observation|Reward|Action|Vector\w*)Wrapper\.(step|reset)$")
_STEPS = re.compile(r"(^|\.)(step|reset|step_wait)$")


@dataclass
class Cost:
    """Time at one place of the user's code.

    Attributes:
        kind: what it is known for; None: not known.
        function: that it is in.
        block: its lines there.
        rows: samples of it.
        is_spread: over the lines of a function, of which none stands out.
        is_own_work: the program has neither networks nor environments of a library's, and this is
            in what steps, acts or learns: how much of it has to be no profile can tell.
    """

    kind: Kind | None
    function: Frame
    block: source.Block
    rows: list[Row] = field(default_factory=list)
    is_spread: bool = False
    is_own_work: bool = False

    @cached_property
    def ns(self) -> float:
        """Its time, of the whole program's."""
        return sum(row.ns for row in self.rows)

    @property
    def is_sure(self) -> bool:
        """Whether it is known to be nobody's inherent work."""
        return self.kind is not None and self.kind.is_sure

    @cached_property
    def wait(self) -> str:
        """What most of its time is: see `Diagnosis.wait`."""
        known = self.kind.wait if self.kind is not None else ""
        return known or wait_of(self.rows)

    @cached_property
    def places(self) -> tuple[Leaf, ...]:
        """Its dearest lines, then the lines that call it, from the inside out."""
        own: dict[Leaf, float] = {}
        calls: dict[Leaf, float] = {}
        for row in self.rows:
            ns = row.ns
            chain = positions(row.stack)
            at = next(
                (
                    i
                    for i, one in enumerate(chain)
                    if one.frame == self.function and one.line in self.block
                ),
                0,
            )
            # Evaluations are called too often, whatever they do.
            for one in chain[at if self.kind is kinds.EVALUATION else 0 : at + 1]:
                leaf = Leaf(one.frame.function, one.frame.file, one.line)
                own[leaf] = own.get(leaf, 0.0) + ns
            for one in chain[at + 1 : at + 3]:
                leaf = Leaf(one.frame.function, one.frame.file, one.line)
                calls[leaf] = calls.get(leaf, 0.0) + ns
        inside = sorted(own, key=lambda one: -own[one])
        outside = sorted(calls, key=lambda one: -calls[one])
        order = [*inside[:2], *outside[:1], *inside[2:4], *outside[1:2]]
        return tuple(dict.fromkeys(order))[:_MAX_PLACES]


def wait_of(rows: Iterable[Row]) -> str:
    """What most of some rows' time is: computing, queued for a core, or blocked on something."""
    found: dict[str, float] = {}
    for row in rows:
        sample, weight = row.sample, row.weight
        known = 0
        for wait, ns in sample.waits.items():
            known += ns
            name = "something" if wait == "events" else wait
            found[name] = found.get(name, 0.0) + weight * ns
        for name, ns in (
            ("computing", sample.on_core_ns),
            ("queued", sample.queued_ns),
            ("something", max(0, sample.blocked_ns - known)),
        ):
            found[name] = found.get(name, 0.0) + weight * ns
    # In a queue it would compute: that is what it is, unless it is there for the most part of that.
    queued = found.pop("queued", 0.0)
    if queued > 2 * found.get("computing", 0.0):
        found["queued"] = queued
    else:
        found["computing"] = found.get("computing", 0.0) + queued
    return max(found, key=lambda name: found[name], default="computing")


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
        sorter = _Sorter(evidence.rows)
        costs = sorter.costs()
        for holder in _holding_interpreter(evidence):
            same = next((one for one in costs if one.places[0] == holder.places[0]), None)
            if same is None:
                costs.append(holder)
            else:  # it is in the way of the main thread, or what that waits for
                same.kind = kinds.INTERPRETER
                same.rows = max(same, holder, key=lambda one: one.ns).rows
        # What is compiled once, when it is first called, is part of starting.
        starting = [one for one in costs if one.kind is kinds.COMPILES and self.is_of_start(one)]
        sorter.start_ns += sum(one.ns for one in starting)
        costs = [one for one in costs if one not in starting]
        self.costs = sorted(costs, key=lambda one: -one.ns)
        self.inherent = sorter.inherent
        self.start_ns = sorter.start_ns
        self.loop_ns = max(1.0, evidence.whole_ns - sorter.start_ns)

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


class _Sorter:
    """Sorts rows into what is inherent and costs.

    Args:
        rows: of all that the program's time depends on.
    """

    def __init__(self, rows: list[Row]) -> None:
        self._rows = [row for row in map(_without_interpreter, rows) if row.sample.elapsed_ns]
        self._whole = sum(row.ns for row in rows) or 1.0
        self.inherent: dict[str, float] = {}
        self.start_ns = 0.0
        self._busy: dict[str, set[source.Block]] = {}
        self._wrappers = {frame for row in rows for frame in _stepping_others(row.stack)}
        # What lines the environments and networks of the program are reached from.
        driving: dict[Position, float] = {}
        passing: dict[Position, float] = {}
        stepping: dict[Position, float] = {}
        core_ns = 0.0
        # By thread: of its functions, and of all.
        of_functions: dict[tuple[int, int, Frame], float] = {}
        of_threads: dict[tuple[int, int], float] = {}
        self._inside_loops: dict[tuple[Frame, source.Block], bool] = {}
        for row in self._rows:
            if row.stage == "import":
                continue
            ns = row.ns
            is_core = self._is_core(row)
            chain = positions(row.stack)
            core_ns += ns * is_core
            for position in dict.fromkeys(chain):
                passing[position] = passing.get(position, 0.0) + ns
                if is_core:
                    driving[position] = driving.get(position, 0.0) + ns
            own = self._own_environment(row, chain)
            if own is not None:
                outside = next(i for i, one in enumerate(chain) if one.frame == own)
                for position in chain[outside + 1 :]:
                    stepping[position] = stepping.get(position, 0.0) + ns
            thread = row.process.pid, row.sample.thread
            of_threads[thread] = of_threads.get(thread, 0.0) + ns
            for frame in {one.frame for one in chain}:
                key = (*thread, frame)
                of_functions[key] = of_functions.get(key, 0.0) + ns
        self._passing = passing
        self._has_core = core_ns > 0.05 * self._whole
        self._drives = {one for one, ns in driving.items() if ns > 0.3 * passing[one]}
        self._core_lines: dict[str, set[int]] = {}
        for one, ns in (*driving.items(), *stepping.items()):
            if ns > 0.02 * self._whole:
                self._core_lines.setdefault(one.frame.file, set()).add(one.line)
        self._importing = sum(row.ns for row in self._rows if row.stage == "import")
        self._trunk = {
            frame
            for (pid, thread, frame), ns in of_functions.items()
            if ns > _TRUNK * of_threads[pid, thread] > 0.1 * _TRUNK * self._whole
        }

    # --- what is inherent -------------------------------------------------------------------------

    def _is_core(self, row: Row) -> bool:
        """Whether it is a library's environment's or a network's."""
        return any(
            _ENVIRONMENTS.search(one.file) or _NETWORKS.search(one.file) for one in below(row.stack)
        )

    @cached_property
    def _has_other_work(self) -> bool:
        """Whether a fifth of the time goes to steps and learning outside of evaluations."""
        outside = sum(
            row.ns
            for row in self._rows
            if (row.stage in ("env", "act", "update") or self._is_core(row))
            and not any(kinds.is_evaluation(frame) for frame in row.stack.frames)
        )
        return outside > 0.2 * (self._whole - self._importing)

    def nature(self, row: Row) -> tuple[str | None, Kind | None, Position | None]:
        """What a row is.

        Returns:
            Of what is inherent its name; of a cost its kind, if it has one; and where it is, if
            that is not the innermost line of the user's.
        """
        stack, chain = row.stack, positions(row.stack)
        if row.stage == "import":
            return "starting", None, None
        if not chain:
            return "libraries", None, None
        for i, frame in enumerate(reversed(stack.frames)):
            if kinds.is_evaluation(frame) and self._has_other_work:
                outer = Stack(stack.frames[: len(stack.frames) - 1 - i], stack.lines[: -1 - i])
                around = positions(outer)
                if around:
                    return None, kinds.EVALUATION, around[0]
        inner = below(stack)
        is_blocked = row.sample.blocked_ns >= 0.5 * row.sample.elapsed_ns
        kind = next((one for frame in inner if (one := kinds.of_frame(frame))), None)
        if any(kinds.is_of_tracebacks(frame) for frame in inner) and self._is_core(row):
            kind = kinds.DEBUG_MODE
        kind = kind or kinds.of_stage(row.stage)
        if kind is not None:
            return None, kind, None
        if is_blocked and not any(_ENVIRONMENTS.search(one.file) for one in inner):
            wait = wait_of([row])
            is_parallel = wait in ("lock", "something") and self._is_core(row)
            if wait == "lock" and source.imports(chain[0].frame.file, "jax"):
                return "networks", None, None  # it is what asks for a result
            if not is_parallel:  # torch's and XLA's own threads compute meanwhile
                return None, kinds.of_wait(wait), None
        called = _called(chain[0])
        if called & source.compiled_names(chain[0].frame.file):
            return "networks", None, None
        if inner and kinds.is_eager(next((x for x in inner if not _is_wrapping(x)), inner[0])):
            return None, kinds.EAGER, None
        if any(_NETWORKS.search(one.file) for one in inner):
            if self._is_one_by_one(chain[0], inner):
                return None, kinds.ONE_BY_ONE, None
            return "networks", None, None
        if any(_ENVIRONMENTS.search(one.file) for one in inner):
            return "environments", None, None
        if any(_WRAPPERS.search(one.file) for one in inner):
            return None, kinds.WRAPPERS, None
        own = self._own_environment(row, chain)
        if own is not None:
            known = kinds.of_calls(called)
            if known is not None and known.is_sure:
                return None, known, None
            if (own in self._wrappers and chain[0].frame == own) or _adds_to_a_step(stack):
                return None, known or kinds.WRAPPERS, None
            if self._loop_around(chain[0]) is not None:
                return None, kinds.PYTHON_LOOP, None
            return "environments", None, None
        if any(_BUFFERS.search(one.file) for one in inner):
            return "libraries", None, None
        is_trunk = self._passing.get(chain[0], 0.0) > _TRUNK * (self._whole - self._importing)
        if inner and (chain[0] in self._drives or is_trunk):
            return "libraries", None, None
        file = chain[0].frame.file
        block = source.statement_at(file, chain[0].line)
        is_plain = not inner and source.is_plain_arithmetic(file, block)
        if source.multiplies_matrices(file, block) or (
            is_plain and self._loop_around(chain[0]) is None
        ):
            return "arithmetic", None, None
        known = kinds.of_calls(called)
        if known is kinds.FILES and any("/asyncio/" in frame.file for frame in inner):
            known = None  # a stream's `write`
        return None, known, None

    def _is_one_by_one(self, at: Position, inner: tuple[Frame, ...]) -> bool:
        """Whether a network is asked in a loop that neither steps environments nor learns."""
        file = at.frame.file
        loop = source.own_loop_around(file, at.line)
        if loop is None or at.frame in self._trunk:
            return False
        if any(_LEARNS.search(one.file) for one in inner):
            return False
        return not source.calls_what_it_goes_through(file, loop) and loop not in self._busy_loops(
            file
        )

    def _busy_loops(self, file: str) -> set[source.Block]:
        """Loops of a file within which environments are stepped, or networks learn."""
        if file not in self._busy:
            busy: set[source.Block] = set()
            for row in self._rows:
                chain = positions(row.stack)
                is_step = row.stage == "env" or any(
                    _ENVIRONMENTS.search(one.file) or _LEARNS.search(one.file)
                    for one in below(row.stack)
                )
                if is_step:
                    for one in chain:
                        if one.frame.file == file:
                            busy.update(source.loops_around(file, one.line))
            self._busy[file] = busy
        return self._busy[file]

    def _own_environment(self, row: Row, chain: tuple[Position, ...]) -> Frame | None:
        """The innermost step or reset of an environment of the user's that a row is in."""
        in_step = {"env_step", "env_reset"}.intersection(row.sample.path)
        for one in chain:
            if _STEPS.search(one.frame.function) and "." in one.frame.function:
                return one.frame
        return chain[0].frame if in_step and row.stage == "env" else None

    # --- costs ------------------------------------------------------------------------------------

    def costs(self) -> list[Cost]:
        """All costs of the program."""
        named: dict[tuple[str, Frame, source.Block], Cost] = {}
        others: dict[Frame, list[Row]] = {}
        for row in self._rows:
            inherent, kind, at = self.nature(row)
            ns = row.ns
            if inherent == "starting":
                self.start_ns += ns
            elif inherent is not None:
                self.inherent[inherent] = self.inherent.get(inherent, 0.0) + ns
            else:
                at = at or positions(row.stack)[0]
                if kind is not None and (kind.is_sure or kind is kinds.WRAPPERS):
                    block = self._block(at)
                    cost = named.setdefault(
                        (kind.rule, at.frame, block), Cost(kind, at.frame, block)
                    )
                    cost.rows.append(row)
                else:
                    others.setdefault(at.frame, []).append(row)
        found = list(named.values())
        for frame, rows in others.items():
            found += self._of_function(frame, rows)
        return self._joined(found)

    def _joined(self, costs: list[Cost]) -> list[Cost]:
        """Costs that one line of the user's calls, with the one that has most of that line's time.

        A line that is called for nothing else, whose half and more is one cost, is what it is for.
        """
        left = sorted(costs, key=lambda one: -one.ns)
        done: list[Cost] = []
        while left:
            cost = left.pop(0)
            line = Position(cost.function, cost.places[0].line)
            is_part = self._passing.get(line, 0.0) < _TRUNK * (self._whole - self._importing)
            if (
                is_part
                and line not in self._drives
                and cost.ns > 0.3 * self._passing.get(line, 0.0)
            ):
                # What a line calls is for it, where it has much of the time itself.
                inside = [one for one in left if self._is_under(one, line)]
                left = [one for one in left if one not in inside]
                cost.rows += [row for one in inside for row in one.rows]
                del cost.ns
            while (caller := self._caller(cost)) is not None:
                inside = [one for one in left if one is not cost and self._is_under(one, caller)]
                alike = cost.ns + sum(
                    one.ns for one in inside if cost.kind is not None and one.kind is cost.kind
                )
                whole = cost.ns + sum(one.ns for one in inside)
                if caller in self._drives or alike < _DOMINANT * max(
                    whole, self._passing.get(caller, 0.0)
                ):
                    break
                left = [one for one in left if one not in inside]
                rows = [row for one in (cost, *inside) for row in one.rows]
                block = source.statement_at(caller.frame.file, caller.line)
                cost = Cost(cost.kind, caller.frame, block, rows, cost.is_spread)
            cost.is_own_work = self._is_own_work(cost)
            done.append(cost)
        return done

    def _is_own_work(self, cost: Cost) -> bool:
        if cost.is_sure or self._has_core or cost.wait not in ("computing", "queued"):
            return False
        return cost.function in self._trunk or any(
            row.stage in ("env", "act", "update") or stage_by_name(row.stack) != "other"
            for row in cost.rows
        )

    def _caller(self, cost: Cost) -> Position | None:
        """The one line that a cost's function is called from, outside of the program's trunk."""
        if cost.function in self._trunk:
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

    @staticmethod
    def _is_under(cost: Cost, caller: Position) -> bool:
        """Whether all of a cost lies below a line, or is that line's own."""
        return all(caller in positions(row.stack) for row in cost.rows)

    def _block(self, at: Position) -> source.Block:
        """The tight loop or the statement that a line is of."""
        loop = self._loop_around(at)
        return loop or source.statement_at(at.frame.file, at.line)

    def _loop_around(self, at: Position) -> source.Block | None:
        """The innermost loop around a line that goes through elements, and does nothing else.

        It steps no environment and asks no network, and it is gone through again and again: it
        stands within another loop, or in a function that is not the program's trunk.
        """
        file, line = at.frame.file, at.line
        loop = source.own_loop_around(file, line)
        if loop is None:
            return None
        function = source.function_around(file, line)
        if any(one in loop for one in self._core_lines.get(file, ())) or source.awaits(file, loop):
            return None
        outer = source.loop_around(file, loop.first - 1)
        is_within = outer is not None and loop.last <= outer.last and outer.first >= function.first
        if at.frame in self._trunk and not is_within:
            return None
        return loop if self._is_of_own_lines(at.frame, loop) else None

    def _is_of_own_lines(self, frame: Frame, loop: source.Block) -> bool:
        """Whether a loop's time is in its own lines, and not in functions of the user's."""
        key = frame, loop
        if key not in self._inside_loops:
            own = passing = 0.0
            for row in self._rows:
                ns = row.ns
                for i, one in enumerate(positions(row.stack)):
                    if one.frame == frame and one.line in loop:
                        passing += ns
                        own += ns * (i == 0)
                        break
            self._inside_loops[key] = own >= 0.7 * passing
        return self._inside_loops[key]

    def _of_function(self, frame: Frame, rows: list[Row]) -> list[Cost]:
        """Costs of a function's own lines: a line, a loop, or the whole of it."""
        by_block: dict[source.Block, list[Row]] = {}
        loops: set[source.Block] = set()
        for row in rows:
            at = positions(row.stack)[0]
            loop = self._loop_around(at)
            if loop is not None:
                loops.add(loop)
            block = loop or source.statement_at(frame.file, at.line)
            by_block.setdefault(block, []).append(row)
        found: list[Cost] = []
        for block, own in by_block.items():
            names = source.names_called(frame.file, self._dearest(own))
            kind = kinds.of_calls(names)
            if block in loops:
                kind = kinds.PYTHON_LOOP
            elif kind is not None and kind.is_sure:
                kind = None  # `nature` has looked at more than names
            found.append(Cost(kind, frame, block, own))
        function = source.function_around(frame.file, positions(rows[0].stack)[0].line)
        if frame in self._trunk or any(
            line in function for line in self._core_lines.get(frame.file, ())
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

    @staticmethod
    def _dearest(rows: list[Row]) -> source.Block:
        """The statement with most of some rows' time."""
        found: dict[source.Block, float] = {}
        for row in rows:
            at = positions(row.stack)[0]
            block = source.statement_at(at.frame.file, at.line)
            found[block] = found.get(block, 0.0) + row.ns
        return max(found, key=lambda one: found[one])


def _without_interpreter(row: Row) -> Row:
    """A row without the time in which another thread had the interpreter's lock."""
    sample = row.sample
    if not sample.waits:
        return row
    held = sample.waits.get("interpreter", 0)
    waits = {name: ns for name, ns in sample.waits.items() if name != "interpreter"}
    elapsed_ns, on_core_ns = max(0, sample.elapsed_ns - held), sample.on_core_ns
    if any(_NETWORKS.search(frame.file) for frame in below(row.stack)):
        # torch's and XLA's own threads compute meanwhile.
        on_core_ns += waits.pop("lock", 0) + waits.pop("something", 0)
    return row._replace(
        sample=sample._replace(elapsed_ns=elapsed_ns, on_core_ns=on_core_ns, waits=waits)
    )


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


@lru_cache(maxsize=65536)
def _called(at: Position) -> frozenset[str]:
    file = at.frame.file
    return source.names_called(file, source.statement_at(file, at.line))


def _is_wrapping(frame: Frame) -> bool:
    """Whether a function of JAX's only calls another one."""
    return frame.file.endswith(("traceback_util.py", "api_util.py", "/util.py", "config.py"))


@lru_cache(maxsize=65536)
def _adds_to_a_step(stack: Stack) -> bool:
    """Whether a wrapper's own part of a step runs: what Gymnasium's base classes call of it."""
    calls = [i for i, frame in enumerate(stack.frames) if _CALLS_WRAPPERS.search(frame.function)]
    inner = stack.frames[calls[-1] + 1 :] if calls else ()
    return bool(calls) and not any(_STEPS.search(frame.function) for frame in inner)


@lru_cache(maxsize=65536)
def _stepping_others(stack: Stack) -> tuple[Frame, ...]:
    """The user's functions in a stack that step another environment: wrappers."""
    steps = [frame for frame in stack.frames if _STEPS.search(frame.function)]
    return tuple(frame for frame in steps[:-1] if not is_library(frame) and "." in frame.function)
