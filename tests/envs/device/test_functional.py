"""Resets made alike: true successors, terminations and truncations apart, state and seeds."""

from __future__ import annotations

import pytest
import torch

from tests.envs.device.toys import counting

CPU = torch.device("cpu")
ACTION = torch.zeros(2, 1)


def test_the_true_successor_and_the_next_first_observation():
    envs = counting(2, CPU, length=3)
    first = envs.reset(1)
    counts, following = [], []
    for _ in range(4):
        step = envs.step(ACTION)
        counts.append(step.next_obs[:, 0].tolist())
        following.append(step.obs[:, 0].tolist())
        if len(counts) == 3:
            assert step.terminated.all()
            assert torch.equal(step.next_obs[:, 1], first[:, 1])  # still of the old episode
            assert not torch.equal(step.obs[:, 1], first[:, 1])
            assert not step.truncated.any()
        else:
            assert torch.equal(step.obs, step.next_obs)
    assert counts == [[1, 1], [2, 2], [3, 3], [1, 1]]
    assert following == [[1, 1], [2, 2], [0, 0], [1, 1]]


def test_truncation_is_no_termination():
    envs = counting(2, CPU, length=3, max_episode_steps=2)
    envs.reset(1)
    envs.step(ACTION)
    step = envs.step(ACTION)
    assert step.truncated.all()
    assert not step.terminated.any()
    assert step.obs[:, 0].tolist() == [0, 0]
    both = counting(2, CPU, length=2, max_episode_steps=2)
    both.reset(1)
    both.step(ACTION)
    step = both.step(ACTION)
    assert (step.truncated & step.terminated).all()


def test_one_environment_is_reset_alone():
    envs = counting(2, CPU, length=3)
    envs.reset(1)
    state = envs.state()
    state["count"][1] = 2
    envs.load(state)
    step = envs.step(ACTION)
    assert step.terminated.tolist() == [False, True]
    assert step.obs[:, 0].tolist() == [1, 0]
    assert step.next_obs[:, 0].tolist() == [1, 3]
    assert step.obs[0, 1] == step.next_obs[0, 1]


def test_actions_are_clipped_to_their_bounds():
    envs = counting(2, CPU)
    envs.reset(1)
    assert envs.step(torch.tensor([[3.0], [-0.5]])).reward.tolist() == [1.0, -0.5]


def test_a_seed_gives_the_same_episodes_and_another_one_others():
    def firsts(seed):
        envs = counting(2, CPU, length=2)
        return torch.stack([envs.reset(seed), *(envs.step(ACTION).obs for _ in range(6))])[::2]

    assert torch.equal(firsts(3), firsts(3))
    assert not torch.equal(firsts(3), firsts(4))
    assert len(firsts(3)[..., 1].unique()) == 8  # no two episodes begin alike


def test_going_on_from_a_state_is_bitwise_the_same():
    envs, others = counting(2, CPU), counting(2, CPU)
    envs.reset(5)
    envs.step(ACTION)
    others.load(envs.state())
    for _ in range(5):
        for one, other in zip(envs.step(ACTION), others.step(ACTION), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["count", "length", "clock"])
def test_a_state_is_a_copy(name):
    envs = counting(2, CPU)
    envs.reset(5)
    state = envs.state()
    envs.step(ACTION)
    assert not torch.equal(state[name], envs.state()[name])


def test_functions_change_nothing_that_they_are_given():
    envs = counting(2, CPU, length=1)
    key, clock = envs.state()["key"], torch.tensor(0)
    state, _ = envs.begun(envs.drawn(key, clock, 1)[0])
    before = {name: x.clone() for name, x in state.items()}
    envs.advanced(state, ACTION, envs.drawn(key, clock + 1, 1)[0])
    assert all(torch.equal(state[name], before[name]) for name in before)
