import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotloop.cli import main

SHORT = ["--total-timesteps", "2048"]


def run(capsys, *args):
    """Exit code, standard output, standard error."""
    try:
        code = main([str(arg) for arg in args])
    except SystemExit as stop:  # how option parsers end
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_then_eval(capsys, tmp_path):
    run_dir = tmp_path / "run"
    code, out, err = run(
        capsys, "train", "ppo", "--env-id", "CartPole-v1", *SHORT, "--seed", 3, "--run-dir", run_dir
    )
    assert code == 0
    assert err == ""
    assert re.search(r"2,048/2,048 steps · [\d,]+/s \([\d,]+/s with start-up\) · mean return", out)
    for column in ("span", "share", "calls", "mean", "p50", "p99"):
        assert column in out
    for stage in ("collect", "env_step", "act", "update", "minibatch"):
        assert stage in out
    assert re.search(r"The largest cost is .*minibatch: \d+% of the time\.", out)
    assert re.search(r"Recording this took 0\.\d+% of it\.", out)
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


@pytest.mark.parametrize("args", [["--help"], ["train", "--help"], ["eval", "--help"]])
def test_help(capsys, args):
    code, out, _ = run(capsys, *args)
    assert code == 0
    assert out.startswith("usage: hotloop")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "did you mean 'train'?"),
        (["train", "pop"], "did you mean 'ppo'?"),
        (["train", "ppo", "--env-id", "Cartpole-v1"], "did you mean 'CartPole-v1'"),
        (["train", "ppo", "--total-timestep", "10"], "--total-timesteps"),
        (["train", "ppo", "--num-envs", "many"], "--num-envs"),
        (["train", "ppo", "--num-minibatches", "3"], "must divide"),
        (["train", "ppo", "--env-kwargs", "g=1"], "expected a JSON object"),
        (["train", "ppo", "--env-kwargs", '{"gg": 1}', "--env-id", "Pendulum-v1"], "gg"),
        (["eval", "nowhere", "--episodes", "0"], "`--episodes` must be positive"),
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
        (["train", "ppo", "--run-dir", "{tmp}"], "it exists: give another --run-dir"),
        (["train", "ppo", "--runs-dir", "/proc/nowhere"], "can't be made"),
        (["train", "ppo", "--env-id", "tests.toy_envs:Text"], "Text"),
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
    with pytest.raises(ValueError, match="did you mean 'ppo'"):
        run(capsys, "train", "pop", "--debug")


def test_a_missing_extra_is_named(capsys, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    code, _, err = run(capsys, "train", "ppo")
    assert code == 1
    assert "needs torch: pip install 'hotloop[train]'" in err


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_metrics_and_tree(tmp_path, signal_number):
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "hotloop", "train", "ppo", "--run-dir", str(run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = run_dir / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal_number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "kept" in err
    assert "The largest cost is" in out
    assert (run_dir / "checkpoints" / "last" / "tensors.safetensors").exists()
    assert metrics.read_text().count("\n") > 2


def test_eval_needs_no_torch(capsys, tmp_path):
    run_dir = tmp_path / "run"
    assert run(capsys, "train", "ppo", *SHORT, "--run-dir", run_dir)[0] == 0
    code = (
        "import sys\n"
        "from hotloop.cli import main\n"
        f"assert main(['eval', {str(run_dir)!r}, '--episodes', '2']) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_help_imports_no_torch():
    code = (
        "import sys, hotloop\n"
        "from hotloop.cli import main\n"
        "main(['--help']), main(['train', '--help'])\n"
        "assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_module_and_command_are_the_same():
    command = Path(sys.executable).with_name("hotloop")
    as_module = subprocess.run(
        [sys.executable, "-m", "hotloop", "--version"], capture_output=True, text=True, check=True
    )
    as_command = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert as_module.stdout == as_command.stdout
    assert as_module.stdout.startswith("hotloop ")
