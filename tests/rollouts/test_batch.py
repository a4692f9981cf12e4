"""Fragments of uneven length as one batch."""

import numpy as np
import pytest

from hotloop.rollouts import environment_weights, to_batch
from hotloop.types import Fragment


def fragment_of(num_steps, *, first, num_envs=1):
    """Actions are numbers from `first` on, so that a row is known again."""
    fragment = Fragment.allocate(
        num_steps,
        num_envs,
        obs_shape=(1,),
        obs_dtype="float32",
        action_shape=(),
        action_dtype="int64",
    )
    fragment.action[...] = first + np.arange(num_steps * num_envs).reshape(num_steps, num_envs)
    return fragment


def flat_of(fragments):
    fields = [{"action": one.action} for one in fragments]
    return to_batch(fragments, fields, np.random.default_rng(0))["action"]


def test_rows_follow_each_other_fragment_by_fragment():
    fragments = [fragment_of(3, first=0), fragment_of(1, first=100), fragment_of(2, first=200)]
    assert flat_of(fragments).tolist() == [0, 1, 2, 100, 200, 201]


def test_what_stands_in_for_a_reset_is_of_the_same_worker():
    fast, slow = fragment_of(100, first=0), fragment_of(2, first=1000)
    fast.valid[::2] = False
    slow.valid[0] = False
    actions = flat_of([fast, slow])
    assert actions[100:].tolist() == [1001, 1001]
    assert (actions[:100] < 100).all()
    assert (actions[:100] % 2 == 1).all()
    # So each worker's share of the weights stays what it is.
    weights = environment_weights([fast, slow])
    assert weights[:100].sum() == pytest.approx(weights[100:].sum())


def test_a_worker_without_a_transition_is_stood_in_for_by_the_others():
    fast, slow = fragment_of(3, first=0), fragment_of(1, first=1000)
    slow.valid[...] = False
    actions = flat_of([fast, slow])
    assert actions[:3].tolist() == [0, 1, 2]
    assert actions[3] in (0, 1, 2)
