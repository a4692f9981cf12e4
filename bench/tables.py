"""Write what the README and the pages show from what was measured: tables, timing tree, curve.

    python -m bench tables --run runs/demo

Everything between `<!-- NAME -->` and `<!-- end NAME -->` in a page is replaced.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import storage

ROOT = Path(__file__).parent.parent
OFF_POLICY = ("sac", "td3", "dqn")
CONTENDERS = {"hotloop": "hotloop", "sb3": "Stable-Baselines3", "sbx": "sbx (JAX)"}


def training_table() -> str:
    """One row for each benchmark of PPO's trainings that was stored."""
    lines = [
        "| training | hotloop, steps/s | Stable-Baselines3, steps/s | ratio | with compiling | "
        "from prompt to end, s | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(storage.RESULTS.glob("train_ppo_*.json")):
        result = storage.load(path.stem)
        settings = result["settings"]
        how = {"on": "compiled", "off": "eager", "auto": "auto"}[settings["compile"]]
        if settings["compile"] != "off":
            how += f", {settings['cache']} cache"
        ours, peer = (result["summaries"][name] for name in ("hotloop", "sb3"))
        cells = [f"{result['benchmark']}, {settings['timesteps']:,} steps, {how}{_with(settings)}"]
        for summary in (ours, peer):
            rate = summary["steps_per_s"]
            cells.append(f"{rate['median']:,.0f} ({rate['min']:,.0f}–{rate['max']:,.0f})")
        totals = [f"{summary['total_s']['median']:.1f}" for summary in (ours, peer)]
        cells += [
            f"{result['ratio_steps_per_s']:.2f}",
            f"{result['ratio_with_compiling']:.2f}",
            " : ".join(totals),
            f"{result['ratio_total']:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _with(settings: dict[str, Any]) -> str:
    """Which workers ours had, if any."""
    if not settings.get("workers"):
        return ""
    about = f", {settings['workers']} worker{'s' if settings['workers'] > 1 else ''}"
    about += f", `{settings['schedule']}`" if "schedule" in settings else ""
    return about + (", overlapped" if settings.get("overlap") else "")


def off_policy_table() -> str:
    """Trainings of SAC, TD3 and DQN: a row for each contender, and how many times as fast ours is.

    Compiling is in the whole: sbx, which compiles within its loop, has no figure without.
    """
    figures = {
        "while it learns, steps/s": ("steps_per_s_while_learning", "while_learning"),
        "whole, with compiling, steps/s": ("steps_per_s_with_compiling", "with_compiling"),
        "from prompt to end, s": ("total_s", "total"),
    }
    head = ["training", ""]
    for about in figures:
        head += [about, "ratio"]
    rows = [head]
    for result in _of_algorithms("train", OFF_POLICY):
        settings = result["settings"]
        how = {"on": "compiled", "off": "eager", "auto": "auto"}[settings["compile"]]
        if settings["compile"] != "off":
            how += f", {settings['cache']} cache"
        if settings["precision"] != "float32":
            how += f", {settings['precision']}"
        about = f"{result['benchmark']}, {settings['timesteps']:,} steps, {how}{_with(settings)}"
        for name, summary in result["summaries"].items():
            row = [about, CONTENDERS[name]]
            ratios = result["ratios"].get(name, {})
            for figure, ratio in figures.values():
                row += [_scaled(summary[figure], 1.0), _times(ratios[ratio]) if ratios else ""]
            rows.append(row)
            about = ""
    return _rows(*rows)


def _of_algorithms(kind: str, algorithms: tuple[str, ...]) -> list[dict[str, Any]]:
    """The stored results of one kind, `<kind>_<algorithm>_….json`, algorithm by algorithm."""
    return [
        storage.load(path.stem)
        for algorithm in algorithms
        for path in sorted(storage.RESULTS.glob(f"{kind}_{algorithm}_*.json"))
    ]


def curves_table(algorithms: tuple[str, ...] = ("ppo",)) -> str:
    """One row for each benchmark of curves over seeds; empty where there is none."""
    rows = [["training", "hotloop", "Stable-Baselines3", "difference", "lower 95 % bound"]]
    for result in _of_algorithms("curves", algorithms):
        if "lower_95_bound" not in result:  # the peer's alone
            continue
        precision = "" if result.get("precision", "float32") == "float32" else ", bfloat16"
        row = [f"{result['benchmark']}, {result['timesteps']:,} steps{precision}{_with(result)}"]
        for name in ("hotloop", "sb3"):
            late = result["return_last_tenth"][name]
            spread = statistics.stdev(late)
            row.append(f"{statistics.fmean(late):.0f} ± {spread:.0f} ({len(late)} seeds)")
        row += [f"{result['relative_difference']:+.0%}", f"{result['lower_95_bound']:+.0%}"]
        rows.append(row)
    return _rows(*rows) if len(rows) > 1 else ""


def off_policy_learning_table() -> str:
    """What SAC, TD3 and DQN learn: by themselves, and beside the peer."""
    tables = (learning_table(OFF_POLICY), curves_table(OFF_POLICY))
    return "\n\n".join(table for table in tables if table)


def learning_table(algorithms: tuple[str, ...] = ("ppo",)) -> str:
    """One row for each task that was learned, over seeds; empty where there is none."""
    lines = [
        "| command | evaluation, 100 episodes each | training, first → last tenth |",
        "|---|---|---|",
    ]
    if not (storage.RESULTS / "learning.json").exists():
        return ""
    for task in storage.load("learning")["tasks"].values():
        if task["command"].split()[2] not in algorithms:  # hotloop train ALGORITHM …
            continue
        runs = task["runs"]
        evaluated = ", ".join(f"{run['mean_return']:.1f}" for run in runs)
        trained = ", ".join(
            f"{run['training_first_tenth']:.0f} → {run['training_last_tenth']:.0f}" for run in runs
        )
        lines.append(f"| `{task['command']}` | {evaluated} | {trained} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def timing_table() -> str:
    """One row for each way to time a scope."""
    lines = ["| one scope | ns, median of rounds (range) |", "|---|---|"]
    for way in storage.load("timing")["ways"].values():
        if way["ns"] is not None:
            spread = f"{way['min_ns']:,.0f}–{way['max_ns']:,.0f}"
            lines.append(f"| {way['about']} | {way['ns']:,.0f} ({spread}) |")
    return "\n".join(lines)


def _why(missing: str) -> str:
    """Why there is no figure, without the details."""
    return missing.split(":")[0]


def _scaled(figure: dict[str, float] | None, unit: float) -> str:
    """Median and range, or a dash."""
    if figure is None or math.isnan(figure["median"]):  # too short to tell
        return "–"

    def digits(value: float) -> str:
        return f"{value * unit:,.{0 if value * unit >= 100 else 1 if value * unit >= 10 else 2}f}"

    return f"{digits(figure['median'])} ({digits(figure['min'])}–{digits(figure['max'])})"


def _rows(*rows: list[str]) -> str:
    """A table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def seed_table(name: str) -> str:
    """One of the seed's three tables: ways here, then its author's two on his machines."""
    result = storage.load("replay_tables")
    rows = [["way", "here", *(f"{machine}, published" for machine in result["published"][name])]]
    published = {"numpy_old": 0, "torch_new": 1}
    for key, way in result["ways"].items():
        if "missing" in way:
            here = _why(way["missing"])
        elif name in way["seconds"]:
            here = _scaled(way["seconds"][name], 1e3)
        else:
            here = {"probability": "not needed", "sampling": "see the total"}[name]
        row = [way["about"], here]
        for old_and_new in result["published"][name].values():
            place = published.get(key)
            row.append("" if place is None else f"{old_and_new[place] * 1e3:g}")
        rows.append(row)
    return _rows(*rows)


def _sizes(ways: dict[str, Any]) -> list[int]:
    return sorted({int(size) for way in ways.values() for size in way["sizes"]})


def replay_peers_table() -> str:
    """Sample, gather and update, alone: a column for each number of entries."""
    ways = storage.load("replay_peers")["ways"]
    sizes = _sizes(ways)
    rows = [["alone", *(f"{size:,}" for size in sizes)]]
    for way in ways.values():
        row = [way["about"]]
        for size in sizes:
            figures = way["sizes"].get(str(size), {})
            figure = figures.get("both", figures.get("sample"))
            row.append(_why(figures["missing"]) if "missing" in figures else _scaled(figure, 1e6))
        rows.append(row)
    return _rows(*rows)


def replay_loop_table() -> str:
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
                row += [_why(figures["missing"]), *[""] * (len(names) - 1)]
            else:
                row += [_scaled(figures[name], 1e6) for name in names]
            rows.append(row)
    return _rows(*rows)


def replay_short_table() -> str:
    """Sample, gather and update of the largest buffers that all have, and the ratios to ours."""
    ways = storage.load("replay_loop")["ways"]
    size = "1000000"
    found = {key: way for key, way in ways.items() if "both" in way["sizes"].get(size, {})}
    first = next(iter(found.values()))["sizes"][size]["both"]["median"]
    rows = [["", "sample + gather", "update 256", "both", "times ours"]]
    for way in found.values():
        figures = way["sizes"][size]
        cells = [_scaled(figures[name], 1e6) for name in ("sample", "update", "both")]
        rows.append([way["about"], *cells, f"{figures['both']['median'] / first:.1f}"])
    return _rows(*rows)


def replay_share_table() -> str:
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
            rows.append([way["about"], _why(way["missing"]), "", "", "", ""])
            continue
        seconds, saved = way["seconds"], way["hours_saved"]
        rows.append(
            [
                way["about"],
                _scaled(seconds["replay"], 1e3),
                _scaled(seconds["iteration"], 1e3),
                f"{way['share']:.1%}",
                f"{way['hours']:.2f}",
                "–" if saved is None else f"{saved:.1f}",
            ]
        )
    return _rows(*rows)


def replay_share_sac_table() -> str:
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
                *(_scaled(ms[part], 1e3) for part in ("sample", "gather", "store")),
                _scaled(ms["step"], 1.0),
                f"{share['median']:.2%} ({share['min']:.2%}–{share['max']:.2%})",
                "" if published is None else f"{published:.0%}",
            ]
        )
    return _rows(*rows)


def replay_learning_table() -> str:
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
    return _rows(*rows)


def replay_small_table() -> str:
    """Writing, memory and starting."""
    result = storage.load("replay_small")
    rows = [["", "next_obs stored", "next_obs shared"]]
    layouts = ("plain", "shared")
    for name, about in {"add": "`add`, µs", "extend_64": "`extend` of 64 rows, µs"}.items():
        figures = [result[name][layout] for layout in layouts]
        cells = (_why(it["missing"]) if "missing" in it else _scaled(it, 1e6) for it in figures)
        rows.append([about, *cells])
    memory = result["memory"]
    rows.append(["an entry's fields, bytes", *(str(memory["fields"][it]) for it in layouts)])
    whole = [memory[layout] for layout in layouts]
    cells = (_why(it["missing"]) if "missing" in it else f"{it['entry']:.1f}" for it in whole)
    rows.append(["an entry in the full buffer, bytes", *cells])
    return _rows(*rows)


def replay_start_table() -> str:
    """What a process pays once."""
    start = storage.load("replay_small")["start"]
    rows = [["compiled functions' cache", "imports, s", "first calls, s", "the whole process, s"]]
    if "missing" in start:
        rows.append([_why(start["missing"]), "", "", ""])
    else:
        for kind, about in {"cold": "empty", "warm": "filled"}.items():
            names = ("imports", "first_calls", "process")
            rows.append([about, *(_scaled(start[kind][name], 1.0) for name in names)])
    return _rows(*rows)


REPLAY_TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "seed probability": ("replay_tables", lambda: seed_table("probability")),
    "seed sampling": ("replay_tables", lambda: seed_table("sampling")),
    "seed total": ("replay_tables", lambda: seed_table("total")),
    "replay peers": ("replay_peers", replay_peers_table),
    "replay loop": ("replay_loop", replay_loop_table),
    "replay share": ("replay_share", replay_share_table),
    "replay small": ("replay_small", replay_small_table),
    "replay start": ("replay_small", replay_start_table),
}


def _times(ratio: float) -> str:
    if math.isnan(ratio):
        return "–"
    return f"{ratio:,.{0 if ratio >= 20 else 1 if ratio >= 2 else 2}f}"


def _reward(reward: dict[str, float]) -> str:
    return f"{reward['mean']:.3f} ± {reward['se']:.3f}"


def _about(way: dict[str, Any]) -> str:
    return f"{way['about']}; it {way['remark']}" if way.get("remark") else way["about"]


def bandit_story_table() -> str:
    """The story's versions, what else one might write, the peers, and ours."""
    result = storage.load("bandit_seed")
    point = f"{result['runs']:,} runs × {result['steps']:,} steps, s"
    head = ["way", point, "runs a call", "a run and step, ns", "times ours", "average reward"]
    rows = [[*head, "its author"]]
    for name, way in result["ways"].items():
        published = result["published"].get(name, "")
        if "missing" in way:
            rows.append([_about(way), _why(way["missing"]), "", "", "", "", published])
            continue
        rows.append(
            [
                _about(way),
                _scaled(way["point"], 1.0) if way["point"]["median"] >= 1 else _small(way["point"]),
                f"{way['runs_a_call']:,}",
                _scaled(way["ns"], 1.0),
                _times(way["times_hotloop"]) if "times_hotloop" in way else "–",
                _reward(way["reward"]) + ("" if way.get("agrees", True) else " (differs)"),
                published,
            ]
        )
    return _rows(*rows)


def _small(figure: dict[str, float]) -> str:
    """Seconds below one, to three digits."""
    return f"{figure['median']:.3g} ({figure['min']:.3g}–{figure['max']:.3g})"


def bandit_short_table() -> str:
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
            ratio = _times(way["times_hotloop"]) if "times_hotloop" in way else ""
            rows.append([about, _scaled(way["ns"], 1.0), f"{way['point']['median']:.3g}", ratio])
    return _rows(*rows)


def bandit_speed_table() -> str:
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
                _why(alone["missing"]) if "missing" in alone else _scaled(alone, 1.0),
                _scaled(compared, 1.0),
                str(case["settings"]) if compared else "",
                "" if "missing" in alone else _reward(case["reward"]),
            ]
        )
    return _rows(*rows)


def bandit_scaling_table() -> str:
    """Speed-up by number of threads or processes."""
    result = storage.load("bandit_scaling")
    ways = result["ways"].values()
    numbers = sorted({int(number) for way in ways for number in way.get("points", ())})
    ups = (f"speed-up of {number}" for number in numbers[1:])
    rows = [["", "runs", "one, s", *ups, "serial share"]]
    for way in ways:
        row = [way["about"], f"{way['runs']:,}"]
        if "missing" in way:
            rows.append([*row, _why(way["missing"]), *[""] * len(numbers)])
            continue
        points = way["points"]
        row.append(_small(points["1"]["seconds"]))
        for number in numbers[1:]:
            up = points.get(str(number), {}).get("speed_up")
            row.append(_scaled(up, 1.0))
        rows.append([*row, f"{way['serial_share']:.1%}"])
    return _rows(*rows)


def bandit_start_table() -> str:
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
        rows.append([about, *(_scaled(result[kind].get(name), 1.0) for name in names)])
    return _rows(*rows)


def bandit_memory_table() -> str:
    """The most that a process held."""
    result = storage.load("bandit_memory")
    rows = [["runs", "steps", "peak memory, MiB", "of it by importing, MiB", "s"]]
    for point in result["points"]:
        sizes = (point[name] / 2**20 for name in ("peak_bytes", "imported_bytes"))
        cells = (f"{point['runs']:,}", f"{result['steps']:,}", *(f"{size:.0f}" for size in sizes))
        rows.append([*cells, f"{point['seconds']:.2f}"])
    return _rows(*rows)


def bandit_exercise_table() -> str:
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
    return f"{size}: {took}, {result['ns']:.1f} ns a run and step.\n\n{_rows(*rows)}"


def bandit_grid_table() -> str:
    """What a grid's bookkeeping costs."""
    result = storage.load("bandit_grid")
    head = ["points", "runs", "steps", "s", "of it in kernels"]
    sizes = [f"{result[name]:,}" for name in ("points", "runs", "steps")]
    share = result["kernel_share"]
    spread = f"{share['median']:.1%} ({share['min']:.1%}–{share['max']:.1%})"
    return _rows(head, [*sizes, _scaled(result["wall"], 1.0), spread])


BANDIT_TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "bandit story": ("bandit_seed", bandit_story_table),
    "bandit speed": ("bandit_speed", bandit_speed_table),
    "bandit scaling": ("bandit_scaling", bandit_scaling_table),
    "bandit start": ("bandit_start", bandit_start_table),
    "bandit memory": ("bandit_memory", bandit_memory_table),
    "bandit grid": ("bandit_grid", bandit_grid_table),
    "bandit exercise": ("bandit_exercise", bandit_exercise_table),
}


OFF_POLICY_TABLES: dict[str, Callable[[], str]] = {
    "train-off-policy": off_policy_table,
    "learning-off-policy": off_policy_learning_table,
    "replay-share-sac": replay_share_sac_table,
    "replay-learning": replay_learning_table,
}


def off_policy_pages() -> None:
    """Fill in what is there, on the pages that have a place for it; the rest stays as it is."""
    for page in (ROOT / "README.md", ROOT / "docs" / "off-policy.md"):
        for name, table in OFF_POLICY_TABLES.items():
            if not page.exists() or f"<!-- {name} -->" not in page.read_text():
                continue
            try:
                content = table()
            except FileNotFoundError:  # not measured yet
                continue
            if content.count("\n") > 1:  # more than a head
                replace(page, name, content)


def timing_tree(run: Path) -> str:
    """The timing tree of a run."""
    from hotloop import timing

    recordings, _ = timing.read_directory(run / "timing")
    trees = [timing.render(recording.tree(), min_share=0.002) for recording in recordings]
    return "```\n" + "\n\n".join(trees) + "\n```"


def replace(page: Path, name: str, content: str) -> None:
    """Rewrite the part of `page` that is called `name`."""
    before, start, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->")
    _, end, after = rest.partition(f"<!-- end {name} -->")
    if not (start and end):
        raise ValueError(f"{page} has no part between <!-- {name} --> and <!-- end {name} -->")
    page.write_text(f"{before}{start}\n{content}\n{end}{after}", encoding="utf-8")


def main() -> int:
    """Rewrite the pages."""
    parser = argparse.ArgumentParser(prog="python -m bench tables", description=__doc__)
    parser.add_argument("--run", type=Path, help="a run directory: its tree and curve are taken")
    options = parser.parse_args()
    replace(ROOT / "README.md", "training table", training_table())
    for name, table in {"learning table": learning_table(), "curves table": curves_table()}.items():
        if table:
            replace(ROOT / "docs" / "ppo.md", name, table)
    replace(ROOT / "docs" / "timing.md", "timing table", timing_table())
    if (storage.RESULTS / "replay_loop.json").exists():
        replace(ROOT / "README.md", "replay short", replay_short_table())
    for name, (result, table) in REPLAY_TABLES.items():
        if (storage.RESULTS / f"{result}.json").exists():
            replace(ROOT / "docs" / "replay-speed.md", name, table())
    has_place = "<!-- bandit short -->" in (ROOT / "README.md").read_text()
    if has_place and (storage.RESULTS / "bandit_seed.json").exists():
        replace(ROOT / "README.md", "bandit short", bandit_short_table())
    for name, (result, table) in BANDIT_TABLES.items():
        if (storage.RESULTS / f"{result}.json").exists():
            replace(ROOT / "docs" / "bandit-speed.md", name, table())
    off_policy_pages()
    # These are written with what stands here.
    from bench.corpus.tables import CORPUS_TABLES
    from bench.profiler_tables import PROFILER_TABLES
    from bench.rollout_tables import ROLLOUT_TABLES

    pages = {"workers-speed.md": ROLLOUT_TABLES, "profiler.md": PROFILER_TABLES | CORPUS_TABLES}
    for page, tables in pages.items():
        for name, (result, table) in tables.items():
            if (storage.RESULTS / f"{result}.json").exists():
                replace(ROOT / "docs" / page, name, table())
    if options.run:
        replace(ROOT / "README.md", "timing tree", timing_tree(options.run))
        shutil.copyfile(options.run / "learning_curve.png", ROOT / "docs" / "cartpole.png")
    return 0
