"""The hidden state of recurrent policies in rollouts."""

import random
import time

import gymnasium
import numpy as np
import pytest

from hotloop.envs import EnvSpec, make_vec
from hotloop.policies import ActingPolicy, EpsilonGreedy, PolicySnapshot, actor, actor_critic
from hotloop.policies.heads import Greedy
from hotloop.rollouts import InlineRollout, to_sequences
from hotloop.rollouts.evaluation import evaluate
from tests import toy_envs
from tests.rollouts.processes.pools import assert_adds_up, begin, kill, open_pool

REPLACED = "ignore:.*similar failures are only counted:RuntimeWarning"


def next_step_cartpoles():
    """Make a vector environment that spends a step on each reset."""
    return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")


def make_network(envs, kind="lstm"):
    return actor_critic(envs, hidden_sizes=(6,), memory=f"{kind}:4")


class MemoryReplay:
    """Recomputes hidden states, values and next values, one environment and step at a time."""

    def __init__(self, policy, num_envs):
        self.policy = policy
        self.memories = [policy.new_memory(1) for _ in range(num_envs)]
        self.num_resets = 0

    def check(self, fragment):
        policy = self.policy
        for i in range(fragment.num_envs):
            memory = self.memories[fragment.first_env + i]
            if i in fragment.restarted_envs:
                memory[:] = 0.0
            for t in range(fragment.num_steps):
                close = {"rtol": 1e-4, "atol": 1e-5, "err_msg": f"{t}, {i}"}
                np.testing.assert_allclose(fragment.memory[t, i], memory[0], **close)
                value = policy.value(fragment.obs[t, i][None], memory)
                np.testing.assert_allclose(fragment.value[t, i], value[0], **close)
                policy.head(fragment.obs[t, i][None], None, memory)
                if fragment.valid[t, i]:
                    following = policy.value(fragment.next_obs[t, i][None], memory)[0]
                    expected = 0.0 if fragment.terminated[t, i] else following
                    np.testing.assert_allclose(fragment.next_value[t, i], expected, **close)
                if (fragment.terminated | fragment.truncated | ~fragment.valid)[t, i]:
                    memory[:] = 0.0
                    self.num_resets += 1


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    "env",
    [toy_envs.ConstantReward, "CartPole-v1", next_step_cartpoles],
    ids=["time limit", "cartpole", "next step"],
)
def test_the_hidden_state_is_carried_over_steps_and_reset_at_episode_starts(kind, env):
    """Also across fragments. A truncated episode's last value is from before the reset."""
    envs = make_vec(EnvSpec(env, seed=0), 3)
    network = make_network(envs, kind)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(0)))
    rollout = InlineRollout(envs, policy, num_steps=13, seed=0)
    replay = MemoryReplay(ActingPolicy(network, policy.snapshot), 3)
    for _ in range(6):
        (fragment,) = rollout.collect()
        replay.check(fragment)
    assert replay.num_resets > 4
    assert fragment.memory.any()
    rollout.close()


def test_random_steps_update_the_hidden_state():
    envs = make_vec(EnvSpec("CartPole-v1", seed=0), 1)
    network = actor(envs, Greedy(), hidden_sizes=(6,), memory="gru:4")
    snapshot = PolicySnapshot(0, network.initial_parameters(0))
    exploration = EpsilonGreedy(start=1.0, end=1.0)
    policy = ActingPolicy(network, snapshot, exploration=exploration)
    rollout = InlineRollout(envs, policy, num_steps=8, seed=0)
    (fragment,) = rollout.collect()
    memory = policy.new_memory(1)
    for t in range(8):
        np.testing.assert_allclose(fragment.memory[t], memory, rtol=1e-5, atol=1e-6)
        policy.head(fragment.obs[t], None, memory)
    assert memory.any()
    rollout.close()


@pytest.mark.usefixtures("mark")
@pytest.mark.filterwarnings(REPLACED)
@pytest.mark.parametrize("schedule", ["barrier", "variable", "async"])
def test_hidden_states_are_right_after_workers_are_killed(schedule):
    rng = random.Random(0)
    with open_pool("CartPole-v1", 2, 2, max_failures=100) as pool:
        rollout = begin(pool, 8, schedule=schedule, make=make_network)
        replay = MemoryReplay(rollout.policy, 4)
        for k in range(30):
            for fragment in rollout.collect():
                replay.check(fragment)
            assert_adds_up(rollout.accounting(with_workers=False))
            if k % 5 == 2:
                time.sleep(rng.random() * 0.003)
                kill(pool.workers[k % 2])
        assert sum(worker.restarts for worker in rollout.accounting().workers) >= 5


def test_evaluation_keeps_the_hidden_state():
    envs = make_vec(EnvSpec("CartPole-v1", seed=0, stream="evaluation"), 2)
    network = make_network(envs)
    snapshot = PolicySnapshot(0, network.initial_parameters(3))
    episodes = evaluate(envs, ActingPolicy(network, snapshot), num_episodes=6)
    policy, lengths = ActingPolicy(network, snapshot), []
    single = make_vec(EnvSpec("CartPole-v1", seed=0, stream="evaluation"), 1)
    obs, memory = single.reset(first_episode=0), policy.new_memory(1)
    while len(lengths) < 3:
        obs = single.step(policy.greedy(obs, memory)).obs
        for episode in single.pop_episodes():
            lengths.append(episode.length)
            memory[:] = 0.0
    assert [episode.length for episode in episodes if episode.env == 0] == lengths
    envs.close()
    single.close()


def test_sequences_of_fragments():
    """Split four steps of two environments into sequences of two."""
    envs = make_vec(EnvSpec("CartPole-v1", seed=0), 2)
    network = make_network(envs)
    policy = ActingPolicy(network, PolicySnapshot(0, network.initial_parameters(0)))
    rollout = InlineRollout(envs, policy, num_steps=4, seed=0)
    (fragment,) = rollout.collect()
    fragment.terminated[:] = [[0, 0], [0, 1], [1, 0], [0, 0]]
    fragment.valid[:] = [[1, 1], [1, 1], [1, 0], [1, 1]]
    step = np.array([[0, 10], [1, 11], [2, 12], [3, 13]])
    sequences = to_sequences([fragment], [{"step": step}], 2)
    np.testing.assert_array_equal(sequences["step"], [[0, 10, 2, 12], [1, 11, 3, 13]])
    # The second sequence of environment 1 begins an episode: its hidden state is already 0.
    np.testing.assert_array_equal(sequences["begins"], [[0, 0, 0, 1], [0, 0, 1, 1]])
    np.testing.assert_array_equal(sequences["weight"] * 7 / 8, [[1, 1, 1, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(sequences["memory"], np.concatenate(fragment.memory[::2]))
    rollout.close()
