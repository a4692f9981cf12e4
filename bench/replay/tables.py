"""Tables of docs/replay-speed.md, and of replay in docs/off-policy.md and speed.md."""

from __future__ import annotations

import statistics
from typing import Any

from bench import storage
from bench.markdown import format_figure, short_reason, table


def post_table(name: str) -> str:
    """Return one of the post's three tables: measured here and published."""
    result = storage.load("replay_tables")
    rows = [
        [
            "implementation",
            "here",
            *(f"{machine}, published" for machine in result["published"][name]),
        ]
    ]
    published = {"numpy_old": 0, "torch_new": 1}
    for key, way in result["ways"].items():
        if "missing" in way:
            here = short_reason(way["missing"])
        elif name in way["seconds"]:
            here = format_figure(way["seconds"][name], 1e3)
        else:
            here = {"probability": "not needed", "sampling": "see the total"}[name]
        row = [way["about"], here]
        for old_and_new in result["published"][name].values():
            place = published.get(key)
            row.append("" if place is None else f"{old_and_new[place] * 1e3:g}")
        rows.append(row)
    return table(*rows)


def _sizes(ways: dict[str, Any]) -> list[int]:
    return sorted({int(size) for way in ways.values() for size in way["sizes"]})


def peers_table() -> str:
    """Return a table of sample, gather and update alone, with a column per number of entries."""
    ways = storage.load("replay_peers")["ways"]
    sizes = _sizes(ways)
    rows = [["alone", *(f"{size:,}" for size in sizes)]]
    for way in ways.values():
        row = [way["about"]]
        for size in sizes:
            figures = way["sizes"].get(str(size), {})
            figure = figures.get("both", figures.get("sample"))
            row.append(
                short_reason(figures["missing"])
                if "missing" in figures
                else format_figure(figure, 1e6)
            )
        rows.append(row)
    return table(*rows)


def loop_table() -> str:
    """Return a table of each part's time within the loop."""
    names = {
        "sample": "sample + gather",
        "update": "update 256",
        "both": "both together",
        "tensors": "to tensors",
        "add": "add one transition",
    }
    rows = [["in the loop", "entries", *names.values()]]
    for way in storage.load("replay_loop")["ways"].values():
        for size, figures in way["sizes"].items():
            row = [way["about"], f"{int(size):,}"]
            if "missing" in figures:
                row += [short_reason(figures["missing"]), *[""] * (len(names) - 1)]
            else:
                row += [format_figure(figures[name], 1e6) for name in names]
            rows.append(row)
    return table(*rows)


def short_table() -> str:
    """Return a table of sample, gather and update at 1,000,000 entries with ratios to hotloop."""
    ways = storage.load("replay_loop")["ways"]
    size = "1000000"
    complete = {key: way for key, way in ways.items() if "both" in way["sizes"].get(size, {})}
    first = next(iter(complete.values()))["sizes"][size]["both"]["median"]
    rows = [["", "sample + gather", "update 256", "both", "time over hotloop's"]]
    for way in complete.values():
        figures = way["sizes"][size]
        cells = [format_figure(figures[name], 1e6) for name in ("sample", "update", "both")]
        rows.append([way["about"], *cells, f"{figures['both']['median'] / first:.1f}"])
    return table(*rows)


def share_table() -> str:
    """Return a table of replay's share of training."""
    result = storage.load("replay_share")
    rows = [
        [
            "buffer",
            "replay per update, ms",
            "whole update, ms",
            "share",
            f"replay, h over {result['updates']:,} updates",
            "saved compared with the old way, h",
        ]
    ]
    for way in result["ways"].values():
        if "missing" in way:
            rows.append([way["about"], short_reason(way["missing"]), "", "", "", ""])
            continue
        seconds, saved = way["seconds"], way["hours_saved"]
        rows.append(
            [
                way["about"],
                format_figure(seconds["replay"], 1e3),
                format_figure(seconds["iteration"], 1e3),
                f"{way['share']:.1%}",
                f"{way['hours']:.2f}",
                "–" if saved is None else f"{saved:.1f}",
            ]
        )
    return table(*rows)


def small_table() -> str:
    """Return a table of writing and memory."""
    result = storage.load("replay_small")
    rows = [["", "next_obs stored", "next_obs shared"]]
    layouts = ("plain", "shared")
    for name, label in {"add": "`add`, µs", "extend_64": "`extend` of 64 rows, µs"}.items():
        figures = [result[name][layout] for layout in layouts]
        cells = (
            short_reason(entry["missing"]) if "missing" in entry else format_figure(entry, 1e6)
            for entry in figures
        )
        rows.append([label, *cells])
    memory = result["memory"]
    rows.append(["fields of an entry, bytes", *(str(memory["fields"][entry]) for entry in layouts)])
    totals = [memory[layout] for layout in layouts]
    cells = (
        short_reason(entry["missing"]) if "missing" in entry else f"{entry['entry']:.1f}"
        for entry in totals
    )
    rows.append(["memory per entry of a full buffer, bytes", *cells])
    return table(*rows)


def start_table() -> str:
    """Return a table of a process's start."""
    start = storage.load("replay_small")["start"]
    rows = [["cache of compiled functions", "imports, s", "first calls, s", "whole process, s"]]
    if "missing" in start:
        rows.append([short_reason(start["missing"]), "", "", ""])
    else:
        for kind, label in {"cold": "empty", "warm": "filled"}.items():
            names = ("imports", "first_calls", "process")
            rows.append([label, *(format_figure(start[kind][name], 1.0) for name in names)])
    return table(*rows)


def share_sac_table() -> str:
    """Return a table of drawing's share of a SAC training, with the post's shares."""
    result = storage.load("replay_share_sac")
    drawing = f"drawing 256 of {result['entries']:,}"
    rows = [
        [drawing, "sample, µs", "gather, µs", "store, µs", "step, ms", "share", "published share"]
    ]
    for replay, way in result["ways"].items():
        ms, share = way["ms"], way["share"]["drawing"]
        published = result["published"].get(replay)
        rows.append(
            [
                way["about"],
                *(format_figure(ms[part], 1e3) for part in ("sample", "gather", "store")),
                format_figure(ms["step"], 1.0),
                f"{share['median']:.2%} ({share['min']:.2%}–{share['max']:.2%})",
                "" if published is None else f"{published:.0%}",
            ]
        )
    return table(*rows)


def learning_table() -> str:
    """Return a table of returns by kind of replay, compared with uniform."""
    labels = {
        "uniform": "uniform",
        "proportional": "in proportion to the episode's return",
        "return_to_go": "in proportion to the return to go",
        "prioritized": "by TD error",
        "rank": "by the rank of the TD error",
    }
    measures = {"area": "over the whole run", "last_tenth": "last tenth"}
    head = ["training", "replay", "first tenth"]
    for label in measures.values():
        head += [label, "relative to uniform"]
    rows = [head]
    for name, case in storage.load("replay_learning")["cases"].items():
        title = f"{name}, {case['timesteps']:,} steps, {len(case['seeds'])} seeds"
        for replay, summary in case["summaries"].items():
            row = [title, labels[replay], f"{statistics.fmean(summary['first_tenth']):.0f}"]
            for measure in measures:
                values = summary[measure]
                row.append(f"{statistics.fmean(values):.0f} ± {statistics.stdev(values):.0f}")
                change = case["differences"].get(replay, {}).get(measure)
                row.append(
                    f"{change['verdict']}: {change['relative']:+.0%} "
                    f"({change['lower']:+.0%} to {change['upper']:+.0%})"
                    if change
                    else ""
                )
            rows.append(row)
            title = ""
    return table(*rows)
