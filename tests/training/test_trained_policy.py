"""Loaded policies: observations of environments, checkpoints, and evaluations."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import hotloop
from hotloop.algorithms import ppo
from hotloop.envs import EnvSpec, make_vec
from hotloop.envs.encoding import ObsEncoder, RowWriter
from hotloop.envs.spaces import ObsSpec
from hotloop.errors import CheckpointError, ConfigError, RunDirectoryError, ShapeError, SpaceError

IMAGE = spaces.Box(0, 255, (16, 16, 3), np.uint8)
PLACE = spaces.Box(-1.0, 1.0, (2,), np.float32)
SPACES = {
    "box": PLACE,
    "number": spaces.Box(-1.0, 1.0, (), np.float32),
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 4], start=[1, -1]),
    "grid": spaces.MultiDiscrete([[3, 4], [2, 2]]),
    "binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(place=PLACE, room=spaces.Discrete(3), lamps=spaces.MultiBinary(2)),
    "tuple": spaces.Tuple((spaces.Discrete(4, start=1), PLACE)),
    "dict with an image": spaces.Dict(seen=IMAGE, room=spaces.Discrete(3)),
    "dict of one": spaces.Dict(room=spaces.Discrete(3)),
}


def batch_of(observations):
    first = observations[0]
    if isinstance(first, dict):
        return {key: np.stack([obs[key] for obs in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(np.stack(parts) for parts in zip(*observations, strict=True))
    return np.stack(observations)


class RandomObservations(gymnasium.Env):
    """An environment with random observations of a space and constant rewards."""

    def __init__(self, space="dict", length=4):
        self.observation_space, self.length = SPACES[space], length
        self.action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action in self.action_space
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == self.length, False, {}


def train(tmp_path, **options):
    config = ppo.Config(
        **{
            "env_id": "tests.training.test_trained_policy:RandomObservations",
            "total_timesteps": 32,
            "num_envs": 2,
            "num_steps": 8,
            "num_minibatches": 2,
            "hidden_sizes": (8,),
            "execution": "eager",
            "torch_threads": 1,
            "run_dir": str(tmp_path / "run"),
            **options,
        }
    )
    return ppo.train(config)


@pytest.mark.parametrize("name", SPACES)
def test_rows_equal_those_of_the_encoder(name):
    encoder = ObsEncoder(SPACES[name])
    spec = ObsSpec.from_json(encoder.spec.to_json())
    assert spec == encoder.spec
    writer = RowWriter(spec)
    space = SPACES[name]
    space.seed(3)
    observations = [space.sample() for _ in range(4)]
    expected = np.zeros((4, *spec.shape), spec.dtype)
    for row, obs in zip(expected, observations, strict=True):
        encoder.write(obs, row)
    rows, is_single = writer.rows(observations[0])
    assert is_single
    np.testing.assert_array_equal(rows, expected[:1])
    rows, is_single = writer.rows(batch_of(observations))
    assert not is_single
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("name", ["discrete", "multi-discrete", "dict", "tuple", "dict of one"])
def test_policy_accepts_its_environments_observations(tmp_path, name):
    train(tmp_path, env_kwargs={"space": name})
    policy = hotloop.load(tmp_path / "run")
    env = RandomObservations(name)
    observations = [env.reset(seed=k)[0] for k in range(3)]
    spec = policy.network.obs_spec
    rows = np.zeros((3, *spec.shape), spec.dtype)
    for row, obs in zip(rows, observations, strict=True):
        RowWriter(spec).write(obs, row)
    expected = policy.act(rows)
    np.testing.assert_array_equal(policy.act(batch_of(observations)), expected)
    for obs, action in zip(observations, expected, strict=True):
        assert policy.act(obs) == action
        env.step(policy.act(obs))


@pytest.mark.parametrize(
    ("name", "obs", "message"),
    [
        ("discrete", 9, "must lie in"),
        ("discrete", "two", "must be integers"),
        ("dict", {"place": [0.0, 0.0]}, r"must have the keys \['place', 'room', 'lamps'\]"),
        ("dict", {"place": [0.0], "room": 1, "lamps": [0, 1]}, "part 'place': .* shape"),
        ("dict", [1.0, 2.0], "a dict with 'place', 'room', 'lamps'"),
        ("tuple", (1,), "a tuple of length 2"),
    ],
)
def test_observations_of_another_shape_are_refused(tmp_path, name, obs, message):
    policy = train(tmp_path, env_kwargs={"space": name}).policy
    with pytest.raises(ShapeError, match=message):
        policy.act(obs)


def test_specs_without_stored_shapes_are_refused():
    encoder = ObsEncoder(SPACES["discrete"])
    values = encoder.spec.to_json()
    for part in values["layout"]:
        for key in ("raw_shape", "counts", "starts"):
            del part[key]
    with pytest.raises(SpaceError, match="was not stored"):
        RowWriter(ObsSpec.from_json(values))


def test_checkpoints_are_found_by_path_or_name(tmp_path, trained_run):
    run = trained_run("ppo")
    last = hotloop.load(run)
    for path in (str(run), run / "checkpoints" / "last"):
        for name, array in hotloop.load(path).snapshot.params.items():
            np.testing.assert_array_equal(array, last.snapshot.params[name])
    assert hotloop.load(run, "best").version <= last.version == 4
    with pytest.raises(ConfigError, match="must be left out if the path names one"):
        hotloop.load(run / "checkpoints" / "last", "best")
    with pytest.raises(CheckpointError, match="first"):
        hotloop.load(run, "first")
    with pytest.raises(RunDirectoryError, match=r"which has no config.json: `hotloop runs`"):
        hotloop.load(tmp_path)
    (tmp_path / "seed_1").mkdir()
    (tmp_path / "seed_1" / "config.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"choose a run in it, such as .*/seed_1$"):
        hotloop.load(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"nowhere, which does not exist: `hotloop runs`"):
        hotloop.load(tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match=r"did you mean '/.*/seed_1'"):
        hotloop.load(tmp_path / "seed1")
    with pytest.raises(ConfigError, match="`episodes` must be a positive integer, got '3'"):
        hotloop.evaluate(run, episodes="3")
    with pytest.raises(ConfigError, match="`algorithm` must be a name, such as 'ppo', or an al"):
        hotloop.train(EnvSpec, "ppo")


def test_evaluations_play_the_same_episodes_each_time(trained_run):
    run = trained_run("ppo")
    first, second = (hotloop.evaluate(run, episodes=5) for _ in range(2))
    assert first == second
    assert len(first.returns) == 5
    assert first.lengths == [round(x) for x in first.returns]
    assert first.mean_return == pytest.approx(np.mean(first.returns))
    assert str(first).endswith("over 5 episodes")
    assert hotloop.evaluate(run, episodes=5, seed=7).returns != first.returns


def test_evaluation_on_other_environments(tmp_path):
    train(tmp_path)
    run = tmp_path / "run"
    assert hotloop.evaluate(run, episodes=3).lengths == [4, 4, 4]
    longer = hotloop.evaluate(run, lambda: RandomObservations(length=6), episodes=3)
    assert longer.lengths == [6, 6, 6]
    shorter = EnvSpec(RandomObservations, {"length": 2})
    assert hotloop.evaluate(run, shorter, episodes=1).lengths == [2]
    with pytest.raises(CheckpointError, match="other spaces than 'CartPole-v1'"):
        hotloop.evaluate(run, "CartPole-v1")
    for options in ({"episodes": 0}, {"seed": -1}):
        with pytest.raises(ConfigError, match="got"):
            hotloop.evaluate(run, **options)


def test_policy_accepts_encoded_rows(tmp_path):
    policy = train(tmp_path, env_kwargs={"space": "tuple"}).policy
    envs = make_vec(
        EnvSpec("tests.training.test_trained_policy:RandomObservations", {"space": "tuple"}), 2
    )
    assert policy.act(envs.reset()).shape == (2,)
    envs.close()
