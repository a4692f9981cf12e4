"""Configurations in files."""

import os

import pytest

from hotloop.algorithms import find, ppo, sac
from hotloop.cli import configuration
from hotloop.cli.train_options import parse
from hotloop.errors import ConfigError, OutputError
from hotloop.training.options import to_json
from tests.cli.running import run


def write(tmp_path, text):
    path = tmp_path / "some.toml"
    path.write_text(text)
    return str(path)


def parsed(name, *args, filed=None):
    algorithm = find(name)
    return parse(
        algorithm.config, list(args), prog=name, presets=algorithm.presets, filed=filed or {}
    )


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("ppo", []),
        ("ppo", ["--learning-rate", "cosine:3e-4,1e-5,0.5", "--hidden-sizes", "8", "4"]),
        ("ppo", ["--env-kwargs", '{"g": 1.5, "deep": {"a": [1, 2]}}', "--normalize-obs"]),
        ("sac", ["--target-entropy", "-2", "--workers", "auto", "--torch-threads", "3"]),
        ("dqn", ["--env-id", "CartPole-v1", "--huber", "1", "--eval-interval", "5000"]),
    ],
)
def test_what_is_saved_is_read_back(tmp_path, name, args):
    config, path = parsed(name, *args), str(tmp_path / "made" / "it.toml")
    configuration.save(path, config, name)
    filed = configuration.read(path, type(config), name)
    assert to_json(parsed(name, filed=filed)) == to_json(config)


def test_options_come_before_the_file_and_that_before_the_preset():
    filed = {"buffer_size": 7_000, "learning_starts": 600}
    config = parsed("sac", "--learning-starts", "700", filed=filed)  # Pendulum, with a preset
    assert (config.learning_starts, config.buffer_size) == (700, 7_000)
    assert config.policy_learning_rate == 1e-3
    assert config.total_timesteps == 20_000


def test_what_the_file_has_is_not_told_as_the_presets(capsys):
    parsed("sac", filed={"buffer_size": 7_000})
    told = capsys.readouterr().out
    assert "learning_starts 500" in told
    assert "buffer_size" not in told


def test_by_the_command_line(capsys, tmp_path):
    path = tmp_path / "fast.toml"
    saving = ["--num-envs", 2, "--num-steps=16", "--save-config", path, "--run-dir", tmp_path / "a"]
    code, out, _ = run(capsys, "train", "ppo", *saving)
    assert code == 0
    assert f"next: hotloop train ppo --config {path}" in out
    assert sorted(os.listdir(tmp_path)) == ["fast.toml"]  # nothing was trained
    seeds = run(capsys, "train", "ppo", "--seeds=1-3", "--jobs", 2, "--save-config", path)[1]
    assert f"next: hotloop train ppo --config {path} --seeds 1-3 --jobs 2" in seeds
    code, out, _ = run(capsys, "train", "ppo", *saving)
    text = path.read_text()
    assert 'algorithm = "ppo"' in text
    assert "run_dir" not in text
    options = ["--total-timesteps", 64, "--num-minibatches", 2, "--run-dir", tmp_path / "b"]
    code, _, err = run(capsys, "train", "ppo", f"--config={path}", *options)
    assert (code, err) == (0, "")
    config = (tmp_path / "b" / "config.json").read_text()
    assert '"num_steps": 16' in config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rate = ", "is no TOML .*expected lines such as"),
        ("\0", "is no TOML"),
        ('algorithm = "sac"', "is a configuration of sac, got ppo: write `hotloop train sac"),
        ("learning_rat = 0.1", "has `learning_rat`, which is no option of ppo; did you mean"),
        ("qqq = 0.1", "has `qqq`, which is no option of ppo: `hotloop train ppo --help`"),
        ("num_envs = 1.5", r"some\.toml: `num_envs` must be"),
        ("algorithm = 3", '`algorithm` of .* must be a name such as "ppo", got 3'),
        ("[ppo]\nseed = 1", r"has a table \[ppo\]: options stand in none"),
        ('num_envs = "none"', "`num_envs` must be"),
        ('learning_rate = "linaer:1,0"', "did you mean 'linear'"),
        ("[num_envs]\na = 1", "`num_envs` must be"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        configuration.read(write(tmp_path, text), ppo.Config, "ppo")


@pytest.mark.parametrize("kind", ["none", "directory", "binary"])
def test_what_is_no_file(tmp_path, kind):
    path = tmp_path / "it.toml"
    if kind == "directory":
        path.mkdir()
    if kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"must be a TOML file, got|is no TOML"):
        configuration.read(str(path), ppo.Config, "ppo")


def test_places_that_nothing_can_be_written_to(tmp_path):
    with pytest.raises(ConfigError, match=r"must be a name that ends with \.toml"):
        configuration.save(str(tmp_path / "a.json"), sac.Config(), "sac")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="a part of its path is a file"):
        configuration.save(str(tmp_path / "file" / "a.toml"), sac.Config(), "sac")
    config = sac.Config(env_kwargs={"render_mode": None})
    with pytest.raises(ConfigError, match="TOML has no null, and `env_kwargs` has one"):
        configuration.save(str(tmp_path / "a.toml"), config, "sac")
    assert sorted(os.listdir(tmp_path)) == ["file"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--config"], "`--config` needs a value"),
        (["--config", "--seed", "3"], "`--config` needs a value"),
        (["--config=a.toml", "--config", "b.toml"], "`--config` is given twice"),
        (["--save-config", "a.txt"], "must be a name that ends with .toml, got a.txt"),
        (["--config", "nowhere.toml"], "must be a TOML file, got nowhere.toml (No such file"),
    ],
)
def test_mistakes_on_the_command_line(capsys, args, message):
    code, _, err = run(capsys, "train", "ppo", *args)
    assert code == 2
    assert message in err
