import signal
import threading

import pytest

from hotloop.system.signals import delayed_interrupt, pending_interrupt

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class HandlerError(Exception):
    """The exception that the user's handler raises."""


@pytest.fixture(autouse=True)
def handlers():
    """Install handlers that raise, and restore the previous handlers after the test."""
    arrived = []

    def handler(number, frame):
        arrived.append(number)
        raise HandlerError(number)

    before = {number: signal.signal(number, handler) for number in ENDING}
    yield arrived
    for number, previous in before.items():
        assert signal.getsignal(number) is handler  # restored by the tested code
        signal.signal(number, previous)


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_waits_for_the_body(handlers, number):
    steps = []

    def body():
        with pending_interrupt() as interrupt:
            assert not interrupt.has_arrived
            signal.raise_signal(number)
            assert interrupt.has_arrived
            assert handlers == []
            steps.append("ended in peace")
        steps.append("beyond")

    with pytest.raises(HandlerError) as caught:
        body()
    assert caught.value.args == (number,)
    assert steps == ["ended in peace"]
    assert handlers == [number]


def test_the_second_signal_acts_at_once(handlers):
    steps = []

    def body():
        with pending_interrupt():
            signal.raise_signal(signal.SIGINT)
            steps.append("goes on")
            signal.raise_signal(signal.SIGTERM)
            steps.append("is not reached")

    with pytest.raises(HandlerError):
        body()
    assert steps == ["goes on"]
    assert handlers == [signal.SIGTERM]  # once


def test_without_a_signal_nothing_happens(handlers):
    with pending_interrupt() as interrupt:
        pass
    assert not interrupt.has_arrived
    assert handlers == []


@pytest.mark.parametrize("is_sent", [False, True])
def test_an_exception_of_the_body_passes(handlers, is_sent):
    """The exception replaces the interrupt, because the body has ended."""

    def body():
        with pending_interrupt():
            if is_sent:
                signal.raise_signal(signal.SIGINT)
            raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        body()
    assert handlers == []


def test_an_inner_delayed_interrupt_finishes_first(handlers):
    """The inner `delayed_interrupt` passes the signal on to the outer context."""
    steps = []

    def body():
        with pending_interrupt() as interrupt:
            with delayed_interrupt():
                signal.raise_signal(signal.SIGINT)
                assert not interrupt.has_arrived
                steps.append("written")
            assert interrupt.has_arrived
            steps.append("checked")

    with pytest.raises(HandlerError):
        body()
    assert steps == ["written", "checked"]
    assert handlers == [signal.SIGINT]


@pytest.mark.parametrize("context", [pending_interrupt, delayed_interrupt])
def test_other_threads_are_unaffected(context):
    outcome = []

    def run():
        try:
            before = [signal.getsignal(number) for number in ENDING]
            with context() as interrupt:
                same = [signal.getsignal(number) for number in ENDING] == before
                outcome.append((same, interrupt is not None and interrupt.has_arrived))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert outcome == [(True, False)]


@pytest.mark.parametrize("number", ENDING)
def test_a_delayed_signal_comes_after_the_body(handlers, number):
    steps = []

    def body():
        with delayed_interrupt():
            signal.raise_signal(number)
            signal.raise_signal(number)
            steps.append("written")
        steps.append("beyond")

    with pytest.raises(HandlerError):
        body()
    assert steps == ["written"]
    assert handlers == [number]
