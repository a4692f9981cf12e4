"""Findings: costs that are worth a word, in words."""

from __future__ import annotations

from dataclasses import replace

from hotloop.profiler.diagnose import kinds
from hotloop.profiler.diagnose.cost import Cost
from hotloop.profiler.diagnose.costs import SMALL, Costs
from hotloop.profiler.diagnose.diagnosis import UNNAMED, Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, below, place, short, told_lines

# Of the loop: what no program needs is worth a word from here on, any other cost from there.
WASTE, TOLD = 0.1, SMALL
# From here on a cost that is no known waste is also said to be worth a change: a program that is as
# it should be has lines of up to a fifth.
CLAIMED = 0.2
# A function that steps, acts or learns, over all its lines, is as a rule what the program is for;
# what comes once is no part of the loop.
SPREAD = 0.3
# Of a loop shorter than this, nothing is known.
LEAST_LOOP_NS = 0.5e9


def findings(evidence: Evidence, costs: Costs) -> list[Diagnosis]:
    """All costs that are worth a word."""
    found: list[Diagnosis] = []
    for cost in costs.costs if costs.loop_ns >= LEAST_LOOP_NS else ():
        share = cost.ns / costs.loop_ns
        if share < WASTE:
            break  # the rest are smaller
        pace = costs.pace(cost)
        may_be_needed = cost.is_spread or (cost.is_own_work and pace != "growing")
        # What comes once, a program that runs longer has no more of.
        is_work = cost.is_spread and cost.is_own_work
        least = SPREAD if is_work or pace == "once" else WASTE if cost.is_waste else TOLD
        if share < least:
            continue
        told = _told(evidence, costs, cost, pace)
        if may_be_needed:
            told = _may_be_needed(told, evidence, cost)
        elif cost.is_idle or share < _claimed(cost) or (cost.is_guess and pace != "growing"):
            told = _unclaimed(told, evidence, cost)
        found.append(told)
    return found


def _claimed(cost: Cost) -> float:
    """The share of the loop from which on a cost is said to be worth a change."""
    if cost.is_waste:
        return WASTE
    # Workers are never quite even: of rounds of eight jobs for two of them a sixth is waiting.
    return SPREAD if cost.kind is kinds.OTHERS else CLAIMED


def _told(evidence: Evidence, costs: Costs, cost: Cost, pace: str) -> Diagnosis:
    share, of_loop = evidence.share(cost.ns), cost.ns / costs.loop_ns
    kind, callee = cost.kind, _callee(cost)
    left_s = max(0.0, evidence.whole_ns - cost.ns) / 1e9
    return Diagnosis(
        kind.rule if kind else UNNAMED,
        kind.title if kind else _line(evidence, cost),
        0.6 if kind is None else 0.9 if kind.is_sure else 0.7,
        evidence.gain(cost.ns),
        (
            f"{share:.0%} of the time, {of_loop:.0%} of the loop"
            + (f", in {callee}" if callee else ""),
            f"if it vanished, {left_s:.1f} s of {evidence.whole_ns / 1e9:.1f} s would be left",
        ),
        kind.advice if kind else "Leave it out of the loop, do it less often, or for many at once.",
        evidence.profile_again,
        cost.places,
        cost.wait,
        pace,
        loop_gain=1.0 / max(0.02, 1.0 - of_loop),
    )


def _may_be_needed(told: Diagnosis, evidence: Evidence, cost: Cost) -> Diagnosis:
    """A finding without a promise: it may be what the program is for."""
    function = cost.function.function if cost.is_spread else cost.places[0].function
    over = ", over all of its lines" if cost.is_spread else f", most of it at {_where(cost)}"
    may_be_removed = cost.is_sure or (cost.is_spread and not cost.is_own_work)
    lines = (told_lines(evidence, cost.rows),) if cost.is_spread else ()
    return replace(
        _unclaimed(told, evidence, cost),
        title=f"{function} takes {evidence.share(cost.ns):.0%} of the time{over}",
        advice="Work on arrays at once, or compile it (Numba), or call it less often.",
        share=evidence.share(cost.ns) if may_be_removed else 0.0,
        evidence=(*told.evidence, *filter(None, lines)),
    )


def _unclaimed(told: Diagnosis, evidence: Evidence, cost: Cost) -> Diagnosis:
    """A finding without a promise: a place alone."""
    return replace(
        told,
        rule=UNNAMED,
        title=_line(evidence, cost),
        confidence=0.3,
        gain=None,
        loop_gain=None,
        share=evidence.share(cost.ns),
    )


def _line(evidence: Evidence, cost: Cost) -> str:
    return f"one line takes {evidence.share(cost.ns):.0%} of the time: {_where(cost)}"


def _where(cost: Cost) -> str:
    return f"{short(cost.places[0].file)}:{cost.places[0].line}"


def _callee(cost: Cost) -> str:
    """The library's public function that most of a cost is in, below the user's line."""
    found: dict[str, float] = {}
    for row in cost.rows:
        for frame in below(row.stack):
            name = frame.function.rpartition(".")[2]
            if name.startswith(("_", "<")):
                continue
            told = f"{_module(frame.file)}.{frame.function}"
            found[told] = found.get(told, 0.0) + row.ns
            break
    best = max(found, key=lambda one: found[one], default="")
    return best if best and found[best] > 0.5 * cost.ns else ""


def _module(file: str) -> str:
    """A library's name, by the file of its module."""
    for mark in ("/site-packages/", "/dist-packages/", "/lib/python3"):
        _, found, rest = file.rpartition(mark)
        if found:
            parts = rest.split("/")
            if mark == "/lib/python3":
                parts = parts[1:]
            return parts[0].removesuffix(".py") if parts else ""
    return file.rpartition("/")[2].removesuffix(".py")


def left_over(evidence: Evidence, costs: Costs) -> str:
    """What the program's time is, where nothing is worth a word: inherent, or spread thinly."""
    whole = max(1.0, float(evidence.whole_ns))
    words = {
        "environments": "the environments' own steps",
        "networks": "networks and optimizers",
        "arithmetic": "products of matrices",
        "libraries": "libraries' own work",
    }
    parts = [
        f"{ns / whole:.0%} {words[name]}"
        for name, ns in sorted(costs.inherent.items(), key=lambda item: -item[1])
        if ns >= 0.01 * whole
    ]
    if costs.start_ns >= 0.01 * whole:
        parts.append(f"{costs.start_ns / whole:.0%} importing and starting")
    rest = sum(cost.ns for cost in costs.costs)
    if not costs.costs or rest < 0.01 * whole:
        tail = ""
    else:
        first, others = costs.costs[0], len(costs.costs) - 1
        where = "one other place" if not others else f"{others + 1} other places"
        tail = f"; {rest / whole:.0%} is in {where}, {place(first.places[0])}" + (
            f" with {first.ns / whole:.0%} the largest of them" if others else ""
        )
    inherent = ", ".join(parts) or "none of it is inherent"
    return f"No cost is worth a change. Of the time: {inherent}{tail}."
