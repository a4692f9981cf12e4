"""Actors that hang, stop or become unreachable: repeated requests and replacement."""

import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest

from hotloop.algorithms import appo
from hotloop.errors import ConfigError
from hotloop.rollouts.ray.step_timeout import StepTimeout
from hotloop.rollouts.ray.transport import ActorTransport
from tests.rollouts.ray.odd_envs import Hangs, Wide
from tests.rollouts.ray.test_ray import assert_adds_up, assert_same, pids_of, train
from tests.uneven_envs import Dawdling

pytestmark = pytest.mark.usefixtures("cluster")


def actor_pids():
    return pids_of("-f", "ray::Actor")


def test_a_hanging_step_ends_its_actor_and_a_new_one_continues(tmp_path):
    accounting = train(
        tmp_path / "run",
        env=Hangs,
        backend="ray",
        step_timeout_s=1.0,
        max_failures=50,
        total_timesteps=64 * 3,
    ).accounting
    assert sum(worker["restarts"] for worker in accounting["workers"]) > 0
    assert accounting["trained"] == 64 * 3
    assert_adds_up(accounting)


def test_the_step_timeout_does_not_fire_between_steps():
    timeout = StepTimeout(0.05)
    for _ in range(3):
        timeout.on_step_start()
    timeout.stop()
    time.sleep(0.2)
    StepTimeout(None).on_step_start()


def test_a_stopped_actor_blocks_no_other_and_its_old_rows_are_dropped(tmp_path, monkeypatch):
    """`async`: the others continue past the age limit, and the stopped actor comes back."""
    monkeypatch.setattr("hotloop.rollouts.ray.transport._SILENT_S", 1.0)
    stopped, ages = [], []

    def stop_one(report):
        ages.append(report.metrics.get("age_max", 0))
        if not stopped and report.timesteps >= 64 * 4:
            stopped.append((actor_pids()[0], report.timesteps))
            os.kill(stopped[0][0], signal.SIGSTOP)
            timer = threading.Timer(5.0, os.kill, (stopped[0][0], signal.SIGCONT))
            timer.daemon = True
            timer.start()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accounting = train(
            tmp_path / "run",
            appo,
            Dawdling,
            backend="ray",
            workers=3,
            schedule="async",
            max_policy_age=2,
            env_kwargs={"mean_s": [0.01]},
            total_timesteps=96 * 24,
            on_report=stop_one,
        ).accounting
    assert any("is stopped; waiting for it" in str(warning.message) for warning in caught)
    assert sum(worker["restarts"] for worker in accounting["workers"]) == 0
    assert accounting["dropped"]["too old"] > 0
    assert accounting["trained"] == 96 * 24
    assert max(ages) <= 2
    assert_adds_up(accounting)


def test_a_lost_answer_is_sent_again_and_not_computed_again(tmp_path, monkeypatch):
    """After a lost answer, the same rows arrive again, in order."""
    fetch, lost = ActorTransport._fetch, []

    def lose_some(self, worker, ref):
        actor = self._actors[worker]
        if len(lost) < 3 and worker == 1 and actor.setup is None:
            lost.append(ref)
            self._ray.wait([ref])
            self._mark_silent(worker, "it can't be reached")
            actor.unanswered = [(request.start, request.stop) for request in actor.requests]
            actor.requests.clear()
            return
        fetch(self, worker, ref)

    train(tmp_path / "whole", backend="ray")
    monkeypatch.setattr(ActorTransport, "_fetch", lose_some)
    with pytest.warns(RuntimeWarning, match="worker 1: it can't be reached"):
        accounting = train(tmp_path / "lossy", backend="ray").accounting
    assert len(lost) == 3
    assert accounting["dropped"] == {}
    assert_same(tmp_path / "whole", tmp_path / "lossy")


def test_a_full_object_store_blocks_no_actor(tmp_path, cluster):
    """Ray spills to disk: fragments of 13 MB in a store of 100 MB with 90 MB in use."""
    refs = [cluster.put(np.zeros(30 * 2**20, np.uint8)) for _ in range(3)]
    accounting = train(
        tmp_path / "run",
        appo,
        Wide,
        env_kwargs={"size": 50_000},
        backend="ray",
        schedule="async",
        total_timesteps=64 * 6,
    ).accounting
    assert accounting["trained"] == 64 * 6
    assert_adds_up(accounting)
    assert len(refs) == 3


def test_a_store_that_is_too_small_is_refused_with_its_required_size(tmp_path):
    with pytest.raises(ConfigError, match=r"fragments in flight of [\d,]+ bytes .* take [\d,]+ by"):
        train(
            tmp_path / "run",
            env=Wide,
            backend="ray",
            num_steps=64,
            total_timesteps=256,
        )
