"""Secrets in command lines reach no file of a run or a profile."""

import json
import subprocess
import sys
import time

import pytest

from hotloop.base.processes import descendants
from hotloop.base.redaction import redacted, redacted_options, secret_variable, without_secrets
from hotloop.errors import ConfigError
from hotloop.profiler.collect import sampler
from hotloop.runs.file_schemas import check_secrets
from tests.runs.test_directory import create

SECRET = "s3cr3t-0123456789"


@pytest.mark.parametrize(
    "arguments",
    [
        [f"WANDB_API_KEY={SECRET}"],
        [f"--hf-token={SECRET}"],
        ["--mlflow-tracking-password", SECRET],
        [f"https://user:{SECRET}@proxy.example:8080/x"],
        [f"--tracker=http://:{SECRET}@host"],
        [json.dumps({"aws_secret_access_key": SECRET, "a": 1})],
        [f"postgresql://me:{SECRET}@db/mlflow"],
        [f"x{SECRET}y"],
        [f"GITHUB_PAT={SECRET}"],
        [f"--db-pwd={SECRET}"],
        ["--private-key", SECRET],
        [f"https://{SECRET}@host/repository.git"],
        ["-H", f"Authorization: Bearer {SECRET}"],
        [f"session-cookie: {SECRET}"],
    ],
)
def test_secrets_are_masked(monkeypatch, arguments):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    texts = redacted(["train", *arguments, "--env-id", "CartPole-v1"])
    assert SECRET not in " ".join(texts)
    assert texts[0] == "train"
    assert texts[-2:] == ["--env-id", "CartPole-v1"]


def test_other_arguments_stay_as_they_are():
    arguments = [
        "--env-kwargs",
        '{"key": 1, "keys": [2]}',
        "--run-dir",
        "runs/a:b@c",
        "--seeds=1-5",
    ]
    arguments += ["lr=1e-3", "https://host/path", "user@host", "--hidden-sizes", "64", "64"]
    arguments += ["--patience=30000000", "--max-spinup=5", "ssh://git@host/x", "PWD=/home/me/runs"]
    arguments += ["--tokenizer", "gpt2", "--max-tokens=100", "Tokens:Env"]
    assert redacted(arguments) == arguments


def test_numbers_and_plain_words_of_variables_are_no_secrets(monkeypatch):
    monkeypatch.setenv("MAX_TOKENS", "20480000")
    monkeypatch.setenv("PIN_PASSWORD", "20480000")
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")
    monkeypatch.setenv("SLACK_SECRET_URL", "https://hooks.example/T/abcdef")
    check_secrets({"total_timesteps": 20_480_000, "env_kwargs": {"db": "postgres at 20480000"}})
    assert without_secrets("bad https://hooks.example/T/abcdef") == "bad ***"


def test_ordinary_runtime_environments_of_ray_are_accepted():
    for runtime_env in (
        {"env_vars": {"TOKENIZERS_PARALLELISM": "false", "AWS_CREDENTIALS_FILE": "/x/y"}},
        {"pip": ["tokenizers==0.15", "tiktoken==0.7"]},
    ):
        check_secrets({"ray_runtime_env": runtime_env})


def test_secrets_with_characters_that_json_escapes_are_found(monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", 'ab"cd\\efgh1')
    with pytest.raises(ConfigError, match="`env_kwargs` must contain no secrets"):
        check_secrets({"env_kwargs": {"key": ['x ab"cd\\efgh1']}})


def test_secrets_in_messages_are_masked(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    message = f"https://me:pw@host refused {SECRET} for `env_id`: token expired"
    expected = "https://me:***@host refused *** for `env_id`: token expired"
    assert without_secrets(message) == expected
    assert secret_variable(f"x{SECRET}") == "HF_TOKEN"
    assert secret_variable("x") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("PASSWORD_STORE_DIR", "/home/me/runs"), ("TOKEN_TYPE", "personal"), ("API_KEY", "short")],
)
def test_variables_that_hold_no_secret_stay(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert without_secrets(f"in {value}") == f"in {value}"


@pytest.mark.parametrize(
    "name", ["MYSQL_PWD", "GH_PAT", "SSH_PRIVATE_KEY", "SENTRY_DSN", "SLACK_WEBHOOK", "CI_JWT"]
)
def test_variables_of_many_names_are_secrets(monkeypatch, name):
    monkeypatch.setenv(name, SECRET)
    assert without_secrets(f"refused {SECRET}") == "refused ***"
    with pytest.raises(ConfigError, match=f"the value of {name}|must contain no secrets"):
        check_secrets({"env_kwargs": {"x": SECRET}})


def test_secrets_of_options_are_masked():
    options = {"env_kwargs": {"api_key": SECRET, "size": 3, 5: "x", "max_tokens": 4}}
    masked = {"env_kwargs": {"api_key": "***", "size": 3, 5: "x", "max_tokens": 4}}
    assert redacted_options(options) == masked


def test_no_secret_of_a_command_line_is_stored(monkeypatch, tmp_path):
    command = ["hotloop", "train", f"--api-key={SECRET}", f"http://u:{SECRET}@proxy"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    run = create(tmp_path)
    assert SECRET not in (run.path / "config.json").read_text()
    # A process that is profiled, and one that it starts.
    program = "import json; from hotloop.profiler.collect import sampler; print(sampler._command())"
    arguments = [sys.executable, "-c", program, f"--token={SECRET}"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "--token=***" in done.stdout
    assert SECRET not in done.stdout
    assert SECRET not in repr(sampler._command())
    program = "print(flush=True); input()"
    arguments = [sys.executable, "-c", program, f"PASSWORD={SECRET}"]
    child = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        commands = [process.command for process in descendants() if process.pid == child.pid]
        assert commands[0].endswith("PASSWORD=***")
    finally:
        child.communicate(b"\n")


def test_long_words_take_linear_time():
    start_s = time.process_time()
    assert redacted(["a" * 20_000]) == ["a" * 20_000]
    assert time.process_time() - start_s < 10.0  # half a minute if each letter starts a search
    assert redacted([f"{'a' * 20_000}_token=1234"]) == [f"{'a' * 20_000}_token=***"]
