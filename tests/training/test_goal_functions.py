"""`compute_reward` and `compute_terminated` get the space's own values, and return one number."""

import itertools
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from hotloop.envs import EnvSpec, make_vec
from hotloop.errors import ConfigError, EnvironmentFailure
from hotloop.training.goal_functions import GoalFunctions
from hotloop.training.hindsight import Hindsight
from hotloop.types import Fragment


class Goals(gymnasium.Env):
    """Random goals of a space, with any functions of pairs."""

    def __init__(self, space, compute_reward, compute_terminated=None, desired=None):
        self.observation_space = Dict(
            image=Box(0, 255, (8, 8), np.uint8) if space.shape == (2, 2) else Discrete(3),
            achieved_goal=space,
            desired_goal=desired or space,
        )
        self.action_space = Discrete(2)
        self.compute_reward = compute_reward
        if compute_terminated is not None:
            self.compute_terminated = compute_terminated
        self.num_closed = 0

    def close(self):
        self.num_closed += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}


def encoded_goals(env, count):
    """Return the fields, encoded goals and the environment's own values."""
    envs = make_vec(lambda: env, 1)
    fields = {field.name: field for field in envs.obs_spec.layout}
    rows, values = [], []
    plain_reset = env.reset

    def reset(**options):
        obs, info = plain_reset(**options)
        values.append(obs)
        return obs, info

    envs._resets = [reset]
    for _ in range(count):
        rows.append(envs.reset()[0])
    parts = envs.obs_spec.unflatten(np.stack(rows))
    return fields["achieved_goal"], parts, values


SPACES = [
    Discrete(16),
    Discrete(5, start=3),
    MultiDiscrete([3, 4]),
    MultiDiscrete([3, 4], start=[-2, 10]),
    MultiDiscrete([[3, 4], [2, 5]]),
    MultiBinary(4),
    MultiBinary((2, 3)),
    Box(-1, 1, (), np.float32),
    Box(-1, 1, (1,), np.float32),
    Box(-1, 1, (2, 3), np.float64),
    Box(-np.inf, np.inf, (3,), np.float32),
    Box(-5, 5, (3,), np.int8),
    Box(0, 9, (2, 2), np.uint8),
]


def distance(achieved, desired, info):
    difference = np.abs(np.asarray(achieved, float) - np.asarray(desired, float))
    return -difference.sum() if difference.ndim else -difference


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_functions_receive_values_of_the_space(space):
    space.seed(1)

    def checked(achieved, desired, info):
        assert info == {}
        assert space.contains(achieved), achieved
        assert space.contains(desired), desired
        return distance(achieved, desired, info)

    env = Goals(space, checked)
    field, parts, values = encoded_goals(env, 30)
    functions = GoalFunctions(EnvSpec(lambda: env), field)
    achieved, desired = parts["achieved_goal"][:-1], parts["achieved_goal"][1:]
    pairs = itertools.pairwise(values)
    expected = [distance(a["achieved_goal"], d["achieved_goal"], {}) for a, d in pairs]
    np.testing.assert_allclose(functions.reward(achieved, desired), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "num_calls"),
    [
        (lambda a, d, info: -np.abs(a - d), 1),
        (lambda a, d, info: -float(np.abs(a - d).sum()), 50),
        (lambda a, d, info: 0.0 if a == d else -1.0, 50),
        (lambda a, d, info: float(np.all(a >= d)) - 1.0, 50),
        (lambda a, d, info: -np.abs(a - d)[None] if np.ndim(a) else -abs(int(a - d)), 50),
    ],
)
def test_batches_are_passed_if_they_give_the_same(function, num_calls):
    calls = []

    def counted(achieved, desired, info):
        calls.append(np.shape(achieved))
        return function(achieved, desired, info)

    env = Goals(Discrete(16), counted)
    field, parts, values = encoded_goals(env, 51)
    functions = GoalFunctions(EnvSpec(lambda: env), field)
    calls.clear()
    rewards = functions.reward(parts["achieved_goal"][:-1], parts["achieved_goal"][1:])
    numbers = [obs["achieved_goal"] for obs in values]
    expected = [function(a, d, {}) for a, d in itertools.pairwise(numbers)]
    np.testing.assert_array_equal(rewards, expected)
    assert len(calls) == num_calls


def test_a_side_of_the_goal_is_not_taken_for_the_batch():
    # For goals of 24 numbers, a batch of 24 would give 24 numbers too, along the wrong axis.
    env = Goals(Box(-1, 1, (24,), np.float32), lambda a, d, info: -abs(a[0] - d[0]))
    field, parts, _ = encoded_goals(env, 25)
    achieved, desired = parts["achieved_goal"][:-1], parts["achieved_goal"][1:]
    rewards = GoalFunctions(EnvSpec(lambda: env), field).reward(achieved, desired)
    np.testing.assert_array_equal(rewards, -np.abs(achieved[:, 0] - desired[:, 0]))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "the reward must be one number, got None"),
        ("1", "the reward must be one number, got '1'"),
        ([1.0], "the reward must be one number, got a list of length 1"),
        (np.zeros(2), r"the reward must be one number, got an array of shape \(2,\)"),
        (1j, "the reward must be one number, got 1j"),
        (10**400, "the reward is an integer beyond 1e308"),
    ],
)
def test_compute_reward_must_return_one_number(result, message):
    env = Goals(Discrete(4), lambda a, d, info: result)
    place = r"`compute_reward`, with achieved goal np.int64\(\d\) and desired goal .*: "
    with pytest.raises(EnvironmentFailure, match=place + message):
        GoalFunctions(EnvSpec(lambda: env), encoded_goals(env, 1)[0])


@pytest.mark.parametrize("result", [-2, np.float64(-2), np.array(-2), np.array([-2.0])])
def test_one_number_may_be_an_array_of_one_element(result):
    env = Goals(Box(-1, 1, (1,), np.float32), lambda a, d, info: result)
    field, parts, _ = encoded_goals(env, 3)
    rewards = GoalFunctions(EnvSpec(lambda: env), field).reward(*[parts["achieved_goal"]] * 2)
    assert rewards.tolist() == [-2, -2, -2]


def test_errors_show_arrays_of_goals_in_one_line():
    env = Goals(Box(-1, 1, (2, 2), np.float32), lambda a, d, info: None)
    with pytest.raises(EnvironmentFailure, match=r"achieved goal \[\[.*\]\] and desired") as error:
        GoalFunctions(EnvSpec(lambda: env), encoded_goals(env, 1)[0])
    assert "\n" not in str(error.value)


def test_exceptions_and_missing_functions():
    def broken(achieved, desired, info):
        raise KeyError("is_success")

    env = Goals(Discrete(4), broken)
    with pytest.raises(EnvironmentFailure, match="`compute_reward` raised KeyError: 'is_success'"):
        GoalFunctions(EnvSpec(lambda: env), encoded_goals(env, 1)[0])
    env.compute_reward = lambda achieved, desired, info: sys.exit(3)
    with pytest.raises(EnvironmentFailure, match="`compute_reward` raised SystemExit: 3"):
        GoalFunctions(EnvSpec(lambda: env), encoded_goals(env, 1)[0])
    env.compute_reward = None
    with pytest.raises(ConfigError, match="and Goals has none: add it"):
        GoalFunctions(EnvSpec(lambda: env), encoded_goals(env, 1)[0])
    assert env.num_closed == 3  # after each error
    env = Goals(Discrete(4), lambda a, d, info: 0.0, lambda a, d, info: None)
    with pytest.raises(
        EnvironmentFailure, match=r"`compute_terminated`.* the flag must be True or"
    ):
        GoalFunctions(EnvSpec(lambda: env), encoded_goals(env, 1)[0])


@pytest.mark.parametrize("flag", [2, np.nan])
def test_each_flag_of_a_batch_is_true_or_false(flag):
    flags = [1.0]

    def compute(achieved, desired, info):
        return np.full(np.shape(achieved)[:-1], flags[-1])

    env = Goals(Box(-1, 1, (1,), np.float32), compute, compute)
    field, parts, _ = encoded_goals(env, 3)
    functions = GoalFunctions(EnvSpec(lambda: env), field)
    pairs = [parts["achieved_goal"]] * 2
    assert functions.terminated(*pairs).all()
    flags.append(flag)
    with pytest.raises(EnvironmentFailure, match=rf"True or False for each pair, got {flag}"):
        functions.terminated(*pairs)


def make_hindsight(env):
    config = SimpleNamespace(
        hindsight="final",
        hindsight_share=1.0,
        buffer_size=40,
        seed=1,
        env_kwargs={},
        clip_reward=None,
    )
    return Hindsight(config, EnvSpec(lambda: env), make_vec(lambda: env, 1).obs_spec, 1)


@pytest.mark.parametrize(
    ("achieved", "desired"),
    [
        (Discrete(4), Discrete(4, start=1)),
        (MultiBinary(2), Box(0, 1, (2,), np.int8)),
        (Box(-1, 1, (2,)), Box(-1, 1, (3,))),
    ],
)
def test_goals_must_be_of_one_kind(achieved, desired):
    env = Goals(achieved, lambda a, d, info: 0.0, desired=desired)
    with pytest.raises(ConfigError, match=r"goals of one kind and shape, got .* achieved and"):
        make_hindsight(env)


def relabel(env, *, is_fall=False):
    """Return the terminations and rewards after relabeling 4 steps to the last one's goal."""
    hindsight = make_hindsight(env)
    spec = hindsight._spec
    fragment = Fragment.allocate(
        4,
        1,
        obs_shape=spec.shape,
        obs_dtype="float32",
        action_shape=(),
        action_dtype="int64",
    )
    # It moves to 0, 2, 1, 2. The desired goal is 2 at the end, or 3 if it falls.
    parts = spec.unflatten(fragment.next_obs)
    parts["achieved_goal"][range(4), 0, [0, 2, 1, 2]] = 1
    parts["desired_goal"][:, 0, 3 if is_fall else 2] = 1
    fragment.terminated[-1] = True
    hindsight.add(fragment, 0)
    batch = SimpleNamespace(
        index=np.arange(4),
        obs=fragment.obs[:, 0].copy(),
        next_obs=fragment.next_obs[:, 0].copy(),
        reward=np.zeros(4, np.float32),
        terminated=fragment.terminated[:, 0].copy(),
    )
    hindsight.relabel(batch)
    return batch.terminated.tolist(), batch.reward.tolist()


def test_transitions_terminate_at_their_new_goal():
    def is_equal(achieved, desired, info):
        return achieved == desired

    env = Goals(Discrete(4), lambda a, d, info: -abs(a - d), is_equal)
    assert relabel(env) == ([False, True, False, True], [-2, 0, -1, 0])
    # Success ends no episode. The last step ended by another cause, such as a fall.
    env = Goals(Discrete(4), lambda a, d, info: -abs(a - d), lambda a, d, info: False)
    assert relabel(env, is_fall=True)[0] == [False, False, False, True]


def test_terminations_of_unknown_cause_warn_once():
    env = Goals(Discrete(4), lambda a, d, info: -abs(a - d))
    with pytest.warns(RuntimeWarning, match="Give the environment `compute_terminated") as seen:
        assert relabel(env)[0] == [False, False, False, True]
    assert len(seen) == 1


def test_rewards_must_be_finite():
    with np.errstate(divide="ignore"):
        env = Goals(Discrete(4), lambda a, d, info: -1.0 / np.abs(a - d), lambda a, d, info: a == d)
        with pytest.raises(EnvironmentFailure, match=r"within ±3.4e38, got -inf for .* by zero"):
            relabel(env)


def test_rewards_must_lie_in_the_range_of_float32(recwarn):
    env = Goals(Discrete(4), lambda a, d, info: 1e300, lambda a, d, info: False)
    with pytest.raises(EnvironmentFailure, match=r"got 1e\+300 for .*: scale it down"):
        relabel(env)
    assert not recwarn.list
