"""Fixtures that replace the recorder chosen at import by each of the two recorders."""

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


def _skip_without_recorder(recorder_name: str) -> None:
    if recorder_name == "c" and _recorder is None:
        pytest.skip("the C extension is not built")


@pytest.fixture(params=RECORDERS)
def recorder_name(request: pytest.FixtureRequest) -> str:
    _skip_without_recorder(request.param)
    return request.param


def _install_recorder(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if module is _pure:
        module.install(_control._attach)
    else:
        module.install(_control._attach, _span.decorate, _span.check_span)
    monkeypatch.setattr(_control, "backend", module)
    monkeypatch.setitem(vars(timing), "span", module.span)


@pytest.fixture
def span(recorder_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`span` of one recorder, in a new recording."""
    module = _pure if recorder_name == "python" else _recorder
    _install_recorder(module, monkeypatch)
    _control._switch_recorder(Recorder(None, "main", module.FLAGS))
    yield module.span
    module.reset()
    monkeypatch.undo()
    _control._switch_recorder(Recorder(None, "main", _control.backend.FLAGS))


@pytest.fixture
def run(recorder_name: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a script with one recorder in a new process."""

    def run(script: str, *args: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *map(str, args)],
            env=environment(recorder_name),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **kwargs,
        )

    return run


def environment(recorder_name: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != "HOTLOOP_PURE_TIMING"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if recorder_name == "python":
        env["HOTLOOP_PURE_TIMING"] = "1"
    return env


@pytest.fixture
def env(recorder_name: str) -> dict[str, str]:
    return environment(recorder_name)
