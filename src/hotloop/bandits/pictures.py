"""Pictures of results. Bands and bars are 95 % confidence intervals over runs.

Every function writes one file, whole or not at all, and the suffix says which kind: .png, .svg or
.pdf.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotloop.bandits.environments import Environment
from hotloop.bandits.results import Estimate, Result
from hotloop.errors import ConfigError, MissingExtraError
from hotloop.files import written_whole
from hotloop.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

# Two-sided 95 % of a normal law: means over hundreds of runs are as good as normal.
_Z = 1.959964

# The ends of a box's two whiskers, around its row.
_CAPS = np.array([-0.12, 0.12, math.nan, -0.12, 0.12])

# Paul Tol's "bright", then his "muted": told apart with any kind of colour vision.
_COLORS = (
    *("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377"),
    *("#332288", "#999933", "#882255", "#44AA99", "#DDAA77", "#777777"),
)


def check_picture(path: str | Path, *, option: str = "path") -> Path:
    """Whether a picture can have this name; asked before the work, which may take minutes.

    Raises:
        ConfigError: its suffix is none of `FORMATS`.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"`{option}` must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got '{path}'"
        )
    return path


def learning_curves(
    results: Sequence[Result], path: str | Path, *, title: str | None = None
) -> None:
    """Draw the average reward and the share of optimal actions over steps.

    Args:
        results: at least one. Where none knows what was optimal (a user's environment without
            `mean`), the reward alone is drawn.
        path: where to.
        title: above all; by default the environment and how many runs there are.

    Raises:
        ConfigError: there is no result, or the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    labels = _labels(results)
    knows_optimal = any(np.isfinite(result.optimal).any() for result in results)
    figure = _figure(8, 7.5 if knows_optimal else 4.5)
    panels = figure.subplots(2 if knows_optimal else 1, sharex=True, squeeze=False)[:, 0]
    every = max(result.steps_per_point for result in results)
    smoothed = f" (mean of {every:,} steps a point)" if every > 1 else ""
    for color, label, result in zip(_colors(len(results)), labels, results, strict=True):
        _band(panels[0], result.step, result.reward, result.reward_se, color, label)
        if knows_optimal:
            percent = 100 * result.optimal, 100 * result.optimal_se
            _band(panels[1], result.step, *percent, color, label)
    panels[0].set_title(f"average reward{smoothed}", fontsize="medium")
    panels[0].set_ylabel("reward per step")
    if knows_optimal:
        panels[1].set_title(f"optimal action{smoothed}", fontsize="medium")
        panels[1].set_ylabel("steps that take it, %" if every > 1 else "runs that take it, %")
        panels[1].set_ylim(0, 101)
    for axes in panels:
        axes.set_xlabel("steps")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.tick_params(labelbottom=True)
        axes.set_xlim(0, max(result.num_steps for result in results))
        axes.grid(alpha=0.3)
    _legend_below(figure, panels[0], note="band: 95 % confidence")
    _write(figure, path, title or _title(results))


def regret_curves(results: Sequence[Result], path: str | Path, *, title: str | None = None) -> None:
    """Draw the cumulative regret over steps: on linear axes, against ln t, and on logarithmic axes.

    With it Lai and Robbins' C ln t, where the arms' values are given: in the long run the regret of
    an agent that is good everywhere grows no slower than that. It is asymptotic, good agents lie
    below it for a long time; what can be compared is the slope against ln t.

    Args:
        results: at least one.
        path: where to.
        title: above all.

    Raises:
        ConfigError: there is no result, none knows its regret, or the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    labels = _labels(results)
    _check_regret(results)
    figure = _figure(15, 5.2)
    panels = figure.subplots(1, 3)
    last = max(result.num_steps for result in results)
    first = min(int(result.step[0]) for result in results)
    constant = lai_robbins(results[0].environment) if _have_one_environment(results) else None
    for axes in panels:
        for color, label, result in zip(_colors(len(results)), labels, results, strict=True):
            _band(axes, result.step, result.regret, result.regret_se, color, label)
        if constant is not None:
            steps = np.geomspace(1, last, 400)
            axes.plot(
                steps,
                constant * np.log(steps),
                color="black",
                linestyle="--",
                linewidth=1.2,
                label=f"Lai–Robbins' {constant:.3g} ln t (asymptotic)",
            )
        axes.set_xlabel("steps")
        axes.set_ylabel("cumulative regret, units of reward")
        axes.grid(alpha=0.3)
    linear, half, logarithmic = panels
    linear.set_title("linear axes: growth as t is straight", fontsize="medium")
    half.set_title("logarithmic steps: growth as ln t is straight", fontsize="medium")
    logarithmic.set_title("logarithmic axes: powers of t are straight", fontsize="medium")
    linear.set_xlim(0, last)
    linear.xaxis.set_major_formatter("{x:,.0f}")
    for axes in (half, logarithmic):
        axes.set_xscale("log")
        axes.set_xlim(first, max(last, first + 1))
        axes.set_xlabel("steps (logarithmic axis)")
    for axes in (linear, half):
        axes.set_ylim(bottom=0)
    logarithmic.set_yscale("log")
    regrets = np.concatenate([result.regret for result in results])
    if (regrets > 0).any():  # C ln t begins at 0, which is infinitely far below
        logarithmic.set_ylim(bottom=regrets[regrets > 0].min() / 1.5)
    _legend_below(figure, linear, note="band: 95 % confidence")
    _write(figure, path, title or _title(results))


def regret_boxes(results: Sequence[Result], path: str | Path, *, title: str | None = None) -> None:
    """Draw how the regret at the end is spread over runs, a box an agent.

    A box holds the middle half of the runs, its whiskers the middle 90 %.

    Args:
        results: at least one, with `final_regrets`.
        path: where to.
        title: above all.

    Raises:
        ConfigError: there is no result, none knows its regret, or the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    labels = _labels(results)
    _check_regret(results)
    if not all(len(result.final_regrets) for result in results):
        raise ConfigError(
            "boxes need the regret of single runs, which results from stored sums don't have: run "
            "the agents again with `compare`"
        )
    figure = _figure(9, 1.9 + 0.55 * len(results))
    axes = figure.subplots()
    for row, (color, result) in enumerate(zip(_colors(len(results)), results, strict=True)):
        regrets = result.final_regrets
        low, left, median, right, high = np.percentile(regrets, (5, 25, 50, 75, 95))
        axes.plot([low, high], [row, row], color="black", linewidth=1, zorder=1)
        axes.plot([low, low, math.nan, high, high], row + _CAPS, color="black", linewidth=1)
        box = {"facecolor": color, "edgecolor": "black", "linewidth": 1, "zorder": 2}
        axes.barh(row, right - left, left=left, height=0.56, label="_box", **box)
        axes.plot(
            [median, median],
            [row - 0.28, row + 0.28],
            color="black",
            linewidth=2.2,
            label=None if row else "median",
            zorder=3,
        )
        axes.plot(
            [regrets.mean()],
            [row],
            linestyle="",
            marker="D",
            markersize=6,
            markerfacecolor="white",
            markeredgecolor="black",
            label=None if row else "mean",
            zorder=4,
        )
    axes.set_yticks(range(len(results)), labels)
    axes.invert_yaxis()  # the first agent on top, as in the table
    axes.set_xlabel("cumulative regret of a run at its end, units of reward")
    axes.set_ylabel("agent")
    axes.set_title(
        f"after {results[0].num_steps:,} steps; box: middle half of "
        f"{len(results[0].final_regrets):,} runs, whiskers: middle 90 %",
        fontsize="medium",
    )
    axes.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    _write(figure, path, title or _title(results))


def arm_shares(results: Sequence[Result], path: str | Path, *, title: str | None = None) -> None:
    """Draw which arms were taken over steps, a panel an agent.

    The best arm lies at the bottom where the arms' values are given. Where each run draws its own
    values, no arm is better than another over all runs, and shares tell of an agent's habits only.

    Args:
        results: at least one, made with `arm_shares=True`.
        path: where to.
        title: above all.

    Raises:
        ConfigError: there is no result, one has no shares, or the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    labels = _labels(results)
    num_columns = min(len(results), 3)
    num_rows = -(-len(results) // num_columns)
    figure = _figure(1.5 + 4.2 * num_columns, 1.2 + 3.2 * num_rows)
    panels = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True).flat
    for axes in panels[len(results) :]:
        axes.remove()
    for axes, label, result in zip(panels, labels, results, strict=False):
        if result.arm_share is None:
            raise ConfigError(
                f"the result of {label} has no shares of arms: run it with `arm_shares=True`"
            )
        layers = _layers(result.environment, result.arm_share.shape[1])
        edges, share = _thinned(result)
        axes.stackplot(
            edges,
            100 * (np.vstack([share[:1], share]) @ layers.groups).T,
            labels=layers.labels,
            colors=layers.colors,
            step="pre",  # a share belongs to all of its point's steps
            linewidth=0,
            antialiased=False,  # else white seams between layers
        )
        axes.set_title(label, fontsize="medium")
        axes.set_xlim(0, result.num_steps)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylim(0, 100)
        axes.set_xlabel("steps")
        axes.set_ylabel("share of pulls, %")
        axes.tick_params(labelbottom=True, labelleft=True)
    handles, names = panels[0].get_legend_handles_labels()
    means = getattr(results[0].environment, "means", None)
    heading = "arm" if means is None else "arm (true value)"
    figure.legend(handles[::-1], names[::-1], loc="outside right center", title=heading)
    _write(figure, path, title or _title(results))


def parameter_study(
    families: Mapping[str, Sequence[tuple[float, Estimate]]],
    path: str | Path,
    *,
    title: str,
    x_label: str = "parameter, dimensionless",
    y_label: str = "average reward per step",
    level: tuple[str, float] | None = None,
) -> None:
    """Draw how a measure depends on each agent's parameter, a line a family, as figure 2.6 does.

    The parameter's axis is logarithmic (base 2) unless a parameter is zero or negative.

    Args:
        families: label → (parameter, measure) pairs.
        path: where to.
        title: above the axes.
        x_label: what the parameters are, with their unit.
        y_label: what the measure is, with its unit.
        level: label and height of a horizontal line, to compare with.

    Raises:
        ConfigError: there is nothing to draw, or the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    parameters = np.array([x for points in families.values() for x, _ in points])
    if not len(parameters):
        raise ConfigError("a parameter study needs one setting or more, got none")
    figure = _figure(9, 5.8)
    axes = figure.subplots()
    markers = "osD^vP*X"
    colors = _colors(len(families))
    for index, (color, (label, points)) in enumerate(zip(colors, families.items(), strict=True)):
        ordered = sorted(points, key=lambda point: point[0])
        means = np.array([estimate.mean for _, estimate in ordered])
        errors = np.array([estimate.se for _, estimate in ordered])
        axes.errorbar(
            [x for x, _ in ordered],
            means,
            yerr=_Z * np.nan_to_num(errors),
            color=color,
            label=label,
            marker=markers[index % len(markers)],
            markersize=5,
            linewidth=1.6,
            capsize=2.5,
            elinewidth=1,
        )
    if level is not None:
        axes.axhline(level[1], color="black", linestyle=":", linewidth=1.2, label=level[0])
        low, high = axes.get_ylim()
        margin = 0.04 * (high - low)
        axes.set_ylim(min(low, level[1] - margin), max(high, level[1] + margin))
    if (parameters > 0).all():
        low, high = np.log2(parameters.min()), np.log2(parameters.max())
        powers = np.arange(math.floor(low), math.ceil(high) + 1)
        powers = powers[:: -(-len(powers) // 14)]  # as many as have room
        axes.set_xscale("log", base=2)
        axes.set_xticks(2.0**powers, [power_of_two(2.0**power) for power in powers])
        axes.set_xticks([], minor=True)
        axes.set_xlim(2.0 ** (low - 0.5), 2.0 ** (high + 0.5))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    last = "" if level is None else level[0]
    _legend_below(figure, axes, note="bars: 95 % confidence", last=last)
    _write(figure, path, title)


def heat_map(
    x_values: Sequence[Any],
    y_values: Sequence[Any],
    values: Array,
    path: str | Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    value_label: str,
    best: Callable[[Array], Any] | None = np.nanargmax,
) -> None:
    """Draw a measure over two parameters, a cell a pair; cells that are missing are hatched.

    Args:
        x_values: what the columns stand for, left to right: numbers or text.
        y_values: what the rows stand for, from below.
        values: float, (rows, columns); NaN where there is nothing.
        path: where to.
        title: above the axes.
        x_label: what the columns are, with their unit.
        y_label: what the rows are, with their unit.
        value_label: what the measure is, with its unit.
        best: finds the flat index of the cell that gets a frame: `np.nanargmax`, `np.nanargmin` for
            a regret, None for no frame.

    Raises:
        ConfigError: the numbers of rows and columns don't fit, there is no value at all, or the
            suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    values = np.asarray(values, np.float64)
    shape = (len(y_values), len(x_values))
    if values.shape != shape:
        raise ConfigError(
            f"`values` must have shape {shape}, a row for each of `y_values`, got {values.shape}"
        )
    if not np.isfinite(values).any():
        raise ConfigError("a heat map needs one value or more, got none")
    figure = _figure(max(5.5, 3 + 0.75 * shape[1]), max(4.2, 2 + 0.5 * shape[0]))
    axes = figure.subplots()
    axes.set_facecolor("#e8e8e8")
    axes.patch.set_hatch("///")
    axes.patch.set_edgecolor("#c0c0c0")
    edges = np.arange(shape[1] + 1) - 0.5, np.arange(shape[0] + 1) - 0.5
    mesh = axes.pcolormesh(*edges, np.ma.masked_invalid(values), cmap="viridis", linewidth=0)
    figure.colorbar(mesh, ax=axes, label=value_label)
    if values.size <= 200:
        middle = (np.nanmin(values) + np.nanmax(values)) / 2
        for (row, column), value in np.ndenumerate(values):
            if np.isfinite(value):
                color = "black" if value > middle else "white"
                text = f"{value:.4g}"
                axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
    if best is not None:
        row, column = divmod(int(best(values)), shape[1])
        where = f"{_cell(x_values[column])}, {_cell(y_values[row])}"
        (frame,) = axes.plot(
            column + np.array([-0.5, 0.5, 0.5, -0.5, -0.5]),
            row + np.array([-0.5, -0.5, 0.5, 0.5, -0.5]),
            color="#EE6677",
            linewidth=2.5,
            clip_on=False,
            zorder=3,
            label=f"best: {values[row, column]:.4g} at {where}",
        )
        figure.legend(handles=[frame], loc="outside lower center", frameon=False)
    axes.set_xticks(range(shape[1]), [_cell(value) for value in x_values])
    axes.set_yticks(range(shape[0]), [_cell(value) for value in y_values])
    axes.set_xlim(-0.5, shape[1] - 0.5)
    axes.set_ylim(-0.5, shape[0] - 0.5)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    _write(figure, path, title)


def reward_distributions(
    means: Sequence[float] | Array, noise: float, path: str | Path, *, title: str
) -> None:
    """Draw each arm's reward distribution N(mean, noise²) as a violin, as figure 2.1 does.

    The violins are the densities themselves, cut where 1 reward in 1,000 lies beyond either end.

    Args:
        means: the arms' true values.
        noise: standard deviation of a reward.
        path: where to.
        title: above the axes.

    Raises:
        ConfigError: the suffix is none of `FORMATS`.
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    path = check_picture(path)
    figure = _figure(9, 5.2)
    axes = figure.subplots()
    z = np.linspace(-3.0902, 3.0902, 201)
    half_width = 0.42 * np.exp(-(z**2) / 2)
    best = int(np.argmax(means))
    for arm, mean in enumerate(means):
        axes.fill_betweenx(
            mean + noise * z,
            arm - half_width,
            arm + half_width,
            color=_COLORS[1] if arm == best else _COLORS[0],
            alpha=0.65,
            linewidth=0,
        )
        axes.plot([arm - 0.42, arm + 0.42], [mean, mean], color="black", linewidth=1.2)
        axes.text(arm, mean + 0.04 * noise, f"{mean:.2f}", fontsize=8, ha="center", va="bottom")
    axes.axhline(0, color="gray", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(means)))
    axes.set_xlabel("arm, number")
    axes.set_ylabel("reward, units of its standard deviation" if noise == 1 else "reward")
    axes.grid(alpha=0.3, axis="y")
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        Patch(color=_COLORS[0], alpha=0.65, label="reward distribution"),
        Patch(color=_COLORS[1], alpha=0.65, label="that of the best arm"),
        Line2D([], [], color="black", linewidth=1.2, label="true value"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    _write(figure, path, title)


def lai_robbins(environment: Environment) -> float | None:
    """C of the asymptotic lower bound C ln t on regret: Σ Δ_a / KL(a, best) over inferior arms.

    Lai and Robbins 1985, "Asymptotically efficient adaptive allocation rules", theorem 1.

    Returns:
        None for environments whose arms don't have given values, or where the bound is 0.
    """
    means = getattr(environment, "means", None)
    if means is None:
        return None
    best = max(means)
    if environment.name == "bernoulli":
        divergences = [_bernoulli_divergence(mean, best) for mean in means]
    elif environment.name == "gaussian" and environment.noise > 0:
        divergences = [(best - mean) ** 2 / (2 * environment.noise**2) for mean in means]
    else:
        return None
    pairs = zip(means, divergences, strict=True)
    return sum((best - mean) / divergence for mean, divergence in pairs if mean < best) or None


def _bernoulli_divergence(p: float, q: float) -> float:
    total = 0.0
    for one, other in ((p, q), (1 - p, 1 - q)):
        if one > 0:
            total += one * math.log(one / other) if other > 0 else math.inf
    return total


class _Layers(NamedTuple):
    """How arms are stacked: float64 (k, layers) that adds arms up, and a label and colour each."""

    groups: Array
    labels: list[str]
    colors: list[Any]


def _layers(environment: Environment, num_arms: int, at_most: int = 12) -> _Layers:
    """The best arm first, and arms beyond `at_most` as one layer."""
    from matplotlib import colormaps

    means = getattr(environment, "means", None)
    order = list(range(num_arms))
    if means is not None:
        order.sort(key=lambda arm: -means[arm])
    apart = order if num_arms <= at_most else order[: at_most - 1]
    labels = [f"{arm} ({means[arm]:.4g})" if means is not None else f"{arm}" for arm in apart]
    groups = np.zeros((num_arms, len(apart) + (num_arms > len(apart))))
    groups[apart, range(len(apart))] = 1
    if num_arms > len(apart):
        groups[order[len(apart) :], -1] = 1
        labels.append(f"{num_arms - len(apart)} others")
    if means is not None:  # from the best to the worst, from dark to light
        colors = list(colormaps["viridis"](np.linspace(0.05, 1, groups.shape[1])))
    else:
        colors = _colors(groups.shape[1])
    return _Layers(groups, labels, colors)


def _thinned(result: Result, at_most: int = 250) -> tuple[Array, Array]:
    """Shares of fewer points, each the mean of several: a picture has only so many columns.

    Returns:
        Where they begin and end, int64, (points + 1,), and the shares, float64, (points, k).
    """
    assert result.sums.arm_pulls is not None
    stride = -(-len(result.step) // at_most)
    starts = np.arange(0, len(result.step), stride)
    pulls = np.add.reduceat(result.sums.arm_pulls, starts)
    edges = np.concatenate([[0], result.step[starts[1:] - 1], result.step[-1:]])
    return edges, pulls / pulls.sum(axis=1, keepdims=True)


def _band(axes: Any, step: Array, mean: Array, se: Array, color: Any, label: str) -> None:
    marker = "o" if len(step) == 1 else None  # of which there is no line
    axes.plot(step, mean, color=color, label=label, linewidth=1.2, marker=marker)
    half_width = _Z * np.nan_to_num(se)
    axes.fill_between(
        step, mean - half_width, mean + half_width, color=color, alpha=0.25, linewidth=0
    )


def _legend_below(figure: Figure, axes: Any, *, note: str, last: str = "") -> None:
    """One legend for all panels, beneath them: labels are long, and curves are to be seen.

    `last` is the label that comes last, whatever it is the label of.
    """
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: labels[k] == last)
    handles, labels = [handles[k] for k in order], [labels[k] for k in order]
    widest = max(map(len, labels))
    columns = max(1, min(len(labels), int(figure.get_figwidth() * 11) // (widest + 8)))
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        title=note,
        title_fontsize="small",
        fontsize="medium" if len(labels) <= 12 else "small",
    )


def _check_regret(results: Sequence[Result]) -> None:
    if not all(np.isfinite(result.regret).all() for result in results):
        raise ConfigError(
            f"the environment '{label_of(results[0].environment)}' does not say its arms' true "
            "values, so there is no regret to draw: give it a `mean`"
        )


def _labels(results: Sequence[Result]) -> list[str]:
    """What a legend calls each; the environment too if they differ in that.

    Raises:
        ConfigError: there is no result.
    """
    if not results:
        raise ConfigError("a picture needs one result or more, got none")
    labels = [label_of(result.agent) for result in results]
    if _have_one_environment(results):
        return labels
    places = [label_of(result.environment) for result in results]
    return [f"{label}; {place}" for label, place in zip(labels, places, strict=True)]


def _have_one_environment(results: Sequence[Result]) -> bool:
    first = results[0].environment
    return all(result.environment is first or result.environment == first for result in results[1:])


def label_of(described: Any) -> str:
    """What a legend calls an agent or an environment, a user's own ones included."""
    return getattr(described, "label", None) or getattr(described, "name", type(described).__name__)


def _title(results: Sequence[Result]) -> str:
    place = label_of(results[0].environment) if _have_one_environment(results) else "environments"
    first = results[0]
    return f"{place}\n{first.num_runs:,} runs of {first.num_steps:,} steps, seed {first.seed}"


def _colors(num: int) -> list[Any]:
    if num <= len(_COLORS):
        return list(_COLORS[:num])
    from matplotlib import colormaps

    return list(colormaps["turbo"](np.linspace(0.03, 0.97, num)))


def power_of_two(value: float) -> str:
    """A power of two as it is spoken of: 1/128 … 1/2, 1, 2, …"""
    return f"1/{1 / value:.4g}" if value < 1 else f"{value:.4g}"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)


def _figure(width: float, height: float) -> Figure:
    """A figure without pyplot: no global state, no window, no backend to choose."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "drawing a picture needs matplotlib: pip install 'hotloop[bandit]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _write(figure: Figure, path: Path, title: str) -> None:
    width = int(figure.get_figwidth() * 11)
    figure.suptitle("\n".join(fill(line, width) for line in title.split("\n")))
    with written_whole(path) as aside:
        figure.savefig(aside, dpi=120)
