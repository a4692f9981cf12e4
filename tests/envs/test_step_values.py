"""Rewards, flags and numbers in odd containers: the exact value, or an error at the first step."""

from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode

from hotloop.envs import EnvSpec, advice_for_non_finite, make_double_buffered, make_vec
from hotloop.errors import EnvironmentFailure, NonFiniteError, NonFiniteStep
from hotloop.rollouts.collector import check_rows

BOX = Box(-1, 1, (2,), np.float32)
GOOD = {"obs": np.zeros(2, np.float32), "reward": 1.0, "terminated": False, "truncated": False}
GOOD |= {"info": {}}


class Returns(gymnasium.Env):
    """An environment whose `step` returns fixed values. The first observation is `first`."""

    def __init__(self, space=BOX, first=GOOD["obs"], **values):
        self.observation_space, self.action_space = space, Discrete(2)
        self.first, self.values = first, {**GOOD, "obs": first, **values}

    def reset(self, *, seed=None, options=None):
        return self.first, {}

    def step(self, action):
        return tuple(self.values.values())


class ReturnsVector(gymnasium.vector.VectorEnv):
    """Two environments, as EnvPool has them: `step` returns fixed values of both."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, **values):
        self.num_envs, self.single_observation_space = 2, BOX
        self.single_action_space = Discrete(2)
        self.values = {
            "obs": np.zeros((2, 2), np.float32),
            "reward": np.ones(2),
            "terminated": np.zeros(2, np.bool_),
            "truncated": np.zeros(2, np.bool_),
            "info": {},
            **values,
        }

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions):
        return tuple(self.values.values())


def first_step(make, num_envs=2):
    envs = make()
    envs.reset()
    return envs.step(np.zeros(num_envs, np.int64))


def serial(**values):
    return make_vec(lambda: Returns(**values), 2)


def double_buffered(**values):
    return make_double_buffered(lambda: Returns(**values), 2)


def for_evaluation(**values):
    return make_vec(EnvSpec(lambda: Returns(**values), stream="evaluation"), 2)


def replaced_on_failure(**values):
    def fail(error):
        raise error

    return make_vec(lambda: Returns(**values), 2, on_failure=fail)


MODES = [serial, double_buffered, for_evaluation, replaced_on_failure]

REWARDS = [
    (1, 1.0),
    (True, 1.0),
    (np.bool_(True), 1.0),
    (np.int8(-3), -3.0),
    (np.uint64(2**40), 2.0**40),
    (np.float16(0.5), 0.5),
    (np.longdouble(0.25), 0.25),
    (np.array(0.25), 0.25),
    (np.array([[0.25]]), 0.25),
    (torch.tensor(0.25), 0.25),
    (torch.tensor([0.25], requires_grad=True), 0.25),
    (torch.tensor(3, dtype=torch.int32), 3.0),
]
BAD_REWARDS = [None, "1", "nan", [1.0], (1.0,), {}, 1j, np.array("a"), np.zeros(0), np.zeros(2)]
BAD_REWARDS += [torch.zeros(2), np.array(None), np.array(1j), [[]], b"1", np.ma.masked]


FLAGS = [
    (np.False_, False),
    (np.True_, True),
    (0, False),
    (1, True),
    (1.0, True),
    (np.array(False), False),
    (np.array([True]), True),
    (torch.tensor(False), False),
    (torch.tensor([True]), True),
]
BAD_FLAGS = [None, [False], [True], (False,), [], "", "False", 2, -1, 0.5, np.nan, {}, np.ones(2)]


@pytest.mark.parametrize("mode", MODES)
def test_one_number_is_the_reward(mode):
    for reward, value in REWARDS:
        rewards = first_step(partial(mode, reward=reward)).reward
        assert rewards.tolist() == [value, value], repr(reward)


def assert_refused(mode, message, **values):
    with pytest.raises(EnvironmentFailure, match=f"environment 0, episode 0, step 0: {message}"):
        first_step(partial(mode, **values))


@pytest.mark.parametrize("mode", MODES)
def test_other_rewards_are_refused(mode):
    for reward in BAD_REWARDS:
        assert_refused(mode, "the reward must be one number, got ", reward=reward)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_one_bool_is_the_flag(mode, name):
    other = "truncated" if name == "terminated" else "terminated"
    for flag, value in FLAGS:
        step = first_step(partial(mode, **{name: flag}))
        assert getattr(step, name).tolist() == [value, value], repr(flag)
        assert getattr(step, other).tolist() == [False, False], repr(flag)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_other_flags_are_refused(mode, name):
    for flag in BAD_FLAGS:
        assert_refused(mode, f"`{name}` must be True or False, got ", **{name: flag})


@pytest.mark.parametrize("mode", MODES)
def test_info_must_be_a_dict(mode):
    for info in (None, [], "", 0):
        assert_refused(mode, "`info` must be a dict, got ", info=info)


@pytest.mark.parametrize("reward", [[1, 2], (1, 2), torch.tensor([1.0, 2.0]), np.array([1, 2])])
def test_vector_rewards_are_two_numbers(reward):
    step = first_step(lambda: make_vec(lambda: ReturnsVector(reward=reward)))
    assert step.reward.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reward": None}, "the rewards must be 2 numbers, got None"),
        ({"reward": 1.0}, r"the rewards must be 2 numbers, got an array of shape \(\)"),
        ({"reward": [1.0, None]}, "the rewards must be 2 numbers, got a list of length 2"),
        ({"reward": ["nan", "1"]}, "the rewards must be 2 numbers, got an array"),
        ({"reward": [[1.0], [2.0]]}, r"the rewards must be 2 numbers, got .* \(2, 1\)"),
        ({"reward": [1.0, [2.0]]}, "the rewards must be 2 numbers, got a list of length 2"),
        ({"reward": torch.ones(2, requires_grad=True)}, "the rewards must be 2 numbers, got"),
        ({"reward": np.array([1.0, 1e39])}, r"reward of environment 1 must lie .* got 1e\+39"),
        ({"terminated": None}, "the terminations must be 2 numbers, got None"),
        ({"terminated": [False, None]}, "the terminations must be 2 numbers, got a list"),
        ({"truncated": np.array([0.0, 0.5])}, "must be True or False, got 0.5 in row 1"),
        ({"terminated": np.array([2, 0])}, "must be True or False, got 2 in row 0"),
        ({"info": None}, "`info` must be a dict, got None"),
    ],
)
def test_vector_values_of_wrong_kinds_are_refused(values, message):
    with pytest.raises(
        EnvironmentFailure, match=r"environments 0 … 1, vector step 0: .*" + message
    ):
        first_step(lambda: make_vec(lambda: ReturnsVector(**values)))


PAIR = Dict(position=Box(-1, 1, (2,), np.float32), speed=Box(-np.inf, np.inf, (3,), np.float64))
IMAGE = Dict(image=Box(0, 255, (9, 9), np.uint8), speed=Box(-np.inf, np.inf, (3,), np.float64))


def speeds(value, space=PAIR):
    obs = {name: np.zeros(part.shape, part.dtype) for name, part in space.items()}
    obs["speed"][1] = value
    return obs


RANGE = "the observation must lie within ±3.4e38"
TWO = {"space": Box(-np.inf, np.inf, (2,), np.float64), "first": np.zeros(2)}
OF_PAIR, OF_IMAGE = ({"space": x, "first": speeds(0, x)} for x in (PAIR, IMAGE))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reward": 1e39}, r"step 0: the reward must lie within ±3.4e38, .* got 1e\+39: scale"),
        ({"reward": -(10**40)}, r"step 0: the reward must lie within ±3.4e38, .* got -1e\+40"),
        ({"reward": 10**400}, "step 0: the reward is an integer beyond 1e308"),
        ({**OF_PAIR, "obs": speeds(-1e39)}, rf"step 0: part 'speed': {RANGE}, .* got -1e\+39"),
        ({**OF_IMAGE, "obs": speeds(1e200, IMAGE)}, rf"part 'speed': {RANGE}, .* got 1e\+200"),
        ({**OF_PAIR, "first": speeds(1e39)}, f"at its reset: part 'speed': {RANGE}"),
        ({**TWO, "obs": np.array([0.0, 1e39])}, rf"step 0: {RANGE}, .* got 1e\+39"),
    ],
)
def test_numbers_beyond_float32_are_named(mode, values, message):
    with pytest.raises(EnvironmentFailure, match="environment 0, episode 0, .*" + message) as error:
        first_step(lambda: mode(**values))
    if "integer" not in message:
        assert type(error.value) is NonFiniteStep  # a new environment would not help


def test_fields_that_are_not_finite_are_named():
    obs = speeds(np.inf)
    with pytest.raises(EnvironmentFailure, match=r"`obs\['speed'\]\[1\]` must be finite, got inf"):
        first_step(lambda: serial(space=PAIR, first=obs))
    spec = serial(space=PAIR, first=speeds(0)).obs_spec
    names = [spec.element_name([index]) for index in range(5)]
    assert names == [
        *(f"['position'][{k}]" for k in range(2)),
        *(f"['speed'][{k}]" for k in range(3)),
    ]
    spec = serial(space=IMAGE, first=speeds(0, IMAGE)).obs_spec
    assert spec.element_name([80]) == "['image'][8, 8]"
    assert spec.element_name([88]) == "['speed'][1]"  # after 81 + 3 bytes


@pytest.mark.parametrize(
    ("space", "first", "message"),
    [
        (
            Box(0, 2**62, (2,), np.int64),
            np.array([0, 1_700_000_000_000_000_000]),
            r"the observation has numbers as large as 1.7e\+18. .* are 1.37e\+11 apart",
        ),
        (Dict(time=Box(0, 2e9, (1,), np.float64)), {"time": np.array([1.7e9])}, "part 'time'"),
    ],
)
def test_numbers_that_float32_cannot_tell_apart_warn_once(space, first, message):
    with pytest.warns(RuntimeWarning, match=message) as seen:
        serial(space=space, first=first).reset()
    assert len(seen) == 1


@pytest.mark.parametrize("first_step", [0, 5])
def test_large_numbers_of_the_first_steps_warn_once(recwarn, first_step):
    space = Dict(time=Box(0, 2e9, (1,), np.float64), id=Box(0, 2e9, (1,), np.float64))
    spec = make_vec(lambda: Returns(space, {"time": np.zeros(1), "id": np.zeros(1)}), 1).obs_spec
    obs = np.zeros((3, 2, 2), np.float32)
    obs[:, :, 1] = 1.7e9  # `id`, of which the first observation warned
    next_obs = obs.copy()
    next_obs[1, 0, 0] = 1.6e9  # `time`
    rows = SimpleNamespace(obs=obs, next_obs=next_obs, reward=np.zeros((3, 2), np.float32))
    rows.first_env, rows.action = 0, np.zeros((3, 2), np.int64)
    rows.rows = lambda start, stop: rows
    slot = SimpleNamespace(head=np.zeros((3, 2, 2)), fragment=rows)
    check_rows(slot, 0, 3, spec, first_step)
    rows.obs, rows.next_obs = obs[:0], obs[:0]  # the first step failed
    check_rows(slot, 0, 0, spec, 0)
    texts = [str(warning.message) for warning in recwarn.list]
    assert len(texts) == (first_step == 0)
    assert all("the part 'time' of the observation has numbers as large as 1.6" in t for t in texts)


def test_usual_numbers_do_not_warn(recwarn):
    serial(space=Box(0, 2**62, (2,), np.int64), first=np.array([0, 2**24 - 1])).reset()
    for_evaluation(space=Box(0, 2**62, (2,), np.int64), first=np.array([0, 2**24])).reset()
    assert not recwarn.list


def test_large_observations_are_the_cause_of_nan_in_a_network():
    usual = "lower the learning rate, and check the scale of the rewards"
    for obs in (np.ones((3, 2), np.float32), np.full(2, 255, np.uint8)):
        assert advice_for_non_finite({"obs": obs}) == usual
    advice = advice_for_non_finite({"obs": np.array([[0.0, -1.7e18]], np.float32)})
    assert advice.startswith("scale the observations, which are as large as 1.7e+18,")
    batch = {"obs": np.array([[0.0, -1.7e18]], np.float32)}
    assert advice_for_non_finite(batch, is_scaled=True) == usual
    # The batch of an off-policy update may be lost.
    assert advice_for_non_finite({}, stored=batch) == advice
    assert "the scale of the observations and of the rewards" in advice_for_non_finite({})


def test_a_policy_that_gives_nan_gets_the_same_advice():
    rows = SimpleNamespace(obs=np.full((3, 1, 2), 1e20, np.float32), first_env=0)
    slot = SimpleNamespace(head=np.full((3, 1, 2), np.nan), fragment=rows)
    spec = serial().obs_spec
    with pytest.raises(NonFiniteError, match=r"outputs .* step 7 .*: scale the obs.* as 1e\+20,"):
        check_rows(slot, 0, 2, spec, 7)


@pytest.mark.parametrize("name", ["reward", "returns"])
@pytest.mark.parametrize("value", [3e38, -1e19, np.inf, np.nan])
def test_large_rewards_are_the_cause_of_nan_in_an_update(name, value):
    batch = {"obs": np.ones((2, 3), np.float32), name: np.array([1, value], np.float32)}
    assert advice_for_non_finite(batch).startswith("scale the rewards down in the environment")


def test_large_observations_raise_no_warning_of_numpy(recwarn):
    space, obs = Box(-np.inf, np.inf, (2,), np.float64), np.full(2, 1e30)
    envs = serial(space=space, first=np.zeros(2), obs=obs)
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    assert not recwarn.list
