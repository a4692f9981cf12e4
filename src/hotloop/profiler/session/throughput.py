"""Environment steps of a program and their rate over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hotloop.profiler.session import STEP_SPANS, ProfiledProcess, Session
from hotloop.timing.policy_shares import own_path

MAX_BINS = 240

_Path = tuple[str, ...]


class Throughput(NamedTuple):
    """Environment steps of a whole program.

    Attributes:
        total: number of steps.
        mean: steps per second over the whole run.
        start_ns: start of the first bin, CLOCK_MONOTONIC.
        end_ns: int64 (bins,), end of each bin; empty without samples.
        per_s: float64 (bins,), steps per second in each bin.
    """

    total: float
    mean: float
    start_ns: int
    end_ns: np.ndarray
    per_s: np.ndarray


def throughput(session: Session, max_bins: int = MAX_BINS) -> Throughput | None:
    """Return environment steps per second; None if no step was recorded.

    One step of a vector environment counts for all of its environments. Steps of its workers are
    counted once, in the process of the vector environment.

    Args:
        session: the session.
        max_bins: maximum number of bins. A bin is at least a second long.
    """
    factors = steps_by_path(session)
    total = sum(
        sum(factors[process.pid].get(path, 0.0) * node.count for path, node in process.tree.walk())
        for process in session.processes
    )
    if not total:
        return None
    start, end = session.start_ns, session.end_ns
    ends, per_s = _over_time(session, factors, max_bins)
    return Throughput(total, total / max(1e-9, (end - start) / 1e9), start, ends, per_s)


def steps_by_path(session: Session) -> dict[int, dict[_Path, float]]:
    """Return environment steps per span by path, by process id. Other paths have no steps."""
    factors = {process.pid: step_factors(process) for process in session.processes}
    if any(_has_vector_step(paths) for paths in factors.values()):
        factors = {
            pid: paths if any("vector_step" in path for path in paths) else {}
            for pid, paths in factors.items()
        }
    return factors


def step_factors(process: ProfiledProcess) -> dict[_Path, float]:
    """Return environment steps per span by path. Of nested steps, only the innermost count."""
    paths = [path for path, node in process.tree.walk() if path[-1] in STEP_SPANS and node.count]
    has_vector = any(path[-1] == "vector_step" for path in paths)
    num_envs = process.facts.get("num_envs", 1.0)
    factors: dict[_Path, float] = {}
    for path in paths:
        if any(len(inner) > len(path) and inner[: len(path)] == path for inner in paths):
            continue
        # Next to or inside a vector environment, a step of an environment is a single step.
        is_nested = "env_step" in own_path(path)[:-1]
        is_single = path[-1] == "env_step" and (has_vector or is_nested)
        factors[path] = 1.0 if is_single else num_envs
    return factors


def _has_vector_step(factors: Mapping[_Path, float]) -> bool:
    """Return whether the process stepped a vector environment, whose workers are not counted."""
    return any(path[-1] == "vector_step" for path in factors)


def _over_time(
    session: Session, factors: Mapping[int, Mapping[_Path, float]], max_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    active = [process for process in session.processes if process.periods and factors[process.pid]]
    if not active:
        return np.zeros(0, np.int64), np.zeros(0)
    start = session.start_ns
    end = max(process.periods[-1].end_ns for process in active)
    num_bins = int(min(max(1, (end - start) // 1_000_000_000), max_bins))
    edges = np.linspace(0.0, end - start, num_bins + 1)
    steps = np.zeros(num_bins + 1)
    for process in active:
        paths = factors[process.pid]
        times = [process.start_ns - start, *(period.end_ns - start for period in process.periods)]
        counts = [
            sum(factor * period.spans.get(path, (0, 0))[0] for path, factor in paths.items())
            for period in process.periods
        ]
        steps += np.interp(edges, times, [0.0, *counts])
    return (start + edges[1:]).astype(np.int64), np.diff(steps) / np.diff(edges) * 1e9
