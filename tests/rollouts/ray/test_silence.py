"""Actors that hang, stop or are lost on the way: asked after, asked again, replaced."""

import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest

from hotloop.algorithms import appo
from hotloop.errors import ConfigError
from hotloop.rollouts.ray.alarm import Alarm
from hotloop.rollouts.ray.supervisor import Supervisor
from tests.rollouts.ray.odd_envs import Hangs, Wide
from tests.rollouts.ray.test_ray import assert_adds_up, assert_same, cluster, pids_of, train
from tests.uneven_envs import Dawdling

ray = pytest.importorskip("ray", reason="Ray is not installed")
assert cluster  # a fixture


def actors():
    return pids_of("-f", "ray::Actor")


def test_a_step_that_hangs_ends_its_actor_and_another_one_goes_on(tmp_path):
    told = train(
        tmp_path / "run",
        env=Hangs,
        backend="ray",
        step_timeout_s=1.0,
        max_failures=50,
        total_timesteps=64 * 3,
    ).accounting
    assert sum(worker["restarts"] for worker in told["workers"]) > 0
    assert told["trained"] == 64 * 3
    assert_adds_up(told)


def test_an_alarm_that_rests_does_not_ring():
    alarm = Alarm(0.05)
    for _ in range(3):
        alarm.begins()
        alarm.ended(0)
    alarm.rest()
    time.sleep(0.2)
    Alarm(None).begins()


def test_an_actor_that_is_stopped_holds_up_nobody_and_what_is_too_old_is_dropped(
    tmp_path, monkeypatch
):
    """`async`: the others go on past the bound on age; the one that was stopped comes back."""
    monkeypatch.setattr("hotloop.rollouts.ray.supervisor._SILENT_S", 1.0)
    stopped, ages = [], []

    def stop_one(report):
        ages.append(report.metrics.get("age_max", 0))
        if not stopped and report.timesteps >= 64 * 4:
            stopped.append((actors()[0], report.timesteps))
            os.kill(stopped[0][0], signal.SIGSTOP)
            timer = threading.Timer(5.0, os.kill, (stopped[0][0], signal.SIGCONT))
            timer.daemon = True
            timer.start()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        told = train(
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
    assert any("is stopped; it is waited for" in str(one.message) for one in said)
    assert sum(worker["restarts"] for worker in told["workers"]) == 0
    assert told["dropped"]["too old"] > 0
    assert told["trained"] == 96 * 24
    assert max(ages) <= 2
    assert_adds_up(told)


def test_a_part_that_was_made_is_sent_again_and_not_made_again(tmp_path, monkeypatch):
    """An answer that got lost: the same rows come, and those after them follow."""
    fetch, lost = Supervisor._fetch, []

    def lose_some(self, worker, ref):
        if len(lost) < 3 and worker == 1:
            lost.append(ref)
            self._ray.wait([ref])
            one = self._groups[worker]
            self._is_silent(worker, "it can't be reached")
            one.unanswered = [asked.number for asked in one.making]
            one.making.clear()
            return
        fetch(self, worker, ref)

    train(tmp_path / "whole", backend="ray")
    monkeypatch.setattr(Supervisor, "_fetch", lose_some)
    with pytest.warns(RuntimeWarning, match="worker 1: it can't be reached"):
        told = train(tmp_path / "lossy", backend="ray").accounting
    assert len(lost) == 3
    assert told["dropped"] == {}
    assert_same(tmp_path / "whole", tmp_path / "lossy")


def test_a_store_that_others_have_filled_holds_nobody_up(tmp_path):
    """Ray writes to disk what has no room: fragments of 13 MB beside 90 of 100 MB that are held."""
    held = [ray.put(np.zeros(30 * 2**20, np.uint8)) for _ in range(3)]
    told = train(
        tmp_path / "run",
        appo,
        Wide,
        env_kwargs={"size": 50_000},
        backend="ray",
        schedule="async",
        total_timesteps=64 * 6,
    ).accounting
    assert told["trained"] == 64 * 6
    assert_adds_up(told)
    assert len(held) == 3


def test_a_store_that_is_too_small_is_refused_with_what_it_takes(tmp_path):
    with pytest.raises(ConfigError, match=r"fragments in flight of [\d,]+ bytes .* take [\d,]+ by"):
        train(
            tmp_path / "run",
            env=Wide,
            backend="ray",
            num_steps=64,
            total_timesteps=256,
        )
