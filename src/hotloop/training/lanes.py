"""Lanes: runs that are trained together in one process, each with its own run directory.

    results = train_lanes(ppo.algorithm, [ppo.Config(seed=seed) for seed in range(8)])

Each run collects, stores, reports, evaluates and saves as it does alone. Their updates run as one
batched update (`hotloop.learner.lanes`). A failing run does not affect the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from hotloop.envs import kept_global_generators
from hotloop.envs.closing import closing_environments
from hotloop.errors import ConfigError
from hotloop.learner.lanes import Lanes
from hotloop.runs import Report, RunResult
from hotloop.timing import span
from hotloop.training.algorithm import Algorithm
from hotloop.training.callbacks import Callback
from hotloop.training.options import AnyConfig, changeable_options
from hotloop.training.process import TrainingProcess
from hotloop.training.run import run_training
from hotloop.training.run_updates import Run, UpdateRequest

# Options of the process that trains all lanes. They do not change the weights.
_SHARED = {"device", "gpu_window_ms"}

OnLaneReport = Callable[[int, Report], "bool | None"]


def train_lanes(
    algorithm: Algorithm[AnyConfig],
    configs: Sequence[AnyConfig],
    *,
    env: str | Callable[..., Any] | None = None,
    callbacks: Callable[[int], Sequence[Callback]] = lambda _: (),
    on_report: OnLaneReport | None = None,
    on_end: Callable[[int, RunResult | None], None] | None = None,
) -> list[RunResult | Exception]:
    """Train several runs at once, with batched updates.

    Args:
        algorithm: one of hotloop's, or your own.
        configs: one configuration for each lane. They may differ in their seeds, in the numbers of
            the algorithm's `Hyper` and in options that do not change the learned weights.
        env: see `Algorithm.train`.
        callbacks: `callbacks(k)` returns the callbacks of lane k, see `hotloop.training.Callback`.
        on_report, on_end: see `Algorithm.train`; the lane's number is the first argument.

    Returns:
        The result of each lane, or the error that ended it, such as a `NonFiniteError` for NaN. The
        other lanes continue after an error.

    Raises:
        ConfigError: the configurations can't be lanes, or the updates can't be batched.
        KeyboardInterrupt: after the last checkpoint of each lane was written.
    """
    check_lanes(algorithm, configs)
    with contextlib.ExitStack() as exits:
        exits.enter_context(kept_global_generators())
        envs_to_close = exits.enter_context(closing_environments())
        process = TrainingProcess(configs[0], exits, num_runs=len(configs))
        runs = [
            run_training(
                algorithm,
                config,
                config.env_id if env is None else env,
                None if on_report is None else _with_lane(on_report, k),
                None if on_end is None else _with_lane(on_end, k),
                None,
                callbacks=callbacks(k),
                envs_to_close=envs_to_close,
                process=process,
            )
            for k, config in enumerate(configs)
        ]
        return _Driver(runs).drive()


def check_lanes(algorithm: Algorithm[AnyConfig], configs: Sequence[AnyConfig]) -> None:
    """Check that configurations can be trained together.

    Raises:
        ConfigError: they can't; the message lists the options in which they may differ.
    """
    if not configs:
        raise ConfigError("at least one configuration is needed for lanes, got none")
    first = configs[0]
    if any(config.has_policies for config in configs):
        raise ConfigError(
            "lanes have one policy each: call `train_policies` once for each of them, or leave "
            "`policies` out"
        )
    if first.workers == "auto":
        raise ConfigError(
            "`workers` 'auto' measures a single run: set a number of workers for lanes, 0 for none"
        )
    varied = {
        field.name
        for field in dataclasses.fields(first)
        for other in configs[1:]
        if other.value_of(field.name) != first.value_of(field.name)
    }
    may_vary = hyper_names(algorithm, first)
    free = {"seed", "run_dir", *changeable_options(type(first))} - _SHARED
    for name in sorted(varied - free - set(may_vary)):
        raise ConfigError(
            f"lanes can't differ in `{name}`: they share one batched update, so they may differ in "
            f"their seeds and in {', '.join(f'`{option}`' for option in may_vary)}; train other "
            "settings in separate processes with `--lanes off`"
        )


def hyper_names(algorithm: Algorithm[AnyConfig], config: AnyConfig) -> tuple[str, ...]:
    """Return the options in which lanes may differ: fields of `Hyper`, or `batch_options`."""
    kind: Any = algorithm.hyper
    if not isinstance(kind, type):
        kind = typing.get_type_hints(kind).get("return")
    names = (*getattr(kind, "_fields", ()), *algorithm.batch_options)
    return tuple(name for name in names if hasattr(config, name))


class _Driver:
    """A loop that advances every run to its next update, then runs the updates as one batch."""

    def __init__(self, runs: Sequence[Run[RunResult]]) -> None:
        self._runs = runs
        self._errors: dict[int, Exception] = {}  # errors to throw into the runs
        self._results: dict[int, RunResult | Exception] = {}
        self._active = set(range(len(runs)))
        self._lanes: Lanes | None = None
        self._lane_numbers: dict[int, int] = {}  # lanes of the runs in `_lanes`

    def drive(self) -> list[RunResult | Exception]:
        """Train until all runs have ended, and return the result or the error of each."""
        try:
            while requests := self._advance():
                self._run_updates(requests)
        except BaseException as error:  # a signal, or an error of the batched update
            for k in self._active:
                with contextlib.suppress(BaseException):
                    self._runs[k].throw(error)
            raise
        return [self._results[k] for k in range(len(self._runs))]

    def _advance(self) -> dict[int, UpdateRequest]:
        """Advance all active runs, and return their update requests, by run."""
        requests: dict[int, UpdateRequest] = {}
        for k in sorted(self._active):
            run, error = self._runs[k], self._errors.pop(k, None)
            try:
                requests[k] = next(run) if error is None else run.throw(error)
            except StopIteration as end:
                self._end(k, end.value)
            except Exception as problem:
                self._end(k, problem)
        return requests

    def _end(self, k: int, result: RunResult | Exception) -> None:
        self._results[k] = result
        self._active.discard(k)
        if self._lanes is not None and k in self._lane_numbers:
            self._lanes.release(self._lane_numbers[k])

    def _run_updates(self, requests: Mapping[int, UpdateRequest]) -> None:
        """Run the requested updates, one batch of each run at a time."""
        if self._lanes is None:
            with span("make_lanes"):
                self._lane_numbers = {k: number for number, k in enumerate(requests)}
                self._lanes = Lanes([request.learner for request in requests.values()])
        generators: dict[int, Generator[Any, Any, Any]] = {
            k: request.batches for k, request in requests.items()
        }
        td_errors: dict[int, Any] = dict.fromkeys(requests)
        *outer_spans, update_span = next(iter(requests.values())).spans
        with contextlib.ExitStack() as spans:
            for name in outer_spans:
                spans.enter_context(span(name))
            while generators:
                # Collect the next batch of each run. A run without another one is done.
                batches: dict[int, Any] = {}
                for k in list(generators):
                    try:
                        batches[self._lane_numbers[k]] = generators[k].send(td_errors[k])
                        continue
                    except StopIteration:
                        pass
                    except Exception as error:  # usually NaN, which ends only this lane
                        self._errors[k] = error
                    del generators[k]
                # Update all lanes that have a batch.
                if batches:
                    with span(update_span):
                        lane_errors = self._lanes.update(batches)
                    td_errors = {k: lane_errors[self._lane_numbers[k]] for k in generators}


def _with_lane(call: Callable[..., Any], k: int) -> Callable[..., Any]:
    return lambda *args: call(k, *args)
