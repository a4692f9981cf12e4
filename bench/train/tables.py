"""The tables of trainings: their speed, what they learn, and how they start."""

from __future__ import annotations

import statistics
from typing import Any

from bench import storage
from bench.markdown import scaled, table, times

OFF_POLICY = ("sac", "td3", "dqn")
CONTENDERS = {"hotloop": "hotloop", "sb3": "Stable-Baselines3", "sbx": "sbx (JAX)"}


def training_table(pattern: str = "train_ppo_*.json") -> str:
    """One row for each benchmark of PPO's trainings that was stored."""
    rows = [["training", "hotloop, steps/s", "Stable-Baselines3, steps/s", "ratio"]]
    rows[0] += ["with compiling", "from prompt to end, s", "ratio"]
    for path in sorted(storage.RESULTS.glob(pattern)):
        result = storage.load(path.stem)
        ours, peer = (result["summaries"][name] for name in ("hotloop", "sb3"))
        cells = [_about(result)]
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
        rows.append(cells)
    return table(*rows)


def off_policy_table(algorithms: tuple[str, ...] = OFF_POLICY) -> str:
    """Trainings with replay: a row for each contender, and how many times as fast ours is.

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
    for result in _of_algorithms("train", algorithms):
        about = _about(result)
        for name, summary in result["summaries"].items():
            row = [about, CONTENDERS[name]]
            ratios = result["ratios"].get(name, {})
            for figure, ratio in figures.values():
                row += [scaled(summary[figure], 1.0), times(ratios[ratio]) if ratios else ""]
            rows.append(row)
            about = ""
    return table(*rows) if len(rows) > 1 else ""


def _about(result: dict[str, Any]) -> str:
    settings = result["settings"]
    ways = {"compile": "compiled", "on": "compiled", "off": "eager"}  # as it was called before
    asked: str = settings.get("execution") or settings["compile"]
    how = ways.get(asked, asked)
    if how != "eager":
        how += f", {settings['cache']} cache"
    if settings.get("precision", "float32") != "float32":
        how += f", {settings['precision']}"
    return f"{result['benchmark']}, {settings['timesteps']:,} steps, {how}{_with(settings)}"


def _with(settings: dict[str, Any]) -> str:
    """Which workers ours had, if any."""
    if not settings.get("workers"):
        return ""
    about = f", {settings['workers']} worker{'s' if settings['workers'] > 1 else ''}"
    about += f", `{settings['schedule']}`" if "schedule" in settings else ""
    return about + (", overlapped" if settings.get("overlap") else "")


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
            mean = statistics.fmean(late)
            digits = 0 if abs(mean) >= 10 else 2
            row.append(f"{mean:.{digits}f} ± {spread:.{digits}f} ({len(late)} seeds)")
        row += [f"{result['relative_difference']:+.0%}", f"{result['lower_95_bound']:+.0%}"]
        rows.append(row)
    return table(*rows) if len(rows) > 1 else ""
