"""Expected and measured speed-up over lock-step by the unevenness of steps and resets."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.rollouts.arithmetic import rates, timelines, uneven_law
from bench.rollouts.measure import measure
from bench.rollouts.scale import RolloutScale, alternate, figure_path, store

MEAN_STEP_S, MEAN_RESET_S = 0.01, 1.0
# The post's seconds to act for all environments at once and for one. A worker with four
# environments acts for them at once.
ACT_ALL_S, ACT_ONE_S = 0.8e-3, 1e-3
# hotloop's seconds to act for one environment.
ACT_OURS_S = 0.03e-3
PANELS: dict[str, tuple[str, dict[str, float], str, float, tuple[float, ...]]] = {
    "steps": (
        "steps of 10 ms on average, no resets",
        {"fast_s": MEAN_STEP_S, "slow_share": 0.0},
        "std_s",
        MEAN_STEP_S,
        (0.0, 0.5, 1.5),
    ),
    "resets": (
        "steps of 10 ms, 1 % of them followed by a reset of 1 s on average",
        {"fast_s": MEAN_STEP_S, "slow_share": 0.0, "end_share": 0.01, "reset_s": MEAN_RESET_S},
        "reset_std_s",
        MEAN_RESET_S,
        (0.0, 1.0),
    ),
}
LINES = {
    "batched": "batched: a fragment of each, then all wait (acting as in the post)",
    "hybrid": "hybrid: the same, four environments per worker",
    "barrier": "hotloop, `barrier`",
    "ideal": "hotloop, `variable` and `async`: no waiting",
}
POINTS = {"barrier": "barrier", "variable overlap": "ideal"}


def expected_speed_ups(env_kwargs: Mapping[str, float], scale: RolloutScale) -> dict[str, float]:
    """Return the expected speed-up over lock-step of each of `LINES`."""
    sizes: dict[str, Any] = {
        "num_envs": scale.workers,
        "num_steps": scale.num_steps,
        "num_fragments": scale.num_fragments,
    }
    law = uneven_law(**env_kwargs)
    post = rates(law, **sizes, act_s=(ACT_ALL_S, ACT_ONE_S, ACT_ONE_S))
    hotloop = rates(law, **sizes, act_s=(ACT_ALL_S, ACT_OURS_S, ACT_OURS_S))
    line_rates = {
        "batched": post["barrier"],
        "hybrid": post["hybrid"],
        "barrier": hotloop["barrier"],
        "ideal": hotloop["ideal"],
    }
    return {name: rate / post["lockstep"] for name, rate in line_rates.items()}


def curves(scale: RolloutScale, rounds: int) -> None:
    """Compute the expected speed-up, and measure some points."""
    panels: dict[str, Any] = {}
    for panel, (label, env_kwargs, varied, mean, measured_stds) in PANELS.items():
        stds = [2.0 * place / (scale.points - 1) for place in range(scale.points)]
        lines = [expected_speed_ups({**env_kwargs, varied: std * mean}, scale) for std in stds]
        points: list[dict[str, Any]] = []
        print(f"  {label} ", end="", flush=True)
        for std in measured_stds:
            arguments: dict[str, Any] = {
                "workers": scale.workers,
                "num_steps": scale.num_steps,
                "seconds": scale.seconds,
                "env_kwargs": {**env_kwargs, varied: std * mean},
            }
            measures = {
                method: functools.partial(
                    measure,
                    "sample",
                    method=method,
                    act_s=ACT_ALL_S if method == "sb3" else 0.0,
                    **arguments,
                )
                for method in ("sb3", *POINTS)
            }
            results = alternate(measures, rounds)
            if any("missing" in figures for figures in results.values()):
                continue
            rates_by_method = {
                method: figures["rate 0%"]["median"] for method, figures in results.items()
            }
            ups = {method: rates_by_method[method] / rates_by_method["sb3"] for method in POINTS}
            expected = expected_speed_ups(arguments["env_kwargs"], scale)
            points.append(
                {"std": std, "rates": rates_by_method, "speed_up": ups, "expected": expected}
            )
            cells = [f"{method} {up:.2f}" for method, up in ups.items()]
            cells += [f"{line} expected {expected[line]:.2f}" for line in POINTS.values()]
            print(f"    σ = {std:g} × mean: {', '.join(cells)}")
        ways = {name: [line[name] for line in lines] for name in LINES}
        panels[panel] = {"about": label, "std": stds, "ways": ways, "points": points}
    result = {"workers": scale.workers, "num_steps": scale.num_steps, "rounds": rounds}
    store("curves", {**result, "lines": LINES, "panels": panels})
    path = figure_path("workers-curves.png", scale)
    draw_curves(panels, path)
    draw_waiting(figure_path("workers-waiting.png", scale))
    print(f"drawn: {path.name}, workers-waiting.png")


def draw_waiting(path: Path) -> None:
    """Draw the timeline of each environment, with white gaps for waiting."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    until_s, num_envs, num_steps = 1.5, 8, 32
    titles = {
        "lockstep": "lock-step: all wait in every step",
        "barrier": f"barrier: all wait after {num_steps} steps of each",
        "ideal": "variable, async: no waiting",
    }
    spans_by_way = timelines(
        uneven_law(), num_envs=num_envs, num_steps=num_steps, until_s=until_s, seed=1
    )
    figure, axes = pyplot.subplots(3, 1, figsize=(10, 5.5), sharex=True, layout="constrained")
    for ax, (way, title) in zip(axes, titles.items(), strict=True):
        for env, spans in enumerate(spans_by_way[way]):
            is_slow = [duration > 0.05 for _, duration in spans]
            colors = ["tab:blue" if slow else "lightsteelblue" for slow in is_slow]
            ax.broken_barh(spans, (env - 0.4, 0.8), facecolors=colors)
        at_work = sum(duration for spans in spans_by_way[way] for _, duration in spans)
        ax.set_title(f"{title} ({at_work / num_envs / until_s:.0%} at work)", fontsize=10)
        ax.set_yticks([])
        ax.set_ylabel(f"{num_envs} workers")
        ax.set_xlim(0, until_s)
    axes[-1].set_xlabel("s (light: steps of 3 ms, dark: of 100 ms, white: waiting)")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


COLORS = {
    "batched": "tab:orange",
    "hybrid": "tab:green",
    "barrier": "tab:cyan",
    "ideal": "tab:blue",
}


def draw_curves(panels: Mapping[str, Any], path: Path) -> None:
    """Draw the speed-up over lock-step by standard deviation, with measured points."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for ax, (name, panel) in zip(axes, panels.items(), strict=True):
        for line, ups in panel["ways"].items():
            label = LINES[line].replace("`", "")
            ax.plot(panel["std"], ups, color=COLORS[line], label=label)
        for method, line in POINTS.items():
            xs = [point["std"] for point in panel["points"]]
            ups = [point["speed_up"][method] for point in panel["points"]]
            ax.plot(xs, ups, "o", color=COLORS[line], markersize=6, markeredgecolor="black")
        varied = "step" if name == "steps" else "reset"
        ax.axhline(1.0, color="grey", linewidth=0.8)
        ax.set_ylim(bottom=0)
        ax.set_title(panel["about"], fontsize=10)
        ax.set_xlabel(f"standard deviation of a {varied}'s time, over the mean")
        ax.set_ylabel("speed-up over lock-step")
        ax.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
