"""Callbacks of a run, and the built-in ones that stop it.

The observers call them between two iterations, so that the training loop does not change. Only the
methods that a class overrides are called.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from hotloop.base.documents import json_copy
from hotloop.base.importing import describe_exception
from hotloop.errors import CallbackError, ConfigError
from hotloop.rollouts import Rollout
from hotloop.runs import Report, RunResult
from hotloop.training.options import StopOptions
from hotloop.training.training_envs import TrainingEnvs
from hotloop.types import Fragment

StopRequest = bool | str | None
"""What a callback returns: True or the reason to stop the run, else None or False."""

_MIN_EPISODES: Final = 100  # episodes in `Report.mean_return`


class Callback:
    """A base class of callbacks, whose methods do nothing. Override those that you need.

    Methods that return a `StopRequest` stop the run by returning True, or a text with the reason.

    ```python
    class StopWhenStable(Callback):
        def on_update(self, report):
            return report.std_return < 5


    hotloop.train("ppo", "CartPole-v1", callbacks=[StopWhenStable()])
    ```

    Attributes:
        envs: The training's environments, from `load` or `on_start` on. Its methods `call`,
            `get_attr` and `set_attr` reach them in this process and in workers.
    """

    envs: TrainingEnvs

    def on_start(self, report: Report) -> StopRequest:
        """React to the start of the run, before its first iteration, also when it resumes."""

    def on_rollout(self, fragments: Sequence[Fragment]) -> None:
        """React to the newly collected steps, as time-major arrays (T, N, …).

        Copy the arrays that you keep, since the next call may overwrite them. An off-policy
        algorithm collects `train_frequency` steps of each environment at a time.
        """

    def on_update(self, report: Report) -> StopRequest:
        """React to an iteration, after its updates and before its evaluation."""

    def on_evaluation(self, report: Report) -> StopRequest:
        """React to an evaluation, `report.evaluation`."""

    def on_checkpoint(self, path: Path) -> None:
        """React to a written checkpoint."""

    def on_end(self, result: RunResult | None) -> None:
        """React to the end of the run, after its last checkpoint. The result is None after an error
        or a signal."""

    def state(self) -> Mapping[str, Any]:
        """Return the state to store in each checkpoint, as values that JSON can hold."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the state in a checkpoint.

        It is called before the environments resume their episodes, and before `on_start`.
        """


class StopAtReturn(Callback):
    """A callback that stops the run when the mean return reaches a number.

    Args:
        mean_return: the number.
        metric: "return" for the last 100 training episodes, or "evaluation".
    """

    def __init__(
        self, mean_return: float, *, metric: Literal["return", "evaluation"] = "return"
    ) -> None:
        if metric not in ("return", "evaluation"):
            raise ConfigError(f"`metric` must be 'return' or 'evaluation', got {metric!r}")
        self._limit, self._uses_evaluations = mean_return, metric == "evaluation"

    def on_update(self, report: Report) -> StopRequest:
        """Stop if the training episodes reach the return."""
        if self._uses_evaluations or report.num_episodes < _MIN_EPISODES:
            return None
        episodes = f"of the last {_MIN_EPISODES} training episodes"
        return self._stop_reason(report.mean_return, episodes)

    def on_evaluation(self, report: Report) -> StopRequest:
        """Stop if the evaluation reaches the return."""
        if not self._uses_evaluations or report.evaluation is None:
            return None
        return self._stop_reason(report.evaluation.mean_return, "of the evaluation")

    def _stop_reason(self, mean_return: float, episodes: str) -> StopRequest:
        if mean_return >= self._limit:
            return f"the mean return {episodes}, {mean_return:g}, reached {self._limit:g}"
        return None  # also for NaN


class StopWithoutImprovement(Callback):
    """A callback that stops the run after a number of evaluations without a new best one.

    Args:
        evaluations: the number of evaluations in a row.
    """

    def __init__(self, evaluations: int) -> None:
        if evaluations < 1:
            raise ConfigError(f"`evaluations` must be positive, got {evaluations}")
        self._limit, self._count = evaluations, 0

    def on_evaluation(self, report: Report) -> StopRequest:
        """Stop if this is the last allowed evaluation without an improvement."""
        if report.evaluation is None:
            return None
        self._count = 0 if report.evaluation.is_best else self._count + 1
        if self._count < self._limit:
            return None
        return f"no evaluation was better in the last {self._limit}"

    def state(self) -> Mapping[str, Any]:
        """Return the number of evaluations since the best one."""
        return {"count": self._count}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore this number."""
        self._count = int(state["count"])


class StopAfterHours(Callback):
    """A callback that stops the run some hours after it has started or resumed.

    Args:
        hours: the time in hours, of this process alone.
    """

    def __init__(self, hours: float) -> None:
        if not hours > 0:
            raise ConfigError(f"`hours` must be positive, got {hours}")
        self._hours, self._start_s = hours, time.monotonic()

    def on_start(self, report: Report) -> StopRequest:
        """Start the clock."""
        self._start_s = time.monotonic()

    def on_update(self, report: Report) -> StopRequest:
        """Stop if the time has passed."""
        if time.monotonic() - self._start_s < 3600 * self._hours:
            return None
        return f"{self._hours:g} hours have passed"


class StopOnFile(Callback):
    """A callback that stops the run when a file appears.

    Args:
        path: the file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()

    def on_update(self, report: Report) -> StopRequest:
        """Stop if the file exists."""
        return f"the file {self._path} exists" if self._path.exists() else None


def stopping_rules(options: StopOptions, *, has_evaluations: bool) -> list[Callback]:
    """Return the callbacks for the options that stop a run."""
    rules: list[Callback] = []
    if options.stop_at_return is not None:
        metric = "evaluation" if has_evaluations else "return"
        rules.append(StopAtReturn(options.stop_at_return, metric=metric))
    if options.stop_without_improvement is not None:
        rules.append(StopWithoutImprovement(options.stop_without_improvement))
    if options.stop_after_hours is not None:
        rules.append(StopAfterHours(options.stop_after_hours))
    if options.stop_on_file is not None:
        rules.append(StopOnFile(options.stop_on_file))
    return rules


class CallbackList:
    """The callbacks of a run, in the order in which they are called.

    Raises:
        ConfigError: an entry is no `Callback`.
    """

    def __init__(self, callbacks: Sequence[Callback], *, rules: Sequence[Callback] = ()) -> None:
        if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence):
            raise ConfigError(f"`callbacks` must be a list, got {callbacks!r}: write `[callback]`")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(
                    "a callback must be an instance of a class that inherits "
                    f"`hotloop.training.Callback`, got {callback!r}: inherit it, or pass a "
                    "function of the report as `on_report`"
                )
            _warn_about_unknown_events(callback)
        self._callbacks: dict[str, Callback] = {}  # by the name in checkpoints
        for callback in (*rules, *callbacks):
            name, count = type(callback).__name__, 1
            while (key := name if count == 1 else f"{name}-{count}") in self._callbacks:
                count += 1
            self._callbacks[key] = callback
        self._has_started = False

    def connect(self, rollout: Rollout) -> None:
        """Give the environments of a run to its callbacks."""
        for callback in self._callbacks.values():
            callback.envs = TrainingEnvs(rollout)

    def start(self, report: Report) -> str:
        """Call `on_start`, and return the reason to stop or an empty text."""
        self._has_started = True
        return self.notify("on_start", report)

    def notify(self, event: str, *arguments: Any) -> str:
        """Call a method of all callbacks, and return the first reason to stop, or an empty text.

        Raises:
            CallbackError: a callback raised.
        """
        reasons = [
            reply if isinstance(reply, str) else f"{name}.{event} returned True"
            for name, callback in self._overriding(event)
            if (reply := _call(name, callback, event, *arguments))
        ]
        return reasons[0] if reasons else ""

    def end(self, result: RunResult | None) -> None:
        """Call `on_end` of all callbacks once, if the run has started.

        Raises:
            CallbackError: a callback raised, the first one if there are several.
        """
        errors: list[BaseException] = []
        for name, callback in self._overriding("on_end") if self._has_started else ():
            try:
                _call(name, callback, "on_end", result)
            except BaseException as error:  # the others close files in `on_end`
                errors.append(error)
        self._has_started = False
        if errors:
            raise errors[0]

    def observe_rollouts(
        self, collect: Callable[[], Sequence[Fragment]]
    ) -> Callable[[], Sequence[Fragment]]:
        """Return a function that collects and then calls `on_rollout`, if a callback has it."""
        if not self._overriding("on_rollout"):
            return collect

        def collect_and_notify() -> Sequence[Fragment]:
            fragments = collect()
            self.notify("on_rollout", fragments)
            return fragments

        return collect_and_notify

    def states(self) -> dict[str, Any]:
        """Return the states of the callbacks for a checkpoint, by name.

        Raises:
            CallbackError: a state is not JSON.
        """
        states = {}
        for name, callback in self._overriding("state"):
            state = _call(name, callback, "state")
            try:
                states[name] = json_copy(state)
            except (ValueError, RecursionError) as error:
                raise CallbackError(
                    f"the callback {name} must return a dictionary that JSON can hold from "
                    f"`state`, but {error}: convert it, for example to a list or a float"
                ) from None
        return states

    def describe_missing(self, states: Mapping[str, Any]) -> list[str]:
        """Return sentences on callbacks that a checkpoint has states of and this list lacks."""
        names = [name for name in states if name not in self._callbacks]
        return [f"the callback {x} is missing, and its state stays in checkpoints" for x in names]

    def load(self, states: Mapping[str, Any]) -> None:
        """Load the states that a checkpoint has."""
        for name, callback in self._overriding("load"):
            if name in states:
                _call(name, callback, "load", states[name])

    def _overriding(self, method: str) -> list[tuple[str, Callback]]:
        base = getattr(Callback, method)
        callbacks = self._callbacks.items()
        return [(name, x) for name, x in callbacks if getattr(type(x), method) is not base]


def _call(name: str, callback: Callback, method: str, *arguments: Any) -> Any:
    try:
        return getattr(callback, method)(*arguments)
    except Exception as error:
        raise CallbackError(
            f"the callback {name} raised in `{method}`: {describe_exception(error)}; complete "
            "iterations are saved"
        ) from error


def _warn_about_unknown_events(callback: Callback) -> None:
    """Warn about methods such as Stable-Baselines3's `_on_step`, which are never called."""
    events = [name for name in vars(Callback) if name.startswith("on_")]
    unknown = [name for name in dir(type(callback)) if name.lstrip("_").startswith("on_")]
    for name in sorted(set(unknown) - set(events)):
        warnings.warn(
            f"`{type(callback).__name__}.{name}` is no event of a callback, so the training never "
            f"calls it: the events are {', '.join(events)}",
            stacklevel=2,
        )
