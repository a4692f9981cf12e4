from functools import partial

import numpy as np
import pytest

from hotloop import gae
from hotloop.base import memory
from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError, EnvironmentFailure, NonFiniteError
from hotloop.policies import (
    ActingPolicy,
    EpsilonGreedy,
    Exploration,
    GaussianNoise,
    PolicySnapshot,
    actor,
    actor_critic,
)
from hotloop.policies.heads import Deterministic, Greedy, SquashedGaussian
from hotloop.rollouts import InlineRollout, RolloutState, to_batch
from hotloop.rollouts.collector import Slot
from hotloop.rollouts.evaluation import evaluate
from hotloop.rollouts.noise_buffer import NOISE_STEPS
from hotloop.rollouts.state import ActionHistory, GroupState
from hotloop.types import PER_STEP, Fragment
from tests import toy_envs


def make_rollout(env, num_envs=3, num_steps=25, seed=0, value=None, **env_kwargs):
    envs = make_vec(EnvSpec(env, env_kwargs, seed=seed), num_envs)
    network = actor_critic(envs, hidden_sizes=(8,))
    params = network.initial_parameters(seed)
    if value is not None:  # a critic that always returns `value`
        params["value.1.weight"][:] = 0.0
        params["value.1.bias"][:] = value
    policy = ActingPolicy(network, PolicySnapshot(version=0, params=params))
    return InlineRollout(envs, policy, num_steps=num_steps, seed=seed)


def compute_advantages(fragment):
    return gae(
        fragment.reward,
        fragment.value,
        fragment.next_value,
        fragment.terminated,
        fragment.truncated,
        gamma=0.99,
        gae_lambda=0.95,
    )


def test_an_exact_critic_gives_no_advantage_across_truncations():
    # V = 1 / (1 − 0.99) = 100 is exact if truncation is no end. Fragments cut episodes too.
    rollout = make_rollout(toy_envs.ConstantReward, value=100.0)
    for _ in range(3):
        (fragment,) = rollout.collect()
        assert fragment.truncated.any()
        np.testing.assert_allclose(compute_advantages(fragment), 0.0, atol=1e-3)
    rollout.close()


def test_termination_removes_the_bootstrap():
    rollout = make_rollout(toy_envs.ConstantReward, value=100.0, ending="terminated")
    (fragment,) = rollout.collect()
    advantages = compute_advantages(fragment)
    assert fragment.terminated[9].all()
    np.testing.assert_allclose(advantages[fragment.terminated], -99.0, rtol=1e-5)
    assert (fragment.next_value[fragment.terminated] == 0).all()
    rollout.close()


def test_fragments_join_without_a_seam():
    whole = make_rollout("CartPole-v1", num_steps=90)
    parts = make_rollout("CartPole-v1", num_steps=30)
    (long,) = whole.collect()
    for k in range(3):
        (short,) = parts.collect()
        window = slice(30 * k, 30 * (k + 1))
        for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(long, name)[window], getattr(short, name))
        # Values of a batch of another size differ in their last bits.
        for name in ("value", "next_value", "log_prob"):
            np.testing.assert_allclose(
                getattr(long, name)[window], getattr(short, name), rtol=1e-5, atol=1e-6
            )
    assert long.terminated.any()
    np.testing.assert_array_equal(long.last_obs, short.last_obs)
    assert len(whole.pop_episodes()) == len(parts.pop_episodes()) > 0


def test_next_obs_is_the_true_successor():
    rollout = make_rollout(toy_envs.ConstantReward)
    (fragment,) = rollout.collect()
    # The observation is the step's number over the length: 0 only after a reset.
    assert (fragment.next_obs[fragment.truncated] == 1.0).all()
    following = np.concatenate([fragment.obs[1:], fragment.last_obs[None]])
    assert (following[fragment.truncated] == 0.0).all()
    ongoing = ~fragment.truncated
    np.testing.assert_array_equal(following[ongoing], fragment.next_obs[ongoing])
    # A truncated step bootstraps from the value of its true successor.
    want = rollout.policy.value(fragment.next_obs[fragment.truncated])
    np.testing.assert_allclose(fragment.next_value[fragment.truncated], want, rtol=1e-6)


def test_nan_is_reported_before_the_error_it_causes():
    class NanThenRaise(toy_envs.ReachTheTarget):
        count = 0

        def step(self, action):
            if not np.isfinite(action).all():
                raise ValueError("bad action")
            obs, reward, _, _, info = super().step(action)
            self.count += 1
            return (obs * np.nan if self.count == 4 else obs), reward, False, False, info

    rollout = make_rollout(NanThenRaise)
    with pytest.raises(EnvironmentFailure, match=r"step 3 .*next_obs\[0\]` must be finite"):
        rollout.collect()


def test_evaluation_does_not_wait_for_finished_environments():
    remaining = [10**9, 3]
    envs = make_vec(lambda: toy_envs.ConstantReward(remaining.pop()), 2)
    policy = make_rollout(toy_envs.ConstantReward).policy
    (episode,) = evaluate(envs, policy, num_episodes=1, max_steps=50)
    assert episode[:2] == (0, 0)
    assert episode.length == 3

    class EndsOnce(toy_envs.ConstantReward):
        def reset(self, **kwargs):
            self.length = 3 if not hasattr(self, "count") else 10**9
            return super().reset(**kwargs)

    factories = [EndsOnce, partial(toy_envs.ConstantReward, 200)]
    envs = make_vec(lambda: factories.pop()(), 2)
    episodes = evaluate(envs, policy, num_episodes=3, max_steps=250)
    assert [episode.length for episode in episodes] == [200, 200, 3]


def test_rows_that_are_no_transitions_are_left_out():
    fragment = Fragment.allocate(
        4, 2, obs_shape=(1,), obs_dtype="float32", action_shape=(), action_dtype="int64"
    )
    fragment.action[...] = np.arange(8).reshape(4, 2)
    advantages = np.arange(8, dtype=np.float32).reshape(4, 2)
    fields = {
        "action": fragment.action,
        "advantages": advantages,
        "returns": advantages + fragment.value,
    }
    rng = np.random.default_rng(0)
    assert to_batch([fragment], [fields], rng)["action"].tolist() == list(range(8))
    fragment.valid[1, 0] = fragment.valid[3, 1] = False  # rows 2 and 7
    flat = to_batch([fragment], [fields], rng)
    actions = flat["action"].tolist()
    assert len(actions) == 8
    assert set(actions) == {0, 1, 3, 4, 5, 6}
    assert actions[:2] == [0, 1]
    np.testing.assert_array_equal(flat["advantages"], actions)
    np.testing.assert_array_equal(flat["returns"], actions)
    fragment.valid[...] = False
    with pytest.raises(ConfigError, match="raise `num_steps`"):
        to_batch([fragment], [fields], rng)


class RandomLengths:
    """Environments with random episode lengths and numbered actions."""

    def __init__(self, num_envs, longest, seed):
        self.generator = np.random.default_rng(seed)
        self.longest = longest
        self.running = [(0, 0)] * num_envs
        self.ends = self.generator.integers(1, longest + 1, num_envs)
        self.past = [[] for _ in range(num_envs)]  # of each environment's running episode
        self.step = 0

    def advance(self, num_steps):
        """Return the actions of a fragment: the numbers of the step and of the environment."""
        actions = np.empty((num_steps, len(self.running), 2), np.float32)
        for t in range(num_steps):
            for i, (episode, length) in enumerate(self.running):
                actions[t, i] = self.step, i
                self.past[i].append([self.step, i])
                self.running[i] = episode, length + 1
                if length + 1 == self.ends[i]:
                    self.running[i] = episode + 1, 0
                    self.past[i] = []
                    self.ends[i] = self.generator.integers(1, self.longest + 1)
            self.step += 1
        return actions


def running_actions(parts, running):
    """Return the actions of running episodes, as `RolloutState.to_arrays` stores them."""
    nothing = np.empty(0)
    group = GroupState(vector_steps=0, running=running, obs=nothing, memory=nothing, history=parts)
    state = RolloutState(groups=[group])
    return [state.to_arrays()[f"actions.{i}"].tolist() for i in range(len(running))]


@pytest.mark.parametrize(
    ("num_steps", "longest", "num_fragments"), [(1, 700, 3000), (1, 3, 1000), (100, 900, 60)]
)
def test_the_history_reaches_back_to_every_running_episodes_start(
    num_steps, longest, num_fragments
):
    envs = RandomLengths(3, longest, seed=0)
    history = ActionHistory(num_steps, np.empty((num_steps, 3, 2), np.float32))
    assert history.chunks() == ()
    snapshots = []
    for k in range(num_fragments):
        history.add(envs.advance(num_steps), envs.running)
        if k % 37 == 0 or num_steps > 1:
            parts, past = history.chunks(), [list(actions) for actions in envs.past]
            assert running_actions(parts, envs.running) == past
            snapshots.append((parts, list(envs.running), past))
            # At most the longest episode, and a chunk on either side.
            assert sum(map(len, parts)) <= longest + 2 * max(num_steps, NOISE_STEPS)
    for parts, running, past in snapshots:  # later rows must not change them
        assert running_actions(parts, running) == past
    assert len(snapshots) > 20


def test_a_restored_history_continues_running_episodes():
    envs = RandomLengths(2, 500, seed=1)
    whole = ActionHistory(1, np.empty((1, 2, 2), np.float32))
    for _ in range(330):
        whole.add(envs.advance(1), envs.running)
    longest = max(length for _, length in envs.running)
    assert longest > 50
    past = np.zeros((longest, 2, 2), np.float32)
    for i, actions in enumerate(running_actions(whole.chunks(), envs.running)):
        if actions:
            past[-len(actions) :, i] = actions
    resumed = ActionHistory(1, np.empty((1, 2, 2), np.float32))
    resumed.begin(past)
    for _ in range(700):
        actions = envs.advance(1)
        for history in (whole, resumed):
            history.add(actions, envs.running)
            assert running_actions(history.chunks(), envs.running) == envs.past


ACTORS = {
    "sac": (toy_envs.ReachTheTarget, SquashedGaussian(), Exploration(random_steps=20)),
    "td3": (toy_envs.ReachTheTarget, Deterministic(), GaussianNoise(random_steps=20, std=0.2)),
    "dqn": (toy_envs.ChooseTheSign, Greedy(), EpsilonGreedy(start=1.0, end=0.2, num_steps=200)),
}


def make_actors_rollout(name, num_steps, num_envs=2, seed=3):
    env, head, exploration = ACTORS[name]
    envs = make_vec(EnvSpec(env, seed=seed), num_envs)
    network = actor(envs, head, hidden_sizes=(8,))
    snapshot = PolicySnapshot(0, network.initial_parameters(seed))
    policy = ActingPolicy(network, snapshot, exploration=exploration)
    return InlineRollout(envs, policy, num_steps=num_steps, seed=seed)


@pytest.mark.parametrize("name", ACTORS)
def test_noise_that_is_drawn_ahead_gives_the_same_actions(name, monkeypatch):
    """Compare with noise drawn per fragment, and with one long fragment, over three draws."""
    num_steps, total = 3, 2 * NOISE_STEPS + 90
    ahead, long = make_actors_rollout(name, num_steps), make_actors_rollout(name, total)
    each = make_actors_rollout(name, num_steps)
    fields = ("obs", "action", "reward", "next_obs", "terminated")
    collected = {"ahead": [], "each": []}
    for key, rollout in (("ahead", ahead), ("each", each)):
        monkeypatch.setattr(
            "hotloop.rollouts.noise_buffer.NOISE_STEPS", NOISE_STEPS if key == "ahead" else 1
        )
        num_drawn = 0
        draw_noise = rollout.policy.draw_noise

        def count_draws(*args, draw_noise=draw_noise, **kwargs):
            nonlocal num_drawn
            num_drawn += 1
            return draw_noise(*args, **kwargs)

        monkeypatch.setattr(rollout.policy, "draw_noise", count_draws)
        for _ in range(0, total, num_steps):
            (fragment,) = rollout.collect()
            assert not fragment.value.any()
            assert not fragment.log_prob.any()
            collected[key].append([getattr(fragment, field).copy() for field in fields])
        assert num_drawn == (3 if key == "ahead" else -(-total // num_steps))
    (whole,) = long.collect()
    for k, field in enumerate(fields):
        want = getattr(whole, field)
        for parts in collected.values():
            got = np.concatenate([part[k] for part in parts])[:total]
            np.testing.assert_array_equal(got, want)
    assert len(np.unique(whole.action)) > 1


@pytest.mark.parametrize("name", ACTORS)
@pytest.mark.parametrize("stop", [30, 255, 300])
def test_a_restored_rollout_draws_the_noise_of_its_steps(name, stop):
    """Stop at different positions within the noise that is drawn ahead."""
    whole = make_actors_rollout(name, 1)
    for _ in range(stop):
        whole.collect()
    state = whole.state()
    resumed = make_actors_rollout(name, 1)
    assert resumed.restore(state.to_arrays(), state.position()) == []
    for _ in range(40):
        (want,), (got,) = whole.collect(), resumed.collect()
        np.testing.assert_array_equal(got.obs, want.obs)
        np.testing.assert_array_equal(got.action, want.action)
    assert resumed.vector_steps == whole.vector_steps == stop + 40


def test_evaluation_plays_each_environments_share():
    rollout = make_rollout("CartPole-v1", num_envs=2)
    envs = make_vec(EnvSpec("CartPole-v1", seed=5, stream="evaluation"), 3)
    episodes = evaluate(envs, rollout.policy, num_episodes=7)
    shares = [(e.env, e.episode) for e in episodes]
    assert shares == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)]
    alone = make_vec(EnvSpec("CartPole-v1", seed=5, stream="evaluation"), 1)
    first = evaluate(alone, rollout.policy, num_episodes=3)
    assert first == episodes[:3]


def test_fragments_that_do_not_fit_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    message = (
        r"^3 environments × 10,000,000 steps take at least .* GiB, and 1.0 GiB are free: use fewer "
        r"environments, or shorter fragments \(`num_steps`\)$"
    )
    with pytest.raises(ConfigError, match=message):
        make_rollout("CartPole-v1", num_steps=10**7)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_the_size_of_a_slot_covers_its_arrays(env):
    envs = make_vec(env, 4)
    network = actor_critic(envs, hidden_sizes=(8, 32))
    slot = Slot.allocate(100, 4, network)
    names = [*PER_STEP, "memory"]
    array_bytes = sum(getattr(slot.fragment, name).nbytes for name in names) + slot.head.nbytes
    # Evaluation: a copy of the observations, hidden layers of 8 and 32, and the value.
    evaluation_bytes = slot.fragment.obs.nbytes + 100 * 4 * 4 * (8 + 32 + 1)
    assert Slot.size_bytes(100, 4, network) == array_bytes + evaluation_bytes + 100 * 1024
    envs.close()


def test_more_episodes_than_fit_are_refused_before_one_is_played(monkeypatch):
    rollout = make_rollout("CartPole-v1")
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    message = "^1,000,000,000 episodes take at least 119 GiB, and 1.0 GiB are free: play fewer$"
    with pytest.raises(ConfigError, match=message):
        evaluate(None, rollout.policy, num_episodes=10**9)
    rollout.close()


class NaNNoise(GaussianNoise):
    """Exploration of a user that returns NaN at step 3."""

    def action_noise(self, head, seed, **block):
        noise = super().action_noise(head, seed, **block)
        noise[block["first_step"] + np.arange(len(noise)) == 3] = np.nan
        return noise


@pytest.mark.parametrize("env", ["Pendulum-v1", toy_envs.ReachTheTarget])
def test_exploration_that_returns_nan_is_not_blamed_on_the_environment(monkeypatch, env):
    monkeypatch.setitem(ACTORS, "nan", (env, Deterministic(), NaNNoise(std=0.1)))
    with pytest.raises(NonFiniteError, match="actions must be finite, but at step 3 they were not"):
        make_actors_rollout("nan", 8).collect()
