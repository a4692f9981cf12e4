"""examples/sac_from_minari.py: batches of a data set and of the run, in a file of the user's."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from examples import sac_from_minari
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError, MissingExtraError, SpaceError
from hotloop.training import check_algorithm
from tests import toy_envs
from tests.training.test_off_policy import make_config, watch

OBS = Box(-np.inf, np.inf, (3,), np.float32)
ACTION = Box(-2.0, 2.0, (1,), np.float32)


class Episodes:
    """The attributes of `minari.MinariDataset` that the example uses, with two episodes."""

    id = "pendulum/test-v0"
    total_steps = 60
    observation_space, action_space = OBS, ACTION

    def iterate_episodes(self):
        rng = np.random.default_rng(0)
        for k in range(2):
            yield SimpleNamespace(
                observations=rng.standard_normal((31, *self.observation_space.shape)),
                actions=rng.uniform(-1, 1, (30, *self.action_space.shape)),
                rewards=100.0 + 30 * k + np.arange(30),
                terminations=np.arange(30) == (29 if k else 99),
                truncations=np.zeros(30, bool),  # the first episode was cut
            )


@pytest.fixture(autouse=True)
def dataset(monkeypatch):
    episodes = Episodes()
    minari = SimpleNamespace(load_dataset=lambda name: episodes)
    monkeypatch.setitem(sys.modules, "minari", minari)
    return episodes


def train(config):
    return sac_from_minari.algorithm.train(config, env=toy_envs.ReachTheTarget, progress=False)


def fit_to_toy_env(dataset):
    spaces = toy_envs.ReachTheTarget()
    dataset.observation_space = spaces.observation_space
    dataset.action_space = spaces.action_space


def test_contract_with_resume():
    """The resumed run is equal bit for bit."""
    options = {"replay": "prioritized", "normalize_obs": True, "n_step": 3}
    check_algorithm(
        sac_from_minari.algorithm, env="Pendulum-v1", minari_dataset="pendulum/test-v0", **options
    )


def test_batches_have_the_share_of_recorded_steps(dataset, tmp_path, monkeypatch):
    fit_to_toy_env(dataset)
    batches = []
    watch(monkeypatch, lambda _, batch, __: batches.append(batch))
    options = {"minari_dataset": "x-v0", "minari_share": 0.25, "batch_size": 16}
    train(make_config(sac_from_minari, tmp_path, **options))
    reward = torch.stack([batch.reward for batch in batches])
    assert reward.shape[1] == 16
    assert bool((reward[:, :12] < 100).all())
    assert bool((reward[:, 12:] >= 100).all())
    assert set(reward[:, 12:].flatten().tolist()) == set(range(100, 160))  # every step is drawn
    discount = torch.stack([batch.discount for batch in batches])[:, 12:]
    assert bool(((discount == 0) == (reward[:, 12:] == 159)).all())  # where it terminated


def test_share_leaves_a_part_to_both():
    with pytest.raises(ConfigError, match=r"`minari_share` 0\.25 needs `minari_dataset`"):
        sac_from_minari.Config(minari_share=0.25)
    for share in (0.0, 1.0):
        with pytest.raises(ConfigError, match="must leave at least one transition for the data"):
            sac_from_minari.Config(minari_dataset="x-v0", minari_share=share)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("observation_space", Box(-1, 1, (4,))),
        ("observation_space", Discrete(3)),
        ("action_space", Box(-1, 1, (1,))),
    ],
)
def test_other_spaces_are_refused(dataset, name, space):
    setattr(dataset, name, space)
    with pytest.raises(SpaceError, match=r"'pendulum/test-v0' has .* choose a data set of this"):
        sac_from_minari.check_spaces(dataset, make_vec(EnvSpec("Pendulum-v1"), 1))


def test_missing_library_names_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'minari\[hdf5\]'"):
        sac_from_minari.load_dataset("x-v0")


@pytest.mark.parametrize("error", [FileNotFoundError, TypeError, ValueError])
def test_unknown_data_sets_are_refused(monkeypatch, error):
    def load_dataset(name):
        raise error(name)

    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(ConfigError, match="got 'x': `minari list local` prints those"):
        sac_from_minari.load_dataset("x")
