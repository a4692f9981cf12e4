"""Findings: diagnoses of all costs that are large enough to report."""

from __future__ import annotations

from dataclasses import replace

from hotloop.profiler.diagnose import causes
from hotloop.profiler.diagnose.causes import Cause, Explanation
from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.costs import Costs
from hotloop.profiler.diagnose.diagnosis import UNNAMED, Diagnosis
from hotloop.profiler.diagnose.evidence import (
    Evidence,
    describe_lines,
    describe_place,
    library_frames,
    short_path,
)
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.diagnose.wrappers import describe_wrappers
from hotloop.profiler.session import Stack
from hotloop.profiler.session.sums import ranked, sums


def explain(evidence: Evidence, cause: Cause, explanation: Explanation) -> Diagnosis:
    """Return the diagnosis of a cause that was found by a program's structure."""
    saved_ns = explanation.saved_ns
    texts = {"again": evidence.verify_command, "target": evidence.target} | {**explanation.texts}

    def fill(text: str) -> str:
        for name, value in texts.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    return Diagnosis(
        cause.name,
        fill(texts.get("title", cause.title)),
        cause.confidence if explanation.confidence is None else explanation.confidence,
        None if saved_ns is None else evidence.gain(saved_ns, fills_caches=cause.fills_caches),
        explanation.evidence,
        fill(texts.get("advice", cause.advice)),
        fill(cause.verify),
        explanation.places,
        cause.wait or "computing",
        explanation.pace,
        is_rebuild=cause.is_rebuild,
    )


def findings(evidence: Evidence, costs: Costs) -> list[Diagnosis]:
    """Return a diagnosis for each cost that is large enough to report."""
    found: list[Diagnosis] = []
    for cost in costs.costs if costs.loop_ns >= LIMITS.min_loop_ns else ():
        share, is_structural = cost.ns / costs.loop_ns, cost.explanation is not None
        if share < LIMITS.waste_share and not is_structural:
            continue  # no minimum is smaller, and there may be thousands of such costs
        pace = costs.pace(cost)
        if share < _min_share(cost, pace) and not is_structural:
            continue
        diagnosis = _diagnosis(evidence, costs, cost, pace)
        has_estimate = cost.explanation is not None and cost.explanation.saved_ns is not None
        if has_estimate:
            pass
        elif cost.is_spread or (cost.is_core_work and pace != "growing"):
            diagnosis = _possibly_needed(diagnosis, evidence, cost)
        elif cost.is_idle or share < _min_gain_share(cost) or (cost.is_guess and pace != "growing"):
            diagnosis = _without_gain(diagnosis, evidence, cost)
        found.append(diagnosis)
    return found


def _min_share(cost: Cost, pace: str) -> float:
    """Return the minimum share of the loop to report a cost."""
    # A longer run does not repeat a cost that occurs once.
    if (cost.is_spread and cost.is_core_work) or pace == "once":
        return LIMITS.spread_share
    return LIMITS.waste_share if cost.is_waste else LIMITS.cost_share


def _min_gain_share(cost: Cost) -> float:
    """Return the minimum share of the loop for which a gain is promised."""
    if cost.is_waste:
        return LIMITS.waste_share
    return LIMITS.spread_share if cost.cause is causes.WAITING_FOR_OTHERS else LIMITS.gain_share


def _diagnosis(evidence: Evidence, costs: Costs, cost: Cost, pace: str) -> Diagnosis:
    cause, explanation = cost.cause, cost.explanation
    saved_ns = cost.ns * (1.0 if cause is None else cause.gain)
    if explanation is not None and explanation.saved_ns is not None:
        saved_ns = explanation.saved_ns
    loop_gain = 1.0 / max(LIMITS.remaining_share, 1.0 - saved_ns / costs.loop_ns)
    if cause is not None and explanation is not None:
        diagnosis = explain(evidence, cause, explanation)
        gain = evidence.gain(saved_ns) if diagnosis.gain is None else diagnosis.gain
        pace = pace if explanation.pace == "repeated" else explanation.pace
        return replace(
            diagnosis,
            gain=gain,
            places=cost.places,
            wait=cost.wait,
            pace=pace,
            loop_gain=max(gain, loop_gain),
        )
    share, callee = evidence.share(cost.ns), _callee(cost)
    remaining_s = max(0.0, evidence.duration_ns - saved_ns) / 1e9
    text = Explanation(
        saved_ns,
        (
            f"{share:.0%} of the time, {cost.ns / costs.loop_ns:.0%} of the loop"
            + (f", in {callee}" if callee else ""),
            f"without it, the run would take {remaining_s:.1f} s instead of "
            f"{evidence.duration_ns / 1e9:.1f} s",
        ),
        places=cost.places,
        pace=pace,
    )
    if cause is None:
        title = _line_title(evidence, cost)
        advice = "Move it out of the loop, do it less often, or batch it."
        cause = Cause(UNNAMED, title, advice, confidence=0.6)
    return replace(explain(evidence, cause, text), wait=cost.wait, loop_gain=loop_gain)


def _possibly_needed(diagnosis: Diagnosis, evidence: Evidence, cost: Cost) -> Diagnosis:
    """Return the diagnosis without a gain: the program may need this work."""
    function = cost.function.function if cost.is_spread else cost.places[0].function
    over = ", spread over all its lines" if cost.is_spread else f", most of it at {_location(cost)}"
    may_be_removed = cost.is_sure or (cost.is_spread and not cost.is_core_work)
    line_texts = (describe_lines(evidence, cost.rows),) if cost.is_spread else ()
    without_gain = _without_gain(diagnosis, evidence, cost)
    return replace(
        without_gain,
        title=f"{function} takes {evidence.share(cost.ns):.0%} of the time{over}",
        advice="Process whole arrays, compile it (Numba), or call it less often.",
        share=evidence.share(cost.ns) if may_be_removed else 0.0,
        evidence=(*without_gain.evidence, *filter(None, line_texts)),
    )


def _without_gain(diagnosis: Diagnosis, evidence: Evidence, cost: Cost) -> Diagnosis:
    """Return the diagnosis with a place only, without a gain."""
    if cost.explanation is not None:
        return replace(diagnosis, gain=None, loop_gain=None)
    return replace(
        diagnosis,
        rule=UNNAMED,
        title=_line_title(evidence, cost),
        confidence=0.3,
        evidence=diagnosis.evidence[:1],  # without the time that a gain would save
        gain=None,
        loop_gain=None,
        share=evidence.share(cost.ns),
    )


def _line_title(evidence: Evidence, cost: Cost) -> str:
    return f"one line takes {evidence.share(cost.ns):.0%} of the time: {_location(cost)}"


def _location(cost: Cost) -> str:
    return f"{short_path(cost.places[0].file)}:{cost.places[0].line}"


def _callee(cost: Cost) -> str:
    """Return the public library function that takes most of a cost, called by the user's line.

    For wrappers, these are their names and shares.
    """
    if cost.cause is causes.WRAPPERS:
        return describe_wrappers(cost.rows)
    times = sums((_public_callee(row.stack), row.ns) for row in cost.rows)
    most = next((name for name in ranked(times) if name), "")
    return most if most and times[most] > 0.5 * cost.ns else ""


def _public_callee(stack: Stack) -> str:
    for frame in library_frames(stack):
        if not frame.function.rpartition(".")[2].startswith(("_", "<")):
            return f"{_library_name(frame.file)}.{frame.function}"
    return ""


def _library_name(file: str) -> str:
    for mark in ("/site-packages/", "/dist-packages/", "/lib/python3"):
        _, separator, path = file.rpartition(mark)
        if separator:
            parts = path.split("/")
            if mark == "/lib/python3":
                parts = parts[1:]
            return parts[0].removesuffix(".py") if parts else ""
    return file.rpartition("/")[2].removesuffix(".py")


def describe_inherent(evidence: Evidence, costs: Costs) -> str:
    """Return a sentence on where the time goes in a program without findings."""
    total_ns = max(1.0, float(evidence.duration_ns))
    labels = {
        "environments": "environment steps",
        "networks": "networks and optimizers",
        "arithmetic": "arithmetic",
        "libraries": "library code",
    }
    parts = [
        f"{ns / total_ns:.0%} {labels[name]}"
        for name, ns in sorted(costs.inherent.items(), key=lambda item: -item[1])
        if ns >= 0.01 * total_ns
    ]
    if costs.start_ns >= 0.01 * total_ns:
        parts.append(f"{costs.start_ns / total_ns:.0%} importing and starting")
    other_ns = sum(cost.ns for cost in costs.costs)
    if not costs.costs or other_ns < 0.01 * total_ns:
        tail = ""
    else:
        first, num_smaller = costs.costs[0], len(costs.costs) - 1
        where = "one other place" if not num_smaller else f"{num_smaller + 1} other places"
        tail = f". {other_ns / total_ns:.0%} is in {where}: {describe_place(first.places[0])}" + (
            f" ({first.ns / total_ns:.0%}) and smaller ones" if num_smaller else ""
        )
    inherent = ", ".join(parts) or "nothing inherent"
    return f"No cost is large enough to justify a change. The time goes to: {inherent}{tail}."
