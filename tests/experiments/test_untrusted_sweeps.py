"""Sweeps that another user may have written: nothing that they name is imported."""

import dataclasses
import json
import sqlite3
import sys

import pytest

from hotloop.algorithms import find
from hotloop.cli import main
from hotloop.cli.stored_sweep import open_results
from hotloop.errors import ConfigError, UntrustedError
from hotloop.experiments import Results
from hotloop.experiments.launch import make_runner
from hotloop.experiments.spaces import options_beyond_data
from tests.experiments.test_results import PLAN, finished

EVIL = "import pathlib\npathlib.Path(__file__).with_name('marker').write_text('it was imported')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Enter a directory with a module that leaves a marker when it is imported."""
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path
    assert not (tmp_path / "marker").exists()


def write(path, params=None, attrs=None, **changes):
    """Write a sweep of this user with a finished trial."""
    results = Results(path)
    results.plan = dataclasses.replace(PLAN, **changes)
    results.add_trial(1, params or {"learning_rate": 0.001}, attrs or {})
    results.claim(1, 1, 100, "tune", "1", "d")
    results.finish(finished())
    results.close()
    return path


def start(path, *, is_trusted):
    results, plan = open_results(path, is_trusted=is_trusted)
    make_runner(plan, results)


def config(**values):
    return {"config": {**PLAN.config, **values}}


HOSTILE = [
    ({"algorithm": "evil:algorithm"}, "evil:algorithm"),
    (config(env_id="evil:make"), '`env_id` "evil:make"'),
    (config(network="evil:Net"), '`network` "evil:Net"'),
    (config(track=["wandb"]), '`track` ["wandb"]'),
    (config(env_kwargs={"script": "evil"}), '`env_kwargs` {"script": "evil"}'),
    ({"space": {"network": "evil:Net,evil:Other"}}, '`network` "evil:Net,evil:Other"'),
    ({"space": {"learning_rate": "evil:fall;0.1"}}, '`learning_rate` "evil:fall;0.1"'),
    ({"backend": "ray", "ray_runtime_env": {"env_vars": {}}}, "`ray_runtime_env` {"),
    ({"backend": "ray", "ray_address": "192.0.2.1:6379"}, '`ray_address` "192.0.2.1:6379"'),
]


@pytest.mark.parametrize(("changes", "name"), HOSTILE, ids=lambda value: str(value)[:40])
def test_a_sweep_of_another_user_is_refused_by_name(folder, monkeypatch, capsys, changes, name):
    path = write(folder / "sweep.sqlite", **changes)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "other user"))
    for command in ("resume", "report"):
        assert main(["sweep", command, str(path)]) == 1
        error = capsys.readouterr().err
        assert name in error
        assert "pass --trust if you trust its author" in error


def test_a_plain_sweep_of_another_user_needs_trust_too(folder, monkeypatch):
    path = write(folder / "sweep.sqlite")
    open_results(path, is_trusted=False)[0].close()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "other user"))
    with pytest.raises(UntrustedError, match=r"`algorithm` \"ppo\", .*`env_id` \"CartPole-v1\""):
        open_results(path, is_trusted=False)
    results, plan = open_results(path, is_trusted=True)
    results.plan = plan  # as a resumed sweep does
    results.close()
    open_results(path, is_trusted=False)[0].close()


def test_changed_settings_are_refused(folder):
    path = write(folder / "sweep.sqlite")
    results = Results(path)
    content = results._plan_content() | config(env_id="evil:make")
    with results._transaction():
        results._store("sweep", "plan", json.dumps(content))
    results.close()
    with pytest.raises(UntrustedError, match="evil:make"):
        open_results(path, is_trusted=False)


@pytest.mark.parametrize(
    ("params", "attrs"),
    [
        ({"network": "evil:Net"}, {}),
        ({"learning_rate": "evil:fall"}, {}),
        ({"learning_rate": 0.1, "ray_runtime_env": {"env_vars": {}}}, {}),
        ({"hidden_sizes": "evil:sizes"}, {}),
        ({"learning_rate": 0.1}, {"became": {"100": {"learning_rate": "evil:fall"}}}),
        ({"learning_rate": 0.1}, {"became": {"100": {"network": "evil:Net"}}}),
    ],
)
def test_trials_only_set_options_of_the_space(folder, params, attrs):
    path = write(folder / "sweep.sqlite", params, attrs)
    for is_trusted in (False, True):
        with pytest.raises(ConfigError, match="is damaged: trial 1 sets `"):
            start(path, is_trusted=is_trusted)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM trials").fetchone() == (1,)


def test_values_of_the_space_are_accepted(folder):
    became = {"100": {"learning_rate": "steps:0=0.1,0.5=0.2"}}
    params = {"learning_rate": 0.1, "hidden_sizes": [64, 64]}
    path = write(folder / "sweep.sqlite", params, {"became": became})
    start(path, is_trusted=False)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("network", '"evil:Net;nature"'),
        ("network", '["nature", " evil:Net"]'),
        ("learning_rate", '"0.1;evil:fall"'),
        ("ray_address", '["192.0.2.1:6379", "none"]'),
        ("init_from", '"/somewhere/run,none"'),
        ("stop_on_file", '["/somewhere/file"]'),
    ],
)
def test_a_file_of_spaces_names_no_code_address_or_file(folder, capsys, name, space):
    (folder / "space.toml").write_text(f"{name} = {space}\n")
    assert main(["sweep", "ppo", "--space", "space.toml", "--seeds", "1", "--trials", "1"]) == 2
    assert f"`{name}` in space.toml may name code, an address or a file" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["evil.py", "space.toml"]


def test_a_file_of_spaces_has_data():
    spaces = {
        "learning_rate": "linear:0.001,0;0.1",
        "gamma": [0.9, 0.99],
        "hidden_sizes": [[8], [8, 8]],
        "network": ["nature", "impala", "none"],
        "num_envs": "int:1,8",
        "normalize_obs": "true,false",
    }
    assert list(options_beyond_data(spaces, find("ppo").config)) == []
