"""Configurations in files."""

import os
import sys
from contextlib import nullcontext
from dataclasses import fields

import pytest

from hotloop.algorithms import find, ppo, sac
from hotloop.errors import ConfigError, OutputError, UntrustedError
from hotloop.training.options import option_files, to_json
from hotloop.training.options.arguments import parse
from tests.cli.run_command import run


def write(tmp_path, text):
    path = tmp_path / "some.toml"
    path.write_text(text)
    return str(path)


def parsed(name, *args, file_options=None):
    algorithm = find(name)
    return parse(
        algorithm.config,
        list(args),
        prog=name,
        presets=algorithm.presets,
        defaults=file_options or {},
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
def test_saved_configurations_are_read_back(tmp_path, name, args):
    config, path = parsed(name, *args), str(tmp_path / "made" / "it.toml")
    option_files.save(path, config, name)
    file_options = option_files.read(path, type(config), name, is_trusted=True)
    assert to_json(parsed(name, file_options=file_options)) == to_json(config)


def test_whole_floats_are_integers_where_an_option_takes_them(tmp_path):
    text = "total_timesteps = 1e5\neval_interval = 1e4\ngamma = 1.0\nclip_reward = 10.0"
    options = option_files.read(write(tmp_path, text), ppo.Config, "ppo")
    assert repr(list(options.values())) == "[100000, 10000, 1.0, 10.0]"
    assert ppo.Config(**options).total_timesteps == 100_000


def test_options_override_the_file_and_the_file_overrides_the_preset():
    file_options = {"buffer_size": 7_000, "learning_starts": 600}
    config = parsed(
        "sac", "--learning-starts", "700", file_options=file_options
    )  # Pendulum, with a preset
    assert (config.learning_starts, config.buffer_size) == (700, 7_000)
    assert config.policy_learning_rate == 1e-3
    assert config.total_timesteps == 20_000


def test_options_of_the_file_are_not_reported_as_preset(capsys):
    parsed("sac", file_options={"buffer_size": 7_000})
    output = capsys.readouterr().out
    assert "learning_starts 500" in output
    assert "buffer_size" not in output


def test_save_and_load_on_the_command_line(capsys, tmp_path):
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
        ("learning_rate = ", "is not valid TOML .*expected lines such as"),
        ("\0", "is not valid TOML"),
        ('algorithm = "sac"', "is a configuration of sac, got ppo: run `hotloop train sac"),
        ("learning_rat = 0.1", "has `learning_rat`, which is not an option of ppo; did you mean"),
        ("qqq = 0.1", "has `qqq`, which is not an option of ppo: `hotloop train ppo --help`"),
        ("num_envs = 1.5", r"some\.toml: `num_envs` must be"),
        ("algorithm = 3", '`algorithm` in .* must be a name such as "ppo", got 3'),
        ("[ppo]\nseed = 1", r"has a table \[ppo\]: options must be at the top level"),
        ('num_envs = "none"', "`num_envs` must be"),
        ('learning_rate = "linaer:1,0"', "did you mean 'linear'"),
        ("[num_envs]\na = 1", "`num_envs` must be"),
    ],
)
def test_invalid_configuration_files_are_rejected(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        option_files.read(write(tmp_path, text), ppo.Config, "ppo")


@pytest.mark.parametrize("kind", ["none", "directory", "binary"])
def test_paths_that_are_not_files_are_rejected(tmp_path, kind):
    path = tmp_path / "it.toml"
    if kind == "directory":
        path.mkdir()
    if kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"must be a TOML file, got|is not valid TOML"):
        option_files.read(str(path), ppo.Config, "ppo")


def test_unwritable_paths_are_reported(tmp_path):
    with pytest.raises(ConfigError, match=r"must end with \.toml"):
        option_files.save(str(tmp_path / "a.json"), sac.Config(), "sac")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="a parent is not a directory"):
        option_files.save(str(tmp_path / "file" / "a.toml"), sac.Config(), "sac")
    own = {"red": {"max_grad_norm": None}, "blue": {}}
    for config in (
        sac.Config(env_kwargs={"render_mode": None}),
        sac.Config(policies="red,blue", policy_options=own),
    ):
        with pytest.raises(ConfigError, match="`env_kwargs` holds a null, which TOML lacks"):
            option_files.save(str(tmp_path / "a.toml"), config, "sac")
    assert sorted(os.listdir(tmp_path)) == ["file"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--config"], "`--config` needs a value"),
        (["--config", "--seed", "3"], "`--config` needs a value"),
        (["--config=a.toml", "--config", "b.toml"], "`--config` is set twice"),
        (["--save-config", "a.txt"], "must end with .toml, got a.txt"),
        (["--config", "nowhere.toml"], "must be a TOML file, got nowhere.toml (No such file"),
    ],
)
def test_mistakes_on_the_command_line(capsys, args, message):
    code, _, err = run(capsys, "train", "ppo", *args)
    assert code == 2
    assert message in err


EVIL = "import pathlib\npathlib.Path(__file__).with_name('marker').write_text('it was imported')\n"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('env_id = "evil:make"', "`env_id` 'evil:make'"),
        ('env_kwargs = {xml_file = "evil.xml"}', "`env_kwargs` {"),
        ('network = "evil:Net"', "`network` 'evil:Net'"),
        ('learning_rate = "evil:fall"', "`learning_rate` 'evil:fall'"),
        ('backend = "ray"\nray_address = "192.0.2.1:1"', "`ray_address` '192.0.2.1:1'"),
        ('[ray_runtime_env]\npy_executable = "sh"', '`ray_runtime_env` {"py_executable": "sh"}'),
    ],
)
def test_a_file_that_may_run_code_needs_trust(tmp_path, monkeypatch, capsys, line, name):
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "evil.toml").write_text(line)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for more in ([], ["--seeds", "1-2"], ["--save-config", "copy.toml"]):
        code, _, err = run(capsys, "train", "ppo", "--config", "evil.toml", *more)
        assert code == 1
        assert f"evil.toml could run code by {name}" in err
        assert "pass --trust, or set these options on the command line" in err
    assert sorted(os.listdir(tmp_path)) == ["evil.py", "evil.toml"]
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(("option", "value"), [("network", "evil:Net"), ("gamma", "evil:fall")])
def test_a_value_that_is_an_options_name_replaces_none(tmp_path, capsys, option, value):
    (tmp_path / "evil.toml").write_text(f'{option} = "{value}"')
    path = str(tmp_path / "evil.toml")
    code, _, err = run(capsys, "train", "ppo", "--config", path, "--run-dir", option)
    assert code == 1
    assert f"evil.toml could run code by `{option}` '{value}'" in err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"network": "nature", "learning_rate": 0.1, "track": ["tensorboard"]}, False),
        ({"env_id": "CartPole-v1", "env_kwargs": {"g": 1}, "memory": "lstm:8"}, False),
        ({"gamma": "evil:fall"}, True),
        ({"network": "evil:Net"}, True),
        ({"replay_from": "minari:ab/c-v0"}, True),
        ({"init_from": "runs/a"}, True),
        ({"policies": "red,blue", "policy_options": {"red": {"hidden_sizes": [8, 8]}}}, False),
        ({"policies": "red,blue:dqn"}, True),
        ({"policies": "red", "policy_options": {"red": {"gamma": "evil:fall"}}}, True),
        ({"policies": "red", "policy_options": {"red": {"a": {"b": "evil:fall"}}}}, True),
        ({"env_kwargs": {"file": "a.xml"}}, True),
    ],
)
def test_names_code_knows_what_reading_refuses(tmp_path, options, expected):
    assert option_files.names_code(options) is expected
    path = str(tmp_path / "best.toml")
    for name in ("ppo", "sac"):
        config = find(name).config
        if options.keys() <= {field.name for field in fields(config)}:
            option_files.write(path, options, name)
            with pytest.raises(UntrustedError) if expected else nullcontext():
                option_files.read(path, config, name)


def test_a_trusted_file_names_a_module_of_the_current_directory(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_nets.py").write_text("def fall(progress):\n    return 0.25\n")
    (tmp_path / "own.toml").write_text('learning_rate = "my_nets:fall"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    saving = ["--save-config", "copy.toml"]
    code, out, err = run(capsys, "train", "ppo", "--config", "own.toml", "--trust", *saving)
    assert (code, err) == (0, "")
    assert "next: hotloop train ppo --config copy.toml --trust\n" in out
    # An option on the command line replaces the file's, which is then harmless.
    saving = ["--learning-rate", "0.1", "--save-config", "plain.toml"]
    code, out, _ = run(capsys, "train", "ppo", "--config", "own.toml", *saving)
    assert code == 0
    assert "next: hotloop train ppo --config plain.toml\n" in out
    sys.modules.pop("my_nets", None)
