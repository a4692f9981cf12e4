"""SAC with replay sources of the user's, in place of hotloop's replay buffer."""

import dataclasses
from typing import NamedTuple

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


def test_source_is_closed_after_an_error(tmp_path, monkeypatch):
    def fail(report):
        assert not closed
        if report.timesteps:
            raise KeyError("report")

    closed = []
    monkeypatch.setattr(FixedBatch, "close", lambda source: closed.append(source.num_stored))
    with pytest.raises(KeyError, match="report"):
        train(algorithm_with(FixedBatch), make_config(sac, tmp_path), on_report=fail)
    assert closed == [50]


def test_source_with_data_goes_on_without_a_file(tmp_path):
    """A resumed run does not wait for transitions that the source has."""
    config = make_config(sac, tmp_path, "parts")
    algorithm = algorithm_with(FixedBatch)
    train(algorithm, config, on_report=lambda report: report.timesteps >= 100)
    notes = []
    resumed = train(
        algorithm,
        config,
        resume_from=tmp_path / "parts",
        on_report=lambda report: notes.append(report.resumed) or False,
    )
    assert resumed.policy.version == 161  # as without the stop
    assert "replay buffer" not in notes[0]


@pytest.mark.parametrize(
    ("source", "options", "name"),
    [
        (RecordedSteps, {"replay_device": "device"}, "replay_device"),
        (FixedBatch, {"n_step": 3}, "n_step"),
        (FixedBatch, {"replay": "prioritized"}, "replay"),
        (FixedBatch, {"clip_reward": 1.0}, "clip_reward"),
    ],
)
def test_options_that_a_source_does_not_read_are_refused(tmp_path, source, options, name):
    with pytest.raises(ConfigError, match=f"`{name}` .* has no effect on the source of 'my_sac'"):
        train(algorithm_with(source), make_config(sac, tmp_path, **options))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": lambda *_: [1]}, "must return an object of a class that inherits `ReplaySo"),
        ({"exploration": lambda _: "pink"}, "must return an Exploration such as .*, got 'pink'"),
    ],
)
def test_wrong_parts_of_a_declaration_are_refused(tmp_path, changes, message):
    algorithm = dataclasses.replace(sac.algorithm, name="my_sac", **changes)
    with pytest.raises(ConfigError, match=message):
        train(algorithm, make_config(sac, tmp_path))


def test_values_in_place_of_functions_are_refused():
    with pytest.raises(ConfigError, match=r"`source` of 'sac' must be a function.*`lambda`"):
        dataclasses.replace(sac.algorithm, source=3)


def test_gamma_is_in_the_batch_alone(tmp_path):
    class Hyper(NamedTuple):
        learning_rate: float
        gamma: float

    algorithm = dataclasses.replace(sac.algorithm, hyper=lambda config, nets: Hyper(0.1, 0.9))
    with pytest.raises(ConfigError, match=r"`batch.discount` already holds it: leave `gamma` out"):
        train(algorithm, make_config(sac, tmp_path))
