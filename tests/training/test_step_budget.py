"""The work of the host around a launch: counted, not timed."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.train.step_budget import make_step
from hotloop.replay.storage.device import Inbox

NUM_STEPS = 128


class Operations(TorchDispatchMode):
    """Counts the operations of torch."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_a_step_is_one_copy(monkeypatch):
    """Beside it there are the draws of blocks of random numbers, two operations for 64 steps."""
    step, sends = make_step(), []
    send = Inbox.send
    monkeypatch.setattr(Inbox, "send", lambda inbox: (sends.append(1), send(inbox)))
    with Operations() as operations:
        for _ in range(NUM_STEPS):
            step()
    assert len(sends) == NUM_STEPS
    assert operations.found.pop("copy_") == NUM_STEPS
    assert sum(operations.found.values()) <= 6 * NUM_STEPS // 64
    assert {"uniform_", "normal_"} <= operations.found.keys()


def test_what_is_not_launched_goes_in_blocks(monkeypatch):
    """Transitions of a warm-up: one copy for as many as the inbox holds."""
    step, sends = make_step(), []
    replay = next(c.cell_contents for c in step.__closure__ if hasattr(c.cell_contents, "buffer"))
    fragment = next(c.cell_contents for c in step.__closure__ if hasattr(c.cell_contents, "valid"))
    send = Inbox.send
    monkeypatch.setattr(Inbox, "send", lambda inbox: (sends.append(1), send(inbox)))
    room = replay.buffer.inbox.arrays["rows"].shape[0]
    for _ in range(10 * room):
        replay.store(fragment)
    assert len(sends) <= 10
    assert torch.equal(
        replay.buffer.gather(torch.arange(replay.buffer.num_added - 5, replay.buffer.num_added))["obs"],
        torch.zeros(5, 17),
    )
