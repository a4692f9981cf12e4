"""`hotloop cache`."""

from __future__ import annotations

import pytest

from hotloop.base import cache
from hotloop.cli import main


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_showing_and_clearing(directory, capsys):
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{directory}: 0 compiled files, 0.0 MB\n"
    with cache.creating("0" * 64, ".pt2") as making:
        making.save(bytes(1_500_000))
    assert main(["cache"]) == 0
    first, heads, row = capsys.readouterr().out.splitlines()
    assert first == f"{directory}: 1 compiled file, 1.5 MB"
    assert heads.split() == ["key", "size", "used"]
    assert row.split()[:3] == ["0" * 12, "1.5", "MB"]
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"removed 1 compiled file, 1.5 MB from {directory}\n"
    assert cache.entries() == []


def test_clearing_reports_failures(directory, capsys, monkeypatch):
    def fail():
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache, "clear", fail)
    assert main(["cache", "--clear"]) == 1
    assert f"{directory} can't be cleared (Permission denied): delete" in capsys.readouterr().err


def test_building(capsys, monkeypatch):
    def precompile(algorithm, config):
        return f"{algorithm.name} with batches of {config.batch_size}"

    monkeypatch.setattr("hotloop.training.precompile.precompile", precompile)
    assert main(["cache", "build", "sac", "--env-id", "Pendulum-v1", "--batch-size", "8"]) == 0
    assert capsys.readouterr().out.endswith("sac on Pendulum-v1: sac with batches of 8\n")
    assert main(["cache", "build"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " on " in line]
    assert [line.partition(":")[0] for line in lines if "batches" in line] == [
        "ppo on CartPole-v1",
        "dqn on CartPole-v1",
        "sac on Pendulum-v1",
        "td3 on Pendulum-v1",
    ]
    assert main(["cache", "build", "ppp"]) == 2
    assert "expected an algorithm" in capsys.readouterr().err
