"""The last lines of `hotloop accelerate`: the models, and how long their updates take.

The first calls of each model's `train` run Stable-Baselines3's own code, which changes the
parameters in the same way. They give the time of an update before acceleration. Their number
depends on no clock and on no other model, so that a seed gives one run.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import multiprocessing
import os
import statistics
import time
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from hotloop.accelerate.acceleration import AcceleratedModel, Acceleration, describe_part
from hotloop.timing._writer import in_multiprocessing_child

# Updates of each model that Stable-Baselines3's own code makes, to measure the time before. For
# PPO, an update is a pass over the rollout.
_NUM_ORIGINAL_UPDATES = 10
# Durations that are kept of each model's accelerated calls.
_MAX_DURATIONS = 1000


@dataclass
class ModelRecord:
    """A model that was trained.

    Attributes:
        name: the name of its class, and that of its policy's.
        parts: the reason why a part runs Stable-Baselines3's own code, by part. Empty: accelerated.
        executions: how its updates were executed.
        before_s: for each call of `train` by Stable-Baselines3's own code, the mean duration of an
            update.
        after_s: the same for calls by hotloop's code.
        num_original: number of updates of the calls in `before_s`.
        num_updates: number of updates, as Stable-Baselines3 counts them.
    """

    name: str
    parts: dict[str, str] = field(default_factory=dict)
    executions: list[str] = field(default_factory=list)
    before_s: list[float] = field(default_factory=list)
    after_s: list[float] = field(default_factory=list)
    num_original: int = 0
    num_updates: int = 0

    def close(self, acceleration: Acceleration) -> None:
        """Store what hotloop has added to the model."""
        self.parts |= {name: part.reason for name, part in acceleration.parts.items()}
        self.executions = [x.execution.choice.reason for x in acceleration.updates.values()]
        if "updates" not in self.parts:
            self.parts["updates"] = (
                "the script made so few updates that all were measured for the time before"
                if self.before_s
                else "its class has its own `train`, or it was not trained"
            )
        if "acting" not in self.parts and acceleration.num_trains:
            self.parts["acting"] = "its class has its own methods for it"


class _Records:
    """The records of the models that this process has trained.

    Attributes:
        directory: the directory for the records of child processes.
        closing: functions that store what hotloop has added, by record, for models that exist.
    """

    def __init__(self) -> None:
        self.directory = Path()
        self.records: list[ModelRecord] = []
        self.by_model: weakref.WeakKeyDictionary[Any, ModelRecord] = weakref.WeakKeyDictionary()
        self.closing: list[weakref.finalize] = []

    def clear(self) -> None:
        """Forget the models of the process that has forked this one."""
        for finalizer in self.closing:
            finalizer.detach()
        self.__init__()

    def add(self, model: Any) -> None:
        """Add a model whose training begins."""
        if model in self.by_model:
            return
        record = ModelRecord(f"{type(model).__name__} ({type(model.policy).__name__})")
        self.records.append(record)
        self.by_model[model] = record
        if isinstance(model, AcceleratedModel):
            finalizer = weakref.finalize(model, record.close, model.acceleration)
            finalizer.atexit = False
            self.closing.append(finalizer)
        else:
            record.parts["updates"] = "hotloop does not accelerate its class"

    def close(self) -> list[ModelRecord]:
        """Return the complete records."""
        for finalizer in self.closing:
            finalizer()
        return self.records


_RECORDS = _Records()


def begin(directory: str) -> None:
    """Record the models that this process and its children train, from now on."""
    if _RECORDS.directory != Path():
        return
    _RECORDS.directory = Path(directory)
    original = BaseAlgorithm._setup_learn

    @functools.wraps(original)
    def setup_learn(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)  # callbacks may store the model's attributes
        _RECORDS.add(self)
        return result

    BaseAlgorithm._setup_learn = setup_learn
    os.register_at_fork(after_in_child=_begin_in_fork)
    atexit.register(_store_records)
    if multiprocessing.parent_process() is not None:  # atexit functions do not run in forks
        util.Finalize(None, _store_records, exitpriority=0)


def _begin_in_fork() -> None:
    directory = _RECORDS.directory
    _RECORDS.clear()
    _RECORDS.directory = directory
    in_multiprocessing_child(_store_records)


def _store_records() -> None:
    """Store the records of a child process for the report."""
    records = _RECORDS.close()
    _RECORDS.records = []
    with suppress(OSError):  # the script has ended, and its directory is gone
        if records:
            path = _RECORDS.directory / f"{os.getpid()}-{time.monotonic_ns()}.json"
            path.write_text(json.dumps([asdict(record) for record in records]), encoding="utf-8")


def measure_class(accelerated: type) -> None:
    """Measure an accelerated class's calls of `train`. The first ones run the original."""
    train: Any = inspect.unwrap(accelerated.train)  # pyright: ignore
    original = next(
        vars(kind)["train"]
        for kind in accelerated.__mro__
        if not kind.__module__.startswith("hotloop.") and "train" in vars(kind)
    )

    @functools.wraps(train)
    def measured_train(self: Any, *args: Any, **kwargs: Any) -> None:
        record = _RECORDS.by_model.get(self)
        if record is None:
            train(self, *args, **kwargs)
            return
        is_original = record.num_original < _NUM_ORIGINAL_UPDATES
        num_updates, start_s = self._n_updates, time.perf_counter()
        (original if is_original else train)(self, *args, **kwargs)
        duration_s, count = time.perf_counter() - start_s, self._n_updates - num_updates
        record.num_updates += count
        record.num_original += max(count, 1) if is_original else 0
        durations = record.before_s if is_original else record.after_s
        if count and len(durations) < _MAX_DURATIONS:
            durations.append(duration_s / count)

    accelerated.train = measured_train  # pyright: ignore


def report_lines(directory: Path) -> list[str]:
    """Return the report on the models of this process and of its children."""
    records = _RECORDS.close()
    for path in sorted(directory.glob("*.json")):
        records += [ModelRecord(**x) for x in json.loads(path.read_text(encoding="utf-8"))]
    groups: dict[str, list[ModelRecord]] = {}
    for record in records:
        groups.setdefault(f"{record.name} {record.parts}", []).append(record)
    return [line for group in groups.values() for line in _group_lines(group)]


def _group_lines(records: list[ModelRecord]) -> list[str]:
    """Return lines on models of one class whose parts have the same state."""
    first = records[0]
    count = f", {len(records)} models" if len(records) > 1 else ""
    num_updates = sum(x.num_updates for x in records)  # 0: not counted
    lines = [f"{first.name}{count}" + (f", {num_updates:,} updates" if num_updates else "")]
    lines += [f"  {describe_part(name, reason)}" for name, reason in first.parts.items()]
    lines += [f"  execution of updates: {reason}" for reason in first.executions]
    before = [x for record in records for x in record.before_s]
    # The first call also prepares and compiles.
    after = [x for record in records for x in record.after_s[1:]]
    if before and after and not first.parts["updates"]:
        before_s, after_s = statistics.median(before), statistics.median(after)
        lines.append(
            f"  time of an update: {1e3 * before_s:.3g} ms before, {1e3 * after_s:.3g} ms now "
            f"({before_s / after_s:.1f}x; medians of {len(before)} calls of `train` by "
            f"Stable-Baselines3's own code and {len(after)} by hotloop's)"
        )
    return lines
