"""Rules on slow Python code: logging, configuration objects, argmax over lists, debug modes."""

from __future__ import annotations

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.causes import Explanation, for_frame
from hotloop.profiler.diagnose.evidence import (
    Evidence,
    SampleRow,
    describe_lines,
    entry_index,
    innermost_user_frame,
    library_frames,
    short_path,
    time_by_line,
    top_places,
    total_time,
)
from hotloop.profiler.diagnose.libraries import formats_traceback, is_core
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.session import Frame, is_library
from hotloop.profiler.session.sums import sums

# Functions that write messages out. They run after the level check.
_WRITE_FUNCTIONS = (
    "Logger.handle",
    "Handler.emit",
    "StreamHandler.emit",
    "StreamHandler.flush",
    "emit",
)


def logging(evidence: Evidence) -> Explanation | None:
    """Detect the formatting of log messages, especially of messages that are never emitted."""
    if not evidence.has_enough_samples:
        return None
    # Sort the samples into formatting and writing.
    eager: list[SampleRow] = []
    written: list[SampleRow] = []
    for row in evidence.rows:
        # Environments and networks called on a message's line would run without the message, too.
        if is_core(row):
            continue
        leaf = row.leaf
        if leaf.line in source.eager_log_lines(leaf.file):
            (written if _is_written(row) else eager).append(row)
        elif row.stage == "logging" or leaf.line in source.print_lines(leaf.file):
            written.append(row)
    formatting, writing = total_time(eager), total_time(written)
    if formatting.ns + writing.ns < LIMITS.python_share * evidence.duration_ns:
        return None
    is_eager = formatting.ns >= writing.ns
    # Describe the evidence.
    evidences = [
        f"logging takes {evidence.share(formatting.ns + writing.ns):.0%} of the time: "
        f"{describe_lines(evidence, [*eager, *written])}"
    ]
    if eager:
        leaf = time_by_line(eager)[0][0]
        evidences.append(
            f"{evidence.share(formatting.ns):.0%} of the time goes to formatting messages before "
            f"the logger checks the level: `{source.source_line(leaf.file, leaf.line)}`"
        )
    texts = {
        "title": "log messages are formatted even if they are not emitted",
        "advice": 'Let the logger format: log.debug("step %s: %s", step, values) instead of an '
        "f-string, and log no arrays in the loop.",
    }
    return Explanation(
        LIMITS.log_saving * (formatting.ns + writing.ns),
        tuple(evidences),
        [*eager, *written],
        top_places([*eager, *written]),
        texts if is_eager else {},
        0.95 if is_eager else 0.8,
    )


def _is_written(row: SampleRow) -> bool:
    return any(frame.function.endswith(_WRITE_FUNCTIONS) for frame in row.stack.frames[-12:])


def configuration(evidence: Evidence) -> Explanation | None:
    """Detect configuration objects that are read, or used as dictionaries, in the loop."""
    if not evidence.has_enough_samples:
        return None
    rows = [row for row in evidence.rows if row.stage == "config"]
    totals = total_time(rows)
    if totals.ns < LIMITS.python_share * evidence.duration_ns:
        return None
    libraries = sorted(
        {
            library
            for row in rows
            for library in ("omegaconf", "ml_collections", "hydra", "absl", "pydantic", "gin")
            if any(f"/{library}/" in frame.file for frame in row.stack.frames)
        }
    )
    return Explanation(
        LIMITS.configuration_saving * totals.ns,
        (
            f"{evidence.share(totals.ns):.0%} of the time is spent in their code: "
            f"{describe_lines(evidence, rows)}",
        ),
        rows,
        top_places(rows),
        {"title": f"{' and '.join(libraries) or 'configuration'} objects are used in the loop"},
    )


def slow_argmax(evidence: Evidence) -> Explanation | None:
    """Detect an argmax with random ties over Python lists that takes a tenth of the time.

    Its own lines and C code called there count. NumPy's argmax takes a tenth of this time.
    """
    if not evidence.has_enough_samples:
        return None
    # Group the samples by the user's innermost function.
    by_function: dict[Frame, list[SampleRow]] = {}
    for row in evidence.rows:
        if row.stage != "other":
            continue
        frame = innermost_user_frame(row.stack)
        if frame is not None and frame != _outermost(row):
            by_function.setdefault(frame, []).append(row)
    inclusive = _inclusive_samples(evidence)
    # Find the function that saves most.
    best: Explanation | None = None
    for frame, rows in by_function.items():
        if inclusive.get(frame, 0) > LIMITS.main_share * evidence.num_samples:
            continue  # it is the whole program
        # Skip functions that mostly call other functions, step environments or wait.
        num_samples = sum(row.sample.count for row in rows)
        if num_samples < LIMITS.argmax_self_share * inclusive.get(frame, 0):
            continue
        function = source.function_at(frame.file, frame.first_line)
        if function is None or (function.end_lineno or 0) - function.lineno > LIMITS.argmax_lines:
            continue
        direct = [row for row in rows if _may_find_maximum(row)]
        numbers = total_time(direct)
        # Queued time counts as work, blocked time does not.
        at_work = numbers.on_core_ns + numbers.queued_ns
        share = evidence.share(at_work)
        if not source.is_argmax(function) or share <= LIMITS.python_share:
            continue
        found = _argmax(evidence, frame, direct, at_work)
        if best is None or (found.saved_ns or 0.0) > (best.saved_ns or 0.0):
            best = found
    return best


def _may_find_maximum(row: SampleRow) -> bool:
    """Return whether a row is neither a log message nor a library call with a cause of its own."""
    if row.leaf.line in source.eager_log_lines(row.leaf.file):
        return False
    return not any(map(for_frame, library_frames(row.stack)))


def _inclusive_samples(evidence: Evidence) -> dict[Frame, int]:
    """Return the samples in each user function and its calls, including waits."""
    return sums(
        (frame, row.sample.count)
        for process in (evidence.main, *evidence.working_processes)
        for row in evidence.rows_of(process)
        for frame in set(row.stack.frames)
        if not is_library(frame)
    )


def _outermost(row: SampleRow) -> Frame | None:
    """Return the user's outermost frame, which is the loop itself or a worker's target."""
    # A forked worker's stack has its parent's frames outside of its target.
    frames = row.stack.frames[entry_index(row.stack) + 1 :]
    users = [frame for frame in frames if not is_library(frame)]
    return users[0] if users else None


def _argmax(evidence: Evidence, frame: Frame, rows: list[SampleRow], at_work: float) -> Explanation:
    return Explanation(
        LIMITS.argmax_saving * at_work,
        (
            f"{frame.function} ({short_path(frame.file)}:{frame.first_line}) takes "
            f"{evidence.share(at_work):.0%} of the time: {describe_lines(evidence, rows)}",
        ),
        rows,
        top_places(rows),
        {"function": frame.function},
    )


# By recorded fact: the name of a debug mode, the functions that switch it on, how to switch it off.
_MODES = {
    "detects_anomalies": (
        "torch's anomaly detection",
        frozenset({"set_detect_anomaly", "detect_anomaly"}),
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "traces_memory": (
        "tracemalloc",
        frozenset({"tracemalloc.start"}),
        "tracemalloc.stop(), no PYTHONTRACEMALLOC",
    ),
    "is_traced": (
        "a trace or profile function (sys.settrace, sys.setprofile)",
        frozenset({"settrace", "setprofile", "setprofile_all_threads", "set_trace"}),
        "sys.setprofile(None), sys.settrace(None), no debugger and no coverage",
    ),
}


def debug_mode(evidence: Evidence) -> Explanation | None:
    """Detect a debug mode, which slows down each operation, call or allocation.

    Its cost is spread over all samples. Only the formatting of tracebacks can be measured there.
    """
    active = [name for name in _MODES if evidence.fact(name)]
    if not active:
        return None
    name, switches, cure = _MODES[active[0]]
    rows = [row for row in evidence.rows if is_core(row) and formats_traceback(row)]
    return Explanation(
        max(LIMITS.debug_mode_share * evidence.duration_ns, total_time(rows).ns),
        (
            f"{name} was on while the program ran",
            "its cost is spread over the whole program and not measured here, the estimate assumes "
            "a quarter of the time",
        ),
        rows,
        evidence.lines_calling(switches),
        {"title": f"{name} is on", "advice": f"Switch it off for training: {cure}."},
    )
