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
from typing import Any

from hotloop import timing
from hotloop.profiler.collect.import_hooks import ImportHooks
from hotloop.profiler.collect.sampler import Sampler
from hotloop.timing._writer import in_multiprocessing_child

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
    """

    def __init__(self, directory: Path, component: str, *, interval_s: float, hooks: bool) -> None:
        self._directory = directory
        self._interval_s = interval_s
        self._sampler: Sampler | None = None
        self.hooks: ImportHooks | None = None
        if hooks:
            from hotloop.profiler.collect.hooks import make_hooks

            self.hooks = make_hooks()
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
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        if self.hooks is not None:
            self.hooks.remove()

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
    directory: Path, component: str = _MAIN, *, interval_s: float = INTERVAL_S, hooks: bool = True
) -> Capture:
    """Record from here on; what was begun before ends.

    Args:
        directory: the profile's; recordings and samples go to `timing/` in it.
        component: what this process is.
        interval_s: between samples; 0: none are taken.
        hooks: whether functions of other libraries get spans, here and in processes to come.
    """
    global _capture
    _end()
    directory = directory.absolute()
    settings = {"directory": str(directory), "interval_s": interval_s, "hooks": hooks}
    os.environ[VARIABLE] = json.dumps(settings)
    path = os.environ.get("PYTHONPATH")
    if str(BOOT) not in (path or "").split(os.pathsep):
        os.environ["PYTHONPATH"] = str(BOOT) + (os.pathsep + path if path else "")
    _capture = Capture(directory, component, interval_s=interval_s, hooks=hooks)
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
        )
    except Exception as error:  # whatever it is, the program is to run as it would without
        print(f"hotloop: this process is not profiled: {error}", file=sys.stderr)


def _is_program() -> bool:
    """Neither the process that counts semaphores, nor one in which a profile begins by itself."""
    others = ("multiprocessing.resource_tracker", "hotloop.profiler.collect.script")
    return not any(other in argument for argument in sys.orig_argv for other in others)
