import signal
import threading

import pytest

from hotloop.system.signals import delayed_interrupt, pending_interrupt

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class Ended(Exception):
    """What the user's own handler raises."""


@pytest.fixture(autouse=True)
def handlers():
    """Every signal raises here; whatever a test does, those of before are given back."""
    arrived = []

    def handler(number, frame):
        arrived.append(number)
        raise Ended(number)

    before = {number: signal.signal(number, handler) for number in ENDING}
    yield arrived
    for number, one in before.items():
        assert signal.getsignal(number) is handler  # given back by what was tested
        signal.signal(number, one)


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_waits_for_the_body(handlers, number):
    steps = []

    def body():
        with pending_interrupt() as interrupt:
            assert not interrupt.has_come
            signal.raise_signal(number)
            assert interrupt.has_come
            assert handlers == []
            steps.append("ended in peace")
        steps.append("beyond")

    with pytest.raises(Ended) as caught:
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

    with pytest.raises(Ended):
        body()
    assert steps == ["goes on"]
    assert handlers == [signal.SIGTERM]  # once


def test_without_a_signal_nothing_happens(handlers):
    with pending_interrupt() as interrupt:
        pass
    assert not interrupt.has_come
    assert handlers == []


@pytest.mark.parametrize("comes", [False, True])
def test_what_the_body_raises_comes_out(handlers, comes):
    """It says more than a signal does, which has its wish: the body has ended."""

    def body():
        with pending_interrupt():
            if comes:
                signal.raise_signal(signal.SIGINT)
            raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        body()
    assert handlers == []


def test_what_is_half_written_within_is_finished(handlers):
    """`delayed_interrupt` inside: the signal is passed on to the body's end."""
    steps = []

    def body():
        with pending_interrupt() as interrupt:
            with delayed_interrupt():
                signal.raise_signal(signal.SIGINT)
                assert not interrupt.has_come
                steps.append("written")
            assert interrupt.has_come
            steps.append("looked")

    with pytest.raises(Ended):
        body()
    assert steps == ["written", "looked"]
    assert handlers == [signal.SIGINT]


@pytest.mark.parametrize("context", [pending_interrupt, delayed_interrupt])
def test_outside_the_main_thread_it_does_nothing(context):
    outcome = []

    def run():
        try:
            before = [signal.getsignal(number) for number in ENDING]
            with context() as interrupt:
                same = [signal.getsignal(number) for number in ENDING] == before
                outcome.append((same, interrupt is not None and interrupt.has_come))
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

    with pytest.raises(Ended):
        body()
    assert steps == ["written"]
    assert handlers == [number]
