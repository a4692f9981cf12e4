"""Noise that begins with each episode: its definition, other processes, resumed rollouts."""

from functools import partial

import numpy as np
import pytest

from hotloop.policies import (
    ActingPolicy,
    OrnsteinUhlenbeckNoise,
    PinkNoise,
    PolicySnapshot,
    actor,
)
from hotloop.policies.heads import Deterministic
from hotloop.rollouts.noise_buffer import make_noise_buffer
from tests.policies.test_actors import make_actor
from tests.reference import exploration as reference
from tests.rollouts.inference.test_central import assert_close
from tests.rollouts.processes.pools import assert_same_fragments, begin, open_pool

WANDERS = "tests.toy_envs:Wanders"
KINDS = {
    "pink": (PinkNoise(std=0.3, num_steps=6, random_steps=4), reference.pink),
    "ornstein_uhlenbeck": (
        OrnsteinUhlenbeckNoise(std=0.3, random_steps=4),
        reference.ornstein_uhlenbeck,
    ),
}


def make_buffer(kind, starts, first_env=0):
    network = make_actor("deterministic")
    snapshot = PolicySnapshot(0, network.initial_parameters(0))
    policy = ActingPolicy(network, snapshot, exploration=KINDS[kind][0])
    return make_noise_buffer(policy, 7, first_env, starts)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_a_function_of_seed_environment_first_step_and_step(kind):
    """Episodes begin at steps 0, 7 and 10 in one environment, and at 0 and 150 in the other."""
    starts = np.zeros(2, np.int64)
    buffer = make_buffer(kind, starts, first_env=3)
    for step, noise in enumerate(buffer.steps(0, 160)):
        np.testing.assert_array_equal(noise[:, -1], float(step < 4))
        if step >= 4 and (step < 14 or step > 145):
            expected = [
                KINDS[kind][1](KINDS[kind][0], 7, 3 + env, int(starts[env]), step, 2)
                for env in range(2)
            ]
            np.testing.assert_allclose(noise[:, :-1], expected, rtol=1e-4, atol=1e-6)
        # The next step reads this.
        starts[1] = step + 1 if step in (6, 9) else starts[1]
        starts[0] = step + 1 if step == 149 else starts[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first_step", [5, 139, 140, 300])
def test_another_process_goes_on_with_the_same_numbers(kind, first_step):
    """It reads single environments, in any order, from the middle of their episodes."""
    starts = np.array([0, 2, 5])
    whole = list(make_buffer(kind, starts).steps(0, 310))
    other = make_buffer(kind, starts)
    for step in range(first_step, min(first_step + 10, 310)):
        for env in (2, 0, 1):
            row = other.row(step, slice(env, env + 1))
            np.testing.assert_array_equal(row, whole[step][env : env + 1])


def make_rollout(pool, kind):
    make = partial(actor, head=Deterministic(), hidden_sizes=(8,))
    return begin(pool, 10, make=make, exploration=KINDS[kind][0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("transport", "options", "compare"),
    [
        ("threads", {}, assert_same_fragments),
        ("processes", {"inference": "central"}, assert_close),
    ],
)
def test_transports_explore_the_same(kind, transport, options, compare):
    with (
        open_pool(WANDERS, 2, 1, transport="inline") as inline,
        open_pool(WANDERS, 2, 1, transport=transport, **options) as pool,
    ):
        expected, actual = make_rollout(inline, kind), make_rollout(pool, kind)
        num_episodes = 0
        for _ in range(4):
            compare(actual.collect(), expected.collect())
            num_episodes += len(expected.pop_episodes())
        assert num_episodes > 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transport", ["inline", "threads"])
def test_a_restored_rollout_continues_the_noise_of_its_episodes(kind, transport):
    with (
        open_pool(WANDERS, 2, 3, transport=transport) as first,
        open_pool(WANDERS, 2, 3, transport=transport) as second,
    ):
        whole, resumed = make_rollout(first, kind), make_rollout(second, kind)
        for _ in range(3):
            whole.collect()
        state = whole.state()
        # Some episodes run for more than a step.
        lengths = [length for group in state.groups for _, length in group.running]
        assert max(lengths) > 2
        assert resumed.restore(state.to_arrays(), state.position()) == []
        for _ in range(3):
            assert_same_fragments(resumed.collect(), whole.collect())


def test_each_episode_begins_with_new_noise():
    """The noise of an episode is that of its first step, in every environment."""
    exploration = PinkNoise(std=0.3, num_steps=32)
    with open_pool(WANDERS, 1, 2, transport="inline") as pool:
        make = partial(actor, head=Deterministic(), hidden_sizes=())
        rollout = begin(pool, 60, make=make, exploration=exploration)
        (fragment,) = rollout.collect()
    starts = np.zeros(2, int)
    ends = fragment.terminated | fragment.truncated
    assert ends.sum() > 5
    for t in range(60):
        for env in range(2):
            noise, _ = exploration.draw_chunk(
                5, env=env, first_step=starts[env], size=1, state=None
            )
            output = rollout.policy.head(fragment.obs[t, env : env + 1])[0]
            expected = np.clip(np.tanh(output) + noise[t - starts[env]], -1.0, 1.0)
            np.testing.assert_allclose(fragment.action[t, env], expected, rtol=1e-4, atol=1e-5)
        starts[ends[t]] = t + 1
