import gc
import itertools
import os
import socket

import numpy as np
import pytest

from hotloop.rollouts.processes.channel import Channel, ChannelClosed
from hotloop.rollouts.processes.messages import Failure, Packet, WorkerResumed
from tests.rollouts.processes.pools import num_descriptors

LARGE = Failure(message="0123456789" * 10_000)  # more than a packet holds


@pytest.fixture
def ends():
    parent, child_socket = Channel.pair()
    child = Channel(child_socket)
    yield parent, child
    parent.close()
    child.close()


def test_a_nudge_is_an_empty_packet(ends):
    parent, child = ends
    assert child.receive(block=False) is None
    parent.nudge()
    assert child.receive(block=True) == Packet(None, {}, -1)
    assert child.receive(block=False) is None


def test_a_nudge_never_blocks(ends):
    parent, child = ends
    for _ in range(100_000):  # far more than a queue holds
        parent.nudge()
    count = 0
    while child.receive(block=False) is not None:
        count += 1
    assert 0 < count < 100_000


def test_messages_and_nudges_come_in_order(ends):
    parent, child = ends
    first, second = Failure(message="é\n☃", type="OSError"), WorkerResumed(restarted_envs=[3])
    parent.send(first)
    parent.nudge()
    parent.send(second)
    assert child.receive(block=True) == (first, {}, -1)
    assert child.receive(block=True) == Packet(None, {}, -1)
    assert child.receive(block=True) == (second, {}, -1)


def test_waiting_for_a_nudge_keeps_messages_and_notices_the_end(ends):
    parent, child = ends
    first, second = Failure(message="1"), Failure(message="2")
    parent.send(first)
    parent.nudge()
    child.take_nudge()
    child.take_nudge()
    assert child.receive(block=False) == (first, {}, -1)
    assert child.receive(block=False) is None
    parent.send(first)
    parent.send(second)
    parent.close()
    child.take_nudge()
    child.take_nudge()
    with pytest.raises(ChannelClosed):
        child.take_nudge()
    assert [child.receive(block=False).message for _ in range(2)] == [first, second]


def test_arrays_and_files_travel_along(ends):
    parent, child = ends
    large = {"actions.0": np.arange(50_000).reshape(-1, 2), "actions.1": np.zeros(0, np.float32)}
    gc.collect()  # garbage of earlier tests
    before = num_descriptors()
    messages = (WorkerResumed(restarted_envs=[1]), LARGE)
    for message, arrays, has_fd in itertools.product(messages, (None, large), (False, True)):
        fd = os.memfd_create("test") if has_fd else -1
        if has_fd:
            os.write(fd, b"content")
        parent.send(message, arrays=arrays, fd=fd)
        received, received_arrays, received_fd = child.receive(block=True)
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


def test_a_closed_end_is_noticed():
    gc.collect()  # garbage of earlier tests
    before = num_descriptors()
    parent, child_socket = Channel.pair()
    child = Channel(child_socket)
    child.nudge()
    child.close()
    child.close()
    # Earlier messages are still received.
    assert parent.receive(block=True) == Packet(None, {}, -1)
    for call in (
        *(parent.nudge, lambda: parent.receive(block=True), lambda: parent.receive(block=False)),
        *(lambda: parent.send(LARGE, arrays={"x": np.ones(3)}), lambda: child.receive(block=True)),
    ):
        with pytest.raises(ChannelClosed):
            call()
    parent.close()
    assert num_descriptors() == before


def test_the_parents_end_is_not_inherited():
    parent, child_socket = Channel.pair()
    assert child_socket.type == socket.SOCK_SEQPACKET
    assert not os.get_inheritable(parent.socket.fileno())
    parent.close()
    child_socket.close()
