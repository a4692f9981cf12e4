"""Replay on a device: launches, and whole trainings with tensors on the CPU."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from hotloop.algorithms import dqn, sac, td3
from hotloop.envs import make_vec
from hotloop.errors import ConfigError, NonFiniteError
from hotloop.learner import Learner
from hotloop.learner.state import tensors
from hotloop.policies import ObsScale
from hotloop.replay import ReplayBuffer
from hotloop.runs import RunDirectory
from hotloop.training import off_policy
from hotloop.training.algorithm import acting
from hotloop.training.device_replay import Launches, ReplayOnDevice
from hotloop.training.replay import Batch
from tests import toy_envs
from tests.training.test_off_policy import (
    ENVS,
    LONG,
    SMALL,
    assert_same_weights,
    lines_of,
    make_config,
    of_each,
    train,
)
from tests.training.test_train import assert_same_run

B = 16


def learner_of(algorithm, envs, config):
    """A learner as a run makes it; each call's is the same."""
    declared, device = algorithm.algorithm, torch.device("cpu")
    nets = declared.networks(config, envs, device)
    return declared.make_learner(
        config,
        nets,
        [update.rule(nets, config) for update in declared.updates],
        device=device,
        stream=2,
        num_batches=100,
        batch_size=config.batch_size,
    )


def filled(envs, config, *buffers, num_steps=30):
    """Random transitions, in all of the buffers."""
    rng = np.random.default_rng(0)
    count = num_steps * envs.num_envs
    spec = envs.action_spec
    action = rng.uniform(-1, 1, (count, *spec.shape)).astype(spec.dtype)
    if np.dtype(spec.dtype).kind in "iu":
        action = rng.integers(0, 2, (count, *spec.shape)).astype(spec.dtype)
    rows = {
        "obs": rng.normal(size=(count, *envs.obs_spec.shape)).astype(np.float32),
        "action": action,
        "reward": rng.normal(size=count).astype(np.float32),
        "next_obs": rng.normal(size=(count, *envs.obs_spec.shape)).astype(np.float32),
        "terminated": rng.random(count) < 0.1,
        "truncated": rng.random(count) < 0.1,
    }
    for buffer in buffers:
        buffer.extend(**rows)


def host_batch(host, number, importance, scale):
    """What the host's replay makes of transitions."""
    drawn = host.get(number)
    obs, next_obs = drawn.obs, drawn.next_obs
    if scale is not None:
        obs, next_obs = scale.apply(obs), scale.apply(next_obs)
    has_windows = "discount" in drawn.keys()  # noqa: SIM118
    discount = drawn.discount if has_windows else (~drawn.terminated).astype(np.float32)
    fields = (obs, drawn.action, drawn.reward, next_obs, discount, importance)
    return Batch(*(torch.from_numpy(np.array(x)) for x in fields))


def noted(replay, count, drawn):
    drawn.append(replay.buffer.draw(count, B))
    if drawn[-1].importance is not None:  # before priorities have come in all are alike
        drawn[-1].importance.copy_(torch.rand((count, B)))
    return drawn[-1]


def metrics_of(learner):
    return {name: torch.stack(rows).numpy() for name, rows in learner.metrics._rows.items()}


@pytest.mark.parametrize("options", [{}, {"n_step": 3}, {"replay": "prioritized"}], ids=str)
@pytest.mark.parametrize("is_scaled", [False, True])
@of_each
def test_a_launch_is_as_many_updates(monkeypatch, algorithm, options, is_scaled):
    """With the host's batches of the same transitions, and the same noise."""
    options = {**SMALL, **options, "batch_size": B, "num_envs": 4}
    config = algorithm.Config(replay_device="device", updates_per_launch=4, **options)
    with contextlib.closing(make_vec(ENVS[algorithm], 4, seed=0)) as envs:
        shape = envs.obs_spec.shape
        scale = None
        if is_scaled:
            scale = ObsScale(np.full(shape, 0.3, "f"), np.full(shape, 0.7, "f"), 1.5)
        replay = ReplayOnDevice(config, envs, torch.device("cpu"))
        host = ReplayBuffer.for_env(
            envs, config.buffer_size, n_step=config.n_step, gamma=config.gamma
        )
        filled(envs, config, replay.buffer, host)
        ours, theirs = learner_of(algorithm, envs, config), learner_of(algorithm, envs, config)
        launches, drawn = Launches(ours, replay, 4), []
        monkeypatch.setattr(replay, "draw_numbers", lambda count: noted(replay, count, drawn))
        for due in (1, 4, 6, 9):  # also where the period of a delayed update has begun
            for count in launches.counts(due):
                numbers, td_error = launches.make(count, scale)
                assert len(numbers) == count
                for k, number in enumerate(np.asarray(numbers)):
                    assert number.shape == (B,)
                    weights = drawn[-1].importance
                    importance = np.ones(B, "f") if weights is None else weights[k].numpy()
                    batch = host_batch(host, number, importance, scale)
                    error = theirs.update(batch)
                    torch.testing.assert_close(td_error[k], error, rtol=1e-5, atol=1e-6)
        assert ours.num_updates == theirs.num_updates == 20
        want = tensors(theirs.state)
        for name, tensor in tensors(ours.state).items():
            torch.testing.assert_close(tensor, want[name], rtol=1e-5, atol=1e-6)
        want = metrics_of(theirs)
        for name, rows in metrics_of(ours).items():
            np.testing.assert_allclose(rows, want[name], rtol=1e-4, atol=1e-5)
        assert ours.metrics._updates == theirs.metrics._updates


@of_each
def test_whole_trainings(tmp_path, algorithm):
    options = {"env_id": LONG[algorithm], "num_envs": 4, "replay_device": "device"}
    for name, count in (("a", 1), ("b", 1), ("c", 4)):
        result = train(algorithm, tmp_path, name=name, updates_per_launch=count, **options)
        assert result.status == "finished"
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert_same_weights(tmp_path / "a", tmp_path / "c")
