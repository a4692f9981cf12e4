"""Spaces are flattened like Gymnasium's, and actions get the form that environments take."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from hotloop.envs import ActionSpec, ObsField, ObsSpec, make_vec
from hotloop.errors import ShapeError, SpaceError, install_command
from tests.envs.toy import SpaceEnv

FLOATS = spaces.Box(-1, 1, (2, 3), np.float32)
FLAT = {
    "box": spaces.Box(-1, 1, (5,), np.float32),
    "box_float64": spaces.Box(-1, 1, (2,), np.float64),
    "box_int": spaces.Box(-9, 9, (4,), np.int32),
    "discrete": spaces.Discrete(5),
    "discrete_start": spaces.Discrete(3, start=-1),
    "multi_discrete": spaces.MultiDiscrete([2, 3, 4]),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi_binary": spaces.MultiBinary(4),
    "dict": spaces.Dict(
        {
            "position": FLOATS,
            "gear": spaces.Discrete(4, start=1),
            "lights": spaces.MultiBinary([2, 2]),
            "a_count": spaces.Box(0, 255, (2,), np.uint8),
            "choice": spaces.MultiDiscrete([3, 2]),
        }
    ),
    "tuple": spaces.Tuple((spaces.Discrete(3), FLOATS, spaces.Box(0, 1, (), np.float32))),
}


@pytest.mark.parametrize("name", FLAT)
def test_observations_are_flattened_like_gymnasiums(name):
    space = FLAT[name]
    singles: list[SpaceEnv] = []

    def make() -> SpaceEnv:
        singles.append(SpaceEnv(space))
        return singles[-1]

    factories = [
        make,
        lambda: SyncVectorEnv([make] * 3),
        lambda: SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.SAME_STEP),
    ]
    for factory in factories:
        singles.clear()
        envs = make_vec(factory, 3)
        observations = [
            envs.reset(),
            *(envs.step(np.zeros(3, np.int64)).obs.copy() for _ in range(5)),
        ]
        for t, obs in enumerate(observations):
            for i, single in enumerate(singles):
                flat = spaces.flatten(space, single.observations[t])
                assert obs.dtype == envs.obs_spec.dtype == "float32"
                assert obs[i].shape == envs.obs_spec.shape
                np.testing.assert_array_equal(obs[i].reshape(-1), flat.astype(np.float32))


def test_choices_may_have_dtype_uint64():
    env = SpaceEnv(spaces.MultiDiscrete([1, 1], dtype=np.uint64, start=[3, 5]))
    assert make_vec(lambda: env).reset().tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", FLAT)
def test_obs_spec_survives_json(name):
    spec = make_vec(lambda: SpaceEnv(FLAT[name])).obs_spec
    assert ObsSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert hash(ObsSpec.from_json(spec.to_json())) == hash(spec)


def test_layout_of_a_dict():
    spec = make_vec(lambda: SpaceEnv(FLAT["dict"])).obs_spec
    widths = {"position": 6, "gear": 4, "lights": 4, "a_count": 2, "choice": 5}
    assert [field.name for field in spec.layout] == list(FLAT["dict"].spaces)
    assert {field.name: field.stop - field.start for field in spec.layout} == widths
    assert spec.shape == (21,)
    by_name = {field.name: field for field in spec.layout}
    assert by_name["position"].shape == (2, 3)
    assert by_name["gear"].encoding == by_name["choice"].encoding == "one_hot"
    assert by_name["lights"].encoding == "binary"


def test_unflatten_returns_views_of_the_parts():
    env = SpaceEnv(FLAT["dict"])
    envs = make_vec(lambda: env)
    obs = envs.reset()
    spec = envs.obs_spec
    for leading in ((1,), (), (2, 3)):
        parts = spec.unflatten(np.broadcast_to(obs[0], (*leading, 21)).copy())
        (expected,) = env.observations
        np.testing.assert_array_equal(
            parts["position"], np.broadcast_to(expected["position"], (*leading, 2, 3))
        )
        assert parts["gear"].shape == (*leading, 4)
        assert (parts["gear"].argmax(-1) + 1 == expected["gear"]).all()
    spec.unflatten(obs)["position"][...] = 7
    field = next(field for field in spec.layout if field.name == "position")
    assert (obs[0, field.start : field.stop] == 7).all()
    with pytest.raises(ShapeError, match=r"must have shape \(…, 21\), got \(20,\)"):
        spec.unflatten(np.zeros(20))


def test_plain_box_has_one_nameless_field():
    spec = make_vec("CartPole-v1").obs_spec
    field = ObsField(name="", start=0, stop=4, shape=(4,), encoding="box")
    assert spec == ObsSpec(shape=(4,), dtype="float32", layout=(field,))
    assert spec.unflatten(np.zeros((7, 4)))[""].shape == (7, 4)


def test_uint8_observations_stay_uint8():
    env = SpaceEnv(spaces.Box(0, 255, (3, 8, 8), np.uint8))
    envs = make_vec(lambda: env)
    obs = envs.reset()
    result = envs.step(np.zeros(1, np.int64))
    assert envs.obs_spec.dtype == obs.dtype == result.obs.dtype == np.uint8
    assert obs.shape == (1, 3, 8, 8)
    np.testing.assert_array_equal(obs[0], env.observations[0])
    np.testing.assert_array_equal(result.next_obs[0], env.observations[1])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(4), r"got Text\(.*ObservationWrapper"),
        (spaces.Sequence(spaces.Discrete(2)), r"got Sequence\("),
        (spaces.Graph(FLOATS, None), r"got Graph\("),
        (spaces.OneOf([FLOATS, spaces.Discrete(2)]), r"got OneOf\("),
        (spaces.Dict(a=spaces.Dict(b=FLOATS)), r"its part 'a', Dict\(.*FlattenObservation"),
        (spaces.Tuple([FLOATS, spaces.Tuple([FLOATS])]), r"its part 1, Tuple\(.*FlattenObs"),
        (spaces.Dict(a=spaces.Text(4)), r"its part 'a', Text\("),
        (spaces.Box(0, 1, (0,), np.float32), "holds no numbers"),
    ],
)
def test_observation_spaces_that_are_not_supported(space, message):
    env = SpaceEnv(space)
    env.close = lambda: env.observations.append("closed")
    with pytest.raises(SpaceError, match=message):
        make_vec(lambda: env)
    assert env.observations == ["closed"]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.MultiBinary((2, 3)), "one axis of 6 components"),
        (spaces.MultiDiscrete([[2, 3]]), "one axis of 2 components"),
        (spaces.Box(0, 1, (), np.float32), "Box of float32"),
        (spaces.Dict(a=spaces.Dict(b=FLOATS)), "its part 'a', Dict.*one Dict or Tuple with"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), "its part 1, Text.*ActionWrapper"),
        (spaces.Dict(), "has no parts"),
        (spaces.Dict({1: spaces.Discrete(2)}), "got 1 in Dict.*: name the parts with strings"),
        (spaces.Text(3), "ActionWrapper"),
    ],
)
def test_action_spaces_that_are_not_supported(space, message):
    with pytest.raises(SpaceError, match=message):
        make_vec(lambda: SpaceEnv(FLOATS, space))


def directly_and_vectorized(space: spaces.Space):
    """Yield the environment that acts, stepped directly and in a vector environment."""
    for is_vector in (False, True):
        env = SpaceEnv(FLOATS, space)
        single = functools.partial(lambda env: env, env)
        envs = make_vec(functools.partial(SyncVectorEnv, [single]) if is_vector else single)
        envs.reset()
        yield env, envs


def test_discrete_actions_get_their_offset():
    for env, envs in directly_and_vectorized(spaces.Discrete(3, start=1)):
        assert envs.action_spec == ActionSpec(
            kind="discrete", shape=(), dtype="int64", num_actions=3, start=1
        )
        for action in range(3):
            envs.step(np.array([action]))
        assert env.actions == [1, 2, 3]


def test_multi_discrete_actions_get_their_offsets():
    for env, envs in directly_and_vectorized(spaces.MultiDiscrete([2, 3], start=[5, -1])):
        assert envs.action_spec == ActionSpec(
            kind="multi_discrete", shape=(2,), dtype="int64", nvec=(2, 3), starts=(5, -1)
        )
        envs.step(np.array([[1, 2]]))
        assert env.action_space.contains(env.actions[0])
        assert env.actions[0].tolist() == [6, 1]


MIXED = {  # sorted as in a Dict space
    "gear": spaces.Discrete(3, start=1),
    "pedals": spaces.Box(np.array([[0.0, -1.0]]), np.array([[2.0, np.inf]]), dtype=np.float32),
    "ratio": spaces.Box(0, 10, (1,), np.int32),
    "signals": spaces.MultiBinary(2),
    "throttle": spaces.Box(-1.0, 1.0, (), np.float64),
}


@pytest.mark.parametrize("is_tuple", [False, True])
def test_actions_with_parts_have_the_form_of_their_space(is_tuple):
    space = spaces.Tuple(tuple(MIXED.values())) if is_tuple else spaces.Dict(MIXED)
    for env, envs in directly_and_vectorized(space):
        spec = envs.action_spec
        assert (spec.kind, spec.shape, spec.dtype) == ("hybrid", (7,), "float32")
        assert (spec.nvec, spec.starts) == ((3, 2, 2), (1, 0, 0))
        assert spec.low == (0.0, -1.0, 0.0, -1.0)
        # The components of all discrete parts come first.
        envs.step(np.float32([[2, 0, 1, -5.0, 0.25, 6.6, 3.0]]))
        action = env.actions[0]
        assert space.contains(action)
        parts = action if is_tuple else [action[name] for name in MIXED]
        assert type(action) is (tuple if is_tuple else dict)
        assert [np.asarray(x).tolist() for x in parts] == [3, [[0.0, 0.25]], [7], [0, 1], 1.0]
        dtypes = [np.asarray(x).dtype for x in parts[1:]]
        assert dtypes == [np.float32, np.int32, np.int8, np.float64]


def test_parts_of_one_kind_need_no_hybrid_head():
    boxes = spaces.Dict(a=FLOATS, b=spaces.Box(0.0, 1.0, (), np.float32))
    choices = spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(3)])
    specs = [make_vec(lambda x=x: SpaceEnv(FLOATS, x)).action_spec for x in (boxes, choices)]
    assert [spec.kind for spec in specs] == ["box", "multi_discrete"]
    assert specs[1].nvec == (2, 2, 2, 2)


def test_multi_binary_actions():
    for env, envs in directly_and_vectorized(spaces.MultiBinary(3)):
        assert envs.action_spec.nvec == (2, 2, 2)
        envs.step(np.array([[1, 0, 1]]))
        assert env.action_space.contains(env.actions[0])
        assert (env.actions[0].tolist(), env.actions[0].dtype) == ([1, 0, 1], np.int8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_box_actions_are_clipped_copies(dtype):
    space = spaces.Box(np.array([[-1, -2]]), np.array([[1, np.inf]]), dtype=dtype)
    for env, envs in directly_and_vectorized(space):
        assert envs.action_spec == ActionSpec(
            kind="box", shape=(1, 2), dtype="float32", low=(-1.0, -2.0), high=(1.0, float("inf"))
        )
        action = np.array([[[5, -5]]], np.float32)
        envs.step(action)
        assert action.tolist() == [[[5, -5]]]
        assert env.actions[0].tolist() == [[1, -2]]
        assert env.actions[0].dtype == dtype
        first_action = env.actions[0]
        envs.step(np.array([[[0.5, 9]]], np.float32))
        assert first_action.tolist() == [[1, -2]], "an environment may keep the action it got"
        assert env.actions[1].tolist() == [[0.5, 9]]


@pytest.mark.parametrize("shape", [(3,), (1, 1), ()])
def test_actions_of_the_wrong_shape(shape):
    for _, envs in directly_and_vectorized(spaces.Discrete(3)):
        with pytest.raises(ShapeError, match=r"`action` must be an array of shape \(1,\), got"):
            envs.step(np.zeros(shape, np.int64))


def test_action_spec_survives_json():
    for space in (
        spaces.Discrete(3, start=1),
        spaces.MultiDiscrete([2, 3], start=[5, -1]),
        spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32)),
        spaces.Dict(MIXED),
    ):
        spec = make_vec(lambda space=space: SpaceEnv(FLOATS, space)).action_spec
        text = json.dumps(spec.to_json(), allow_nan=False)
        assert ActionSpec.from_json(json.loads(text)) == spec


@pytest.mark.parametrize(
    ("space", "damage"),
    [
        (spaces.Discrete(3), {"num_actions": 0}),
        (spaces.Discrete(3), {"start": 2**63}),
        (spaces.Discrete(3), {"dtype": "../x"}),
        (spaces.Discrete(3), {"kind": "binary"}),
        (spaces.Discrete(3), {"shape": [2]}),
        (spaces.MultiDiscrete([3, 2]), {"nvec": [3, -2]}),
        (spaces.MultiDiscrete([3, 2]), {"starts": [0]}),
        (spaces.Box(-1.0, 1.0, (2,)), {"shape": [-2]}),
        (spaces.Box(-1.0, 1.0, (2,)), {"space_dtype": "object"}),
        (spaces.Box(-1.0, 1.0, (2,)), {"low": [-1.0] * 3, "high": [1.0] * 3}),
    ],
)
def test_damaged_specs_of_actions_are_refused(space, damage):
    values = make_vec(lambda: SpaceEnv(FLOATS, space)).action_spec.to_json()
    with pytest.raises(ValueError, match="do not fit"):
        ActionSpec.from_json(values | damage)


def test_environments_must_have_the_same_spaces():
    envs = [SpaceEnv(FLOATS), SpaceEnv(FLAT["box"])]
    with pytest.raises(SpaceError, match=r"observation space of environment 0.*environment 1 has"):
        make_vec(iter(envs).__next__, 2)
    envs = [SpaceEnv(FLOATS), SpaceEnv(FLOATS, spaces.Discrete(5))]
    with pytest.raises(SpaceError, match="action space of environment 0"):
        make_vec(iter(envs).__next__, 2)


def test_specs_need_no_gymnasium():
    """Checkpoints are evaluated on machines without an environment library."""
    script = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from hotloop.envs import ActionSpec, ObsSpec, make_vec\n"
        "spec = ObsSpec.from_json({'shape': [4], 'dtype': 'float32', 'layout': []})\n"
        "assert spec.shape == (4,)\n"
        "try: make_vec('CartPole-v1')\n"
        "except ImportError as error: print(error)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert install_command("train") in process.stdout
