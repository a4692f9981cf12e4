"""The host's work around a launch, in counts rather than times."""

import sys
from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.train.step_budget import make_parts
from hotloop.base.transfer import Inbox

NUM_STEPS = 128

# Calls of Python and C functions in a step, 76 with Python 3.11. Each takes some 0.1 to 0.5 µs.
MAX_CALLS = 82


class Operations(TorchDispatchMode):
    """Count torch operations."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def sends(monkeypatch):
    """A list that grows by one with each copy to the device."""
    copies, send = [], Inbox.send
    monkeypatch.setattr(Inbox, "send", lambda inbox: (copies.append(1), send(inbox)))
    return copies


def test_a_step_is_one_copy(sends):
    """In addition, blocks of random numbers are drawn once in 64 steps."""
    step = make_parts().step
    del sends[:]
    with Operations() as operations:
        for _ in range(NUM_STEPS):
            step()
    assert len(sends) == NUM_STEPS
    assert operations.counts.pop("copy_") == NUM_STEPS
    assert sum(operations.counts.values()) <= 6 * NUM_STEPS // 64
    assert {"uniform_", "normal_"} <= operations.counts.keys()


def test_transitions_before_learning_go_in_blocks(sends):
    """A full inbox takes one copy and one operation that writes the rows."""
    _, launches, fragment = make_parts()
    replay, room = launches.replay, launches.replay.buffer.inbox.arrays["rows"].shape[0]
    del sends[:]
    with Operations() as operations:
        for number in range(10 * room):
            fragment.obs[:] = number
            replay.store(fragment)
    assert len(sends) <= 10
    assert operations.counts == {"copy_": len(sends), "index_copy_": len(sends)}
    last = torch.arange(replay.buffer.num_added - 3, replay.buffer.num_added)
    assert replay.buffer.gather(last)["obs"][:, 0].tolist() == [10 * room - k for k in (3, 2, 1)]


def test_a_step_makes_few_calls():
    step = make_parts().step
    step()
    counts = Counter()
    sys.setprofile(lambda frame, event, argument: counts.update([event]))
    try:
        for _ in range(NUM_STEPS):
            step()
    finally:
        sys.setprofile(None)
    assert counts["call"] + counts["c_call"] <= MAX_CALLS * NUM_STEPS
