"""Lanes: runs that learn together in one process, each with a run directory of its own.

    results = train_lanes(ppo.algorithm, [ppo.Config(seed=seed) for seed in range(8)])

Each run collects, stores, reports, evaluates and saves as it does alone; what they want to learn is
learned in one update (`hotloop.learner.lanes`). A run that fails leaves the others alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from hotloop import timing
from hotloop.envs.closing import closed_in_time
from hotloop.errors import ConfigError
from hotloop.learner.lanes import Lanes
from hotloop.runs import Report, Result
from hotloop.timing import span
from hotloop.training.algorithm import Algorithm
from hotloop.training.learning import Learning, Run
from hotloop.training.options import may_change
from hotloop.training.running import Shared, set_up_torch, trained

OnLaneReport = Callable[[int, Report], "bool | None"]


def train_lanes(
    algorithm: Algorithm,
    configs: Sequence[Any],
    *,
    env: str | Callable[..., Any] | None = None,
    on_report: OnLaneReport | None = None,
    on_end: Callable[[int, Result | None], None] | None = None,
) -> list[Result | Exception]:
    """Train several runs at once, whose updates are made as one.

    Args:
        algorithm: one of hotloop's, or your own.
        configs: one for each lane, which differ in their seeds, in numbers of the algorithm's
            `Hyper` and in what changes nothing that is learned.
        env: as for `train`.
        on_report: called as that of `train`, with the lane's number first.
        on_end: called as that of `train`, with the lane's number first.

    Returns:
        For each lane its result; or the error that ended it, a `NonFiniteError` where it learned
        NaN: then the others have gone on.

    Raises:
        ConfigError: the configurations can't be lanes, or the update can't be made of lanes.
        KeyboardInterrupt: after each lane's last checkpoint was written.
    """
    check_lanes(algorithm, configs)
    with contextlib.ExitStack() as exits:
        envs_to_close = exits.enter_context(closed_in_time())
        threads, gpu = set_up_torch(configs[0], exits)
        shared = exits.enter_context(_recorded(Shared(threads, gpu, len(configs))))
        runs = [
            trained(
                algorithm,
                config,
                config.env_id if env is None else env,
                None if on_report is None else _numbered(on_report, k),
                None if on_end is None else _numbered(on_end, k),
                None,
                envs_to_close=envs_to_close,
                shared=shared,
            )
            for k, config in enumerate(configs)
        ]
        return _Driver(runs).drive()


def check_lanes(algorithm: Algorithm, configs: Sequence[Any]) -> None:
    """Refuse configurations that can't be trained together.

    Raises:
        ConfigError: says in what they may differ.
    """
    if not configs:
        raise ConfigError("lanes must be at least one, got none")
    first = configs[0]
    if first.workers == "auto":
        raise ConfigError(
            "`workers` 'auto' weighs the processes of one run: with lanes give a number, 0 for none"
        )
    varied = {
        field.name
        for field in dataclasses.fields(first)
        for other in configs[1:]
        if getattr(other, field.name) != getattr(first, field.name)
    }
    may_vary = hyper_names(algorithm, first)
    free = {"seed", "run_dir", *may_change(type(first))}
    for name in sorted(varied - free - set(may_vary)):
        raise ConfigError(
            f"lanes can't differ in `{name}`: one update is made of all, so they may differ in "
            f"their seeds and in {', '.join(f'`{one}`' for one in may_vary)}; train other settings "
            "side by side, with `--lanes off`"
        )


def hyper_names(algorithm: Algorithm, config: Any) -> tuple[str, ...]:
    """Return the options that are numbers of the algorithm's `Hyper`."""
    kind: Any = algorithm.hyper
    if not isinstance(kind, type):
        import typing

        kind = typing.get_type_hints(kind).get("return")
    names = getattr(kind, "_fields", ())
    return tuple(name for name in names if hasattr(config, name))


class _Driver:
    """Goes on with each run until it wants to learn, then learns for all of them."""

    def __init__(self, runs: Sequence[Run[Result]]) -> None:
        self._runs = runs
        self._came: list[Any] = [None] * len(runs)  # what runs are sent next
        self._errors: dict[int, Exception] = {}  # or thrown
        self._results: dict[int, Result | Exception] = {}
        self._going_on = set(range(len(runs)))
        self._lanes: Lanes | None = None
        self._numbers: dict[int, int] = {}  # of the runs in `_lanes`

    def drive(self) -> list[Result | Exception]:
        """Return each run's result or error."""
        try:
            while asked := self._advanced():
                self._learn(asked)
        except BaseException as error:  # a signal, or what concerns all lanes
            for k in self._going_on:
                with contextlib.suppress(BaseException):
                    self._runs[k].throw(error)
            raise
        return [self._results[k] for k in range(len(self._runs))]

    def _advanced(self) -> dict[int, Learning]:
        """Go on with the runs that have not ended; return what each asks for."""
        asked: dict[int, Learning] = {}
        for k in sorted(self._going_on):
            run, error = self._runs[k], self._errors.pop(k, None)
            try:
                asked[k] = run.send(self._came[k]) if error is None else run.throw(error)
            except StopIteration as end:
                self._end(k, end.value)
            except Exception as problem:
                self._end(k, problem)
        return asked

    def _end(self, k: int, result: Result | Exception) -> None:
        self._results[k] = result
        self._going_on.discard(k)
        if self._lanes is not None and k in self._numbers:
            self._lanes.leave(self._numbers[k])

    def _learn(self, asked: Mapping[int, Learning]) -> None:
        """Make the updates that runs ask for, one batch of each at a time."""
        if self._lanes is None:
            with span("make_lanes"):
                self._numbers = {k: number for number, k in enumerate(asked)}
                self._lanes = Lanes([one.learner for one in asked.values()])
        steps: dict[int, Generator[Any, Any, Any]] = {k: one.steps for k, one in asked.items()}
        told: dict[int, Any] = dict.fromkeys(asked)
        *around, each = next(iter(asked.values())).spans
        with contextlib.ExitStack() as spans:
            for name in around:
                spans.enter_context(span(name))
            while steps:
                batches: dict[int, Any] = {}
                for k in list(steps):
                    try:
                        batches[self._numbers[k]] = steps[k].send(told[k])
                        continue
                    except StopIteration as end:
                        self._came[k] = end.value
                    except Exception as error:  # NaN, mostly: this lane's alone
                        self._errors[k] = error
                    del steps[k]
                if batches:
                    with span(each):
                        td_errors = self._lanes.update(batches)
                    told = {k: td_errors[self._numbers[k]] for k in steps}


def _numbered(call: Callable[..., Any], k: int) -> Callable[..., Any]:
    return lambda *args: call(k, *args)


@contextlib.contextmanager
def _recorded(shared: Shared) -> Iterator[Shared]:
    """Copy the timing of the process to each run's directory in the end."""
    try:
        yield shared
    finally:
        timing.stop()
        for path in shared.run_dirs[1:]:
            with contextlib.suppress(OSError):
                shutil.copytree(shared.run_dirs[0] / "timing", path / "timing", dirs_exist_ok=True)
