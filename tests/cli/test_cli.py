import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotloop.cli import main
from hotloop.errors import install_command
from hotloop.runs.summary import summarize
from tests.cli.run_command import has_learned, run, signal_when
from tests.runs.run_factory import make_run

SHORT = ["--total-timesteps", "2048", "--execution", "eager", "--update-epochs", "2"]


def test_train_then_eval(capsys, tmp_path):
    run_dir = tmp_path / "run"
    code, out, err = run(
        capsys, "train", "ppo", "--env-id", "CartPole-v1", *SHORT, "--seed", 3, "--run-dir", run_dir
    )
    assert code == 0
    assert err == ""
    assert re.search(r"2,048/2,048 steps · [\d,]+/s \([\d,.]+/s with start-up\) · mean return", out)
    for column in ("span", "share", "calls", "mean", "p50", "p99"):
        assert column in out
    for stage in ("collect", "env_step", "act", "update", "minibatch"):
        assert stage in out
    assert re.search(r"The largest cost is .+: \d+% of the time\.", out)
    assert re.search(r"Recording this took 0\.\d+% of it\.", out)
    # Without workers the summary has no line about them.
    assert out.startswith("update: ")
    assert not re.search(r"^workers?\b", out, re.MULTILINE)
    assert " collected = " not in out
    assert not (run_dir / "accounting.json").exists()
    for name in ("config.json", "metrics.jsonl", "learning_curve.png", "timing"):
        assert (run_dir / name).exists()

    code, out, _ = run(capsys, "eval", run_dir, "--episodes", 7)
    assert code == 0
    last = out.strip().splitlines()[-1]
    assert re.fullmatch(r"mean return \d+\.\d ± \d+\.\d over 7 episodes", last)
    code, again, _ = run(capsys, "eval", run_dir, "--episodes", 7, "--json")
    summary = json.loads(again)
    assert last == (
        f"mean return {summary['mean_return']:.1f} ± {summary['std_return']:.1f} over 7 episodes"
    )
    assert len(summary["returns"]) == 7


def test_help_lists_every_option(capsys):
    from dataclasses import fields

    from hotloop.algorithms.ppo import Config

    code, out, _ = run(capsys, "train", "ppo", "--help")
    assert code == 0
    for field in fields(Config):
        assert f"-{field.name.replace('_', '-')}" in out
    assert "0.99" in out
    assert "Discount" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "did you mean 'train'?"),
        (["play", "runs/a"], "did you mean 'eval'?"),
        (["profile", "--output", "p", "s.py"], "got '--output'; did you mean '--out'"),
        (["profile", "--nowhere", "s.py"], "options of the script must follow the script"),
        (["runs", "--jsn"], "unrecognized arguments: --jsn; did you mean '--json'?"),
        (["train", "pop"], "did you mean 'ppo'?"),
        (["train", "ppo", "--env-id", "Cartpole-v1"], "did you mean 'CartPole-v1'"),
        (["train", "ppo", "--total-timestep", "10"], "did you mean 'total_timesteps'?"),
        (
            ["train", "ppo", "--num-envs", "many"],
            "must be a positive integer, got 'many'",
        ),
        (["train", "ppo", "--num-minibatches", "3"], "hotloop: `num_minibatches` must divide"),
        (["train", "ppo", "--env-id", "tests.toy_envs:Text"], "Text"),
        (["train", "ppo", "--learning-rate", "linaer:1e-3,0"], "did you mean 'linear'?"),
        (["train", "ppo", "--learning-rate", "linear:1e-3"], "`learning_rate`: expected a number"),
        (["train", "no_such_module:algorithm"], "there is no module 'no_such_module'"),
        (
            ["train", "ppo", "--env-kwargs", "g=1"],
            "hotloop: `--env-kwargs`: expected a JSON object",
        ),
        (["train", "ppo", "--env-kwargs", "{'g': 1,", "'h': 2}"], "got '{'g': 1, 'h': 2}'"),
        (["train", "ppo", "--env-kwargs", '{"gg": 1}', "--env-id", "Pendulum-v1"], "gg"),
        (["eval", "nowhere", "--episodes", "0"], "`--episodes` must be a positive integer"),
        (["eval"], "hotloop: the following arguments are required: RUN: `hotloop eval --help`"),
        (["export", "r", "--format", "x"], "hotloop: argument --format: invalid choice: 'x'"),
    ],
)
def test_mistakes_in_the_arguments(capsys, tmp_path, args, message):
    if args[:2] == ["train", "ppo"]:
        args = [*args, "--runs-dir", str(tmp_path)]
    code, out, err = run(capsys, *args)
    assert code == 2
    assert message in err + out
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["eval", "nowhere"], "expected a run directory"),
        (["train", "ppo", "--run-dir", "{tmp}"], "it exists: pass another --run-dir"),
        (["train", "ppo", "--runs-dir", "/proc/nowhere"], "can't be created"),
        (
            ["train", "ppo", "--env-id", "tests.toy_envs:Misbehaves"],
            "environment 0, episode 0, step 4",
        ),
    ],
)
def test_failures(capsys, tmp_path, args, message):
    args = [arg.format(tmp=tmp_path) for arg in args]
    if args[0] == "train" and not {"--run-dir", "--runs-dir"} & set(args):
        args += ["--runs-dir", str(tmp_path)]
    code, _, err = run(capsys, *args)
    assert code == 1
    assert message in err
    assert "Traceback" not in err
    assert err.startswith("hotloop: ")
    assert len(err.strip().splitlines()) == 1


def test_debug_shows_the_traceback(capsys):
    code, _, err = run(capsys, "train", "pop", "--debug")
    assert code == run(capsys, "train", "pop")[0] == 2
    assert err.startswith("Traceback")
    assert "did you mean 'ppo'" in err


def test_a_missing_extra_is_named(capsys, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    code, _, err = run(capsys, "train", "ppo")
    assert code == 1
    assert f"needs torch: {install_command('train')}" in err


ENDLESS = ("--total-timesteps", "100000000", "--num-steps", "32", "--execution", "eager")


def train_until(capsys, run_dir, condition, number, *args):
    """Train in this process; send it a signal once a condition holds."""
    with signal_when(condition, number):
        return run(capsys, "train", "ppo", *ENDLESS, *args, "--run-dir", run_dir)


def assert_kept(run_dir, out, err):
    assert err == (
        "hotloop: interrupted; metrics, timing and the last checkpoint are kept: "
        f"continue with hotloop resume {run_dir}\n"
    )
    assert "The largest cost is" in out
    assert "next: " not in out
    assert (run_dir / "checkpoints" / "last" / "policy.safetensors").exists()
    assert (run_dir / "learning_curve.png").exists()
    assert summarize(run_dir).status == "stopped"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)],
)
def test_an_interrupted_run_keeps_metrics_and_tree(capsys, tmp_path, number, code):
    run_dir = tmp_path / "run"
    exit_code, out, err = train_until(capsys, run_dir, lambda: has_learned(run_dir), number)
    assert exit_code == code
    assert_kept(run_dir, out, err)


def test_repeated_signals_lose_nothing(tmp_path):
    """A process that gets several signals while it saves ends with their exit code."""
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "hotloop", "train", "ppo", *ENDLESS, "--run-dir", str(run_dir)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not has_learned(run_dir):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 130
    assert_kept(run_dir, out, err)


def test_an_environment_that_swallows_the_interrupt_does_not_prevent_it(capsys, tmp_path):
    run_dir = tmp_path / "run"
    env = ("--env-id", "tests.toy_envs:Swallows")
    code, _, err = train_until(capsys, run_dir, lambda: has_learned(run_dir), signal.SIGINT, *env)
    assert code == 130, err
    assert f"continue with hotloop resume {run_dir}" in err


def test_an_interrupt_before_the_first_step_is_reported(capsys, tmp_path):
    run_dir = tmp_path / "run"
    env = ("--env-id", "tests.toy_envs:SlowToMake")
    code, _, err = train_until(capsys, run_dir, run_dir.exists, signal.SIGINT, *env)
    assert code == 130, err
    assert err == "hotloop: interrupted before the first iteration ended\n"
    assert not run_dir.exists()


def test_a_failure_during_training_reports_saved_files(capsys, tmp_path):
    kwargs = json.dumps({"how": "raises", "at": 300})
    run_dir = tmp_path / "run"
    code, _, err = run(
        capsys,
        *("train", "ppo", "--env-id", "tests.toy_envs:Misbehaves", "--env-kwargs", kwargs),
        *("--run-dir", run_dir),
    )
    assert code == 1
    first, second = err.strip().splitlines()
    assert first == f"the run directory is kept: {run_dir}"
    assert second.startswith("hotloop: tests.toy_envs:Misbehaves, environment 0, ")
    assert "the simulator diverged (toy_envs.py:" in second
    assert (run_dir / "checkpoints" / "last").exists()


def test_eval_plays_the_checkpoint(capsys, copy_trained_run):
    """A policy that always pushes left falls within 11 steps, whatever the seed."""
    import numpy as np

    from hotloop.policies import PolicySnapshot
    from hotloop.runs import Checkpoint, RunDirectory

    run_dir = copy_trained_run("ppo")
    directory = RunDirectory.open(run_dir)
    network, snapshot, _ = directory.load_policy()
    params = {name: np.zeros_like(array) for name, array in snapshot.params.items()}
    last = max(name for name in params if name.startswith("policy") and name.endswith("bias"))
    params[last][0] = 1.0
    snapshot = PolicySnapshot(version=1, params=params)
    pushing_left = Checkpoint(
        network=network.to_json(), snapshot=snapshot, arrays=dict, state={"timesteps": 1}
    )
    directory.checkpoints.save(pushing_left, names=["left"])
    _, out, _ = run(capsys, "eval", run_dir, "--checkpoint", "left", "--json", "--episodes", 20)
    returns = json.loads(out)["returns"]
    assert 8 <= min(returns) <= max(returns) <= 11
    # The episodes differ from those of training, and depend on the seed.
    _, other, _ = run(
        capsys, "eval", run_dir, "--checkpoint", "left", "--json", "--episodes", 20, "--seed", 9
    )
    assert json.loads(other)["returns"] != returns


def test_eval_plays_other_episodes_than_training(capsys, trained_run, monkeypatch):
    from hotloop.training import trained_policy

    calls, make_vec = [], trained_policy.make_vec
    monkeypatch.setattr(
        trained_policy, "make_vec", lambda *args: (calls.append(args), make_vec(*args))[1]
    )
    assert run(capsys, "eval", trained_run("ppo"), "--episodes", 2)[0] == 0
    assert [(spec.seed, spec.env_kwargs, spec.stream) for spec, _ in calls] == [
        (1, {}, "evaluation")
    ]


def test_eval_refuses_other_spaces(capsys, copy_trained_run):
    run_dir = copy_trained_run("ppo")
    config = json.loads((run_dir / "config.json").read_text())
    (run_dir / "config.json").write_text(
        json.dumps({**config, "env_id": "Acrobot-v1", "signature": ""})
    )
    code, _, err = run(capsys, "eval", run_dir)
    assert code == 1
    assert "was trained on other spaces than 'Acrobot-v1' has now" in err


def test_environments_of_the_current_folder(capsys, tmp_path, monkeypatch):
    source = Path(__file__).parent.parent / "toy_envs.py"
    (tmp_path / "my_env.py").write_text(source.read_text())
    monkeypatch.chdir(tmp_path)
    # The installed command has its own folder first on the path.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    options = ["--env-id", "my_env:next_step_signs", "--env-kwargs", '{"num_envs": 8}']
    assert run(capsys, "train", "ppo", *options, *SHORT, "--run-dir", "run")[0] == 0
    code, out, _ = run(capsys, "eval", "run", "--episodes", "30")
    assert code == 0
    assert out.splitlines()[-1].endswith("over 30 episodes")
    sys.modules.pop("my_env")


def report_at(timesteps):
    from hotloop.runs import Report

    return Report(
        run_dir=Path("r"),
        timesteps=timesteps,
        total_timesteps=100_000,
        elapsed_s=5.0,
        mean_return=-12.34,
        num_episodes=3,
        metrics={},
    )


def test_the_live_line():
    from hotloop.training.live_line import progress_text

    assert progress_text(report_at(25_000), age_s=10.0).plain == (
        "25,000/100,000 steps · 5,000/s (2,500/s with start-up) · mean return -12.3 · 0:15 left"
    )
    assert progress_text(report_at(0), age_s=10.0).plain == "0/100,000 steps"
    resumed = progress_text(report_at(25_000), age_s=10.0, first_timesteps=25_000)
    assert resumed.plain == "25,000/100,000 steps"


@pytest.mark.parametrize("age_s", [0.0, 1e6])
def test_the_last_report_is_printed_once(capsys, monkeypatch, age_s):
    """The last report is printed once, even if the line was due for an update."""
    from hotloop.training import live_line

    line = live_line.LiveLine()
    line.show(report_at(50_000))
    now = live_line.time.monotonic()
    monkeypatch.setattr(live_line.time, "monotonic", lambda: now + age_s)
    line.show(report_at(100_000))
    line.close()
    printed = capsys.readouterr().out.splitlines()
    assert [text.split("/")[0] for text in printed if "steps" in text] == ["100,000"]


def test_module_and_command_are_the_same():
    command = Path(sys.executable).with_name("hotloop")
    as_module = subprocess.run(
        [sys.executable, "-m", "hotloop", "--version"], capture_output=True, text=True, check=True
    )
    as_command = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert as_module.stdout == as_command.stdout
    assert as_module.stdout.startswith("hotloop ")


def test_terminal_escapes_are_not_printed(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    content = json.loads((run / "config.json").read_text())
    content["config"]["learning_rate"] = "a:\x1b[2Jb"
    content |= {"\x1b[2Junknown": 1, "signature": ""}
    for _ in range(2):
        (run / "config.json").write_text(json.dumps(content))
        assert main(["resume", str(run)]) == 1
        message = capsys.readouterr().err
        assert "\x1b" not in message
        assert "\N{REPLACEMENT CHARACTER}[2J" in message
        content.pop("\x1b[2Junknown", None)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "shared/run"), "shared/run can't be used (Perm"),
        (
            OSError(36, "File name too long", "x" * 5_000),
            "(5,000 characters) can't be used (File name too",
        ),
        (RuntimeError("Symlink loop from 'a/timing'"), "Symlink loop from 'a/timing': remove"),
    ],
)
def test_a_path_that_the_system_refuses(monkeypatch, capsys, error, message):
    def fail(args):
        raise error

    monkeypatch.setattr("hotloop.cli.runs.run", fail)
    assert main(["runs", "."]) == 1
    text = capsys.readouterr().err
    assert message in text
    assert "--debug" not in text
