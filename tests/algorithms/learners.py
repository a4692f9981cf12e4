"""Learners of off-policy algorithms, built as in training, without an environment."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from hotloop.learner import Learner
from hotloop.training import OffPolicy
from hotloop.training.learners import make_learner
from tests.policies.nets import Spaces
from tests.policies.test_policies import obs_spec
from tests.reference import off_policy as reference


class LearnerSetup(NamedTuple):
    """A learner with its configuration and networks."""

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
        """Return a function that draws the learner's next noise without advancing its generator."""
        rng = copy.deepcopy(self.learner.rng)
        action_size = math.prod(self.nets.policy.network.action_spec.shape)
        num_rows = self.config.batch_size * self.config.sequence_steps

        def draw(extra_rows=0):
            shape = num_rows + extra_rows, action_size
            return torch.from_numpy(rng.standard_normal(shape, np.float32)).double()

        return draw


def make_learner_setup(algorithm: OffPolicy, action_spec, **options) -> LearnerSetup:
    """Return a learner for three observed numbers on the CPU."""
    config = algorithm.config(**options)
    device = torch.device("cpu")
    nets = algorithm.networks(config, Spaces(obs_spec(3), action_spec), device)
    learner = make_learner(
        algorithm,
        config,
        nets,
        [update.rule(nets, config) for update in algorithm.updates],
        device=device,
        stream=2,
        num_batches=config.planned_updates,
        batch_size=config.batch_size,
    )
    return LearnerSetup(config, nets, learner)


def learn_beside_reference(setup: LearnerSetup, peer, action_spec, *, weighed):
    """Make 20 updates of both, and check what all have in common.

    Returns:
        The metrics of the reference's last update, and of each update of its policy.
    """
    state, unpack = setup.state, setup.nets.critics.layout.unpack
    start = state.policy.clone(), state.critics.clone()
    draw_noise, policy_rows, metrics = setup.draw_noise(), [], {}
    for k in range(20):
        batch = reference.random_batch(3, action_spec, 32, seed=k, weighed=weighed)
        td_error = setup.update(batch)
        metrics, new_rows, their_error = peer.update(batch, draw_noise)
        policy_rows += new_rows
        torch.testing.assert_close(td_error.double(), their_error, rtol=1e-3, atol=1e-3)
        if k == 0:
            first = {name: x for name, x in setup.means().items() if name in metrics}
            assert first == pytest.approx(metrics, rel=1e-4)
    for flat, before in zip((state.policy, state.critics), start, strict=True):
        assert (flat - before).abs().mean() > 0.01
    for flat, modules in (
        (state.critics, peer.critics.modules),
        (state.targets, peer.critics.targets),
    ):
        critics = reference.critic_modules(setup.config, unpack(flat))
        reference.assert_same_parameters(critics, modules)
    # The published parameters are the policy's.
    np.testing.assert_array_equal(
        setup.learner.publish(20).params["policy.0.weight"].ravel(),
        state.policy[: 3 * setup.config.hidden_sizes[0]],
    )
    return metrics, policy_rows


def assert_learner_is_restored(algorithm: OffPolicy, action_spec, make_batch, **options):
    """Save after 3 updates and load into a learner of another seed: both continue alike."""
    original = make_learner_setup(algorithm, action_spec, **options)
    for k in range(3):
        original.update(make_batch(k))
    arrays, random = original.learner.state_snapshot()(), original.learner.random_state()
    copies = {name: array.copy() for name, array in arrays.items()}
    snapshot = original.learner.copy_snapshot(original.learner.publish(3))
    restored = make_learner_setup(algorithm, action_spec, **{**options, "seed": 9})
    restored.learner.load(arrays, random, 3, {})
    for name, array in snapshot.params.items():
        np.testing.assert_array_equal(restored.learner.publish(3).params[name], array, name)
    for k in range(3, 9):
        torch.testing.assert_close(
            original.update(make_batch(k)), restored.update(make_batch(k)), rtol=0, atol=0
        )
        for setup in (original, restored):
            if algorithm.move_targets is not None:
                algorithm.move_targets(setup.state, 1, setup.learner.hyper.tensors)
    assert original.learner.num_updates == restored.learner.num_updates == 9
    after, restored_arrays = (
        original.learner.state_snapshot()(),
        restored.learner.state_snapshot()(),
    )
    assert after.keys() == restored_arrays.keys()
    for name, array in after.items():
        np.testing.assert_array_equal(array, restored_arrays[name], name)
    # Later updates leave the arrays of a checkpoint unchanged.
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, copies[name], name)
        assert not np.shares_memory(array, after[name])
