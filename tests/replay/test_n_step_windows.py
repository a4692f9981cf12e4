"""N-step returns and weights from returns, compared with hand-computed values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotloop.replay import Batch, Prioritized, Proportional, ReplayBuffer

SCALARS: dict[str, Any] = {
    "reward": ((), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
}
FIELDS: dict[str, Any] = {"obs": ((1,), np.float32), "next_obs": ((1,), np.float32), **SCALARS}


def buffer_of(
    n_step: int, *, gamma: float = 0.5, capacity: int = 16, **options: Any
) -> ReplayBuffer:
    """Return a buffer with γ = 1/2, for which every literal is exact."""
    return ReplayBuffer(capacity, FIELDS, n_step=n_step, gamma=gamma, seed=0, **options)


def walk(buffer: ReplayBuffer, rewards: list[float], *, start: float = 0.0, **options: Any) -> None:
    """Add steps from observation `start` on, one unit each. `end` is the flag of the last one."""
    end = options.pop("end", None)
    for i, reward in enumerate(rewards):
        ends = end if i == len(rewards) - 1 else None
        buffer.add(
            obs=np.array([start + i], np.float32),
            next_obs=np.array([start + i + 1], np.float32),
            reward=reward,
            terminated=ends == "terminated",
            truncated=ends == "truncated",
            **options,
        )


def everything(buffer: ReplayBuffer) -> Batch:
    return buffer.get(np.arange(buffer.num_added - len(buffer), buffer.num_added))


def check(buffer: ReplayBuffer, **expected: list[Any]) -> None:
    """Check each field of all live entries exactly. Observations are compared by their value."""
    batch = everything(buffer)
    for name, values in expected.items():
        actual = batch[name]
        np.testing.assert_array_equal(actual.reshape(len(actual)), values, err_msg=name)


# Windows.


def test_entries_are_added_when_their_window_is_complete():
    buffer = buffer_of(3)
    lengths = []
    for step in range(5):
        walk(buffer, [1.0], start=step)
        lengths.append(len(buffer))
    assert lengths == [0, 0, 1, 2, 3]


def test_windows_within_an_episode():
    buffer = buffer_of(3)
    walk(buffer, [1.0, 2.0, 4.0, 8.0])
    # 1 + 2/2 + 4/4 = 3;  2 + 4/2 + 8/4 = 6.  γ³ = 1/8.
    check(
        buffer,
        obs=[0, 1],
        reward=[3.0, 6.0],
        next_obs=[3, 4],
        discount=[0.125, 0.125],
        terminated=[False, False],
        truncated=[False, False],
    )
    batch = everything(buffer)
    assert batch.reward.dtype == batch.discount.dtype == np.float32


def test_termination_closes_all_windows():
    buffer = buffer_of(3)
    walk(buffer, [1.0, 2.0, 4.0, 8.0], end="terminated")
    # 3 as before;  2 + 4/2 + 8/4 = 6;  4 + 8/2 = 8;  8.  After the termination the discount is 0.
    check(
        buffer,
        obs=[0, 1, 2, 3],
        reward=[3.0, 6.0, 8.0, 8.0],
        next_obs=[3, 4, 4, 4],
        discount=[0.125, 0.0, 0.0, 0.0],
        terminated=[False, True, True, True],
        truncated=[False, False, False, False],
    )


def test_truncation_keeps_the_discount():
    buffer = buffer_of(3)
    walk(buffer, [1.0, 2.0, 4.0, 8.0], end="truncated")
    # Rewards as with a termination. Windows have 3, 3, 2 and 1 steps: γⁿ = 1/8, 1/8, 1/4, 1/2.
    check(
        buffer,
        reward=[3.0, 6.0, 8.0, 8.0],
        next_obs=[3, 4, 4, 4],
        discount=[0.125, 0.125, 0.25, 0.5],
        terminated=[False, False, False, False],
        truncated=[False, True, True, True],
    )


@pytest.mark.parametrize(("end", "discounts"), [("terminated", [0, 0]), ("truncated", [0.25, 0.5])])
def test_episode_shorter_than_a_window(end, discounts):
    buffer = buffer_of(5)
    walk(buffer, [3.0, 4.0], end=end)
    # 3 + 4/2 = 5;  4.
    check(buffer, obs=[0, 1], reward=[5.0, 4.0], next_obs=[2, 2], discount=discounts)
    walk(buffer, [1.0] * 5, start=10.0)
    # 1 + 1/2 + 1/4 + 1/8 + 1/16; γ⁵ = 1/32. The earlier episode does not contribute.
    check(
        buffer,
        obs=[0, 1, 10],
        reward=[5.0, 4.0, 1.9375],
        next_obs=[2, 2, 15],
        discount=[*discounts, 0.03125],
    )


def test_environments_have_separate_windows():
    buffer = buffer_of(2, num_envs=2)
    # Environment 0 sees 0, 1, 2 and earns 1, 2, 4; environment 1 sees 100, 101, 102 and earns 10,
    # 20, 40.
    for time, (reward, end) in enumerate([(1, None), (2, "terminated"), (4, None)]):
        walk(buffer, [reward], start=time, env=0, end=end)
        walk(buffer, [10 * reward], start=100 + time, env=1)
    # In the order of completion. Time 1: env 0 ended: 1 + 2/2 = 2, and 2; env 1: 10 + 20/2 = 20.
    # Time 2: env 0 waits; env 1: 20 + 40/2 = 40.
    check(
        buffer,
        obs=[0, 1, 100, 101],
        reward=[2, 2, 20, 40],
        next_obs=[2, 2, 102, 103],
        discount=[0, 0, 0.25, 0.25],
    )


def test_cut_closes_incomplete_windows():
    buffer = buffer_of(3)
    walk(buffer, [1.0, 2.0])
    assert len(buffer) == 0
    buffer.cut()
    walk(buffer, [4.0, 8.0], start=50.0, end="truncated")
    # 1 + 2/2 = 2, over two steps;  2, over one;  then another episode: 4 + 8/2 = 8;  8.
    check(
        buffer,
        obs=[0, 1, 50, 51],
        reward=[2, 2, 8, 8],
        next_obs=[2, 2, 52, 52],
        discount=[0.25, 0.5, 0.25, 0.5],
        terminated=[False] * 4,
        truncated=[False, False, True, True],
    )


def test_returns_are_summed_from_last_to_first():
    rewards = np.float32([0.1, 1e8, -1e8, 0.3])
    buffer = buffer_of(4, gamma=0.99)
    walk(buffer, rewards.tolist())
    total = 0.0
    for reward in rewards[::-1]:
        total = float(reward) + 0.99 * total
    check(buffer, reward=[np.float32(total)])


def test_given_priority_is_kept_until_the_window_is_complete():
    buffer = buffer_of(2, sampler=Prioritized(alpha=1.0, epsilon=0.5))
    walk(buffer, [1.0], weight=7.0)
    walk(buffer, [1.0], start=1, weight=2.0)
    walk(buffer, [1.0], start=2, end="terminated")  # the greatest priority in the buffer: 7.5
    check(buffer, weight=[7.5, 2.5, 7.5])


# Weights from returns.


def make_weighted_buffer(weight_from: str, **options: Any) -> ReplayBuffer:
    options = {"capacity": 16, "running_weight": 0.0, "gamma": 0.5, "sampler": Proportional()} | (
        options
    )
    n_step = options.get("n_step", 1)
    fields = FIELDS if n_step > 1 else SCALARS
    return ReplayBuffer(fields=fields, weight_from=weight_from, seed=0, **options)


def add(buffer: ReplayBuffer, rewards: list[float], *, end: str | None = None, env: int = 0):
    for place, reward in enumerate(rewards):
        ends = end if place == len(rewards) - 1 else None
        buffer.add(
            reward=reward, terminated=ends == "terminated", truncated=ends == "truncated", env=env
        )


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_weights_of_ended_episodes(end):
    expected = {
        "episode_return": [7.0, 7.0, 7.0],  # 1 + 2 + 4
        "return_so_far": [1.0, 3.0, 7.0],
        "return_to_go": [3.0, 4.0, 4.0],  # 1 + 4/2;  2 + 4/2;  4
    }
    for weight_from, weights in expected.items():
        buffer = make_weighted_buffer(weight_from)
        add(buffer, [1.0, 2.0, 4.0], end=end)
        check(buffer, weight=weights)


def test_weights_of_running_episodes():
    expected = {
        "episode_return": [3.0, 3.0, 2.5],
        "return_so_far": [1.0, 3.0, 8.0],  # known at once, without `running_weight`
        "return_to_go": [2.0, 2.0, 2.5],
    }
    for weight_from, weights in expected.items():
        buffer = make_weighted_buffer(weight_from, running_weight=2.5)
        add(buffer, [1.0, 2.0], end="terminated")
        add(buffer, [8.0])
        check(buffer, weight=weights)


def test_mean_weight_excludes_the_current_call():
    buffer = make_weighted_buffer("episode_return", running_weight="mean")
    add(buffer, [4.0], end="terminated")
    ends = np.array([True, False, False])
    buffer.extend(reward=[10.0, 1.0, 1.0], terminated=ends, truncated=np.zeros(3, np.bool_))
    check(buffer, weight=[4.0, 10.0, 4.0, 4.0])  # not (4 + 10)/2


def test_mean_weight_excludes_overwritten_entries():
    buffer = make_weighted_buffer("episode_return", running_weight="mean", capacity=4)
    for _ in range(4):
        add(buffer, [-1e18], end="terminated")
    buffer.sample(4)
    for _ in range(4):
        add(buffer, [3.0], end="terminated")
    add(buffer, [0.0])
    check(buffer, weight=[3.0, 3.0, 3.0, 3.0])


def test_weights_of_a_long_ended_episode():
    """The episode has far more entries than are updated at once."""
    length = 12_000
    for num_envs in (1, 2):
        buffer = make_weighted_buffer("return_to_go", capacity=20_000, num_envs=num_envs, gamma=1.0)
        ends = np.arange(1, length + 1) == length
        env = np.full(length, num_envs - 1)
        columns = {"reward": np.ones(length), "terminated": ends, "truncated": ends}
        buffer.extend(env=env, **columns)
        np.testing.assert_array_equal(everything(buffer).weight, np.arange(length, 0, -1))
        batch = buffer.sample(64)  # the tree is up to date too: Σ k = 72 006 000, and c = 0
        np.testing.assert_allclose(batch.probability, batch.weight / 72_006_000, rtol=1e-12)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("weight_from", ["episode_return", "return_so_far", "return_to_go"])
def test_weights_of_windows_come_from_single_steps(weight_from, num_envs):
    buffer = make_weighted_buffer(weight_from, n_step=2, running_weight=-1.0, num_envs=num_envs)
    walk(buffer, [1.0, 2.0, 4.0], env=num_envs - 1, end="terminated")
    # Windows: 1 + 2/2 = 2;  2 + 4/2 = 4;  4. The weights come from 1, 2 and 4.
    check(buffer, reward=[2.0, 4.0, 4.0])
    expected = {"episode_return": [7, 7, 7], "return_so_far": [1, 3, 7], "return_to_go": [3, 4, 4]}
    check(buffer, weight=expected[weight_from])


def test_updated_weights_last_until_the_episode_ends():
    buffer = make_weighted_buffer("episode_return")
    add(buffer, [1.0], end="terminated")
    add(buffer, [2.0])
    assert buffer.update_weights([0, 1], [50.0, 60.0]) == 2
    check(buffer, weight=[50, 60])
    add(buffer, [3.0], end="terminated")
    check(buffer, weight=[50, 5, 5])
