"""Rollouts on the device: fragments against a loop that is written out, episodes, state, faults."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.envs.device import make_device_vec
from hotloop.errors import EnvironmentFailure, NonFiniteError
from hotloop.learner import Choice, Execution
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.policies.device_acting import DevicePolicy
from hotloop.policies.learned import LearnedNetwork
from hotloop.rollouts import CollectionOptions
from hotloop.rollouts.device_rows import Rows, Told
from hotloop.rollouts.on_device import MOST_BLOCK_STEPS, DeviceEnvironments
from tests.envs.device import toys
from tests.learner.test_graphs import Pretended

CPU = torch.device("cpu")
N = 3


def eager(function, name, *, copies_outputs=True):
    return function


def made(factory=toys.counting, *, num_steps=4, execute=eager, **kwargs):
    envs = make_device_vec(factory, N, CPU, kwargs)
    nets = LearnedNetwork(actor_critic(envs, hidden_sizes=(8,)))
    params = nets.initial(3)
    host = ActingPolicy(nets.network, PolicySnapshot(0, nets.layout.views(params)))
    policy = DevicePolicy(nets, params, host)
    plan = CollectionOptions(num_steps=num_steps, seed=5)
    return DeviceEnvironments(envs, execute).rollout(policy, plan), policy


def same(one, other, but=()):
    names = [name for name in type(one).__slots__ if isinstance(getattr(one, name), torch.Tensor)]
    names = [name for name in names if name not in but]
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


def test_rows_are_those_of_a_loop_that_is_written_out():
    rollout, policy = made(num_steps=7)
    (fragment,) = rollout.collect()
    envs = toys.counting(N, CPU)
    obs = envs.reset(5)
    for t in range(7):
        assert torch.equal(fragment.obs[t], obs)
        noise = policy.host.draw_noise(5, first_step=t, num_steps=1, num_envs=N)[0]
        action = np.empty((N, 1), np.float32)
        head = policy.host.head(obs.numpy())
        policy.host.choose(head, noise, action)
        np.testing.assert_allclose(fragment.action[t].numpy(), action, atol=1e-4)
        wanted = policy.host.log_prob(head[None], noise[None], action[None])[0]
        np.testing.assert_allclose(fragment.log_prob[t].numpy(), wanted, atol=1e-3)
        value = policy.host.value(obs.numpy())
        np.testing.assert_allclose(fragment.value[t].numpy(), value, atol=1e-5)
        step = envs.step(fragment.action[t])
        for name in ("next_obs", "reward", "terminated", "truncated"):
            assert torch.equal(getattr(fragment, name)[t], getattr(step, name))
        following = policy.host.value(step.next_obs.numpy()) * ~step.terminated.numpy()
        np.testing.assert_allclose(fragment.next_value[t].numpy(), following, atol=1e-5)
        obs = step.obs
    assert torch.equal(fragment.last_obs, obs)
    assert fragment.terminated.sum() == 2 * N
    assert fragment.valid.all()


def test_a_truncated_step_is_bootstrapped_from_its_true_successor():
    rollout, policy = made(num_steps=2, length=9, max_episode_steps=2)
    (fragment,) = rollout.collect()
    assert fragment.truncated[1].all()
    want = policy.host.value(fragment.next_obs[1].numpy())
    np.testing.assert_allclose(fragment.next_value[1].numpy(), want, atol=1e-5)
    assert not np.allclose(policy.host.value(fragment.last_obs.numpy()), want)


@pytest.mark.parametrize("num_steps", [1, MOST_BLOCK_STEPS, 2 * MOST_BLOCK_STEPS, 11])
def test_blocks_change_nothing(num_steps):
    """Blocks of another length, and environments stepped one by one, give the same rows."""
    whole, _ = made(num_steps=2 * num_steps)
    parts, _ = made(num_steps=num_steps)
    stepped, _ = made(toys.stateful, num_steps=2 * num_steps)
    (wanted,), (other,) = whole.collect(), stepped.collect()
    # V of more rows at once differs in its last bits.
    assert same(wanted, other, but=("next_value",))
    torch.testing.assert_close(wanted.next_value, other.next_value)
    for half in range(2):
        (part,) = parts.collect()
        rows = slice(half * num_steps, (half + 1) * num_steps)
        for name in ("obs", "action", "reward", "next_obs", "log_prob", "terminated"):
            assert torch.equal(getattr(part, name), getattr(wanted, name)[rows])
    assert sorted(parts.pop_episodes()) == sorted(whole.pop_episodes())


@pytest.mark.parametrize("factory", [toys.counting, toys.stateful])
def test_episodes_are_told(factory):
    rollout, _ = made(factory, num_steps=4, length=3)
    rewards = []
    told = []
    for _ in range(2):
        (fragment,) = rollout.collect()
        rewards.append(fragment.reward.clone())
        told.append(rollout.pop_episodes())
    rewards = torch.cat(rewards).double()
    assert [(e.env, e.episode, e.length) for e in told[0]] == [(env, 0, 3) for env in range(N)]
    assert [(e.env, e.episode, e.length) for e in told[1]] == [(env, 1, 3) for env in range(N)]
    for env in range(N):
        assert told[0][env].undiscounted_return == rewards[:3, env].sum()
        assert told[1][env].undiscounted_return == rewards[3:6, env].sum()
    assert rollout.pop_episodes() == []
    assert rollout.num_transitions == 8 * N
    assert rollout.accounting().collected == rollout.accounting().trained == 8 * N


@pytest.mark.parametrize("factory", [toys.counting, toys.stateful])
def test_going_on_from_a_state_is_bitwise_the_same(factory):
    rollout, _ = made(factory)
    assert rollout.state().to_arrays() == {}
    rollout.collect()
    state = rollout.state()
    rollout.collect()  # which a state that was taken before knows nothing of
    rollout.pop_episodes()
    other, _ = made(factory)
    other.collect()
    fresh, _ = made(factory)
    assert fresh.restore(state.to_arrays(), state.position()) == []
    for _ in range(2):
        (wanted,), (got,) = other.collect(), fresh.collect()
        assert same(wanted, got)
    assert fresh.num_transitions == other.num_transitions
    assert fresh.pop_episodes() == other.pop_episodes()[N:]


def test_environments_that_tell_no_state_begin_new_episodes():
    rollout, _ = made(toys.stateful, tells_state=False)
    rollout.collect()
    state = rollout.state()
    fresh, _ = made(toys.stateful, tells_state=False)
    assert fresh.restore(state.to_arrays(), state.position()) == [0, 1, 2]
    (fragment,) = fresh.collect()
    assert fragment.obs[0, :, 0].tolist() == [0, 0, 0]
    assert [(e.episode, e.length) for e in fresh.pop_episodes()] == [(2, 3)] * N


def test_nothing_is_read_back_within_a_block():
    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert "_local_scalar_dense" not in str(func), "a number is read back"
            assert "nonzero" not in str(func), "a shape depends on numbers"
            return func(*args, **(kwargs or {}))

    def watched(function, name, *, copies_outputs=True):
        def run(*args):
            with Refusing():
                return function(*args)

        return run

    for factory in (toys.counting, toys.stateful, "hotloop:CartPole"):
        rollout, _ = made(factory, execute=watched)
        assert len(rollout.collect()) == 1


def test_memory_that_is_written_over_does_no_harm():
    """A captured graph gives the same memory each time."""

    def reusing(function, name, *, copies_outputs=True):
        kept = []

        def run(*args):
            given = function(*args)
            if isinstance(given, torch.Tensor):
                return given
            if not kept:
                kept.extend(x.clone() for x in given)
            for to, x in zip(kept, given, strict=True):
                to.copy_(x)
            return tuple(kept)

        return run

    for num_steps in (MOST_BLOCK_STEPS, 2 * MOST_BLOCK_STEPS):
        plain, _ = made(num_steps=num_steps)
        reused, _ = made(num_steps=num_steps, execute=reusing)
        for _ in range(2):
            (wanted,), (got,) = plain.collect(), reused.collect()
            assert same(wanted, got)


def captured(function, name, *, copies_outputs=True):
    """Run a function as a graph of the stand-in."""
    device = Pretended(None)
    choice = Choice(False, "for the test", is_captured=True)
    execution = Execution(function, choice, name, capturing=device, copies_outputs=copies_outputs)

    def run(state, *args):
        device.state = state  # which a stand-in has to know
        return execution(state, *args)

    return run


@pytest.mark.parametrize(("num_blocks", "num_clones"), [(1, 1), (2, 0)])
def test_the_outputs_of_blocks_are_copied_once(monkeypatch, num_blocks, num_clones):
    """Into the fragment; or, of a fragment that is one block, from the graph's own memory."""
    rollout, _ = made(num_steps=num_blocks * MOST_BLOCK_STEPS, execute=captured)
    rollout.collect()
    clones, copies, clone, copy_ = [], [], torch.Tensor.clone, torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "clone", lambda x: clones.append(x) or clone(x))

    def counted(to, x):
        if to.ndim > 1 and to.shape[0] == MOST_BLOCK_STEPS:
            copies.append(x)
        return copy_(to, x)

    monkeypatch.setattr(torch.Tensor, "copy_", counted)
    (fragment,) = rollout.collect()
    monkeypatch.undo()
    num_outputs = len(Rows._fields) + len(Told._fields)
    assert len(clones) == num_clones * num_outputs
    # The stand-in writes what a replay computes into the outputs; the rest are the rollout's.
    assert len(copies) - num_blocks * num_outputs == (1 - num_clones) * num_blocks * num_outputs
    assert fragment.obs.shape[0] == num_blocks * MOST_BLOCK_STEPS


@pytest.mark.parametrize("factory", [toys.counting, toys.stateful, "hotloop:CartPole"])
def test_a_captured_graph_is_eager(factory):
    """With a stand-in for the device's: state by address, arguments and outputs copied."""
    num_steps = 2 * MOST_BLOCK_STEPS
    one, policy = made(factory, num_steps=num_steps)
    other, same_policy = made(factory, num_steps=num_steps, execute=captured)
    for _ in range(3):
        (wanted,), (got,) = one.collect(), other.collect()
        assert same(wanted, got)
        for each in (policy, same_policy):
            each.bound.params.mul_(1.1)  # as learning does, in place
    assert one.pop_episodes() == other.pop_episodes()


@pytest.mark.parametrize("factory", [toys.stateful, "hotloop:CartPole"])
def test_a_captured_graph_follows_parameters_that_move(factory):
    """As those of lanes do, which are stacked for a joint update after they have acted."""
    one, policy = made(factory, num_steps=4)
    other, same_policy = made(factory, num_steps=4, execute=captured)
    for k in range(3):
        (wanted,), (got,) = one.collect(), other.collect()
        assert same(wanted, got)
        params = same_policy.bound.params
        if k == 0:
            params.data = torch.stack([torch.zeros_like(params), params])[1]
        for each in (policy, same_policy):
            each.bound.params.mul_(1.1)


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["hotloop:CartPole", toys.stateful])
def test_compiled_is_eager_but_for_the_last_bits(factory):
    def compiled(function, name, *, copies_outputs=True):
        return Execution(function, Choice(True, "for the test"), name)

    eager_one, _ = made(factory, num_steps=4)
    other, _ = made(factory, num_steps=4, execute=compiled)
    for _ in range(3):
        (wanted,), (got,) = eager_one.collect(), other.collect()
        torch.testing.assert_close(got.action, wanted.action)
        for name in ("obs", "next_obs", "value", "next_value", "log_prob"):
            torch.testing.assert_close(getattr(got, name), getattr(wanted, name))


def test_what_does_not_keep_its_promise_is_said():
    rollout, _ = made(toys.wrong)
    with pytest.raises(EnvironmentFailure, match=r"`reward`.*float32 of.*got torch\.float64"):
        rollout.collect()


def test_nan_of_an_environment_is_found():
    rollout, _ = made(toys.broken)
    with pytest.raises(EnvironmentFailure, match="environment 1 gave NaN or infinity at step 2"):
        rollout.collect()


def test_nan_of_the_policy_is_found():
    rollout, policy = made()
    rollout.collect()
    policy.bound.params.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="the policy's outputs must be finite, but at step 4"):
        rollout.collect()
