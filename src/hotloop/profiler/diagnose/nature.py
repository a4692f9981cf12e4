"""The nature of a program's time: what is inherent in it, and what is a cost.

Every sample of what the program's time depends on is either *inherent* or a cost at a place of the
user's code. Inherent is, by the test that `Program.nature` makes:

* a step or reset of an environment that is a library's, or the user's own but for blocking calls,
  loops over elements, lists that grow and are gone through, what a wrapper adds, and known kinds of
  waste;
* a network's forward or backward pass, an optimizer's step, a compiled function of JAX's;
* arithmetic on a line of the user's that multiplies matrices, and not row by row, or calls nothing;
* what is worked out, on a line that asks a network, of its answer;
* a library's own time on a line that drives the whole program (`model.learn(…)`, `envs.step(…)`):
  neither NumPy nor Python's own modules do, but for those that run what they are given.

Time that a thread is blocked is never inherent, and neither is what evaluates or renders, whatever
is below it. All else is a cost, of the statement, the tight loop or the small function that it is
seen in, whether anybody knows its kind or not (`kinds`).
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from hotloop.profiler.diagnose import growing, kinds, libraries, products, recurrence, source
from hotloop.profiler.diagnose.cost import wait_of
from hotloop.profiler.diagnose.evidence import PARTS, Position, Row, below, positions
from hotloop.profiler.diagnose.kinds import Kind
from hotloop.profiler.session import Frame, Stack, is_library

# A function, loop or line that has so much of the time is what the program is, and no part of it.
TRUNK = 0.85
# What a loop over elements does not call.
_OF_TRAINING = {"step", "reset", "backward"}


class Program:
    """Samples of all that a program's time depends on, and what is inherent in them.

    Attributes:
        rows: samples, without waits for the interpreter's lock.
        loop_ns: their time without importing.
        has_core: environments of a library's, or networks, have some of it.
        passing: time below each line of the user's, and its own.
        drives: lines that environments and networks of libraries are reached from.
        core_lines: lines by file that environments and networks have some of the time below.
        function_ns: time in each function of the user's and below it.
        trunk: functions that have most of a thread's time.
    """

    def __init__(self, rows: list[Row]) -> None:
        self.rows = [row for row in map(_without_interpreter, rows) if row.sample.elapsed_ns]
        whole = sum(row.ns for row in rows) or 1.0
        self.loop_ns = whole - sum(row.ns for row in self.rows if row.stage == "import")
        self._busy: dict[str, set[source.Block]] = {}
        self._wrappers = {frame for row in rows for frame in libraries.stepping_others(row.stack)}
        # What lines the environments and networks of the program are reached from.
        driving: dict[Position, float] = {}
        asking: dict[Position, float] = {}
        passing: dict[Position, float] = {}
        stepping: dict[Position, float] = {}
        core_ns = 0.0
        # By thread: of its functions, and of all.
        of_functions: dict[tuple[int, int, Frame], float] = {}
        of_threads: dict[tuple[int, int], float] = {}
        self._inside_loops: dict[tuple[Frame, source.Block], bool] = {}
        for row in self.rows:
            if row.stage == "import":
                continue
            ns = row.ns
            is_core = libraries.is_core(row)
            chain = positions(row.stack)
            core_ns += ns * is_core
            if chain and libraries.reaches(row, libraries.NETWORKS):
                asking[chain[0]] = asking.get(chain[0], 0.0) + ns
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
        self.passing = passing
        self.has_core = core_ns > 0.05 * whole
        self.drives = {one for one, ns in driving.items() if ns > 0.3 * passing[one]}
        self._asking = {one for one, ns in asking.items() if ns > 0.15 * passing[one]}
        self.core_lines: dict[str, set[int]] = {}
        for one, ns in (*driving.items(), *stepping.items()):
            if ns > 0.02 * whole:
                self.core_lines.setdefault(one.frame.file, set()).add(one.line)
        self.function_ns: dict[Frame, float] = {}
        for (_, _, frame), ns in of_functions.items():
            self.function_ns[frame] = self.function_ns.get(frame, 0.0) + ns
        self.trunk = {
            frame
            for (pid, thread, frame), ns in of_functions.items()
            if ns > TRUNK * of_threads[pid, thread] > 0.1 * TRUNK * whole
        }

    @cached_property
    def _evaluations(self) -> set[Frame]:
        """Functions that evaluate a policy, by their names or by what they do, beside other work.

        Other work is a fifth of the time that goes to steps and learning outside of them. It is one
        of both at least: where all steps are made in evaluations and nothing learns by gradients,
        as where a population evolves, these are what the program is for. For such as only play
        episodes, it is both.
        """
        frames = {frame for row in self.rows for frame in row.stack.frames}
        named = {frame for frame in frames if kinds.is_evaluation(frame)}
        playing = {
            frame
            for frame in frames - named
            if not is_library(frame) and source.plays_for_a_score(frame.file, frame.first_line)
        }
        found: set[Frame] = set()
        for some in (named, named | playing):
            outside = [row for row in self.rows if not some.intersection(row.stack.frames)]
            stepping = sum(row.ns for row in outside if libraries.is_step(row))
            learning = sum(row.ns for row in outside if libraries.is_learning(row))
            others = sum(
                row.ns
                for row in outside
                if row.stage in ("env", "act", "update") or libraries.is_core(row)
            )
            known = (stepping > 0.02 * self.loop_ns) + (learning > 0.05 * self.loop_ns)
            if others > 0.2 * self.loop_ns and known >= (1 if some is named else 2):
                found = some
        return found

    def evaluated_at(self, row: Row) -> Position | None:
        """The line of the user's that the evaluation is called from that a row is in."""
        frames, lines = row.stack
        for i in range(len(frames) - 1, -1, -1):
            if frames[i] in self._evaluations and (
                around := positions(Stack(frames[:i], lines[:i]))
            ):
                return around[0]
        return None

    def nature(self, row: Row) -> str | Kind | None:
        """What a row is: what is inherent by its name, a cost by its kind, if that is known."""
        stack, chain = row.stack, positions(row.stack)
        if row.stage == "import":
            return "starting"
        if not chain:
            return "libraries"
        if self.evaluated_at(row) is not None:
            return kinds.EVALUATION
        inner, at = below(stack), chain[0]
        file, called = at.frame.file, _called(at)
        is_blocked = row.sample.blocked_ns >= 0.5 * row.sample.elapsed_ns
        kind = next((one for frame in inner if (one := kinds.of_frame(frame))), None)
        if any(kinds.is_of_tracebacks(frame) for frame in inner) and libraries.is_core(row):
            kind = kinds.DEBUG_MODE
        kind = kind or kinds.of_stage(row.stage)
        if kind is not None:
            return kind
        if is_blocked and not libraries.reaches(row, libraries.ENVIRONMENTS):
            wait = wait_of([row])
            is_parallel = wait in ("lock", "something") and libraries.is_core(row)
            if wait == "lock" and not inner and source.enters(file, at.line):
                return kinds.LOCKS
            if wait == "lock" and any(kinds.is_of_others(frame) for frame in inner):
                return kinds.OTHERS
            if wait == "lock" and source.imports(file, "jax") and "acquire" not in called:
                return "networks"  # it is what asks for a result
            if not is_parallel:  # torch's and XLA's own threads compute meanwhile
                return kinds.of_wait(wait)
        if called & source.compiled_names(file):
            if self._is_one_by_one(row, is_compiled=True):
                return kinds.ONE_BY_ONE
            return "networks"
        called_first = (frame for frame in inner if not libraries.is_wrapping(frame))
        if inner and kinds.is_eager(next(called_first, inner[0])):
            return kinds.EAGER
        if libraries.is_of_module(stack) and self.tight_loop(at) is None:
            known = kinds.of_calls(called)
            if known is None or known in (kinds.WALKED, kinds.CONVERSIONS):
                return "networks"  # a module's own arithmetic: `x + self.net(x).mean()`
        if libraries.reaches(row, libraries.NETWORKS):
            if self._is_one_by_one(row):
                return kinds.ONE_BY_ONE
            return "networks"
        if libraries.reaches(row, libraries.ENVIRONMENTS):
            return "environments"
        if libraries.reaches(row, libraries.WRAPPERS):
            return kinds.WRAPPERS
        own = self._own_environment(row, chain)
        if own is not None:
            known = kinds.of_calls(called)
            block = source.statement_at(file, at.line)
            if known is not None and (known.is_sure or growing.is_walked(file, block)):
                return known
            if (own in self._wrappers and at.frame == own) or libraries.adds_to_a_step(stack):
                return known or kinds.WRAPPERS
            if self.tight_loop(at) is not None:
                return kinds.PYTHON_LOOP
            return "environments"
        if libraries.reaches(row, libraries.BUFFERS):
            return "libraries"
        loop = source.own_loop_around(file, at.line)
        if loop is not None and products.are_made_row_by_row(file, loop):
            return kinds.ONE_BY_ONE
        is_trunk = self.passing.get(at, 0.0) > TRUNK * self.loop_ns
        if inner and (at in self.drives or (is_trunk and libraries.may_drive(row))):
            return "libraries"
        block = source.statement_at(file, at.line)
        is_plain = not inner and source.is_plain_arithmetic(file, block)
        if source.multiplies_matrices(file, block) or (is_plain and self.tight_loop(at) is None):
            return "arithmetic"
        known = kinds.of_calls(called)
        if at in self._asking and known in (None, kinds.CONVERSIONS, kinds.WALKED):
            # What a network says is made an action, or a loss, of.
            is_alone = self.tight_loop(at) is None and not self._is_one_by_one(row)
            if is_alone and source.works_on_answers(file, block):
                return "networks"
        if known is kinds.FILES and any("/asyncio/" in frame.file for frame in inner):
            known = None  # a stream's `write`
        return known

    def _is_one_by_one(self, row: Row, *, is_compiled: bool = False) -> bool:
        """Whether a network is asked in a loop that neither steps environments nor learns.

        Of the program's own loops, and of functions that may learn for all that can be seen, only
        those count that make a list.
        """
        at, inner = positions(row.stack)[0], below(row.stack)
        file = at.frame.file
        loop = source.own_loop_around(file, at.line)
        if loop is None or recurrence.calls_what_it_goes_through(file, loop):
            return False
        if recurrence.feeds_itself(file, loop, at.line):
            return False
        if source.is_comprehension(file, loop):
            # The line may ask one network for all, and go through something else.
            own = row.stack.frames[len(row.stack.frames) - len(inner) - 1]
            is_inside = own.function.endswith(PARTS) or (
                is_compiled and source.makes_by_calling(file, loop, source.compiled_names(file))
            )
            return is_inside and "step" not in source.names_called(file, loop)
        is_trunk = at.frame in self.trunk or is_compiled
        is_learning = libraries.is_learning(row)
        return not is_trunk and not is_learning and loop not in self._busy_loops(file)

    def _busy_loops(self, file: str) -> set[source.Block]:
        """Loops of a file within which environments are stepped, or networks learn."""
        if file not in self._busy:
            busy: set[source.Block] = set()
            for row in self.rows:
                chain = positions(row.stack)
                if libraries.is_step(row) or libraries.is_learning(row):
                    for one in chain:
                        if one.frame.file == file:
                            busy.update(source.loops_around(file, one.line))
            self._busy[file] = busy
        return self._busy[file]

    def _own_environment(self, row: Row, chain: tuple[Position, ...]) -> Frame | None:
        """The innermost step or reset of an environment of the user's that a row is in."""
        in_step = {"env_step", "env_reset"}.intersection(row.sample.path)
        for one in chain:
            if libraries.STEPS.search(one.frame.function) and "." in one.frame.function:
                return one.frame
        return chain[0].frame if in_step and row.stage == "env" else None

    def tight_loop(self, at: Position) -> source.Block | None:
        """The innermost loop around a line that goes through elements, and does nothing else.

        It steps no environment and asks no network, and it is gone through again and again: it
        stands within another loop, or in a function that is not the program's trunk.
        """
        file, line = at.frame.file, at.line
        loop = source.own_loop_around(file, line)
        if loop is None:
            return None
        function = source.function_around(file, line)
        if any(one in loop for one in self.core_lines.get(file, ())) or source.awaits(file, loop):
            return None
        if source.names_called(file, loop) & _OF_TRAINING:
            return None
        outer = source.loop_around(file, loop.first - 1)
        is_within = outer is not None and loop.last <= outer.last and outer.first >= function.first
        if at.frame in self.trunk and not is_within:
            return None
        return loop if self._is_of_own_lines(at.frame, loop) else None

    def _is_of_own_lines(self, frame: Frame, loop: source.Block) -> bool:
        """Whether a loop's time is in its own lines, and not in functions of the user's."""
        key = frame, loop
        if key not in self._inside_loops:
            own = passing = 0.0
            for row in self.rows:
                ns = row.ns
                for i, one in enumerate(positions(row.stack)):
                    if one.frame == frame and one.line in loop:
                        passing += ns
                        own += ns * (i == 0)
                        break
            self._inside_loops[key] = own >= 0.7 * passing
        return self._inside_loops[key]


def _without_interpreter(row: Row) -> Row:
    """A row without the time in which another thread had the interpreter's lock."""
    sample = row.sample
    if not sample.waits:
        return row
    held = sample.waits.get("interpreter", 0)
    waits = {name: ns for name, ns in sample.waits.items() if name != "interpreter"}
    elapsed_ns, on_core_ns = max(0, sample.elapsed_ns - held), sample.on_core_ns
    if libraries.reaches(row, libraries.NETWORKS):
        # torch's and XLA's own threads compute meanwhile.
        on_core_ns += waits.pop("lock", 0) + waits.pop("something", 0)
    return row._replace(
        sample=sample._replace(elapsed_ns=elapsed_ns, on_core_ns=on_core_ns, waits=waits)
    )


@lru_cache(maxsize=65536)
def _called(at: Position) -> frozenset[str]:
    file = at.frame.file
    return source.names_called(file, source.statement_at(file, at.line))
