"""Planted secrets reach no file of a run, sweep, profile or tracker, and no message."""

import json
import sqlite3
import zipfile

import pytest

from tests.faults.trials import PPO, Failed, check_error_message, check_success

faults = pytest.mark.faults

VARIABLES = ("WANDB_API_KEY", "HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "AWS_SECRET_ACCESS_KEY")
# W&B requires 40 characters.
SECRETS = {name: f"{number:02}planted" + 31 * "5" for number, name in enumerate(VARIABLES)}
ARGUMENT = "98planted" + 31 * "7"  # of the environment, which a resumed run needs
OPTION = "99planted" + 31 * "8"  # of a profiled script
ENV = ["--env-id", "tests.faults.leaking_envs:make", "--total-timesteps", "512"]
SCRIPT = """
import sys, time
def work(token):
    for _ in range(40):
        time.sleep(0.005)
work(sys.argv[2])
"""


def contents(folder):
    """Yield the name and the content of each file, and those within archives."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        yield str(path.relative_to(folder)), path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    yield f"{path.name}:{name}", archive.read(name)


def check(name, content, may_have=()):
    """Raise Failed if a content has a secret."""
    planted = {**SECRETS, "an argument": ARGUMENT, "an option": OPTION}
    for secret, value in planted.items():
        if secret not in may_have and value.encode() in content:
            place = content.index(value.encode())
            context = content[max(0, place - 80) : place]
            raise Failed(f"{name} has {secret}, after {context!r}")


def test_secrets_are_not_accepted_as_options(forks, tally, tmp_path):
    def trial(options):
        run = tmp_path / options[0]
        result = forks.run(*PPO, *ENV, *options, "--run-dir", run, env=SECRETS)
        check_error_message(result)
        check("standard error", result.err.encode())
        if "must contain no secrets" not in result.err:
            raise Failed(f"another error: {result.summary}")
        if run.exists():
            raise Failed("a run directory is left")

    runtime_env = json.dumps({"env_vars": {"WANDB_API_KEY": OPTION}})
    tally("options with secrets").run(
        trial,
        [
            ["--env-kwargs", json.dumps({"name": f"x{SECRETS['HF_TOKEN']}"})],
            ["--backend", "ray", "--workers", "1", "--ray-runtime-env", runtime_env],
        ],
    )


@faults
@pytest.mark.timeout(600)
def test_no_secret_is_stored_or_printed(forks, tally, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {**SECRETS, "HOME": str(home), "WANDB_MODE": "offline", "WANDB_DIR": str(home)}
    env |= {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    run, failed, page = (tmp_path / name for name in ("run", "failed", "page.html"))
    sweep, script, profile = (tmp_path / x for x in ("sweep.sqlite", "script.py", "profile"))
    script.write_text(SCRIPT)
    key = ["--env-kwargs", json.dumps({"api_key": ARGUMENT})]
    fails = ["--env-kwargs", json.dumps({"api_key": ARGUMENT, "fails_at": 100})]
    never = ["--env-kwargs", json.dumps({"api_key": ARGUMENT, "fails_at": -1})]
    trackers = ["--track", "tensorboard", "wandb", "mlflow"]
    options = ["--checkpoint-interval", "128"]
    # With eight environments, none comes to the failing step.
    sweep_ppo = [*PPO[1:], "num_envs=4,8"]
    for option in ("--seed", "--num-envs"):
        at = sweep_ppo.index(option)
        del sweep_ppo[at : at + 2]
    commands = {
        "train": [*PPO, *ENV, *key, *options, "--run-dir", run, *trackers],
        "train with a failure": [*PPO, *ENV, *fails, *options, "--run-dir", failed],
        "train with workers": [*PPO, *ENV, *fails, "--workers", "2", "--max-failures", "0"],
        "train, never made": [*PPO, *ENV, *never, "--run-dir", tmp_path / "never"],
        "resume": ["resume", run, "--total-timesteps", "768"],
        "eval": ["eval", run, "--episodes", "1", "--json"],
        "runs": ["runs", tmp_path, "--json"],
        "report": ["report", run, "--html", page],
        "compare": ["compare", run, failed],
        "plot": ["plot", run, failed, "--output", tmp_path / "curves.png"],
        "export": ["export", run, "--format", "numpy", "--output", tmp_path / "export"],
        "sweep": ["sweep", *sweep_ppo, *ENV, *fails, "--file", sweep],
        "sweep report": ["sweep", "report", sweep],
        "profile": ["profile", "--out", profile, script, "--token", OPTION],
        "profile report": ["report", profile, "--html", tmp_path / "profile.html"],
        "doctor": ["doctor", "--json"],
    }
    codes = {}

    def trial(name):
        result = forks.run(*commands[name], env=env, cwd=str(tmp_path), timeout_s=180.0)
        codes[name] = result.code
        check("standard output", result.out.encode())
        check("standard error", result.err.encode())
        if name in ("train", "resume", "report", "eval", "export", "profile", "profile report"):
            check_success(result, name)
        for place, content in contents(tmp_path):
            # Whatever trains again needs the environment's arguments.
            needs_it = place.endswith(("config.json", ".sqlite", ".sqlite-wal", "best.toml"))
            check(place, content, ["an argument"] if needs_it else [])

    tally("planted secrets").run(trial, list(commands), jobs=0)
    failing = ("train with a failure", "train with workers", "train, never made", "sweep")
    assert {name for name, code in codes.items() if code} == set(failing), codes
    # The files that should have been looked at are there.
    names = {name for name, _ in contents(tmp_path)}
    for suffix in ("status.json", ".wandb", "mlflow.db", "output.log", ".html", "profile.json"):
        assert any(name.endswith(suffix) for name in names), suffix
    assert any("tfevents" in name for name in names)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        rows = database.execute("SELECT key, value FROM params").fetchall()
    assert any("***" in str(value) for _, value in rows), rows
