"""Repetition of measurements that the kernel's scheduling may disturb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

NUM_ATTEMPTS = 3

T = TypeVar("T")


class Attempt:
    """A context whose assertions may fail, except in the last attempt."""

    def __init__(self, *, is_last: bool) -> None:
        self._is_last = is_last
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
        return isinstance(error, AssertionError) and not self._is_last


def attempts(measure: Callable[[int], T]) -> Iterator[tuple[T, Attempt]]:
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
    """
    for number in range(NUM_ATTEMPTS):
        attempt = Attempt(is_last=number == NUM_ATTEMPTS - 1)
        yield measure(number), attempt
        if attempt.has_passed is None:
            raise RuntimeError("expected an assertion in the context of the attempt")
        if attempt.has_passed:
            return
