"""Names and links in a run directory that is not trusted."""

import json
import os
import stat
import sys

import pytest

from hotloop.errors import CheckpointError, RunDirectoryError, UntrustedError
from hotloop.runs import RunDirectory, trust
from tests.runs.test_checkpoints import checkpoint


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def create(tmp_path, *, env_id="CartPole-v1", network=None, reference="ppo", **options):
    run = RunDirectory.create(
        tmp_path / "run",
        runs_dir=tmp_path,
        env_id=env_id,
        algorithm="ppo",
        reference=reference,
        seed=1,
        config={"seed": 1, "total_timesteps": 100, **options},
        network=network,
    )
    run.close()
    return run


FOREIGN = [
    ({"env_id": "my_envs:Walk-v0"}, "`env_id` 'my_envs:Walk-v0'"),
    ({"env_id": "os:system"}, "`env_id` 'os:system'"),
    ({"env_id": "GymV26Environment-v0", "env_kwargs": {"env_id": "os:x"}}, "`env_kwargs` {"),
    ({"env_kwargs": {"xml_file": "../evil.xml"}}, "`env_kwargs` {"),
    ({"env_kwargs": {"deep": [{"x": "y"}]}}, "`env_kwargs` {"),
    ({"network": "my_nets:Net"}, "`network` 'my_nets:Net'"),
    ({"reference": "my_algorithm:algorithm"}, "`algorithm` 'my_algorithm:algorithm'"),
    ({"learning_rate": "my_schedules:fall"}, "`learning_rate` 'my_schedules:fall'"),
    ({"learning_rate": "linear:evil"}, "`learning_rate` 'linear:evil'"),
    ({"learning_rate": "odd name .py:f"}, "`learning_rate` 'odd name .py:f'"),
    ({"reference": "linear:1"}, "`algorithm` 'linear:1'"),
    ({"network": "cosine:1"}, "`network` 'cosine:1'"),
    ({"critic_network": "linear:1"}, "`critic_network` 'linear:1'"),
    ({"critics": [{"x": "my_nets:Critic"}]}, "`critics` 'my_nets:Critic'"),
    ({"policies": "my_games:policy_of"}, "`policies` 'my_games:policy_of'"),
]
KNOWN = [
    {},
    {"env_id": "envpool:Pong-v5"},
    {"env_id": "ALE/Pong-v5", "env_kwargs": {"frameskip": 4, "full": True, "p": 0.1, "x": None}},
    {"learning_rate": "linear:0.001,0", "clip_range": "piecewise:0=0.2,0.5=1e-05"},
    {"learning_rate": "steps:0=0.001,0.25=1e-05"},
    {"runs_dir": "a:b", "run_dir": "/c:d", "device": "cuda:0"},
]


@pytest.mark.parametrize(("run", "message"), FOREIGN)
def test_an_untrusted_run_imports_nothing(tmp_path, monkeypatch, run, message):
    path = create(tmp_path, **run).path
    RunDirectory.open(path).check_trusted(is_trusted=False)  # trained here
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    found = RunDirectory.open(path)
    with pytest.raises(UntrustedError, match=r"not trained by you.*--trust") as caught:
        found.check_trusted(is_trusted=False)
    assert message in str(caught.value)
    found.check_trusted(is_trusted=True)
    is_of_environment = message.startswith(("`env", "`policies`"))
    if is_of_environment:
        with pytest.raises(UntrustedError):
            found.check_trusted(is_trusted=False, only_environment=True)
    else:
        found.check_trusted(is_trusted=False, only_environment=True)


@pytest.mark.parametrize("run", KNOWN)
def test_registered_names_need_no_trust(tmp_path, monkeypatch, run):
    path = create(tmp_path, **run).path
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    RunDirectory.open(path).check_trusted(is_trusted=False)


def test_unexpected_chosen_options_are_rejected(tmp_path, monkeypatch):
    run = create(tmp_path, workers="auto")
    run.save_auto_choice({"workers": 2}, {"summary": "measured: 2 workers"})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    RunDirectory.open(run.path).check_trusted(is_trusted=False)
    content = json.loads((run.path / "config.json").read_text())
    for changed in (
        {"chosen": {"workers": 2, "network": "evil:Net"}},
        {"chosen": {"workers": 2, "env_kwargs": {"render_mode": "human"}}},
        {"asked": {}},
        {"asked": {"workers": "auto", "seed": 1}},
        {"summary": None},
        {"taken": {"steps_per_s": "fast"}},
    ):
        damaged = {**content, "auto": {**content["auto"], **changed}}
        (run.path / "config.json").write_text(json.dumps(damaged))
        with pytest.raises(RunDirectoryError, match=r"config.json is damaged \(`auto"):
            RunDirectory.open(run.path)


def test_a_changed_run_is_not_trusted(tmp_path):
    path = create(tmp_path, env_id="my_envs:Walk-v0").path / "config.json"
    content = json.loads(path.read_text())
    for changed in (
        {**content, "env_id": "my_envs:Run-v0"},
        {**content, "config": {**content["config"], "env_kwargs": {"command": 1}}},
        {**content, "signature": ""},
        {**content, "signature": "é"},
        {name: value for name, value in content.items() if name != "signature"},
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(UntrustedError):
            RunDirectory.open(path.parent).check_trusted(is_trusted=False)
    path.write_text(json.dumps(content))
    RunDirectory.open(path.parent).check_trusted(is_trusted=False)


def test_the_key_is_created_once_and_is_private(tmp_path, state_home):
    create(tmp_path)
    key = state_home / "hotloop" / "key"
    status, content = key.stat(), key.read_bytes()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert len(content) == 32
    assert trust.signature({"a": 1}) == trust.signature({"a": 1}) != trust.signature({"a": 2})
    assert key.read_bytes() == content
    assert os.listdir(key.parent) == ["key"]
    # A key is invalid if others can read it or if it is truncated.
    key.chmod(0o644)
    assert trust.signature({"a": 1}) == ""
    key.chmod(0o600)
    key.write_bytes(content[:5])
    assert trust.signature({"a": 1}) == ""
    assert not trust.is_signed({"a": 1, "signature": ""})


def test_a_pipe_as_key_does_not_block(state_home):
    (state_home / "hotloop").mkdir(parents=True)
    os.mkfifo(state_home / "hotloop" / "key", mode=0o600)
    assert trust.signature({"a": 1}) == ""


def test_a_run_without_a_home_directory_is_unsigned(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = create(tmp_path, env_id="my_envs:Walk-v0")
    with pytest.raises(UntrustedError):
        RunDirectory.open(run.path).check_trusted(is_trusted=False)


def test_a_network_is_imported_only_if_the_signed_configuration_names_it(tmp_path):
    run = create(tmp_path, network="my_nets:Net")
    run.lock()
    saved = checkpoint(100)
    saved.network["body"] = {"kind": "module", "name": "evil_nets:Net"}
    run.checkpoints.save(saved)
    run.close()
    found = RunDirectory.open(run.path)
    with pytest.raises(UntrustedError, match="a network 'evil_nets:Net'"):
        found.load_policy()
    with pytest.raises(Exception, match="there is no module 'evil_nets'"):
        found.load_policy(is_trusted=True)


@pytest.mark.parametrize(
    ("name", "error"),
    [("os:system", "'os:system' is no head"), ("evil_heads:Best", "no module 'evil_heads'")],
)
@pytest.mark.parametrize("is_signed", [True, False])
def test_a_head_is_imported_only_if_the_signed_configuration_names_its_module(
    tmp_path, monkeypatch, name, error, is_signed
):
    run = create(tmp_path, reference="my_algorithm:algorithm")
    run.lock()
    for step, stored in ((100, name), (200, {"name": name, "num_atoms": 51})):
        saved = checkpoint(step)
        saved.network["head"] = stored
        run.checkpoints.save(saved, keep=2)
    run.close()
    if not is_signed:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    found = RunDirectory.open(run.path)
    for folder in ("step-000000000100", "last"):
        with pytest.raises(UntrustedError, match=f"a head '{name}'"):
            found.load_policy(folder)
        with pytest.raises(CheckpointError, match=error):
            found.load_policy(folder, is_trusted=True)


@pytest.mark.parametrize("module", ["my_algorithm", "my_heads"])
def test_a_head_of_the_algorithms_modules_is_imported(tmp_path, monkeypatch, module):
    head = "from hotloop.policies.heads import Gaussian\nclass Best(Gaussian): pass\n"
    (tmp_path / "my_heads.py").write_text(head)
    source = head if module == "my_algorithm" else "from my_heads import Best\n"
    (tmp_path / "my_algorithm.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    run = create(tmp_path, reference="my_algorithm:algorithm")
    run.lock()
    saved = checkpoint(100)
    saved.network["head"] = f"{module}:Best"
    run.checkpoints.save(saved)
    run.close()
    network, _, _ = RunDirectory.open(run.path).load_policy()
    assert type(network.head).__name__ == "Best"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    with pytest.raises(UntrustedError, match=f"a head '{module}:Best'"):
        RunDirectory.open(run.path).load_policy()
    for name in ("my_algorithm", "my_heads"):
        sys.modules.pop(name, None)


# --- links and pipes ------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path):
    """Return a directory with a file that runs must not write to."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "precious").write_text("precious")
    yield folder
    assert os.listdir(folder) == ["precious"]
    assert (folder / "precious").read_text() == "precious"


NAMES = (".lock", "metrics.jsonl", "checkpoints", "timing", "videos", "a/b")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["precious", "."])
def test_a_link_out_of_the_run_is_rejected(tmp_path, elsewhere, name, target):
    path = create(tmp_path).path / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.normpath(elsewhere / target))
    with pytest.raises(RunDirectoryError, match=r"is a link to .*elsewhere"):
        RunDirectory.open(tmp_path / "run").lock()


def test_links_within_the_run_are_accepted(tmp_path):
    run = create(tmp_path)
    (run.path / "wandb").mkdir()
    (run.path / "wandb" / "latest").symlink_to("run-1")
    run.lock()
    run.checkpoints.save(checkpoint(1))
    run.close()
    (tmp_path / "the run").symlink_to(run.path)
    again = RunDirectory.open(tmp_path / "the run")
    again.lock()
    again.checkpoints.save(checkpoint(2))
    again.close()


def test_links_of_wandb_are_accepted_in_trusted_runs(tmp_path, monkeypatch):
    """W&B's logs are in the user's cache; links of an untrusted run may lead anywhere."""
    run = create(tmp_path)
    (run.path / "wandb" / "run-1" / "logs").mkdir(parents=True)
    (run.path / "wandb" / "run-1" / "logs" / "core.log").symlink_to(tmp_path / "cache.log")
    again = RunDirectory.open(run.path)
    again.lock()
    again.close()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other user"))
    with pytest.raises(RunDirectoryError, match=r"core.log is a link to"):
        RunDirectory.open(run.path).lock()


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    run = create(tmp_path)
    os.mkfifo(run.path / "metrics.jsonl")
    with pytest.raises(RunDirectoryError, match="not a regular file"):
        run.metrics()
    with pytest.raises(RunDirectoryError, match=r"metrics.jsonl is neither"):
        run.lock()
    (run.path / "config.json").unlink()
    os.mkfifo(run.path / "config.json")
    with pytest.raises(RunDirectoryError, match=r"is damaged .*not a regular file"):
        RunDirectory.open(run.path)


@pytest.mark.parametrize("target", ["../../elsewhere", "/etc", "step-1/../../x", ".."])
def test_a_checkpoint_link_must_name_a_neighbour(tmp_path, target):
    run = create(tmp_path)
    run.lock()
    run.checkpoints.save(checkpoint(1))
    (run.path / "checkpoints" / "last").unlink()
    (run.path / "checkpoints" / "last").symlink_to(target)
    with pytest.raises(CheckpointError, match="must link to a checkpoint in the same directory"):
        run.checkpoints.load()
    run.close()


# --- moved and deleted ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_removed_directory_is_not_recreated(tmp_path, is_moved, is_replaced):
    run = create(tmp_path)
    run.lock()
    new = tmp_path / "a new name"
    run.path.rename(new)
    if not is_moved:
        for path in new.iterdir():
            path.unlink()
        new.rmdir()
    if is_replaced:
        run.path.mkdir()
        (run.path / "precious").write_text("")
    message = r"was moved to .*: `hotloop resume '.*/a new name'`" if is_moved else "was deleted"
    line = {"iteration": 1, "timesteps": 1, "episode_returns": []}
    for write in (lambda: run.write_json("x.json", {}), lambda: run.log(line)):
        with pytest.raises(RunDirectoryError, match=message):
            write()
    run.close()
    run.remove()
    assert [path.name for path in tmp_path.glob("run/*")] == ["precious"] * is_replaced
