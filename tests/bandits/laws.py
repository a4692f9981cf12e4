"""Arms run by run, and whether what was counted follows the law that it should."""

from __future__ import annotations

import math

import numpy as np

from hotloop.bandits import Gaussian, run

# Of two and of ten values from N(0, 1), the largest is this on average.
BEST_OF_TWO = 1 / math.sqrt(math.pi)
BEST_OF_TEN = 1.53875


def chosen(agent, environment, *, num_steps, num_runs=4096, seed=0):
    """The arms that every run takes, (num_runs, num_steps), if true values differ and stay.

    What a run loses at step t is what it lost up to t less what it lost up to t − 1, and says which
    arm that was. Both are asked for as final regrets, of runs that differ in nothing but length.
    """
    means = np.array(environment.means)
    lost = means.max() - means
    assert len(np.unique(lost)) == len(lost)
    before, found = np.zeros(num_runs), []
    for length in range(1, num_steps + 1):
        result = run(agent, environment, num_runs=num_runs, num_steps=length, seed=seed)
        step = result.final_regrets - before
        arms = np.abs(step[:, None] - lost).argmin(axis=1)
        np.testing.assert_allclose(lost[arms], step, atol=1e-4)
        found.append(arms)
        before = result.final_regrets
    return np.stack(found, axis=1)


def alone(agent, environment, *, num_steps, seed):
    """The arms and the rewards of a single run, (num_steps,) each."""
    result = run(
        agent, environment, num_runs=1, num_steps=num_steps, seed=seed, steps_per_point=1,
        arm_shares=True,
    )  # fmt: skip
    assert set(np.unique(result.arm_share)) == {0.0, 1.0}
    return result.arm_share.argmax(axis=1), result.reward


def ladder(num_arms, *, noise=1.0):
    """True values 0, 1, 2, …: what is lost says which arm it was."""
    return Gaussian(means=tuple(range(num_arms)), noise=noise)


def critical(degrees):
    """What χ² exceeds once in a million (Wilson and Hilferty's approximation)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + 4.75342 * math.sqrt(part)) ** 3


def assert_law(counts, probability):
    """χ² of counts against the law that they should follow."""
    counts = np.ravel(counts)
    probability = np.broadcast_to(probability, counts.shape)
    assert math.isclose(probability.sum(), 1)
    expected = probability * counts.sum()
    assert expected.min() >= 8
    assert ((counts - expected) ** 2 / expected).sum() < critical(len(counts) - 1)


def assert_share(hits, probability):
    """Whether so many of these (bool) are true; off by more than this once in a million."""
    num = np.size(hits)
    assert num * min(probability, 1 - probability) >= 8
    error = math.sqrt(probability * (1 - probability) / num)
    assert abs(np.mean(hits) - probability) < 4.9 * error


def assert_near(estimate, value, *, error=0.0, sigmas=4.0):
    """Whether an estimate is within so many standard errors, its own and `value`'s, of `value`."""
    mean, se = estimate
    assert math.isfinite(se)
    assert se > 0
    allowed = sigmas * math.hypot(se, error)
    assert abs(mean - value) < allowed, f"{mean:.5f}, not {value} ± {allowed:.5f}"


def color_counts(path):
    """Return how many pixels of a picture have each of its colors."""
    from matplotlib.image import imread

    pixels = np.round(255 * imread(path)).astype(np.uint8)
    if pixels.shape[2] == 3:
        pixels = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
    return np.unique(np.ascontiguousarray(pixels).view(np.uint32), return_counts=True)[1]
