"""The forecast of a cluster, against an event-by-event simulation."""

import dataclasses
import random

import numpy as np
import pytest

from hotloop.errors import ConfigError
from hotloop.rollouts.planning.cluster import (
    HANDLING_S,
    LATENCY_S,
    Cluster,
    forecast_cluster,
    plan_cluster,
    two_speed_timing,
)
from hotloop.rollouts.planning.forecast import EnvTiming
from tests.reference import cluster as reference

SCHEDULES = [
    ("barrier", False),
    ("barrier", True),
    ("lag:1", False),
    ("variable", False),
    ("variable", True),
    ("async", False),
]


def draw_cluster(rng, schedule, overlap):
    """Draw a random cluster and steps of two speeds."""
    workers, fast_s = rng.choice([2, 4, 8, 16, 32]), rng.choice([2e-3, 5e-3])
    slow_s, share = fast_s * rng.choice([1, 3, 10, 30]), rng.choice([0.02, 0.1, 0.3])
    ideal = workers / ((1 - share) * fast_s + share * slow_s)
    cluster = Cluster(
        workers=workers,
        envs_per_worker=rng.choice([1, 1, 2]),
        num_steps=rng.choice([16, 32, 64]),
        schedule=schedule,
        overlap=overlap,
        transition_bytes=rng.choice([64, 1_000, 10_000]),
        weights_bytes=rng.choice([10**5, 10**7]),
        learner_steps_per_s=ideal * rng.choice([0.5, 1, 2, 5, 20]),
        nodes=rng.choice([1, 2, 8]),
        network_bytes_per_s=rng.choice([1.25e8, 1.25e9]),
    )
    return cluster, (fast_s, slow_s, share)


@pytest.mark.parametrize(("schedule", "overlap"), SCHEDULES)
def test_the_forecast_agrees_with_a_simulation(schedule, overlap):
    rng, errors = random.Random(7), []
    for number in range(6):
        cluster, speeds = draw_cluster(rng, schedule, overlap)
        simulated = reference.Simulation(
            cluster,
            reference.two_speeds(*speeds, seed=number),
            handling_s=HANDLING_S,
            latency_s=LATENCY_S,
        ).steps_per_s()
        errors.append(
            forecast_cluster(two_speed_timing(*speeds), cluster).steps_per_s / simulated - 1
        )
    # The worst is a sum of rare, long steps. The forecast takes it for normally distributed.
    assert np.median(np.abs(errors)) < 0.03
    assert np.max(np.abs(errors)) < 0.15


@pytest.mark.parametrize("workers", [4, 16, 64])
def test_workers_that_compute_share_the_cores(workers):
    cluster = Cluster(
        workers=workers, num_steps=32, schedule="async", nodes=2, cores_per_node=4, weights_bytes=0
    )
    measured = EnvTiming(step_s=0.01, busy_share=0.5)
    simulated = reference.Simulation(cluster, lambda: 0.01, busy_share=0.5).steps_per_s()
    result = forecast_cluster(measured, cluster)
    assert result.steps_per_s == pytest.approx(simulated, rel=0.05)
    assert (result.limit == "cores") == (workers > 14)  # one core of eight is the learner's


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, "environments"),
        ({"learner_steps_per_s": 5_000}, "learner"),
        ({"transition_bytes": 100_000}, "network in"),
        ({"weights_bytes": 10**10}, "network out"),
        ({"store_bytes": 1_000}, "object store"),
    ],
)
def test_the_resource_that_saturates_first_is_named(changes, limit):
    cluster = Cluster(workers=200, schedule="async", nodes=10, **changes)
    assert forecast_cluster(two_speed_timing(0.014, None, 0.0), cluster).limit == limit


def test_more_workers_are_no_faster_once_the_learner_is_saturated():
    cluster = Cluster(workers=1024, schedule="async", learner_steps_per_s=2_000)
    plan = plan_cluster(two_speed_timing(0.01, None, 0), cluster)
    speeds = [forecast.steps_per_s for forecast in plan.forecasts]
    assert speeds[0] == pytest.approx(100, rel=0.01)
    assert speeds == sorted(speeds)
    assert speeds[-1] == pytest.approx(2_000, rel=0.01)
    plan = plan_cluster(plan.env_timing, Cluster(workers=6))
    assert [forecast.workers for forecast in plan.forecasts] == [1, 2, 4, 6]


def test_a_store_that_is_too_small_is_refused_with_its_required_size():
    cluster = Cluster(workers=100, transition_bytes=100_000, store_bytes=1e9)
    with pytest.raises(
        ConfigError, match=r"2.56 GB in flight .* `--object-store-gb` to 2.6 or more"
    ):
        plan_cluster(two_speed_timing(0.01, None, 0), cluster)
    cluster = dataclasses.replace(cluster, store_bytes=2.6e9)
    assert plan_cluster(two_speed_timing(0.01, None, 0), cluster).forecasts
