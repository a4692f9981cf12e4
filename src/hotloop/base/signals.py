"""Handling of the signals that end a run, and of threads.

SIGINT is Ctrl-C, SIGTERM is `kill`, and SIGHUP is a closed terminal. Clusters warn a job before
they kill it: Slurm with the signal of `sbatch --signal`, usually SIGUSR1, LSF with SIGUSR2 at its
run limit, Grid Engine with SIGUSR1, SIGUSR2 or SIGXCPU. The kernel sends SIGXCPU at a limit of CPU
time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Signals with which a cluster warns a job.
_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_WARNINGS)
# The kernel sends these to the thread that caused them. If blocked, they end the process without
# the traceback of `faulthandler`.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_BLOCKABLE = signal.valid_signals() - _FAULTS


class Interrupted(KeyboardInterrupt):
    """An exception raised when a signal interrupts the run.

    Attributes:
        exit_code: 128 + the signal's number, such as 130 for Ctrl-C.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class InterruptGuard:
    """The received signal of a run, and control over the next ones.

    Args:
        numbers: numbers of the handled signals, empty outside the main thread.
    """

    def __init__(self, numbers: Sequence[int] = ()) -> None:
        self.number: int | None = None
        self.numbers = numbers

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived.

        The exception raised by the signal handler can get lost: Python drops exceptions in
        callbacks and destructors, and a bare `except` in an environment catches them.
        """
        if self.number is not None:
            raise Interrupted(self.number)

    def ignore(self) -> None:
        """Ignore further signals, for final work that takes at most a second."""
        self._handle(signal.SIG_IGN)

    def restore_defaults(self) -> None:
        """Restore the default handlers, so that the next signal ends the process at once."""
        self._handle(signal.SIG_DFL)

    def _handle(self, handler: signal.Handlers) -> None:
        for number in self.numbers:
            signal.signal(number, handler)


def _has_other_handler(number: int) -> bool:
    """Return whether a signal has a handler that Python does not know and could not restore."""
    handler = signal.getsignal(number)
    if handler is not signal.SIG_DFL:
        return handler is None
    with contextlib.suppress(OSError, IndexError):  # the file exists on Linux alone
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (number - 1) & 1)  # as after `faulthandler.register`
    return False


def _has_default(number: int) -> bool:
    """Return whether a signal would end the process, without a handler of the caller."""
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    return signal.getsignal(number) in defaults and not _has_other_handler(number)


def _ends_run(number: int) -> bool:
    """Return whether a signal ends the run, by default or by a handler of this module."""
    module = getattr(signal.getsignal(number), "__module__", "")
    return module == __name__ or _has_default(number)


def _is_free(number: int) -> bool:
    """Return whether a command may handle a signal. Else its caller ignores or handles it."""
    if number in _WARNINGS:
        return _ends_run(number)
    is_ignored_hangup = number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
    return not is_ignored_hangup and not _has_other_handler(number)  # `nohup` ignores it


@contextlib.contextmanager
def _install_handler(
    numbers: Sequence[int], handler: Callable[[int, Any], None]
) -> Iterator[Callable[[], None]]:
    """Install a handler for the body. Yield a function that restores the old handlers early."""
    pid, old_handlers = os.getpid(), {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)

    def handle(number: int, frame: object) -> None:
        if os.getpid() == pid:
            handler(number, frame)
        else:  # an environment has forked this process, which must end at `terminate`
            restore()
            signal.raise_signal(number)

    try:
        for number in numbers:
            signal.signal(number, handle)
        yield restore
    finally:
        restore()


@contextlib.contextmanager
def interrupt_once() -> Iterator[InterruptGuard]:
    """Raise `Interrupted` at the first signal in the body, and ignore later ones.

    Ignoring them lets the cleanup finish.
    """
    with _interrupt_at(_is_free) as guard:
        yield guard


@contextlib.contextmanager
def interrupt_by_default() -> Iterator[InterruptGuard]:
    """Do the same at signals that would otherwise end the process. Ctrl-C is `KeyboardInterrupt`.

    Handlers of the caller, and ignored signals, stay as they are.
    """
    with _interrupt_at(_has_default) as guard:
        yield guard


@contextlib.contextmanager
def _interrupt_at(is_handled: Callable[[int], bool]) -> Iterator[InterruptGuard]:
    if threading.current_thread() is not threading.main_thread():
        yield InterruptGuard()
        return
    guard = InterruptGuard([number for number in SIGNALS if is_handled(number)])

    def interrupt(number: int, frame: Any) -> None:
        guard.ignore()
        guard.number = number
        if number == signal.SIGINT and is_handled is _has_default:
            signal.default_int_handler(number, frame)  # shells see that Ctrl-C ended the program
        raise Interrupted(number)

    with _install_handler(guard.numbers, interrupt):
        yield guard


class PendingInterrupt:
    """The signals that arrived in the body of `pending_interrupt`."""

    def __init__(self) -> None:
        self.arrived: list[int] = []

    @property
    def has_arrived(self) -> bool:
        """Whether a signal has arrived."""
        return bool(self.arrived)


Interrupts = Callable[[], contextlib.AbstractContextManager[PendingInterrupt]]
"""A function that returns a context, which delays signals or lets them end the run at once."""


@contextlib.contextmanager
def pending_interrupt(*, delays_repeats: bool = False) -> Iterator[PendingInterrupt]:
    """Delay the signals that end a run until the end of the body.

    The body should poll `has_arrived`, and return soon after a signal. Outside the main thread,
    which never receives signals, this does nothing.

    Args:
        delays_repeats: whether to delay further signals too. By default the second signal acts at
            once, in case the body does not poll.
    """
    pending = PendingInterrupt()
    if threading.current_thread() is not threading.main_thread():
        yield pending
        return

    def record(number: int, _frame: object) -> None:
        pending.arrived.append(number)
        if len(pending.arrived) > 1 and not delays_repeats:
            restore()
            signal.raise_signal(number)

    # A signal that the caller ignores or handles must not end the body early.
    is_handled = (lambda number: not _has_other_handler(number)) if delays_repeats else _ends_run
    numbers = [number for number in SIGNALS if is_handled(number)]
    with _install_handler(numbers, record) as restore:
        yield pending
    for number in dict.fromkeys(pending.arrived):  # until a handler raises an exception
        signal.raise_signal(number)


def immediate_interrupt() -> contextlib.AbstractContextManager[PendingInterrupt]:
    """Let signals end the run at any moment of the body."""
    return contextlib.nullcontext(PendingInterrupt())


def delayed_interrupt() -> contextlib.AbstractContextManager[PendingInterrupt]:
    """Delay all signals that end a run until the end of the body.

    Use it while something is half-written.
    """
    return pending_interrupt(delays_repeats=True)


def ignore_job_warnings() -> None:
    """Ignore a cluster's warnings in a child process, since the job's main process handles them.

    Clusters send them to all processes of a job. A child that dies of one looks like a failure.
    Programs that this process starts have the default handlers.
    """
    if threading.current_thread() is threading.main_thread():
        for number in _WARNINGS:
            signal.signal(number, lambda *_: None)


@contextlib.contextmanager
def blocked_signals() -> Iterator[None]:
    """Block signals in this thread for the body, and in all threads that are started in it.

    The kernel gives a signal of the process to any thread that does not block it. If a program
    blocks a signal, to wait for it or to delay it, a thread that it did not start would otherwise
    receive it. Do not start processes in such a thread: they inherit the blocked signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # This call may raise the exception of a signal that has just arrived, after it has blocked.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKABLE)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread(
    function: Callable[..., None], *args: Any, name: str | None = None
) -> threading.Thread:
    """Start and return a daemon thread that leaves signals to the program's own threads."""
    thread = threading.Thread(target=function, args=args, name=name, daemon=True)
    with blocked_signals():
        thread.start()
    return thread
