"""SAC with replay sources of the user's, in place of hotloop's replay buffer."""

import dataclasses

import numpy as np
import pytest
import torch

from hotloop.algorithms import sac
from hotloop.errors import ConfigError
from hotloop.training import Replay, ReplayBatch, ReplaySource
from tests import toy_envs
from tests.training.test_off_policy import assert_same_weights, make_config, watch

NUM_RECORDED = 64


class RecordedSteps(Replay):
    """A replay buffer that holds recorded steps, with rewards from 100, from the start."""

    def __init__(self, config, envs, *args):
        super().__init__(config, envs, *args)
        rng = np.random.default_rng(0)
        shape = NUM_RECORDED, *envs.obs_spec.shape
        self.buffer.extend(
            obs=rng.standard_normal(shape, np.float32),
            action=rng.uniform(-1, 1, (NUM_RECORDED, *envs.action_spec.shape)).astype(np.float32),
            reward=np.arange(100, 100 + NUM_RECORDED, dtype=np.float32),
            next_obs=rng.standard_normal(shape, np.float32),
            terminated=np.ones(NUM_RECORDED, np.bool_),
            truncated=np.zeros(NUM_RECORDED, np.bool_),
        )


class FixedBatch(ReplaySource):
    """A source without a buffer: it stores nothing, and returns one batch again and again."""

    max_drawn = 3

    def __init__(self, config, envs, device, env_spec, memory_size):
        del device, env_spec, memory_size
        self.size, self.num_samples, self.num_stored = config.batch_size, 0, 0
        obs = torch.zeros((self.size, *envs.obs_spec.shape))
        action = torch.zeros((self.size, *envs.action_spec.shape))
        ones = torch.ones(self.size)
        self.batch = ReplayBatch(obs, action, ones, obs, ones, ones)

    def __len__(self):
        return 1_000

    def store(self, fragment):
        self.num_stored += fragment.num_steps

    def draw(self, count, scale):
        assert scale is None
        self.num_samples += count
        return [self.batch] * count, np.zeros(count * self.size, np.int64)


def algorithm_with(source):
    return dataclasses.replace(sac.algorithm, name="my_sac", source=source)


def train(algorithm, config, **options):
    return algorithm.train(config, env=toy_envs.ReachTheTarget, progress=False, **options)


def test_batches_hold_recorded_and_new_steps(tmp_path, monkeypatch):
    rewards = []
    watch(monkeypatch, lambda _, batch, __: rewards.append(batch.reward.clone()))
    train(algorithm_with(RecordedSteps), make_config(sac, tmp_path, learning_starts=20))
    is_recorded = torch.stack(rewards) >= 100
    assert is_recorded[:10].float().mean() > 0.5  # of the 64 recorded and 20 … 30 new steps
    assert 0 < is_recorded[-10:].float().mean() < 0.5  # of 264 steps


@pytest.mark.parametrize("source", [RecordedSteps, FixedBatch])
def test_run_with_a_source_resumes_exactly(tmp_path, source):
    algorithm, options = algorithm_with(source), {"save_replay": True}
    train(algorithm, make_config(sac, tmp_path, "whole", **options))
    config = make_config(sac, tmp_path, "parts", **options)
    train(algorithm, config, on_report=lambda report: report.timesteps >= 100)
    train(algorithm, config, resume_from=tmp_path / "parts")
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_source_needs_three_methods(tmp_path, monkeypatch):
    created, batches = [], []
    watch(monkeypatch, lambda _, batch, __: batches.append(batch))

    def make(*args):
        created.append(FixedBatch(*args))
        return created[0]

    result = train(algorithm_with(make), make_config(sac, tmp_path, save_replay=True))
    (source,) = created
    assert source.num_stored == 200
    assert len(batches) == source.num_samples == 161  # one for each step from the 40th on
    assert all(batch is source.batch for batch in batches)
    assert result.status == "finished"


def test_replay_device_is_not_for_other_sources(tmp_path):
    config = make_config(sac, tmp_path, replay_device="device")
    with pytest.raises(ConfigError, match="'my_sac' has a `source` of its own: leave"):
        train(algorithm_with(RecordedSteps), config)
