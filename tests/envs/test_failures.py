"""Errors of a failing environment name it, the place and the remedy."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop.envs import EnvSpec, ObsSpec, check_finite, make_vec
from hotloop.errors import EnvironmentFailure
from hotloop.types import Fragment
from tests.envs.toy import CountingEnv, FailingEnv, SpaceEnv


def step_on(envs, num_steps: int = 100) -> None:
    envs.reset()
    for _ in range(num_steps):
        envs.step(np.zeros(envs.num_envs, np.int64))


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("raise", "`step` raised ValueError: the simulator is broken"),
        ("shape", r"must have shape \(4,\), got an array of shape \(3,\) and dtype float32"),
        ("broadcast", r"must have shape \(4,\), got .*1\.0"),
        ("dtype", "must hold numbers, got an array of shape .* and dtype object"),
        ("ragged", "must be an array, got a list of length 2"),
        ("four", r"must return \(obs, .*, info\), got a tuple of length 4: .*old Gym"),
        ("none", r"must return \(obs, .*, info\), got None"),
        ("reward_none", r"reward must be one number, got None: return `float\(reward\)`"),
    ],
)
def test_step_failures(failure, message):
    # Only the last environment fails, at step 3 of every episode.
    envs_to_make = iter([FailingEnv(at=999), FailingEnv(at=999), FailingEnv(failure, at=3)])
    envs = make_vec(EnvSpec(lambda: next(envs_to_make), first_env=5), 3)
    envs.reset()
    envs.reset()
    for _ in range(3):
        envs.step(np.zeros(3, np.int64))
    place = r"<lambda>, environment 7, episode 1, step 3: "
    with pytest.raises(EnvironmentFailure, match=place + r".*" + message) as error:
        envs.step(np.zeros(3, np.int64))
    if failure == "raise":
        assert isinstance(error.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("reset_raise", "`reset` raised ValueError: the simulator is broken"),
        ("reset_nan", r"`obs\[2\]` must be finite, got nan"),
        ("reset_inf", r"`obs\[2\]` must be finite, got inf"),
        ("reset_shape", r"the observation must have shape \(4,\), got an array of shape \(3,\)"),
        ("reset_bare", r"`reset` must return \(obs, info\), got an array of shape \(4,\)"),
    ],
)
def test_reset_failures(failure, message):
    envs_to_make = iter([FailingEnv(at=999), FailingEnv(failure, episode_length=4)])
    envs = make_vec(lambda: next(envs_to_make), 2)
    place = r"environment 1, episode 1, at its reset: "
    with pytest.raises(EnvironmentFailure, match=place + message) as error:
        step_on(envs)
    assert (error.value.__cause__ is not None) == (failure == "reset_raise")


@pytest.mark.parametrize("method", ["__init__", "reset", "step"])
def test_an_environment_that_exits_is_a_failure(monkeypatch, method):
    class Exits(CountingEnv):
        def exits(self, *args, **kwargs):
            raise SystemExit(3)

    monkeypatch.setattr(Exits, method, Exits.exits)
    with pytest.raises(EnvironmentFailure, match=r"raised SystemExit: 3 \(test_failures.py:\d+\)"):
        step_on(make_vec(Exits))


def test_steps_are_counted_within_the_episode():
    with pytest.raises(EnvironmentFailure, match="episode 0, step 3: "):
        step_on(make_vec(lambda: FailingEnv(at=3)))

    class FailsInItsThirdEpisode(CountingEnv):
        def step(self, action):
            if self.episode == 2 and self.steps == 2:
                raise RuntimeError
            return super().step(action)

    with pytest.raises(
        EnvironmentFailure,
        match=r"episode 2, step 2: `step` raised RuntimeError \(test_failures.py:\d+\)$",
    ):
        step_on(make_vec(lambda: FailsInItsThirdEpisode()))


def test_list_of_numbers_is_a_valid_observation():
    step_on(make_vec(lambda: FailingEnv("list", at=2)), 4)


def test_other_float_dtypes_are_cast():
    class MixedFloats(FailingEnv):
        def step(self, action):
            obs, *outputs = super().step(action)
            return (obs + 0.5).astype(np.float64 if self.steps % 2 else np.float32), *outputs

    envs = make_vec(lambda: MixedFloats(at=999), 2)
    envs.reset()
    for _ in range(4):
        assert (envs.step(np.zeros(2, np.int64)).obs == 0.5).all()


def test_uint8_observations_must_be_uint8():
    env = SpaceEnv(gymnasium.spaces.Box(0, 255, (2, 2), np.uint8))
    envs = make_vec(lambda: env)
    envs.reset()
    env._sample = lambda: np.full((2, 2), 0.5)
    with pytest.raises(EnvironmentFailure, match=r"must hold uint8, got .* dtype float64"):
        envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize("observation", [5, -1, 1.5, [1], None])
def test_discrete_observations_must_be_in_range(observation):
    env = SpaceEnv(gymnasium.spaces.Discrete(5))
    envs = make_vec(lambda: env)
    envs.reset()
    env._sample = lambda: observation
    with pytest.raises(EnvironmentFailure, match=r"step 0: the observation must (lie in|be integ)"):
        envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"a": np.zeros(2)}, r"must have the keys \['a', 'b'\], got \['a'\]"),
        (np.zeros(3), r"must be a dict with the keys \['a', 'b'\]"),
        ({"a": np.zeros(2), "b": 7}, r"part 'b': the observation must lie in \[0\] … \[2\]"),
        ({"a": np.zeros(1), "b": 0}, r"part 'a': the observation must have shape \(2,\)"),
    ],
)
def test_dict_observations_must_match_their_space(observation, message):
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    env = SpaceEnv(gymnasium.spaces.Dict(a=box, b=gymnasium.spaces.Discrete(3)))
    envs = make_vec(lambda: env)
    envs.reset()
    env._sample = lambda: observation
    with pytest.raises(EnvironmentFailure, match=message):
        envs.step(np.zeros(1, np.int64))


def test_tuple_observations_must_match_their_length():
    env = SpaceEnv(gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)] * 2))
    envs = make_vec(lambda: env)
    envs.reset()
    env._sample = lambda: (1, 1, 1)
    with pytest.raises(EnvironmentFailure, match="a tuple of length 2, got a tuple of length 3"):
        envs.step(np.zeros(1, np.int64))


def test_step_before_reset():
    for make in (CountingEnv, lambda: SyncVectorEnv([CountingEnv])):
        with pytest.raises(EnvironmentFailure, match="call `reset` before `step`"):
            make_vec(make).step(np.zeros(1, np.int64))


def test_vector_environment_that_raises():
    def make():
        return SyncVectorEnv([lambda: FailingEnv(at=999), lambda: FailingEnv("raise", at=2)])

    message = r"environments 4 … 5, vector step 2: `step` raised ValueError: the simulator"
    with pytest.raises(EnvironmentFailure, match=message) as error:
        step_on(make_vec(EnvSpec(make, first_env=4)))
    assert isinstance(error.value.__cause__, ValueError)


def test_vector_environment_whose_reset_gives_nan():
    for mode in AutoresetMode:
        makers = [lambda: FailingEnv("reset_nan", episode_length=3)]
        envs = make_vec(lambda: SyncVectorEnv(makers, autoreset_mode=mode))  # noqa: B023
        with pytest.raises(
            EnvironmentFailure, match="environment 0, episode 1, at its reset: `obs"
        ):
            step_on(envs)


def test_same_step_without_final_obs():
    class WithoutInfo(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            return *self.env.step(actions)[:4], {}

    mode = AutoresetMode.SAME_STEP
    envs = make_vec(lambda: WithoutInfo(SyncVectorEnv([CountingEnv], autoreset_mode=mode)))
    with pytest.raises(EnvironmentFailure, match=r"must have `final_obs` .* got \[\]"):
        step_on(envs)


def test_vector_observations_of_the_wrong_shape():
    class FirstRowOnly(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            obs, *outputs = self.env.step(actions)
            return obs[:1], *outputs

    envs = make_vec(lambda: FirstRowOnly(SyncVectorEnv([CountingEnv] * 2)))
    with pytest.raises(EnvironmentFailure, match=r"must have shape \(2, 3\), got .* \(1, 3\)"):
        step_on(envs)


def collect(env, first_env: int = 0) -> tuple[Fragment, ObsSpec]:
    envs = make_vec(env, 2)
    fragment = Fragment.allocate(
        8,
        2,
        obs_shape=envs.obs_spec.shape,
        obs_dtype=envs.obs_spec.dtype,
        action_shape=(),
        action_dtype="int64",
        first_env=first_env,
    )
    envs.reset()
    for arrays in fragment.step_arrays():
        envs.step(np.zeros(2, np.int64), arrays)
    return fragment, envs.obs_spec


@pytest.mark.parametrize("failure", ["nan", "inf", "reward_nan"])
def test_check_finite_names_the_first_bad_value(failure):
    envs_to_make = iter([FailingEnv(at=999), FailingEnv(failure, at=5)])
    fragment, spec = collect(lambda: next(envs_to_make), first_env=10)
    field = "`reward`" if failure == "reward_nan" else r"`next_obs\[2\]`"
    value = "inf" if failure == "inf" else "nan"
    message = rf"environment 11, step 105 .*: {field} must be finite, got {value}"
    with pytest.raises(EnvironmentFailure, match=message):
        check_finite(fragment, spec, first_step=100)
    check_finite(fragment.rows(0, 5), spec)
    with pytest.raises(EnvironmentFailure):
        check_finite(fragment.rows(0, 6), spec)


def test_check_finite_accepts_uint8_and_finite_values():
    check_finite(*collect(CountingEnv))
    check_finite(*collect(lambda: SpaceEnv(gymnasium.spaces.Box(0, 255, (2, 2), np.uint8))))
    huge, spec = collect(CountingEnv)
    huge.next_obs[...] = np.finfo(np.float32).max  # their sum is infinite
    check_finite(huge, spec)
