"""Tables of docs/bandit-speed.md, and the short table of docs/speed.md."""

from __future__ import annotations

from typing import Any

from bench import storage
from bench.markdown import format_figure, format_ratio, short_reason, table


def _reward(reward: dict[str, float]) -> str:
    return f"{reward['mean']:.3f} ± {reward['se']:.3f}"


def _label(way: dict[str, Any]) -> str:
    return f"{way['about']} ({way['remark']})" if way.get("remark") else way["about"]


def _small(figure: dict[str, float]) -> str:
    """Return a figure below one second with three digits."""
    return f"{figure['median']:.3g} ({figure['min']:.3g}–{figure['max']:.3g})"


def story_table() -> str:
    """Return a table of all contenders."""
    result = storage.load("bandit_seed")
    point = f"{result['runs']:,} runs × {result['steps']:,} steps, s"
    head = ["program", point, "runs per call", "one run and step, ns"]
    rows = [[*head, "time over hotloop's", "average reward", "published by the author"]]
    for name, way in result["ways"].items():
        published = result["published"].get(name, "")
        if "missing" in way:
            rows.append([_label(way), short_reason(way["missing"]), "", "", "", "", published])
            continue
        rows.append(
            [
                _label(way),
                format_figure(way["point"], 1.0)
                if way["point"]["median"] >= 1
                else _small(way["point"]),
                f"{way['runs_a_call']:,}",
                format_figure(way["ns"], 1.0),
                format_ratio(way["times_hotloop"]) if "times_hotloop" in way else "–",
                _reward(way["reward"]) + ("" if way.get("agrees", True) else " (differs)"),
                published,
            ]
        )
    return table(*rows)


def short_table() -> str:
    """Return a short table: the post's first and last version, the fastest others, hotloop."""
    result = storage.load("bandit_seed")
    ways = {name: way for name, way in result["ways"].items() if "ns" in way}
    peers = [name for name, way in ways.items() if way["kind"] == "peer"]
    fastest = min(peers, key=lambda name: ways[name]["ns"]["median"], default="")
    names = ["configuration_objects", "lazy_messages", fastest, "numpy_over_runs", "numba_loop"]
    point = f"{result['runs']:,} runs × {result['steps']:,} steps, s"
    rows = [["", "one run and step, ns", point, "time over hotloop's"]]
    for name in (*names, "hotloop", "hotloop_two"):
        if name in ways:
            way = ways[name]
            label = f"the fastest library: {way['about']}" if name == fastest else way["about"]
            ratio = format_ratio(way["times_hotloop"]) if "times_hotloop" in way else ""
            rows.append(
                [label, format_figure(way["ns"], 1.0), f"{way['point']['median']:.3g}", ratio]
            )
    return table(*rows)


def speed_table() -> str:
    """Return a table of all agents on one thread."""
    rows = [["agent", "environment", "alone, ns", "in `compare`, ns", "settings", "average reward"]]
    for case in storage.load("bandit_speed")["cases"].values():
        alone, compared = case["alone"], case.get("compared")
        rows.append(
            [
                case["about"],
                case["environment"],
                short_reason(alone["missing"]) if "missing" in alone else format_figure(alone, 1.0),
                format_figure(compared, 1.0),
                str(case["settings"]) if compared else "",
                "" if "missing" in alone else _reward(case["reward"]),
            ]
        )
    return table(*rows)


def scaling_table() -> str:
    """Return a table of the speed-up by number of threads or processes."""
    result = storage.load("bandit_scaling")
    ways = result["ways"].values()
    numbers = sorted({int(number) for way in ways for number in way.get("points", ())})
    ups = (f"speed-up with {number}" for number in numbers[1:])
    rows = [["", "runs", "time with one, s", *ups, "serial share"]]
    for way in ways:
        row = [way["about"], f"{way['runs']:,}"]
        if "missing" in way:
            rows.append([*row, short_reason(way["missing"]), *[""] * len(numbers)])
            continue
        points = way["points"]
        row.append(_small(points["1"]["seconds"]))
        for number in numbers[1:]:
            up = points.get(str(number), {}).get("speed_up")
            row.append(format_figure(up, 1.0))
        rows.append([*row, f"{way['serial_share']:.1%}"])
    return table(*rows)


def start_table() -> str:
    """Return a table of the time until a process's first result."""
    result = storage.load("bandit_start")
    names = {
        "imports": "imports, s",
        "first_result": "first result, s",
        "process": "whole process, s",
        "command": "`hotloop bandit run`, s",
    }
    rows = [["cache of compiled functions", *names.values()]]
    for kind, label in {"cold": "empty", "warm": "filled"}.items():
        rows.append([label, *(format_figure(result[kind].get(name), 1.0) for name in names)])
    return table(*rows)


def memory_table() -> str:
    """Return a table of peak memory."""
    result = storage.load("bandit_memory")
    rows = [["runs", "steps", "peak memory, MiB", "after imports, MiB", "time, s"]]
    for point in result["points"]:
        sizes = (point[name] / 2**20 for name in ("peak_bytes", "imported_bytes"))
        cells = (f"{point['runs']:,}", f"{result['steps']:,}", *(f"{size:.0f}" for size in sizes))
        rows.append([*cells, f"{point['seconds']:.2f}"])
    return table(*rows)


def grid_table() -> str:
    """Return a table of the grid's duration and its share in kernels."""
    result = storage.load("bandit_grid")
    head = ["points", "runs", "steps", "time, s", "share in kernels"]
    sizes = [f"{result[name]:,}" for name in ("points", "runs", "steps")]
    share = result["kernel_share"]
    spread = f"{share['median']:.1%} ({share['min']:.1%}–{share['max']:.1%})"
    return table(head, [*sizes, format_figure(result["wall"], 1.0), spread])


def exercise_table() -> str:
    """Return a table of exercise 2.11 with the regret per step of every setting."""
    result = storage.load("bandit_exercise")
    rows = [["setting", "reward per step", "regret per step", "regret in float64, 200 runs"]]
    for row in result["rows"]:
        known = row.get("reference", {}).get("regret_per_step")
        regret = f"{row['regret_per_step']:.3f}"
        rows.append(
            [row["label"], _reward(row["reward"]), regret, "" if known is None else f"{known:g}"]
        )
    size = f"{result['runs']:,} runs × {result['steps']:,} steps × {result['settings']} settings"
    duration = f"{result['seconds']:.0f} s on {result['cores']} cores"
    return f"{size}: {duration}, {result['ns']:.1f} ns per run and step.\n\n{table(*rows)}"
