"""Repetition of measurements that the kernel's scheduling may disturb."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

NUM_ATTEMPTS = 3

T = TypeVar("T")


class Attempt:
    """A context whose assertions may fail, except in the last attempt."""

    def __init__(self, is_last: bool, errors: type[Exception]) -> None:
        self._is_last = is_last
        self._errors = errors
        self.has_passed: bool | None = None

    def __enter__(self) -> None:
        self.has_passed = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self.has_passed = error is None
        return isinstance(error, self._errors) and not self._is_last


def attempts(
    measure: Callable[[int], T], errors: type[Exception] = AssertionError
) -> Iterator[tuple[T, Attempt]]:
    """Measure until the assertions about a measurement hold, at most three times.

    A busy kernel takes the core from a program, or from the sampler beside it, at any moment. It
    seldom does so in three measurements in a row, and a systematic error fails all three. Only
    assertions about measured times belong into the context:

        for profile, attempt in attempts(measure_profile):
            assert profile.problems == []
            with attempt:
                assert profile.sampled_s > 0.5 * profile.elapsed_s

    Args:
        measure: function of the attempt's number that returns a measurement.
        errors: exceptions that the context may raise.
    """
    for number in range(NUM_ATTEMPTS):
        attempt = Attempt(number == NUM_ATTEMPTS - 1, errors)
        yield measure(number), attempt
        if attempt.has_passed is None:
            raise RuntimeError("expected an assertion in the context of the attempt")
        if attempt.has_passed:
            return


def attempted(test: Callable[..., None]) -> Callable[..., None]:
    """Attempt a whole test, because a busy machine may exceed the short limits of time in it.

    Each attempt has a directory of its own as `tmp_path`.
    """

    @functools.wraps(test)
    def repeated(*, tmp_path: Path, **arguments: Any) -> None:
        for directory, attempt in attempts(lambda number: tmp_path / str(number), Exception):
            directory.mkdir()
            with attempt:
                test(tmp_path=directory, **arguments)

    return repeated
