import importlib.util
import json

import numpy as np
import pytest

from hotloop.cli import main
from hotloop.policies import ActingPolicy, TrainedPolicy
from hotloop.runs import RunDirectory


@pytest.fixture
def run_dir(trained_run):
    """Return a run with scaled observations and a best checkpoint before its last one."""
    return trained_run("ppo-normalized")


def load_exported(folder):
    """Return the policy in a folder, loaded without hotloop."""
    spec = importlib.util.spec_from_file_location("policy", folder / "policy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Policy(folder / "policy.npz")


@pytest.mark.parametrize("checkpoint", ["last", "best"])
def test_both_formats_act_as_the_run_does(capsys, tmp_path, run_dir, checkpoint):
    import onnxruntime

    onnx_path, folder = tmp_path / "pendulum.onnx", tmp_path / "pendulum"
    args = ["export", str(run_dir), "--checkpoint", checkpoint]
    network, snapshot, state = RunDirectory.open(run_dir).load_policy(checkpoint)
    obs = np.random.default_rng(1).standard_normal((20, 3)).astype(np.float32)
    expected = TrainedPolicy(ActingPolicy(network, snapshot)).act(obs)
    assert main([*args, "--format", "numpy", "--output", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"ppo on Pendulum-v1 after {state['timesteps']:,} steps" in out
    assert f"{folder / 'policy.npz'}: " in out
    policy = load_exported(folder)
    np.testing.assert_array_equal(policy.act(obs), expected)
    assert policy.metadata["timesteps"] == state["timesteps"]
    if checkpoint == "best":
        return  # the format does not affect the checkpoint, and ONNX takes seconds
    assert main([*args, "--format", "onnx", "--output", str(onnx_path)]) == 0
    out = capsys.readouterr().out
    assert f"ppo on Pendulum-v1 after {state['timesteps']:,} steps" in out
    assert "obs     float32 (batch, 3), as the environment returns it" in out
    assert "action  float32 (batch, 1)" in out
    assert "head    float32 (batch, 1), means" in out
    assert f"{onnx_path}: " in out
    assert "opset 18" in out
    session = onnxruntime.InferenceSession(onnx_path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["action"], {"obs": obs})[0], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("sac", "head    float32 (batch, 2), means before tanh, and a raw log"),
        ("td3", "head    float32 (batch, 1), actions before tanh"),
        ("dqn", "head    float32 (batch, 2), the value of each action"),
    ],
)
def test_off_policy_runs_are_exported(capsys, tmp_path, trained_run, name, head):
    path, folder = trained_run(name), tmp_path / "policy"
    assert main(["export", str(path), "--format", "numpy", "--output", str(folder)]) == 0
    out = capsys.readouterr().out
    assert head in out
    assert "\nvalue" not in out
    network, snapshot, _ = RunDirectory.open(path).load_policy()
    obs = np.random.default_rng(1).standard_normal((20, *network.obs_spec.shape), np.float32)
    policy = load_exported(folder)
    np.testing.assert_array_equal(
        policy.act(obs), TrainedPolicy(ActingPolicy(network, snapshot)).act(obs)
    )
    with pytest.raises(ValueError, match=r"no value function: call `head` for"):
        policy.value(obs)


def test_exports_go_to_the_run_by_default(capsys, copy_trained_run):
    run_dir = copy_trained_run("ppo-normalized", "runs/one")
    assert main(["export", str(run_dir), "--format", "numpy"]) == 0
    assert (run_dir / "export" / "policy.py").exists()
    assert (run_dir / "export" / "policy.npz").exists()
    assert main(["runs", str(run_dir.parent), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(listed) == 1


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--format", "onnx", "--output", "policy"], 2, "must end in .onnx, got 'policy'"),
        (["--format", "numpy", "--output", "{run}/config.json"], 2, "must be a directory"),
        (["--format", "numpy", "--checkpoint", "first"], 1, "has no checkpoint 'first'"),
        (["--format", "tflite"], 2, "tflite"),
        ([], 2, "--format"),
    ],
)
def test_mistakes(capsys, run_dir, args, code, message):
    capsys.readouterr()
    try:
        exit_code = main(["export", str(run_dir), *(arg.format(run=run_dir) for arg in args)])
    except SystemExit as stop:  # argparse exits
        exit_code = stop.code
    assert exit_code == code
    assert message in capsys.readouterr().err


def test_numpy_needs_no_torch(run_dir, tmp_path):
    import subprocess
    import sys

    args = ["export", str(run_dir), "--format", "numpy", "--output", str(tmp_path / "policy")]
    code = (
        "import sys\nfrom hotloop.cli import main\n"
        f"assert main({args!r}) == 0\n"
        "assert not {'torch', 'gymnasium', 'onnx'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
