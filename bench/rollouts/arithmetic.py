"""Expected rates by arithmetic: random step times, summed according to each way of waiting.

Times are float64 in seconds. A law is a function that draws times of a shape from a generator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]
Law = Callable[[np.random.Generator, tuple[int, ...]], Times]


def uneven_law(
    *,
    fast_s: float = 0.003,
    slow_s: float = 0.1,
    slow_share: float = 0.1,
    std_s: float = 0.0,
    end_share: float = 0.0,
    reset_s: float = 0.0,
    reset_std_s: float = 0.0,
) -> Law:
    """Return the law of `environments.Uneven` for a step and the reset if the episode ends."""

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
    """Return the transitions per second of each way of waiting.

    - `ideal`: no worker waits: N / E[step].
    - `lockstep`: all wait in every step: N / E[max_i step_i].
    - `barrier`: all wait at the end of a fragment of T steps: N T / E[max_i Σ_t step_it].
    - `overlap`: like `barrier`, but the next fragment is collected while the learner learns.
    - `hybrid`: each of N workers steps several environments in turn and acts for them at once. The
      workers have the same number of transitions and wait for each other as with `barrier`.

    Args:
        law: law of a step with its reset.
        num_envs: N, the number of environments and cores.
        num_steps: T.
        per_worker: environments per worker, for `hybrid`.
        act_s: seconds to act for all environments, for one, and for one worker's.
        learn_s: seconds to learn from a fragment, in parallel for `ideal`.
        num_fragments: number of random fragments.
        seed: seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    act_all, act_one, act_few = act_s
    step = law(rng, (num_fragments, num_steps, num_envs))
    sums = step.sum(1)
    alone = float(sums.mean())
    slowest = float(sums.max(1).mean())
    size = num_steps * num_envs
    # A worker with several environments needs fewer vector steps for T transitions.
    act_few_s = num_steps / per_worker * act_few
    return {
        "ideal": size / (alone + num_steps * act_one),
        "lockstep": size / (float(step.max(2).sum(1).mean()) + num_steps * act_all + learn_s),
        "barrier": size / (slowest + num_steps * act_one + learn_s),
        "overlap": size / max(slowest + num_steps * act_one, learn_s),
        "hybrid": size / (slowest + act_few_s + learn_s),
    }


def rates_under_load(law: Law, load: float, **sizes: Any) -> dict[str, float]:
    """Return `rates` with a learner that takes a share of the wall time between fragments.

    With a share p, a way that waits for the learner has 1 − p of the time. The other ways lose
    nothing, as long as learning takes less time than a fragment.
    """
    idle_rates = rates(law, **sizes)
    return {
        name: rate if name in ("ideal", "overlap") else rate * (1.0 - load)
        for name, rate in idle_rates.items()
    }


def timelines(
    law: Law, *, num_envs: int, num_steps: int, until_s: float, seed: int = 0
) -> dict[str, list[list[tuple[float, float]]]]:
    """Return (start, duration) of every step by way of waiting and environment.

    Args:
        law: law of a step.
        num_envs: N.
        num_steps: T, for `barrier`.
        until_s: end of the timeline.
        seed: seed of the random numbers, which are the same for all ways.
    """
    # More steps than the fastest environment makes.
    steps = law(np.random.default_rng(seed), (4_096, num_envs))
    waits = {"lockstep": 1, "barrier": num_steps, "ideal": len(steps)}
    spans: dict[str, list[list[tuple[float, float]]]] = {}
    for way, every in waits.items():
        spans[way] = [[] for _ in range(num_envs)]
        clocks = np.zeros(num_envs)
        for t, row in enumerate(steps):
            if t % every == 0:
                clocks[:] = clocks.max()
            for env in np.flatnonzero(clocks < until_s):
                duration = min(row[env], until_s - clocks[env])
                spans[way][env].append((float(clocks[env]), float(duration)))
            clocks += row
            if clocks.min() >= until_s:
                break
    return spans
