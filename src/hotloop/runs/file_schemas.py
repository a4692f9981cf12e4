"""Schemas of `config.json` and `metrics.jsonl`, checked when the files are read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from hotloop.base import documents
from hotloop.base.files import read_regular
from hotloop.base.line_checksums import LineChecksums
from hotloop.base.redaction import redacted_options, secret_variable
from hotloop.base.streams import printable
from hotloop.errors import ConfigError, RunDirectoryError, shortened

# `may_change` of older runs, whose config.json lacks it.
DEFAULT_MAY_CHANGE = (
    *("total_timesteps", "runs_dir", "run_dir", "track"),
    *("checkpoint_interval", "keep_checkpoints", "save_replay", "report_interval"),
    *("eval_interval", "eval_episodes", "eval_videos"),
    *("backend", "step_timeout_s", "max_failures"),
)

_MAX_NAME = 1_000
_MAX_STEPS = 2**53  # a float represents integers exactly up to here


@dataclass(frozen=True, kw_only=True)
class _ConfigFile:
    """Schema of `config.json`."""

    algorithm: str
    env_id: str
    network: str | None = None
    config: dict[str, Any]
    may_change: list[str] = field(default_factory=lambda: [*DEFAULT_MAY_CHANGE])
    # Defaults of the options that have a different value. None in older runs.
    defaults: dict[str, Any] | None = None
    versions: dict[str, str]
    command: list[str] = field(default_factory=list)
    started_at: str | None = None
    resumed: list[dict[str, Any]] = field(default_factory=list)  # see `_ResumeEntry`
    auto: dict[str, Any] | None = None
    modules: dict[str, dict[str, str]] = field(default_factory=dict)  # see `module_digests`
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class _AlgorithmConfig:
    """Schema of `config`: the options that commands read without the algorithm's class."""

    seed: int
    total_timesteps: int
    num_envs: int = 1
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    log_info: list[str] = field(default_factory=list)
    action_masks: bool = False
    self_play: str | None = None
    policies: str | None = None


@dataclass(frozen=True, kw_only=True)
class _AutoChoice:
    """Schema of `auto`, see `RunDirectory.save_auto_choice`."""

    asked: dict[str, Any]
    chosen: _ChosenOptions
    summary: str
    taken: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class _ChosenOptions:
    """Schema of `auto.chosen`: all options that hotloop may choose."""

    workers: int | None = None
    schedule: str | None = None
    fragment_steps: int | None = None
    inference: str | None = None


@dataclass(frozen=True, kw_only=True)
class _ChoiceMeasurement:
    """Schema of `auto.taken`: the measurements of the choice."""

    steps_per_s: float


@dataclass(frozen=True, kw_only=True)
class _ResumeEntry:
    """Schema of an entry of `resumed`."""

    timesteps: int


@dataclass(frozen=True, kw_only=True)
class _MetricsLine:
    """Schema of a line of `metrics.jsonl`."""

    iteration: int
    timesteps: int
    elapsed_s: float | None = None
    episode_returns: list[Any]
    episode_info: dict[str, list[Any]] = field(default_factory=dict)
    evaluation: dict[str, Any] | None = None
    dropped: int = 0
    policy_age_mean: float = 0.0
    policy_age_max: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _EvaluationEntry:
    """Schema of a line's `evaluation`."""

    mean_return: float
    std_return: float | None = None


def parse_config(value: Any) -> dict[str, Any]:
    """Return the content of `config.json`, with defaults for missing fields.

    Raises:
        ValueError: the value does not match the schema.
    """
    content = vars(documents.record(_ConfigFile, value))
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it has a text with an invalid Unicode character") from error
    for name in ("algorithm", "env_id", "network"):
        problem = _name_problem(content[name])
        if problem:
            raise ValueError(f"`{name}` {problem}")
    if content["defaults"] is None:
        del content["defaults"]  # keeps the signatures of older runs valid
    config = documents.record(
        _AlgorithmConfig, content["config"], where="config", ignore_unknown=True
    )
    if config.num_envs < 1 or config.seed < 0:
        raise ValueError("`config.num_envs` must be positive, and `config.seed` not negative")
    for entry in content["resumed"]:
        documents.record(_ResumeEntry, entry, where="resumed", ignore_unknown=True)
    if content["auto"] is not None:
        choice = documents.record(_AutoChoice, content["auto"], where="auto", ignore_unknown=True)
        if choice.asked.keys() != content["auto"]["chosen"].keys():
            raise ValueError("`auto.asked` must have the options of `auto.chosen`")
        if choice.taken is not None:
            documents.record(
                _ChoiceMeasurement, choice.taken, where="auto.taken", ignore_unknown=True
            )
    return content


def _name_problem(name: str | None) -> str:
    """Return why a name can't be stored, or ""."""
    if name and not name.isprintable():  # keep control codes from terminals
        return "must have printable characters only"
    if name and len(name) > _MAX_NAME:  # messages contain it
        return f"must have at most {_MAX_NAME:,} characters"
    return ""


def storable_config(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a new `config.json`, without bytes of paths that are not UTF-8.

    No reader opens the run's own path or runs the command. Other options must be UTF-8.

    Raises:
        ConfigError: another option has such a text, a name has control characters, or an option
            contains a secret.
    """
    for name in ("algorithm", "env_id", "network"):
        problem = _name_problem(content[name])
        if problem:
            text = shortened(printable(content[name]))
            raise ConfigError(f"`{name}` {problem}, got '{text}': rename it")
    config = dict(content["config"])
    check_secrets(config)
    for name in ("run_dir", "runs_dir"):
        if isinstance(config.get(name), str):
            config[name] = printable(config[name])
    for name, value in config.items():
        text = json.dumps(value, ensure_ascii=False)
        if any("\ud800" <= char <= "\udfff" for char in text):
            text = printable(text)
            raise ConfigError(f"`{name}` must have a text in UTF-8, got {text}: rename it")
    command = [printable(text) for text in content["command"]]
    return {**content, "config": config, "command": command}


def check_secrets(options: Mapping[str, Any]) -> None:
    """Check that options which a file will store contain no secret of the environment.

    Secrets under other names are stored, such as arguments of environments: a resumed run needs
    them.

    Raises:
        ConfigError: an option contains the value of a variable such as WANDB_API_KEY, or sets such
            a variable for processes on Ray.
    """
    for name, value in options.items():
        variable = secret_variable("\n".join(_texts(value)))
        if variable is not None:
            raise ConfigError(
                f"`{name}` must contain no secrets, since the run stores it, but it contains the "
                f"value of {variable}: let your code read that variable instead"
            )
    runtime_env = {"ray_runtime_env": options.get("ray_runtime_env")}
    if redacted_options(runtime_env) != runtime_env:
        raise ConfigError(
            "`ray_runtime_env` must contain no secrets, since the run stores it: set such "
            "variables where you start Ray's nodes instead"
        )


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _are_numbers(values: list[Any], *, or_null: bool = False) -> bool:
    kinds = set(map(type, values)) - {float}  # usually empty
    if or_null:
        kinds.discard(NoneType)
    if kinds - {int}:
        return False
    return not kinds or all(abs(x) < 2**63 for x in values if type(x) is int)


def read_metrics(path: Path, until: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of a `metrics.jsonl`, without an incomplete last line.

    Args:
        path: the file.
        until: last iteration to read. It must be there, unless there are no lines. Later lines are
            not checked, since a crash may damage them.

    Raises:
        RunDirectoryError: the file cannot be read, or a line is damaged or missing.
    """
    advice = (
        "restore the file, or move it elsewhere: `hotloop resume` then continues without the "
        "earlier part of the learning curve"
    )
    try:
        lines = read_regular(path).split(b"\n")
    except OSError as error:
        raise RunDirectoryError(f"{path} can't be read ({error.strerror})") from error
    lines.pop()  # empty, or incomplete because the process was killed
    checksums = LineChecksums()
    last = 0
    for number, text in enumerate(lines, 1):
        if until is not None and last >= until:
            return
        if not text:
            continue
        try:
            line = parse_metrics_line(documents.parse(checksums.check(text)))
            if last and line["iteration"] != last + 1:
                raise ValueError(f"`iteration` must be {last + 1}, got {line['iteration']}")
        except ValueError as error:
            raise RunDirectoryError(
                f"{path} is damaged in line {number} ({error}): {advice}"
            ) from error
        last = line["iteration"]
        if until is None or last <= until:
            yield line
    if until is not None and 0 < last < until:
        raise RunDirectoryError(
            f"{path} ends with iteration {last:,}, but the checkpoint has {until:,}: {advice}"
        )


def parse_metrics_line(value: Any) -> dict[str, Any]:
    """Return a line of `metrics.jsonl` after checking it.

    Raises:
        ValueError: the value does not match the schema.
    """
    line = documents.record(_MetricsLine, value, ignore_unknown=True)
    if line.evaluation is not None:
        documents.record(_EvaluationEntry, line.evaluation, where="evaluation", ignore_unknown=True)
    if not 0 <= line.timesteps <= _MAX_STEPS or line.iteration < 1:
        raise ValueError("`iteration` and `timesteps` must count iterations and steps")
    if line.elapsed_s is not None and not 0 <= line.elapsed_s < math.inf:
        raise ValueError("`elapsed_s` must be a number of seconds")
    if not _are_numbers(line.episode_returns):
        raise ValueError("`episode_returns` must be numbers")
    for name, values in line.episode_info.items():
        if not name.isprintable():  # keep control codes from terminals
            raise ValueError("`episode_info` must have printable names only")
        if not _are_numbers(values, or_null=True):
            raise ValueError("`episode_info` must be numbers, or null")
    return value
