"""Missing and unsupported versions of Stable-Baselines3, and the import of hotloop."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import stable_baselines3
import torch

import hotloop.accelerate
from hotloop.accelerate import libraries
from hotloop.errors import MissingExtraError
from tests.accelerate.random_env import RandomEnv


def _version(versions: dict[str, str]):
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return version


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({}, "needs stable-baselines3, which is not installed: pip install .*sb3"),
        ({"stable-baselines3": "2.3.2"}, "supports stable-baselines3 from 2.4 to below 3.0, got 2"),
        ({"stable-baselines3": "3.0.0a1"}, "got 3.0.0a1"),
        ({"stable-baselines3": "2.4.0"}, "needs sb3-contrib"),
    ],
)
def test_one_sentence_names_the_missing_library(
    versions: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "version", _version(versions))
    with pytest.raises(MissingExtraError, match=message):
        _ = hotloop.accelerate.MaskablePPO


def test_supported_versions_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.4.0", "2.9.2", "2.10.0a4"):
        names = ("stable-baselines3", "sb3-contrib")
        monkeypatch.setattr(libraries, "version", _version(dict.fromkeys(names, version)))
        libraries.check_libraries(needs_contrib=True)


def test_importing_the_package_imports_neither_torch_nor_stable_baselines() -> None:
    code = (
        "import hotloop.accelerate, sys; dir(hotloop.accelerate); "
        "print(sorted({'torch', 'stable_baselines3', 'gymnasium'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "options"),
    [("PPO", {"n_steps": 20, "batch_size": 10}), ("SAC", {"learning_starts": 10})],
)
def test_a_model_for_a_missing_gpu_is_accelerated_on_the_cpu(
    name: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    kind = getattr(stable_baselines3, name)
    model = hotloop.accelerate.accelerate(
        kind("MlpPolicy", RandomEnv(), device="cuda", policy_kwargs={"net_arch": [8]}, **options)
    )
    model.learn(40)
    assert model.device.type == "cpu"
    assert model.acceleration.summary()[:2] == ["acting: accelerated", "updates: accelerated"]
