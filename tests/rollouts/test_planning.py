"""The reckoning of a cluster, against a simulation of it, event by event."""

import dataclasses
import random

import numpy as np
import pytest

from hotloop.errors import ConfigError
from hotloop.rollouts.forecast import Measured
from hotloop.rollouts.planning import (
    HANDLING_S,
    LATENCY_S,
    Cluster,
    counts_up_to,
    curve,
    need_room,
    reckon,
    two_speeds,
)
from tests.reference import cluster as reference

SCHEDULES = [
    ("barrier", False),
    ("barrier", True),
    ("lag:1", False),
    ("variable", False),
    ("variable", True),
    ("async", False),
]


def drawn(chance, schedule, overlap):
    """A cluster, and steps of two speeds, at random."""
    workers, fast_s = chance.choice([2, 4, 8, 16, 32]), chance.choice([2e-3, 5e-3])
    slow_s, share = fast_s * chance.choice([1, 3, 10, 30]), chance.choice([0.02, 0.1, 0.3])
    ideal = workers / ((1 - share) * fast_s + share * slow_s)
    cluster = Cluster(
        workers=workers,
        envs_per_worker=chance.choice([1, 1, 2]),
        num_steps=chance.choice([16, 32, 64]),
        schedule=schedule,
        overlap=overlap,
        transition_bytes=chance.choice([64, 1_000, 10_000]),
        weights_bytes=chance.choice([10**5, 10**7]),
        learner_steps_per_s=ideal * chance.choice([0.5, 1, 2, 5, 20]),
        nodes=chance.choice([1, 2, 8]),
        network_bytes_per_s=chance.choice([1.25e8, 1.25e9]),
    )
    return cluster, (fast_s, slow_s, share)


@pytest.mark.parametrize(("schedule", "overlap"), SCHEDULES)
def test_it_agrees_with_a_simulation(schedule, overlap):
    chance, errors = random.Random(7), []
    for number in range(6):
        cluster, speeds = drawn(chance, schedule, overlap)
        simulated = reference.Simulation(
            cluster,
            reference.two_speeds(*speeds, seed=number),
            handling_s=HANDLING_S,
            latency_s=LATENCY_S,
        ).steps_per_s()
        errors.append(reckon(two_speeds(*speeds), cluster).steps_per_s / simulated - 1)
    # The worst is a sum of rare and long steps, which is not as normal as it is taken for.
    assert np.median(np.abs(errors)) < 0.03
    assert np.max(np.abs(errors)) < 0.15


@pytest.mark.parametrize("workers", [4, 16, 64])
def test_workers_that_compute_share_the_cores(workers):
    cluster = Cluster(
        workers=workers, num_steps=32, schedule="async", nodes=2, cores_per_node=4, weights_bytes=0
    )
    measured = Measured(step_s=0.01, busy_share=0.5)
    simulated = reference.Simulation(cluster, lambda: 0.01, busy_share=0.5).steps_per_s()
    planned = reckon(measured, cluster)
    assert planned.steps_per_s == pytest.approx(simulated, rel=0.05)
    assert (planned.limit == "cores") == (workers > 14)  # one core of eight is the learner's


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
def test_what_saturates_first_is_named(changes, limit):
    cluster = Cluster(workers=200, schedule="async", nodes=10, **changes)
    assert reckon(two_speeds(0.014, None, 0.0), cluster).limit == limit


def test_more_workers_are_as_fast_as_fewer_once_the_learner_is_full():
    cluster = Cluster(workers=1024, schedule="async", learner_steps_per_s=2_000)
    speeds = [x.steps_per_s for x in curve(two_speeds(0.01, None, 0), cluster, counts_up_to(1024))]
    assert speeds[0] == pytest.approx(100, rel=0.01)
    assert speeds == sorted(speeds)
    assert speeds[-1] == pytest.approx(2_000, rel=0.01)
    assert counts_up_to(6) == [1, 2, 4, 6]


def test_a_store_that_is_too_small_is_refused_with_what_it_takes():
    cluster = Cluster(workers=100, transition_bytes=100_000, store_bytes=1e9)
    with pytest.raises(ConfigError, match=r"2.56 GB in flight .* `--object-store-gb` 2.6 or more"):
        need_room(cluster)
    need_room(dataclasses.replace(cluster, store_bytes=2.6e9))
