"""Python that costs more than what it surrounds: logging, configuration objects, argmax."""

from __future__ import annotations

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.diagnose.evidence import (
    Evidence,
    Row,
    by_line,
    given_at,
    places_of,
    short,
    spent,
    told_lines,
    user_frame,
)
from hotloop.profiler.session import Frame, is_library

# A tenth of the time: less is not worth a change, and within what some dozen samples can err.
_WORTH = 0.1
# Taken for what a debug mode costs, which no sample says: as much as is worth a word.
_OF_MODES = 0.25
# Where messages are written out, and not only made: these functions come after the level's check.
_WRITES = ("Logger.handle", "Handler.emit", "StreamHandler.emit", "StreamHandler.flush", "emit")


def logging(evidence: Evidence) -> Diagnosis | None:
    """Making messages, most of all those that nobody reads."""
    if not evidence.is_sampled:
        return None
    eager: list[Row] = []
    written: list[Row] = []
    for row in evidence.rows:
        # Environments and networks that a message's line calls would be called without it, too.
        if row.stage not in ("logging", "other"):
            continue
        leaf = row.leaf
        if leaf.line in source.eager_lines(leaf.file):
            (written if _is_written(row) else eager).append(row)
        elif row.stage == "logging" or leaf.line in source.print_lines(leaf.file):
            written.append(row)
    made, out = spent(eager), spent(written)
    if made.ns + out.ns < _WORTH * evidence.whole_ns:
        return None
    is_eager = made.ns >= out.ns
    evidences = [
        f"logging and formatting take {evidence.share(made.ns + out.ns):.0%} of the time: "
        f"{told_lines(evidence, [*eager, *written])}"
    ]
    if eager:
        leaf = by_line(eager)[0][0]
        evidences.append(
            f"{evidence.share(made.ns):.0%} of it is making messages before the logger is asked "
            f"whether anybody wants them: `{source.text_at(leaf.file, leaf.line)}`"
        )
    return Diagnosis(
        "logging",
        "messages are formatted whether anybody reads them or not"
        if is_eager
        else "logging takes a large part of the loop",
        0.95 if is_eager else 0.8,
        evidence.gain(0.95 * (made.ns + out.ns), crowds_out=True),
        tuple(evidences),
        'Let the logger fill in: log.debug("step %s: %s", step, values), not an f-string; and no '
        "arrays in messages of the loop."
        if is_eager
        else "Log every thousandth step, or once an episode, and let metrics stay numbers until "
        "then.",
        evidence.profile_again,
        places_of([*eager, *written]),
    )


def _is_written(row: Row) -> bool:
    return any(frame.function.endswith(_WRITES) for frame in row.stack.frames[-12:])


def configuration(evidence: Evidence) -> Diagnosis | None:
    """Configuration objects are read, or used as dictionaries, within the loop."""
    if not evidence.is_sampled:
        return None
    rows = [row for row in evidence.rows if row.stage == "config"]
    taken = spent(rows)
    if taken.ns < _WORTH * evidence.whole_ns:
        return None
    libraries = sorted(
        {
            library
            for row in rows
            for library in ("omegaconf", "ml_collections", "hydra", "absl")
            if any(f"/{library}/" in frame.file for frame in row.stack.frames)
        }
    )
    return Diagnosis(
        "configuration-objects",
        f"{' and '.join(libraries) or 'configuration'} objects are used in the loop",
        0.95,
        # A dictionary's own look-ups, and what is built of them, stay: a thirtieth.
        evidence.gain(0.97 * taken.ns, crowds_out=True),
        (
            f"{evidence.share(taken.ns):.0%} of the time is spent within them: "
            f"{told_lines(evidence, rows)}",
        ),
        "Make plain values of them once, before the loop: OmegaConf.to_container(config), or local "
        "variables.",
        evidence.profile_again,
        places_of(rows),
    )


def slow_argmax(evidence: Evidence) -> Diagnosis | None:
    """An argmax with ties, drawn from lists of Python's, takes a tenth of the time and more.

    By its own lines and C called there: NumPy's takes a tenth of it.
    """
    if not evidence.is_sampled:
        return None
    found: dict[Frame, list[Row]] = {}
    for row in evidence.rows:
        if row.stage != "other":
            continue
        frame = user_frame(row.stack)
        if frame is not None and frame != _outermost(row):
            found.setdefault(frame, []).append(row)
    passing = _passing(evidence)
    best: Diagnosis | None = None
    for frame, rows in found.items():
        if passing.get(frame, 0) > 0.85 * evidence.num_samples:
            continue  # it is the program
        # One that mostly calls others of the user's, steps environments or waits is no leaf.
        if sum(row.sample.count for row in rows) < 0.8 * passing.get(frame, 0):
            continue
        function = source.function_at(frame.file, frame.first_line)
        if function is None or (function.end_lineno or 0) - function.lineno > 40:
            continue
        own = [row for row in rows if row.leaf.line not in source.eager_lines(frame.file)]
        numbers = spent(own)
        # Queued for a core it would run, too; asleep it waits for something.
        at_work = numbers.on_core_ns + numbers.queued_ns
        share = evidence.share(at_work)
        if not source.is_argmax(function) or share <= _WORTH:
            continue
        one = _argmax(evidence, frame, own, at_work)
        if best is None or one.saved * one.confidence > best.saved * best.confidence:
            best = one
    return best


def _passing(evidence: Evidence) -> dict[Frame, int]:
    """Samples in each function of the user's and whatever it calls, waiting included."""
    found: dict[Frame, int] = {}
    for process in (evidence.main, *evidence.working):
        for row in evidence.rows_of(process):
            for frame in set(row.stack.frames):
                if not is_library(frame):
                    found[frame] = found.get(frame, 0) + row.sample.count
    return found


def _outermost(row: Row) -> Frame | None:
    """The loop itself is no leaf: the first of the user's frames, or what a worker was given.

    A forked worker's stack has its parent's below what it was given.
    """
    given = row.stack.frames[given_at(row.stack) + 1 :]
    users = [frame for frame in given if not is_library(frame)]
    return users[0] if users else None


def _argmax(evidence: Evidence, frame: Frame, rows: list[Row], at_work: float) -> Diagnosis:
    return Diagnosis(
        "slow-argmax",
        f"{frame.function} is an argmax of its own, of lists and conversions",
        0.85,
        # NumPy's over an array takes 1 to 3 µs, with ties; over a list of ten, 10 to 15.
        evidence.gain(0.9 * at_work, crowds_out=True),
        (
            f"{frame.function} ({short(frame.file)}:{frame.first_line}) takes "
            f"{evidence.share(at_work):.0%} of the time: {told_lines(evidence, rows)}",
        ),
        "Keep values in one array and take values.argmax(); where ties have to be drawn, "
        "rng.choice(np.flatnonzero(values == values.max())) only if there is more than one. Many "
        "runs at once as rows of one array save the rest.",
        evidence.profile_again,
        places_of(rows),
    )


# What tells of a mode, what it is called, and what switches it on.
_MODES = {
    "detects_anomalies": (
        "torch's anomaly detection",
        frozenset({"set_detect_anomaly", "detect_anomaly"}),
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "traces_memory": ("tracemalloc", frozenset({"start"}), "tracemalloc.stop()"),
    "is_traced": (
        "a trace or profile function (sys.settrace, sys.setprofile)",
        frozenset({"settrace", "setprofile", "setprofile_all_threads", "set_trace"}),
        "sys.setprofile(None), sys.settrace(None), no debugger and no coverage",
    ),
}


def debug_mode(evidence: Evidence) -> Diagnosis | None:
    """A mode for finding errors is on, which makes each operation, call or allocation dearer.

    How much dearer no sample says, since it is spread over all of them: as a rule a third and more.
    """
    on = [name for name in _MODES if evidence.fact(name)]
    if not on:
        return None
    name, switches, cure = _MODES[on[0]]
    return Diagnosis(
        "debug-mode",
        f"{name} is on",
        0.9,
        evidence.gain(_OF_MODES * evidence.whole_ns),
        (
            f"{name} was on while the program ran",
            "what it costs is spread over all that the program does, and is not measured here: a "
            "quarter of the time is taken for it",
        ),
        f"Switch it off for training: {cure}.",
        evidence.profile_again,
        evidence.lines_calling(switches),
    )
