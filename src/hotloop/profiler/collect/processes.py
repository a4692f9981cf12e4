"""Recording of this process and of those that it starts: spans, samples, hooked functions.

    capture = begin("profiles/one", component="main")
    ...
    capture.end()

Processes that it forks go on by themselves; Python programs that it starts find `boot/` on their
`PYTHONPATH`, and what to do in `HOTLOOP_PROFILE`.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop import timing
from hotloop.profiler.collect.import_hooks import ImportHooks
from hotloop.profiler.collect.sampler import Sampler
from hotloop.timing._writer import in_multiprocessing_child
from hotloop.timing.gpu_window import LENGTH_S, GpuWindows

VARIABLE = "HOTLOOP_PROFILE"
BOOT = Path(__file__).parent / "boot"
INTERVAL_S = 0.01
_MAIN = "main"


class Capture:
    """What records this process. Made by `begin`.

    Args:
        directory: the profile's.
        component: what this process is.
        interval_s: between samples; 0: none are taken.
        hooks: whether other libraries' functions get spans.
        gpu_window_s: of a window on the GPU, where torch uses one; 0: none is taken.
    """

    def __init__(
        self,
        directory: Path,
        component: str,
        *,
        interval_s: float,
        hooks: bool,
        gpu_window_s: float = LENGTH_S,
    ) -> None:
        self._directory, self._component = directory, component
        self._interval_s = interval_s
        self._sampler: Sampler | None = None
        self._gpu_window_s, self._windows = gpu_window_s, None
        self.hooks: ImportHooks | None = None
        more = {"torch.cuda": self._await_gpu} if gpu_window_s else {}
        if hooks:
            from hotloop.profiler.collect.hooks import make_hooks

            self.hooks = make_hooks(more)
        elif more:
            self.hooks = ImportHooks(more)
        timing.start(directory / "timing", component)
        # One process looks for all of those that belong to the program.
        self._sample(component, watches_others=component == _MAIN)
        if self.hooks is not None:
            self.hooks.install()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._in_parent,
            after_in_child=self._in_child,
        )
        atexit.register(self.end)

    def end(self) -> None:
        """Write what is left to be written. Harmless when repeated."""
        windows, self._windows = self._windows, None
        if windows is not None:
            windows.stop()
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        if self.hooks is not None:
            self.hooks.remove()

    def _await_gpu(self, cuda: ModuleType) -> None:
        """Take windows from when torch begins to use a GPU, if it ever does."""
        if hasattr(cuda, "_lazy_call"):
            cuda._lazy_call(self._look_at_gpu)

    def _look_at_gpu(self) -> None:
        if self._windows is not None:
            return
        try:
            self._windows = GpuWindows(
                self._directory / "timing", self._component, length_s=self._gpu_window_s
            )
            self._windows.start()
        except Exception as error:  # of a torch of another version than was thought of
            assert self.hooks is not None
            self.hooks.problems["torch.autograd.profiler"] = f"{type(error).__name__}: {error}"

    def _sample(self, component: str, *, watches_others: bool, opens_late: bool = False) -> None:
        if self._interval_s > 0:
            self._sampler = Sampler(
                self._directory / "timing",
                component,
                interval_s=self._interval_s,
                watches_others=watches_others,
                opens_late=opens_late,
                problems=self.hooks.problems if self.hooks is not None else {},
            )
            self._sampler.start()

    def _before_fork(self) -> None:
        if self._sampler is not None:
            self._sampler.pause()

    def _in_parent(self) -> None:
        if self._sampler is not None:
            self._sampler.go_on()

    def _in_child(self) -> None:
        """A fork: its own recording begins at its first span, its own samples here."""
        self._windows, self._component = None, "process"
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        sampler.abandon()
        self._sample("process", watches_others=False, opens_late=True)
        in_multiprocessing_child(_end)


_capture: Capture | None = None


def _end() -> None:
    """A function that lives as long as this module: multiprocessing keeps a weak reference."""
    if _capture is not None:
        _capture.end()


def begin(
    directory: Path,
    component: str = _MAIN,
    *,
    interval_s: float = INTERVAL_S,
    hooks: bool = True,
    gpu_window_s: float = LENGTH_S,
) -> Capture:
    """Record from here on; what was begun before ends.

    Args:
        directory: the profile's; recordings and samples go to `timing/` in it.
        component: what this process is.
        interval_s: between samples; 0: none are taken.
        hooks: whether functions of other libraries get spans, here and in processes to come.
        gpu_window_s: of a window on the GPU, where torch uses one; 0: none is taken.
    """
    global _capture
    _end()
    directory = directory.absolute()
    settings = {"interval_s": interval_s, "hooks": hooks, "gpu_window_s": gpu_window_s}
    os.environ[VARIABLE] = json.dumps({"directory": str(directory), **settings})
    path = os.environ.get("PYTHONPATH")
    if str(BOOT) not in (path or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = str(BOOT) + (os.pathsep + path if path else "")
    _capture = Capture(directory, component, **settings)
    return _capture


def begin_in_child() -> None:
    """Record this process, which a recorded one has started; nothing where none has."""
    global _capture
    text = os.environ.get(VARIABLE)
    if not text or _capture is not None or not _is_program():
        return
    try:
        settings: dict[str, Any] = json.loads(text)
        _capture = Capture(
            Path(settings["directory"]),
            "process",
            interval_s=float(settings["interval_s"]),
            hooks=bool(settings["hooks"]),
            gpu_window_s=float(settings.get("gpu_window_s", 0.0)),
        )
    except Exception as error:  # whatever it is, the program is to run as it would without
        print(f"hotloop: this process is not profiled: {error}", file=sys.stderr)


def _is_program() -> bool:
    """Neither the process that counts semaphores, nor one in which a profile begins by itself."""
    others = ("multiprocessing.resource_tracker", "hotloop.profiler.collect.script")
    return not any(other in argument for argument in sys.orig_argv for other in others)
