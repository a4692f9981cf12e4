"""Scores of a diagnosis, given the truth about a case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Minimum gain of a counted case, and of a finding that counts as an alarm in a healthy program.
MIN_GAIN, ALARM = 1.25, 1.15
# Rules of findings that name only a place and no cause.
PLAIN = ("", "line")
# Findings that hold for every program of a library, with and without a planted cause: `hotloop
# accelerate` makes them faster (`bench/accelerate`).
CURES = ("stable-baselines3",)
# Number of a finding's places that are compared, the most expensive line first.
NUM_PLACES = 3
CLOSE = 0.25


def finding_record(finding: Any) -> dict[str, Any]:
    """Return the stored record of a finding."""
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


def names_cause(finding: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Return whether a finding names the cause by its place or by its words."""
    planted = set(truth["planted"])
    places = finding["places"][:NUM_PLACES]
    if any(file == truth["file"] and line in planted for file, line, _ in places):
        return True
    text = " ".join([finding["rule"], finding["title"], *finding["evidence"]]).lower()
    return any(word in text for word in truth["words"])


def score(found: Sequence[dict[str, Any]], truth: dict[str, Any]) -> dict[str, Any]:
    """Score the findings of a case: `outcome` is first, second, later, wrong or silent.

    `wrong` means that there are findings but none names the cause, `later` that the third or a
    later finding names it. `wait_right`, `pace_right` and `error` describe the finding that names
    the cause, or are None.
    """
    ranks = [rank for rank, finding in enumerate(found) if names_cause(finding, truth)]
    if ranks:
        outcome = ("first", "second")[ranks[0]] if ranks[0] < 2 else "later"
        naming = found[ranks[0]]
    else:
        outcome, naming = "wrong" if found else "silent", None
    measured, measured_loop = truth.get("measured"), truth.get("measured_loop")
    return {
        "outcome": outcome,
        "wait_right": None if naming is None else naming["wait"] in truth["waits"],
        "pace_right": None if naming is None else (naming["pace"] == "growing") == truth["grows"],
        "error": _error(naming["gain"] if naming else None, measured),
        "loop_error": _error(naming["loop_gain"] if naming else None, measured_loop),
    }


def _error(estimate: float | None, measured: float | None) -> float | None:
    return None if not estimate or not measured else round(estimate / measured - 1, 3)


def is_counted(case: dict[str, Any]) -> bool:
    """Return whether a case counts by its measured gain, or by the expected gain in a quick run."""
    gain = case["measured"] if case.get("measured") else case["expected"]
    return gain is None or gain >= MIN_GAIN


def alarms(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the false alarms of a healthy program: findings with a rule or a large gain.

    Advice to run it with a faster class of hotloop is no alarm.
    """
    return [
        finding
        for finding in found
        if finding["rule"] not in CURES
        and (finding["rule"] not in PLAIN or (finding["gain"] or 0) >= ALARM)
    ]


def summary(
    cases: Sequence[dict[str, Any]], healthy: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return counts over the counted cases of a half."""
    counted = [case for case in cases if is_counted(case)]
    outcomes = [case["outcome"] for case in counted]
    errors = [case["error"] for case in counted if case["error"] is not None]
    named = [case for case in counted if case["wait_right"] is not None]
    healthy = [program for program in healthy if "failed" not in program]
    return {
        "cases": len(counted),
        "weaker": len(cases) - len(counted),
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
        "alarms": sum(bool(program["alarms"]) for program in healthy),
    }
