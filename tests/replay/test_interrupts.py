"""Ctrl-C while memory is replaced: compiled code never uses released memory."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from hotloop.replay import ReplayBuffer
from hotloop.replay.staging import StagedRows, Staging
from hotloop.replay.storage.frame_pool import FramePool
from hotloop.replay.storage.host_store import HostStore

_COUNT = 110  # final observations and frames need more room than a new buffer has
_FIELDS = {"small": ((3,), np.float32), "image": ((20, 20, 3), np.uint8)}


@contextmanager
def ctrl_c_at_line(number: int, functions: Iterable[Any]) -> Iterator[list[int]]:
    """Send SIGINT before the n-th line of these functions. Yield the number of lines so far."""
    codes = {function.__code__ for function in functions}
    lines = [0]

    def trace(frame, event, argument):
        if frame.f_code not in codes:
            return None
        if event == "line":
            lines[0] += 1
            if lines[0] == number:
                signal.raise_signal(signal.SIGINT)
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(previous)


def observation(number: float):
    small = np.full(3, number, np.float32)
    return {"small": small, "image": np.full((20, 20, 3), int(2 * number) % 251, np.uint8)}


def steps(first: int, count: int):
    """Return steps of one-step episodes, which share no observations."""
    numbers = range(first, first + count)
    batches = [[observation(x + after) for x in numbers] for after in (0.0, 0.5)]
    obs, next_obs = (
        {name: np.stack([each[name] for each in batch]) for name in _FIELDS} for batch in batches
    )
    return {"obs": obs, "next_obs": next_obs, "terminated": np.ones(count, np.bool_)}


def new_buffer():
    fields = {"obs": _FIELDS, "next_obs": _FIELDS, "terminated": ((), np.bool_)}
    return ReplayBuffer(96, fields, share_next_obs=True, seed=0)


def check(buffer):
    assert buffer.num_added == _COUNT
    first = _COUNT - len(buffer)
    batch, expected = buffer.get(np.arange(first, _COUNT)), steps(first, len(buffer))
    for name in _FIELDS:
        np.testing.assert_array_equal(batch.obs[name], expected["obs"][name])
        np.testing.assert_array_equal(batch.next_obs[name], expected["next_obs"][name])
    drawn = buffer.sample(1100)
    np.testing.assert_array_equal(drawn.obs["small"][:, 0], drawn.index)
    np.testing.assert_array_equal(drawn.next_obs["small"][:, 0], drawn.index + 0.5)


def repeated(call) -> bool:
    """Call a function, again after Ctrl-C. Return whether there was one."""
    try:
        call()
    except KeyboardInterrupt:
        call()
        return True
    return False


def add_one_by_one(buffer):
    was_interrupted = False
    for number in range(_COUNT):
        step = {"obs": observation(number), "next_obs": observation(number + 0.5)}
        was_interrupted |= repeated(lambda step=step: buffer.add(**step, terminated=True))
    return was_interrupted


def extend(buffer):
    return repeated(lambda: buffer.extend(**steps(0, _COUNT)))


def draw(buffer):
    buffer.extend(**steps(0, _COUNT))
    return repeated(lambda: buffer.sample(1100))


@pytest.mark.parametrize(
    ("write", "functions"),
    [
        (add_one_by_one, (HostStore.grow, HostStore.add_finals, FramePool.grow)),
        (extend, (Staging._allocate, Staging._reserve, StagedRows.__init__)),
        (draw, (HostStore.reserve_scratch,)),
    ],
)
def test_ctrl_c_while_memory_is_replaced(write, functions):
    number = 0
    while True:
        number += 1
        buffer = new_buffer()
        with ctrl_c_at_line(number, functions) as lines:
            was_interrupted = write(buffer)
        check(buffer)
        if lines[0] < number:
            break
        assert was_interrupted
    assert number > 10
