"""Rollouts on the device: fragments against a written-out loop, episodes, state, faults."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hotloop.envs import EnvSpec
from hotloop.envs.device import make_device_vec
from hotloop.errors import EnvironmentFailure, NonFiniteError
from hotloop.learner import Execution, ExecutionChoice
from hotloop.policies import ActingPolicy, PolicySnapshot, actor_critic
from hotloop.policies.device_acting import DevicePolicy
from hotloop.policies.forward import LearnedNetwork
from hotloop.rollouts import CollectionOptions
from hotloop.rollouts.device_rows import DerivedRows, DeviceRows
from hotloop.rollouts.on_device import MAX_BLOCK_STEPS, DeviceEnvironments
from tests.envs.device import toys
from tests.learner.test_cuda_graphs import FakeCapturer

CPU = torch.device("cpu")
N = 3


def eager(function, name, *, copies_outputs=True):
    return function


def make_rollout(factory=toys.counting, *, num_steps=4, execute=eager, **kwargs):
    envs = make_device_vec(EnvSpec(factory, kwargs), N, CPU)
    nets = LearnedNetwork(actor_critic(envs, hidden_sizes=(8,)))
    params = nets.initial(3)
    host = ActingPolicy(nets.network, PolicySnapshot(0, nets.layout.views(params)))
    policy = DevicePolicy(nets, params, host)
    plan = CollectionOptions(num_steps=num_steps, seed=5)
    return DeviceEnvironments(envs, execute).rollout(policy, plan), policy


def rows_equal(first, second, except_fields=()):
    names = [
        name for name in type(first).__slots__ if isinstance(getattr(first, name), torch.Tensor)
    ]
    names = [name for name in names if name not in except_fields]
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in names)


def test_rows_match_a_written_out_loop():
    rollout, policy = make_rollout(num_steps=7)
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
        expected = policy.host.log_prob(head[None], noise[None], action[None])[0]
        np.testing.assert_allclose(fragment.log_prob[t].numpy(), expected, atol=1e-3)
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
    rollout, policy = make_rollout(num_steps=2, length=9, max_episode_steps=2)
    (fragment,) = rollout.collect()
    assert fragment.truncated[1].all()
    want = policy.host.value(fragment.next_obs[1].numpy())
    np.testing.assert_allclose(fragment.next_value[1].numpy(), want, atol=1e-5)
    assert not np.allclose(policy.host.value(fragment.last_obs.numpy()), want)


@pytest.mark.parametrize("num_steps", [1, MAX_BLOCK_STEPS, 2 * MAX_BLOCK_STEPS, 11])
def test_blocks_change_nothing(num_steps):
    """Blocks of another length, and environments stepped one by one, give the same rows."""
    whole, _ = make_rollout(num_steps=2 * num_steps)
    parts, _ = make_rollout(num_steps=num_steps)
    stepped, _ = make_rollout(toys.stateful, num_steps=2 * num_steps)
    (expected,), (one_by_one,) = whole.collect(), stepped.collect()
    # V of more rows at once differs in its last bits.
    assert rows_equal(expected, one_by_one, except_fields=("next_value",))
    torch.testing.assert_close(expected.next_value, one_by_one.next_value)
    for half in range(2):
        (part,) = parts.collect()
        rows = slice(half * num_steps, (half + 1) * num_steps)
        for name in ("obs", "action", "reward", "next_obs", "log_prob", "terminated"):
            assert torch.equal(getattr(part, name), getattr(expected, name)[rows])
    assert sorted(parts.pop_episodes()) == sorted(whole.pop_episodes())


@pytest.mark.parametrize("factory", [toys.counting, toys.stateful])
def test_episodes_are_reported(factory):
    rollout, _ = make_rollout(factory, num_steps=4, length=3)
    rewards = []
    episodes = []
    for _ in range(2):
        (fragment,) = rollout.collect()
        rewards.append(fragment.reward.clone())
        episodes.append(rollout.pop_episodes())
    rewards = torch.cat(rewards).double()
    assert [(e.env, e.episode, e.length) for e in episodes[0]] == [(env, 0, 3) for env in range(N)]
    assert [(e.env, e.episode, e.length) for e in episodes[1]] == [(env, 1, 3) for env in range(N)]
    for env in range(N):
        assert episodes[0][env].undiscounted_return == rewards[:3, env].sum()
        assert episodes[1][env].undiscounted_return == rewards[3:6, env].sum()
    assert rollout.pop_episodes() == []
    assert rollout.num_transitions == 8 * N
    assert rollout.accounting().collected == rollout.accounting().trained == 8 * N


@pytest.mark.parametrize("factory", [toys.counting, toys.stateful])
def test_a_restored_rollout_is_bitwise_the_same(factory):
    rollout, _ = make_rollout(factory)
    assert rollout.state().to_arrays() == {}
    rollout.collect()
    state = rollout.state()
    rollout.collect()  # must not change the state taken before
    rollout.pop_episodes()
    other, _ = make_rollout(factory)
    other.collect()
    resumed, _ = make_rollout(factory)
    assert resumed.restore(state.to_arrays(), state.position()) == []
    for _ in range(2):
        (expected,), (restored,) = other.collect(), resumed.collect()
        assert rows_equal(expected, restored)
    assert resumed.num_transitions == other.num_transitions
    assert resumed.pop_episodes() == other.pop_episodes()[N:]


def test_environments_without_a_state_begin_new_episodes():
    rollout, _ = make_rollout(toys.stateful, tells_state=False)
    rollout.collect()
    state = rollout.state()
    fresh, _ = make_rollout(toys.stateful, tells_state=False)
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

    def run_refusing(function, name, *, copies_outputs=True):
        def run(*args):
            with Refusing():
                return function(*args)

        return run

    for factory in (toys.counting, toys.stateful, "hotloop:CartPole"):
        rollout, _ = make_rollout(factory, execute=run_refusing)
        assert len(rollout.collect()) == 1


def test_reused_output_memory_does_no_harm():
    """A captured graph returns the same memory each time."""

    def reusing(function, name, *, copies_outputs=True):
        outputs = []

        def run(*args):
            result = function(*args)
            if isinstance(result, torch.Tensor):
                return result
            if not outputs:
                outputs.extend(x.clone() for x in result)
            for to, x in zip(outputs, result, strict=True):
                to.copy_(x)
            return tuple(outputs)

        return run

    for num_steps in (MAX_BLOCK_STEPS, 2 * MAX_BLOCK_STEPS):
        plain, _ = make_rollout(num_steps=num_steps)
        reused, _ = make_rollout(num_steps=num_steps, execute=reusing)
        for _ in range(2):
            (expected,), (got,) = plain.collect(), reused.collect()
            assert rows_equal(expected, got)


def captured(function, name, *, copies_outputs=True):
    """Run a function as a graph of the stand-in."""
    device = FakeCapturer(None)
    choice = ExecutionChoice(False, "for the test", is_captured=True)
    execution = Execution(function, choice, name, capturer=device, copies_outputs=copies_outputs)

    def run(state, *args):
        device.state = state  # needed by the stand-in
        return execution(state, *args)

    return run


@pytest.mark.parametrize(("num_blocks", "num_clones"), [(1, 1), (2, 0)])
def test_the_outputs_of_blocks_are_copied_once(monkeypatch, num_blocks, num_clones):
    """Blocks are copied into the fragment. A single block is cloned from the graph's memory."""
    rollout, _ = make_rollout(num_steps=num_blocks * MAX_BLOCK_STEPS, execute=captured)
    rollout.collect()
    clones, copies, clone, copy_ = [], [], torch.Tensor.clone, torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "clone", lambda x: clones.append(x) or clone(x))

    def count_copies(to, x):
        if to.ndim > 1 and to.shape[0] == MAX_BLOCK_STEPS:
            copies.append(x)
        return copy_(to, x)

    monkeypatch.setattr(torch.Tensor, "copy_", count_copies)
    (fragment,) = rollout.collect()
    monkeypatch.undo()
    num_outputs = len(DeviceRows._fields) + len(DerivedRows._fields)
    assert len(clones) == num_clones * num_outputs
    # The stand-in copies each replay's results into the outputs. The rollout makes the others.
    assert len(copies) - num_blocks * num_outputs == (1 - num_clones) * num_blocks * num_outputs
    assert fragment.obs.shape[0] == num_blocks * MAX_BLOCK_STEPS


@pytest.mark.parametrize("factory", [toys.counting, toys.stateful, "hotloop:CartPole"])
def test_a_captured_graph_gives_the_same_rows(factory):
    """The stand-in reads state by address, and copies arguments and outputs."""
    num_steps = 2 * MAX_BLOCK_STEPS
    rollout, policy = make_rollout(factory, num_steps=num_steps)
    captured_rollout, same_policy = make_rollout(factory, num_steps=num_steps, execute=captured)
    for _ in range(3):
        (expected,), (got,) = rollout.collect(), captured_rollout.collect()
        assert rows_equal(expected, got)
        for acting_policy in (policy, same_policy):
            acting_policy.tensors.params.mul_(1.1)  # as learning does, in place
    assert rollout.pop_episodes() == captured_rollout.pop_episodes()


@pytest.mark.parametrize("factory", [toys.stateful, "hotloop:CartPole"])
def test_a_captured_graph_follows_parameters_that_move(factory):
    """Parameters of lanes move: they are stacked for a joint update after acting."""
    rollout, policy = make_rollout(factory, num_steps=4)
    captured_rollout, same_policy = make_rollout(factory, num_steps=4, execute=captured)
    for k in range(3):
        (expected,), (got,) = rollout.collect(), captured_rollout.collect()
        assert rows_equal(expected, got)
        params = same_policy.tensors.params
        if k == 0:
            params.data = torch.stack([torch.zeros_like(params), params])[1]
        for acting_policy in (policy, same_policy):
            acting_policy.tensors.params.mul_(1.1)


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["hotloop:CartPole", toys.stateful])
def test_compiled_rows_differ_in_the_last_bits_alone(factory):
    def compiled(function, name, *, copies_outputs=True):
        return Execution(function, ExecutionChoice(True, "for the test"), name)

    eager_rollout, _ = make_rollout(factory, num_steps=4)
    compiled_rollout, _ = make_rollout(factory, num_steps=4, execute=compiled)
    for _ in range(3):
        (expected,), (got,) = eager_rollout.collect(), compiled_rollout.collect()
        torch.testing.assert_close(got.action, expected.action)
        for name in ("obs", "next_obs", "value", "next_value", "log_prob"):
            torch.testing.assert_close(getattr(got, name), getattr(expected, name))


def test_a_wrong_dtype_is_reported():
    rollout, _ = make_rollout(toys.wrong)
    with pytest.raises(EnvironmentFailure, match=r"`reward`.*float32 of.*got torch\.float64"):
        rollout.collect()


def test_nan_of_an_environment_is_reported():
    rollout, _ = make_rollout(toys.broken)
    with pytest.raises(
        EnvironmentFailure, match="environment 1 returned NaN or infinity at step 2"
    ):
        rollout.collect()


def test_nan_of_the_policy_is_reported():
    rollout, policy = make_rollout()
    rollout.collect()
    policy.tensors.params.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="the policy's outputs must be finite, but at step 4"):
        rollout.collect()
