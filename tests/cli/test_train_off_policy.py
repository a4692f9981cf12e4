"""`hotloop train` and `hotloop resume` with sac, td3 and dqn."""

import json
import signal
import warnings
from dataclasses import fields

import pytest

import hotloop.cli
from hotloop.algorithms import ALGORITHMS, find
from hotloop.cli import main
from hotloop.errors import ConfigError
from hotloop.ops import products
from hotloop.training.options.arguments import parse
from tests.cli.run_command import run, signal_when, timesteps

OFF_POLICY = ("sac", "tqc", "crossq", "td3", "dqn")
TARGET = ["--env-id", "tests.toy_envs:ReachTheTarget"]
TINY = [
    *("--execution", "eager", "--torch-threads", "1", "--hidden-sizes", "8", "8"),
    *("--batch-size", "16", "--buffer-size", "500", "--learning-starts", "50"),
    *("--report-interval", "50"),
]


def parsed(name, *args):
    algorithm = find(name)
    prog = f"hotloop train {name}"
    return parse(algorithm.config, list(args), prog=prog, presets=algorithm.presets)


@pytest.mark.parametrize(
    "args",
    [[], ["--env-id", "Pendulum-v1"], ["--env-id=Pendulum-v1"], ["--env_id", "Pendulum-v1"]],
)
def test_a_preset_replaces_defaults(capsys, args):
    config = parsed("td3", *args)
    assert config.env_id == "Pendulum-v1"
    assert config.total_timesteps == 20_000
    assert config.learning_starts == 500
    assert config.learning_rate == 1e-3
    assert config.buffer_size == 20_000
    assert config.batch_size == 256  # the preset has none
    assert capsys.readouterr().out == (
        "preset for Pendulum-v1: total_timesteps 20000, learning_starts 500, learning_rate 0.001, "
        "buffer_size 20000; options you set override it\n"
    )


def test_options_override_the_preset(capsys):
    # 0.0003 is the default of TD3's learning rate without a preset.
    config = parsed("td3", "--learning-rate=3e-4", "--learning-starts", "700")
    assert (config.learning_rate, config.learning_starts) == (3e-4, 700)
    assert (config.total_timesteps, config.buffer_size) == (20_000, 20_000)
    assert capsys.readouterr().out == (
        "preset for Pendulum-v1: total_timesteps 20000, buffer_size 20000; options you set "
        "override it\n"
    )


def test_a_custom_network_ignores_the_layers_of_a_preset(capsys):
    config = parsed("dqn", "--env-id", "LunarLander-v3", "--network", "tests.policies.nets:Net")
    defaults = find("dqn").config()
    assert config.hidden_sizes == defaults.hidden_sizes
    assert config.target_interval == 250 != defaults.target_interval
    assert "hidden_sizes" not in capsys.readouterr().out
    assert find("dqn").preset("LunarLander-v3", network="tests.policies.nets:Net") == config
    with pytest.raises(ConfigError, match="leave `hidden_sizes`"):
        find("dqn").preset("LunarLander-v3", network="tests.policies.nets:Net", hidden_sizes=(8,))


def test_no_preset_is_printed_if_all_options_are_set(capsys):
    config = parsed(
        *("dqn", "--total-timesteps", "5000", "--learning-starts", "100"),
        *("--update-to-data", "0.1", "--target-interval", "500", "--learning-rate", "2.5e-4"),
    )
    assert (config.total_timesteps, config.learning_starts) == (5000, 100)
    assert capsys.readouterr().out == ""


def test_an_environment_without_a_preset_has_the_defaults(capsys):
    config = parsed("sac", "--env-id", "HalfCheetah-v5")
    assert (config.total_timesteps, config.learning_starts) == (1_000_000, 5_000)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", OFF_POLICY)
def test_presets_use_existing_options(name):
    """Each preset parses to the result of `preset`."""
    algorithm = find(name)
    assert algorithm.presets
    for env_id in algorithm.presets:
        assert parsed(name, "--env-id", env_id) == algorithm.preset(env_id)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_help_lists_every_option_and_the_presets(capsys, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    algorithm = find(name)
    code, out, _ = run(capsys, "train", name, "--help")
    assert code == 0
    for field in fields(algorithm.config):
        assert f"--{field.name.replace('_', '-')}" in out
    assert "The environment's preset replaces defaults: `hotloop presets`." in out
    assert len(out.partition("Options of the command itself")[0]) < 300  # not all presets


def test_help_ignores_the_line_breaks_of_the_source(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    _, out, _ = run(capsys, "train", "ppo", "--help")
    assert "or `module:factory`; from Python also a class or function that makes the env" in out


def test_help_lists_the_algorithms(capsys):
    code, out, _ = run(capsys, "train", "--help")
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert listed[: len(ALGORITHMS) + 1] == [*ALGORITHMS, "module:attribute"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["sac", "--env-id", "CartPole-v1"], "a discrete one: use dqn, sac_discrete or ppo"),
        (["td3", "--env-id", "CartPole-v1"], "a discrete one: use dqn, sac_discrete or ppo"),
        (["dqn", "--env-id", "Pendulum-v1"], "got a box space of shape (1,): use ppo"),
        (["dqn", "--env-id", "tests.toy_envs:MultiSign"], "use ppo"),
        (["sac", "--total-timesteps", "500"], "`learning_starts` must be less than"),
        (["sac", "--buffer-size", "100"], "`buffer_size` must hold a batch"),
        (["sac", "--replay-alpha", "0.6"], "`replay_alpha` 0.6 is for `replay` 'prioritized'"),
        (["td3", "--replay", "proportional", "--replay-beta", "1"], "`replay_beta` 1.0 is for"),
        (["dqn", "--update-to-data", "0"], "`update_to_data` must be positive"),
    ],
)
def test_errors_are_one_line(capsys, tmp_path, args, message):
    code, _, err = run(capsys, "train", *args, "--runs-dir", tmp_path)
    assert code == 2
    assert err.startswith("hotloop: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_options_of_other_algorithms_are_rejected(capsys, tmp_path):
    code, _, err = run(capsys, "train", "dqn", "--noise-clip", "0.5", "--runs-dir", tmp_path)
    assert code == 2
    assert "`noise_clip` is not an option of dqn; td3, td3_bc have it" in err
    assert not list(tmp_path.iterdir())


def test_train_with_a_preset_then_resume_and_eval(capsys, tmp_path):
    run_dir = tmp_path / "run"
    code, out, err = run(
        capsys, "train", "sac", *TINY, "--total-timesteps", 100, "--run-dir", run_dir
    )
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == (
        "preset for Pendulum-v1: policy_learning_rate 0.001; options you set override it"
    )
    config = json.loads((run_dir / "config.json").read_text())["config"]
    assert config["policy_learning_rate"] == 1e-3
    assert config["learning_starts"] == 50
    for stage in ("collect", "act", "env_step", "store", "sample", "gather", "update", "publish"):
        assert f"  {stage} " in out
    assert "update of the critics: eager, as requested" in out
    assert "update of the policy: eager, as requested" in out

    code, out, err = run(capsys, "resume", run_dir, "--total-timesteps", 200)
    assert (code, err) == (0, "")
    first = out.splitlines()[0]
    assert first.startswith("resumed at 100 steps; this checkpoint has no replay buffer")
    assert "(`save_replay` saves it with the last checkpoint)" in first
    assert "preset for" not in out
    assert timesteps(run_dir) == (200, [50, 100, 150, 200])

    code, out, _ = run(capsys, "eval", run_dir, "--episodes", 1)
    assert code == 0
    assert "mean return" in out

    code, _, err = run(capsys, "resume", run_dir, "--total-timesteps", 300, "--save-replay")
    assert (code, err) == (0, "")
    assert (run_dir / "checkpoints" / "last" / "replay.zip").is_file()


def test_a_run_without_a_replay_buffer_can_not_store_one(capsys, trained_run):
    code, _, err = run(
        capsys, "resume", trained_run("ppo"), "--total-timesteps", 1280, "--save-replay"
    )
    names = "sac, tqc, crossq, sac_discrete, td3, td3_bc, dqn"
    message = f"`save_replay` is not an option of ppo; {names} have it"
    assert (code, err) == (2, f"hotloop: {message}\n")


@pytest.mark.parametrize("name", OFF_POLICY)
def test_a_run_resumes_with_its_stored_replay_buffer(capsys, copy_trained_run, name):
    run_dir = copy_trained_run(name)
    code, out, err = run(capsys, "resume", run_dir, "--total-timesteps", 250)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("resumed at 200 steps; the run now has 250 steps")
    last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["timesteps"], last["replay_size"]) == (250, 250)


def test_an_interrupt_between_reports_keeps_the_round(capsys, tmp_path):
    run_dir = tmp_path / "run"
    options = [*TINY, "--report-interval", "1000000", "--total-timesteps", "1000000"]
    command = ["train", "sac", "--env-id", "tests.cli.blocking_envs:MarksHundredthStep", *options]
    env_kwargs = ["--env-kwargs", json.dumps({"path": str(tmp_path / "steps")})]
    with signal_when((tmp_path / "steps").exists, signal.SIGINT):
        code, out, err = run(capsys, *command, *env_kwargs, "--save-replay", "--run-dir", run_dir)
    assert code == 130
    assert err == (
        "hotloop: interrupted; metrics, timing and the last checkpoint are kept: "
        f"continue with hotloop resume {run_dir}\n"
    )
    assert "The largest cost is" in out
    last, reported = timesteps(run_dir)
    assert 0 < last < 1_000_000
    assert reported == [last]
    code, out, err = run(capsys, "resume", run_dir, "--total-timesteps", last + 10)
    assert (code, err) == (0, "")
    assert "the replay buffer" not in out
    assert timesteps(run_dir) == (last + 10, [last, last + 10])


def test_a_warning_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(products, "HAS_FAST_BFLOAT16", False)
    before = warnings.showwarning
    code, _, err = run(
        capsys,
        *("train", "td3", *TARGET, *TINY, "--total-timesteps", 60, "--precision", "bfloat16"),
        *("--run-dir", tmp_path / "run"),
    )
    assert code == 0
    assert err.startswith("hotloop: warning: this CPU has no instructions for bfloat16")
    assert err.endswith("'float32'\n")
    assert len(err.splitlines()) == 1
    assert warnings.showwarning is before


def test_a_warning_of_another_library_names_its_source(capsys, monkeypatch):
    def train(args):
        text = "\x1b[33mWARN: the simulator\n    is \x1b[1mold\x1b[0m"  # as Gymnasium's are
        warnings.warn(text, DeprecationWarning, stacklevel=1)
        return 0

    monkeypatch.setattr(hotloop.cli, "_run", train)
    assert main(["train"]) == 0
    line = train.__code__.co_firstlineno + 2
    assert capsys.readouterr().err == (
        f"hotloop: warning: WARN: the simulator is old (test_train_off_policy.py:{line})\n"
    )
