import faulthandler
import os
import re
import signal
import threading
from pathlib import Path

import pytest

import hotloop
from hotloop.base.signals import (
    Interrupted,
    blocked_signals,
    delayed_interrupt,
    ignore_job_warnings,
    interrupt_by_default,
    interrupt_once,
    pending_interrupt,
    start_thread,
)

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
# Warnings of clusters: Slurm's usual one, LSF's at the run limit, and the limit of CPU time.
WARNINGS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]


class HandlerError(Exception):
    """The exception that the user's handler raises."""


@pytest.fixture(autouse=True)
def handlers():
    """Install handlers that end a run, and restore the previous handlers after the test."""
    arrived = []

    def handler(number, frame):
        arrived.append(number)
        raise HandlerError(number)

    handler.__module__ = interrupt_once.__module__  # only its handlers end a run
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


def test_a_thread_leaves_signals_to_the_threads_that_block_them():
    """A signal that a thread does not block would be handled there, or end the process."""
    masks = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    thread = start_thread(
        lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, set())), name="other"
    )
    thread.join()
    assert {*ENDING, *WARNINGS} <= masks[0]
    assert (thread.daemon, thread.name) == (True, "other")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_faults_still_reach_a_thread_and_masks_end_with_the_body():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    with blocked_signals():
        inside = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM} <= inside
    assert not inside & {signal.SIGSEGV, signal.SIGFPE}


def test_a_signal_at_the_start_of_a_block_leaves_no_signal_blocked(monkeypatch):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    change_mask = signal.pthread_sigmask

    def interrupted(how, numbers):
        result = change_mask(how, numbers)
        if how == signal.SIG_BLOCK and numbers:  # as if Ctrl-C had arrived during the call
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as context:
        context.setattr(signal, "pthread_sigmask", interrupted)
        with pytest.raises(KeyboardInterrupt), blocked_signals():
            pass
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_a_signal_while_handlers_are_installed_leaves_the_old_ones(monkeypatch):
    before = {number: signal.getsignal(number) for number in ENDING}
    install = signal.signal

    def interrupted(number, handler):
        install(number, handler)
        if number == signal.SIGTERM:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt), interrupt_once():
        pass
    assert {number: signal.getsignal(number) for number in ENDING} == before


def test_only_these_functions_start_threads():
    """Every thread of the package is started where signals are blocked."""
    package = Path(hotloop.__file__).parent
    pattern = re.compile(r"threading\.(Thread|Timer)\(|start_new_thread\(|pool\.submit\(")
    found = {}
    for path in package.rglob("*.py"):
        lines = path.read_text().split("\n")
        for number, line in enumerate(lines):
            if pattern.search(line) and not line.lstrip().startswith("#"):
                found[f"{path.relative_to(package)}: {line.strip()}"] = lines[number - 1].strip()
    blocking = {place: before for place, before in found.items() if "blocked_signals" in before}
    (place,) = set(found) - set(blocking)
    assert place.startswith("base/signals.py: thread = threading.Thread(target=function")


@pytest.fixture
def warning_handlers():
    """Restore the handlers of the warnings after the test."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in WARNINGS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("warning_handlers")
@pytest.mark.parametrize("number", WARNINGS)
def test_a_clusters_warning_interrupts_a_run(number):
    steps = []

    def body():
        with interrupt_once():
            with pending_interrupt(), delayed_interrupt():
                signal.raise_signal(number)
                steps.append("written")
            steps.append("not reached")

    with pytest.raises(Interrupted) as caught:
        body()
    assert steps == ["written"]
    assert caught.value.exit_code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.usefixtures("warning_handlers")
@pytest.mark.parametrize("number", WARNINGS)
def test_a_warning_that_the_caller_handles_is_left_to_it(number):
    arrived = []
    signal.signal(number, lambda number, _: arrived.append(number))
    with interrupt_once(), pending_interrupt() as interrupt:
        signal.raise_signal(number)
        assert arrived == [number]
        with delayed_interrupt():
            signal.raise_signal(number)
            assert arrived == [number]
        assert arrived == [number, number]
    assert not interrupt.has_arrived
    signal.signal(number, signal.SIG_IGN)  # `trap '' USR1` in the job's script
    with interrupt_once(), pending_interrupt() as interrupt:
        signal.raise_signal(number)
    assert not interrupt.has_arrived


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_signal_that_does_not_end_the_run_does_not_end_an_evaluation(handlers, handler):
    ending = signal.signal(signal.SIGTERM, handler)
    with pending_interrupt() as interrupt:
        signal.raise_signal(signal.SIGTERM)
    assert not interrupt.has_arrived
    signal.signal(signal.SIGTERM, ending)


def test_a_second_signal_does_not_end_the_cleanup(handlers):
    steps, before = [], [signal.getsignal(number) for number in ENDING]

    def body():
        with interrupt_by_default() as guard:
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)
                steps.append(guard.number)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with pytest.raises(KeyboardInterrupt) as caught:
        body()
    assert caught.type is KeyboardInterrupt  # as without a training
    assert steps == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number, handler in zip(ENDING, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("context", [interrupt_by_default, pending_interrupt, delayed_interrupt])
def test_a_signal_ends_a_forked_child(handlers, context):
    """Else `terminate` would run the cleanup of the training in it, or not end it."""
    ending = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with context():
        pid = os.fork()
        if pid == 0:
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
    signal.signal(signal.SIGTERM, ending)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM


@pytest.mark.usefixtures("warning_handlers")
@pytest.mark.parametrize("context", [interrupt_once, pending_interrupt, delayed_interrupt])
def test_a_handler_that_python_does_not_know_stays(tmp_path, context):
    with (tmp_path / "stacks").open("w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        try:
            for _ in range(2):
                with context():
                    signal.raise_signal(signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert (tmp_path / "stacks").read_text().count("Current thread") == 2


@pytest.mark.usefixtures("warning_handlers")
def test_child_processes_ignore_warnings():
    ignore_job_warnings()
    for number in WARNINGS:
        signal.raise_signal(number)
        # A program that it starts has the default handler, unlike with SIG_IGN.
        assert callable(signal.getsignal(number))


def test_a_signal_after_one_that_does_not_raise_is_not_lost(handlers):
    seen = []

    def body():
        with delayed_interrupt():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)

    handler = signal.signal(signal.SIGHUP, lambda *_: seen.append("hangup"))
    with pytest.raises(HandlerError):
        body()
    signal.signal(signal.SIGHUP, handler)
    assert (seen, handlers) == (["hangup"], [signal.SIGTERM])
