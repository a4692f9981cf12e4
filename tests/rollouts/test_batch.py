"""`to_batch` on fragments of different lengths."""

import numpy as np
import pytest

from hotloop.rollouts import environment_weights, to_batch
from hotloop.types import Fragment


def make_fragment(num_steps, *, first, num_envs=1):
    """Make a fragment whose actions number its rows, from `first` on."""
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


def batch_actions(fragments):
    fields = [{"action": fragment.action} for fragment in fragments]
    return to_batch(fragments, fields, np.random.default_rng(0))["action"]


def test_rows_follow_each_other_fragment_by_fragment():
    fragments = [
        make_fragment(3, first=0),
        make_fragment(1, first=100),
        make_fragment(2, first=200),
    ]
    assert batch_actions(fragments).tolist() == [0, 1, 2, 100, 200, 201]


def test_reset_rows_are_replaced_by_rows_of_the_same_worker():
    fast, slow = make_fragment(100, first=0), make_fragment(2, first=1000)
    fast.valid[::2] = False
    slow.valid[0] = False
    actions = batch_actions([fast, slow])
    assert actions[100:].tolist() == [1001, 1001]
    assert (actions[:100] < 100).all()
    assert (actions[:100] % 2 == 1).all()
    # Each worker keeps its share of the weights.
    weights = environment_weights([fast, slow])
    assert weights[:100].sum() == pytest.approx(weights[100:].sum())


def test_a_worker_without_transitions_is_replaced_by_rows_of_others():
    fast, slow = make_fragment(3, first=0), make_fragment(1, first=1000)
    slow.valid[...] = False
    actions = batch_actions([fast, slow])
    assert actions[:3].tolist() == [0, 1, 2]
    assert actions[3] in (0, 1, 2)
