"""The tables of docs/replay-speed.md, and those of replay in docs/off-policy.md and speed.md."""

from __future__ import annotations

import statistics
from typing import Any

from bench import storage
from bench.markdown import scaled, table, why


def post_table(name: str) -> str:
    """One of the seed's three tables: ways here, then its author's two on his machines."""
    result = storage.load("replay_tables")
    rows = [["way", "here", *(f"{machine}, published" for machine in result["published"][name])]]
    published = {"numpy_old": 0, "torch_new": 1}
    for key, way in result["ways"].items():
        if "missing" in way:
            here = why(way["missing"])
        elif name in way["seconds"]:
            here = scaled(way["seconds"][name], 1e3)
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
    """Sample, gather and update, alone: a column for each number of entries."""
    ways = storage.load("replay_peers")["ways"]
    sizes = _sizes(ways)
    rows = [["alone", *(f"{size:,}" for size in sizes)]]
    for way in ways.values():
        row = [way["about"]]
        for size in sizes:
            figures = way["sizes"].get(str(size), {})
            figure = figures.get("both", figures.get("sample"))
            row.append(why(figures["missing"]) if "missing" in figures else scaled(figure, 1e6))
        rows.append(row)
    return table(*rows)


def loop_table() -> str:
    """What each part costs within the loop."""
    names = {
        "sample": "sample + gather",
        "update": "update 256",
        "both": "the two together",
        "tensors": "to tensors",
        "add": "add one",
    }
    rows = [["in the loop", "entries", *names.values()]]
    for way in storage.load("replay_loop")["ways"].values():
        for size, figures in way["sizes"].items():
            row = [way["about"], f"{int(size):,}"]
            if "missing" in figures:
                row += [why(figures["missing"]), *[""] * (len(names) - 1)]
            else:
                row += [scaled(figures[name], 1e6) for name in names]
            rows.append(row)
    return table(*rows)


def short_table() -> str:
    """Sample, gather and update of the largest buffers that all have, and the ratios to ours."""
    ways = storage.load("replay_loop")["ways"]
    size = "1000000"
    found = {key: way for key, way in ways.items() if "both" in way["sizes"].get(size, {})}
    first = next(iter(found.values()))["sizes"][size]["both"]["median"]
    rows = [["", "sample + gather", "update 256", "both", "times ours"]]
    for way in found.values():
        figures = way["sizes"][size]
        cells = [scaled(figures[name], 1e6) for name in ("sample", "update", "both")]
        rows.append([way["about"], *cells, f"{figures['both']['median'] / first:.1f}"])
    return table(*rows)


def share_table() -> str:
    """What replay takes of training."""
    result = storage.load("replay_share")
    rows = [
        [
            "buffer",
            "replay, ms an update",
            "whole update, ms",
            "share",
            f"replay, h over {result['updates']:,} updates",
            "saved against the old way, h",
        ]
    ]
    for way in result["ways"].values():
        if "missing" in way:
            rows.append([way["about"], why(way["missing"]), "", "", "", ""])
            continue
        seconds, saved = way["seconds"], way["hours_saved"]
        rows.append(
            [
                way["about"],
                scaled(seconds["replay"], 1e3),
                scaled(seconds["iteration"], 1e3),
                f"{way['share']:.1%}",
                f"{way['hours']:.2f}",
                "–" if saved is None else f"{saved:.1f}",
            ]
        )
    return table(*rows)


def small_table() -> str:
    """Writing, memory and starting."""
    result = storage.load("replay_small")
    rows = [["", "next_obs stored", "next_obs shared"]]
    layouts = ("plain", "shared")
    for name, about in {"add": "`add`, µs", "extend_64": "`extend` of 64 rows, µs"}.items():
        figures = [result[name][layout] for layout in layouts]
        cells = (why(it["missing"]) if "missing" in it else scaled(it, 1e6) for it in figures)
        rows.append([about, *cells])
    memory = result["memory"]
    rows.append(["an entry's fields, bytes", *(str(memory["fields"][it]) for it in layouts)])
    whole = [memory[layout] for layout in layouts]
    cells = (why(it["missing"]) if "missing" in it else f"{it['entry']:.1f}" for it in whole)
    rows.append(["an entry in the full buffer, bytes", *cells])
    return table(*rows)


def start_table() -> str:
    """What a process pays once."""
    start = storage.load("replay_small")["start"]
    rows = [["compiled functions' cache", "imports, s", "first calls, s", "the whole process, s"]]
    if "missing" in start:
        rows.append([why(start["missing"]), "", "", ""])
    else:
        for kind, about in {"cold": "empty", "warm": "filled"}.items():
            names = ("imports", "first_calls", "process")
            rows.append([about, *(scaled(start[kind][name], 1.0) for name in names)])
    return table(*rows)


def share_sac_table() -> str:
    """What drawing takes of a SAC training, and what the post's author had."""
    result = storage.load("replay_share_sac")
    drawing = f"drawing 256 of {result['entries']:,}"
    rows = [[drawing, "sample, µs", "gather, µs", "store, µs", "a step, ms", "share", "published"]]
    for replay, way in result["ways"].items():
        ms, share = way["ms"], way["share"]["drawing"]
        published = result["published"].get(replay)
        rows.append(
            [
                way["about"],
                *(scaled(ms[part], 1e3) for part in ("sample", "gather", "store")),
                scaled(ms["step"], 1.0),
                f"{share['median']:.2%} ({share['min']:.2%}–{share['max']:.2%})",
                "" if published is None else f"{published:.0%}",
            ]
        )
    return table(*rows)


def learning_table() -> str:
    """What kinds of replay learn, beside uniform."""
    abouts = {
        "uniform": "uniform",
        "proportional": "in proportion to the episode's return",
        "return_to_go": "in proportion to the return to go",
        "prioritized": "by TD error",
        "rank": "by the rank of the TD error",
    }
    measures = {"area": "over the whole run", "last_tenth": "last tenth"}
    head = ["training", "replay", "first tenth"]
    for about in measures.values():
        head += [about, "beside uniform"]
    rows = [head]
    for name, case in storage.load("replay_learning")["cases"].items():
        title = f"{name}, {case['timesteps']:,} steps, {len(case['seeds'])} seeds"
        for replay, summary in case["summaries"].items():
            row = [title, abouts[replay], f"{statistics.fmean(summary['first_tenth']):.0f}"]
            for measure in measures:
                values = summary[measure]
                row.append(f"{statistics.fmean(values):.0f} ± {statistics.stdev(values):.0f}")
                one = case["differences"].get(replay, {}).get(measure)
                row.append(
                    f"{one['verdict']}: {one['relative']:+.0%} "
                    f"({one['lower']:+.0%} to {one['upper']:+.0%})"
                    if one
                    else ""
                )
            rows.append(row)
            title = ""
    return table(*rows)
