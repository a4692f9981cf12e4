"""Pictures of a sweep: slices, parallel coordinates, learning curves, importance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.runs.plots import new_figure
from hotloop.sweeps.results import Run, Trial
from hotloop.sweeps.spaces import Choices, Range, Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PANEL = 2.8
_MOST_CURVES = 200


def _place(one: Choices | Range, value: Any) -> float:
    """Return where a value lies on its axis: of choices, its number."""
    if isinstance(one, Choices):
        value = tuple(value) if isinstance(value, list) else value
        return float(one.values.index(value))
    return math.log10(value) if one.is_log else float(value)


def _ticks(one: Choices | Range) -> tuple[list[float], list[str]] | None:
    if isinstance(one, Choices):
        texts = [" ".join(map(str, x)) if isinstance(x, tuple) else str(x) for x in one.values]
        return [float(k) for k in range(len(texts))], texts
    if one.is_log:
        low, high = math.ceil(math.log10(one.low)), math.floor(math.log10(one.high))
        places = list(range(low, high + 1))
        return [float(x) for x in places], [f"1e{x}" for x in places]
    return None


def slices(space: Space, trials: Sequence[Trial], scores: Mapping[int, float]) -> Figure:
    """Each trial's score over each option."""
    drawn = new_figure(max(_PANEL * len(space), 4.0), 3.0)
    axes = drawn.subplots(1, len(space), sharey=True, squeeze=False)[0]
    known = [one for one in trials if one.number in scores]
    for axis, (name, one) in zip(axes, space.items(), strict=True):
        x = [_place(one, trial.params[name]) for trial in known]
        axis.scatter(x, [scores[trial.number] for trial in known], s=12, alpha=0.7)
        axis.set_xlabel(name)
        ticks = _ticks(one)
        if ticks is not None:
            axis.set_xticks(*ticks)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("score")
    return drawn


def parallel(space: Space, trials: Sequence[Trial], scores: Mapping[int, float]) -> Figure:
    """A line for each trial through its options and its score; the better ones are drawn last."""
    from matplotlib import colormaps

    drawn = new_figure(max(1.6 * (len(space) + 1), 4.0), 3.4)
    axes = drawn.subplots()
    known = sorted((one for one in trials if one.number in scores), key=lambda x: scores[x.number])
    ends: list[tuple[float, float]] = []
    for one in space.values():
        places = (
            [_place(one, x) for x in one.values]
            if isinstance(one, Choices)
            else [_place(one, one.low), _place(one, one.high)]
        )
        ends.append((min(places), max(places)))
    all_scores = [scores[one.number] for one in known]
    ends.append((min(all_scores, default=0.0), max(all_scores, default=1.0)))
    colors = colormaps["viridis"]
    for rank, trial in enumerate(known):
        places = [_place(one, trial.params[name]) for name, one in space.items()]
        places.append(scores[trial.number])
        heights = [
            (place - low) / (high - low) if high > low else 0.5
            for place, (low, high) in zip(places, ends, strict=True)
        ]
        color = colors(rank / max(1, len(known) - 1))
        axes.plot(range(len(heights)), heights, color=color, alpha=0.7, linewidth=1.0)
    for place, (low, high) in enumerate(ends):
        is_log = place < len(space) and getattr(list(space.values())[place], "is_log", False)
        for end, height in ((low, -0.06), (high, 1.03)):
            text = f"{10**end if is_log else end:.3g}"
            one = list(space.values())[place] if place < len(space) else None
            if isinstance(one, Choices):
                text = str(one.values[int(end)])
            axes.text(place, height, text, ha="center", fontsize=8)
        axes.axvline(place, color="0.7", linewidth=0.8, zorder=0)
    axes.set_xticks(range(len(ends)), [*space, "score"])
    axes.set_yticks([])
    axes.set_ylim(-0.1, 1.1)
    return drawn


def curves(runs: Sequence[Run], best: int | None) -> Figure:
    """Scores as they were reported, of the best trial, of stopped runs and of the others."""
    drawn = new_figure(6.0, 3.6)
    axes = drawn.subplots()
    looks: dict[str, dict[str, Any]] = {
        "others": {"color": "0.8", "linewidth": 0.8},
        "stopped": {"color": "tab:orange", "linewidth": 0.9},
        "the best": {"color": "tab:blue", "linewidth": 1.8, "zorder": 3},
    }
    named: set[str] = set()
    for run in runs[:_MOST_CURVES]:
        if not run.curve:
            continue
        kind = "the best" if run.trial == best else "others"
        kind = "stopped" if run.state == "pruned" else kind
        x, y = np.array(run.curve).T
        axes.plot(x, y, label=None if kind in named else kind, **looks[kind])
        named.add(kind)
    axes.set(xlabel="transitions", ylabel="score so far")
    if named:
        axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return drawn


def importance(shares: Mapping[str, float]) -> Figure:
    """A bar for each option."""
    drawn = new_figure(5.0, 0.6 + 0.4 * len(shares))
    axes = drawn.subplots()
    names = sorted(shares, key=lambda name: shares[name])
    axes.barh(names, [shares[name] for name in names])
    axes.set_xlabel("importance, PED-ANOVA")
    return drawn
