"""Classification of a program's time into inherent work and costs.

Every relevant sample is either *inherent* work or a cost at a place in the user's code.
`Program.classify` counts as inherent:

* a step or reset of a library's environment, except what it renders for display
* a step or reset of the user's environment, except for blocking calls, loops over elements,
  traversed growing lists, the additions of wrappers, and known waste
* a network's forward or backward pass, an optimizer's step, a compiled JAX function
* arithmetic on a user's line that multiplies whole matrices or calls nothing
* computation on the result of a network, on the line that calls the network
* a library's own time on a line that runs the whole program (`model.learn(…)`, `envs.step(…)`).
  NumPy and Python's own modules do not count, except modules that run functions passed to them

Blocked time is not inherent, except in library environments and in waits for threads of torch and
JAX. Evaluation and rendering are not inherent, including all that they call. All other time is a
cost of the statement, the tight loop or the small function where it was sampled, whether its cause
is known (`causes`) or not.
"""

from __future__ import annotations

from functools import cached_property

from hotloop.profiler.diagnose import (
    causes,
    episodes,
    growing_structures,
    libraries,
    matrix_products,
    recurrence,
    source,
)
from hotloop.profiler.diagnose.causes import Cause
from hotloop.profiler.diagnose.cost import main_wait
from hotloop.profiler.diagnose.evidence import (
    INLINE_FUNCTIONS,
    CodePosition,
    Evidence,
    SampleRow,
    library_frames,
    user_positions,
)
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.diagnose.program_starts import with_starts
from hotloop.profiler.diagnose.wrappers import WrapperFinder
from hotloop.profiler.session import Frame, Stack, is_library
from hotloop.profiler.session.catalogues import is_in
from hotloop.profiler.session.purpose import is_environment

# Calls that a loop over elements does not contain.
_TRAINING_CALLS = {"step", "reset", "backward"}


# Waits for a simulator in another process or on another machine.
_SIMULATOR_WAITS = ("pipe", "network", "child", "events", "something")


class Program:
    """The samples that determine a program's duration, and their classification.

    Attributes:
        rows: samples, without waits for the interpreter's lock.
        loop_ns: their time without importing.
        has_core: whether library environments or networks take part of the time.
        inclusive_ns: time of each user's line, including its calls.
        wrappers: the wrappers around environments.
        driving_lines: lines that call library environments or networks.
        core_lines: lines by file below which environments and networks take part of the time.
        function_ns: time of each user's function, including its calls.
        main_functions: functions that take most of a thread's time.
    """

    def __init__(self, rows: list[SampleRow], evidence: Evidence | None = None) -> None:
        self._restarts_processes = evidence is not None and evidence.restarts_processes
        rows = with_starts(rows, restarts_processes=self._restarts_processes)
        self.rows = [row for row in map(_without_lock_wait, rows) if row.sample.elapsed_ns]
        whole = sum(row.ns for row in rows) or 1.0
        self.loop_ns = whole - sum(row.ns for row in self.rows if row.stage == "import")
        self._busy_by_file: dict[str, set[source.CodeBlock]] = {}
        self.wrappers = WrapperFinder(rows)
        # Sum up the time of each line: below it in total, in environments and in networks.
        driving: dict[CodePosition, float] = {}
        in_networks: dict[CodePosition, float] = {}
        inclusive_ns: dict[CodePosition, float] = {}
        stepping: dict[CodePosition, float] = {}
        core_ns = 0.0
        # Sum up the time of functions and threads.
        thread_function_ns: dict[tuple[int, int, Frame], float] = {}
        thread_ns: dict[tuple[int, int], float] = {}
        self._inside_loops: dict[tuple[Frame, source.CodeBlock], bool] = {}
        for row in self.rows:
            if row.stage == "import":
                continue
            ns = row.ns
            is_core = libraries.is_core(row)
            chain = user_positions(row.stack)
            core_ns += ns * is_core
            if chain and libraries.calls_into(row, "networks"):
                in_networks[chain[0]] = in_networks.get(chain[0], 0.0) + ns
            for position in dict.fromkeys(chain):
                inclusive_ns[position] = inclusive_ns.get(position, 0.0) + ns
                if is_core:
                    driving[position] = driving.get(position, 0.0) + ns
            environment = self._environment_frame(row, chain)
            if environment is not None:
                outside = next(i for i, at in enumerate(chain) if at.frame == environment)
                for position in chain[outside + 1 :]:
                    stepping[position] = stepping.get(position, 0.0) + ns
            thread = row.process.pid, row.sample.thread
            thread_ns[thread] = thread_ns.get(thread, 0.0) + ns
            for frame in {position.frame for position in chain}:
                key = (*thread, frame)
                thread_function_ns[key] = thread_function_ns.get(key, 0.0) + ns
        # Select the lines and functions above the thresholds.
        self.inclusive_ns = inclusive_ns
        self.has_core = core_ns > LIMITS.core_share * whole
        self.driving_lines = {
            at for at, ns in driving.items() if ns > LIMITS.driving_share * inclusive_ns[at]
        }
        self._network_lines = {
            at
            for at, ns in in_networks.items()
            if ns > LIMITS.network_line_share * inclusive_ns[at]
        }
        self.core_lines: dict[str, set[int]] = {}
        for position, ns in (*driving.items(), *stepping.items()):
            if ns > LIMITS.present_share * whole:
                self.core_lines.setdefault(position.frame.file, set()).add(position.line)
        self.function_ns: dict[Frame, float] = {}
        for (_, _, frame), ns in thread_function_ns.items():
            self.function_ns[frame] = self.function_ns.get(frame, 0.0) + ns
        self.main_functions = {
            frame
            for (pid, thread, frame), ns in thread_function_ns.items()
            if ns > LIMITS.main_share * thread_ns[pid, thread] > 0.1 * LIMITS.main_share * whole
        }

    @cached_property
    def _evaluations(self) -> set[Frame]:
        """Functions that evaluate a policy, by name or by content, in a program with other work."""
        # Other work means that a fifth of the time goes to steps or learning outside of them. If
        # all steps are in evaluations and nothing learns by gradients, as in evolution strategies,
        # evaluations are the program's purpose. Functions that only play episodes and have no such
        # name count if there are both steps and learning outside of them.
        frames = {frame for row in self.rows for frame in row.stack.frames}
        named = {frame for frame in frames if is_in("evaluations", frame)}
        playing = {
            frame
            for frame in frames - named
            if not is_library(frame) and episodes.only_scores_episodes(frame.file, frame.first_line)
        }
        evaluations: set[Frame] = set()
        for candidates in (named, named | playing):
            outside = [row for row in self.rows if not candidates.intersection(row.stack.frames)]
            stepping = sum(row.ns for row in outside if libraries.is_step(row))
            learning = sum(row.ns for row in outside if libraries.calls_into(row, "learning"))
            work_ns = sum(
                row.ns
                for row in outside
                if row.stage in ("env", "act", "update") or libraries.is_core(row)
            )
            steps = stepping > LIMITS.present_share * self.loop_ns
            num_kinds = steps + (learning > LIMITS.learning_share * self.loop_ns)
            has_work = work_ns > LIMITS.evaluation_work_share * self.loop_ns
            if has_work and num_kinds >= (1 if candidates is named else 2):
                evaluations = candidates
        return evaluations

    def evaluation_call(self, row: SampleRow) -> CodePosition | None:
        """Return the user's line that calls the evaluation that contains a row, if any."""
        frames, lines = row.stack
        for i in range(len(frames) - 1, -1, -1):
            if frames[i] in self._evaluations and (
                around := user_positions(Stack(frames[:i], lines[:i]))
            ):
                return around[0]
        return None

    def classify(self, row: SampleRow) -> str | Cause | None:
        """Return the category of inherent work, or a cost's cause, None if unknown."""
        stack, chain = row.stack, user_positions(row.stack)
        if row.stage == "import":
            return "starting"
        wrapper = self.wrappers.position(stack)
        if not chain:
            return "libraries" if wrapper is None else causes.WRAPPERS
        if self.evaluation_call(row) is not None:
            return causes.EVALUATION
        inner, at = library_frames(stack), chain[0]
        file, called = at.frame.file, at.called_names
        is_blocked = row.is_blocked
        is_external = is_blocked and main_wait([row]) in _SIMULATOR_WAITS
        if is_external and self._waits_for_simulator(row, chain):
            return "environments"
        # Recognize known causes by library functions and stages.
        cause = _cause_of_library(inner)
        if cause is causes.RENDERING and _renders_observation(chain, inner):
            return "environments"
        if libraries.formats_traceback(row) and libraries.is_core(row):
            cause = causes.DEBUG_MODE
        if wrapper is not None and is_library(wrapper.frame) and cause is causes.COPYING:
            cause = causes.WRAPPERS  # the user can't change a library
        if self._restarts_processes and libraries.calls_into(row, "process_starts"):
            cause = causes.PROCESSES
        if not is_blocked and inner and is_in("messages", inner[0]):  # no library's messages
            cause = causes.MESSAGES
        cause = cause or causes.for_stage(row.stage)
        if cause is not None:
            return cause
        # Classify blocked time by the wait.
        if is_blocked and not libraries.calls_into(row, "environments"):
            wait = main_wait([row])
            is_parallel = wait in ("lock", "something") and libraries.is_core(row)
            if libraries.calls_into(row, "remote_waits") and not is_parallel:
                return causes.WAITING_FOR_OTHERS
            if wait == "lock" and not inner and source.enters_context(file, at.line):
                return causes.LOCKS
            if wait in ("lock", "pipe") and any(is_in("thread_waits", frame) for frame in inner):
                return causes.WAITING_FOR_OTHERS
            if wait == "lock" and source.imports(file, "jax") and "acquire" not in called:
                return "networks"  # JAX waits for a result
            if wait == "lock" and called & source.compiled_names(file):
                return "networks"  # a compiled function waits for its own threads
            if not is_parallel:  # otherwise threads of torch and XLA compute meanwhile
                return causes.for_wait(wait)
        # Recognize networks and compiled functions.
        if called & source.compiled_names(file):
            if self._is_one_at_a_time(row, is_compiled=True):
                return causes.ONE_AT_A_TIME
            return "networks"
        called_first = (frame for frame in inner if not is_in("jax_wrappers", frame))
        if inner and is_in("eager_jax", next(called_first, inner[0])):
            return causes.EAGER_OPERATIONS
        if libraries.is_in_module_forward(stack) and self.tight_loop(at) is None:
            known = causes.for_calls(called)
            if known is None or known in (causes.WALKED_EACH_STEP, causes.CONVERSIONS):
                return "networks"  # a module's own arithmetic, `x + self.net(x).mean()`
        if libraries.calls_into(row, "networks"):
            if self._is_one_at_a_time(row):
                return causes.ONE_AT_A_TIME
            return "networks"
        # Recognize environments and wrappers, of libraries and of the user.
        if libraries.calls_into(row, "environments"):
            return "environments"
        environment = self._environment_frame(row, chain)
        if environment is not None:
            known = causes.for_calls(called)
            block = source.statement_at(file, at.line)
            if known is not None and (
                known.is_sure or growing_structures.passes_growing_structure(file, block)
            ):
                return known
            if wrapper is None and self.tight_loop(at) is not None:
                return causes.PYTHON_LOOP
        if wrapper is not None:
            return causes.WRAPPERS
        if environment is not None:
            return "environments"
        # Recognize library code and arithmetic.
        if libraries.calls_into(row, "buffers"):
            return "libraries"
        loop = source.loop_in_function(file, at.line)
        if loop is not None and matrix_products.multiplies_row_by_row(file, loop):
            return causes.ONE_AT_A_TIME
        is_main_line = self.inclusive_ns.get(at, 0.0) > LIMITS.main_share * self.loop_ns
        if inner and (
            at in self.driving_lines or (is_main_line and libraries.may_run_program(row))
        ):
            return "libraries"
        block = source.statement_at(file, at.line)
        is_plain = not inner and source.is_plain_arithmetic(file, block)
        if source.multiplies_matrices(file, block) or (is_plain and self.tight_loop(at) is None):
            return "arithmetic"
        known = causes.for_calls(called)
        if at in self._network_lines and not inner:  # `Categorical(…).sample()` draws an action
            known = causes.for_calls(
                frozenset(x for x in called if x.rpartition(".")[2] != "sample")
            )
        if at in self._network_lines and known in (
            None,
            causes.CONVERSIONS,
            causes.WALKED_EACH_STEP,
        ):
            # An action or a loss is computed from a network's output.
            is_alone = self.tight_loop(at) is None and not self._is_one_at_a_time(row)
            if is_alone and source.builds_no_lists(file, block):
                return "networks"
        if known is causes.FILES and any("/asyncio/" in frame.file for frame in inner):
            known = None  # an asyncio stream's `write`, which writes no file
        return known

    def _waits_for_simulator(self, row: SampleRow, chain: tuple[CodePosition, ...]) -> bool:
        """Return whether a step of the user's environment returns what it waits for."""
        environment = self._environment_frame(row, chain)
        if environment is None:
            return False
        index = next(i for i, position in enumerate(chain) if position.frame == environment)
        return _are_returned(chain[: index + 1])

    def _is_one_at_a_time(self, row: SampleRow, *, is_compiled: bool = False) -> bool:
        """Return whether a network is called in a loop without environment steps or learning."""
        # In main functions and with compiled functions, which may learn, only comprehensions count.
        at, inner = user_positions(row.stack)[0], library_frames(row.stack)
        file = at.frame.file
        loop = source.loop_in_function(file, at.line)
        if loop is None or recurrence.calls_its_elements(file, loop):
            return False
        if recurrence.is_recurrent(file, loop, at.line):
            return False
        if source.is_comprehension(file, loop):
            # The line may call a network once for all and loop over something else.
            caller = row.stack.frames[len(row.stack.frames) - len(inner) - 1]
            is_inside = caller.function.endswith(INLINE_FUNCTIONS) or (
                is_compiled and source.calls_per_element(file, loop, source.compiled_names(file))
            )
            return is_inside and "step" not in source.names_called(file, loop)
        may_be_main_loop = at.frame in self.main_functions or is_compiled
        is_learning = libraries.calls_into(row, "learning")
        return not may_be_main_loop and not is_learning and loop not in self._busy_loops(file)

    def _busy_loops(self, file: str) -> set[source.CodeBlock]:
        """Return a file's loops that step environments or train networks."""
        if file not in self._busy_by_file:
            busy: set[source.CodeBlock] = set()
            for row in self.rows:
                chain = user_positions(row.stack)
                if libraries.is_step(row) or libraries.calls_into(row, "learning"):
                    for position in chain:
                        if position.frame.file == file:
                            busy.update(source.loops_around(file, position.line))
            self._busy_by_file[file] = busy
        return self._busy_by_file[file]

    def _environment_frame(self, row: SampleRow, chain: tuple[CodePosition, ...]) -> Frame | None:
        """Return the innermost step or reset of a user's environment that contains a row."""
        in_step = {"env_step", "env_reset"}.intersection(row.sample.path)
        for position in chain:
            if is_environment(position.frame):
                return position.frame
        return chain[0].frame if chain and in_step and row.stage == "env" else None

    def tight_loop(self, at: CodePosition) -> source.CodeBlock | None:
        """Return the innermost loop around a line if it only processes elements.

        It steps no environment, calls no network, and runs repeatedly: it is inside another loop or
        outside the main functions.
        """
        file, line = at.frame.file, at.line
        loop = source.loop_in_function(file, line)
        if loop is None:
            return None
        function = source.function_around(file, line)
        if any(x in loop for x in self.core_lines.get(file, ())) or source.awaits(file, loop):
            return None
        if source.names_called(file, loop) & _TRAINING_CALLS:
            return None
        is_within = any(
            outer.first >= function.first
            for outer in source.loops_around(file, line)
            if outer.first < loop.first or outer.last > loop.last
        )
        if at.frame in self.main_functions and not is_within:
            return None
        return loop if self._is_self_time(at.frame, loop) else None

    def _is_self_time(self, frame: Frame, loop: source.CodeBlock) -> bool:
        """Return whether a loop spends its time on its own lines, not in user's functions."""
        key = frame, loop
        if key not in self._inside_loops:
            self_ns = inclusive_ns = 0.0
            for (lines, is_innermost), ns in self._times_by_lines.get(frame, {}).items():
                at = next((i for i, line in enumerate(lines) if line in loop), None)
                if at is not None:
                    inclusive_ns += ns
                    self_ns += ns * (is_innermost and at == 0)
            self._inside_loops[key] = self_ns >= LIMITS.self_share * inclusive_ns
        return self._inside_loops[key]

    @cached_property
    def _times_by_lines(self) -> dict[Frame, dict[tuple[tuple[int, ...], bool], float]]:
        """Time of each user's function by its lines in a stack, innermost first.

        The second part of a key tells whether no other function of the user was called there.
        """
        times: dict[Frame, dict[tuple[tuple[int, ...], bool], float]] = {}
        for row in self.rows:
            lines: dict[Frame, list[int]] = {}
            chain = user_positions(row.stack)
            for frame, line in chain:
                lines.setdefault(frame, []).append(line)
            for frame, found in lines.items():
                sums, key = times.setdefault(frame, {}), (tuple(found), frame == chain[0].frame)
                sums[key] = sums.get(key, 0.0) + row.ns
        return times


def _cause_of_library(inner: tuple[Frame, ...]) -> Cause | None:
    """Return the cause that the library functions called by a user's line indicate, if any.

    The user can't change what a library's environment does in a step, except that it renders.
    """
    in_step = False
    for frame in inner:
        known = causes.for_frame(frame)
        is_fixed = in_step and known in causes.BUILT_IN and known is not causes.RENDERING
        if known is not None and not is_fixed:
            return known
        in_step = in_step or (is_in("environments", frame) and is_in("steps", frame))
    return None


def _renders_observation(chain: tuple[CodePosition, ...], inner: tuple[Frame, ...]) -> bool:
    """Return whether a step renders what it returns: the pixels that a policy sees."""
    if any(is_in("pixel_observations", frame) for frame in inner):
        return True
    methods = (
        i
        for i, position in enumerate(chain)
        if is_environment(position.frame) or position.frame.function.endswith(".observation")
    )
    index = next(methods, None)
    return (
        index is not None
        and "render" in chain[0].called_names
        and _are_returned(chain[: index + 1])
    )


def _are_returned(chain: tuple[CodePosition, ...]) -> bool:
    """Return whether each function returns what its line computes."""
    return all(recurrence.returns_result(at.frame.file, at.line) for at in chain)


def _without_lock_wait(row: SampleRow) -> SampleRow:
    sample = row.sample
    if not sample.waits:
        return row
    waited_ns = sample.waits.get("interpreter", 0)
    waits = {name: ns for name, ns in sample.waits.items() if name != "interpreter"}
    elapsed_ns, on_core_ns = max(0, sample.elapsed_ns - waited_ns), sample.on_core_ns
    if libraries.calls_into(row, "networks"):
        # Threads of torch and XLA compute meanwhile.
        on_core_ns += waits.pop("lock", 0) + waits.pop("something", 0)
    return row._replace(
        sample=sample._replace(elapsed_ns=elapsed_ns, on_core_ns=on_core_ns, waits=waits)
    )
