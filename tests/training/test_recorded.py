"""Data sets of Minari: batches with a share of recorded steps, bad data, and recording."""

import io
import json
import os
import sys
import warnings
from types import SimpleNamespace

import gymnasium
import h5py
import minari
import numpy as np
import PIL.Image
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import hotloop
from hotloop.algorithms import dqn, sac, td3
from hotloop.envs.action_decoder import ActionDecoder
from hotloop.envs.encoding import ObsEncoder
from hotloop.errors import ConfigError, MissingExtraError, SpaceError
from hotloop.training import check_algorithm, recorded, recording
from hotloop.training.options import to_json, untrusted_options
from hotloop.training.recorded import datasets_path, open_dataset, read_episodes
from tests import toy_envs
from tests.cli.run_command import run
from tests.minari_data import random_episodes, write_dataset
from tests.training.test_off_policy import make_config, watch

NAME = "pendulum/test-v0"
FROM = f"minari:{NAME}"
TOY = toy_envs.ReachTheTarget


@pytest.fixture(autouse=True)
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def write_pendulum(**changed):
    """Write the data set, with other fields of the last episode."""
    episodes = random_episodes((3,), (1,), bound=2.0)
    write_dataset(NAME, [episodes[0], {**episodes[1], **changed}])


def train_toy(tmp_path, algorithm=sac, **options):
    config = make_config(algorithm, tmp_path, **{"replay_from": FROM, **options})
    return algorithm.algorithm.train(config, env=TOY, progress=False)


@pytest.mark.parametrize("algorithm", [sac, td3])
def test_contract_with_resume(algorithm):
    """The resumed run is equal bit for bit."""
    write_pendulum()
    options = {"replay": "prioritized", "normalize_obs": True, "n_step": 3, "replay_from": FROM}
    check_algorithm(algorithm.algorithm, env="Pendulum-v1", **options)


def test_batches_have_the_share_of_recorded_steps(tmp_path, monkeypatch):
    write_dataset(NAME, random_episodes((2,), (2,)), TOY.observation_space, TOY.action_space)
    batches = []
    watch(monkeypatch, lambda _, batch, __: batches.append(batch))
    train_toy(tmp_path, replay_from_share=0.25, batch_size=16)
    reward = torch.stack([batch.reward for batch in batches])
    assert reward.shape[1] == 16
    assert bool((reward[:, :12] < 100).all())
    assert bool((reward[:, 12:] >= 100).all())
    assert set(reward[:, 12:].flatten().tolist()) == set(range(100, 160))  # every step is drawn
    discount = torch.stack([batch.discount for batch in batches])[:, 12:]
    assert bool(((discount == 0) == (reward[:, 12:] == 159)).all())  # where it terminated


def test_discrete_actions_start_at_zero(tmp_path, monkeypatch):
    """Of a space that starts at −1, DQN learns from 0, 1."""
    space = toy_envs.ChooseTheSign.observation_space
    monkeypatch.setattr(toy_envs.ChooseTheSign, "action_space", Discrete(2, start=-1))
    episodes = random_episodes(space.shape, (1,))
    for episode in episodes:
        episode["actions"] = np.where(episode["actions"][:, 0] > 0, 0, -1)
    write_dataset(NAME, episodes, space, Discrete(2, start=-1))
    batches = []
    watch(monkeypatch, lambda _, batch, __: batches.append(batch))
    config = make_config(dqn, tmp_path, replay_from=FROM, batch_size=16)
    dqn.train(config, env=toy_envs.ChooseTheSign, progress=False)
    action = torch.stack([batch.action for batch in batches])[:, 8:]
    assert set(action.flatten().tolist()) == {0, 1}


# --- options --------------------------------------------------------------------------------------


def test_share_leaves_a_part_to_both():
    with pytest.raises(ConfigError, match=r"`replay_from_share` 0\.25 needs `replay_from`"):
        sac.Config(replay_from_share=0.25)
    for share in (0.0, 1.0):
        with pytest.raises(ConfigError, match="must leave at least one transition for the data"):
            sac.Config(replay_from=FROM, replay_from_share=share)


def test_names_of_data_sets():
    for name in ("x", "minari:x", "d4rl:x-v0", "minari:../x-v0", "minari:-v0", "minari:a//b-v0"):
        with pytest.raises(ConfigError, match="`replay_from` must name a local data set of Min"):
            sac.Config(replay_from=name)


def test_conflicting_options():
    with pytest.raises(ConfigError, match="does not support `memory`"):
        dqn.Config(replay_from=FROM, memory="lstm:8")
    with pytest.raises(ConfigError, match="does not support `replay_from`"):
        sac.Config(replay_from=FROM, replay_device="device", device="cuda")


def test_a_stranger_s_run_does_not_open_data_sets():
    stored = to_json(sac.Config(replay_from=FROM))
    assert untrusted_options(sac.Config, stored) == [f"`replay_from` '{FROM}'"]


# --- bad data -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("obs_space", "action_space", "message"),
    [
        (Box(-1, 1, (4,)), TOY.action_space, "but the environments have observations of shape"),
        (TOY.observation_space, Box(-1, 1, (2,)), "from .-2.0, -2.0. to .2.0, 2.0.: choose a"),
        (TOY.observation_space, Discrete(2), "but the environments have .* box actions of shape"),
        (Dict(x=Box(-1, 1, (2,))), TOY.action_space, "but the environments have"),
    ],
)
def test_other_spaces_are_refused(tmp_path, obs_space, action_space, message):
    episodes = random_episodes(obs_space.shape or (2,), action_space.shape)
    if isinstance(obs_space, Dict):
        episodes = [{**x, "observations": {"x": x["observations"]}} for x in episodes]
    if isinstance(action_space, Discrete):
        episodes = [{**x, "actions": np.zeros(30, np.int64)} for x in episodes]
    write_dataset(NAME, episodes, obs_space, action_space)
    with pytest.raises(SpaceError, match=rf"the data set '{NAME}' has .*{message}") as error:
        train_toy(tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def edit(change):
    """Change the file of the data set."""
    with h5py.File(datasets_path() / NAME / "data" / "main_data.hdf5", "r+") as file:
        change(file["episode_1"])


def replace(key, value):
    def change(episode):
        del episode[key]
        if value is not None:
            episode[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace("truncations", None), "truncations"),
        (replace("rewards", np.zeros(3)), "episode 1 has 3 rewards, but 31 observations, 30 act"),
        (replace("observations", np.zeros((30, 2))), "episode 1 has 30 rewards, but 30 observat"),
        (replace("actions", np.full((30, 2), np.nan)), "episode 1 has actions that are NaN"),
        (replace("rewards", np.array([b"text"] * 30)), "can't be used"),
        (replace("actions", np.zeros((30, 3))), "can't be used"),
        (replace("actions", np.full((30, 2), 1e300)), "episode 1 has actions that are NaN or inf"),
        (replace("observations", np.full((31, 2), 1e300)), "episode 1 has observations that are"),
        (replace("rewards", np.full(30, 1e300)), "episode 1 has rewards that are NaN or infinite"),
        (
            replace("observations", np.zeros((31, 1, 2))),
            r"episode 1 must have observations of shape \(2,\), got \(1, 2\)",
        ),
    ],
)
def test_damaged_episodes(tmp_path, change, message):
    write_dataset(NAME, random_episodes((2,), (2,)), TOY.observation_space, TOY.action_space)
    edit(change)
    with pytest.raises(
        ConfigError, match=f"the data set '{NAME}' can't be used .*{message}|{message}"
    ):
        train_toy(tmp_path)


def refer(kind):
    """Put a reference to another file, or something else, in the place of the rewards."""
    path = datasets_path() / NAME / "data" / "main_data.hdf5"
    if kind == "a pipe":
        path.unlink()
        os.mkfifo(path)
        return
    other = path.with_name("other.bin")
    other.write_bytes(bytes(240))
    with h5py.File(path.with_name("other.hdf5"), "w") as file:
        file["rewards"] = np.zeros(30)
    with h5py.File(path, "r+") as file:
        episode = file["episode_1"]
        del episode["rewards"]
        if kind == "an external link":
            episode["rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")
        elif kind == "external bytes":
            episode.create_dataset("rewards", (30,), np.float64, external=[(other, 0, 240)])
        else:
            layout = h5py.VirtualLayout((30,), np.float64)
            layout[:] = h5py.VirtualSource("other.hdf5", "rewards", (30,))
            episode.create_virtual_dataset("rewards", layout)


@pytest.mark.parametrize(
    "kind", ["a pipe", "an external link", "external bytes", "a virtual data set"]
)
def test_data_sets_refer_to_no_other_file(tmp_path, kind):
    write_dataset(NAME, random_episodes((2,), (2,)), TOY.observation_space, TOY.action_space)
    refer(kind)
    with pytest.raises(ConfigError, match=r"is no regular file|refers to another place"):
        train_toy(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"shape": (10**10,), "chunks": (1000,)},
        {"shape": (10**10,), "chunks": (1000,), "compression": "gzip"},
        {"shape": (30,), "maxshape": (None,), "chunks": (2**28,)},
    ],
)
def test_data_sets_contain_what_they_claim(tmp_path, options):
    """Reading a shape of 80 GB would end the process."""
    write_dataset(NAME, random_episodes((2,), (2,)), TOY.observation_space, TOY.action_space)
    with h5py.File(datasets_path() / NAME / "data" / "main_data.hdf5", "r+") as file:
        episode = file["episode_1"]
        del episode["rewards"]
        episode.create_dataset("rewards", dtype=np.float64, **options)
    with pytest.raises(ConfigError, match=r"'rewards' in .* claims [\d,]{13,} bytes"):
        train_toy(tmp_path)


def test_arrays_together_contain_what_they_claim(tmp_path, monkeypatch):
    """Chunks that were never written take no place in the file, and read as zeros."""
    write_dataset(NAME, random_episodes((2,), (2,)), TOY.observation_space, TOY.action_space)
    path = datasets_path() / NAME / "data" / "main_data.hdf5"
    with h5py.File(path, "r+") as file:
        options = {"chunks": (1000,), "compression": "gzip", "dtype": np.float64}
        for number in range(8):
            file["episode_1"].create_dataset(
                f"infos/{number}", (path.stat().st_size * 100,), **options
            )
    with pytest.raises(ConfigError, match=r"the arrays in main_data.hdf5 claim [\d,]{9,} bytes"):
        train_toy(tmp_path)
    monkeypatch.setattr(recorded, "_MAX_COMPRESSION", 10**9)
    monkeypatch.setattr(recorded, "available_memory", lambda: 10**6)
    with pytest.raises(ConfigError, match=r"the arrays in main_data.hdf5 claim [\d,]{9,} bytes"):
        train_toy(tmp_path)


def encoded(size, kind):
    file = io.BytesIO()
    PIL.Image.new("RGB", size).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (encoded((32, 32), "EPS"), "an image is not in the format JPEG"),
        (encoded((32, 32), "PNG"), "an image is not in the format JPEG"),
        (b"\xff\xd8" + encoded((32, 32), "EPS"), "cannot identify image"),
        (encoded((800, 800), "JPEG"), "an image has 800 × 800 pixels"),
    ],
    ids=["EPS", "PNG", "hidden EPS", "large"],
)
@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_images_are_jpeg_of_their_space(monkeypatch, image, message, data_format):
    """For other formats, such as EPS, Pillow may start a program."""
    space = Box(0, 255, (32, 32, 3), np.uint8)
    episodes = random_episodes((32, 32, 3), (1,))
    for episode in episodes:
        episode["observations"] = np.zeros((31, 32, 32, 3), np.uint8)
    write_dataset(NAME, episodes, space, data_format=data_format)
    storage = open_dataset(NAME)
    envs = SimpleNamespace(obs_spec=ObsEncoder(space).spec)
    envs.action_spec = ActionDecoder(storage.action_space).spec
    assert len(list(read_episodes(storage, NAME, envs))) == 2
    pillow = sys.modules[type(storage).__module__].Image
    monkeypatch.setattr(PIL.Image.Image, "save", lambda _, file, **__: file.write(image))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.delete_dataset(NAME)
    write_dataset(NAME, episodes, space, data_format=data_format)
    with pytest.raises(ConfigError, match=message):
        list(read_episodes(open_dataset(NAME), NAME, envs))
    assert sys.modules[type(storage).__module__].Image is pillow


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (Discrete(3), np.full(30, 3)),
        (Discrete(3, start=5), np.full(30, 4)),
        (Discrete(3), np.full(30, 0.5)),
        (MultiDiscrete([2, 3]), np.full((30, 2), 2)),
    ],
)
def test_actions_outside_of_the_space(space, actions):
    obs_space = Box(-1, 1, (2,))
    episodes = random_episodes((2,), (1,))
    good = np.tile(space.sample(), (30, *[1] * len(space.shape)))
    write_dataset(NAME, [{**x, "actions": good} for x in episodes], obs_space, space)
    edit(replace("actions", actions))
    envs = SimpleNamespace(obs_spec=ObsEncoder(obs_space).spec)
    envs.action_spec = ActionDecoder(space).spec
    with pytest.raises(ConfigError, match="episode 1 has actions that are not in") as error:
        list(read_episodes(open_dataset(NAME), NAME, envs))
    assert "\n" not in str(error.value)


def test_a_data_set_must_fit_into_memory(tmp_path):
    write_pendulum()
    path = datasets_path() / NAME / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_steps": 10**15}))
    config = make_config(sac, tmp_path, replay_from=FROM, env_id="Pendulum-v1")
    with pytest.raises(ConfigError, match=f"transitions of the data set '{NAME}'"):
        sac.train(config, progress=False)


def test_empty_episodes_and_sets(tmp_path):
    write_dataset(NAME, random_episodes((2,), (2,)), TOY.observation_space, TOY.action_space)

    def empty(episode):
        for key, shape in (("observations", (1, 2)), ("actions", (0, 2)), ("rewards", (0,))):
            replace(key, np.zeros(shape, np.float32))(episode)
        for key in ("terminations", "truncations"):
            replace(key, np.zeros(0, bool))(episode)

    edit(empty)
    train_toy(tmp_path)  # the other episode remains
    with h5py.File(datasets_path() / NAME / "data" / "main_data.hdf5", "r+") as file:
        empty(file["episode_0"])
    with pytest.raises(ConfigError, match="must have a step, got none"):
        train_toy(tmp_path / "other")


def test_a_data_set_does_not_make_its_environment(tmp_path, monkeypatch):
    """Minari would make the environment of a data set without spaces, and import its module."""
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    write_pendulum()
    path = datasets_path() / NAME / "data" / "metadata.json"
    metadata = json.loads(path.read_text())
    del metadata["observation_space"]
    spec = {"id": "Evil-v0", "entry_point": "evil:Env", "kwargs": {}, "additional_wrappers": []}
    path.write_text(json.dumps({**metadata, "env_spec": json.dumps(spec)}))
    with pytest.raises(ConfigError, match=r"its metadata\.json lacks `observation_space`"):
        train_toy(tmp_path)
    assert "evil" not in sys.modules
    path.write_text("{")
    with pytest.raises(ConfigError, match="can't be used"):
        train_toy(tmp_path)


def test_missing_data_sets_and_libraries(tmp_path, monkeypatch):
    write_pendulum()
    with pytest.raises(ConfigError, match="did you mean 'minari:pendulum/test-v0'"):
        train_toy(tmp_path, replay_from="minari:pendulum/tset-v0")
    with pytest.raises(ConfigError, match="`minari download` fetches others"):
        train_toy(tmp_path, replay_from="minari:other-v7")
    monkeypatch.setitem(sys.modules, "minari", None)
    monkeypatch.setitem(sys.modules, "minari.dataset.minari_storage", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[minari\]"):
        train_toy(tmp_path)


# --- recording ------------------------------------------------------------------------------------


def test_a_run_is_recorded_and_learned_from(trained_run, capsys, tmp_path):
    """The data set has the episodes of the policy, as Minari reads them."""
    args = ("export", trained_run("sac"), "--minari", "toy/pendulum-v1")
    code, out, _ = run(capsys, *args, "--episodes", 3)
    assert code == 0
    assert "3 episodes, 600 steps, mean return -" in out
    assert "--replay-from minari:toy/pendulum-v1" in out
    dataset = minari.load_dataset("toy/pendulum-v1")
    assert (dataset.total_episodes, dataset.total_steps) == (3, 600)
    returns = [float(episode.rewards.sum()) for episode in dataset.iterate_episodes()]
    assert returns == pytest.approx(hotloop.evaluate(trained_run("sac"), episodes=3).returns)
    policy = hotloop.load(trained_run("sac"))
    episode = next(dataset.iterate_episodes())
    np.testing.assert_allclose(episode.actions, policy.act(episode.observations[:-1]), atol=1e-5)
    assert episode.truncations[-1]
    assert dataset.env_spec.id == "Pendulum-v1"
    code, _, err = run(capsys, *args)
    assert code == 2
    assert "is there already" in err
    config = make_config(sac, tmp_path, env_id="Pendulum-v1", replay_from="minari:toy/pendulum-v1")
    sac.train(config, progress=False)


def test_sampled_discrete_actions_are_recorded(trained_run, capsys):
    code, out, _ = run(
        capsys, "export", trained_run("ppo"), "--minari", "cart-v0", "--episodes", 2, "--sample"
    )
    assert code == 0, out
    dataset = minari.load_dataset("cart-v0")
    for episode in dataset.iterate_episodes():
        assert set(episode.actions.tolist()) == {0, 1}
        assert episode.terminations[-1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "expected either `--format` onnx or numpy, or `--minari` NAME"),
        (("--minari", "x-v0", "--format", "onnx"), "expected either"),
        (("--minari", "x-v0", "--output", "y"), "leave out `--output`"),
        (("--format", "numpy", "--episodes", "3"), "are for `--minari`"),
        (("--minari", "x"), "with a version at its end and a namespace of two characters"),
        (("--minari", "a/b-v0"), "a namespace of two characters or more, got 'a/b-v0'"),
        (("--minari", "../x-v0"), "with a version at its end"),
    ],
)
def test_wrong_options_of_export(trained_run, capsys, args, message):
    code, _, err = run(capsys, "export", trained_run("ppo"), *args)
    assert code == 2
    assert message in err
    assert not datasets_path().exists()


def test_a_failed_recording_leaves_nothing(trained_run, capsys, monkeypatch):
    def fail(name, buffers, **_):
        (datasets_path() / name / "data").mkdir(parents=True)
        raise OSError("disk full")

    monkeypatch.setattr(minari, "create_dataset_from_buffers", fail)
    code, _, err = run(capsys, "export", trained_run("ppo"), "--minari", "x-v0", "--episodes", 1)
    assert code == 1
    assert "can't be written (OSError: disk full" in err
    assert not (datasets_path() / "x-v0").exists()


class OneImage(gymnasium.Env):
    """Each step writes other pixels into the same array."""

    observation_space = Box(0, 255, (40, 40, 3), np.uint8)
    action_space = Discrete(2)
    image = np.zeros((40, 40, 3), np.uint8)

    def reset(self, seed=None, options=None):
        self.observation_space.seed(0)
        self.image[:] = self.observation_space.sample()
        return self.image, {}

    def step(self, action):
        self.image += 1
        return self.image, 0.0, False, False, {}


def test_recorded_images_are_those_of_each_step(trained_run, monkeypatch):
    policy = SimpleNamespace(act=lambda *_, **__: np.int64(1), new_memory=lambda: None)
    policy.network = SimpleNamespace(action_spec=SimpleNamespace(is_masked=False))
    monkeypatch.setattr(recording, "load", lambda *_, **__: policy)
    monkeypatch.setattr(recording, "make_env", lambda _: OneImage())
    recording.record_episodes(trained_run("ppo"), "image-v0", episodes=1, max_steps=3)
    images = next(minari.load_dataset("image-v0").iterate_episodes()).observations
    first = Box(0, 255, (40, 40, 3), np.uint8, seed=0).sample()
    np.testing.assert_array_equal(images, [first + np.uint8(k) for k in range(4)])


@pytest.mark.parametrize("source", ["info", "method", "observation"])
def test_allowed_actions_are_recorded(tmp_path, source):
    """`Forbidding` raises for the others."""
    result = hotloop.train(
        "ppo",
        "tests.toy_envs:Forbidding",
        env_kwargs={"source": source},
        action_masks=True,
        total_timesteps=8,
        num_envs=2,
        num_steps=4,
        hidden_sizes=(4,),
        execution="eager",
        run_dir=tmp_path / "run",
        progress=False,
    )
    recorded = recording.record_episodes(result.run_dir, "x-v0", episodes=2, is_sampled=True)
    assert recorded["episodes"] == 2


def test_a_data_set_that_appears_during_the_recording_is_kept(trained_run):
    def write(_):
        if not (datasets_path() / NAME).exists():
            write_pendulum()

    with pytest.raises(ConfigError, match="is there already"):
        recording.record_episodes(trained_run("ppo"), NAME, episodes=2, on_episode=write)
    assert minari.load_dataset(NAME).total_episodes == 2
