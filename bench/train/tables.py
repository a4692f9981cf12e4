"""Tables of trainings: speed and learning curves."""

from __future__ import annotations

import statistics
from typing import Any

from bench import storage
from bench.markdown import format_figure, format_ratio, table

OFF_POLICY = ("sac", "td3", "dqn")
CONTENDERS = {
    "hotloop": "hotloop",
    "accelerated": "hotloop.accelerate",
    "sb3": "Stable-Baselines3",
    "sbx": "sbx (JAX)",
}


def training_table(pattern: str = "train_ppo_*.json") -> str:
    """Return a table with one row per stored result of PPO."""
    rows = [["training", "hotloop, steps/s", "Stable-Baselines3, steps/s", "ratio"]]
    rows[0] += ["ratio with compiling", "from prompt to end, s", "ratio"]
    for path in sorted(storage.RESULTS.glob(pattern)):
        result = storage.load(path.stem)
        hotloop, peer = (result["summaries"][name] for name in ("hotloop", "sb3"))
        cells = [_label(result)]
        for summary in (hotloop, peer):
            rate = summary["steps_per_s"]
            cells.append(f"{rate['median']:,.0f} ({rate['min']:,.0f}–{rate['max']:,.0f})")
        totals = [f"{summary['total_s']['median']:.1f}" for summary in (hotloop, peer)]
        cells += [
            f"{result['ratio_steps_per_s']:.2f}",
            f"{result['ratio_with_compiling']:.2f}",
            " : ".join(totals),
            f"{result['ratio_total']:.2f}",
        ]
        rows.append(cells)
    return table(*rows)


def speed_table(algorithms: tuple[str, ...] = OFF_POLICY, kind: str = "train") -> str:
    """Return a table of trainings: a row per contender and the first one's speed-up.

    The speed of the whole training includes compilation, since sbx compiles within its loop.

    Args:
        algorithms: the algorithms, in the order of the rows.
        kind: first word of the results' names: "train", or "accelerated" for the peer's classes
            from hotloop.accelerate.
    """
    figures = {
        "while learning, steps/s": ("steps_per_s_while_learning", "while_learning"),
        "whole training with compiling, steps/s": ("steps_per_s_with_compiling", "with_compiling"),
        "from prompt to end, s": ("total_s", "total"),
    }
    head = ["training", ""]
    for label in figures:
        head += [label, "ratio"]
    rows = [head]
    for result in _load_results(kind, algorithms):
        label = _label(result)
        for name, summary in result["summaries"].items():
            row = [label, CONTENDERS[name]]
            ratios = result["ratios"].get(name, {})
            for figure, ratio in figures.values():
                row += [
                    format_figure(summary[figure], 1.0),
                    format_ratio(ratios[ratio]) if ratios else "",
                ]
            rows.append(row)
            label = ""
    return table(*rows) if len(rows) > 1 else ""


def _label(result: dict[str, Any]) -> str:
    settings = result["settings"]
    ways = {"compile": "compiled", "on": "compiled", "off": "eager"}  # older names
    execution: str = settings.get("execution") or settings["compile"]
    text = ways.get(execution, execution)
    if text != "eager":
        text += f", {settings['cache']} cache"
    if settings.get("precision", "float32") != "float32":
        text += f", {settings['precision']}"
    return (
        f"{result['benchmark']}, {settings['timesteps']:,} steps, {text}{_workers_text(settings)}"
    )


def _workers_text(settings: dict[str, Any]) -> str:
    """Return a text for hotloop's workers, empty if there are none."""
    if not settings.get("workers"):
        return ""
    text = f", {settings['workers']} worker{'s' if settings['workers'] > 1 else ''}"
    text += f", `{settings['schedule']}`" if "schedule" in settings else ""
    return text + (", overlapped" if settings.get("overlap") else "")


def _load_results(kind: str, algorithms: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the stored results `<kind>_<algorithm>_….json`, ordered by algorithm."""
    return [
        storage.load(path.stem)
        for algorithm in algorithms
        for path in sorted(storage.RESULTS.glob(f"{kind}_{algorithm}_*.json"))
    ]


def curves_table(algorithms: tuple[str, ...] = ("ppo",), contender: str = "hotloop") -> str:
    """Return a table with one row per stored comparison of curves, or an empty string."""
    names = [CONTENDERS[name] for name in (contender, "sb3")]
    rows = [["training", *names, "difference", "lower 95 % bound"]]
    kind = "curves" if contender == "hotloop" else f"{contender}_curves"
    for result in _load_results(kind, algorithms):
        if "lower_95_bound" not in result:  # the peer's curves alone
            continue
        precision = "" if result.get("precision", "float32") == "float32" else ", bfloat16"
        name = f"{result['benchmark']}, {result['timesteps']:,} steps"
        row = [f"{name}{precision}{_workers_text(result)}"]
        for name in (contender, "sb3"):
            late = result["return_last_tenth"][name]
            spread = statistics.stdev(late)
            mean = statistics.fmean(late)
            digits = 0 if abs(mean) >= 10 else 2
            row.append(f"{mean:.{digits}f} ± {spread:.{digits}f} ({len(late)} seeds)")
        row += [f"{result['relative_difference']:+.0%}", f"{result['lower_95_bound']:+.0%}"]
        rows.append(row)
    return table(*rows) if len(rows) > 1 else ""
