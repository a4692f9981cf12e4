"""Runs on the Hugging Face Hub, against a local stand-in of its HTTP interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from huggingface_hub import constants

import hotloop
from hotloop.algorithms import ppo
from hotloop.envs import make_vec
from hotloop.envs.turns import Turn
from hotloop.errors import CheckpointError, ConfigError, HubError, UntrustedError
from hotloop.reports.hub_push import published_config, push
from hotloop.reports.model_card import model_card
from hotloop.runs import RunDirectory
from hotloop.runs.checkpoints import Checkpoints
from hotloop.runs.hub import HubAddress, files_to_load
from hotloop.training.opponents import make_player
from tests.cli.run_command import run
from tests.hub_server import TOKEN, hub_server

REPO = "anna/pendulum-ppo"
OBS = np.array([0.5, -0.5, 1.0], np.float32)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with hub_server(monkeypatch, tmp_path / "cache") as server:
        yield server


@pytest.fixture
def pushed(hub, monkeypatch, trained_run):
    """Return the stand-in with a run that was pushed."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    push(trained_run("ppo-normalized"), REPO, episodes=2, license_id="mit")
    monkeypatch.delenv("HF_TOKEN")
    return hub


def test_a_pushed_run_is_loaded_by_its_address(pushed, trained_run, capsys):
    here = hotloop.load(trained_run("ppo-normalized"))
    there = hotloop.load(f"hf://{REPO}")
    np.testing.assert_array_equal(there.act(OBS), here.act(OBS))
    commit = pushed.commit(REPO, None)[0]
    assert "POST /api/models/anna/pendulum-ppo/commit/main" in pushed.requests
    np.testing.assert_array_equal(hotloop.load(f"hf://{REPO}@{commit}").act(OBS), here.act(OBS))
    np.testing.assert_array_equal(hotloop.load(Path(f"hf://{REPO}")).act(OBS), here.act(OBS))
    code, out, _ = run(capsys, "eval", f"hf://{REPO}", "--episodes", 2, "--json")
    assert code == 0
    evaluated = json.loads(out)
    assert evaluated["run"] == f"hf://{REPO}"
    assert (
        evaluated["returns"] == hotloop.evaluate(trained_run("ppo-normalized"), episodes=2).returns
    )


def test_a_repository_has_a_card_and_only_safetensors_and_json(pushed):
    files = pushed.files(REPO)
    step = "checkpoints/step-000000001024"
    names = [".gitattributes", "README.md", "config.json", "learning_curve.png"]
    assert sorted(files) == sorted([*names, f"{step}/policy.safetensors", f"{step}/state.json"])
    assert files["learning_curve.png"].startswith(b"\x89PNG")
    _, header, body = files["README.md"].decode().split("---\n", 2)
    metadata = yaml.safe_load(header)
    assert metadata["library_name"] == "hotloop"
    assert metadata["license"] == "mit"
    assert {"Pendulum-v1", "ppo", "reinforcement-learning"} <= set(metadata["tags"])
    (result,) = metadata["model-index"][0]["results"]
    played = hotloop.evaluate(f"hf://{REPO}", episodes=2)
    mean, spread = result["metrics"][0]["value"].split(" +/- ")  # as leaderboards read it
    assert float(mean) == pytest.approx(played.mean_return, rel=1e-3)
    assert float(spread) == pytest.approx(played.std_return, rel=0.05)
    for part in (
        "# ppo on Pendulum-v1",
        "for 1,024 steps, with seed 1",
        "| mean return |",
        "![learning curve](learning_curve.png)",
        'hotloop.load("hf://anna/pendulum-ppo")',
        "| normalize\\_obs | true |",
        "| numpy |",
        "published under `mit`",
    ):
        assert part in body
    config = json.loads(files["config.json"])
    assert not {"signature", "modules", "command", "may_change"} & config.keys()
    assert not {"run_dir", "runs_dir", "track", "ray_address"} & config["config"].keys()


def test_a_second_push_replaces_the_checkpoint(pushed, monkeypatch, trained_run):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    best = RunDirectory.open(trained_run("ppo-normalized")).checkpoints.load("best").path.name
    assert best != "step-000000001024"
    push(trained_run("ppo-normalized"), REPO, checkpoint="best", episodes=0)
    files = pushed.files(REPO)
    assert {name.split("/")[1] for name in files if name.startswith("checkpoints")} == {best}
    assert "model-index" not in files["README.md"].decode()
    assert "The author states no licence" in files["README.md"].decode()
    hotloop.load(f"hf://{REPO}")


def test_no_token_is_printed_or_written(hub, monkeypatch, copy_trained_run, tmp_path, capfd):
    run_dir = copy_trained_run("ppo")
    directory = RunDirectory.open(run_dir)
    secret = "hf_another9876543210zyxwvutsrqponmlk"
    options = {**directory.config["config"], "ray_address": f"ray://{secret}:1"}
    directory.replace_config({**options, "log_info": [f"api_token={secret}"]})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    code, out, _ = run(capfd, "push", run_dir, REPO, "--episodes", 1, "--private")
    assert code == 0
    assert f"next: hotloop eval hf://{REPO}\n" in out
    hotloop.load(f"hf://{REPO}")
    monkeypatch.setenv("HF_TOKEN", TOKEN[::-1])
    code, out, err = run(capfd, "push", run_dir, "anna/other", "--episodes", 0)
    assert code == 1
    assert "hf auth login" in err
    texts = [out.encode(), err.encode(), *capfd.readouterr()]
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    stored = [x for commits in hub.commits.values() for files in commits for x in files.values()]
    for text in [*texts, *contents, *stored]:
        for token in (TOKEN, TOKEN[::-1]):
            assert token not in (text if isinstance(text, str) else text.decode("latin-1"))
    for text in stored:  # a secret among the options stays in the run directory
        assert secret.encode() not in text


# --- what the hub and strangers do ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.pkl", "holds 'model.pkl', and opening such a file may run code"),
        ("policy.py", "may run code"),
        ("checkpoints/step-000000001024/replay.zip", "may run code"),
        ("../../outside.json", "a path outside of the repository"),
        ("/etc/outside.json", "a path outside of the repository"),
        ("checkpoints/step-000000009999/state.json", "one checkpoint with state.json"),
        ("evil\x1b[31m.pkl", "holds 'evil"),
    ],
)
def test_a_repository_with_other_files_is_not_downloaded(pushed, tmp_path, name, message):
    pushed.files(REPO)[name] = b"x"
    with pytest.raises(HubError, match=message.replace("[", r"\[")) as error:
        hotloop.load(f"hf://{REPO}")
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)
    assert [x for x in (tmp_path / "cache").rglob("*") if x.is_file()] == []


def test_a_huge_file_is_not_downloaded(pushed, tmp_path):
    pushed.fake_sizes["config.json"] = 10**12
    with pytest.raises(HubError, match="1,000,000,000,000 bytes, and hotloop downloads at most"):
        hotloop.load(f"hf://{REPO}")
    assert [x for x in (tmp_path / "cache").rglob("*") if x.is_file()] == []


def test_a_file_of_another_size_than_listed_is_refused(pushed):
    pushed.fake_sizes["config.json"] = 1000
    with pytest.raises(HubError, match=r"'config.json' of .* must have 1,000 bytes"):
        hotloop.load(f"hf://{REPO}")


def changed_config(**changed):
    def change(files):
        content = json.loads(files["config.json"])
        files["config.json"] = json.dumps({**content, **changed}).encode()

    return change


def test_a_changed_file_of_a_checkpoint_is_refused(pushed):
    files = pushed.files(REPO)
    name = next(x for x in files if x.endswith("safetensors"))
    files[name] = files[name][:-4] + b"\0\0\0\1"
    with pytest.raises(CheckpointError, match=r"policy.safetensors has a wrong digest"):
        hotloop.load(f"hf://{REPO}")


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "message"),
    [
        ("evil:Env", {}, "`env_id` 'evil:Env'"),
        ("Pendulum-v1", {"render_mode": "/etc/x"}, "`env_kwargs`"),
    ],
)
def test_code_that_a_repository_names_is_not_imported(
    pushed, tmp_path, monkeypatch, env_id, env_kwargs, message
):
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    options = json.loads(pushed.files(REPO)["config.json"])["config"]
    config = {**options, "env_kwargs": env_kwargs}
    changed_config(env_id=env_id, config=config)(pushed.files(REPO))
    with pytest.raises(UntrustedError, match=message):
        hotloop.evaluate(f"hf://{REPO}")


def test_a_policy_of_other_spaces_is_refused(pushed):
    changed_config(env_id="CartPole-v1")(pushed.files(REPO))
    with pytest.raises(CheckpointError, match="other spaces than 'CartPole-v1'"):
        hotloop.evaluate(f"hf://{REPO}", episodes=1)


@pytest.mark.parametrize(
    "address", ["hf://anna", "hf://../x", "hf://a/b/c", "hf://a/b@", "hf:///b"]
)
def test_invalid_addresses(address):
    with pytest.raises(ConfigError, match="must be named hf://user/name"):
        hotloop.load(address)


def test_addresses():
    assert HubAddress.parse("hf://a/b") == HubAddress("a/b")
    assert HubAddress.parse("hf:/a/b@v1.0") == HubAddress("a/b", "v1.0")
    assert str(HubAddress("a/b", "refs/pr/1")) == "hf://a/b@refs/pr/1"


def test_missing_models_revisions_and_tokens(pushed, trained_run):
    with pytest.raises(HubError, match="has no model hf://anna/none, or you may not read it"):
        hotloop.load("hf://anna/none")
    with pytest.raises(HubError, match="hf://anna/pendulum-ppo@old has no such revision"):
        hotloop.load(f"hf://{REPO}@old")
    with pytest.raises(HubError, match="hf auth login"):
        push(trained_run("ppo-normalized"), "anna/new", episodes=0)
    pushed.private.add(REPO)
    with pytest.raises(HubError, match="you may not read it"):
        hotloop.load(f"hf://{REPO}")


def test_a_repository_of_another_project_is_not_overwritten(hub, monkeypatch, trained_run):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.files("anna/bert")["model.bin"] = b"x"
    with pytest.raises(HubError, match=r"holds files of another model, such as 'model\.bin'"):
        push(trained_run("ppo"), "anna/bert", episodes=0)
    with pytest.raises(ConfigError, match="`license` must be an identifier"):
        push(trained_run("ppo"), REPO, license_id="MIT: free\nx: y")
    with pytest.raises(ConfigError, match="must be named"):
        push(trained_run("ppo"), "anna/x@main")
    assert list(hub.commits) == ["anna/bert"]


def test_files_of_another_library_are_not_overwritten(hub, monkeypatch, trained_run):
    """Its layout resembles that of a run."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    names = ("A.bin", "config.json", "checkpoints/step-500/model.safetensors")
    hub.files("anna/bert").update(dict.fromkeys(names, b"{}"))
    with pytest.raises(HubError, match=r"holds files of another model, such as 'A\.bin'"):
        push(trained_run("ppo"), "anna/bert", episodes=0)
    assert len(hub.commits["anna/bert"]) == 1


def test_a_private_model_is_not_pushed_to_a_public_repository(pushed, monkeypatch, trained_run):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    commits = list(pushed.commits[REPO])
    with pytest.raises(HubError, match=f"{REPO} exists and is public, so nothing was published"):
        push(trained_run("ppo-normalized"), REPO, episodes=0, is_private=True)
    assert pushed.commits[REPO] == commits


def test_a_push_during_a_training_publishes_one_checkpoint(hub, monkeypatch, copy_trained_run):
    """The training saves a checkpoint after each time that `push` looks for the last one."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    run_dir = copy_trained_run("ppo-normalized")
    steps = sorted(x.name for x in (run_dir / "checkpoints").glob("step-*"))
    assert len(steps) > 1
    find = Checkpoints._find

    def find_once(self, name):
        return self.path / steps.pop() if name == "last" else find(self, name)

    monkeypatch.setattr(Checkpoints, "_find", find_once)
    newest = steps[-1]
    push(run_dir, REPO, episodes=1)
    assert f"checkpoints/{newest}/state.json" in hub.files(REPO)
    card = hub.files(REPO)["README.md"].decode()
    assert f"for {int(newest.removeprefix('step-')):,} steps" in card


def test_published_options():
    """Secrets are masked, and other values stay as they are."""
    options = {
        "env_kwargs": {"api_key": "abc def", "api_tokens": ["a"], "tokens": 5, "url": "s://u:p@h"},
        "init_from": "/home/anna/runs/secret-project",
        "log_info": ["token=x"],
        "run_dir": "/home/anna",
        "seed": 1,
    }
    content = dict.fromkeys(("algorithm", "env_id", "versions", "started_at"))
    content |= {"network": "token_nets:Policy", "config": options, "may_change": ["run_dir"]}
    published = published_config(content)
    assert published["network"] == "token_nets:Policy"
    assert published["config"] == {
        "env_kwargs": {
            "api_key": "***",
            "tokens": 5,
            "api_tokens": ["***"],
            "url": "s://u:***@h",
        },
        "log_info": ["token=***"],
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "network", "trust"),
    [
        ("Pendulum-v1", {"g": 9.8}, None, ("", "")),
        ("my_envs:Hunt", {}, None, (" --trust", "")),
        ("Pendulum-v1", {"map": "x"}, None, (" --trust", "")),
        ("Pendulum-v1", {}, "nets:Net", (" --trust", ", trust=True")),
    ],
)
def test_commands_of_the_card(env_id, env_kwargs, network, trust):
    content = {"algorithm": "ppo", "env_id": env_id, "network": network, "versions": {}}
    content |= {"config": {"seed": 1, "env_kwargs": env_kwargs}}
    card = model_card(content, REPO, timesteps=1, played=None, license_id=None)
    assert f"\nhotloop eval hf://{REPO}{trust[0]}\n" in card
    assert f'hotloop.load("hf://{REPO}"{trust[1]})' in card
    assert ("modules of the author" in card) == bool(trust[0])
    assert "pip install './hotloop[train,hub]'" in card


@pytest.mark.parametrize("number", range(3))
def test_a_repository_with_two_files_of_a_kind(number):
    step = "checkpoints/step-000000000001"
    sizes = dict.fromkeys(["config.json", f"{step}/state.json", f"{step}/policy.safetensors"], 1)
    assert files_to_load(HubAddress("a/b"), sizes) == sorted(sizes)
    del sizes[list(sizes)[number]]
    sizes["checkpoints/step-000000000002/state.json"] = 1
    with pytest.raises(HubError, match=r"must hold config\.json, and one checkpoint"):
        files_to_load(HubAddress("a/b"), sizes)


def test_without_a_network_the_error_is_one_sentence(hub, monkeypatch, capsys):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    code, _, err = run(capsys, "eval", f"hf://{REPO}")
    assert code == 1
    assert "http://127.0.0.1:9 can't be reached (" in err
    assert err.count("\n") == 1


def test_a_new_process_loads_all_parts_of_the_library():
    """The tests above have loaded some of them already."""
    code = "from hotloop.runs.hub import huggingface_hub as load; print(load().constants.ENDPOINT)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.startswith("http"), result.stderr


def test_a_directory_of_the_hub_s_own_tool_is_a_run(pushed, tmp_path, trained_run):
    folder = tmp_path / "model"
    for name, content in pushed.files(REPO).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    expected = hotloop.load(trained_run("ppo-normalized")).act(OBS)
    np.testing.assert_array_equal(hotloop.load(folder).act(OBS), expected)
    shutil.rmtree(folder)


def test_a_published_policy_is_no_start_of_a_training(pushed, tmp_path, capsys):
    with pytest.raises(ConfigError, match=f"on this machine, got hf://{REPO}: a published policy"):
        ppo.train("Pendulum-v1", init_from=f"hf://{REPO}", run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    folder = tmp_path / "model"
    for name, content in pushed.files(REPO).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    code, _, err = run(capsys, "resume", folder, "--total-timesteps", 100_000)
    assert code == 1
    assert "it lacks learner.safetensors, like a policy that `hotloop push` has published" in err


def test_an_opponent_may_be_published(pushed):
    envs = make_vec("Pendulum-v1")
    player = make_player(f"hf://{REPO}", envs)
    turn = Turn(0, "player", OBS, OBS, np.ones(0, np.bool_))
    assert player.act([turn], np.random.default_rng(0))[0].shape == (1,)
    envs.close()
