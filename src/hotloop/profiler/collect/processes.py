"""Recording of this process and of those that it starts: spans, samples, hooked functions.

    capture = begin("profiles/one", component="main")
    ...
    capture.end()

Forked processes continue to record by themselves. Python programs that the process starts call
`begin_in_child`, which reads the settings in `HOTLOOP_PROFILE`.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop import timing
from hotloop.base.import_hooks import ImportHooks
from hotloop.base.startup import call_in_programs
from hotloop.profiler.collect.exec_calls import ExecCalls
from hotloop.profiler.collect.sampler import StackSampler
from hotloop.profiler.collect.stacks import _ticker
from hotloop.timing._writer import in_multiprocessing_child
from hotloop.timing.gpu_window import LENGTH_S, GpuWindows

SETTINGS_VARIABLE = "HOTLOOP_PROFILE"
INTERVAL_S = 0.01
_MAIN = "main"


class Capture:
    """The recording of this process. Use `begin` to create it.

    Args:
        directory: directory of the profile.
        component: role of this process in the program.
        interval_s: time between samples; 0 disables them.
        hooks: whether functions of other libraries get spans.
        gpu_window_s: length of a GPU window, if torch uses a GPU; 0 disables them.
        what_if: whether places of the program can be delayed.
    """

    def __init__(
        self,
        directory: Path,
        component: str,
        *,
        interval_s: float,
        hooks: bool,
        gpu_window_s: float = LENGTH_S,
        what_if: bool = False,
    ) -> None:
        self._directory, self._component = directory, component
        self._interval_s = interval_s
        self._sampler: StackSampler | None = None
        self._gpu_window_s, self._windows = gpu_window_s, None
        self.hooks: ImportHooks | None = None
        extra_callbacks = {"torch.cuda": self._hook_cuda_start} if gpu_window_s else {}
        if hooks:
            from hotloop.profiler.collect.hooks import make_hooks

            self.hooks = make_hooks(extra_callbacks)
        elif extra_callbacks:
            self.hooks = ImportHooks(extra_callbacks)
        if what_if:
            from hotloop.profiler.collect.delays import install_points

            install_points(directory)
        timing.start(directory / "timing", component)
        # One process lists the descendants for the whole program.
        self._start_sampler(component, records_descendants=component == _MAIN)
        if self.hooks is not None:
            self.hooks.install()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_in_parent,
            after_in_child=self._after_fork_in_child,
        )
        if hasattr(_ticker, "block_signals"):  # around the functions above
            os.register_at_fork(
                before=_ticker.block_signals,
                after_in_parent=_ticker.restore_signals,
                after_in_child=_ticker.restore_signals,
            )
        atexit.register(self.end)
        self._exec_calls = ExecCalls(self._before_exec, SETTINGS_VARIABLE)
        self._exec_calls.install()

    def end(self) -> None:
        """Write the remaining data. No effect when repeated."""
        windows, self._windows = self._windows, None
        if windows is not None:
            windows.stop()
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        if self.hooks is not None:
            self.hooks.remove()
        self._exec_calls.remove()

    def _before_exec(self, command: list[str], has_settings: bool) -> None:
        if self._sampler is not None:
            self._sampler.record_exec(command, has_settings)

    def _hook_cuda_start(self, cuda: ModuleType) -> None:
        """Start GPU windows when torch initializes CUDA, if it ever does."""
        if hasattr(cuda, "_lazy_call"):
            cuda._lazy_call(self._start_gpu_windows)

    def _start_gpu_windows(self) -> None:
        if self._windows is not None:
            return
        try:
            self._windows = GpuWindows(
                self._directory / "timing", self._component, length_s=self._gpu_window_s
            )
            self._windows.start()
        except Exception as error:  # a torch version that differs from the expected one
            assert self.hooks is not None
            self.hooks.problems["torch.autograd.profiler"] = f"{type(error).__name__}: {error}"

    def _start_sampler(
        self, component: str, *, records_descendants: bool, opens_late: bool = False
    ) -> None:
        if self._interval_s > 0:
            self._sampler = StackSampler(
                self._directory / "timing",
                component,
                interval_s=self._interval_s,
                records_descendants=records_descendants,
                opens_late=opens_late,
                problems=self.hooks.problems if self.hooks is not None else {},
            )
            self._sampler.start()

    def _before_fork(self) -> None:
        if self._sampler is not None:
            self._sampler.pause()

    def _after_fork_in_parent(self) -> None:
        if self._sampler is not None:
            self._sampler.resume()

    def _after_fork_in_child(self) -> None:
        """Start the samples of a fork. Its recording starts at its first span."""
        self._windows, self._component = None, "process"
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        sampler.release()
        self._start_sampler("process", records_descendants=False, opens_late=True)
        in_multiprocessing_child(_end)


_capture: Capture | None = None


def _end() -> None:
    """End the recording. multiprocessing holds a weak reference, so this is a module function."""
    if _capture is not None:
        _capture.end()


def begin(
    directory: Path,
    component: str = _MAIN,
    *,
    interval_s: float = INTERVAL_S,
    hooks: bool = True,
    gpu_window_s: float = LENGTH_S,
    what_if: bool = False,
) -> Capture:
    """Start to record this process, and end an earlier recording.

    Args:
        directory: directory of the profile. Recordings and samples go to `timing/` in it.
        component: role of this process in the program.
        interval_s: time between samples; 0 disables them.
        hooks: whether functions of other libraries get spans, here and in child processes.
        gpu_window_s: length of a GPU window, if torch uses a GPU; 0 disables them.
        what_if: whether places of the program can be delayed, here and in child processes.
    """
    global _capture
    _end()
    directory = directory.absolute()
    settings = {
        "interval_s": interval_s,
        "hooks": hooks,
        "gpu_window_s": gpu_window_s,
        "what_if": what_if,
    }
    os.environ[SETTINGS_VARIABLE] = json.dumps({"directory": str(directory), **settings})
    call_in_programs(f"{__name__}:begin_in_child")
    _capture = Capture(directory, component, **settings)
    return _capture


def begin_in_child() -> None:
    """Start to record this process if a recorded process has started it."""
    global _capture
    text = os.environ.get(SETTINGS_VARIABLE)
    if not text or _capture is not None or not _should_record() or _is_subinterpreter():
        return
    try:
        settings: dict[str, Any] = json.loads(text)
        _capture = Capture(
            Path(settings["directory"]),
            "process",
            interval_s=float(settings["interval_s"]),
            hooks=bool(settings["hooks"]),
            gpu_window_s=float(settings.get("gpu_window_s", 0.0)),
            what_if=bool(settings.get("what_if")),
        )
    except Exception as error:  # after any error, the program must run unprofiled
        print(f"hotloop: this process is not profiled: {error}", file=sys.stderr)


def _is_subinterpreter() -> bool:
    """Return whether a program runs `sitecustomize` a second time, in an interpreter of its own."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since Python 3.13, and before
        try:
            interpreters: Any = importlib.import_module(name)
        except ImportError:
            continue
        return interpreters.get_current() != interpreters.get_main()
    return False


def _should_record() -> bool:
    """Return False for a resource tracker and for a process that starts its own profile."""
    excluded = (".resource_tracker import main", "hotloop.profiler.collect.script")
    return not any(module in argument for argument in sys.orig_argv for module in excluded)
