"""Tables of what `python -m bench profiler` has stored."""

from __future__ import annotations

from typing import Any

from bench import storage
from bench.markdown import table
from bench.profiler.stages import CLOSE, STAGES


def _gain(figure: dict[str, float] | None) -> str:
    if figure is None:
        return "not named"
    return f"{figure['median']:.2f} ({figure['min']:.2f}–{figure['max']:.2f})"


def examples_table() -> str:
    """The planted causes of examples/slow, beside what their removal brought."""
    result = storage.load("profiler_examples")
    rows = [["program", "cause", "named first", "estimate", "measured", "off by"]]
    for case in result["cases"].values():
        error = case["error"]
        rows.append(
            [
                f"{case['program']}.py {' '.join(case['slow'])}".strip(),
                f"`{case['rule']}`",
                f"{case['first']} of {case['rounds']}",
                _gain(case["estimate"]),
                _gain(case["measured"]),
                "" if error is None else f"{error:+.0%}",
            ]
        )
    for program, rounds in result["twins"].items():
        alarms = sorted({rule for found in rounds for rule in found})
        silent = sum(not found for found in rounds)
        named = f"; {', '.join(f'`{rule}`' for rule in alarms)}" if alarms else ""
        rows.append(
            [f"{program}.py --healthy", f"none: silent in {silent} of {len(rounds)}{named}"]
            + [""] * 4
        )
    return table(*rows)


def cost_table() -> str:
    """What recording costs."""
    programs: dict[str, Any] = storage.load("profiler_cost")["programs"]
    rows = [
        ["program", "bare, s", "spans, s", "full profile, s", "spans", "full", "it says itself"],
    ]
    for about, one in programs.items():
        says = one["says"]
        rows.append(
            [
                about,
                *(f"{one[way]['median']:.2f}" for way in ("bare", "spans", "full")),
                *(f"{one[f'{way}_cost']:+.1%}" for way in ("spans", "full")),
                f"{says['spans']['median']:.2%} and {says['sampling']['median']:.2%}",
            ]
        )
    return table(*rows)


def report_table() -> str:
    """What a report takes."""
    rows = [["profile of", "processes", "recorded, s", "report and page, s of CPU"]]
    for about, one in storage.load("profiler_report")["programs"].items():
        cpu = one["cpu_s"]
        told = f"{cpu['median']:.2f} ({cpu['min']:.2f}–{cpu['max']:.2f})"
        rows.append([about, str(one["processes"]), f"{one['recorded_s']:.0f}", told])
    return table(*rows)


def stages_table() -> str:
    """Shares of the stages by hand, and how far the profile's are off, in points."""
    result = storage.load("profiler_stages")
    rows = [["program", *STAGES, f"within {CLOSE:.0%}"]]
    for about, by_stage in result["programs"].items():
        close = sum(abs(one["off"]) <= CLOSE for one in by_stage.values())
        rows.append(
            [
                about,
                *(f"{one['by_hand']:.1%} ({one['off'] * 100:+.1f})" for one in by_stage.values()),
                f"{close} of {len(by_stage)}",
            ]
        )
    return table(*rows)
