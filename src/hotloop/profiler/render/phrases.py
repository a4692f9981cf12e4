"""Phrases that the terminal and the HTML page share."""

from __future__ import annotations

from collections.abc import Iterable

from hotloop.profiler.diagnose import evidence
from hotloop.profiler.diagnose.diagnosis import UNNAMED, Diagnosis
from hotloop.profiler.render.lines import ThreadCosts
from hotloop.profiler.session import enclosing_function
from hotloop.profiler.session.lockstep import LockstepWaste
from hotloop.profiler.session.stages import CodeLine
from hotloop.timing.table import duration

# Maximum length of a command or a source line.
MAX_WIDTH = 100

_WAITS = {
    "computing": "computing",
    "queued": "queued for a core",
    "child": "blocked: child process",
    "interpreter": "blocked: interpreter lock",
    "something": "blocked",
}
_PACES = {"once": "once", "repeated": "repeated", "growing": "growing over time"}


def one_line(text: str, width: int = MAX_WIDTH) -> str:
    """Return a text as one printable line of limited width."""
    line = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(line.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def gain_text(diagnosis: Diagnosis) -> str:
    """Return the speed-up as text, "up to 3.4× as fast (loop alone: 3.9×)", "" if unknown."""
    if diagnosis.gain is None:
        return ""
    whole = f"{diagnosis.gain:.1f}×"
    loop = whole if diagnosis.loop_gain is None else f"{diagnosis.loop_gain:.1f}×"
    return f"up to {whole} as fast" + ("" if loop == whole else f" (loop alone: {loop})")


def wait_and_pace(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return how most of the time passes, and how often the cause occurs."""
    wait, pace = diagnosis.wait, diagnosis.pace
    return _WAITS.get(wait, f"blocked: {wait}"), _PACES.get(pace, pace)


def place_text(line: CodeLine) -> str:
    """Return a line of code as text: "envs/maze.py:31 in Maze.step"."""
    return evidence.describe_place(line._replace(function=enclosing_function(line.function)))


def place_texts(lines: Iterable[CodeLine]) -> list[str]:
    """Return lines of code as texts without duplicates, which comprehensions cause."""
    return list(dict.fromkeys(map(place_text, lines)))


def costs_title(costs: ThreadCosts) -> str:
    """Return the threads' name and their excluded time: "all 4 workers, 60% waiting"."""
    waiting = costs.waiting_share
    return costs.name if waiting < 0.01 else f"{costs.name}, {waiting:.0%} waiting"


def rule_name(diagnosis: Diagnosis) -> str:
    """Return the rule's name, empty if no rule applies."""
    return "" if diagnosis.rule == UNNAMED else diagnosis.rule


def banner_text(diagnosis: Diagnosis) -> str:
    """Return a diagnosis that affects the whole report, in one line."""
    heading = ": ".join([diagnosis.title, *diagnosis.evidence[:1]])
    return f"{heading[:1].upper()}{heading[1:]}. {diagnosis.advice}"


def lockstep_sentences(waste: LockstepWaste) -> list[str]:
    """Return sentences on the time lost to the slowest worker, and on which worker that is."""
    lines = [
        f"{len(waste.workers)} workers step together, and each waits for the slowest. In "
        f"{waste.num_steps:,} steps of {waste.parent} they waited "
        f"{waste.waste_ns.sum() / 1e9:,.1f} s, {waste.waste_share:.0%} of their time in these "
        f"steps. Without waiting, the same workers would step {waste.speedup:.1f}× as fast."
    ]
    slowest = waste.always_slowest
    if slowest is not None:
        ratio = f", {slowest.step_ns / slowest.other_step_ns:.1f}×" if slowest.other_step_ns else ""
        lines.append(
            f"{slowest.name} is the slowest in {slowest.share:.0%} of the steps: its typical step "
            f"takes {duration(slowest.step_ns)}, that of the others "
            f"{duration(slowest.other_step_ns)}{ratio}."
        )
    return lines
