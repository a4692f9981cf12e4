"""Environments in JAX: bare functions of gymnax's and Brax's interface, wrapped and reset here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from hotloop.errors import CheckpointError, ConfigError, SpaceError

jax = pytest.importorskip("jax")
jnp = jax.numpy

from hotloop.envs.device import brax, gymnax  # noqa: E402
from hotloop.envs.device.jax_envs import JaxVectorEnv, to_jax, to_torch  # noqa: E402

CPU = torch.device("cpu")
N = 3


class Params(NamedTuple):
    """Of gymnax's kind: `replace` as its dataclasses have it."""

    max_steps_in_episode: int = 4
    length: int = 6

    def replace(self, **changes):
        return self._replace(**changes)


class State(NamedTuple):
    time: object
    first: object


class Gymnax:
    """Counts steps, terminates after `length`; as gymnax 0.0 has it, `done` is either."""

    def observation_space(self, params):
        return SimpleNamespace(shape=(2,))

    def action_space(self, params):
        return SimpleNamespace(n=3)

    def reset_env(self, key, params):
        state = State(jnp.zeros((), jnp.int32), jax.random.uniform(key))
        return self._obs(state), state

    def step_env(self, key, state, action, params):
        state = State(state.time + 1, state.first)
        done = self.is_terminal(state, params)
        return self._obs(state), state, action.astype(jnp.float32), done, {}

    def is_terminal(self, state, params):
        return (state.time >= params.length) | (state.time >= params.max_steps_in_episode)

    def _obs(self, state):
        return jnp.stack([state.time.astype(jnp.float32), state.first])


class Gymnax1(Gymnax):
    """As gymnax 1 has it: `done` is a termination."""

    def is_terminal(self, state, params):
        return state.time >= params.length

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode


class Stepped(NamedTuple):
    """A state of Brax's and Playground's kind."""

    data: object
    obs: object
    reward: object
    done: object
    info: dict


class Brax:
    """Adds up what is pushed; terminates beyond 2."""

    action_size = 1

    def __init__(self, has_parts=False):
        self._has_parts = has_parts

    def reset(self, key):
        return self._at(jax.random.uniform(key), jnp.zeros(()))

    def step(self, state, action):
        return self._at(state.data + action[0], action[0])

    def _at(self, x, reward):
        obs = jnp.stack([x, -x])
        parts = {"state": obs, "privileged_state": jnp.zeros(7)}
        done = (jnp.abs(x) > 2.0).astype(jnp.float32)
        return Stepped(x, parts if self._has_parts else obs, reward, done, {"shared": jnp.zeros(0)})


def gymnaxes(kind=Gymnax, **params):
    return JaxVectorEnv(gymnax.described(kind(), Params(**params), "toy"), N, CPU)


def braxes(max_episode_steps=100, **kwargs):
    return JaxVectorEnv(brax.described(Brax(**kwargs), "toy", max_episode_steps), N, CPU)


def test_arrays_share_their_memory():
    x = torch.arange(6.0)
    assert to_torch(to_jax(x)).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("kind", [Gymnax, Gymnax1])
def test_gymnax_truncates_and_terminates_apart(kind):
    for params, number, name in (({"length": 3}, 3, "terminated"), ({}, 4, "truncated")):
        envs = gymnaxes(kind, **params)
        first = envs.reset(1)
        assert first.shape == (N, 2)
        assert len(first[:, 1].unique()) == N
        for t in range(1, number + 1):
            step = envs.step(torch.tensor([0, 1, 2]))
            assert step.reward.tolist() == [0, 1, 2]
            assert step.next_obs[:, 0].tolist() == [t] * N  # the true successor
            assert torch.equal(step.next_obs[:, 1], first[:, 1])
            flags = {"terminated": step.terminated, "truncated": step.truncated}
            assert flags.pop(name).tolist() == [t == number] * N
            assert not next(iter(flags.values())).any()
        assert step.obs[:, 0].tolist() == [0] * N
        assert not (step.obs[:, 1] == first[:, 1]).any()
        assert envs.step(torch.tensor([0, 1, 2])).next_obs[:, 0].tolist() == [1] * N


def test_gymnax_spaces():
    envs = gymnaxes()
    assert envs.obs_spec.shape == (2,)
    assert (envs.action_spec.kind, envs.action_spec.num_actions) == ("discrete", 3)
    toy = Gymnax()
    toy.action_space = lambda params: SimpleNamespace(shape=(2,), low=-2.0, high=2.0)
    assert gymnax.described(toy, Params(), "toy").action_spec.low == (-2.0, -2.0)
    toy.observation_space = lambda params: SimpleNamespace()
    with pytest.raises(SpaceError, match="toy: its observations are a SimpleNamespace"):
        gymnax.described(toy, Params(), "toy")


@pytest.mark.parametrize("has_parts", [False, True])
def test_brax_one_environment_is_reset_alone(has_parts):
    envs = braxes(has_parts=has_parts)
    first = envs.reset(1)
    assert ((first[:, 0] > 0) & (first[:, 0] < 1)).all()
    step = envs.step(torch.tensor([[9.0], [0.25], [-0.5]]))
    assert step.reward.tolist() == [1.0, 0.25, -0.5]  # clipped
    step = envs.step(torch.tensor([[1.0], [0.25], [-0.5]]))
    assert step.terminated.tolist() == [True, False, False]
    assert step.truncated.sum() == 0
    torch.testing.assert_close(step.next_obs[0, 0], first[0, 0] + 2.0)
    assert 0 < step.obs[0, 0] < 1
    assert torch.equal(step.obs[1:], step.next_obs[1:])


def test_brax_is_truncated_where_its_wrapper_would():
    envs = braxes(max_episode_steps=2)
    envs.reset(1)
    still = torch.zeros(N, 1)
    told = [envs.step(still) for _ in range(4)]
    assert [x.truncated.all().item() for x in told] == [False, True, False, True]
    assert not any(x.terminated.any() for x in told)
    assert not torch.equal(told[1].obs, told[1].next_obs)


def test_brax_makes_first_states_anew_after_some_steps():
    envs = braxes(max_episode_steps=1)
    envs.reset(1)
    still = torch.zeros(N, 1)
    firsts = torch.stack([envs.step(still).obs[0, 0] for _ in range(2 * brax.STEPS_OF_FIRST)])
    assert len(firsts.unique()) == 2


def test_brax_of_several_parts_without_one_for_the_policy():
    toy = Brax(has_parts=True)
    toy.reset = lambda key: Stepped(0, {"pixels": jnp.zeros(3)}, 0, 0, {})
    with pytest.raises(SpaceError, match=r"observations are of several parts \('pixels'\)"):
        brax.described(toy, "toy", 10)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        brax.described(Brax(), "toy", 0)


@pytest.mark.parametrize("make", [gymnaxes, braxes])
def test_going_on_from_a_state_is_bitwise_the_same(make):
    envs, others = make(), make()
    discrete = envs.action_spec.kind == "discrete"
    action = torch.tensor([0, 1, 2]) if discrete else torch.tensor([[0.5], [0.9], [0.1]])
    envs.reset(5)
    envs.step(action)
    others.load(envs.state())
    for _ in range(9):
        for one, other in zip(envs.step(action), others.step(action), strict=True):
            assert torch.equal(one, other)


def test_a_state_of_something_else_is_refused():
    envs = gymnaxes()
    with pytest.raises(CheckpointError, match="'toy' is not as this version of the library has it"):
        envs.load(braxes_state())


def braxes_state():
    envs = braxes()
    envs.reset(1)
    return envs.state()


def test_a_seed_gives_the_same_episodes_and_another_one_others():
    firsts = [gymnaxes().reset(seed) for seed in (1, 1, 2)]
    assert torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[0], firsts[2])


def test_a_device_that_jax_does_not_know():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"learner's device, cuda, but JAX sees .*cpu.* alone"):
        JaxVectorEnv(gymnax.described(Gymnax(), Params(), "toy"), N, torch.device("cuda"))


def test_gymnax_itself():
    pytest.importorskip("gymnax")
    from hotloop.envs.device import make_device_vec
    from hotloop.errors import UnknownNameError

    ours = make_device_vec("hotloop:CartPole", 8, CPU)
    theirs = make_device_vec("gymnax:CartPole-v1", 8, CPU, {"max_steps_in_episode": 7})
    assert theirs.action_spec == ours.action_spec
    obs = theirs.reset(1)
    for t in range(1, 8):
        state = {"motion": obs}
        after, reward, terminated = ours._kind.step(state, torch.ones(8).long())
        step = theirs.step(torch.ones(8).long())
        torch.testing.assert_close(step.next_obs, after["motion"], rtol=1e-4, atol=1e-5)
        assert torch.equal(step.reward, reward)
        assert torch.equal(step.terminated, terminated)
        assert step.truncated.tolist() == [t == 7] * 8
        obs = step.obs.clone()
    with pytest.raises(UnknownNameError, match="did you mean 'CartPole-v1'"):
        make_device_vec("gymnax:CartPol", 8, CPU)
    with pytest.raises(ConfigError, match="no parameter `gravitty`; did you mean 'gravity'"):
        make_device_vec("gymnax:CartPole-v1", 8, CPU, {"gravitty": 1.0})
