"""Tables of `accelerate`, made from what is stored; one for each device that was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from bench import storage
from bench.accelerate.rows import MODES, ROWS
from bench.markdown import table, times

# Of a run's returns, where they are compared: shares of what the slower way of running reached.
_SHARES = (0.25, 0.5, 1.0)


def told(got: dict[str, Any]) -> str:
    """A training in words."""
    if "missing" in got:
        return f"– ({got['missing']})"
    parts = [f"{got['steps_per_s']:,.0f} steps/s"]
    if got.get("busy") is not None:
        parts.append(f"GPU busy {got['busy']:.0%}")
    if got.get("launches") is not None:
        parts.append(f"{got['launches']:.1f} launches an update, {got['kernels']:.0f} kernels")
    return ", ".join(parts)


def told_floor(found: dict[str, Any], row: str) -> str:
    """An update alone in words."""
    of_row = found["rows"][row]
    modes = ", ".join(f"{mode} {_us(got)}" for mode, got in of_row["modes"].items())
    return f"{modes}; floor {1e6 * floor_s(of_row, found['device']):,.1f} µs"


def told_learning(runs: list[dict[str, Any]]) -> str:
    """What runs had reached in the end."""
    ends = [run["passed"][-1] for run in runs if "missing" not in run and run["passed"]]
    if not ends:
        return "–"
    steps, seconds, mean = (statistics.fmean(column) for column in zip(*ends, strict=True))
    return f"{len(ends)} runs, {steps:,.0f} steps in {seconds:.0f} s, return {mean:.0f}"


def floor_s(row: dict[str, Any], of_device: dict[str, float | None]) -> float:
    """The longest of what its bytes, its arithmetic and one launch take."""
    launch = of_device["replay_s"] or of_device["launch_s"] or 0.0
    rates = of_device["bytes_per_s"] or 1.0, of_device["flop_per_s"] or 1.0
    return max(row["size_bytes"] / rates[0], row["flop"] / rates[1], launch)


def speed_table(stored: dict[str, Any]) -> str:
    """Steps/s by way of running; LeanRL's beside it, measured here or published."""
    rows = [["steps/s", *MODES, "over eager", "GPU busy", "launches an update"]]
    for name, found in stored["table"].items():
        got = found["modes"]
        rates = [_rate(got.get(mode)) for mode in MODES]
        known = [rate for rate in rates if rate is not None]
        gain = "–" if rates[0] is None else f"{times(max(known) / rates[0])}×"
        rows.append(
            [
                ROWS[name].title,
                *(_cell(rate) for rate in rates),
                gain,
                _over_modes(got, "busy", "{:.0%}"),
                _over_modes(got, "launches", "{:,.0f}"),
            ]
        )
        if "leanrl" in found:
            theirs = [_rate(found["leanrl"].get(mode)) for mode in MODES]
            rows.append(["– LeanRL's script", *map(_cell, theirs), "", "", ""])
        elif (published := ROWS[name].published) is not None:
            cells = [f"{published[1]:,}", f"{published[2]:,}", "", f"{published[3]:,}"]
            rows.append(["– LeanRL's README, one H100", *cells, "", "", ""])
    return table(*rows)


def floor_table(stored: dict[str, Any]) -> str:
    """Updates alone, µs, and the floor."""
    found = stored["floor"]
    rows = [["an update alone, µs", *MODES, "floor", "bytes", "MFLOP"]]
    for name, row in found["rows"].items():
        cells = [_us(row["modes"].get(mode, {"missing": ""})) for mode in MODES]
        floor = f"{1e6 * floor_s(row, found['device']):,.1f}"
        size, flop = f"{row['size_bytes'] / 1e6:,.2f} MB", f"{row['flop'] / 1e6:,.1f}"
        rows.append([ROWS[name].title, *(cell.removesuffix(" µs") for cell in cells)])
        rows[-1] += [floor, size, flop]
    return table(*rows) + f"\n\n{_device_sentence(found['device'])}"


def _device_sentence(of_device: dict[str, float | None]) -> str:
    parts = [
        f"{(of_device['bytes_per_s'] or 0) / 1e9:,.0f} GB/s",
        f"{(of_device['flop_per_s'] or 0) / 1e12:,.2f} TFLOP/s in float32",
        f"{1e6 * (of_device['launch_s'] or 0):.1f} µs for an operation",
    ]
    if of_device["replay_s"] is not None and of_device["in_graph_s"] is not None:
        parts.append(f"{1e6 * of_device['replay_s']:.1f} µs for a graph of one")
        parts.append(f"{1e6 * of_device['in_graph_s']:.2f} µs each in a graph of a hundred")
    return "Measured of the device: " + ", ".join(parts) + "."


def learning_table(stored: dict[str, Any]) -> str:
    """Mean returns of the seeds at the same steps, and at the same seconds."""
    rows = [["mean return of the last 100 episodes"]]
    rows[0] += ["way", "seeds", *(f"{share:.0%} of the steps" for share in _SHARES)]
    rows[0] += [f"{share:.0%} of the seconds" for share in _SHARES]
    for name, by_mode in stored["learning"].items():
        runs = {
            mode: [run["passed"] for run in them if run.get("passed")]
            for mode, them in by_mode.items()
        }
        passed = [one for them in runs.values() for one in them]
        if not passed:
            continue
        ends = [min(one[-1][column] for one in passed) for column in (0, 1)]
        for mode, them in runs.items():
            cells = [
                _at(them, column, share * ends[column]) for column in (0, 1) for share in _SHARES
            ]
            rows.append([f"{ROWS[name].title}, {ends[0]:,.0f} steps, {ends[1]:.0f} s", mode])
            rows[-1] += [str(len(them)), *cells]
    return table(*rows)


def _at(runs: list[list[list[float]]], column: int, end: float) -> str:
    """Mean over seeds, and range, of what each had reached by then."""
    reached = []
    for passed in runs:
        before = [one[2] for one in passed if one[column] <= end]
        if before and before[-1] == before[-1]:
            reached.append(before[-1])
    if not reached:
        return "–"
    return f"{statistics.fmean(reached):,.0f} ({min(reached):,.0f}–{max(reached):,.0f})"


def seeds_table(stored: dict[str, Any]) -> str:
    """K seeds at once."""
    return _scaling(stored["seeds"], "seeds of PPO CartPole-v1 at once", "seed by seed")


def copies_table(stored: dict[str, Any]) -> str:
    """N copies on the device."""
    return _scaling(stored["copies"], "copies of CartPole on the device", "of the first")


def _scaling(found: dict[str, Any], what: str, first_is: str) -> str:
    rows = [[what, "steps/s in all", f"beside {first_is}"]]
    first = next((_rate(got) for got in found.values() if _rate(got) is not None), None)
    for count, got in found.items():
        rate = _rate(got)
        ratio = "–" if rate is None or first is None else f"{times(rate / first)}×"
        rows.append([f"{int(count):,}", _cell(rate), ratio])
    return table(*rows)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "table": speed_table,
    "floor": floor_table,
    "learning": learning_table,
    "seeds": seeds_table,
    "copies": copies_table,
}


def all_of(stored: dict[str, Any]) -> str:
    """All tables of one device."""
    return "\n\n".join(make(stored) for part, make in TABLES.items() if stored.get(part))


def page_table(part: str) -> str:
    """A part's tables for the page, of every GPU that was measured; empty: of none."""
    told = []
    for path in sorted(storage.RESULTS.glob("accelerate_*.json")):
        stored = storage.load(path.stem)
        if stored.get(part) and "cuda" in stored["device"]:
            told.append(f"{stored['device']['name']}:\n\n{TABLES[part](stored)}")
    return "\n\n".join(told)


def _rate(got: dict[str, Any] | None) -> float | None:
    return None if got is None else got.get("steps_per_s")


def _cell(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}"


def _us(got: dict[str, Any]) -> str:
    return "–" if "s" not in got else f"{1e6 * got['s']:,.0f} µs"


def _over_modes(got: dict[str, Any], key: str, form: str) -> str:
    """Eager's and the last way's: "12% → 71%"."""
    known = [one[key] for mode in MODES if (one := got.get(mode)) and one.get(key) is not None]
    if not known:
        return "–"
    ends = [form.format(known[0]), form.format(known[-1])]
    return ends[0] if len(known) == 1 else " → ".join(ends)
