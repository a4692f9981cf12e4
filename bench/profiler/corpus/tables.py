"""Tables of what `python -m bench corpus` has stored."""

from __future__ import annotations

from typing import Any

from bench import storage
from bench.markdown import table
from bench.profiler.corpus.score import is_there

TITLES = {"tune": "rules may be tuned on it", "unseen": "no rule has seen it"}


def _of(count: int, whole: int) -> str:
    return f"{count} of {whole}" if whole else "none"


def corpus_table() -> str:
    """A row for each half: how often the cause is named, and what is said of it right."""
    halves = storage.load("corpus")["halves"]
    rows = [
        [
            *("half", "cases", "named first", "among the first two", "wrong lead", "silent"),
            *("kind of wait right", "estimate within 25 %", "false alarms"),
        ]
    ]
    for name in ("tune", "unseen"):
        if name not in halves:
            continue
        sums = halves[name]["summary"]
        wrong = sums["cases"] - sums["first"] - sums["second"] - sums["silent"]
        rows.append(
            [
                f"{name}: {TITLES[name]}",
                str(sums["cases"]),
                str(sums["first"]),
                str(sums["first"] + sums["second"]),
                str(wrong),
                str(sums["silent"]),
                _of(sums["wait_right"], sums["named"]),
                _of(sums["close"], sums["estimates"]),
                _of(sums["alarms"], sums["healthy"]),
            ]
        )
    return table(*rows)


def misses_table() -> str:
    """Cases whose cause was not named first, and what was said instead."""
    rows = [["half", "cause", "program", "gain", "said instead"]]
    for name, half in sorted(storage.load("corpus")["halves"].items()):
        for case in half["cases"]:
            if is_there(case) and case["outcome"] != "first":
                program = f"{case['program']}.py"
                rows.append([name, case["cause"], program, _gain(case), _instead(case["found"])])
    return table(*rows)


def alarms_table() -> str:
    """What was said of programs with nothing planted."""
    rows = [["half", "program", "said"]]
    for name, half in sorted(storage.load("corpus")["halves"].items()):
        for one in half["healthy"]:
            if one["alarms"]:
                rows.append([name, f"{one['program']}.py", _instead(one["alarms"])])
    return table(*rows)


def _gain(case: dict[str, Any]) -> str:
    gain = case.get("measured") or case["expected"]
    return "" if gain is None else f"{gain:.2f}"


def _instead(found: list[dict[str, Any]]) -> str:
    if not found:
        return "nothing"
    first = found[0]
    rule = f"`{first['rule']}`: " if first["rule"] else ""
    return f"{rule}{first['title']}".replace("|", "\\|")
