"""Options of a run that another user may have written: only data is accepted."""

import itertools
from dataclasses import dataclass, fields

import pytest

from hotloop.algorithms import ALGORITHMS, find
from hotloop.errors import ConfigError, UnknownNameError
from hotloop.training.options import RunOptions, from_stored, to_json, untrusted_options

# Values that name code, addresses, files, programs or variables.
HOSTILE = [
    "stranger:make",
    "os:system",
    "linear:stranger",
    "/etc/passwd",
    "http://192.0.2.1/",
    "192.0.2.1:6379",
    ["stranger:make"],
    ["wandb", "stranger"],
    {"stranger": "make"},
    {"env_vars": {"LD_PRELOAD": "./stranger.so"}},
    {"py_executable": "sh -c 'touch marker'"},
    {"worker_process_setup_hook": "stranger.make"},
    {"working_dir": "."},
    {"num_cpus": "stranger:make"},
]
# Strings that no resumed run uses, and words of `info`.
UNUSED = {"run_dir": str, "runs_dir": str, "log_info": list}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_hostile_value_is_refused_by_name(algorithm, monkeypatch):
    config = find(algorithm).config
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imported {name}"))
    # For the environment's options, see tests/runs/test_trust.py.
    options = {field.name for field in fields(config)} - {"env_id", "env_kwargs"}
    for option, value in itertools.product(options, HOSTILE):
        stored = {"env_id": "CartPole-v1", option: value}
        if untrusted_options(config, stored):
            assert untrusted_options(config, stored)[0].startswith(f"`{option}` ")
        elif not isinstance(value, UNUSED.get(option, ())):
            with pytest.raises((ConfigError, UnknownNameError), match=f"`{option}`"):
                from_stored(config, stored)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_defaults_and_plain_values_are_data(algorithm):
    config = find(algorithm).config
    assert untrusted_options(config, to_json(config(env_id="CartPole-v1"))) == []
    values = {
        "learning_rate": "linear:0.001,0",
        "gamma": 0.9,
        "memory": "lstm:8",
        "network": "nature",
        "schedule": "lag:1",
        "device": "cuda:1",
        "hidden_sizes": [8, 8],
        "log_info": ["is_success"],
        "worker_resources": {"num_cpus": 2, "accelerator": 0.5},
        "run_dir": "/somewhere:else",
        "ray_address": None,
    }
    names = {field.name for field in fields(config)}
    known = {name: value for name, value in values.items() if name in names}
    known.pop("schedule", None) if algorithm != "appo" else None
    assert untrusted_options(config, known) == []


def test_a_new_option_is_untrusted_until_it_declares_itself():
    @dataclass(frozen=True, kw_only=True)
    class Config(RunOptions):
        note: str = ""
        names: tuple[str, ...] = ()
        table: dict[str, float] | None = None

    for name, value in {"note": "a", "names": ["a"], "table": {"a": 1.0}}.items():
        assert untrusted_options(Config, {name: value})[0].startswith(f"`{name}` ")
    assert untrusted_options(Config, {"table": None}) == []


def test_options_that_reach_other_machines_or_files_are_untrusted():
    config = find("ppo").config
    for name, value in {
        "ray_runtime_env": {"env_vars": {"A": "b"}},
        "ray_address": "192.0.2.1:6379",
        "network": "nets:Net",
        "clip_range": "schedules:fall",
    }.items():
        assert untrusted_options(config, {name: value})[0].startswith(f"`{name}` ")
