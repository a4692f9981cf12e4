"""`hotloop doctor` and `hotloop presets`."""

import json
import re
import sys
from pathlib import Path

import pytest

from hotloop.algorithms import ALGORITHMS, find
from hotloop.cli import main
from hotloop.errors import install_command
from hotloop.reports import machine

ROOT = Path(__file__).parent.parent.parent


def findings_by_name():
    return {finding.name: finding for finding in machine.collect_findings()}


def test_findings_are_printed(capsys):
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert not err
    for name in ("cores", "free memory", "torch", "C++ compiler", "compiled updates"):
        assert re.search(rf"^{re.escape(name)}  +\S", out, re.MULTILINE), name
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {finding["name"] for finding in findings} == set(findings_by_name())
    assert all(finding.keys() == {"name", "value", "advice"} for finding in findings)


def test_a_quota(monkeypatch):
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    monkeypatch.setattr(machine, "free_cores", lambda: 1)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 8)
    findings = findings_by_name()
    assert findings["cores"].value == "2 of 8, by affinity or a quota"
    assert "raise it" in findings["cores"].advice
    assert "end them" in findings["idle cores"].advice


def test_no_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    finding = findings_by_name()["C++ compiler"]
    assert finding.value == "none"
    assert "install g++, or set CXX" in finding.advice


def test_without_torch(monkeypatch):
    real = machine._version
    monkeypatch.setattr(machine, "_version", lambda x: None if x == "torch" else real(x))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert install_command("train") in findings_by_name()["torch"].advice


def test_missing_parts_are_reported(monkeypatch, capsys):
    real = machine.importlib.util.find_spec
    monkeypatch.setattr(
        machine.importlib.util, "find_spec", lambda x: None if x == "wandb" else real(x)
    )
    monkeypatch.setitem(sys.modules, "hotloop.timing._recorder", None)
    findings = findings_by_name()
    missing = findings["missing extras"].value.partition(" (")[0]
    assert "wandb" in missing
    assert install_command(missing.replace(", ", ",")) in findings["missing extras"].value
    assert "wandb" not in findings["extras"].value
    assert findings["compiled parts"].value == "missing: spans"
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "to make training faster:" in out
    assert "missing extras" in out


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("HOTLOOP_CACHE", str(tmp_path / "file" / "cache"))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(machine.os, "access", lambda path, mode: False)  # root may write anywhere
    assert "set HOTLOOP_CACHE" in findings_by_name()["compiled updates"].advice


def test_the_extras_are_those_of_pyproject():
    text = (ROOT / "pyproject.toml").read_text()
    table = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    names = set(re.findall(r"^([a-z0-9]+) = \[", table, re.MULTILINE))
    assert machine.EXTRAS.keys() == names - {"bench", "dev", "docs", "all"}


def test_presets(capsys):
    assert main(["presets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(entry["algorithm"], entry["env_id"]) for entry in listed] == [
        (name, env_id) for name in ALGORITHMS for env_id in find(name).presets
    ]
    assert main(["presets"]) == 0
    out = capsys.readouterr().out
    assert "Pendulum-v1" in out
    assert "learning_starts=500" in out


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "ALE/Breakout-v5"])
def test_presets_of_an_environment(capsys, env_id):
    assert main(["presets", env_id, "--json"]) == 0
    options_by_algorithm = {
        entry["algorithm"]: entry["options"] for entry in json.loads(capsys.readouterr().out)
    }
    for name, options in options_by_algorithm.items():
        algorithm = find(name)
        config = algorithm.preset(env_id)
        for option, value in options.items():
            assert json.loads(json.dumps(getattr(config, option), default=str)) == value
    assert set(options_by_algorithm) == (
        {"ppo", "sac", "tqc", "crossq", "td3"} if env_id == "Pendulum-v1" else {"ppo", "dqn"}
    )


def test_presets_of_an_id_prefix(capsys):
    assert main(["presets", "ALE/"]) == 0
    out = capsys.readouterr().out
    assert "clip_range=0.1" in out
    assert "next:" not in out


def test_an_environment_without_a_preset(capsys):
    assert main(["presets", "Pendulum-v2"]) == 2
    assert "did you mean 'Pendulum-v1'" in capsys.readouterr().err
    assert main(["presets", "qqqqq"]) == 2
    assert "uses the algorithm's defaults" in capsys.readouterr().err
