"""Tables of `python -m bench profiler`."""

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
    """Return a table of the planted causes of examples/slow with estimated and measured gains."""
    result = storage.load("profiler_examples")
    rows = [["program", "cause", "named first", "estimated gain", "measured gain", "error"]]
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
        alarms = sorted({rule for rules in rounds for rule in rules})
        silent = sum(not rules for rules in rounds)
        named = f", otherwise {', '.join(f'`{rule}`' for rule in alarms)}" if alarms else ""
        rows.append(
            [f"{program}.py --healthy", f"none: no finding in {silent} of {len(rounds)}{named}"]
            + [""] * 4
        )
    return table(*rows)


def cost_table() -> str:
    """Return a table of the overhead of recording."""
    programs: dict[str, Any] = storage.load("profiler_cost")["programs"]
    rows = [["program", "bare, s", "spans, s", "full profile, s", "overhead of spans"]]
    rows[0] += ["overhead of the full profile", "reported by the profile: spans and sampling"]
    for label, program in programs.items():
        reported = program["says"]
        rows.append(
            [
                label,
                *(f"{program[way]['median']:.2f}" for way in ("bare", "spans", "full")),
                *(f"{program[f'{way}_cost']:+.1%}" for way in ("spans", "full")),
                f"{reported['spans']['median']:.2%} and {reported['sampling']['median']:.2%}",
            ]
        )
    return table(*rows)


def report_table() -> str:
    """Return a table of the CPU time of reports."""
    rows = [["profile of", "processes", "recorded, s", "report and page, s of CPU"]]
    for label, program in storage.load("profiler_report")["programs"].items():
        cpu = program["cpu_s"]
        cpu_text = f"{cpu['median']:.2f} ({cpu['min']:.2f}–{cpu['max']:.2f})"
        rows.append([label, str(program["processes"]), f"{program['recorded_s']:.0f}", cpu_text])
    return table(*rows)


def stages_table() -> str:
    """Return the shares by manual timers, and the profile's errors in percentage points."""
    result = storage.load("profiler_stages")
    rows = [["program", *STAGES, f"within {CLOSE:.0%}"]]
    for label, by_stage in result["programs"].items():
        close = sum(abs(stage["off"]) <= CLOSE for stage in by_stage.values())
        rows.append(
            [
                label,
                *(
                    f"{stage['by_hand']:.1%} ({stage['off'] * 100:+.1f})"
                    for stage in by_stage.values()
                ),
                f"{close} of {len(by_stage)}",
            ]
        )
    return table(*rows)
