"""Findings: costs that are worth a word, in words."""

from __future__ import annotations

from hotloop.profiler.diagnose.costs import Cost, Costs
from hotloop.profiler.diagnose.diagnosis import UNNAMED, Diagnosis
from hotloop.profiler.diagnose.evidence import Evidence, below, place, short

# Of the loop: a cost that has a name is worth a word from here on, one without from there.
NAMED, NAMELESS = 0.1, 0.15
# A function whose lines are all alike is as a rule what the program is for; what comes once is no
# part of the loop.
SPREAD = 0.3


def findings(evidence: Evidence, costs: Costs) -> list[Diagnosis]:
    """All costs that are worth a word."""
    found: list[Diagnosis] = []
    for cost in costs.costs:
        if cost.ns >= NAMED * costs.loop_ns:  # the least that any is worth one from
            pace = costs.pace(cost)
            is_claimed = not cost.is_spread and not (cost.is_own_work and pace != "growing")
            # What comes once, a program that runs longer has no more of.
            least = NAMED if cost.is_sure else NAMELESS
            if cost.ns >= (least if is_claimed and pace != "once" else SPREAD) * costs.loop_ns:
                found.append(_told(evidence, costs, cost, pace, is_claimed=is_claimed))
    return found


def _told(
    evidence: Evidence, costs: Costs, cost: Cost, pace: str, *, is_claimed: bool
) -> Diagnosis:
    dearest, wait = cost.places[0], cost.wait
    share = evidence.share(cost.ns)
    kind = cost.kind
    callee = _callee(cost)
    where = f"{short(dearest.file)}:{dearest.line}"
    title = kind.title if kind else f"one line takes {share:.0%} of the time: {where}"
    left_s = max(0.0, evidence.whole_ns - cost.ns) / 1e9
    evidences = [
        f"{share:.0%} of the time, {cost.ns / costs.loop_ns:.0%} of the loop"
        + (f", in {callee}" if callee else ""),
        f"if it vanished, {left_s:.1f} s of {evidence.whole_ns / 1e9:.1f} s would be left",
    ]
    if not is_claimed:
        over = ", over all of its lines" if cost.is_spread else f", most of it at {where}"
        return Diagnosis(
            UNNAMED,
            f"{dearest.function} takes {share:.0%} of the time{over}",
            0.3,
            None,
            tuple(evidences),
            "Work on arrays at once, or compile it (Numba), or call it less often.",
            evidence.profile_again,
            cost.places,
            wait,
            pace,
        )
    confidence = 0.6 if kind is None else 0.9 if kind.is_sure else 0.7
    return Diagnosis(
        kind.rule if kind else UNNAMED,
        title,
        confidence,
        evidence.gain(cost.ns),
        tuple(evidences),
        kind.advice if kind else "Leave it out of the loop, do it less often, or for many at once.",
        evidence.profile_again,
        cost.places,
        wait,
        pace,
        loop_gain=1.0 / max(0.02, 1.0 - cost.ns / costs.loop_ns),
    )


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
