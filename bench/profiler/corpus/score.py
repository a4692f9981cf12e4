"""Scores: what a diagnosis said of a case, against the truth about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# A gain from which a cause counts as there, and from which a healthy program's finding is an alarm.
THERE, ALARM = 1.25, 1.15
# What a finding is called that names no cause, but a place alone.
PLAIN = ("", "line")
# Places of a finding that are looked at, the dearest line first.
NUM_PLACES = 3
CLOSE = 0.25


def told(finding: Any) -> dict[str, Any]:
    """What is kept of a finding."""
    return {
        "rule": getattr(finding, "rule", ""),
        "title": getattr(finding, "title", ""),
        "gain": getattr(finding, "gain", None),
        "loop_gain": getattr(finding, "loop_gain", None),
        "wait": getattr(finding, "wait", ""),
        "pace": getattr(finding, "pace", ""),
        "evidence": list(getattr(finding, "evidence", ())),
        "places": [
            [Path(place.file).name, place.line, getattr(place, "function", "")]
            for place in getattr(finding, "places", ())
        ],
    }


def names_it(finding: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether a finding names the cause: by its place, or by its words where there is none."""
    planted = set(truth["planted"])
    places = finding["places"][:NUM_PLACES]
    if any(file == truth["file"] and line in planted for file, line, _ in places):
        return True
    text = " ".join([finding["rule"], finding["title"], *finding["evidence"]]).lower()
    return any(word in text for word in truth["words"])


def score(found: Sequence[dict[str, Any]], truth: dict[str, Any]) -> dict[str, Any]:
    """Of a case: `outcome` is first, second, later, wrong or silent.

    `wrong` is a cause that no finding names while others speak; `later` one that is named third or
    after. `wait_right`, `pace_right` and `error` are of the finding that names it, None without.
    """
    ranks = [rank for rank, finding in enumerate(found) if names_it(finding, truth)]
    if ranks:
        outcome = ("first", "second")[ranks[0]] if ranks[0] < 2 else "later"
        right = found[ranks[0]]
    else:
        outcome, right = "wrong" if found else "silent", None
    measured, measured_loop = truth.get("measured"), truth.get("measured_loop")
    return {
        "outcome": outcome,
        "wait_right": None if right is None else right["wait"] in truth["waits"],
        "pace_right": None if right is None else (right["pace"] == "growing") == truth["grows"],
        "error": _error(right["gain"] if right else None, measured),
        "loop_error": _error(right["loop_gain"] if right else None, measured_loop),
    }


def _error(estimate: float | None, measured: float | None) -> float | None:
    return None if not estimate or not measured else round(estimate / measured - 1, 3)


def is_there(case: dict[str, Any]) -> bool:
    """Whether a case counts: by the measured gain, or by the expected one in a quick run."""
    gain = case["measured"] if case.get("measured") else case["expected"]
    return gain is None or gain >= THERE


def alarms(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a healthy program: findings with a rule's name, or that promise much."""
    return [one for one in found if one["rule"] not in PLAIN or (one["gain"] or 0) >= ALARM]


def summary(
    cases: Sequence[dict[str, Any]], healthy: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Of a half: counts, of the cases that are there."""
    there = [case for case in cases if is_there(case)]
    outcomes = [case["outcome"] for case in there]
    errors = [case["error"] for case in there if case["error"] is not None]
    named = [case for case in there if case["wait_right"] is not None]
    return {
        "cases": len(there),
        "weaker": len(cases) - len(there),
        "first": outcomes.count("first"),
        "second": outcomes.count("second"),
        "later": outcomes.count("later"),
        "wrong": outcomes.count("wrong"),
        "silent": outcomes.count("silent"),
        "named": len(named),
        "wait_right": sum(case["wait_right"] for case in named),
        "pace_right": sum(case["pace_right"] for case in named),
        "estimates": len(errors),
        "close": sum(abs(error) <= CLOSE for error in errors),
        "healthy": len(healthy),
        "alarms": sum(bool(one["alarms"]) for one in healthy),
    }
