"""`hotloop resume` of runs that are whole, that are damaged, and that somebody else wrote."""

import dataclasses
import json
import os
import sys

import pytest

from hotloop.algorithms import ppo
from hotloop.cli import main
from hotloop.runs import RunDirectory
from tests.trained_runs import config_of


def train(path, **options):
    """Train, with the options of the shared run `ppo` where no others are given."""
    config = config_of("ppo", path)
    return ppo.train(dataclasses.replace(config, **options)).run_dir


@pytest.mark.parametrize("began_at", [0, 256])
def test_a_run_that_was_killed_after_its_last_step_is_finished(capsys, copy_trained_run, began_at):
    """The account of its workers is made again from what each iteration has logged."""
    run = copy_trained_run("ppo-inline")
    accounting = json.loads((run / "accounting.json").read_text())
    (run / "accounting.json").unlink()
    if began_at:  # it was resumed before, and what that left is older than the checkpoint
        content = json.loads((run / "config.json").read_text())
        content["resumed"] = [{"timesteps": began_at}]
        (run / "config.json").write_text(json.dumps(content))
        (run / "accounting.json").write_text("{}")
        os.utime(run / "accounting.json", (1, 1))
    before = (run / "metrics.jsonl").read_bytes()
    assert main(["resume", str(run)]) == 0
    out = capsys.readouterr().out
    assert "is finished, with 512 steps" in out
    assert "--total-timesteps N goes on to more" in out
    assert (run / "learning_curve.png").stat().st_size > 1000
    assert (run / "metrics.jsonl").read_bytes() == before
    finished = json.loads((run / "accounting.json").read_text())
    assert finished["trained"] == accounting["trained"] - began_at == 512 - began_at
    dropped = sum(finished["dropped"].values())
    assert finished["collected"] == finished["trained"] + dropped + finished["in_flight"]
    # Once more changes nothing, and more steps can still be asked for.
    kept = (run / "accounting.json").read_bytes()
    assert main(["resume", str(run)]) == 0
    assert (run / "accounting.json").read_bytes() == kept
    assert main(["resume", str(run), "--total-timesteps", "640"]) == 0
    assert RunDirectory.open(run).metrics()[-1]["timesteps"] == 640


def test_the_checkpoint_that_is_named_can_be_gone_on_from(capsys, copy_trained_run):
    run = copy_trained_run("ppo")
    whole = (run / "checkpoints" / "last" / "policy.safetensors").read_bytes()
    path = run / "checkpoints" / "last" / "learner.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["resume", str(run), "--total-timesteps", "640"]) == 1
    error = capsys.readouterr().err
    assert "learner.safetensors is not what was written" in error
    name = error.split("--checkpoint ")[1].split("`")[0]
    assert name == "step-000000000384"
    assert main(["resume", str(run), "--checkpoint", name]) == 0
    assert (run / "checkpoints" / "last" / "policy.safetensors").read_bytes() == whole


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
    """A directory with a module that leaves a marker, in which the command is called."""
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
def test_nothing_of_somebody_else_is_imported(
    tmp_path, monkeypatch, capsys, evil, copy_trained_run, changes
):
    run = copy_trained_run("ppo", "evil/run")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))
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
    told = capsys.readouterr().err
    assert "not trained by you on this machine" in told or "`auto.chosen.network`" in told


@pytest.mark.usefixtures("cold_start")
def test_modules_beside_a_run_are_not_found_by_its_workers(
    tmp_path, monkeypatch, evil, copy_trained_run
):
    """Nor is a run that names nothing of its user's a reason to look for them later."""
    run = copy_trained_run("ppo-workers", "evil/run")
    (evil / "gymnasium.py").write_text(EVIL)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))
    for steps in ("640", "768"):
        assert main(["resume", str(run), "--total-timesteps", steps]) == 0
    assert RunDirectory.open(run).is_own
    assert str(evil) not in sys.path
    assert not (evil / "marker").exists()


def test_a_run_without_a_whole_checkpoint_is_not_begun_anew(tmp_path, capsys):
    run = train(tmp_path / "run", keep_checkpoints=0)
    before = (run / "metrics.jsonl").read_bytes()
    (run / "checkpoints" / "last" / "state.json").unlink()
    for more in ([], ["--total-timesteps", "640"]):
        assert main(["resume", str(run), *more]) == 1
        assert "is cut short or damaged (state.json: No such file" in capsys.readouterr().err
    assert (run / "metrics.jsonl").read_bytes() == before


def test_trust_goes_on_and_is_kept(tmp_path, monkeypatch, capsys, evil):
    monkeypatch.syspath_prepend(str(evil))
    run = train(evil / "run", env_id="evil:make")
    for command in (["eval", str(run), "--episodes", "1"], ["resume", str(run)]):
        assert main(command) == 0  # one's own
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody else"))
    for trust, code in (([], 1), (["--trust"], 0), ([], 1)):
        assert main(["eval", str(run), "--episodes", "1", *trust]) == code
    for trust, code, steps in (([], 1, 640), (["--trust"], 0, 640), ([], 0, 768)):
        assert main(["resume", str(run), "--total-timesteps", str(steps), *trust]) == code
