"""Throughput: environment steps that a program made, and their rate over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from hotloop.profiler.session import STEPS, Process, Session

MAX_BINS = 240

_Path = tuple[str, ...]


class Throughput(NamedTuple):
    """Environment steps of a whole program.

    Attributes:
        total: steps.
        mean: steps a second, over the whole run.
        start_ns: where the first bin begins, CLOCK_MONOTONIC.
        end_ns: int64, (bins,): where each ends; empty where there were no samples.
        per_s: float64, (bins,): steps a second in each.
    """

    total: float
    mean: float
    start_ns: int
    end_ns: np.ndarray
    per_s: np.ndarray


def throughput(session: Session, max_bins: int = MAX_BINS) -> Throughput | None:
    """Environment steps a second; None where no step was seen.

    One step of a vector environment counts for all of its environments. What workers step for
    somebody else's vector environment is counted there, once.

    Args:
        max_bins: a bin is at least a second, and longer in long runs.
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
    """How many environment steps a span of each path is, by process's number; 0: not in it."""
    factors = {process.pid: step_factors(process) for process in session.processes}
    if any(_waits_for_others(paths) for paths in factors.values()):
        factors = {
            pid: paths if any("vector_step" in path for path in paths) else {}
            for pid, paths in factors.items()
        }
    return factors


def step_factors(process: Process) -> dict[_Path, float]:
    """What one span of each path counts for: of steps within steps, the innermost count."""
    paths = [path for path, node in process.tree.walk() if path[-1] in STEPS and node.count]
    has_vector = any(path[-1] == "vector_step" for path in paths)
    num_envs = process.facts.get("num_envs", 1.0)
    factors: dict[_Path, float] = {}
    for path in paths:
        if any(len(other) > len(path) and other[: len(path)] == path for other in paths):
            continue
        # Beside or within a vector environment's, an environment's step is one.
        is_one = path[-1] == "env_step" and (has_vector or "env_step" in path[:-1])
        factors[path] = 1.0 if is_one else num_envs
    return factors


def _waits_for_others(factors: Mapping[_Path, float]) -> bool:
    """Whether a vector environment was stepped whose environments are not in this process."""
    return any(path[-1] == "vector_step" for path in factors)


def _over_time(
    session: Session, factors: Mapping[int, Mapping[_Path, float]], max_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    counted = [one for one in session.processes if one.periods and factors[one.pid]]
    if not counted:
        return np.zeros(0, np.int64), np.zeros(0)
    start = session.start_ns
    end = max(process.periods[-1].end_ns for process in counted)
    num_bins = int(min(max(1, (end - start) // 1_000_000_000), max_bins))
    edges = np.linspace(0.0, end - start, num_bins + 1)
    steps = np.zeros(num_bins + 1)
    for process in counted:
        paths = factors[process.pid]
        times = [process.start_ns - start, *(one.end_ns - start for one in process.periods)]
        counts = np.array(
            [
                sum(factor * one.spans.get(path, (0, 0))[0] for path, factor in paths.items())
                for one in process.periods
            ]
        )
        grown = np.diff(counts, prepend=0.0)
        # A program that began another recording counts from zero again.
        grown = np.where(grown < 0, counts, grown)
        steps += np.interp(edges, times, np.concatenate(([0.0], np.cumsum(grown))))
    return (start + edges[1:]).astype(np.int64), np.diff(steps) / np.diff(edges) * 1e9
