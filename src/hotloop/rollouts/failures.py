"""Failures of environments and workers: counts, warnings and the limit, for all transports."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

from hotloop import errors
from hotloop.errors import EnvironmentFailure, HotloopError, SpaceError, UnknownNameError

# Processes of a worker that may fail in the same row, one after another.
_MAX_REPEATS = 10


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, as the cause of the learner's error."""


def traceback_cause(traceback: str) -> WorkerTraceback | None:
    """Return a worker's traceback as the cause of an error. None if it is empty."""
    return WorkerTraceback(f"\n{traceback}") if traceback else None


def worker_error(name: str, kind: str, message: str, *, is_starting: bool) -> HotloopError:
    """Return the error of a worker.

    Args:
        name: Name of the worker.
        kind: Name of the error's class.
        message: Text of the error.
        is_starting: Whether the worker is still making its first environments.
    """
    error_class = getattr(errors, kind, None)
    if not (isinstance(error_class, type) and issubclass(error_class, HotloopError)):
        error_class = EnvironmentFailure
    hint = ""
    if is_starting and error_class is UnknownNameError:
        hint = (
            " (a worker does not run your script: register the environment in a module, and use "
            "`module:Id`)"
        )
    return error_class(f"{name}: {message}{hint}")


class Failures:
    """The failures of a rollout's environments and workers.

    Args:
        max_failures: Maximum total number of replacements of environments and workers.

    Attributes:
        max_failures: The same.
        restarts, env_failures: Counts by worker.
        num_failures: Number of replaced environments and workers.
        last_failure: Text of the last failure, empty if there was none.
    """

    def __init__(self, max_failures: int) -> None:
        self.max_failures = max_failures
        self.restarts: Counter[int] = Counter()
        self.env_failures: Counter[int] = Counter()
        self.num_failures = 0
        self.last_failure = ""
        self._warned_kinds: set[str] = set()
        # By worker: the row at which its last process began, and the number of errors there.
        self._repeats: dict[int, tuple[int, int]] = {}

    def count_env(self, worker: int, message: str, traceback: str = "") -> None:
        """Count the failure of an environment, which its worker has replaced; see `count`."""
        self.env_failures[worker] += 1
        self.count(f"worker {worker}", message, traceback)

    def count_worker(self, worker: int, row: int, message: str, traceback: str = "") -> None:
        """Count a lost worker, whose next process begins with `row`; see `count`.

        Raises:
            EnvironmentFailure: There were too many failures, or an error repeats in the same row.
        """
        self.restarts[worker] += 1
        self.count(f"worker {worker}", message, traceback)
        # Without a traceback, the process was killed or hung, which the row did not cause.
        last_row, count = self._repeats.get(worker, (row, 0))
        count = (count if row == last_row else 0) + bool(traceback)
        self._repeats[worker] = row, count
        if count == _MAX_REPEATS:
            raise EnvironmentFailure(
                f"{_MAX_REPEATS} processes of worker {worker} failed in the same step, the last "
                f"with {message}"
            ) from traceback_cause(traceback)

    def count(self, name: str, message: str, traceback: str = "") -> None:
        """Count the failure of a worker or of its environments, and warn of the first failure of a
        kind.

        Raises:
            EnvironmentFailure: There were too many failures.
        """
        self.num_failures += 1
        text = self.last_failure = f"{name}: {message}"
        if self.num_failures > self.max_failures:
            raise EnvironmentFailure(
                f"environments and workers failed {self.num_failures} times, but at most "
                f"{self.max_failures} failures are allowed (`max_failures`); the last was {text}"
            ) from traceback_cause(traceback)
        # Texts of the same kind of failure differ only in digits.
        kind = "".join(x for x in traceback or message if not x.isdigit())
        if kind not in self._warned_kinds:
            self._warned_kinds.add(kind)
            warnings.warn(
                f"{text}: replaced; similar failures are only counted",
                RuntimeWarning,
                stacklevel=2,
            )


def compare_spaces(first: Any, other: Any, worker: int) -> None:
    """Raise SpaceError if a worker's spaces differ from those of worker 0.

    Args:
        first: Object with the `obs_spec` and `action_spec` of worker 0, as they are or as JSON.
        other: The same object of the other worker.
        worker: Number of the other worker.
    """
    for name, expected, spec in (
        ("observation", first.obs_spec, other.obs_spec),
        ("action", first.action_spec, other.action_spec),
    ):
        if spec != expected:
            raise SpaceError(
                f"all workers must have the same {name} space, but worker 0 has {expected} "
                f"and worker {worker} has {spec}: make the environment independent of "
                "its process"
            )
