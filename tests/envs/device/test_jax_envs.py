"""JAX environments with gymnax's and Brax's interfaces, wrapped and reset by hotloop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from hotloop.envs import EnvSpec
from hotloop.errors import CheckpointError, ConfigError, SpaceError

jax = pytest.importorskip("jax")
jnp = jax.numpy

from hotloop.envs.device import brax, gymnax  # noqa: E402
from hotloop.envs.device.jax_envs import JaxVectorEnv, to_jax, to_torch  # noqa: E402

CPU = torch.device("cpu")
NUM_ENVS = 3


class GymnaxParams(NamedTuple):
    """Parameters with `replace`, as gymnax's dataclasses have it."""

    max_steps_in_episode: int = 4
    length: int = 6

    def replace(self, **changes):
        return self._replace(**changes)


class GymnaxState(NamedTuple):
    time: object
    first: object


class GymnaxEnv:
    """Count steps and terminate after `length`. As in gymnax 0.0, `done` covers truncation too."""

    def observation_space(self, params):
        return SimpleNamespace(shape=(2,))

    def action_space(self, params):
        return SimpleNamespace(n=3)

    def reset_env(self, key, params):
        state = GymnaxState(jnp.zeros((), jnp.int32), jax.random.uniform(key))
        return self._obs(state), state

    def step_env(self, key, state, action, params):
        state = GymnaxState(state.time + 1, state.first)
        done = self.is_terminal(state, params)
        return self._obs(state), state, action.astype(jnp.float32), done, {}

    def is_terminal(self, state, params):
        return (state.time >= params.length) | (state.time >= params.max_steps_in_episode)

    def _obs(self, state):
        return jnp.stack([state.time.astype(jnp.float32), state.first])


class Gymnax1Env(GymnaxEnv):
    """A variant with gymnax 1's interface, in which `done` is a termination."""

    def is_terminal(self, state, params):
        return state.time >= params.length

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode


class BraxState(NamedTuple):
    """A state with the fields of Brax and Playground."""

    data: object
    obs: object
    reward: object
    done: object
    info: dict


class BraxEnv:
    """Add up the actions and terminate beyond 2."""

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
        return BraxState(
            x, parts if self._has_parts else obs, reward, done, {"shared": jnp.zeros(0)}
        )


def make_gymnax(kind=GymnaxEnv, **params):
    return JaxVectorEnv(gymnax.wrap_env(kind(), GymnaxParams(**params), "toy"), NUM_ENVS, CPU)


def make_brax(max_episode_steps=100, **kwargs):
    return JaxVectorEnv(brax.wrap_env(BraxEnv(**kwargs), "toy", max_episode_steps), NUM_ENVS, CPU)


def test_arrays_share_their_memory():
    x = torch.arange(6.0)
    assert to_torch(to_jax(x)).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("kind", [GymnaxEnv, Gymnax1Env])
def test_gymnax_separates_truncation_from_termination(kind):
    for params, length, end in (({"length": 3}, 3, "terminated"), ({}, 4, "truncated")):
        envs = make_gymnax(kind, **params)
        first = envs.reset(1)
        assert first.shape == (NUM_ENVS, 2)
        assert len(first[:, 1].unique()) == NUM_ENVS
        for t in range(1, length + 1):
            step = envs.step(torch.tensor([0, 1, 2]))
            assert step.reward.tolist() == [0, 1, 2]
            assert step.next_obs[:, 0].tolist() == [t] * NUM_ENVS  # the true successor
            assert torch.equal(step.next_obs[:, 1], first[:, 1])
            flags = {"terminated": step.terminated, "truncated": step.truncated}
            assert flags.pop(end).tolist() == [t == length] * NUM_ENVS
            assert not next(iter(flags.values())).any()
        assert step.obs[:, 0].tolist() == [0] * NUM_ENVS
        assert not (step.obs[:, 1] == first[:, 1]).any()
        assert envs.step(torch.tensor([0, 1, 2])).next_obs[:, 0].tolist() == [1] * NUM_ENVS


def test_gymnax_spaces():
    envs = make_gymnax()
    assert envs.obs_spec.shape == (2,)
    assert (envs.action_spec.kind, envs.action_spec.num_actions) == ("discrete", 3)
    toy = GymnaxEnv()
    toy.action_space = lambda params: SimpleNamespace(shape=(2,), low=-2.0, high=2.0)
    assert gymnax.wrap_env(toy, GymnaxParams(), "toy").action_spec.low == (-2.0, -2.0)
    toy.observation_space = lambda params: SimpleNamespace()
    with pytest.raises(SpaceError, match="toy: its observations are a SimpleNamespace"):
        gymnax.wrap_env(toy, GymnaxParams(), "toy")


@pytest.mark.parametrize("has_parts", [False, True])
def test_brax_environments_reset_independently(has_parts):
    envs = make_brax(has_parts=has_parts)
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


def test_brax_truncates_like_its_wrapper():
    envs = make_brax(max_episode_steps=2)
    envs.reset(1)
    action = torch.zeros(NUM_ENVS, 1)
    steps = [envs.step(action) for _ in range(4)]
    assert [step.truncated.all().item() for step in steps] == [False, True, False, True]
    assert not any(step.terminated.any() for step in steps)
    assert not torch.equal(steps[1].obs, steps[1].next_obs)


def test_brax_redraws_initial_states_at_intervals():
    envs = make_brax(max_episode_steps=1)
    envs.reset(1)
    action = torch.zeros(NUM_ENVS, 1)
    initial_obs = torch.stack(
        [envs.step(action).obs[0, 0] for _ in range(2 * brax.INITIAL_STATE_INTERVAL)]
    )
    assert len(initial_obs.unique()) == 2


def test_brax_observations_need_a_part_for_the_policy():
    toy = BraxEnv(has_parts=True)
    toy.reset = lambda key: BraxState(0, {"pixels": jnp.zeros(3)}, 0, 0, {})
    with pytest.raises(SpaceError, match=r"observations have several parts \('pixels'\)"):
        brax.wrap_env(toy, "toy", 10)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        brax.wrap_env(BraxEnv(), "toy", 0)


@pytest.mark.parametrize("make", [make_gymnax, make_brax])
def test_loaded_state_continues_bitwise(make):
    envs, restored = make(), make()
    is_discrete = envs.action_spec.kind == "discrete"
    action = torch.tensor([0, 1, 2]) if is_discrete else torch.tensor([[0.5], [0.9], [0.1]])
    envs.reset(5)
    envs.step(action)
    restored.load(envs.state())
    for _ in range(9):
        for array, restored_array in zip(envs.step(action), restored.step(action), strict=True):
            assert torch.equal(array, restored_array)


def test_state_of_another_environment_is_refused():
    envs = make_gymnax()
    with pytest.raises(CheckpointError, match="'toy' does not match this version of the library"):
        envs.load(brax_state())


def brax_state():
    envs = make_brax()
    envs.reset(1)
    return envs.state()


def test_seed_determines_episodes():
    first_obs = [make_gymnax().reset(seed) for seed in (1, 1, 2)]
    assert torch.equal(first_obs[0], first_obs[1])
    assert not torch.equal(first_obs[0], first_obs[2])


def test_device_unknown_to_jax_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"learner's device, cuda, but JAX sees only .*cpu"):
        JaxVectorEnv(
            gymnax.wrap_env(GymnaxEnv(), GymnaxParams(), "toy"), NUM_ENVS, torch.device("cuda")
        )


def test_gymnax_cartpole_matches_hotloops():
    pytest.importorskip("gymnax")
    from hotloop.envs.device import make_device_vec
    from hotloop.errors import UnknownNameError

    envs = make_device_vec("hotloop:CartPole", 8, CPU)
    gymnax_envs = make_device_vec(
        EnvSpec("gymnax:CartPole-v1", {"max_steps_in_episode": 7}), 8, CPU
    )
    assert gymnax_envs.action_spec == envs.action_spec
    obs = gymnax_envs.reset(1)
    for t in range(1, 8):
        state = {"motion": obs}
        next_state, reward, terminated = envs._kind.step(state, torch.ones(8).long())
        step = gymnax_envs.step(torch.ones(8).long())
        torch.testing.assert_close(step.next_obs, next_state["motion"], rtol=1e-4, atol=1e-5)
        assert torch.equal(step.reward, reward)
        assert torch.equal(step.terminated, terminated)
        assert step.truncated.tolist() == [t == 7] * 8
        obs = step.obs.clone()
    with pytest.raises(UnknownNameError, match="did you mean 'CartPole-v1'"):
        make_device_vec("gymnax:CartPol", 8, CPU)
    with pytest.raises(ConfigError, match="no parameter `gravitty`; did you mean 'gravity'"):
        make_device_vec(EnvSpec("gymnax:CartPole-v1", {"gravitty": 1.0}), 8, CPU)
