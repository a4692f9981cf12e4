"""Options of `hotloop train` and `hotloop resume`, with a custom algorithm."""

import json
import sys
from dataclasses import dataclass, fields

import pytest

from hotloop.algorithms import ALGORITHMS, find
from hotloop.cli.resume import run as resume
from hotloop.cli.train import run as train
from hotloop.cli.train_options import split_command_options
from hotloop.errors import ConfigError, UnknownNameError
from hotloop.ops.schedules import linear
from hotloop.training.options import to_json
from hotloop.training.options.arguments import parse
from hotloop.training.options.constraints import Sizes
from hotloop.training.options.other_names import OTHER_NAMES
from tests.cli.custom_algorithm import Config, TrainCalled

OWN = "tests.cli.custom_algorithm:algorithm"


def parsed(*args):
    return parse(Config, list(args), prog="hotloop train own")


def called(command, *args):
    """Return the exception with the algorithm's arguments."""
    with pytest.raises(TrainCalled) as caught:
        command(list(args))
    return caught.value


@pytest.mark.parametrize(
    ("args", "learning_rate"),
    [
        ([], linear(1e-3, 0.0)),
        (["--learning-rate", "3e-4"], 3e-4),
        (["--learning-rate=3e-4"], 3e-4),
        (["--learning_rate", "linear:3e-4,0"], "linear:3e-4,0"),
        (["--learning-rate", "cosine:3e-4,1e-5,0.5"], "cosine:3e-4,1e-5,0.5"),
    ],
)
def test_schedules(args, learning_rate):
    assert parsed(*args).learning_rate == learning_rate


def test_options_that_may_be_none():
    assert parsed("--target", "None").target is None
    assert parsed("--target=-2").target == -2.0
    assert parsed("--target", "piecewise:0=-1,1=-2").target == "piecewise:0=-1,1=-2"
    assert parsed("--network", "nets:Net").network == "nets:Net"
    assert parsed("--network", "None").network is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--learning-rate", "linaer:1,0"], "`learning_rate`: .* did you mean 'linear'"),
        (["--learning-rate", "0"], "`learning_rate` must be positive and finite, got 0.0"),
        (["--learning-rate", "linear:1,-1"], "must be positive and finite, got 'linear:1,-1'"),
        (["--seed", "1", "2"], "takes one value, got 2 .1 2.: .* `--seeds 1,2`"),
        (["--seed", "1-3"], "takes one number, got 1-3: .* `--seeds 1-3`"),
        (["--eval-interval", "0"], "must be a positive integer or None, got 0"),
        (["--seed", "1,2,3"], "takes one value, got 3 .1 2 3.: .* `--seeds 1,2,3`"),
        (["--num-envs", "1", "2"], "write `--vary num_envs=1,2`"),
        (["--learning-rate", "3e-4,1e-3"], "write `--vary learning_rate=3e-4,1e-3`"),
        (["--num-envs"], "`--num-envs` needs a value"),
        (["--total-timesteps", "1e-5"], "must be a positive integer, got 1e-05"),
        (["--total-timesteps", "100k"], "must be a positive integer, got '100k'"),
        (["--hidden-sizes", "64", "x"], r"must be positive integers, got \(64, 'x'\)"),
        (["--layer-norm", "True"], "takes no value, got 'True': write `--layer-norm` to"),
        (["--no-layer-norm=1"], "takes no value, got '1': write `--no-layer-norm` to"),
        (["--execution", "fast"], "must be 'auto', 'eager', .* got 'fast'"),
        (
            ["64"],
            "expected an option such as `--seed 1`, got '64': write `--env-id 64` if it is the",
        ),
        (["--seeds", "1", "2"], "`--seeds` takes one value, got '2' after it: separate values by"),
    ],
)
def test_mistakes(args, message):
    with pytest.raises(ConfigError, match=message):
        parsed(*split_command_options(args)[1])


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["--total-timesteps", "1e5"], "total_timesteps", 100_000),
        (["--total-timesteps=2.5e3"], "total_timesteps", 2_500),
        (["--total_timesteps", "100_000"], "total_timesteps", 100_000),
        (["--hidden-sizes", "64,32"], "hidden_sizes", (64, 32)),
        (["--hidden-sizes", "64", "32"], "hidden_sizes", (64, 32)),
        (["--hidden-sizes"], "hidden_sizes", ()),
        (["--workers-per-node", "none"], "workers_per_node", None),
        (["--workers", "auto"], "workers", "auto"),
        (["--track", "tensorboard,wandb"], "track", ("tensorboard", "wandb")),
        (["--learning-rate", "1"], "learning_rate", 1.0),
    ],
)
def test_values(args, name, value):
    assert getattr(parsed(*args), name) == value


@pytest.mark.parametrize(
    ("args", "sizes"), [(["64,32"], (64, 32)), (["64", "32"], (64, 32)), (["none"], None)]
)
def test_sizes_that_may_be_none(args, sizes):
    @dataclass(frozen=True, kw_only=True)
    class WithSizes(Config):
        sizes: Sizes | None = (8,)
        """Sizes."""

    assert parse(WithSizes, ["--sizes", *args], prog="hotloop train own").sizes == sizes


@pytest.mark.parametrize(
    ("algorithm", "option", "message"),
    [
        ("ppo", "lr", "; use `learning_rate`$"),
        ("sac", "lr", "; use `policy_learning_rate` and `critic_learning_rate`$"),
        ("ppo", "n_steps", "; use `num_steps`$"),
        ("dqn", "n-steps", "; use `n_step`$"),
        ("ppo", "batch-size", "use `num_minibatches` .num_steps × num_envs / batch_size.$"),
        ("sac", "ent_coef", "; use `alpha`$"),
        ("sac", "net-arch", "; use `hidden_sizes` .such as `64 64`.$"),
    ],
)
def test_option_names_of_other_libraries(algorithm, option, message):
    with pytest.raises(UnknownNameError, match=message):
        parse(find(algorithm).config, [f"--{option}", "1"], prog="hotloop train")


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_every_name_of_another_library_is_answered(name):
    """Python and the command line give one answer, with options that the algorithm has."""
    translation, num_answers = OTHER_NAMES[name], 0
    assert translation.options or translation.note
    for algorithm in ALGORITHMS:
        config = find(algorithm).config
        options = {field.name for field in fields(config)}
        answers = [f"`{option}`" for option in translation.options if option in options]
        if name in options or (translation.options and not answers):
            continue
        with pytest.raises(UnknownNameError) as in_python:
            config(**{name: 1})
        with pytest.raises(UnknownNameError) as in_terminal:
            parse(config, [f"--{name.replace('_', '-')}", "1"], prog="hotloop train")
        message = str(in_python.value)
        assert message == str(in_terminal.value)
        end = message.partition("; ")[2]
        assert all(answer in end for answer in answers)
        assert translation.note in end
        num_answers += 1
    assert num_answers
    known = {field.name for name in ALGORITHMS for field in fields(find(name).config)}
    assert set(translation.options) <= known


def test_help_marks_options_that_may_be_schedules(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        train([OWN, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: hotloop train {OWN}" in out
    assert "Options of the custom algorithm." in out
    assert "--learning-rate FLOAT|SCHEDULE" in out
    assert "Adam's α. (default: linear:0.001,0)" in out
    assert "--target {None}|FLOAT|SCHEDULE" in out
    assert "--network {None}|NAME|MODULE:NAME" in out
    assert "preset replaces defaults: `hotloop presets`." in out
    for name in to_json(Config()):
        assert f"--{name.replace('_', '-')}" in out


def test_a_custom_algorithm_is_trained(capsys):
    config = called(train, OWN, "--env-id", "Pendulum-v1", "--learning-rate", "linear:1,0").config
    assert config == Config(env_id="Pendulum-v1", learning_rate="linear:1,0", seed=7)
    assert capsys.readouterr().out.startswith("preset for Pendulum-v1: seed 7; options you")


def test_a_refused_option_does_not_repeat_the_preset(capsys):
    with pytest.raises(ConfigError, match="`memory` must be"):
        train(["sac", "--env-id", "Pendulum-v1", "--memory", "gru:0"])
    assert capsys.readouterr().out.count("preset for Pendulum-v1") == 1


def test_a_custom_algorithm_is_resumed(tmp_path):
    config = Config(learning_rate="linear:1,0", hidden_sizes=(8,), run_dir=str(tmp_path))
    content = {"algorithm": OWN, "env_id": "my:Env", "network": None, "config": to_json(config)}
    (tmp_path / "config.json").write_text(json.dumps({**content, "versions": {"hotloop": "9"}}))
    call = called(
        resume, str(tmp_path), "--total-timesteps", "123", "--checkpoint", "best", "--trust"
    )
    assert to_json(call.config) == {**to_json(config), "total_timesteps": 123}
    assert call.config.learning_rate == linear(1.0, 0.0)
    assert call.options["env"] == "my:Env"
    assert call.options["resume_from"] == tmp_path / "checkpoints" / "best"
    with pytest.raises(UnknownNameError, match=r"`save_replay` is not an option of .*; sac"):
        resume([str(tmp_path), "--save-replay", "--trust"])
    (tmp_path / "config.json").write_text(
        json.dumps({**content, "algorithm": "zeta", "versions": {"hotloop": "9"}})
    )
    with pytest.raises(ConfigError, match=r"is a run of 'zeta', .* resume it with hotloop 9"):
        resume([str(tmp_path), "--trust"])


def test_algorithms_by_name():
    assert find(OWN) is sys.modules["tests.cli.custom_algorithm"].algorithm
    with pytest.raises(UnknownNameError, match=r"expected an algorithm \(ppo, .*mean 'ppo'"):
        find("pop")
    with pytest.raises(UnknownNameError, match="name a custom algorithm as `my_module:algorithm`"):
        find("reinforce")
    with pytest.raises(UnknownNameError, match="has no 'algoritm'; did you mean 'algorithm'"):
        find(OWN.replace("rithm:algorithm", "rithm:algoritm"))
    with pytest.raises(ConfigError, match="must be an algorithm, got a type without `name`, `con"):
        find(OWN.replace(":algorithm", ":TrainCalled"))


def test_an_algorithm_whose_module_raises(tmp_path, monkeypatch):
    (tmp_path / "broken_algorithm.py").write_text("x = 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"importing it raised ZeroDivisionError: .* \(broken_algorithm.py:1\)"
    ):
        find("broken_algorithm:algorithm")
