"""The GPU's arithmetic is set at the start of every training, and stored with the run."""

import contextlib

import pytest

from hotloop.algorithms import ppo
from hotloop.errors import ConfigError
from hotloop.runs import RunDirectory
from hotloop.training.lanes import train_lanes

OPTIONS = {
    "env_id": "CartPole-v1",
    "num_envs": 2,
    "num_steps": 16,
    "total_timesteps": 64,
    "execution": "eager",
    "checkpoint_interval": 32,
}


@pytest.fixture
def calls(monkeypatch):
    """Simulate a GPU whose arithmetic can be set, and record the calls."""
    calls = []

    @contextlib.contextmanager
    def fake_arithmetic(precision, device):
        calls.append(("begin", precision, device.type))
        yield {"gpu": "a GPU", "gpu_float32": "ieee"}
        calls.append("end")

    monkeypatch.setattr("hotloop.training.process.gpu_arithmetic", fake_arithmetic)
    return calls


def versions(path):
    return RunDirectory.open(path).config["versions"]


def test_training_resume_and_lanes_set_the_arithmetic(tmp_path, calls):
    once = [("begin", "float32", "cpu"), "end"]
    config = ppo.Config(run_dir=str(tmp_path / "one"), **OPTIONS)
    ppo.train(config, progress=False)
    assert calls == once
    assert versions(tmp_path / "one")["gpu"] == "a GPU"
    assert versions(tmp_path / "one")["gpu_float32"] == "ieee"
    longer = ppo.Config(run_dir=str(tmp_path / "one"), **{**OPTIONS, "total_timesteps": 128})
    ppo.train(longer, progress=False, resume_from=str(tmp_path / "one"))
    assert calls == 2 * once
    configs = [
        ppo.Config(run_dir=str(tmp_path / f"lane{seed}"), seed=seed, **OPTIONS) for seed in (1, 2)
    ]
    train_lanes(ppo.algorithm, configs)
    assert calls == 3 * once  # once per process, since lanes end one after another
    assert all(versions(config.run_dir)["gpu"] == "a GPU" for config in configs)


def test_tf32_is_refused_on_the_cpu_before_anything_is_written(tmp_path):
    path = tmp_path / "run"
    config = ppo.Config(run_dir=str(path), device="cpu", precision="tf32", **OPTIONS)
    with pytest.raises(ConfigError, match=r"'tf32' needs a CUDA device, .*: choose 'float32'"):
        ppo.train(config, progress=False)
    with pytest.raises(ConfigError, match="'tf32' needs a CUDA device"):
        train_lanes(ppo.algorithm, [config])
    assert not path.exists()


def test_run_resumed_without_its_gpu_uses_float32(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:  # a GPU was there when it began
        path = "hotloop.training.process.gpu_arithmetic"
        patch.setattr(path, lambda *_: contextlib.nullcontext({}))
        config = ppo.Config(run_dir=str(tmp_path / "run"), precision="tf32", **OPTIONS)
        ppo.train(config, progress=False)
    longer = ppo.Config(
        run_dir=str(tmp_path / "run"), precision="tf32", **{**OPTIONS, "total_timesteps": 96}
    )
    result = ppo.train(longer, progress=False, resume_from=str(tmp_path / "run"))
    assert result.timesteps == 96
