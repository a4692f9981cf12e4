import gc
import itertools
import os
import socket

import numpy as np
import pytest

from hotloop.rollouts.workers.channel import Channel, Closed
from hotloop.rollouts.workers.messages import Failure, Packet, Resumed
from tests.rollouts.workers.pools import num_descriptors

LARGE = Failure(message="0123456789" * 10_000)  # more than a packet holds


@pytest.fixture
def ends():
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_a_nudge_is_an_empty_packet(ends):
    ours, theirs = ends
    assert theirs.receive(block=False) is None
    ours.nudge()
    assert theirs.receive(block=True) == Packet(None, {}, -1)
    assert theirs.receive(block=False) is None


def test_nobody_who_nudges_waits(ends):
    ours, theirs = ends
    for _ in range(100_000):  # far more than a queue holds
        ours.nudge()
    count = 0
    while theirs.receive(block=False) is not None:
        count += 1
    assert 0 < count < 100_000


def test_messages_and_nudges_come_in_order(ends):
    ours, theirs = ends
    first, second = Failure(message="é\n☃", type="OSError"), Resumed(restarted_envs=[3])
    ours.send(first)
    ours.nudge()
    ours.send(second)
    assert theirs.receive(block=True) == (first, {}, -1)
    assert theirs.receive(block=True) == Packet(None, {}, -1)
    assert theirs.receive(block=True) == (second, {}, -1)


def test_arrays_and_files_travel_along(ends):
    ours, theirs = ends
    large = {"actions.0": np.arange(50_000).reshape(-1, 2), "actions.1": np.zeros(0, np.float32)}
    gc.collect()  # what earlier tests have left
    before = num_descriptors()
    messages = (Resumed(restarted_envs=[1]), LARGE)
    for message, arrays, has_fd in itertools.product(messages, (None, large), (False, True)):
        fd = os.memfd_create("test") if has_fd else -1
        if has_fd:
            os.write(fd, b"content")
        ours.send(message, arrays=arrays, fd=fd)
        received, received_arrays, received_fd = theirs.receive(block=True)
        assert received == message
        assert received_arrays.keys() == (arrays or {}).keys()
        for name, array in received_arrays.items():
            np.testing.assert_array_equal(array, large[name], strict=True)
        if has_fd:
            assert received_fd != fd
            assert os.pread(received_fd, 10, 0) == b"content"
            assert not os.get_inheritable(received_fd)
            os.close(fd)
            os.close(received_fd)
        else:
            assert received_fd == -1
        assert num_descriptors() == before


def test_who_is_gone_is_noticed():
    gc.collect()  # what earlier tests have left
    before = num_descriptors()
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    other.nudge()
    other.close()
    other.close()
    # What was said before is still heard.
    assert ours.receive(block=True) == Packet(None, {}, -1)
    for call in (
        *(ours.nudge, lambda: ours.receive(block=True), lambda: ours.receive(block=False)),
        *(lambda: ours.send(LARGE, arrays={"x": np.ones(3)}), lambda: other.receive(block=True)),
    ):
        with pytest.raises(Closed):
            call()
    ours.close()
    assert num_descriptors() == before


def test_an_end_that_is_inherited_is_the_other_one():
    ours, theirs = Channel.pair()
    assert theirs.type == socket.SOCK_SEQPACKET
    assert not os.get_inheritable(ours.socket.fileno())
    ours.close()
    theirs.close()
