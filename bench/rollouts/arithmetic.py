"""Waiting, by arithmetic: drawn step times, summed and compared as each way waits.

Times are float64, seconds. A law is a function from a generator and a shape to such times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
Law = Callable[[np.random.Generator, tuple[int, ...]], Times]


def uneven(
    *,
    fast_s: float = 0.003,
    slow_s: float = 0.1,
    slow_share: float = 0.1,
    std_s: float = 0.0,
    end_share: float = 0.0,
    reset_s: float = 0.0,
    reset_std_s: float = 0.0,
) -> Law:
    """The law of `environments.Uneven`: a step, and the reset after it if it ends the episode."""

    def law(rng: np.random.Generator, shape: tuple[int, ...]) -> Times:
        usual = np.maximum(0.0, rng.normal(fast_s, std_s, shape))
        step = np.where(rng.random(shape) < slow_share, slow_s, usual)
        reset = np.maximum(0.0, rng.normal(reset_s, reset_std_s, shape))
        return step + np.where(rng.random(shape) < end_share, reset, 0.0)

    return law


def rates(
    law: Law,
    *,
    num_envs: int = 24,
    num_steps: int = 128,
    per_worker: int = 4,
    act_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
    learn_s: float = 0.0,
    num_fragments: int = 300,
    seed: int = 0,
) -> dict[str, float]:
    """Transitions a second of each way to wait.

    - `ideal`: nobody waits for anybody, N / E[step].
    - `lockstep`: all wait in every step: N / E[max_i step_i].
    - `barrier`: all wait at the end of a fragment of T steps: N T / E[max_i Σ_t step_it].
    - `overlap`: likewise, but the next fragment is collected while the learner learns.
    - `hybrid`: a worker steps several environments in turn and acts for them at once; its N
      workers have as many transitions each, and wait for each other as with `barrier`.

    Args:
        law: of a step, resets included.
        num_envs: N, environments and cores.
        num_steps: T.
        per_worker: hybrid: environments of each worker.
        act_s: of acting for all at once, for one, and for one worker's.
        learn_s: of learning from a fragment; `ideal` has it done meanwhile.
        num_fragments: drawn.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    act_all, act_one, act_few = act_s
    step = law(rng, (num_fragments, num_steps, num_envs))
    sums = step.sum(1)
    alone = float(sums.mean())
    slowest = float(sums.max(1).mean())
    size = num_steps * num_envs
    # Vector steps of a worker with several environments, so that it has T transitions.
    few = num_steps / per_worker * act_few
    return {
        "ideal": size / (alone + num_steps * act_one),
        "lockstep": size / (float(step.max(2).sum(1).mean()) + num_steps * act_all + learn_s),
        "barrier": size / (slowest + num_steps * act_one + learn_s),
        "overlap": size / max(slowest + num_steps * act_one, learn_s),
        "hybrid": size / (slowest + few + learn_s),
    }


def loaded(law: Law, load: float, **sizes: Any) -> dict[str, float]:
    """`rates`, where the learner takes a share of the wall time between fragments.

    With a share p of the time each way that waits for the learner has 1 − p of it left; the ways
    that don't wait lose nothing, as long as p is less than what a fragment takes.
    """
    found = rates(law, **sizes)
    return {
        name: rate if name in ("ideal", "overlap") else rate * (1.0 - load)
        for name, rate in found.items()
    }


def timelines(
    law: Law, *, num_envs: int, num_steps: int, until_s: float, seed: int = 0
) -> dict[str, list[list[tuple[float, float]]]]:
    """Who steps when, of each way to wait: (start, duration) of every step, by environment.

    Args:
        law: of a step.
        num_envs: N.
        num_steps: T, of `barrier`.
        until_s: when it ends.
        seed: of the draws, which are the same for all ways.
    """
    # More steps than even the fastest makes.
    steps = law(np.random.default_rng(seed), (4_096, num_envs))
    waits = {"lockstep": 1, "barrier": num_steps, "ideal": len(steps)}
    found: dict[str, list[list[tuple[float, float]]]] = {}
    for way, every in waits.items():
        found[way] = [[] for _ in range(num_envs)]
        clocks = np.zeros(num_envs)
        for t, row in enumerate(steps):
            if t % every == 0:
                clocks[:] = clocks.max()
            for env in np.flatnonzero(clocks < until_s):
                duration = min(row[env], until_s - clocks[env])
                found[way][env].append((float(clocks[env]), float(duration)))
            clocks += row
            if clocks.min() >= until_s:
                break
    return found
