"""`hotloop resume` of intact, damaged and untrusted runs."""

import dataclasses
import json
import os
import sys

import pytest

import hotloop
from hotloop.algorithms import ppo
from hotloop.cli import main
from hotloop.errors import UntrustedError
from hotloop.runs import RunDirectory
from tests.trained_runs import config_of


def train(path, **options):
    """Train with the options of the shared run `ppo` as defaults."""
    config = config_of("ppo", path)
    return ppo.train(dataclasses.replace(config, **options)).run_dir


@pytest.mark.parametrize("began_at", [0, 256])
def test_resume_finishes_a_run_killed_after_its_last_step(capsys, copy_trained_run, began_at):
    """The accounting of workers is rebuilt from the metrics of each iteration."""
    run = copy_trained_run("ppo-inline")
    accounting = json.loads((run / "accounting.json").read_text())
    (run / "accounting.json").unlink()
    if began_at:  # a file of an earlier resume is older than the checkpoint
        content = json.loads((run / "config.json").read_text())
        content |= {"resumed": [{"timesteps": began_at}], "signature": ""}
        (run / "config.json").write_text(json.dumps(content))
        (run / "accounting.json").write_text("{}")
        os.utime(run / "accounting.json", (1, 1))
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["resume", str(run)]) == 0
    out = capsys.readouterr().out
    assert "is finished, with 512 steps" in out
    assert "pass --total-timesteps with a larger number" in out
    assert (run / "learning_curve.png").stat().st_size > 1000
    assert (run / "metrics.jsonl").read_bytes() == before
    finished = json.loads((run / "accounting.json").read_text())
    assert finished["trained"] == accounting["trained"] - began_at == 512 - began_at
    dropped = sum(finished["dropped"].values())
    assert finished["collected"] == finished["trained"] + dropped + finished["in_flight"]
    # A second resume changes nothing, and more steps are still possible.
    accounting_bytes = (run / "accounting.json").read_bytes()
    assert main(["resume", str(run)]) == 0
    assert (run / "accounting.json").read_bytes() == accounting_bytes
    assert main(["resume", str(run), "--total-timesteps", "640"]) == 0
    assert RunDirectory.open(run).metrics()[-1]["timesteps"] == 640


def test_resume_continues_from_a_named_checkpoint(capsys, copy_trained_run):
    run = copy_trained_run("ppo")
    intact = (run / "checkpoints" / "last" / "policy.safetensors").read_bytes()
    path = run / "checkpoints" / "last" / "learner.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["resume", str(run), "--total-timesteps", "640"]) == 1
    error = capsys.readouterr().err
    assert "learner.safetensors has a wrong digest" in error
    name = error.split("--checkpoint ")[1].split("`")[0]
    assert name == "step-000000000384"
    assert main(["resume", str(run), "--checkpoint", name]) == 0
    assert (run / "checkpoints" / "last" / "policy.safetensors").read_bytes() == intact


def test_resume_changes_options_that_keep_the_weights(capsys, copy_trained_run):
    run = copy_trained_run("ppo")
    command = ["resume", str(run), "--total-timesteps", "640", "--eval-interval", "64"]
    assert main([*command, "--eval-episodes=1", "--no-eval-videos"]) == 0
    assert "evaluation" in RunDirectory.open(run).metrics()[-1]
    assert main(["resume", "--eval-interval", "None", str(run), "--total-timesteps", "768"]) == 0
    assert "evaluation" not in RunDirectory.open(run).metrics()[-1]
    capsys.readouterr()
    before = (run / "config.json").read_bytes()
    for options, message in (
        (["--learning-rate", "0.5"], "configuration that it was started with, got learning_rate:"),
        (["--runs-dir", str(run.parent / "other")], "a resumed run continues in its own directory"),
        (["--eval-interval", "0"], "`eval_interval` must be a positive integer or None, got 0"),
    ):
        assert main(["resume", str(run), *options]) == 2
        assert message in capsys.readouterr().err
    assert not (run.parent / "other").exists()
    assert (run / "config.json").read_bytes() == before


EVIL = """
import pathlib
pathlib.Path(__file__).with_name("marker").write_text("it was imported")
import gymnasium, torch
def make(): return gymnasium.make("CartPole-v1")
class Net(torch.nn.Module): pass
algorithm = fall = make
"""


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Enter a directory with a module that leaves a marker when it is imported."""
    folder = tmp_path / "evil"
    folder.mkdir()
    for name in ("evil", "wandb", "moviepy"):
        (folder / f"{name}.py").write_text(EVIL)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield folder
    sys.modules.pop("evil", None)


CHANGES = [
    {"env_id": "evil:make"},
    {"network": "evil:Net", "config.network": "evil:Net"},
    {"algorithm": "evil:algorithm"},
    {"config.learning_rate": "evil:fall"},
    {"env_id": "GymV26Environment-v0", "config.env_kwargs": {"env_id": "evil:make"}},
    {"auto": {"asked": {"workers": 0}, "chosen": {"network": "evil:Net"}}},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: min(changes))
def test_commands_import_nothing_that_an_untrusted_run_names(
    tmp_path, monkeypatch, capsys, evil, copy_trained_run, changes
):
    run = copy_trained_run("ppo", "evil/run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    content = json.loads((run / "config.json").read_text())
    for name, value in changes.items():
        inside = content["config"] if name.startswith("config.") else content
        inside[name.removeprefix("config.")] = value
    (run / "config.json").write_text(json.dumps(content))
    commands = [
        ["resume", "--total-timesteps", "640"],
        ["eval", "--episodes", "1"],
        ["export", "--format", "numpy"],
        ["plot"],
        ["report"],
    ]
    refused = 0
    for command in commands:
        refused += main([command[0], str(run), *command[1:]]) == 1
        assert not (evil / "marker").exists(), command
    assert refused >= 1
    message = capsys.readouterr().err
    assert "not trained by you on this machine" in message or "`auto.chosen.network`" in message


def edit(run, **options):
    """Change options in a run's config.json, whose signature is no longer valid."""
    content = json.loads((run / "config.json").read_text())
    content["config"].update(options)
    (run / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "options",
    [
        {"ray_runtime_env": {"env_vars": {"LD_PRELOAD": "./evil.so"}}},
        {"ray_runtime_env": {"py_executable": "sh -c 'touch marker'"}},
        {"ray_runtime_env": {"worker_process_setup_hook": "evil.make"}},
        {"ray_runtime_env": {"working_dir": "."}},
        {"ray_address": "192.0.2.1:6379"},
    ],
    ids=str,
)
def test_options_of_ray_need_trust(tmp_path, monkeypatch, capsys, evil, copy_trained_run, options):
    run = copy_trained_run("ppo-workers", "evil/run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    monkeypatch.setattr("hotloop.rollouts.ray.cluster.connect", lambda *_, **__: pytest.fail("ray"))
    edit(run, backend="ray", **options)
    assert main(["resume", str(run), "--total-timesteps", "640"]) == 1
    (name,) = options
    assert f"could run code by `{name}` " in capsys.readouterr().err
    assert not (evil / "marker").exists()


def test_trackers_of_an_untrusted_run_are_off(tmp_path, monkeypatch, capsys, copy_trained_run):
    run = copy_trained_run("ppo")
    edit(run, track=["wandb"])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    opened = []
    monkeypatch.setattr(
        "hotloop.training.reporting.open_trackers", lambda names, *_, **__: opened.append(names)
    )
    assert main(["resume", str(run), "--total-timesteps", "640"]) == 0
    assert "it continues without its trackers (wandb); pass --trust" in capsys.readouterr().err
    assert opened == []
    assert json.loads((run / "config.json").read_text())["config"]["track"] == []


@pytest.mark.parametrize("option", ["seed", "gamma", "num_minibatches"])
def test_a_changed_digit_in_a_signed_run_is_refused(capsys, copy_trained_run, option):
    run = copy_trained_run("ppo")
    value = json.loads((run / "config.json").read_text())["config"][option]
    edit(run, **{option: {"seed": 2, "gamma": 0.98, "num_minibatches": 4}[option]})
    changed = (run / "config.json").read_bytes()
    for command in (["resume", str(run), "--total-timesteps", "640"], ["eval", str(run)]):
        assert main(command) == 1
        assert "was changed after your training had signed it" in capsys.readouterr().err
    assert (run / "config.json").read_bytes() == changed
    for command in (["runs", str(run)], ["compare", str(run), str(run)], ["plot", str(run)]):
        main(command)
        assert "was changed after your training had signed it" in capsys.readouterr().err
    main(["report", str(run)])
    assert "was changed after your training had signed it" in capsys.readouterr().out
    with pytest.raises(UntrustedError, match="was changed after"):
        hotloop.load(run)
    # With --trust the user accepts the change.
    assert main(["eval", str(run), "--episodes", "1", "--trust"]) == 0
    assert main(["resume", str(run), "--total-timesteps", "640", "--trust"]) == 0
    assert RunDirectory.open(run).is_signed
    edit(run, **{option: value})  # back to what an earlier signature was for
    assert main(["eval", str(run)]) == 1


@pytest.mark.usefixtures("cold_start")
def test_workers_do_not_find_modules_beside_a_run(tmp_path, monkeypatch, evil, copy_trained_run):
    """A run that names no modules of its user does not add them to the path later."""
    run = copy_trained_run("ppo-workers", "evil/run")
    (evil / "gymnasium.py").write_text(EVIL)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    for steps in ("640", "768"):
        assert main(["resume", str(run), "--total-timesteps", steps]) == 0
    assert RunDirectory.open(run).is_signed
    assert str(evil) not in sys.path
    assert not (evil / "marker").exists()


def test_resume_refuses_a_run_without_an_intact_checkpoint(tmp_path, capsys):
    run = train(tmp_path / "run", keep_checkpoints=0)
    before = (run / "metrics.jsonl").read_bytes()
    (run / "checkpoints" / "last" / "state.json").unlink()
    for more in ([], ["--total-timesteps", "640"]):
        assert main(["resume", str(run), *more]) == 1
        assert "is cut short or damaged (state.json: No such file" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_trust_resumes_a_run_and_is_stored(tmp_path, monkeypatch, capsys, evil):
    monkeypatch.syspath_prepend(str(evil))
    run = train(evil / "run", env_id="evil:make")
    for command in (["eval", str(run), "--episodes", "1"], ["resume", str(run)]):
        assert main(command) == 0  # trusted: trained here
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    for trust, code in (([], 1), (["--trust"], 0), ([], 1)):
        assert main(["eval", str(run), "--episodes", "1", *trust]) == code
    for trust, code, steps in (([], 1, 640), (["--trust"], 0, 640), ([], 0, 768)):
        assert main(["resume", str(run), "--total-timesteps", str(steps), *trust]) == code
