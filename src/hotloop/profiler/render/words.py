"""Words that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.profiler.diagnose import evidence
from hotloop.profiler.diagnose.diagnosis import UNNAMED, Diagnosis
from hotloop.profiler.render.lines import Costs, function_of
from hotloop.profiler.session.lockstep import LockstepWaste
from hotloop.profiler.session.stages import Leaf
from hotloop.timing.table import duration

# A command of somebody else's process, a line of source.
MAX_WIDTH = 100

_WAITS = {
    "computing": "computing",
    "queued": "queued for a core",
    "child": "blocked: a child process",
    "interpreter": "blocked: the interpreter's lock",
    "something": "blocked",
}
_PACES = {"once": "once", "repeated": "again and again", "growing": "grows"}


def one_line(words: str, width: int = MAX_WIDTH) -> str:
    """Whatever a program is called, as one line that a terminal can show."""
    shown = "".join(one if one.isprintable() else " " for one in words)
    shown = " ".join(shown.split())
    return shown if len(shown) <= width else f"{shown[: width - 1]}…"


def gain(one: Diagnosis) -> str:
    """How much faster it is at best without: "up to 3.4× (of the loop alone 3.9×)"; or nothing."""
    if one.gain is None:
        return ""
    whole = f"{one.gain:.1f}×"
    loop = whole if one.loop_gain is None else f"{one.loop_gain:.1f}×"
    return f"up to {whole}" if loop == whole else f"up to {whole} (of the loop alone {loop})"


def kind(one: Diagnosis) -> tuple[str, str]:
    """What the time of it is, and how often it comes."""
    return _WAITS.get(one.wait, f"blocked: {one.wait}"), _PACES.get(one.pace, one.pace)


def place(leaf: Leaf) -> str:
    """A line: "envs/maze.py:31 in Maze.step"."""
    return evidence.place(leaf._replace(function=function_of(leaf.function)))


def places(leaves: Iterable[Leaf]) -> list[str]:
    """Several, each once: a comprehension stands in the line that it is part of."""
    return list(dict.fromkeys(map(place, leaves)))


def lines_of(one: Costs) -> str:
    """Whose lines they are, and what was left out: "all 4 workers (60% waiting)"."""
    return one.name if one.waiting < 0.01 else f"{one.name} ({one.waiting:.0%} waiting)"


def rule(one: Diagnosis) -> str:
    """The rule's name; empty: none knows it."""
    return "" if one.rule == UNNAMED else one.rule


def banner(one: Diagnosis) -> str:
    """What holds of all that is said, in a line."""
    return f"{one.title[:1].upper()}{one.title[1:]}: {one.evidence[0]}. {one.advice}"


def lockstep(waste: LockstepWaste) -> list[str]:
    """What waiting for the slowest worker costs, and which one that is, a sentence each."""
    lines = [
        f"{len(waste.workers)} workers step together, and each waits for the slowest. In "
        f"{waste.num_steps:,} steps of {waste.parent} they waited "
        f"{waste.waste_ns.sum() / 1e9:,.1f} s, {waste.share:.0%} of their time in them. If none "
        f"waited, the same workers would step {waste.speedup:.1f}× as fast."
    ]
    slowest = waste.always_slowest
    if slowest is not None:
        times = f", {slowest.own_ns / slowest.others_ns:.1f}×" if slowest.others_ns else ""
        lines.append(
            f"{slowest.name} is the slowest in {slowest.share:.0%} of the steps: it takes "
            f"{duration(slowest.own_ns)} for a typical one, the others "
            f"{duration(slowest.others_ns)}{times}."
        )
    return lines
