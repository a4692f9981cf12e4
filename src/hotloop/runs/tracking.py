"""Live tracking of metrics with installed trackers or your own, imported only on request.

The trackers get the content of `metrics.jsonl`, as scalars over `timesteps`:

    charts/return charts/length charts/steps_per_s charts/learning_rate …
    losses/policy_loss losses/value_loss …
    eval/return eval/return_std eval/length
    info/is_success eval/is_success …            the environment's own metrics

A tracker that cannot be opened stops the run before it starts. If a tracker fails later, one
message goes to standard error and the run continues without it. `metrics.jsonl` has all metrics.
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from hotloop.base import documents
from hotloop.base.redaction import redacted, redacted_options, without_secrets
from hotloop.base.signals import blocked_signals
from hotloop.errors import ConfigError, RunDirectoryError, requires_extra
from hotloop.runs import trust
from hotloop.runs.directory import RunDirectory
from hotloop.runs.tracker_files import last_tensorboard_step, last_wandb_step

Status = Literal["finished", "stopped", "failed"]

# Keys of a line of metrics that are neither losses nor diagnostics of the updates.
_NOT_LOSSES = {"iteration", "timesteps", "elapsed_s"}
_CHARTS = {"learning_rate", "num_updates"}
_RATE = "charts/steps_per_s"  # every line has it
# MLflow's database takes 35 ms for one iteration, so several are sent together.
_MLFLOW_INTERVAL_S, _MLFLOW_BATCH = 5.0, 900
_MAX_PARAM = 500  # characters of a value that every version of MLflow accepts
# After this time, W&B's remaining data stays in the run directory. `wandb sync` uploads it.
_UPLOAD_S = 60.0


class Tracker(Protocol):
    """A tracker, made as `tracker(run, resumed)`, see `open_trackers`.

    A package adds its own with an entry point in the group `hotloop.trackers`.

    Attributes:
        title: its name in messages.
    """

    title: str

    def log(self, iteration: int, timesteps: int, scalars: dict[str, float]) -> None:
        """Send an iteration's metrics. Skip an iteration that the tracker already has."""
        ...

    def close(self, status: Status) -> None:
        """Flush and close."""
        ...


class Trackers:
    """The open trackers of a run, see `open_trackers`. A tracker that fails is removed."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def log(self, timesteps: int, line: Mapping[str, Any]) -> None:
        """Send an iteration's metrics. Errors of a tracker are reported, not raised.

        Args:
            timesteps: transitions collected so far.
            line: the line for `RunDirectory.log`.
        """
        scalars = tracker_scalars(line)
        for tracker in list(self._trackers):
            try:
                tracker.log(line["iteration"], timesteps, scalars)
            except Exception as error:
                self._trackers.remove(tracker)
                _report_failure(tracker, error, "the run continues without it")

    def close(self, status: Status) -> None:
        """Flush and close the trackers. Further calls do nothing.

        Args:
            status: final status of the run.
        """
        trackers, self._trackers = self._trackers, []
        for tracker in trackers:
            try:
                tracker.close(status)
            except Exception as error:
                _report_failure(tracker, error, "metrics.jsonl has all metrics")


def tracker_names() -> tuple[str, ...]:
    """Return the names of hotloop's trackers and of those of installed packages."""
    return (*_TRACKERS, *(point.name for point in metadata.entry_points(group=_ENTRY_POINTS)))


def open_trackers(names: Sequence[str], run: RunDirectory, resumed: bool) -> Trackers:
    """Open trackers for a run whose directory exists.

    Trackers of a resumed run receive the metrics that they lack, such as the last ones before a
    kill, or all if they are new.

    Args:
        names: names of the trackers.
        run: the run directory. TensorBoard writes to its `tensorboard/`, W&B to its `wandb/`.
        resumed: whether to continue earlier logs. The metrics must have been truncated to the
            checkpoint already.

    Raises:
        MissingExtraError: the library is not installed.
        ConfigError: a tracker cannot be started, because there is no login or no connection.
        RunDirectoryError: TensorBoard's files cannot be written.
    """
    opened: list[Tracker] = []
    try:
        for name in dict.fromkeys(names):
            opened.append(_find(name)(run, resumed))
    except BaseException:
        Trackers(opened).close("failed")
        raise
    trackers = Trackers(opened)
    for line in run.metrics() if resumed and opened else ():
        trackers.log(line["timesteps"], line)
    return trackers


def tracker_scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers in a line of metrics, by their names in trackers."""
    scalars: dict[str, Any] = {}
    if line.get("episode_returns"):
        scalars["charts/return"] = _mean(line["episode_returns"])
        scalars["charts/length"] = _mean(line["episode_lengths"])
    scalars |= _info_scalars("info", line.get("episode_info"))
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
    if line["elapsed_s"] > 0:  # the last one, which shows that a tracker has the whole iteration
        scalars[_RATE] = line["timesteps"] / line["elapsed_s"]
    return {name: float(value) for name, value in scalars.items() if math.isfinite(value)}


def _info_scalars(
    group: str, info: Mapping[str, Sequence[float | None]] | None
) -> dict[str, float]:
    """Return the means of the environment's own metrics, over the episodes that have them."""
    numbers = {name: [x for x in values if x is not None] for name, values in (info or {}).items()}
    return {f"{group}/{name}": _mean(values) for name, values in numbers.items() if values}


class _TensorBoard:
    title = "TensorBoard"

    def __init__(self, run: RunDirectory, resumed: bool) -> None:
        with requires_extra("tracking with TensorBoard needs tensorboard", "train,tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
        directory = run.path / "tensorboard"
        lines = run.metrics() if resumed else []
        # Skip the points up to the checkpoint, unless the killed run did not write them. Purge the
        # points after that, which the resumed run logs again.
        self._logged_until = 0
        purge_step = 0 if resumed else None
        if lines:
            last = last_tensorboard_step(directory, _RATE)
            self._logged_until = min(last, lines[-1]["timesteps"])
            purge_step = 1 + self._logged_until
        try:
            with blocked_signals():  # the writer starts a thread
                self._writer = SummaryWriter(str(directory), purge_step=purge_step, flush_secs=15)
        except OSError as error:
            raise RunDirectoryError(
                f"{directory} can't be written ({error.strerror}): free some space, "
                "or choose a --run-dir elsewhere"
            ) from error
        config = _hyperparameters(run)
        text = json.dumps(config, indent=4, default=str)
        self._writer.add_text("config", "    " + text.replace("\n", "\n    "))
        plain = {k: v if isinstance(v, (bool, int, float)) else str(v) for k, v in config.items()}
        assert self._writer.file_writer is not None
        # `add_hparams` would create a second run.
        for summary in hparams(plain, {"charts/return": 0.0}):
            self._writer.file_writer.add_summary(summary)

    def log(self, iteration: int, timesteps: int, scalars: dict[str, float]) -> None:
        if timesteps > self._logged_until:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, timesteps)

    def close(self, status: Status) -> None:
        self._writer.close()


def _check_wandb_settings(run: RunDirectory) -> None:
    """Check that no run directory has settings of W&B, which name the server that receives the key.

    Raises:
        ConfigError: The run or the current directory, if it is in a run, has some.
    """
    current = Path.cwd()
    is_in_run = any(
        (folder / "config.json").exists() and (folder / "checkpoints").exists()
        for folder in (current, *current.parents)
    )
    for folder in (run.path, *([current] if is_in_run else [])):
        for name in ("wandb", ".wandb"):
            path = folder / name / "settings"
            if os.path.lexists(path):
                raise ConfigError(
                    f"W&B would read its settings from a run directory, {path}: remove this file; "
                    "settings of your own are in ~/.config/wandb/settings"
                )


class _WandB:
    title = "W&B"

    def __init__(self, run: RunDirectory, resumed: bool) -> None:
        _check_wandb_settings(run)
        with requires_extra("tracking with W&B needs wandb", "wandb"):
            import wandb
            from wandb import init  # a folder named `wandb` can also be imported, but has no `init`
        stored = _read_identity(run, "wandb.json") if resumed else {}
        settings: dict[str, Any] = {"console": "off", "silent": True}
        if "finish_timeout" in wandb.Settings.model_fields:  # older versions wait forever
            settings["finish_timeout"] = _UPLOAD_S
        options: dict[str, Any] = {
            "dir": str(run.path),
            "project": stored.get("project") or os.environ.get("WANDB_PROJECT") or "hotloop",
            "entity": stored.get("entity") or None,
            "name": run.path.resolve().name,
            "id": stored.get("id") or secrets.token_hex(4),
            "resume": "allow" if stored else None,
            "config": _hyperparameters(run),
            "allow_val_change": True,
            "reinit": "create_new",  # keep a run that the user has open
        }
        try:
            with _redacted_command():
                with blocked_signals():  # `setup` starts threads, unlike the slow `init`
                    wandb.setup()
                self._run = init(**options, settings=wandb.Settings(**settings))
        except Exception as error:
            raise ConfigError(
                f"W&B can't be started ({_reason(error)}): run `wandb login`, check the network, "
                "or set WANDB_MODE=offline to store its files in the run directory"
            ) from error
        identity = {"id": self._run.id, "project": self._run.project, "entity": self._run.entity}
        _write_identity(run, "wandb.json", identity)
        self._run.define_metric("timesteps")
        self._run.define_metric("*", step_metric="timesteps")
        # W&B's points after the checkpoint can't be deleted. Skip these iterations, as the resumed
        # run logs the same metrics.
        self._logged_until = 0
        if stored:
            self._logged_until = (
                last_wandb_step(run.path / "wandb", self._run.id)
                if self._run.offline
                else self._run.starting_step - 1
            )

    def log(self, iteration: int, timesteps: int, scalars: dict[str, float]) -> None:
        if iteration > self._logged_until:
            self._run.log({"timesteps": timesteps, **scalars}, step=iteration, commit=True)

    def close(self, status: Status) -> None:
        self._run.finish(exit_code=1 if status == "failed" else 0)


class _MLflow:
    """Metrics over timesteps, in the store of MLFLOW_TRACKING_URI or MLflow's default."""

    title = "MLflow"

    def __init__(self, run: RunDirectory, resumed: bool) -> None:
        with requires_extra("tracking with MLflow needs mlflow-skinny", "mlflow"):
            from mlflow import entities
            from mlflow.tracking import MlflowClient
        self._metric = entities.Metric
        self._pending: list[Any] = []
        self._sent_at = time.monotonic()
        # Points after the checkpoint can't be deleted. Skip them, as the resumed run logs the same.
        self._logged_until = 0
        stored = _read_identity(run, "mlflow.json") if resumed else {}
        try:
            self._client = MlflowClient()
            existing = self._existing_run(stored.get("run_id"))
            self._run_id = self._new_run(run) if existing is None else existing
            if existing is None:
                parameters = [
                    entities.Param(name, str(value)[:_MAX_PARAM])
                    for name, value in _hyperparameters(run).items()
                ]
                for first in range(0, len(parameters), 100):  # one call sends at most 100
                    chunk = parameters[first : first + 100]
                    self._client.log_batch(self._run_id, params=chunk)
            else:
                self._client.update_run(self._run_id, status="RUNNING")
                # MLflow's parameters can't change, so tags store the options of the resumed run.
                logged = self._client.get_run(self._run_id).data.params
                for name, value in _hyperparameters(run).items():
                    if logged.get(name, value := str(value)[:_MAX_PARAM]) != value:
                        self._client.set_tag(self._run_id, name, value)
                points = self._client.get_metric_history(self._run_id, _RATE)
                self._logged_until = max((point.step for point in points), default=0)
        except Exception as error:
            raise ConfigError(
                f"MLflow can't be started ({_reason(error)}): set MLFLOW_TRACKING_URI to a server, "
                "or to a database such as sqlite:///mlflow.db"
            ) from error
        _write_identity(run, "mlflow.json", {"run_id": self._run_id})

    def _existing_run(self, run_id: str | None) -> str | None:
        """Return a stored run, or None if this store does not have it."""
        from mlflow.exceptions import MlflowException

        try:
            return None if run_id is None else self._client.get_run(run_id).info.run_id
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _new_run(self, run: RunDirectory) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "hotloop"
        experiment = self._client.get_experiment_by_name(name)
        identity = (
            self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        )
        return self._client.create_run(identity, run_name=run.path.resolve().name).info.run_id

    def log(self, iteration: int, timesteps: int, scalars: dict[str, float]) -> None:
        if timesteps <= self._logged_until:
            return
        now_ms = int(time.time() * 1e3)
        self._pending += [
            self._metric(name, value, now_ms, timesteps) for name, value in scalars.items()
        ]
        is_due = time.monotonic() - self._sent_at > _MLFLOW_INTERVAL_S
        if is_due or len(self._pending) > _MLFLOW_BATCH:
            self._send()

    def _send(self) -> None:
        pending, self._pending = self._pending, []
        self._client.log_batch(self._run_id, metrics=pending)
        self._sent_at = time.monotonic()

    def close(self, status: Status) -> None:
        self._send()
        self._client.set_terminated(self._run_id, "FAILED" if status == "failed" else "FINISHED")


class _Trackio:
    """Metrics over timesteps, in Trackio's local store, or its Space or server."""

    title = "Trackio"

    def __init__(self, run: RunDirectory, resumed: bool) -> None:
        with requires_extra("tracking with Trackio needs trackio", "trackio"):
            from trackio import init  # pyright: ignore[reportMissingImports]
        stored = _read_identity(run, "trackio.json") if resumed else {}
        # Trackio continues the latest run of a name, so that a name must be unique.
        name = stored.get("name") or f"{run.path.resolve().name}-{secrets.token_hex(3)}"
        options: dict[str, Any] = {
            "project": stored.get("project") or os.environ.get("TRACKIO_PROJECT") or "hotloop",
            "name": name,
            "config": _hyperparameters(run),
            "resume": "allow",
            "embed": False,
            "auto_log_cpu": False,
            "auto_log_gpu": False,
        }
        try:
            with _discarded_output(), blocked_signals():  # `init` starts a thread
                # In an empty context, `init` keeps a run that the user has open.
                self._run = contextvars.Context().run(init, **options)
            # Points after the checkpoint can't be deleted. Skip them, as the resumed run logs the
            # same.
            self._logged_until = self._run._next_step - 1
        except Exception as error:
            raise ConfigError(
                f"Trackio can't be started ({_reason(error)}): check TRACKIO_DIR, or the server or "
                "Space of TRACKIO_SERVER_URL and TRACKIO_SPACE_ID"
            ) from error
        _write_identity(run, "trackio.json", {"project": options["project"], "name": name})

    def log(self, iteration: int, timesteps: int, scalars: dict[str, float]) -> None:
        if timesteps > self._logged_until:
            self._run.log(scalars, step=timesteps)

    def close(self, status: Status) -> None:
        with _discarded_output():
            self._run.finish()


_ENTRY_POINTS: Final = "hotloop.trackers"
_TRACKERS: Final[Mapping[str, Callable[[RunDirectory, bool], Tracker]]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "mlflow": _MLflow,
    "trackio": _Trackio,
}


def _find(name: str) -> Callable[[RunDirectory, bool], Tracker]:
    """Return a tracker's class by its name.

    Raises:
        ConfigError: No installed package has it.
    """
    if name in _TRACKERS:
        return _TRACKERS[name]
    for point in metadata.entry_points(group=_ENTRY_POINTS, name=name):
        return point.load()
    raise ConfigError(f"there is no tracker '{name}': there are {', '.join(tracker_names())}")


def _hyperparameters(run: RunDirectory) -> dict[str, Any]:
    """Return the options of a run for trackers, which may show them to others: without secrets."""
    content = run.config
    names = ("algorithm", "env_id", "network")
    return redacted_options({**content["config"], **{name: content[name] for name in names}})


def _read_identity(run: RunDirectory, name: str) -> dict[str, Any]:
    """Return what `_write_identity` stored, or {} without your signature.

    Otherwise the run of someone else would choose the project that receives your metrics.
    """
    with contextlib.suppress(OSError, ValueError):
        content = documents.read(run.path / name)
        return content if isinstance(content, dict) and trust.is_signed(content) else {}
    return {}


def _write_identity(run: RunDirectory, name: str, identity: dict[str, Any]) -> None:
    run.write_json(name, {**identity, "signature": trust.signature(identity)})


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, without secrets such as a server's password."""
    return without_secrets(str(error).strip().split("\n")[0])


@contextlib.contextmanager
def _redacted_command() -> Iterator[None]:
    """Remove secrets from the command line, which W&B stores."""
    arguments = sys.argv
    sys.argv = redacted(arguments)
    try:
        yield
    finally:
        sys.argv = arguments


@contextlib.contextmanager
def _discarded_output() -> Iterator[None]:
    """Discard what a library prints, which would be between the lines of the training."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _report_failure(tracker: Tracker, error: Exception, consequence: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed
        message = f"{tracker.title} failed ({type(error).__name__}: {_reason(error)})"
        print(f"hotloop: {message}: {consequence}", file=sys.stderr, flush=True)
