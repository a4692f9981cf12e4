"""Tables of `accelerate`, one for each GPU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from bench import storage
from bench.accelerate.rows import MODES, ROWS
from bench.markdown import format_ratio, table

# The overlapped training is also compiled and captured.
_WAYS = (*MODES, "overlap")


def summary(figures: dict[str, Any]) -> str:
    """Return a job's figures as a phrase."""
    if "steps_per_s" in figures:
        parts = [f"{figures['steps_per_s']:,.0f} steps/s"]
        if figures.get("start_s") is not None:
            parts.append(f"first update after {figures['start_s']:.0f} s")
        if figures.get("mean_return") is not None:
            parts.append(f"mean return {figures['mean_return']:,.0f}")
        if figures.get("busy") is not None:
            parts.append(f"GPU busy {figures['busy']:.0%}")
        if figures.get("launches") is not None:
            parts.append(f"{figures['launches']:.1f} launches per update")
        return ", ".join(parts)
    if "passed" in figures:
        return ", ".join(f"{figures[key]} {key}" for key in ("passed", "failed", "skipped"))
    if "flop" in figures:
        return ", ".join(f"{mode} {_us(entry)}" for mode, entry in figures["modes"].items())
    if "bytes_per_s" in figures:
        return _device_sentence(figures)
    return figures["device"]["name"] if "device" in figures else ""


def floor_s(row: dict[str, Any], of_device: dict[str, float | None]) -> float:
    """Return the lower bound of an update: the longest of bytes, arithmetic and one launch."""
    launch = of_device["replay_s"] or of_device["launch_s"] or 0.0
    rates = of_device["bytes_per_s"] or 1.0, of_device["flop_per_s"] or 1.0
    return max(row["size_bytes"] / rates[0], row["flop"] / rates[1], launch)


def speed_table(stored: dict[str, Any]) -> str:
    """Return steps/s by way of running, with LeanRL's published figures below."""
    rows = [["steps/s", *_WAYS, "over eager", "GPU busy", "launches per update"]]
    for name, entry in stored["table"].items():
        by_way = entry["modes"]
        rates = [_rate(by_way.get(way)) for way in _WAYS]
        known = [rate for rate in rates[: len(MODES)] if rate is not None]
        gain = "–" if rates[0] is None else f"{format_ratio(max(known) / rates[0])}×"
        rows.append(
            [
                ROWS[name].title,
                *(_cell(rate) for rate in rates),
                gain,
                _over_modes(by_way, "busy", "{:.0%}"),
                _over_modes(by_way, "launches", "{:,.0f}"),
            ]
        )
        if (published := ROWS[name].published) is not None:
            cells = [f"{published[1]:,}", f"{published[2]:,}", "", f"{published[3]:,}"]
            rows.append(["– LeanRL's README, one H100", *cells, "", "", "", ""])
    return table(*rows)


def floor_table(stored: dict[str, Any]) -> str:
    """Return the durations of updates alone and their lower bound in µs."""
    floors = stored["floor"]
    if "bytes_per_s" not in floors.get("device", {}):
        return ""
    rows = [["one update alone, µs", *MODES, "lower bound", "bytes", "MFLOP"]]
    for name, row in floors.get("rows", {}).items():
        if "missing" in row:
            continue
        cells = [_us(row["modes"].get(mode, {"missing": ""})) for mode in MODES]
        floor = f"{1e6 * floor_s(row, floors['device']):,.1f}"
        size, flop = f"{row['size_bytes'] / 1e6:,.2f} MB", f"{row['flop'] / 1e6:,.1f}"
        rows.append([ROWS[name].title, *(cell.removesuffix(" µs") for cell in cells)])
        rows[-1] += [floor, size, flop]
    return table(*rows) + f"\n\n{_device_sentence(floors['device'])}"


def _device_sentence(of_device: dict[str, float | None]) -> str:
    parts = [
        f"{(of_device['bytes_per_s'] or 0) / 1e9:,.0f} GB/s",
        f"{(of_device['flop_per_s'] or 0) / 1e12:,.2f} TFLOP/s in float32",
        f"{1e6 * (of_device['launch_s'] or 0):.1f} µs for an operation",
    ]
    if of_device["replay_s"] is not None and of_device["in_graph_s"] is not None:
        parts.append(f"{1e6 * of_device['replay_s']:.1f} µs for a graph of one")
        parts.append(f"{1e6 * of_device['in_graph_s']:.2f} µs each in a graph of a hundred")
    return "Measured rates of the device: " + ", ".join(parts) + "."


def seeds_table(stored: dict[str, Any]) -> str:
    """Return the speed of K seeds of SAC in one update, compared with one seed."""
    alone = stored.get("table", {}).get("sac", {}).get("modes", {}).get(MODES[-1])
    entries = {"1": alone or {}, **stored["seeds"]}
    rows = [["vectorized seeds of SAC HalfCheetah-v5", "steps/s of all seeds", "over one seed"]]
    for count, entry in entries.items():
        rate, single_rate = _rate(entry), _rate(alone)
        ratio = (
            "–" if rate is None or single_rate is None else f"{format_ratio(rate / single_rate)}×"
        )
        rows.append([count, _cell(rate), ratio])
    return table(*rows)


def copies_table(stored: dict[str, Any]) -> str:
    """Return the speed of PPO on copies of an environment on the device."""
    rows = [["PPO, environments on the device", "steps/s", "GPU busy"]]
    for name, entry in stored["copies"].items():
        busy = "–" if entry.get("busy") is None else f"{entry['busy']:.0%}"
        rows.append([name, _cell(_rate(entry)), busy])
    return table(*rows)


def load_table(stored: dict[str, Any]) -> str:
    """Return the GPU's utilization (NVML) during trainings: mean and area."""
    rows = [["GPU utilization (NVML)", "mean", "utilization × seconds for 10,000 steps"]]
    for name, entry in stored["table"].items():
        for way in _WAYS:
            figures = entry["modes"].get(way, {})
            if figures.get("load") and figures.get("steps_per_s"):
                mean = statistics.fmean(percent for _, percent in figures["load"]) / 100
                area = mean * 10_000 / figures["steps_per_s"]
                rows.append([f"{ROWS[name].title}, {way}", f"{mean:.0%}", f"{area:.2f} s"])
    return table(*rows) if len(rows) > 1 else ""


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "table": speed_table,
    "floor": floor_table,
    "seeds": seeds_table,
    "copies": copies_table,
    "load": load_table,
}
# The load is measured during the trainings of the table.
_PARTS = {"load": "table"}


def all_tables(stored: dict[str, Any]) -> str:
    """Return all tables of one device."""
    texts = [make(stored) for part, make in TABLES.items() if stored.get(_PARTS.get(part, part))]
    return "\n\n".join(filter(None, texts))


def page_table(part: str) -> str:
    """Return a part's tables of all measured GPUs for the page, or an empty string."""
    texts = []
    for path in sorted(storage.RESULTS.glob("accelerate_*.json")):
        stored = storage.load(path.stem)
        if stored.get(_PARTS.get(part, part)) and "cuda" in stored["device"]:
            texts.append(f"{stored['device']['name']}:\n\n{TABLES[part](stored)}")
    return "\n\n".join(texts)


def _rate(figures: dict[str, Any] | None) -> float | None:
    return None if figures is None else figures.get("steps_per_s")


def _cell(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}"


def _us(entry: dict[str, Any]) -> str:
    return "–" if "s" not in entry else f"{1e6 * entry['s']:,.0f} µs"


def _over_modes(by_way: dict[str, Any], key: str, form: str) -> str:
    """Return the figures of the first and the last mode, such as "12% → 71%"."""
    known = [x for mode in MODES if (x := by_way.get(mode, {}).get(key)) is not None]
    if not known:
        return "–"
    ends = [form.format(known[0]), form.format(known[-1])]
    return ends[0] if len(known) == 1 else " → ".join(ends)
