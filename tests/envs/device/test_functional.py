"""Resets of device environments: successors, terminations, truncations, state and seeds."""

from __future__ import annotations

import pytest
import torch

from tests.envs.device.toys import counting

CPU = torch.device("cpu")
ACTION = torch.zeros(2, 1)


def test_next_obs_is_the_successor_and_obs_starts_the_next_episode():
    envs = counting(2, CPU, length=3)
    first = envs.reset(1)
    next_counts, counts = [], []
    for _ in range(4):
        step = envs.step(ACTION)
        next_counts.append(step.next_obs[:, 0].tolist())
        counts.append(step.obs[:, 0].tolist())
        if len(next_counts) == 3:
            assert step.terminated.all()
            assert torch.equal(step.next_obs[:, 1], first[:, 1])  # still the old episode
            assert not torch.equal(step.obs[:, 1], first[:, 1])
            assert not step.truncated.any()
        else:
            assert torch.equal(step.obs, step.next_obs)
    assert next_counts == [[1, 1], [2, 2], [3, 3], [1, 1]]
    assert counts == [[1, 1], [2, 2], [0, 0], [1, 1]]


def test_truncation_is_not_termination():
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


def test_environments_reset_independently():
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


def test_seed_determines_episodes():
    def first_observations(seed):
        envs = counting(2, CPU, length=2)
        return torch.stack([envs.reset(seed), *(envs.step(ACTION).obs for _ in range(6))])[::2]

    assert torch.equal(first_observations(3), first_observations(3))
    assert not torch.equal(first_observations(3), first_observations(4))
    assert len(first_observations(3)[..., 1].unique()) == 8  # every episode starts differently


def test_loaded_state_continues_bitwise():
    envs, restored = counting(2, CPU), counting(2, CPU)
    envs.reset(5)
    envs.step(ACTION)
    restored.load(envs.state())
    for _ in range(5):
        for array, restored_array in zip(envs.step(ACTION), restored.step(ACTION), strict=True):
            assert torch.equal(array, restored_array)


@pytest.mark.parametrize("name", ["count", "length", "clock"])
def test_state_is_a_copy(name):
    envs = counting(2, CPU)
    envs.reset(5)
    state = envs.state()
    envs.step(ACTION)
    assert not torch.equal(state[name], envs.state()[name])


def test_functions_do_not_modify_their_arguments():
    envs = counting(2, CPU, length=1)
    key, clock = envs.state()["key"], torch.tensor(0)
    state, _ = envs.begin(envs.draw_uniform(key, clock, 1)[0])
    before = {name: x.clone() for name, x in state.items()}
    envs.advance(state, ACTION, envs.draw_uniform(key, clock + 1, 1)[0])
    assert all(torch.equal(state[name], before[name]) for name in before)
