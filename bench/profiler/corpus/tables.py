"""Tables of `python -m bench corpus`."""

from __future__ import annotations

from typing import Any

from bench import storage
from bench.markdown import table
from bench.profiler.corpus.score import is_counted

TITLES = {"tune": "rules may be tuned on it", "unseen": "no rule was tuned on it"}


def _of(count: int, total: int) -> str:
    return f"{count} of {total}" if total else "none"


def corpus_table() -> str:
    """Return a table with a row per half: how often the cause is named, and correct details."""
    halves = storage.load("corpus")["halves"]
    rows = [
        [
            *("half", "cases", "named first", "among the first two", "wrong lead", "no finding"),
            *("correct kind of wait", "estimate within 25 %", "false alarms"),
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
    """Return a table of cases with a first finding that does not name the cause."""
    rows = [["half", "cause", "program", "gain", "first finding"]]
    for name, half in sorted(storage.load("corpus")["halves"].items()):
        for case in half["cases"]:
            if is_counted(case) and case["outcome"] != "first":
                program = f"{case['program']}.py"
                rows.append([name, case["cause"], program, _gain(case), _instead(case["found"])])
    return table(*rows)


def alarms_table() -> str:
    """Return a table of findings in programs without planted causes."""
    rows = [["half", "program", "finding"]]
    for name, half in sorted(storage.load("corpus")["halves"].items()):
        for program in half["healthy"]:
            if program["alarms"]:
                rows.append([name, f"{program['program']}.py", _instead(program["alarms"])])
    return table(*rows)


def _gain(case: dict[str, Any]) -> str:
    gain = case.get("measured") or case["expected"]
    return "" if gain is None else f"{gain:.2f}"


def _instead(found: list[dict[str, Any]]) -> str:
    if not found:
        return "none"
    first = found[0]
    rule = f"`{first['rule']}`: " if first["rule"] else ""
    return f"{rule}{first['title']}".replace("|", "\\|")
