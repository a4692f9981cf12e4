"""Learners of off-policy algorithms, as a training makes them, for spaces of no environment."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import torch

from hotloop.learner import Learner
from hotloop.training import OffPolicy
from tests.policies.nets import Spaces
from tests.policies.test_policies import obs_spec


class Learning(NamedTuple):
    """A learner, and what it was made of."""

    config: Any
    nets: Any
    learner: Learner

    @property
    def state(self):
        return self.learner.state

    def update(self, batch):
        return self.learner.update(batch)

    def means(self):
        return self.learner.metrics.means()

    def draw_noise(self):
        """Return what draws what the learner will draw next, without a trace."""
        rng = copy.deepcopy(self.learner.rng)
        action_size = math.prod(self.nets.policy.network.action_spec.shape)
        shape = self.config.batch_size, action_size
        return lambda: torch.from_numpy(rng.standard_normal(shape, np.float32)).double()


def make_learning(algorithm: OffPolicy, action_spec, **options) -> Learning:
    """Return a learner of three observed numbers on the CPU."""
    config = algorithm.config(**options)
    device = torch.device("cpu")
    nets = algorithm.networks(config, Spaces(obs_spec(3), action_spec), device)
    learner = algorithm.make_learner(
        config,
        nets,
        [update.rule(nets, config) for update in algorithm.updates],
        device=device,
        stream=2,
        num_batches=config.planned_updates,
        batch_size=config.batch_size,
    )
    return Learning(config, nets, learner)


def assert_comes_back(algorithm: OffPolicy, action_spec, make_batch, **options):
    """Save after 3 updates and load into a learner of another seed: both go on alike."""
    ours = make_learning(algorithm, action_spec, **options)
    for k in range(3):
        ours.update(make_batch(k))
    arrays, random = ours.learner.kept_state()(), ours.learner.random_state()
    kept = {name: array.copy() for name, array in arrays.items()}
    snapshot = ours.learner.kept(ours.learner.publish(3))
    other = make_learning(algorithm, action_spec, **{**options, "seed": 9})
    other.learner.load(arrays, random, 3, {})
    for name, array in snapshot.params.items():
        np.testing.assert_array_equal(other.learner.publish(3).params[name], array, name)
    for k in range(3, 9):
        torch.testing.assert_close(
            ours.update(make_batch(k)), other.update(make_batch(k)), rtol=0, atol=0
        )
        for one in (ours, other):
            if algorithm.move_targets is not None:
                algorithm.move_targets(one.state, 1, one.learner.hyper.tensors)
    assert ours.learner.num_updates == other.learner.num_updates == 9
    after, theirs = ours.learner.kept_state()(), other.learner.kept_state()()
    assert after.keys() == theirs.keys()
    for name, array in after.items():
        np.testing.assert_array_equal(array, theirs[name], name)
    # What is kept for a checkpoint is left alone by what is learned afterwards.
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, kept[name], name)
        assert not np.shares_memory(array, after[name])
