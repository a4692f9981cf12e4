"""The forecast of a cluster: a table and a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hotloop.base.figures import new_figure, save_figure
from hotloop.base.rounding import format_rate
from hotloop.base.text_tables import print_columns
from hotloop.rollouts.planning.cluster import ClusterForecast, ClusterPlan


def print_plan(plan: ClusterPlan) -> None:
    """Print the forecasts, the utilization of the largest one, and its limit."""
    rows = plan.forecasts
    print_columns(
        [
            ("workers", [f"{row.workers:,}" for row in rows]),
            ("steps/s", [format_rate(row.steps_per_s) for row in rows]),
            ("of ideal", [f"{row.share:.1%}" for row in rows]),
            ("limit", [row.limit for row in rows]),
        ],
        num_texts=1,
        justify="right",
    )
    last, cluster, measured = plan.forecasts[-1], plan.cluster, plan.env_timing
    used = sorted(last.used.items(), key=lambda item: -item[1])
    print(f"\nutilization with {last.workers:,} workers:")
    for name, share in used:
        print(f"  {name:14} {share:6.1%}")
    print(
        f"\nin flight: {cluster.stored_bytes / 1e6:,.1f} MB at most, in fragments of "
        f"{cluster.fragment_bytes / 1e3:,.1f} kB"
    )
    print(f"what saturates first: {plan.advice()}")
    if measured.num_steps:
        print(f"measured here: {measured}")


def draw_plan(points: Sequence[ClusterForecast], path: Path) -> None:
    """Draw throughput against workers.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: the file can't be written.
    """
    figure = new_figure(6, 4)
    axes = figure.subplots()
    workers = [point.workers for point in points]
    axes.plot(workers, [point.ideal_per_s for point in points], "--", color="0.6", label="ideal")
    axes.plot(workers, [point.steps_per_s for point in points], "o-", label="forecast")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="transitions/s")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    save_figure(figure, path, dpi=100)
