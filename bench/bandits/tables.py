"""The tables of docs/bandit-speed.md, and the short one of docs/speed.md."""

from __future__ import annotations

from typing import Any

from bench import storage
from bench.markdown import scaled, table, times, why


def _reward(reward: dict[str, float]) -> str:
    return f"{reward['mean']:.3f} ± {reward['se']:.3f}"


def _about(way: dict[str, Any]) -> str:
    return f"{way['about']}; it {way['remark']}" if way.get("remark") else way["about"]


def _small(figure: dict[str, float]) -> str:
    """Seconds below one, to three digits."""
    return f"{figure['median']:.3g} ({figure['min']:.3g}–{figure['max']:.3g})"


def story_table() -> str:
    """The story's versions, what else one might write, the peers, and ours."""
    result = storage.load("bandit_seed")
    point = f"{result['runs']:,} runs × {result['steps']:,} steps, s"
    head = ["way", point, "runs a call", "a run and step, ns", "times ours", "average reward"]
    rows = [[*head, "its author"]]
    for name, way in result["ways"].items():
        published = result["published"].get(name, "")
        if "missing" in way:
            rows.append([_about(way), why(way["missing"]), "", "", "", "", published])
            continue
        rows.append(
            [
                _about(way),
                scaled(way["point"], 1.0) if way["point"]["median"] >= 1 else _small(way["point"]),
                f"{way['runs_a_call']:,}",
                scaled(way["ns"], 1.0),
                times(way["times_hotloop"]) if "times_hotloop" in way else "–",
                _reward(way["reward"]) + ("" if way.get("agrees", True) else " (differs)"),
                published,
            ]
        )
    return table(*rows)


def short_table() -> str:
    """The story's first and last, the nearest contenders, ours on one thread and on two."""
    result = storage.load("bandit_seed")
    ways = {name: way for name, way in result["ways"].items() if "ns" in way}
    peers = [name for name, way in ways.items() if way["kind"] == "peer"]
    fastest = min(peers, key=lambda name: ways[name]["ns"]["median"], default="")
    names = ["configuration_objects", "lazy_messages", fastest, "numpy_over_runs", "numba_loop"]
    point = f"{result['runs']:,} runs × {result['steps']:,} steps, s"
    rows = [["", "a run and step, ns", point, "times ours"]]
    for name in (*names, "hotloop", "hotloop_two"):
        if name in ways:
            way = ways[name]
            about = f"the fastest library: {way['about']}" if name == fastest else way["about"]
            ratio = times(way["times_hotloop"]) if "times_hotloop" in way else ""
            rows.append([about, scaled(way["ns"], 1.0), f"{way['point']['median']:.3g}", ratio])
    return table(*rows)


def speed_table() -> str:
    """Every agent on one thread."""
    rows = [
        ["agent", "environment", "alone, ns", "compared, ns each", "settings", "average reward"]
    ]
    for case in storage.load("bandit_speed")["cases"].values():
        alone, compared = case["alone"], case.get("compared")
        rows.append(
            [
                case["about"],
                case["environment"],
                why(alone["missing"]) if "missing" in alone else scaled(alone, 1.0),
                scaled(compared, 1.0),
                str(case["settings"]) if compared else "",
                "" if "missing" in alone else _reward(case["reward"]),
            ]
        )
    return table(*rows)


def scaling_table() -> str:
    """Speed-up by number of threads or processes."""
    result = storage.load("bandit_scaling")
    ways = result["ways"].values()
    numbers = sorted({int(number) for way in ways for number in way.get("points", ())})
    ups = (f"speed-up of {number}" for number in numbers[1:])
    rows = [["", "runs", "one, s", *ups, "serial share"]]
    for way in ways:
        row = [way["about"], f"{way['runs']:,}"]
        if "missing" in way:
            rows.append([*row, why(way["missing"]), *[""] * len(numbers)])
            continue
        points = way["points"]
        row.append(_small(points["1"]["seconds"]))
        for number in numbers[1:]:
            up = points.get(str(number), {}).get("speed_up")
            row.append(scaled(up, 1.0))
        rows.append([*row, f"{way['serial_share']:.1%}"])
    return table(*rows)


def start_table() -> str:
    """What a process pays before its first result."""
    result = storage.load("bandit_start")
    names = {
        "imports": "imports, s",
        "first_result": "first result, s",
        "process": "the whole process, s",
        "command": "`hotloop bandit run`, s",
    }
    rows = [["compiled functions' cache", *names.values()]]
    for kind, about in {"cold": "empty", "warm": "filled"}.items():
        rows.append([about, *(scaled(result[kind].get(name), 1.0) for name in names)])
    return table(*rows)


def memory_table() -> str:
    """The most that a process held."""
    result = storage.load("bandit_memory")
    rows = [["runs", "steps", "peak memory, MiB", "of it by importing, MiB", "s"]]
    for point in result["points"]:
        sizes = (point[name] / 2**20 for name in ("peak_bytes", "imported_bytes"))
        cells = (f"{point['runs']:,}", f"{result['steps']:,}", *(f"{size:.0f}" for size in sizes))
        rows.append([*cells, f"{point['seconds']:.2f}"])
    return table(*rows)


def grid_table() -> str:
    """What a grid's bookkeeping costs."""
    result = storage.load("bandit_grid")
    head = ["points", "runs", "steps", "s", "of it in kernels"]
    sizes = [f"{result[name]:,}" for name in ("points", "runs", "steps")]
    share = result["kernel_share"]
    spread = f"{share['median']:.1%} ({share['min']:.1%}–{share['max']:.1%})"
    return table(head, [*sizes, scaled(result["wall"], 1.0), spread])


def exercise_table() -> str:
    """Exercise 2.11: regret per step of every setting."""
    result = storage.load("bandit_exercise")
    rows = [["setting", "reward a step", "regret a step", "regret, in float64 over 200 runs"]]
    for row in result["rows"]:
        known = row.get("reference", {}).get("regret_per_step")
        regret = f"{row['regret_per_step']:.3f}"
        rows.append(
            [row["label"], _reward(row["reward"]), regret, "" if known is None else f"{known:g}"]
        )
    size = f"{result['runs']:,} runs × {result['steps']:,} steps × {result['settings']} settings"
    took = f"{result['seconds']:.0f} s on {result['cores']} cores"
    return f"{size}: {took}, {result['ns']:.1f} ns a run and step.\n\n{table(*rows)}"
