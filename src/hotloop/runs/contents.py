"""Shapes of a run directory's files, held against what is in them once, when they are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from hotloop import documents
from hotloop.errors import RunDirectoryError
from hotloop.system.files import read_regular

# `may_change` of runs whose config.json does not say it: older ones.
MAY_CHANGE_UNSAID = (
    *("total_timesteps", "runs_dir", "run_dir", "track"),
    *("checkpoint_interval", "keep_checkpoints", "save_replay", "report_interval"),
    *("eval_interval", "eval_episodes", "eval_videos"),
    *("backend", "step_timeout_s", "max_failures"),
)


@dataclass(frozen=True, kw_only=True)
class _Content:
    """The shape of `config.json`."""

    algorithm: str
    env_id: str
    network: str | None = None
    config: dict[str, Any]
    may_change: list[str] = field(default_factory=lambda: [*MAY_CHANGE_UNSAID])
    # Of options that differ from it: their default. None: it was not written down.
    defaults: dict[str, Any] | None = None
    versions: dict[str, str]
    command: list[str] = field(default_factory=list)
    started_at: str | None = None
    resumed: list[dict[str, Any]] = field(default_factory=list)  # of `_Resumed`
    auto: dict[str, Any] | None = None
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The shape of its `config`, as far as all algorithms' have it."""

    seed: int
    total_timesteps: int
    num_envs: int = 1
    env_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """The shape of its `auto`, see `RunDirectory.keep_choice`."""

    asked: dict[str, Any]
    chosen: _Chosen
    summary: str
    taken: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """The options that may be chosen: no others are taken over from there."""

    workers: int | None = None
    schedule: str | None = None
    fragment_steps: int | None = None
    inference: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """The shape of what was measured of the choice."""

    steps_per_s: float


@dataclass(frozen=True, kw_only=True)
class _Resumed:
    """The shape of an entry of `resumed`."""

    timesteps: int


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The shape of a line of `metrics.jsonl`."""

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
class _Evaluated:
    """The shape of a line's `evaluation`."""

    mean_return: float


def run_of(value: Any) -> dict[str, Any]:
    """The content of `config.json`, with what it may leave out.

    Raises:
        ValueError: it is of another shape.
    """
    content = vars(documents.record(_Content, value))
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it has a text with half of a character in it") from error
    for name in ("algorithm", "env_id", "network"):
        if content[name] and not content[name].isprintable():  # a terminal may act on the rest
            raise ValueError(f"`{name}` must be of characters that can be shown")
    if content["defaults"] is None:
        del content["defaults"]  # what was signed without it is signed still
    documents.record(_Asked, content["config"], where="config", others=True)
    for one in content["resumed"]:
        documents.record(_Resumed, one, where="resumed", others=True)
    if content["auto"] is not None:
        choice = documents.record(_Choice, content["auto"], where="auto", others=True)
        if choice.asked.keys() != content["auto"]["chosen"].keys():
            raise ValueError("`auto.asked` must have the options of `auto.chosen`")
        if choice.taken is not None:
            documents.record(_Taken, choice.taken, where="auto.taken", others=True)
    return content


def _are_numbers(values: list[Any], *, or_null: bool = False) -> bool:
    kinds = set(map(type, values)) - {float}  # most often all are
    if or_null:
        kinds.discard(NoneType)
    if kinds - {int}:
        return False
    return not kinds or all(abs(x) < 2**63 for x in values if type(x) is int)


def lines_in(path: Path, until: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of a `metrics.jsonl`; a last line that was cut short is left out.

    Args:
        path: the file.
        until: the last iteration that is wanted, whatever follows: a crash may leave anything.

    Raises:
        RunDirectoryError: it can't be read, or a line is damaged.
    """
    try:
        lines = read_regular(path).split(b"\n")
    except OSError as error:
        raise RunDirectoryError(f"{path} can't be read ({error.strerror})") from error
    lines.pop()  # empty, or the process died in mid-write
    last = 0
    for number, text in enumerate(lines, 1):
        if until is not None and last >= until:
            return
        if not text:
            continue
        try:
            line = line_of(documents.parse(text))
            if line["iteration"] <= last:
                raise ValueError("`iteration` must be greater than in the line before")
        except ValueError as error:
            raise RunDirectoryError(
                f"{path} is damaged in line {number} ({error}): remove that line"
            ) from error
        last = line["iteration"]
        if until is None or last <= until:
            yield line


def line_of(value: Any) -> dict[str, Any]:
    """A line of `metrics.jsonl`.

    Raises:
        ValueError: it is of another shape.
    """
    line = documents.record(_Line, value, others=True)
    if line.evaluation is not None:
        documents.record(_Evaluated, line.evaluation, where="evaluation", others=True)
    if not _are_numbers(line.episode_returns):
        raise ValueError("`episode_returns` must be numbers")
    for name, values in line.episode_info.items():
        if not name.isprintable():  # a terminal may act on the rest
            raise ValueError("`episode_info` must have names that can be shown")
        if not _are_numbers(values, or_null=True):
            raise ValueError("`episode_info` must be numbers, or null")
    return value
