"""The account of workers, printed at the end of a training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hotloop import timing
from hotloop.cli import starving
from hotloop.cli.tables import plain_table, print_table, wide_console
from hotloop.timing.clocks import clocks_of

# More workers than this are told of by their first, their last and their slowest.
_MAX_ROWS = 8
# Spans of all workers together that take less are left out.
_MIN_SHARE = 0.002


def print_workers(run_dir: Path) -> None:
    """Print what `accounting.json` says; nothing where a run has none."""
    told = _account(run_dir)
    if told is None:
        return
    workers = told["workers"]
    if workers:
        _print_tree(run_dir, len(workers))
        _print_table(workers)
        _print_clocks(run_dir)
        starving.print_of_run(run_dir)
    print(f"\n{balance(told)}")
    if told["policy_age_max"]:
        print(
            f"experience was {told['policy_age_mean']:.1f} versions of the policy old on average, "
            f"{told['policy_age_max']:,} at most"
        )
    if told.get("collected_per_s"):
        text = f"collecting: {told['collected_per_s']:,.0f} steps/s"
        if told.get("forecast_per_s"):
            ratio = told["collected_per_s"] / told["forecast_per_s"]
            text += f", {ratio:.2f} × the {told['forecast_per_s']:,.0f} that were forecast"
        print(text)


def print_nodes(run_dir: Path) -> None:
    """Print the workers of a cluster by node; nothing where a run was on one machine."""
    workers = (_account(run_dir) or {}).get("workers", [])
    if any(one.get("node") for one in workers):
        _print_table(workers)
        _print_clocks(run_dir)


def _account(run_dir: Path) -> dict[str, Any] | None:
    """Return what a run says of its workers; None where it says nothing."""
    try:
        return json.loads((run_dir / "accounting.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def balance(told: dict[str, Any]) -> str:
    """collected = trained + dropped + in flight, with the reasons."""
    dropped = told["dropped"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items())
    return (
        f"{told['collected']:,} collected = {told['trained']:,} trained + "
        f"{sum(dropped.values()):,} dropped{f' ({reasons})' if reasons else ''} + "
        f"{told['in_flight']:,} in flight"
    )


def shown(workers: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The workers to tell of, each with its name: all of a few, else the first, the slowest and
    the last; the slowest took longest for a transition."""
    slowest = max(workers, key=_step_s)
    if len(workers) <= _MAX_ROWS:
        chosen = workers
    else:
        chosen = [one for one in workers if one in (workers[0], slowest, workers[-1])]
    is_told = len(workers) > 1
    return [
        (f"{one['worker']}{' (slowest)' if is_told and one is slowest else ''}", one)
        for one in chosen
    ]


def _step_s(worker: dict[str, Any]) -> float:
    shares = worker["step_share"] + worker["reset_share"] + worker["act_share"]
    return worker["lived_s"] * shares / worker["steps"] if worker["steps"] else math.inf


def _print_tree(run_dir: Path, num_workers: int) -> None:
    _, own = starving.last_processes(run_dir)
    names = {"inference-": "inference", "worker-": f"{num_workers} workers"}
    if num_workers == 1:
        names["worker-"] = "worker"
    for kind, name in names.items():
        trees = [one.tree() for one in own if one.component.startswith(kind)]
        if trees:
            print(f"\n{timing.render(timing.merge(trees, name), min_share=_MIN_SHARE)}")


def _print_table(workers: list[dict[str, Any]]) -> None:
    table = plain_table()
    table.add_column("worker")
    nodes = sorted({one.get("node") or "" for one in workers})
    if nodes != [""]:  # Ray's names of them are long, and their first characters tell them apart
        table.add_column("node")
        workers = sorted(workers, key=lambda one: (one["node"], one["worker"]))
    for heading in ("steps", "stepping", "resetting", "acting", "waiting"):
        table.add_column(heading, justify="right")
    for heading in ("step p50", "p99", "reset p50", "p99", "restarts", "failures"):
        table.add_column(heading, justify="right")
    for name, one in shown(workers):
        shares = [one[f"{what}_share"] for what in ("step", "reset", "act", "wait")]
        times = [one[f"{what}_s"] for what in ("step_p50", "step_p99", "reset_p50", "reset_p99")]
        table.add_row(
            name,
            *([] if nodes == [""] else [one["node"][:8] or "–"]),
            f"{one['steps']:,}",
            *(f"{share:.1%}" for share in shares),
            *(_duration(seconds) for seconds in times),
            str(one["restarts"]),
            str(one["env_failures"]),
        )
    print()
    print_table(table, wide_console())


def _print_clocks(run_dir: Path) -> None:
    """Say how far off times of other machines may be."""
    for clock in clocks_of(run_dir / "timing").others.values():
        print(
            f"node {clock.node[:8]}: its clock is {clock.offset_ns / 1e9:+.6f} s from this "
            f"machine's, ± {clock.error_ns / 1e3:,.0f} µs, and its times are told by this one's"
        )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
