"""Metrics to TensorBoard and to Weights & Biases, while a run goes; neither is imported unasked.

What `metrics.jsonl` holds is what they get, as scalars over `timesteps`:

    charts/return charts/length charts/steps_per_s charts/learning_rate …
    losses/policy_loss losses/value_loss …
    eval/return eval/return_std eval/length
    info/is_success eval/is_success …            the environment's own numbers

A tracker that can't be opened stops a run before it begins. One that fails later does not: that is
said once on standard error, and the run goes on without it; `metrics.jsonl` has everything.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from hotloop import documents
from hotloop.errors import ConfigError, MissingExtraError, RunDirectoryError
from hotloop.runs.directory import RunDirectory

TrackerName = Literal["tensorboard", "wandb"]
Status = Literal["finished", "stopped", "failed"]

# What of a line of metrics is no loss and no diagnostic of the updates.
_NOT_LOSSES = {"iteration", "timesteps", "elapsed_s"}
_CHARTS = {"learning_rate", "num_updates"}
# After so many seconds what W&B has not uploaded stays in the run directory: `wandb sync` sends it.
_UPLOAD_S = 60.0


class _Tracker(Protocol):
    title: str

    def log(self, timesteps: int, scalars: dict[str, float]) -> None: ...

    def close(self, status: Status) -> None: ...


class Trackers:
    """Those that are asked for, and have not failed. Made by `open_trackers`."""

    def __init__(self, trackers: Sequence[_Tracker]) -> None:
        self._trackers = list(trackers)

    def log(self, timesteps: int, line: Mapping[str, Any]) -> None:
        """Send an iteration's metrics; never raises for a tracker's sake.

        Args:
            timesteps: transitions collected so far.
            line: as `RunDirectory.log` takes it.
        """
        scalars = scalars_of(line)
        for tracker in list(self._trackers):
            try:
                tracker.log(timesteps, scalars)
            except Exception as error:
                self._trackers.remove(tracker)
                _say_failed(tracker, error, "the run goes on without it")

    def close(self, status: Status) -> None:
        """Write what is buffered; harmless when repeated.

        Args:
            status: how the run ended.
        """
        trackers, self._trackers = self._trackers, []
        for tracker in trackers:
            try:
                tracker.close(status)
            except Exception as error:
                _say_failed(tracker, error, "metrics.jsonl has what it misses")


def open_trackers(names: Sequence[TrackerName], run: RunDirectory, resumed: bool) -> Trackers:
    """Open trackers for a run whose directory exists.

    Args:
        names: which.
        run: the run directory; TensorBoard's files go to `tensorboard/` in it, W&B's to `wandb/`.
        resumed: go on with what the run logged before. Its metrics must have been cut back to the
            checkpoint already.

    Raises:
        MissingExtraError: the library is not installed.
        ConfigError: W&B can't be started: nobody is logged in, or it can't be reached.
        RunDirectoryError: TensorBoard's files can't be written.
    """
    opened: list[_Tracker] = []
    try:
        for name in dict.fromkeys(names):
            opened.append(_TRACKERS[name](run, resumed))
    except BaseException:
        Trackers(opened).close("failed")
        raise
    return Trackers(opened)


def scalars_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers in a line of metrics, under the names that trackers show."""
    scalars: dict[str, Any] = {}
    if line.get("episode_returns"):
        scalars["charts/return"] = _mean(line["episode_returns"])
        scalars["charts/length"] = _mean(line["episode_lengths"])
    scalars |= _info_scalars("info", line.get("episode_info"))
    if line["elapsed_s"] > 0:
        scalars["charts/steps_per_s"] = line["timesteps"] / line["elapsed_s"]
    for name, value in line.items():
        if name not in _NOT_LOSSES and isinstance(value, (int, float)):
            scalars[f"{'charts' if name in _CHARTS else 'losses'}/{name}"] = value
    evaluation = line.get("evaluation")
    if evaluation is not None:
        scalars["eval/return"] = evaluation["mean_return"]
        scalars["eval/return_std"] = evaluation["std_return"]
        if evaluation.get("lengths"):
            scalars["eval/length"] = _mean(evaluation["lengths"])
        scalars |= _info_scalars("eval", evaluation.get("info"))
    return {name: float(value) for name, value in scalars.items() if math.isfinite(value)}


def _info_scalars(
    group: str, info: Mapping[str, Sequence[float | None]] | None
) -> dict[str, float]:
    """Return the means of the environment's own numbers, over the episodes that have them."""
    found = {name: [x for x in values if x is not None] for name, values in (info or {}).items()}
    return {f"{group}/{name}": _mean(values) for name, values in found.items() if values}


class _TensorBoard:
    title = "TensorBoard"

    def __init__(self, run: RunDirectory, resumed: bool) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
        except ImportError as error:
            raise MissingExtraError(
                f"tracking with TensorBoard needs tensorboard ({error}): "
                "pip install 'hotloop[train,tensorboard]'"
            ) from error
        lines = run.metrics() if resumed else []
        # What was logged after the checkpoint is logged anew.
        purge_step = 1 + (lines[-1]["timesteps"] if lines else 0) if resumed else None
        try:
            self._writer = SummaryWriter(
                str(run.path / "tensorboard"), purge_step=purge_step, flush_secs=15
            )
        except OSError as error:
            raise RunDirectoryError(
                f"{run.path / 'tensorboard'} can't be written ({error.strerror}): free some space, "
                "or choose a --run-dir elsewhere"
            ) from error
        config = _hyperparameters(run)
        text = json.dumps(config, indent=4, default=str)
        self._writer.add_text("config", "    " + text.replace("\n", "\n    "))
        plain = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in config.items()}
        assert self._writer.file_writer is not None
        # Not `add_hparams`, which makes a second run of it.
        for summary in hparams(plain, {"charts/return": 0.0}):
            self._writer.file_writer.add_summary(summary)

    def log(self, timesteps: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, timesteps)

    def close(self, status: Status) -> None:
        self._writer.close()


class _WandB:
    title = "W&B"

    def __init__(self, run: RunDirectory, resumed: bool) -> None:
        try:
            import wandb

            wandb.init  # noqa: B018  # a folder of that name, such as it makes, can be imported too
        except (ImportError, AttributeError) as error:
            raise MissingExtraError(
                "tracking with W&B needs wandb: pip install 'hotloop[wandb]'"
            ) from error
        before = _read_json(run, "wandb.json") if resumed else {}
        settings: dict[str, Any] = {"console": "off", "silent": True}
        if "finish_timeout" in wandb.Settings.model_fields:  # older versions wait for ever
            settings["finish_timeout"] = _UPLOAD_S
        try:
            self._run = wandb.init(
                dir=str(run.path),
                project=before.get("project") or os.environ.get("WANDB_PROJECT") or "hotloop",
                entity=before.get("entity") or None,
                name=run.path.resolve().name,
                id=before.get("id") or secrets.token_hex(4),
                resume="allow" if before else None,
                config=_hyperparameters(run),
                allow_val_change=True,
                reinit="create_new",  # the user's own runs are none of ours
                settings=wandb.Settings(**settings),
            )
        except Exception as error:
            why = str(error).strip().split("\n")[0]
            raise ConfigError(
                f"W&B can't be started ({why}): run `wandb login`, check the network, or set "
                "WANDB_MODE=offline, which keeps its files in the run directory"
            ) from error
        identity = {"id": self._run.id, "project": self._run.project, "entity": self._run.entity}
        run.write_json("wandb.json", identity)
        self._run.define_metric("timesteps")
        self._run.define_metric("*", step_metric="timesteps")
        # What the server has of the steps after the checkpoint can't be taken back, nor need it be:
        # the same steps give the same metrics.
        self._logged_until = int(self._run.summary.get("timesteps") or 0) if before else 0

    def log(self, timesteps: int, scalars: dict[str, float]) -> None:
        if timesteps > self._logged_until:
            self._run.log({"timesteps": timesteps, **scalars})

    def close(self, status: Status) -> None:
        self._run.finish(exit_code=1 if status == "failed" else 0)


_TRACKERS = {"tensorboard": _TensorBoard, "wandb": _WandB}


def _hyperparameters(run: RunDirectory) -> dict[str, Any]:
    content = run.config
    names = ("algorithm", "env_id", "network")
    return {**content["config"], **{name: content[name] for name in names}}


def _read_json(run: RunDirectory, name: str) -> dict[str, Any]:
    """A file that `RunDirectory.write_json` wrote; empty where there is none, or it is damaged."""
    with contextlib.suppress(OSError, ValueError):
        content = documents.read(run.path / name)
        return content if isinstance(content, dict) else {}
    return {}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _say_failed(tracker: _Tracker, error: Exception, so: str) -> None:
    why = str(error).strip().split("\n")[0]
    with contextlib.suppress(OSError, ValueError):  # nobody may be there to read it
        message = f"{tracker.title} failed ({type(error).__name__}: {why})"
        print(f"hotloop: {message}: {so}", file=sys.stderr, flush=True)
