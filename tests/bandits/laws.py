"""Arms of single runs, and statistical tests of counts against their laws."""

from __future__ import annotations

import math

import numpy as np

from hotloop.bandits import run

# The expected maximum of ten values from N(0, 1).
BEST_OF_TEN = 1.53875


def chosen_arms(agent, environment, *, num_steps, num_runs=4096, seed=0):
    """Return the arms of every run, (num_runs, num_steps), for distinct constant true values.

    The regret up to t minus the regret up to t − 1 identifies the arm of step t. Both are final
    regrets of runs that differ only in length.
    """
    means = np.array(environment.means)
    gaps = means.max() - means
    assert len(np.unique(gaps)) == len(gaps)
    previous, arms_by_step = np.zeros(num_runs), []
    for length in range(1, num_steps + 1):
        result = run(agent, environment, num_runs=num_runs, num_steps=length, seed=seed)
        step = result.final_regrets - previous
        arms = np.abs(step[:, None] - gaps).argmin(axis=1)
        np.testing.assert_allclose(gaps[arms], step, atol=1e-4)
        arms_by_step.append(arms)
        previous = result.final_regrets
    return np.stack(arms_by_step, axis=1)


def single_run(agent, environment, *, num_steps, seed):
    """Return the arms and the rewards of one run, (num_steps,) each."""
    result = run(
        agent, environment, num_runs=1, num_steps=num_steps, seed=seed, steps_per_point=1,
        arm_shares=True,
    )  # fmt: skip
    assert set(np.unique(result.arm_share)) == {0.0, 1.0}
    return result.arm_share.argmax(axis=1), result.reward


def critical(degrees):
    """Return the one-in-a-million critical value of χ² (Wilson and Hilferty's approximation)."""
    part = 2 / (9 * degrees)
    return degrees * (1 - part + 4.75342 * math.sqrt(part)) ** 3


def assert_law(counts, probability):
    """Test counts against a law with χ²."""
    counts = np.ravel(counts)
    probability = np.broadcast_to(probability, counts.shape)
    assert math.isclose(probability.sum(), 1)
    expected = probability * counts.sum()
    assert expected.min() >= 8
    assert ((counts - expected) ** 2 / expected).sum() < critical(len(counts) - 1)


def assert_share(hits, probability):
    """Test a share of true values, with an error rate of one in a million."""
    num = np.size(hits)
    assert num * min(probability, 1 - probability) >= 8
    error = math.sqrt(probability * (1 - probability) / num)
    assert abs(np.mean(hits) - probability) < 4.9 * error


def assert_near(estimate, value, *, error=0.0, sigmas=4.0):
    """Test whether an estimate is within `sigmas` standard errors, of both, of `value`."""
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
