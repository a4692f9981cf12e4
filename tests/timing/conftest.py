"""Both recorders, each taking the place of the one that was chosen at import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hotloop import timing
from hotloop.timing import _control, _pure, _span
from hotloop.timing._writer import Recorder

try:
    from hotloop.timing import _recorder
except ImportError:
    _recorder = None

RECORDERS = ["python", "c"]


def _needs(which: str) -> None:
    if which == "c" and _recorder is None:
        pytest.skip("the C extension is not built")


@pytest.fixture(params=RECORDERS)
def which(request: pytest.FixtureRequest) -> str:
    _needs(request.param)
    return request.param


def _use(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if module is _pure:
        module.install(_control._attach)
    else:
        module.install(_control._attach, _span.decorate, _span.check_span)
    monkeypatch.setattr(_control, "backend", module)
    monkeypatch.setitem(vars(timing), "span", module.span)


@pytest.fixture
def span(which: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`span` of one recorder, in a recording of its own."""
    module = _pure if which == "python" else _recorder
    _use(module, monkeypatch)
    _control._switch(Recorder(None, "main", module.FLAGS))
    yield module.span
    module.reset()
    monkeypatch.undo()
    _control._switch(Recorder(None, "main", _control.backend.FLAGS))


@pytest.fixture
def run(which: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script with one recorder, in a process of its own."""

    def run(script: str, *args: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *map(str, args)],
            env=environment(which),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **kwargs,
        )

    return run


def environment(which: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != "HOTLOOP_PURE_TIMING"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if which == "python":
        env["HOTLOOP_PURE_TIMING"] = "1"
    return env


@pytest.fixture
def env(which: str) -> dict[str, str]:
    return environment(which)
